"""The estimators of mixtures that laps over all rows fit: Dirichlet-process and finite ones."""

from __future__ import annotations

from collections.abc import Sequence

from dpdist.core.settings import documented_by
from dpdist.estimators.fitted import RandomState
from dpdist.estimators.manner import Starts
from dpdist.estimators.mixture import Mixture
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.schedules import Schedule
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation
from dpdist.models.families import Family
from dpdist.runs.specs import FiniteSpec, MixtureSpec


@documented_by(MixtureSpec, Starts)
class DPMixture(Mixture):
    """Dirichlet-process mixture: a clustering whose number of clusters is learned.

    From one cluster on, splits, regroups, merges and deletes change the model wherever the evidence lower bound of all
    rows rises. ``Memoized(batches=1)`` is batch variational Bayes. Fitting is on the active Dask client's workers, or
    in this process, to the same bits.

    Attributes
    ----------
    n_components_ : int
        Number of clusters, K.
    elbo_ : float
        Exact evidence lower bound of the whole data in raw columns, in nats, every constant included.
    weights_ : (K,)
        Posterior mean mixture weights; ``rest_weight_`` is left to clusters not yet seen.
    component_ids_ : (K,) int64
        Stable identities, kept through reordering, resuming and saving.
    components_ : xarray.Dataset
        Posterior means of the clusters' parameters in raw columns; with PCA, covariances take K x D x D numbers for
        the D raw columns, and are not stored.
    means_, covariances_ : (K, D), and (K, D, D) or (K, D)
        Of these, of families that have such; as scikit-learn's mixtures have them.
    labels_ : (N,) int64
        Labels of the rows that were fitted, computed when they are first asked for.
    n_features_in_, feature_names_in_ : int, (D,) array of str
        Columns, and their names if the data had any.
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

    _spec_type = MixtureSpec

    def __init__(
        self,
        family: Family | str | None = None,
        *,
        concentration: float | Allocation = 10.0,
        initial: object = "one",
        initial_components: int = 20,
        initial_rows: int | None = 20_000,
        max_components: int | None = None,
        schedule: Schedule | str | None = None,
        moves: Sequence[AnyMove] | None = None,
        sampling: Sampling | None = None,
        candidates: Candidates | None = None,
        prior: str = "data",
        background: float | None = None,
        row_transform: TransformPlan | None = None,
        compute_dtype: str = "float64",
        floor: float = 1e-8,
        tolerance: float = 1e-5,
        max_laps: int | None = 100,
        max_time: float | None = None,
        random_state: RandomState = 0,
        verbose: bool = False,
        n_init: int = 1,
        warm_start: bool = False,
    ) -> None:
        self.family = family
        self.concentration = concentration
        self.initial = initial
        self.initial_components = initial_components
        self.initial_rows = initial_rows
        self.max_components = max_components
        self.schedule = schedule
        self.moves = moves
        self.sampling = sampling
        self.candidates = candidates
        self.prior = prior
        self.background = background
        self.row_transform = row_transform
        self.compute_dtype = compute_dtype
        self.floor = floor
        self.tolerance = tolerance
        self.max_laps = max_laps
        self.max_time = max_time
        self.random_state = random_state
        self.verbose = verbose
        self.n_init = n_init
        self.warm_start = warm_start


@documented_by(FiniteSpec, Starts)
class FiniteMixture(Mixture):
    """Finite mixture with a symmetric Dirichlet prior on its weights.

    The attributes are those of :class:`DPMixture`.
    """

    _spec_type = FiniteSpec

    def __init__(
        self,
        family: Family | str | None = None,
        n_components: int = 10,
        *,
        concentration: float = 1.0,
        initial: object = "k-means++",
        initial_rows: int | None = 20_000,
        schedule: Schedule | str | None = None,
        moves: Sequence[AnyMove] | None = None,
        sampling: Sampling | None = None,
        candidates: Candidates | None = None,
        prior: str = "data",
        background: float | None = None,
        row_transform: TransformPlan | None = None,
        compute_dtype: str = "float64",
        floor: float = 1e-8,
        tolerance: float = 1e-5,
        max_laps: int | None = 100,
        max_time: float | None = None,
        random_state: RandomState = 0,
        verbose: bool = False,
        n_init: int = 1,
        warm_start: bool = False,
    ) -> None:
        self.family = family
        self.n_components = n_components
        self.concentration = concentration
        self.initial = initial
        self.initial_rows = initial_rows
        self.schedule = schedule
        self.moves = moves
        self.sampling = sampling
        self.candidates = candidates
        self.prior = prior
        self.background = background
        self.row_transform = row_transform
        self.compute_dtype = compute_dtype
        self.floor = floor
        self.tolerance = tolerance
        self.max_laps = max_laps
        self.max_time = max_time
        self.random_state = random_state
        self.verbose = verbose
        self.n_init = n_init
        self.warm_start = warm_start
