"""What all mixtures do alike: fit, predict, sample, save, with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Self

from dpdist.data import as_source
from dpdist.estimators.base import Clustering
from dpdist.estimators.fitted import path_of
from dpdist.execution import Backend
from dpdist.inference.state import Info, State
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.specs.mixture import FitSpec


class Mixture(Clustering):
    """Fitting shared by all mixtures; subclasses say what the allocation is."""

    _spec_type: type[FitSpec]

    def fit(self, x: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows.

        Parameters
        ----------
        x : (N, D) NumPy array, SciPy sparse matrix, pandas.DataFrame, dask.array, xarray.DataArray, zarr.Array, or a
            path to Zarr
        y : ignored
        sample_weight : (N,) weights, zero or more, optional

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data or a parameter are not what was asked for.
        """
        for _ in self.iter_fit(x, sample_weight=sample_weight):
            pass
        return self

    def iter_fit(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        overwrite: bool = False,
        backend: Backend | None = None,
    ) -> Iterator[tuple[State, Info]]:
        """Fit lap by lap; the caller's loop is the callback, and may break at any lap.

        Parameters
        ----------
        x, y, sample_weight : as for :meth:`fit`
        checkpoint_path : folder that checkpoints are written to, optional: before the first lap, at the end, also when
            the loop is left, and between as often as they cost at most 3 % of the time
        checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every batch
        overwrite : whether to replace what is there
        backend : where to run; default: the active Dask client, else this process

        Yields
        ------
        state, info : after each lap; the estimator is fitted as of that lap
        """
        settings = {"data": path_of(x)}
        fit = self.prepare(as_source(x, sample_weight), checkpoint_path, overwrite, backend, settings)
        fit.checkpoint_seconds = checkpoint_seconds
        yield from self.follow(fit)

    def _show(self) -> None:
        super()._show()
        self.elbo_, self.n_iter_ = self._fitted.elbo, len(self._history.laps)
        self.converged_, self.stop_reason_ = self._fitted.converged, self._fitted.stop
