"""What all mixtures do alike: fit, predict, sample, save, with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import xarray as xr
from sklearn.utils.validation import check_is_fitted

from dpdist.data import as_source
from dpdist.estimators.base import (
    Clustering,
    asked_of,
    chosen_backend,
    keeping_of,
    path_of,
    warn_unless_converged,
)
from dpdist.execution import Backend
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.registry import MOVES
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.prediction import MixturePredictor
from dpdist.inference.schedules import Memoized, Schedule
from dpdist.inference.state import Info, State
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation
from dpdist.models.families import Family, Gaussian
from dpdist.models.mixture import Precision
from dpdist.runs.fitting import MemoizedMixture, Recipe
from dpdist.runs.limits import Limits
from dpdist.runs.preparing import prepare
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.history import History


class Mixture(Clustering):
    """Fitting shared by all mixtures; subclasses say what the allocation is."""

    family: Family | None
    initial: Any
    initial_components: int
    initial_rows: int | None
    schedule: Schedule | None
    moves: Sequence[AnyMove] | None
    sampling: Sampling | None
    row_transform: TransformPlan | None
    compute_dtype: str
    floor: float
    tolerance: float
    max_laps: int | None
    max_time: float | None
    random_state: Any

    def _allocation(self) -> Allocation:
        raise NotImplementedError("a mixture says what its allocation is")

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
        checkpoint_seconds: float = 600.0,
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
        settings = {"max_laps": self.max_laps, "max_time": self.max_time, "data": path_of(x)}
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
        """A fit ready to run, batch by batch: parameters checked, data fitted_transform, first checkpoint written.

        Parameters
        ----------
        x : data or a source
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`
        settings : plain values kept with the checkpoint, by which the command line resumes
        """
        recipe, limits = self.recipe(), Limits(self.max_laps, self.max_time)
        keeping = keeping_of(self, recipe.seed, checkpoint_path, settings or {}, overwrite)
        return prepare(MemoizedMixture(), recipe, as_source(x), limits, chosen_backend(backend), keeping)

    def recipe(self) -> Recipe:
        """The parameters, checked and made into values."""
        return Recipe(
            family=Gaussian() if self.family is None else self.family,
            allocation=self._allocation(),
            schedule=Memoized() if self.schedule is None else self.schedule,
            moves=MOVES if self.moves is None else self.moves,
            sampling=Sampling() if self.sampling is None else self.sampling,
            transform=TransformPlan() if self.row_transform is None else self.row_transform,
            precision=Precision(self._dtype(), self.floor),
            seed=self._seed(),
            tolerance=self.tolerance,
            initial=self.initial,
            initial_components=self.initial_components,
            initial_rows=self.initial_rows,
        )

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
        self.elbo_, self.n_iter_ = fitted.elbo, len(history.rows)
        self.converged_, self.stop_reason_ = fitted.converged, fitted.stop

    @property
    def history_(self) -> xr.Dataset:
        """Laps and proposals of the fit."""
        check_is_fitted(self)
        return self._history.dataset()
