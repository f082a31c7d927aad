"""A sequential pass over a source: rounds of partitions, each from the components of the round before.

One partition a round is the strictly sequential pass (Lin 2013). Otherwise rounds grow, 1, 1, 2, 4, 8, ..., and the
partitions of a round pass side by side, each from the same components; what they found is combined in a fixed tree.
Rounds depend on the source and the settings only, never on the workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from dpdist.core.checks import COUNT, FLAG, check_fields
from dpdist.core.randomness import generator
from dpdist.core.stored import BESIDE
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.execution.base import Backend
from dpdist.inference.sva.base import Learner, OpeningRule
from dpdist.inference.sva.combine import combine
from dpdist.inference.sva.opening import SVAState, examine, no_growth, pass_over
from dpdist.inference.sva.prune_merge import PruneMerge
from dpdist.inference.transform import Preparation
from dpdist.models.families.base import Rows

#: Rows prepared at once.
BLOCK_ROWS = 4096
#: Held-out rows are scored when the rows passed have grown by this share since they last were, and at the end.
SCORE_GROWTH = 0.05


@dataclass(frozen=True)
class Rounds:
    """Which partitions pass side by side, and in which order.

    Parameters
    ----------
    parallel : whether any do
    most : partitions of a round at most
    shuffle : whether partitions, and the rows within each, are taken in a seeded random order
    """

    parallel: bool = True
    most: int = 64
    shuffle: bool = True

    def __post_init__(self) -> None:
        check_fields(self, parallel=FLAG, most=COUNT.called("round_partitions"), shuffle=FLAG)

    def of(self, partitions: Sequence[Partition], seed: int) -> list[list[Partition]]:
        """The rounds."""
        order = np.arange(len(partitions))
        if self.shuffle:
            order = generator(seed, "order of partitions").permutation(len(partitions))
        rounds: list[list[Partition]] = []
        done = 0
        while done < len(order):
            size = min(max(1, done), self.most) if self.parallel else 1
            rounds.append([partitions[i] for i in order[done : done + size]])
            done += len(rounds[-1])
        return rounds


@dataclass(frozen=True, eq=False)
class SequentialProblem:
    """All that is fixed for a pass, apart from the data and the place where it runs.

    Parameters
    ----------
    learner : the likelihood as a pass sees it
    preparation : what is done to rows first
    rule : when components are opened
    tidy : when they are pruned and merged
    rounds : which partitions pass side by side
    dtype : of matrix products, float64 or float32
    seed : key of every draw
    """

    learner: Learner
    preparation: Preparation
    rule: OpeningRule
    tidy: PruneMerge
    rounds: Rounds
    dtype: type
    seed: int

    method = "sequential"


class SequentialState(NamedTuple):
    """What the next round needs.

    Parameters
    ----------
    growth : the components
    round : rounds done in this source
    next_id : id of the next new component
    """

    growth: Annotated[SVAState, BESIDE]
    round: int = 0
    next_id: int = 0


class SequentialInfo(NamedTuple):
    """What a person wants to see of a round.

    Parameters
    ----------
    round : its number, from 1
    of : rounds in all
    rows : rows passed so far
    n_components : components now
    seconds : time spent passing so far, evaluation apart
    holdout : mean log predictive density of held-out rows, nats; NaN where they were not scored
    """

    round: int
    of: int
    rows: int
    n_components: int
    seconds: float
    holdout: float


def first_sequential_state(problem: SequentialProblem) -> SequentialState:
    """No components yet."""
    return SequentialState(no_growth(problem.learner.width, problem.tidy))


def sequential_steps(
    problem: SequentialProblem,
    partitions: Sequence[Partition],
    state: SequentialState,
    backend: Backend,
    score: Callable[[SVAState], float] | None = None,
    seconds: float = 0.0,
    scored: int = 0,
) -> Iterator[tuple[SequentialState, SequentialInfo]]:
    """Rounds not done yet, one after the other.

    Parameters
    ----------
    score : mean log predictive density of held-out rows under some components, or None
    seconds : spent before
    scored : rows passed when held-out rows were last scored
    """
    rounds = problem.rounds.of(partitions, problem.seed)
    shared = backend.share(problem)
    for number in range(state.round, len(rounds)):
        began = time.perf_counter()
        last = number + 1 == len(rounds)
        state = _take_round(problem, shared, rounds[number], state, backend, last)
        seconds += time.perf_counter() - began
        held = float("nan")
        if score is not None and (last or state.growth.rows >= (1 + SCORE_GROWTH) * scored):
            held, scored = score(state.growth), state.growth.rows
        yield state, SequentialInfo(number + 1, len(rounds), state.growth.rows, len(state.growth.table), seconds, held)


def advance_block(problem: SequentialProblem, growth: SVAState, rows: Rows, weights: np.ndarray | None) -> SVAState:
    """Pass over rows in memory, as stored, in the order given."""
    with one_thread():
        blocks = _blocks(rows, weights, problem.preparation, np.arange(rows.shape[0]))
        return pass_over(blocks, growth, problem.learner, problem.rule, problem.tidy, problem.dtype)


def named(growth: SVAState, next_id: int) -> tuple[SVAState, int]:
    """SVAState whose new components have ids from `next_id` on, and the next id after those."""
    new = growth.ids < 0
    ids = growth.ids.copy()
    ids[new] = np.arange(next_id, next_id + new.sum())
    return replace(growth, ids=ids), next_id + int(new.sum())


def _take_round(
    problem: SequentialProblem,
    shared: object,
    partitions: Sequence[Partition],
    state: SequentialState,
    backend: Backend,
    last: bool,
) -> SequentialState:
    base = backend.share(state.growth)
    fixed = len(state.growth.table) if len(partitions) > 1 else 0
    count, refs = len(partitions), backend.share_each(partitions)
    parts = backend.map(_pass_partition, refs, [shared] * count, [base] * count, [fixed] * count)
    growth: SVAState = backend.fetch([backend.reduce(_combine, parts, shared, base)])[0]
    if growth.rows >= growth.look or last:
        with one_thread():
            growth = examine(growth, problem.learner, problem.rule, problem.tidy)
    growth, next_id = named(growth, state.next_id)
    return SequentialState(growth, state.round + 1, next_id)


def _combine(parts: list[SVAState], problem: SequentialProblem, base: SVAState) -> SVAState:
    with one_thread():
        return combine(parts, base, problem.learner, problem.rule)


def _pass_partition(partition: Partition, problem: SequentialProblem, base: SVAState, fixed: int) -> SVAState:
    rows, weights = partition.load()
    order = np.arange(rows.shape[0])
    if problem.rounds.shuffle:
        order = generator(problem.seed, "order of rows", partition.index).permutation(rows.shape[0])
    with one_thread():
        blocks = _blocks(rows, weights, problem.preparation, order)
        return pass_over(blocks, base, problem.learner, problem.rule, problem.tidy, problem.dtype, fixed)


def _blocks(
    rows: Rows, weights: np.ndarray | None, preparation: Preparation, order: np.ndarray
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Prepared rows and their weights, some thousands at a time, in the order given."""
    for start in range(0, len(order), BLOCK_ROWS):
        chosen = order[start : start + BLOCK_ROWS]
        yield preparation.apply(rows[chosen]), np.ones(len(chosen)) if weights is None else weights[chosen]
