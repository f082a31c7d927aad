"""What a way of fitting says of itself; :class:`dpdist.runs.run.Run` drives any of them alike."""

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
    """One way of fitting a model: how it begins, goes on, and what it says of rows in the end.

    Attributes
    ----------
    command : the command that makes them
    parts : what its components are called
    unit : what its bound is told per
    row : what an observation is called
    lap : what a lap is called
    updates : of each row in a lap, about
    ended : why a run is over whose state is quiet
    endless : whether laps could go on for ever, so that a run which ended may be gone on with
    """

    command: ClassVar[str]
    parts: ClassVar[str] = "clusters"
    unit: ClassVar[str] = "row"
    row: ClassVar[str] = "row"
    lap: ClassVar[str] = "lap"
    updates: ClassVar[int] = 1
    ended: ClassVar[str] = CONVERGED
    endless: ClassVar[bool] = True

    def check(self, spec: Spec, source: Source, limits: Limits) -> None:
        """Raise :class:`InputError` of what can be seen to be wrong before the data are read; nothing by default."""

    def cut(self, spec: Spec, source: Source) -> Source:
        """The data in partitions that are so much work; as they are, unless a method says otherwise."""
        return source

    @abstractmethod
    def begin(self, spec: Spec, source: Source, backend: Backend) -> tuple[Problem, State]:
        """All that is fixed for a run, and the state before its first lap; raises :class:`InputError` if the data are
        not such as the method takes."""

    @abstractmethod
    def steps(
        self, problem: Problem, source: Source, state: State, backend: Backend, path: str | None
    ) -> Iterator[Step]:
        """Steps from `state` on; the caller decides when to stop.

        Parameters
        ----------
        path : where the run is stored; None for nowhere
        """

    @abstractmethod
    def predictor(self, problem: Problem, total: Total, ids: np.ndarray) -> Predictor:
        """What a model says of rows.

        Parameters
        ----------
        total : summary of the whole data, as a lap ended with it
        ids : (K,) stable ids
        """

    def following(self, holdout: Source) -> Self:
        """The method that follows the score of held-out rows; raises :class:`InputError` where none does."""
        raise InputError(
            "held-out documents are not scored during a fit; leave out holdout, and use dpdist score afterwards."
        )

    def outcome(self, fitted: Fitted[Total]) -> str:
        """What a run found, in a sentence."""
        told = f"ELBO {fitted.elbo:.4f} ({fitted.per_unit:.6f} a {self.unit})"
        return f"{len(fitted.ids)} {self.parts_of(len(fitted.ids))}, {told}, {fitted.stop}."

    def parts_of(self, count: int) -> str:
        """What so many of a model's parts are called."""
        return self.parts if count != 1 else self.parts.removesuffix("s")

    @abstractmethod
    def values(self, problem: Problem, fitted: Fitted[Total], predictor: Predictor) -> dict[str, object]:
        """What is shown of a model beside what is shown of all, as plain values: ``counts`` (K,) and more.

        Parameters
        ----------
        predictor : of the same model
        """

    def never_converges(self, problem: Problem) -> bool:
        """Whether only a limit ends a run."""
        return False

    @abstractmethod
    def batch_rows(self, problem: Problem, source: Source) -> list[int]:
        """Rows of each batch of a lap."""

    @abstractmethod
    def useful_workers(self, problem: Problem, partitions: int) -> int:
        """Workers that have something to do at a time, where data have so many partitions."""


def workers_of_batches(schedule: Schedule, partitions: int) -> int:
    """Partitions of the batches that are under way at a time."""
    assert schedule.batches is not None, "a run's schedule says how many"
    batches = min(schedule.batches, partitions)
    return -(-partitions // batches) * min(schedule.lookahead + 1, batches)


def rows_of_batches(schedule: Schedule, source: Source) -> list[int]:
    """Rows of each batch of a lap that takes partitions in turn."""
    batches = batch_count(schedule, source)
    return [sum(part.rows for part in source.partitions[batch::batches]) for batch in range(batches)]


#: A method whichever it is, with a spec, problem and total of its own kinds.
AnyMethod = Method[Any, Any, Any, Any]
