"""The estimators of Dirichlet-process and finite mixtures, fitted by laps over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from dpdist.core.errors import InputError
from dpdist.core.settings import documented_by
from dpdist.data import Source, as_source
from dpdist.data.base import total_weight
from dpdist.estimators.base import Clustering
from dpdist.estimators.fitted import RandomState, Starts, default_backend
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.prediction import Predictor, mean_log_density
from dpdist.inference.schedules import Schedule
from dpdist.inference.stability import MAX_LAPS, REFITS, Stability, refit
from dpdist.inference.transform import TransformPlan
from dpdist.models.allocations import Allocation
from dpdist.models.families import Family
from dpdist.runs.methods import method_named
from dpdist.runs.methods.base import AnyMethod
from dpdist.runs.methods.rows import require_rows_of_fit
from dpdist.runs.preparing import NOWHERE, prepare
from dpdist.runs.run import Run
from dpdist.runs.specs import FiniteSpec, MixtureSpec
from dpdist.runs.specs.mixture import FitSpec


@dataclass(eq=False, repr=False)
class Mixture(Clustering[FitSpec]):
    """Fitting shared by all mixtures; subclasses choose the allocation."""

    _problem: Problem = field(init=False)
    _predictor: MixturePredictor = field(init=False)
    stability_: Stability = field(init=False)
    _manner_type = Starts

    family: Family | str | None = None
    _: KW_ONLY
    concentration: float | Allocation = 10.0
    initial: object = "one"
    initial_rows: int | None = 20_000
    schedule: Schedule | str | None = None
    moves: Sequence[AnyMove] | None = None
    sampling: Sampling | None = None
    candidates: Candidates | None = None
    prior: str = "data"
    background: float | None = None
    row_transform: TransformPlan | None = None
    compute_dtype: str = "float64"
    floor: float = 1e-8
    tolerance: float = 1e-5
    max_laps: int | None = 100
    max_time: float | None = None
    random_state: RandomState = 0
    verbose: bool = False
    n_init: int = 1
    warm_start: bool = False

    def fit(
        self, x: object, y: object = None, sample_weight: npt.ArrayLike | None = None, holdout: object = None
    ) -> Self:
        """Fit to rows.

        Parameters
        ----------
        x : (N, D) NumPy array, SciPy sparse matrix, data frame of pandas or polars, dask.array, xarray.DataArray,
            zarr.Array, or a path to Zarr
        y : ignored
        sample_weight : (N,) weights, zero or more, optional
        holdout : held-out rows whose score is recorded in ``history_`` after each lap, optional

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data or a parameter is invalid.
        """
        spec, source = self.spec(), as_source(x, sample_weight)
        keys = self.manner().seeds(spec.random_state)
        method = method_named(spec.method, holdout)
        best = self._fitted_by(method, replace(spec, random_state=keys[0]), source)
        try:
            for key in keys[1:]:  # keep the run with the highest ELBO, the earliest of ties
                best = max(best, self._fitted_by(method, replace(spec, random_state=key), source), key=_bound_of)
        finally:  # also if a later run is interrupted: self._laps adopted that run's last lap, which is not the best
            self.adopt(best.problem, best.fitted, best.history, best.chosen)
            self._rows = best.source
        self._warn_of_the_end(best, 3)
        return self

    def _fitted_by(self, method: AnyMethod, spec: FitSpec, source: Source) -> Run:
        """A new run, followed to its end."""
        run = prepare(method, spec, source, spec.limits, default_backend(), NOWHERE)
        for _ in self._laps(run):
            pass
        return run

    def spec(self) -> FitSpec:
        spec = super().spec()
        warm = self.manner().warm_start and self.__sklearn_is_fitted__()
        return replace(spec, initial=self._predictor) if warm else spec

    def manner(self) -> Starts:
        manner = super().manner()
        assert isinstance(manner, Starts), "what mixtures are asked for"
        return manner

    def stability(
        self,
        x: object = None,
        refits: int = REFITS,
        max_laps: int = MAX_LAPS,
        *,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Stability:
        """How well each cluster is recovered by refits from this model, each on half of the rows.

        Refits run one after another, on the active Dask client or in this process. The result is kept as
        ``stability_`` and saved with the model.

        Parameters
        ----------
        x : the fitted rows; default: those of the fit, if this process holds them
        refits : number of refits
        max_laps : largest number of laps of each refit
        sample_weight : (N,) weights of the rows `x`, as at the fit

        Returns
        -------
        stability : Jaccard coefficients (refits, K), and the number of clusters of each refit
        """
        rows = self._rows_of_fit("stability()", "stability(x)") if x is None else x
        model: Predictor = self._predictor
        if not isinstance(model, MixturePredictor):
            raise InputError("a cut cannot be refitted; use stability of the model from which it was cut.")
        source = self._rows_like_fitted(rows, sample_weight)
        require_rows_of_fit(source, self._fitted)
        self.stability_ = refit(self._problem, model, source, default_backend(), refits, max_laps)
        return self.stability_

    def bic(self, x: object, *, sample_weight: npt.ArrayLike | None = None) -> float:
        """Bayesian information criterion, -2 log p(x) + P log N, with the predictive density; lower is better.

        P is the number of free parameters of all components and of the weights, and N the total weight of the rows: a
        row of weight w counts as w rows. To compare models of the same rows, ``elbo_`` is available without a pass over
        them and accounts for the whole posterior.
        """
        log_density, rows = self._log_density_of_all(x, sample_weight)
        return float(-2 * log_density + self._free_parameters * np.log(rows))

    def aic(self, x: object, *, sample_weight: npt.ArrayLike | None = None) -> float:
        """Akaike information criterion, -2 log p(x) + 2 P, with the P and p(x) of :meth:`bic`; lower is better."""
        return float(-2 * self._log_density_of_all(x, sample_weight)[0] + 2 * self._free_parameters)

    def _log_density_of_all(self, x: object, sample_weight: npt.ArrayLike | None) -> tuple[float, float]:
        """Log predictive density of rows, summed with their weights, and the sum of these."""
        source = self._source(x, sample_weight)
        rows = total_weight(source)
        return rows * mean_log_density(default_backend(), source, self._predictor), rows

    @property
    def _free_parameters(self) -> int:
        family = self._predictor.mixture()[0].family
        return len(self._fitted.ids) * (family.free_parameters(self._predictor.columns) + 1) - 1

    def _show(self) -> None:
        super()._show()
        self.elbo_, self.n_iter_ = self._fitted.elbo, len(self._history.laps)
        self.converged_, self.stop_reason_ = self._fitted.converged, self._fitted.stop


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


def _bound_of(run: Run) -> float:
    assert run.fitted is not None, "a lap was finished"
    return float(run.fitted.elbo)
