"""What a fitted model says of rows: labels, probabilities, densities.

Labels and probabilities are the local step's, under the posterior of the whole data. The log density is the
posterior predictive

    log [ sum_k w_k exp(A(S_k + t(x)) - A(S_k)) + w_rest exp(A(t(x))) ] + log h(x)

with posterior mean weights and w_rest the leftover of the stick, so it integrates to 1; it is given in raw columns, as
are draws and what describes components (:mod:`dpdist.inference.transform`).
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

IDS = Stored(("component",), "stable identity of a component")
#: What is written of each row: name -> shape, dtype.
Outputs = dict[str, tuple[tuple[int, ...], str]]


def label_outputs(top: int, components: int) -> Outputs:
    """A row's label, and on request its `top` components with their probabilities."""
    width = min(top, components)
    more: Outputs = {"top_label": ((width,), "int64"), "top_probability": ((width,), "float64")}
    return {"label": ((), "int64"), **(more if top > 1 else {})}


def labels_of(places: np.ndarray, shares: np.ndarray, top: int) -> dict[str, np.ndarray]:
    """Label columns of rows whose best components (n, L), the best first, and their probabilities (n, L) are known."""
    more = {"top_label": places, "top_probability": shares}
    return {"label": places[:, 0], **(more if top > 1 else {})}


class Outside(NamedTuple):
    """The background of a model, for rows of no cluster.

    Parameters
    ----------
    score : a function of prepared rows: its log probabilities, (n,), on the scale of those of the components
    share : of rows that are expected to be its
    """

    score: Callable[[Rows], np.ndarray]
    share: float


class Predictor(ABC):
    """A fitted model, ready for rows; picklable.

    Attributes
    ----------
    preparation : what is done to rows first
    ids : (K,) stable ids of the components
    """

    preparation: Preparation
    ids: np.ndarray

    @property
    @abstractmethod
    def columns(self) -> int:
        """F, by which blocks of rows are sized."""

    @abstractmethod
    def scorer(self) -> Callable[[Rows], np.ndarray]:
        """A function of prepared rows: log probabilities of the components, (n, K), up to a number a row."""

    def background(self) -> Outside | None:
        """The model's background; None where it has none. Probabilities are those among clusters in any case."""
        return None

    @abstractmethod
    def density(self) -> Callable[[Rows], np.ndarray]:
        """A function of prepared rows: their log predictive density, (n,), nats."""

    @abstractmethod
    def densities(self, components: np.ndarray) -> Callable[[Rows], np.ndarray]:
        """A function of prepared rows: log predictive densities under each of some components (k,): (n, k), nats."""

    @property
    @abstractmethod
    def rows(self) -> float:
        """The weight of the rows that were fitted."""

    @property
    @abstractmethod
    def family(self) -> Family | None:
        """The family, of which sums of statistics tell all; None where no prior is conjugate."""

    @property
    def uncut(self) -> Predictor:
        """The model of which this is a cut; itself where it is none."""
        return self

    def shares(self) -> np.ndarray:
        """Weights (K,) of the components, without what is left to others: they sum to 1."""
        weights, _ = self.weights()
        return np.asarray(weights / weights.sum())

    @abstractmethod
    def weights(self) -> tuple[np.ndarray, float]:
        """Posterior mean weights (K,), and what is left to components not yet seen."""

    @abstractmethod
    def sample(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A predictive draw for each of some components (n,), prepared; K is one not yet seen, K + 1 the background."""

    @abstractmethod
    def describe(self) -> Description:
        """Point estimates of the components, prepared coordinates."""

    @abstractmethod
    def mixture(self) -> tuple[Model, Summary]:
        """Family and allocation, and the components' statistics; :class:`InputError` where no prior is conjugate."""

    def gains_as_clusters(self) -> np.ndarray:
        """Nats by which the rows of each component are likelier as a cluster than of a background, (K,).

        That is as broad as they and all rows, half and half. Infinite where no prior is conjugate.
        """
        if self.family is None:
            return np.full(len(self.ids), np.inf)
        model, total = self.mixture()
        shares = total.stats / np.maximum(total.counts, np.finfo(float).tiny)[:, None]
        background = 0.5 * self.rows * (shares + total.stats.sum(axis=0) / self.rows)
        expected = (total.stats * model.family.coefficients(background).T).sum(axis=1)
        return np.asarray(model.family.log_evidence(total.stats) - expected)

    def draw(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """As :meth:`sample`, raw rows (n, D)."""
        return self.preparation.restore(self.sample(components, rng))

    def described(self) -> Description:
        """Point estimates of the components, raw columns."""
        return self.preparation.restored(self.describe())

    def exported(self) -> Description:
        """What is stored of :meth:`described`: not the (K, D, D) covariances of fewer columns that PCA kept."""
        preparation = self.preparation
        dropped = {"covariance"} if preparation.width < preparation.columns else set()
        return preparation.restored({name: each for name, each in self.describe().items() if name not in dropped})

    @property
    def names(self) -> Names | None:
        """Of the columns that were fitted, if they had any."""
        return self.preparation.names

    def check_source(self, source: Source, model: str = "the model") -> None:
        """Raise :class:`InputError` unless `source` has the columns that were fitted, and is dense where it has to be;
        `model` is named in messages."""
        self.preparation.check_source(source, model, self.family is not None and self.family.accepts_sparse)

    def prepared(self, rows: Rows, places: Sequence[int] | np.ndarray) -> Rows:
        """Raw rows, which have some `places` (n,) in the data, as the model takes them.

        Raises
        ------
        InputError
            If they hold what its likelihood cannot bring about.
        """
        found = self.preparation.apply(rows)
        if self.family is not None:
            self.family.check_rows(found, places)
        return found

    def outputs(self, top: int, density: bool) -> Outputs:
        """What :meth:`predictions` gives: labels, on request `top` components, and densities."""
        more: Outputs = {"log_density": ((), "float64")} if density else {}
        return label_outputs(top, len(self.ids)) | more

    def predictions(self, partition: Partition, top: int, density: bool) -> dict[str, np.ndarray]:
        """What is written of rows."""
        found = {"label": self.labels(partition)} if top == 1 else labels_of(*self.top(partition, top), top)
        if density:
            found["log_density"] = self.log_density(partition)
        return found

    def any_of_groups(self, of_components: np.ndarray) -> np.ndarray:
        """For each component, whether something holds for any component of :attr:`uncut` that is part of it, (K,) bool.

        Parameters
        ----------
        of_components : bool, for which components of :attr:`uncut` it holds
        """
        return of_components

    def labels(self, partition: Partition, without: np.ndarray | None = None) -> np.ndarray:
        """Position of the most probable component, (n,) int64, but not of some: `without` (K,) bool."""
        score = self.scorer()
        less = 0.0 if without is None else np.where(without, np.inf, 0.0)
        return self._by_block(partition, score, lambda scores: (scores - less).argmax(axis=1))

    def probabilities(self, partition: Partition) -> np.ndarray:
        """Responsibilities, (n, K)."""
        return self._by_block(partition, self.scorer(), lambda scores: softmax(scores, axis=1))

    def top(self, partition: Partition, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions (n, L) of the `count` most probable components, best first, and their probabilities."""

        def best(scores: np.ndarray) -> np.ndarray:
            order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
            return np.stack([order, np.take_along_axis(softmax(scores, axis=1), order, axis=1)], axis=2)

        both = self._by_block(partition, self.scorer(), best)
        return both[:, :, 0].astype(np.int64), both[:, :, 1]

    def background_margins(self, partition: Partition) -> np.ndarray:
        """By how many nats a row is likelier of some one component than of the background, (n,)."""
        outside, score = self.background(), self.scorer()
        if outside is None:
            return np.full(partition.rows, np.inf)
        beyond = outside.score
        return self._by_block(partition, lambda rows: np.asarray(score(rows).max(axis=1) - beyond(rows)), _as_it_is)

    def log_density(self, partition: Partition) -> np.ndarray:
        """Log predictive density of rows, (n,), raw columns, nats."""
        return self._raw(partition, self.density())

    def log_density_sum(self, partition: Partition) -> float:
        """Sum of the log predictive density of rows, each counting as much as its weight, raw columns, nats.

        Rows that weigh nothing may be whatever they are, as in a fit.
        """
        stored, weights, places = weighing_rows(partition, finite_rows)
        found = self._of_blocks(stored, partition.start + places, self.density(), _as_it_is) + self._log_volume()
        return float(found.sum() if weights is None else found @ weights)

    def log_densities(self, partition: Partition) -> np.ndarray:
        """Log predictive density of rows under each component, (n, K), raw columns, nats."""
        return self._raw(partition, self.densities(np.arange(len(self.ids))))

    def log_density_among(self, partition: Partition, components: np.ndarray) -> np.ndarray:
        """Log density of rows, (n,), raw columns, nats, by the mixture of some components (k,) alone."""
        log_shares, densities = np.log(self.shares()[components]), self.densities(components)
        log_shares -= logsumexp(log_shares)
        return self._raw(partition, lambda rows: np.asarray(logsumexp(densities(rows) + log_shares, axis=1)))

    def _raw(self, partition: Partition, function: Callable[[Rows], np.ndarray]) -> np.ndarray:
        """Log densities of prepared rows as those of raw columns."""
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
        """What follows from the scores of rows, (n,) or (n, K), which have some `places` (n,) in the data."""

        def told(block: slice) -> np.ndarray:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                scores = score(self.prepared(stored[block], places[block]))
            return then(_require_told(scores, places[block]))

        with one_thread():
            return np.concatenate([told(block) for block in blocks(stored.shape[0], self.columns)])


def _as_it_is(scores: np.ndarray) -> np.ndarray:
    return scores


def _require_told(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The scores of rows, which have some `places` (n,) in the data.

    Raises
    ------
    PrecisionError
        If those of a row are not numbers, or minus infinity under every component.
    """
    lost = ~np.isfinite(scores if scores.ndim == 1 else scores.max(axis=1))
    if lost.any():
        raise PrecisionError(
            f"the log probabilities of row {places[lost.argmax()]} are not finite: it lies too far out for "
            "float64. Leave it out, or mend it."
        )
    return scores


def ask_each(
    backend: Backend, partitions: Sequence[Partition], predictor: object, method: str, *arguments: object
) -> list[Any]:
    """What one of a predictor's methods says of each partition, asked wherever the backend does its work."""
    columns = [[given] * len(partitions) for given in (backend.share(predictor), method, *arguments)]
    return backend.fetch(backend.map(predict_partition, backend.share_each(partitions), *columns))


def mean_log_density(backend: Backend, source: Source, predictor: Predictor) -> float:
    """Mean log predictive density of rows, raw columns, nats; a row of weight w counts as w such rows."""
    total = math.fsum(weight_of(source, part) for part in source.partitions)
    return math.fsum(ask_each(backend, source.partitions, predictor, "log_density_sum")) / total


def predict_partition(partition: Partition, predictor: object, method: str, *arguments: Any) -> Any:
    """Call one of the predictor's methods on a partition; a task."""
    return getattr(predictor, method)(partition, *arguments)
