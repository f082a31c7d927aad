"""A sequential pass over a source: rounds of partitions, each starting from the components of the previous round.

With one partition per round, the pass is strictly sequential (Lin 2013). Otherwise rounds grow, 1, 1, 2, 4, 8, ..., and
the partitions of a round are processed in parallel from the same components; their results are combined in a fixed
tree. Rounds depend on the source and the settings only, never on the workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from dpdist.core.checks import COUNT, FLAG, check_fields
from dpdist.core.phases import Phase, phase
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source, rows_with_weight
from dpdist.data.columns import Names
from dpdist.execution.base import Backend
from dpdist.inference.loop import Step, running_state
from dpdist.inference.state import Info, State
from dpdist.inference.sva.base import Learner, OpeningRule, SVAState
from dpdist.inference.sva.combine import combine, pass_over
from dpdist.inference.sva.prune_merge import PruneMerge, empty_state, prune_and_merge
from dpdist.inference.transform import Preparation
from dpdist.models.families.base import Rows

#: Number of rows prepared at once.
BLOCK_ROWS = 4096
#: Held-out rows are scored whenever the number of rows processed has grown by this share, and at the end.
SCORE_GROWTH = 0.05


@dataclass(frozen=True)
class Rounds:
    """Which partitions are processed in parallel, and in which order.

    Parameters
    ----------
    parallel : whether any are
    most : largest number of partitions in a round
    shuffle : whether partitions, and the rows within each, are processed in a seeded random order
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
        ends = np.cumsum([0, *self.sizes(len(order))])
        return [[partitions[i] for i in order[a:b]] for a, b in pairwise(ends)]

    def sizes(self, partitions: int) -> list[int]:
        """Number of partitions in each round, for `partitions` in total."""
        sizes: list[int] = []
        done = 0
        while done < partitions:
            sizes.append(min(max(1, done), self.most, partitions - done) if self.parallel else 1)
            done += sizes[-1]
        return sizes


@dataclass(frozen=True, eq=False)
class SVAProblem:
    """Settings that are fixed for a pass, apart from the data and where it runs.

    Parameters
    ----------
    learner : the likelihood in the form that a pass uses
    preparation : of the rows
    rule : when components are opened
    pruning : when they are pruned and merged
    rounds : which partitions are processed in parallel
    dtype : of matrix products, float64 or float32
    seed : key of every random draw
    """

    learner: Learner
    preparation: Preparation
    rule: OpeningRule
    pruning: PruneMerge
    rounds: Rounds
    dtype: type
    seed: int

    method = "sequential"

    @property
    def names(self) -> Names | None:
        """Column names, if there are any."""
        return self.preparation.names


def first_pass_state(problem: SVAProblem) -> State:
    """The state without components."""
    return running_state(empty_state(problem.learner.width, problem.pruning), 1)


def sva_steps(
    problem: SVAProblem,
    source: Source,
    state: State,
    backend: Backend,
    score: Callable[[SVAState], float] | None = None,
) -> Iterator[Step]:
    """The remaining rounds in order, each of which is a lap; the total is the components so far. `score` computes the
    mean log predictive density of held-out rows under given components, if there are any."""
    rounds = problem.rounds.of(source.partitions, problem.seed)
    sizes = [sum(rows_with_weight(source, part) for part in parts) for parts in rounds]
    scored = _scored(sizes, state.running.rows, state.visited)
    shared = backend.share(problem)
    for number in range(state.visited, len(rounds)):
        began = time.perf_counter()
        last = number + 1 == len(rounds)
        take = partial(_take_round, problem, shared, rounds[number], state.running, backend, last)
        running = backend.kept(f"round {number + 1} of {len(rounds)}", take)
        info = _info_of(running, state.lap, len(rounds) - number, time.perf_counter() - began)
        if score is not None and number in scored:
            info = info._replace(score=score(running))
        state = replace(running_state(running, state.lap + 1, tuple(range(len(rounds))), number + 1), quiet=last)
        yield Step(state, info, None, number, None)


def _scored(sizes: Sequence[int], rows: int, visited: int) -> set[int]:
    """Indices of the rounds after which held-out rows are scored.

    The rounds have `sizes` rows; the pass has processed `rows` rows, including those of its first `visited` rounds.
    """
    after = rows - sum(sizes[:visited]) + np.cumsum(sizes)
    found, before = {len(sizes) - 1}, 0
    for number, count in enumerate(after):
        if count >= (1 + SCORE_GROWTH) * before:
            found.add(number)
            before = count
    return found


def _info_of(running: SVAState, lap: int, left: int, seconds: float) -> Info:
    return Info(
        lap=lap,
        elbo=math.nan,
        elbo_before_moves=math.nan,
        rows=running.rows,
        units=running.rows,
        n_components=len(running.table),
        ids=running.ids,
        counts=running.weights,
        records=(),
        seconds=seconds,
        total=running,
        of=lap + left - 1,
    )


def advance_block(problem: SVAProblem, running: SVAState, rows: Rows, weights: np.ndarray | None) -> SVAState:
    """Process rows in memory, as stored, in the given order."""
    with one_thread():
        blocks = _blocks(rows, weights, problem.preparation, np.arange(rows.shape[0]))
        return pass_over(blocks, running, problem.learner, problem.rule, problem.pruning, problem.dtype)


def last_look(problem: SVAProblem, running: SVAState) -> SVAState:
    """The components after merging redundant ones and removing rare ones, as at the end of a pass."""
    with one_thread():
        return prune_and_merge(running, problem.learner, problem.rule, problem.pruning)


def usable(problem: SVAProblem, running: SVAState) -> SVAState:
    """The state with ids for the components that have none; raises :class:`PrecisionError` if a component lost its
    precision, so that no model is kept that cannot be used."""
    with one_thread():
        problem.learner.check(running.table)
    new = running.ids < 0
    ids, next_id = running.ids.copy(), running.next_id + int(new.sum())
    ids[new] = np.arange(running.next_id, next_id)
    return replace(running, ids=ids, next_id=next_id)


def _take_round(
    problem: SVAProblem,
    shared: object,
    partitions: Sequence[Partition],
    running: SVAState,
    backend: Backend,
    last: bool,
) -> SVAState:
    base = backend.share(running)
    fixed = len(running.table) if len(partitions) > 1 else 0
    count, refs = len(partitions), backend.share_each(partitions)
    with phase(Phase.LOCAL_STEP):
        parts = backend.map(_pass_partition, refs, [shared] * count, [base] * count, [fixed] * count)
    with phase(Phase.SUMS):
        grown: SVAState = backend.fetch([backend.reduce(_combine, parts, shared, base)])[0]
    if grown.rows >= grown.next_check or last:
        with phase(Phase.MOVES):
            grown = last_look(problem, grown)
    return usable(problem, grown)


def _combine(parts: list[SVAState], problem: SVAProblem, base: SVAState) -> SVAState:
    with one_thread():
        return combine(parts, base, problem.learner, problem.rule)


def _pass_partition(partition: Partition, problem: SVAProblem, base: SVAState, fixed: int) -> SVAState:
    rows, weights = partition.load()
    order = np.arange(rows.shape[0])
    if problem.rounds.shuffle:
        order = generator(problem.seed, "order of rows", partition.index).permutation(rows.shape[0])
    with one_thread():
        blocks = _blocks(rows, weights, problem.preparation, order)
        return pass_over(blocks, base, problem.learner, problem.rule, problem.pruning, problem.dtype, fixed)


def _blocks(
    rows: Rows, weights: np.ndarray | None, preparation: Preparation, order: np.ndarray
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Blocks of prepared rows with nonzero weight, and their weights, in the given order."""
    if weights is not None:
        order = order[weights[order] > 0]
    for start in range(0, len(order), BLOCK_ROWS):
        chosen = order[start : start + BLOCK_ROWS]
        yield preparation.apply(rows[chosen]), np.ones(len(chosen)) if weights is None else weights[chosen]
