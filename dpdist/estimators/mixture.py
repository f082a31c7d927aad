"""What all mixtures do alike: fit, predict, sample, save, with scikit-learn's conventions."""

from __future__ import annotations

from typing import Self

import numpy.typing as npt

from dpdist.estimators.base import Clustering
from dpdist.runs.specs.mixture import FitSpec


class Mixture(Clustering[FitSpec]):
    """Fitting shared by all mixtures; subclasses say what the allocation is."""

    def fit(self, x: object, y: object = None, sample_weight: npt.ArrayLike | None = None) -> Self:
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

    def _show(self) -> None:
        super()._show()
        self.elbo_, self.n_iter_ = self._fitted.elbo, len(self._history.laps)
        self.converged_, self.stop_reason_ = self._fitted.converged, self._fitted.stop
