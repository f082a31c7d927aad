"""Predictions of a fitted model for rows: labels, probabilities, densities.

Labels and probabilities are those of the local step under the posterior of the whole data. The log density is that of
the posterior predictive

    log [ sum_k w_k exp(A(S_k + t(x)) - A(S_k)) + w_rest exp(A(t(x))) ] + log h(x)

with posterior mean weights and w_rest the remainder of the stick, so it integrates to 1. It refers to raw columns, as
do draws and descriptions of components (:mod:`dpdist.inference.transform`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax

from dpdist.core.errors import PrecisionError
from dpdist.core.stored import Stored
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source, weight_of
from dpdist.data.columns import Names
from dpdist.execution.base import Backend
from dpdist.inference.blocks import blocks, finite_rows, weighing_rows
from dpdist.inference.transform import Description, Preparation
from dpdist.models.families.base import Family, Rows
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary

IDS = Stored(("component",), "stable id of a component")
#: Results for each row: name -> shape, dtype.
Outputs = dict[str, tuple[tuple[int, ...], str]]


def label_outputs(top: int, components: int) -> Outputs:
    """The label of a row and, if `top` > 1, its `top` components with their probabilities."""
    width = min(top, components)
    more: Outputs = {"top_label": ((width,), "int64"), "top_probability": ((width,), "float64")}
    return {"label": ((), "int64"), **(more if top > 1 else {})}


def labels_of(places: np.ndarray, shares: np.ndarray, top: int) -> dict[str, np.ndarray]:
    """Label columns, from the best components of rows (n, L), best first, and their probabilities (n, L)."""
    more = {"top_label": places, "top_probability": shares}
    return {"label": places[:, 0], **(more if top > 1 else {})}


class Outside(NamedTuple):
    """The background of a model, for rows of no cluster.

    Parameters
    ----------
    score : function of prepared rows: log probabilities of the background, (n,), on the scale of the components' ones
    share : expected share of rows that belong to it
    """

    score: Callable[[Rows], np.ndarray]
    share: float


class Predictor(ABC):
    """A fitted model that predicts rows; picklable.

    Attributes
    ----------
    preparation : of the rows
    ids : (K,) stable ids of the components
    """

    preparation: Preparation
    ids: np.ndarray

    @property
    @abstractmethod
    def columns(self) -> int:
        """F, which determines the size of blocks of rows."""

    @abstractmethod
    def scorer(self) -> Callable[[Rows], np.ndarray]:
        """A function of prepared rows: log probabilities of the components, (n, K), up to a constant per row."""

    def background(self) -> Outside | None:
        """The model's background; None if it has none. Probabilities are always among clusters only."""
        return None

    @abstractmethod
    def density(self) -> Callable[[Rows], np.ndarray]:
        """A function of prepared rows: their log predictive density, (n,), nats."""

    @abstractmethod
    def densities(self, components: np.ndarray) -> Callable[[Rows], np.ndarray]:
        """A function of prepared rows: log predictive densities under each of the `components` (k,): (n, k), nats."""

    @property
    @abstractmethod
    def rows(self) -> float:
        """The weight of the fitted rows."""

    @property
    @abstractmethod
    def family(self) -> Family | None:
        """The family, if the likelihood has a conjugate prior; else None."""

    @property
    def uncut(self) -> Predictor:
        """The model from which this cut was made; itself if it is not a cut."""
        return self

    def shares(self) -> np.ndarray:
        """Weights (K,) of the components, normalised to sum to 1 without the remainder for unseen components."""
        weights, _ = self.weights()
        return np.asarray(weights / weights.sum())

    @abstractmethod
    def weights(self) -> tuple[np.ndarray, float]:
        """Posterior mean weights (K,), and the remainder for components not yet seen."""

    @abstractmethod
    def sample(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A prepared predictive draw for each of `components` (n,); K is an unseen component, K + 1 the background."""

    @abstractmethod
    def describe(self) -> Description:
        """Point estimates of the components, in prepared coordinates."""

    @abstractmethod
    def mixture(self) -> tuple[Model, Summary]:
        """Family, allocation and the components' statistics; raises :class:`InputError` if no prior is conjugate."""

    def gains_as_clusters(self) -> np.ndarray:
        """Nats by which the rows of each component are more likely as a cluster than under a background, (K,).

        The background is as broad as a mixture of half these rows and half all rows. Infinite if no prior is conjugate.
        """
        if self.family is None:
            return np.full(len(self.ids), np.inf)
        model, total = self.mixture()
        shares = total.stats / np.maximum(total.counts, np.finfo(float).tiny)[:, None]
        background = 0.5 * self.rows * (shares + total.stats.sum(axis=0) / self.rows)
        expected = (total.stats * model.family.coefficients(background).T).sum(axis=1)
        return np.asarray(model.family.log_evidence(total.stats) - expected)

    def draw(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Like :meth:`sample`, but raw rows (n, D)."""
        return self.preparation.restore(self.sample(components, rng))

    def described(self) -> Description:
        """Point estimates of the components, raw columns."""
        return self.preparation.restored(self.describe())

    def exported(self) -> Description:
        """The stored part of :meth:`described`: without (K, D, D) covariances if PCA kept fewer columns."""
        preparation = self.preparation
        dropped = {"covariance"} if preparation.width < preparation.columns else set()
        return preparation.restored({name: each for name, each in self.describe().items() if name not in dropped})

    @property
    def names(self) -> Names | None:
        """Names of the fitted columns, if they have any."""
        return self.preparation.names

    def check_source(self, source: Source, model: str = "the model") -> None:
        """Raise :class:`InputError` unless `source` has the fitted columns and, if required, is dense.

        Messages call the model `model`.
        """
        self.preparation.check_source(source, model, self.family is not None and self.family.accepts_sparse)

    def prepared(self, rows: Rows, places: Sequence[int] | np.ndarray) -> Rows:
        """Raw rows as the model takes them; `places` (n,) are their positions in the data. Raises :class:`InputError`
        if the likelihood does not support the rows' values."""
        found = self.preparation.apply(rows)
        if self.family is not None:
            self.family.check_rows(found, places)
        return found

    def outputs(self, top: int, density: bool) -> Outputs:
        """Names, shapes and dtypes of :meth:`predictions`: labels and, on request, `top` components and densities."""
        more: Outputs = {"log_density": ((), "float64")} if density else {}
        return label_outputs(top, len(self.ids)) | more

    def predictions(self, partition: Partition, top: int, density: bool) -> dict[str, np.ndarray]:
        """The predictions of rows, by name."""
        found = {"label": self.labels(partition)} if top == 1 else labels_of(*self.top(partition, top), top)
        if density:
            found["log_density"] = self.log_density(partition)
        return found

    def any_of_groups(self, of_components: np.ndarray) -> np.ndarray:
        """For each component, whether any component of :attr:`uncut` that belongs to it is marked, (K,) bool;
        `of_components` marks those of :attr:`uncut`."""
        return of_components

    def labels(self, partition: Partition, without: np.ndarray | None = None) -> np.ndarray:
        """Index of the most probable component, (n,) int64, excluding those in `without` (K,) bool."""
        score = self.scorer()
        less = 0.0 if without is None else np.where(without, np.inf, 0.0)
        return self._by_block(partition, score, lambda scores: (scores - less).argmax(axis=1))

    def probabilities(self, partition: Partition) -> np.ndarray:
        """Responsibilities, (n, K)."""
        return self._by_block(partition, self.scorer(), lambda scores: softmax(scores, axis=1))

    def top(self, partition: Partition, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices (n, L) of the `count` most probable components, best first, and their probabilities."""

        def best(scores: np.ndarray) -> np.ndarray:
            order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
            return np.stack([order, np.take_along_axis(softmax(scores, axis=1), order, axis=1)], axis=2)

        both = self._by_block(partition, self.scorer(), best)
        return both[:, :, 0].astype(np.int64), both[:, :, 1]

    def background_margins(self, partition: Partition) -> np.ndarray:
        """Nats by which a row is more likely under its best component than under the background, (n,)."""
        outside, score = self.background(), self.scorer()
        if outside is None:
            return np.full(partition.rows, np.inf)
        beyond = outside.score
        return self._by_block(partition, lambda rows: np.asarray(score(rows).max(axis=1) - beyond(rows)), _as_it_is)

    def log_density(self, partition: Partition) -> np.ndarray:
        """Log predictive density of rows, (n,), raw columns, nats."""
        return self._raw(partition, self.density())

    def log_density_sum(self, partition: Partition) -> float:
        """Sum of the weighted log predictive densities of rows, raw columns, nats.

        Rows of zero weight may have any values, as in a fit.
        """
        stored, weights, places = weighing_rows(partition, finite_rows)
        found = self._of_blocks(stored, partition.start + places, self.density(), _as_it_is) + self._log_volume()
        return float(found.sum() if weights is None else found @ weights)

    def log_densities(self, partition: Partition) -> np.ndarray:
        """Log predictive density of rows under each component, (n, K), raw columns, nats."""
        return self._raw(partition, self.densities(np.arange(len(self.ids))))

    def log_density_among(self, partition: Partition, components: np.ndarray) -> np.ndarray:
        """Log density of rows, (n,), raw columns, nats, under the mixture of the `components` (k,) alone."""
        log_shares, densities = np.log(self.shares()[components]), self.densities(components)
        log_shares -= logsumexp(log_shares)
        return self._raw(partition, lambda rows: np.asarray(logsumexp(densities(rows) + log_shares, axis=1)))

    def _raw(self, partition: Partition, function: Callable[[Rows], np.ndarray]) -> np.ndarray:
        """Log densities of prepared rows, converted to raw columns."""
        return self._by_block(partition, function, _as_it_is) + self._log_volume()

    def _log_volume(self) -> float:
        with one_thread():
            return self.preparation.transform.log_volume

    def _by_block(
        self, partition: Partition, score: Callable[[Rows], np.ndarray], then: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        stored, _ = finite_rows(partition)
        return self._of_blocks(stored, partition.start + np.arange(stored.shape[0]), score, then)

    def _of_blocks(
        self,
        stored: Rows,
        places: np.ndarray,
        score: Callable[[Rows], np.ndarray],
        then: Callable[[np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """`then` applied to the scores of rows, (n,) or (n, K); `places` (n,) are the rows' positions in the data."""

        def told(block: slice) -> np.ndarray:
            with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are refused below
                scores = score(self.prepared(stored[block], places[block]))
            return then(_require_told(scores, places[block]))

        with one_thread():
            return np.concatenate([told(block) for block in blocks(stored.shape[0], self.columns)])


def _as_it_is(scores: np.ndarray) -> np.ndarray:
    return scores


def _require_told(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The scores of rows; `places` (n,) are their positions in the data. Raises :class:`PrecisionError` if scores of a
    row are not numbers, or minus infinity under every component."""
    lost = ~np.isfinite(scores if scores.ndim == 1 else scores.max(axis=1))
    if lost.any():
        raise PrecisionError(
            f"the log probabilities of row {places[lost.argmax()]} are not finite: the row lies too far "
            "from all components for float64. Remove the row, or correct it."
        )
    return scores


def ask_each(
    backend: Backend, partitions: Sequence[Partition], predictor: object, method: str, *arguments: object
) -> list[Any]:
    """Results of a predictor's method for each partition, computed by the backend."""
    columns = [[given] * len(partitions) for given in (backend.share(predictor), method, *arguments)]
    return backend.fetch(backend.map(predict_partition, backend.share_each(partitions), *columns))


def mean_log_density(backend: Backend, source: Source, predictor: Predictor) -> float:
    """Mean log predictive density of rows, raw columns, nats; a row of weight w counts as w rows."""
    total = math.fsum(weight_of(source, part) for part in source.partitions)
    return math.fsum(ask_each(backend, source.partitions, predictor, "log_density_sum")) / total


def predict_partition(partition: Partition, predictor: object, method: str, *arguments: Any) -> Any:
    """Call one of the predictor's methods on a partition; a task."""
    return getattr(predictor, method)(partition, *arguments)
