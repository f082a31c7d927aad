"""The estimators: Dirichlet-process and finite mixtures, and how they come back from disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import numpy.typing as npt

from dpdist.core.settings import documented_by
from dpdist.data import as_source
from dpdist.estimators.fitted import RandomState, chosen_backend
from dpdist.estimators.manner import Starts
from dpdist.estimators.mixture import Mixture
from dpdist.estimators.sva import SVA
from dpdist.estimators.topic_model import HDPTopicModel
from dpdist.execution import Backend
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.schedules import Schedule
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation
from dpdist.models.families import Family
from dpdist.runs.extending import prepare_extension
from dpdist.runs.limits import Limits
from dpdist.runs.opening import gone_on, open_run, run_at
from dpdist.runs.run import Run
from dpdist.runs.specs import FiniteSpec, MixtureSpec
from dpdist.storage.checkpoint import FINDINGS, RunStore
from dpdist.storage.importing import imported_class, made
from dpdist.storage.preparing import PreparationStore


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


Fit = TypeVar("Fit", Mixture, SVA, HDPTopicModel)
#: What comes back from disk.
_ESTIMATORS = (Mixture, SVA, HDPTopicModel)


def resume(
    path: str | os.PathLike[str],
    x: object,
    *,
    sample_weight: npt.ArrayLike | None = None,
    max_laps: int | None = None,
    max_time: float | None = None,
    holdout: object = None,
    backend: Backend | None = None,
) -> Mixture | SVA | HDPTopicModel:
    """Go on with the run or the pass in a checkpoint, to the bits it would have had undisturbed.

    Parameters
    ----------
    path : folder that a fit wrote its checkpoint to
    x, sample_weight : the data it began with
    max_laps, max_time : when to stop; default: as the run was told
    holdout : rows whose score is followed; default: those at the path that the run was told. Rows in memory are not
        kept, and not scored from here on unless they are given again
    backend : where to run; default: the active Dask client, else this process

    Returns
    -------
    model : the estimator that began the run, with its parameters, `max_laps` and `max_time` apart where given; fitted

    Raises
    ------
    CheckpointError
        If there is no run at `path`, the data are not those it began with, or a class of your own that it needs cannot
        be imported.
    """
    model, source = _estimator_of(run_at(path)), as_source(x, sample_weight)
    run = gone_on(path, source, chosen_backend(backend), max_laps, max_time, holdout)
    model.set_params(**Limits(max_laps, max_time).given)
    return _at_its_end(model, run)


def extend(
    path: str | os.PathLike[str],
    x: object,
    *,
    sample_weight: npt.ArrayLike | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    again: bool = False,
    backend: Backend | None = None,
) -> SVA:
    """Let new rows refine and grow a model by a sequential pass, without the rows it was made from.

    Parameters
    ----------
    path : model of a sequential pass, or a run or model fitted otherwise
    x, sample_weight : the new rows
    out : folder for the result; default: the model itself gets a new generation, which needs a sequential model
    overwrite : whether to replace what is at `out`
    again : whether to take rows that the model was made from already, which then count twice. They are told by a digest
        of all rows in their partitions; a model written by ``save`` knows none
    backend : where to run; default: the active Dask client, else this process

    Returns
    -------
    model : fitted to old and new rows

    Raises
    ------
    InputError, CheckpointError
        If there is no finished model at `path`, the rows do not fit it, or it was made from them already.
    """
    source = as_source(x, sample_weight, open_run(path).problem().names)
    run = prepare_extension(path, source, chosen_backend(backend), out, overwrite, {}, again)
    assert run.store is not None, "an extension is kept"
    return _at_its_end(_estimator_of(run.store), run)


def _at_its_end(model: Fit, run: Run) -> Fit:
    """The estimator fitted by a run, which is followed to its end; it may be there already."""
    if run.fitted is not None:
        model.adopt(run.problem, run.fitted, run.history)
    for _ in model.follow(run):
        pass
    return model


def load(path: str | os.PathLike[str]) -> Mixture | SVA | HDPTopicModel:
    """The fitted model in a saved model or a run's checkpoint.

    Parameters
    ----------
    path : folder written by an estimator's ``save``, or by ``dpdist fit``, ``sva`` or ``topics``

    Returns
    -------
    model : DPMixture, FiniteMixture, SVA or HDPTopicModel, whichever it was, with its parameters

    Raises
    ------
    CheckpointError
        If there is no fitted model there, or a class of your own that it needs cannot be imported.
    """
    store = open_run(path)
    model = _estimator_of(store)
    model.adopt(store.problem(), store.model(), store.history())
    model.__dict__.update({f"{name}_": store.finding(name) for name in FINDINGS if store.holds(name)})
    return model


def _estimator_of(store: RunStore | PreparationStore) -> Mixture | SVA | HDPTopicModel:
    """The estimator that was asked for what is stored, not fitted."""
    asked = store.asked()
    found: Mixture | SVA | HDPTopicModel = made(imported_class(asked.estimator, _ESTIMATORS), asked.parameters)
    return found
