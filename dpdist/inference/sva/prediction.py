"""Predictions of a sequential pass for rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from scipy.special import logsumexp

from dpdist.core.errors import InputError
from dpdist.core.stored import Stored
from dpdist.core.threads import one_thread
from dpdist.inference.prediction import IDS, Predictor
from dpdist.inference.sva.base import Learner, SVAState
from dpdist.inference.sva.conjugate import Conjugate
from dpdist.inference.sva.sequence import SVAProblem
from dpdist.inference.transform import Description, Preparation
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families.base import Family, Rows
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class SVAPredictor(Predictor):
    """Components of a sequential pass, with Chinese restaurant weights and the predictive (Lin 2013, eq. 12).

        p(x) = sum_k w_k / (alpha + n) p(x | k) + alpha / (alpha + n) p(x | new)

    Parameters
    ----------
    learner : the likelihood in the form that the pass used
    preparation : of the rows
    concentration : alpha
    table : (K, F) the components
    ids : (K,) their stable ids
    """

    learner: Learner
    preparation: Preparation
    concentration: float
    table: Annotated[np.ndarray, Stored(("component", "feature"), "components in the form that the pass uses")]
    ids: Annotated[np.ndarray, IDS]

    @property
    def columns(self) -> int:
        return int(self.table.shape[1])

    def scorer(self) -> Callable[[Rows], np.ndarray]:
        log_weights = np.log(self.table[:, -1])
        return lambda rows: self.learner.log_predictive(rows, self.table)[:, :-1] + log_weights

    def density(self) -> Callable[[Rows], np.ndarray]:
        weights, rest = self.weights()
        log_weights = np.log(np.append(weights, rest))

        def density(rows: Rows) -> np.ndarray:
            return np.asarray(logsumexp(self.learner.log_predictive(rows, self.table) + log_weights, axis=1))

        return density

    def densities(self, components: np.ndarray) -> Callable[[Rows], np.ndarray]:
        return lambda rows: self.learner.log_predictive(rows, self.table[components])[:, :-1]

    @property
    def rows(self) -> float:
        return float(self.table[:, -1].sum())

    @property
    def family(self) -> Family | None:
        return self.learner.family if isinstance(self.learner, Conjugate) else None

    def weights(self) -> tuple[np.ndarray, float]:
        total = self.concentration + self.table[:, -1].sum()
        return self.table[:, -1] / total, float(self.concentration / total)

    def sample(self, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        table = np.concatenate([self.table, np.zeros((1, self.columns))])
        with one_thread():
            return self.learner.sample(table, components, rng)

    def describe(self) -> Description:
        return self.learner.describe(self.table)

    def mixture(self) -> tuple[Model, Summary]:
        if self.family is None:
            raise InputError(
                "merges of clusters need a family with a conjugate prior, because they add sufficient statistics; "
                f"got a pass with {type(self.learner).__name__}."
            )
        model = Model(self.family, DirichletProcess(self.concentration))
        return model, Summary(self.table, np.zeros(len(self.table)))


def predictor_of(problem: SVAProblem, state: SVAState) -> SVAPredictor:
    """The predictor for the components of a pass."""
    return SVAPredictor(problem.learner, problem.preparation, problem.rule.concentration, state.table, state.ids)
