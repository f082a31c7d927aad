"""The interface of fitting methods; :class:`dpdist.runs.run.Run` drives all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step, batch_count
from dpdist.inference.schedules import Schedule
from dpdist.inference.state import State
from dpdist.runs.limits import Limits
from dpdist.storage.checkpoint import Fitted, PredictorLike, ProblemLike, Total

Spec = TypeVar("Spec")
Problem = TypeVar("Problem", bound=ProblemLike)
Predictor = TypeVar("Predictor", bound=PredictorLike)

CONVERGED = "converged: the ELBO settled and no move is pending"


class Method(ABC, Generic[Spec, Problem, Total, Predictor]):
    """A fitting method: how a run starts and steps, and the predictor of its model.

    Attributes
    ----------
    command : command that starts such runs
    parts : noun for its components
    unit : unit that the ELBO is reported per
    row : noun for an observation
    lap : noun for a lap
    updates : approximate number of updates of each row in a lap
    ended : stop reason of a run whose state is quiet
    endless : whether laps could continue without end, so that a run that ended may be resumed
    wider : advice that keeps more workers busy, if there are more partitions than can be worked at
    """

    command: ClassVar[str]
    parts: ClassVar[str] = "clusters"
    unit: ClassVar[str] = "row"
    row: ClassVar[str] = "row"
    lap: ClassVar[str] = "lap"
    updates: ClassVar[int] = 1
    ended: ClassVar[str] = CONVERGED
    endless: ClassVar[bool] = True
    wider: ClassVar[str] = " Use fewer batches or a larger lookahead to keep more workers busy."

    def check(self, spec: Spec, source: Source, limits: Limits) -> None:
        """Raise :class:`InputError` for errors that are visible before the data are read; nothing by default."""

    def cut(self, spec: Spec, source: Source) -> Source:
        """The source, cut into partitions of suitable work; unchanged by default."""
        return source

    @abstractmethod
    def begin(self, spec: Spec, source: Source, backend: Backend) -> tuple[Problem, State]:
        """The problem, which holds everything that is fixed, and the state before the first lap; raises
        :class:`InputError` if the method does not accept the data."""

    @abstractmethod
    def steps(
        self, problem: Problem, source: Source, state: State, backend: Backend, path: str | None
    ) -> Iterator[Step]:
        """The steps of the run from `state`; the caller decides when to stop.

        Parameters
        ----------
        path : where the run is stored; None if it is not
        """

    @abstractmethod
    def predictor(self, problem: Problem, total: Total, ids: np.ndarray) -> Predictor:
        """The predictor of a model.

        Parameters
        ----------
        total : summary of the whole data at the end of a lap
        ids : (K,) stable ids
        """

    def following(self, holdout: Source) -> Self:
        """A copy of the method that scores held-out rows; raises :class:`InputError` if the method cannot."""
        raise InputError(
            "held-out documents cannot be scored during a fit; leave out holdout, and use dpdist score later."
        )

    def outcome(self, fitted: Fitted[Total]) -> str:
        """The result of a run, in a sentence."""
        told = f"ELBO {fitted.elbo:.4f} ({fitted.per_unit:.6f} per {self.unit})"
        return f"{len(fitted.ids)} {self.parts_of(len(fitted.ids))}, {told}, {fitted.stop}."

    def parts_of(self, count: int) -> str:
        """The noun for `count` components, in singular or plural."""
        return self.parts if count != 1 else self.parts.removesuffix("s")

    @abstractmethod
    def values(self, problem: Problem, fitted: Fitted[Total], predictor: Predictor) -> dict[str, object]:
        """Facts about a model of this method, as plain values for display: ``counts`` (K,) and others.

        Parameters
        ----------
        predictor : of the same model
        """

    def never_converges(self, problem: Problem) -> bool:
        """Whether only a limit can end a run."""
        return False

    @abstractmethod
    def batch_rows(self, problem: Problem, source: Source) -> list[int]:
        """Rows of each batch of a lap."""

    @abstractmethod
    def useful_workers(self, problem: Problem, partitions: int) -> int:
        """The number of workers that can work at a time, for data in `partitions` partitions."""


def workers_of_batches(schedule: Schedule, partitions: int) -> int:
    """The number of partitions in the batches that are processed at a time."""
    assert schedule.batches is not None, "the schedule of a run has a number of batches"
    batches = min(schedule.batches, partitions)
    return -(-partitions // batches) * min(schedule.lookahead + 1, batches)


def rows_of_batches(schedule: Schedule, source: Source) -> list[int]:
    """The number of rows in each batch, when batch b holds every partition b, b + B, b + 2B, ..."""
    batches = batch_count(schedule, source)
    return [sum(part.rows for part in source.partitions[batch::batches]) for batch in range(batches)]


#: A method of any spec, problem and total.
AnyMethod = Method[Any, Any, Any, Any]
