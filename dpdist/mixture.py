"""What all mixtures do alike: fit, predict, sample, save, with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist import checkpoint, schema
from dpdist.allocations import Allocation
from dpdist.backends import Backend, SerialBackend
from dpdist.backends.dask import DaskBackend, active_client
from dpdist.checkpoint import Fitted, Store
from dpdist.errors import InputError
from dpdist.families import Family, Gaussian
from dpdist.fitting import Fit, Limits, Recipe, begin
from dpdist.history import History
from dpdist.model import Precision
from dpdist.moves.plan import MovePlan
from dpdist.prediction import Predictor, predict_partition
from dpdist.preparation import TransformPlan
from dpdist.problem import Problem
from dpdist.schedules import Memoized, Schedule
from dpdist.sources import as_source
from dpdist.state import Info, State

_DTYPES = {"float64": np.float64, "float32": np.float32}


class Mixture(DensityMixin, BaseEstimator):
    """Fitting and prediction shared by all mixtures; subclasses say what the allocation is."""

    family: Family | None
    initial: Any
    initial_components: int
    schedule: Schedule | None
    moves: MovePlan | None
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
        x : (N, D) NumPy array, SciPy sparse matrix, dask.array, xarray.DataArray, zarr.Array, or a path to Zarr
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
        overwrite: bool = False,
        backend: Backend | None = None,
    ) -> Iterator[tuple[State, Info]]:
        """Fit lap by lap; the caller's loop is the callback, and may break at any lap.

        Parameters
        ----------
        x, y, sample_weight : as for :meth:`fit`
        checkpoint_path : folder that a checkpoint is written to after every lap, optional
        overwrite : whether to replace what is there
        backend : where to run; default: the active Dask client, else this process

        Yields
        ------
        state, info : after each lap; the estimator is fitted as of that lap
        """
        settings = {"max_laps": self.max_laps, "max_time": self.max_time, "data": _path_of(x)}
        fit = self.prepare(as_source(x, sample_weight), checkpoint_path, overwrite, backend, settings)
        yield from self.follow(fit)

    def follow(self, fit: Fit) -> Iterator[tuple[State, Info]]:
        """Run a fit, taking its model as this estimator's own after every lap."""
        for step in fit:
            if step.info is not None:
                self.adopt(fit.problem, fit.fitted, fit.history)
                yield step.state, step.info

    def prepare(
        self,
        x: Any,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Fit:
        """A fit ready to run, wave by wave: parameters checked, data surveyed, first checkpoint written.

        Parameters
        ----------
        x : data or a source
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`
        settings : plain values kept with the checkpoint, by which the command line resumes
        """
        recipe, limits = self.recipe(), Limits(self.max_laps, self.max_time)
        source = as_source(x)
        if checkpoint_path is not None:
            checkpoint.claim(checkpoint_path, overwrite)
        backend = backend or default_backend()
        problem, state = begin(recipe, source, backend)
        fit = Fit(problem, source, backend, state, limits, History())
        if checkpoint_path is not None:
            kept = settings if settings is not None else {}
            fit.store = Store.create(checkpoint_path, problem, kept, source.fingerprint(), overwrite)
            fit.save()
            fit.settle()
        return fit

    def recipe(self) -> Recipe:
        """The parameters, checked and made into values."""
        if self.compute_dtype not in _DTYPES:
            raise InputError(f"compute_dtype should be 'float64' or 'float32'; got {self.compute_dtype!r}.")
        if not 0 <= self.floor < 0.01:
            raise InputError(f"floor should be from 0 to below 0.01; got {self.floor}.")
        if not (np.isfinite(self.tolerance) and self.tolerance >= 0):
            raise InputError(f"tolerance should be zero or more nats a row; got {self.tolerance}.")
        seed = self.random_state
        if seed is None or not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        return Recipe(
            family=Gaussian() if self.family is None else self.family,
            allocation=self._allocation(),
            schedule=Memoized() if self.schedule is None else self.schedule,
            plan=MovePlan() if self.moves is None else self.moves,
            transform=TransformPlan() if self.row_transform is None else self.row_transform,
            precision=Precision(_DTYPES[self.compute_dtype], float(self.floor)),
            seed=int(seed),
            tolerance=float(self.tolerance),
            initial=self.initial,
            initial_components=self.initial_components,
        )

    def predict(self, x: Any) -> np.ndarray:
        """Position of each row's most probable component, (N,) int64; ``component_ids_[...]`` gives stable ids."""
        return self._gather(x, "labels")

    def fit_predict(self, x: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Fit to rows, then predict them."""
        return self.fit(x, sample_weight=sample_weight).predict(x)

    def predict_proba(self, x: Any) -> np.ndarray:
        """Responsibilities of the components for each row, (N, K)."""
        return self._gather(x, "probabilities")

    def predict_top(self, x: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` most probable components of each row, best first: positions and probabilities, (N, count)."""
        check_is_fitted(self)
        parts = self._map(x, "top", min(count, self.n_components_))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def score_samples(self, x: Any) -> np.ndarray:
        """Log predictive density of each row in nats, (N,), in the coordinates of the transform if there is one."""
        return self._gather(x, "log_density")

    def score(self, x: Any, y: Any = None) -> float:
        """Mean of :meth:`score_samples`."""
        return float(self.score_samples(x).mean())

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the posterior predictive, the leftover stick included.

        Returns
        -------
        x : (n_samples, d), in the coordinates of the transform if there is one
        components : (n_samples,) positions; K for a component not yet seen
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise InputError(f"n_samples should be at least 1; got {n_samples}.")
        rng = check_random_state(self.random_state)
        generator = np.random.default_rng(rng.randint(2**31 - 1))
        problem, total = self._predictor.problem, self._predictor.total
        weights, rest = problem.model.allocation.weights(total.counts)
        chances = np.append(weights, rest)
        components = generator.choice(len(chances), size=n_samples, p=chances / chances.sum())
        stats = np.concatenate([total.stats, np.zeros((1, total.stats.shape[1]))])
        rows = problem.model.family.sample(stats[components], generator)
        origin = problem.preparation.origin
        return rows if origin is None else rows + origin, components

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fitted model as a Zarr group; :func:`dpdist.load` reads it."""
        check_is_fitted(self)
        store = Store.create(path, self._predictor.problem, {}, {}, overwrite)
        stop = self._fitted.stop or "saved before the fit ended"
        store.commit(self._predictor.problem, self._fitted._replace(stop=stop), self._history, None)

    @property
    def components_(self) -> xr.Dataset:
        """Posterior means of every component, with named dimensions."""
        check_is_fitted(self)
        described = checkpoint.describe(self._predictor.problem, self._predictor.total)
        variables: dict[str, Any] = {
            name: (dims, values, {"long_name": schema.VARIABLES[name].doc})
            for name, (dims, values) in described.items()
        }
        variables["weight"] = (("component",), self.weights_)
        return xr.Dataset(variables, coords={"component": self.component_ids_})

    def adopt(self, problem: Problem, fitted: Fitted | None, history: History) -> None:
        """Take the model of a lap as this estimator's own."""
        assert fitted is not None, "a lap was finished"
        self._predictor = Predictor(problem, fitted.total, fitted.ids)
        self._fitted, self._history = fitted, history
        self.n_features_in_ = problem.preparation.columns
        self.n_components_ = len(fitted.ids)
        self.component_ids_ = fitted.ids
        self.weights_, self.rest_weight_ = problem.model.allocation.weights(fitted.total.counts)
        self.elbo_, self.n_iter_ = fitted.elbo, len(history.laps)
        self.converged_, self.stop_reason_ = fitted.converged, fitted.stop

    @property
    def history_(self) -> xr.Dataset:
        """Laps and proposals of the fit."""
        check_is_fitted(self)
        return self._history.dataset()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.family is not None and self.family.accepts_sparse
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def _gather(self, x: Any, method: str) -> np.ndarray:
        return np.concatenate(self._map(x, method))

    def _map(self, x: Any, method: str, *arguments: Any) -> list[Any]:
        check_is_fitted(self)
        source, backend = as_source(x), default_backend()
        self._predictor.problem.preparation.check_columns(source.shape[1], type(self).__name__)
        partitions = source.partitions
        shared = backend.share(self._predictor)
        columns = [[shared] * len(partitions), [method] * len(partitions)]
        columns += [[argument] * len(partitions) for argument in arguments]
        return backend.fetch(backend.map(predict_partition, partitions, *columns))


def default_backend() -> Backend:
    """The active Dask client, or this process."""
    client = active_client()
    return SerialBackend() if client is None else DaskBackend(client)


def _path_of(x: Any) -> str | None:
    """The path or URL that data were given by, absolute; None for arrays."""
    if not isinstance(x, str | os.PathLike):
        return None
    path = os.fspath(x)
    return path if "://" in path else str(Path(path).absolute())
