"""The estimators of Dirichlet-process and finite mixtures, fitted by laps over all rows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from dpdist.core.settings import documented_by
from dpdist.estimators.manner import Starts
from dpdist.estimators.mixture import Mixture
from dpdist.runs.specs import FiniteSpec, MixtureSpec


@documented_by(MixtureSpec, Starts)
@dataclass(eq=False, repr=False)
class DPMixture(Mixture):
    """Dirichlet-process mixture: a clustering whose number of clusters is learned.

    A fit starts from one cluster by default. Splits, regroups, merges and deletes are proposed, and accepted only if
    the evidence lower bound of all rows rises. ``Memoized(batches=1)`` is batch variational Bayes. A fit runs on the
    workers of the active Dask client, or in this process, with the same result to the bit.

    Attributes
    ----------
    n_components_ : int
        Number of clusters, K.
    elbo_ : float
        Exact evidence lower bound of the whole data in raw columns, in nats, every constant included.
    weights_ : (K,)
        Posterior mean mixture weights; ``rest_weight_`` is the weight of clusters not yet seen.
    component_ids_ : (K,) int64
        Stable identities, unchanged by reordering, resuming and saving.
    components_ : xarray.Dataset
        Posterior means of the clusters' parameters in raw columns; with PCA, covariances take K x D x D numbers for
        the D raw columns, and are not stored.
    means_, covariances_ : (K, D), and (K, D, D) or (K, D)
        The means and covariances in ``components_``, for families that have them, as in scikit-learn's mixtures.
    labels_ : (N,) int64
        Labels of the fitted rows, computed at the first access.
    n_features_in_, feature_names_in_ : int, (D,) array of str
        Number of columns, and their names if the data had any.
    history_ : xarray.Dataset
        ELBO, K and seconds by lap; every proposal, its exact gain and its outcome.
    converged_ : bool
    stop_reason_ : str
    n_iter_ : int
        Number of laps.

    Examples
    --------
    >>> import numpy as np, dpdist
    >>> x = np.concatenate([np.random.default_rng(0).normal(c, 1, size=(200, 2)) for c in (-9, 0, 9)])
    >>> dpdist.DPMixture(random_state=0).fit(x).n_components_
    3
    """

    _spec_type = MixtureSpec

    _: KW_ONLY
    initial_components: int = 20
    max_components: int | None = None


@documented_by(FiniteSpec, Starts)
@dataclass(eq=False, repr=False)
class FiniteMixture(Mixture):
    """Finite mixture with a symmetric Dirichlet prior on its weights.

    The attributes are those of :class:`DPMixture`.
    """

    _spec_type = FiniteSpec

    n_components: int = 10
    _: KW_ONLY
    concentration: float = 1.0
    initial: object = "k-means++"
