"""What all mixtures do alike: fit, predict, sample, save, with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Self

import xarray as xr
from sklearn.utils.validation import check_is_fitted

from dpdist.data import as_source
from dpdist.estimators.base import (
    Clustering,
    asked_of,
    chosen_backend,
    output_of,
    path_of,
    spec_of,
    warn_unless_converged,
)
from dpdist.execution import Backend
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.prediction import MixturePredictor
from dpdist.inference.state import Info, State
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.fitting import MemoizedMixture
from dpdist.runs.preparing import prepare
from dpdist.runs.run import Run
from dpdist.runs.specs.mixture import FitSpec
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.history import History


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

    def follow(self, fit: Run[Problem]) -> Iterator[tuple[State, Info]]:
        """Run a fit, taking its model as this estimator's own after every lap."""
        for step in fit:
            if step.info is not None:
                self.adopt(fit.problem, fit.fitted, fit.history)
                yield step.state, step.info
        warn_unless_converged(fit)

    def prepare(
        self,
        x: Any,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Run[Problem]:
        """A fit ready to run, batch by batch: parameters checked, data summarised, first checkpoint written.

        Parameters
        ----------
        x : data or a source
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`
        settings : plain values kept with the checkpoint, by which the command line resumes
        """
        spec = self.spec()
        output = output_of(self, spec.random_state, checkpoint_path, settings or {}, overwrite)
        return prepare(MemoizedMixture(), spec, as_source(x), spec.limits, chosen_backend(backend), output)

    def spec(self) -> FitSpec:
        """The parameters, checked."""
        return spec_of(self._spec_type, self)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fitted model as a Zarr group; :func:`dpdist.load` reads it."""
        check_is_fitted(self)
        store = RunStore.create(path, self._problem, {}, {}, overwrite, asked_of(self, self._problem.seed))
        stop = self._fitted.stop or "saved before the fit ended"
        store.commit(self._problem, self._fitted._replace(stop=stop), self._history)
        store.release()

    def adopt(self, problem: Problem, fitted: Fitted | None, history: History) -> None:
        """Take the model of a lap as this estimator's own."""
        assert fitted is not None, "a lap was finished"
        self._show(MixturePredictor(problem.model, problem.preparation, fitted.total, fitted.ids))
        self._problem, self._fitted, self._history = problem, fitted, history
        self.elbo_, self.n_iter_ = fitted.elbo, len(history.laps)
        self.converged_, self.stop_reason_ = fitted.converged, fitted.stop

    @property
    def history_(self) -> xr.Dataset:
        """Laps and proposals of the fit."""
        check_is_fitted(self)
        return self._history.dataset()
