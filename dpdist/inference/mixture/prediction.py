"""Predictions of a mixture fitted by variational inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from scipy.special import logsumexp

from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.mixture.screening import Screen
from dpdist.inference.prediction import IDS, Outside, Predictor
from dpdist.inference.transform import Description, Preparation
from dpdist.models.families.base import Family, Rows
from dpdist.models.mixture import Model, Posterior, Precision
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class MixturePredictor(Predictor):
    """A mixture fitted by variational inference.

    Parameters
    ----------
    model : family and allocation
    preparation : of the rows
    total : summary of the data it was fitted to
    ids : (K,) stable ids of the components
    """

    model: Model
    preparation: Preparation
    total: Summary
    ids: Annotated[np.ndarray, IDS]

    @property
    def columns(self) -> int:
        return int(self.total.stats.shape[1])

    @cached_property
    def _posterior(self) -> Posterior:
        """Computed once per process, not once per partition."""
        return self.model.posterior(self.total, Precision(floor=0.0))

    def scorer(self) -> Callable[[Rows], np.ndarray]:
        posterior, family = self._posterior, self.model.family
        return lambda rows: posterior.logits(family.features(rows))

    def labels(self, partition: Partition, without: np.ndarray | None = None) -> np.ndarray:
        return self._by_block(partition, Screen(self._posterior, without).best, lambda found: found.astype(np.int64))

    def background(self) -> Outside | None:
        family, found = self.model.family, self.model.background
        if found is None:
            return None
        coefficients = found.coefficients(family)
        return Outside(lambda rows: np.asarray(family.features(rows) @ coefficients), found.share)

    def density(self) -> Callable[[Rows], np.ndarray]:
        family, (weights, rest), found = self.model.family, self.weights(), self.model.background
        stats, shares = self._every(), np.append(weights, rest)
        if found is not None:
            shares = np.append((1 - found.share) * shares, found.share)
        with np.errstate(divide="ignore"):
            log_weights = np.log(shares)

        def density(rows: Rows) -> np.ndarray:
            predictive = family.log_predictive(family.features(rows), stats) + log_weights
            return np.asarray(logsumexp(predictive, axis=1) + family.log_base_measure(rows))

        return density

    def densities(self, components: np.ndarray) -> Callable[[Rows], np.ndarray]:
        family, stats = self.model.family, self.total.stats[components]

        def densities(rows: Rows) -> np.ndarray:
            predictive = family.log_predictive(family.features(rows), stats)
            return np.asarray(predictive + family.log_base_measure(rows)[:, None])

        return densities

    @property
    def rows(self) -> float:
        return float(self.total.counts.sum())

    @property
    def family(self) -> Family:
        return self.model.family

    def weights(self) -> tuple[np.ndarray, float]:
        return self.model.allocation.weights(self.total.counts)

    def sample(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        with one_thread():
            return self.model.family.sample(self._every(), components, rng)

    def _every(self) -> np.ndarray:
        """Statistics of the components, of a component not yet seen, and of the background if there is one."""
        beyond = [] if self.model.background is None else [self.model.background.stats[None]]
        return np.concatenate([self.total.stats, np.zeros((1, self.columns)), *beyond])

    def describe(self) -> Description:
        return self.model.family.describe(self.total.stats)

    def mixture(self) -> tuple[Model, Summary]:
        return self.model, self.total
