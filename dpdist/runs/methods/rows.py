"""Methods for rows, which can score held-out rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from dpdist.core.errors import InputError
from dpdist.core.phases import Phase, phase
from dpdist.data.base import Source, total_weight
from dpdist.execution.base import Backend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.prediction import Predictor, mean_log_density
from dpdist.inference.sva.base import SVAState
from dpdist.inference.transform import Preparation
from dpdist.models.families.base import Moments
from dpdist.runs.methods.base import Method, Problem, Spec
from dpdist.storage.checkpoint import AnyFitted, Total

#: Name of the consumer of held-out rows in messages.
HELD_OUT = "the held-out score"
RowPredictor = TypeVar("RowPredictor", bound=Predictor)


@dataclass(frozen=True, eq=False)
class RowMethod(Method[Spec, Problem, Total, RowPredictor], Generic[Spec, Problem, Total, RowPredictor]):
    """A method that fits a model of rows.

    Parameters
    ----------
    holdout : held-out rows to score, as stored, or None
    """

    holdout: Source | None = None

    def following(self, holdout: Source) -> Self:
        return replace(self, holdout=holdout)

    def score(self, problem: Problem, total: Total, ids: np.ndarray, backend: Backend) -> float:
        """Mean log predictive density of the held-out rows, raw columns, nats."""
        assert self.holdout is not None, "rows are held out"
        with phase(Phase.SCORE):
            return mean_log_density(backend, self.holdout, self.predictor(problem, total, ids))


class Takes(Protocol):
    """The part of a family or learner that checks rows."""

    @property
    def accepts_sparse(self) -> bool:
        """Whether rows may be a sparse matrix."""

    def check_moments(self, moments: Moments) -> None:
        """Raise :class:`InputError` if rows with these moments are not accepted."""


def weight_of_fit(fitted: AnyFitted) -> float:
    """The total weight of the rows that a model was fitted to, including those of extensions."""
    return fitted.total.seen if isinstance(fitted.total, SVAState) else fitted.rows


def are_rows_of_fit(source: Source, fitted: AnyFitted) -> bool:
    """Whether a source may hold the rows that a model was fitted to: their total weight is the same."""
    return math.isclose(total_weight(source), weight_of_fit(fitted), rel_tol=1e-6)


def require_rows_of_fit(source: Source, fitted: AnyFitted) -> None:
    """Raise :class:`InputError` if :func:`are_rows_of_fit` is false."""
    if not are_rows_of_fit(source, fitted):
        raise InputError(
            "the rows should be all those that the model was fitted to, of total weight "
            f"{weight_of_fit(fitted):.10g}; got a total weight of {total_weight(source):.10g}. Give them all, with "
            "their weights; for an extended model the old and the new ones."
        )


def check_new_rows(preparation: Preparation, takes: Takes, source: Source, backend: Backend, asker: str) -> None:
    """Raise :class:`InputError` unless rows match those that a model was fitted to; `asker` is named in the message."""
    preparation.check_source(source, asker, takes.accepts_sparse)
    data_summary = summarise_source(source, backend, products=preparation.transform.matrix is not None)
    takes.check_moments(preparation.transform.moments(data_summary))
