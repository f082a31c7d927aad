"""Estimators with scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import xarray as xr
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist import checkpoint, schema
from dpdist.allocations import Allocation, DirichletProcess, FiniteDirichlet
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


class _Mixture(DensityMixin, BaseEstimator):
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
        fit = self.prepare(as_source(x, sample_weight), checkpoint_path, overwrite, backend)
        for step in fit:
            if step.info is not None:
                self._adopt(fit.problem, fit.fitted, fit.history)
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

    def _adopt(self, problem: Problem, fitted: Fitted | None, history: History) -> None:
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


class DPMixture(_Mixture):
    """Dirichlet-process mixture: a clustering whose number of clusters is learned.

    Parameters
    ----------
    family : Family, optional
        Likelihood of a cluster, with its prior. Default: :class:`dpdist.families.Gaussian`.
    concentration : float or LearnedDirichletProcess
        Concentration of the Dirichlet process, or a Gamma prior under which it is learned.
    initial : {"one", "k-means++"}, (N,) labels or (N, K) responsibilities
        The first model.
    initial_components : int
        Clusters of a k-means++ start.
    max_components : int, optional
        Largest number of clusters that moves may reach. Default: no bound.
    schedule : Schedule, optional
        Default: ``Memoized(waves=20)``. ``Memoized(waves=1)`` is batch variational Bayes,
        ``Stochastic()`` stochastic inference.
    moves : MovePlan, optional
        Which moves to make; default: splits, merges and deletes.
    row_transform : TransformPlan, optional
        Centring, scaling, PCA, fitted in one pass and kept with the model. Default: none.
    compute_dtype : {"float64", "float32"}
        Of the two matrix products; sums are float64 always.
    floor : float
        Responsibilities below it are set to zero.
    tolerance : float
        Change of the ELBO, in nats a row, below which a lap counts as settled.
    max_laps : int or None
        Largest number of passes over the data.
    max_time : float or None
        Largest time in seconds.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_components_ : int
        Number of clusters, K.
    elbo_ : float
        Exact evidence lower bound of the whole data, in nats, every constant included.
    weights_ : (K,)
        Posterior mean mixture weights; ``rest_weight_`` is left to clusters not yet seen.
    component_ids_ : (K,) int64
        Stable identities, kept through reordering, resuming and saving.
    components_ : xarray.Dataset
        Posterior means of the clusters' parameters.
    history_ : xarray.Dataset
        ELBO, K and seconds by lap; every proposal, its exact gain and what became of it.
    converged_ : bool
    stop_reason_ : str
    n_iter_ : int
        Laps made.

    Examples
    --------
    >>> import numpy as np, dpdist
    >>> x = np.concatenate([np.random.default_rng(0).normal(c, 1, size=(200, 2)) for c in (-9, 0, 9)])
    >>> dpdist.DPMixture(random_state=0).fit(x).n_components_
    3
    """

    def __init__(
        self,
        family: Family | None = None,
        *,
        concentration: float | Allocation = 10.0,
        initial: Any = "one",
        initial_components: int = 20,
        max_components: int | None = None,
        schedule: Schedule | None = None,
        moves: MovePlan | None = None,
        row_transform: TransformPlan | None = None,
        compute_dtype: str = "float64",
        floor: float = 1e-8,
        tolerance: float = 1e-5,
        max_laps: int | None = 100,
        max_time: float | None = None,
        random_state: Any = None,
    ) -> None:
        self.family = family
        self.concentration = concentration
        self.initial = initial
        self.initial_components = initial_components
        self.max_components = max_components
        self.schedule = schedule
        self.moves = moves
        self.row_transform = row_transform
        self.compute_dtype = compute_dtype
        self.floor = floor
        self.tolerance = tolerance
        self.max_laps = max_laps
        self.max_time = max_time
        self.random_state = random_state

    def _allocation(self) -> Allocation:
        if isinstance(self.concentration, Allocation):
            return self.concentration
        return DirichletProcess(float(self.concentration), self.max_components)


class FiniteMixture(_Mixture):
    """Finite mixture with a symmetric Dirichlet prior on its weights.

    Parameters
    ----------
    family : Family, optional
    n_components : int
        Components of the prior; moves never exceed it, and a fit may leave some unused.
    concentration : float
        Sum of the Dirichlet's parameters.

    The other parameters and the attributes are those of :class:`DPMixture`.
    """

    def __init__(
        self,
        family: Family | None = None,
        n_components: int = 10,
        *,
        concentration: float = 1.0,
        initial: Any = "k-means++",
        schedule: Schedule | None = None,
        moves: MovePlan | None = None,
        row_transform: TransformPlan | None = None,
        compute_dtype: str = "float64",
        floor: float = 1e-8,
        tolerance: float = 1e-5,
        max_laps: int | None = 100,
        max_time: float | None = None,
        random_state: Any = None,
    ) -> None:
        self.family = family
        self.n_components = n_components
        self.concentration = concentration
        self.initial = initial
        self.schedule = schedule
        self.moves = moves
        self.row_transform = row_transform
        self.compute_dtype = compute_dtype
        self.floor = floor
        self.tolerance = tolerance
        self.max_laps = max_laps
        self.max_time = max_time
        self.random_state = random_state

    @property
    def initial_components(self) -> int:  # type: ignore[override]
        """A k-means++ start has all components of the prior."""
        return self.n_components

    def _allocation(self) -> Allocation:
        return FiniteDirichlet(self.n_components, float(self.concentration))


def default_backend() -> Backend:
    """The active Dask client, or this process."""
    client = active_client()
    return SerialBackend() if client is None else DaskBackend(client)


def load(path: str | os.PathLike[str], families: dict[str, type[Family]] | None = None) -> DPMixture:
    """The fitted model in a saved model or a run's checkpoint.

    Parameters
    ----------
    path : folder written by :meth:`DPMixture.save` or ``dpdist fit``
    families : users' own families by name

    Raises
    ------
    CheckpointError
        If there is no fitted model there.
    """
    store = Store.open(path)
    problem, fitted = store.problem(families), store.fitted()
    if fitted is None:
        raise InputError(f"{path} holds no finished lap yet; go on with: dpdist resume {path}")
    precision = problem.precision
    model = DPMixture(
        problem.model.family,
        concentration=problem.model.allocation,
        schedule=problem.schedule,
        moves=problem.plan,
        compute_dtype=np.dtype(precision.dtype).name,
        floor=precision.floor,
        tolerance=problem.tolerance,
        random_state=problem.seed,
    )
    model._adopt(problem, fitted, store.history())
    return model
