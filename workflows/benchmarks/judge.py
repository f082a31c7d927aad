"""Cost of the end of a lap at the coordinator: gains of all pairs, and judging of all proposals.

Drawn clusters in 16 columns, with the given number of components from a k-means++ start. Every component is split, the
best pairs are merged and the smallest components deleted, as many as in a lap. Times are of one thread; the peak is the
memory allocated for the gains of all pairs. ``--small``
checks that the accepted gains add up to the change of the ELBO.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from common import alternate, draw_clusters, options, print_table, spread

from dpdist import DPMixture
from dpdist.core.threads import one_thread
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.moves.accept import Reason
from dpdist.inference.moves.base import Proposals
from dpdist.inference.moves.change import change_from, judge_moves
from dpdist.inference.moves.delete import Delete, propose_deletes
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.merge import Merge, propose_merges
from dpdist.inference.moves.pairs import pair_gains
from dpdist.models.allocations import Allocation, DirichletProcess, LearnedDirichletProcess
from dpdist.models.families import IsotropicGaussian
from dpdist.models.mixture import Block, Model, Precision, local_step
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture

ALLOCATIONS = {"fixed": DirichletProcess(5.0), "learned": LearnedDirichletProcess()}


class Size(NamedTuple):
    """How large the benchmark is."""

    components: tuple[int, ...]
    rows: int  # a component
    columns: int
    rounds: int


FULL, SMALL = Size((100, 300, 857), 20, 16, 3), Size((12,), 20, 3, 1)


class Lap(NamedTuple):
    """What stands at the end of a lap."""

    model: Model
    total: Summary
    proposals: Sequence[Proposals]
    measured: Sequence[Summary]


def lap_of(components: int, allocation: Allocation, size: Size) -> Lap:
    """A lap over drawn rows in which all the moves of the default plan were tried."""
    rows, _ = draw_clusters(size.rows * components, size.columns, max(2, components // 2), seed=0)
    start = DPMixture(IsotropicGaussian(), initial="k-means++", initial_components=components, random_state=0)
    problem, state = MemoizedMixture().begin(start.spec(), ArraySource(rows), SerialBackend())
    assert state.start is not None, "there is a start"
    model = Model(problem.model.family, allocation)
    posterior = model.posterior(state.start.summary, Precision())
    part = problem.preparation.apply(rows)
    features, weights = model.family.features(part), np.ones(len(rows))
    resp, total = local_step(posterior, features, weights)
    proposals, measured = [], []
    for each, seeds in tried(model, total):
        armed = each.armed(model, posterior, seeds)
        proposals.append(armed)
        measured.append(armed.measure(Block(part, features, weights, resp, posterior)))
    return Lap(model, total, proposals, measured)


def tried(model: Model, total: Summary) -> list[tuple[Proposals, Summary]]:
    """The proposals of a lap, the statistics of the children with them."""
    components, columns = total.stats.shape
    splits = Divisions.begun([(k,) for k in range(components)], [2] * components)
    children = np.repeat(0.5 * total.stats, 2, axis=0)
    children[::2, 1] += children[::2, -1]
    gains = pair_gains(model, total)
    merges = propose_merges(gains, Merge().pairs * components)
    deletes = propose_deletes(total, gains, np.zeros(components, bool), Delete().absorbers, max(1, components // 10))
    blank = Summary.zeros(0, columns)
    return [(splits, Summary(children, np.zeros(len(children)))), (merges, blank), (deletes, blank)]


def peak(lap: Lap) -> float:
    """MB that the gains of all pairs take at their peak."""
    tracemalloc.start()
    pair_gains(lap.model, lap.total)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 2**20


def check(lap: Lap) -> None:
    """The accepted gains are the change of the ELBO."""
    verdicts = judge_moves(*lap)
    after = change_from(*lap, verdicts).apply(lap.total, lap.proposals, lap.measured)
    gained = sum(verdict.gain for verdict in verdicts if verdict.reason is Reason.ACCEPTED)
    change = lap.model.elbo(after) - lap.model.elbo(lap.total.take(np.argsort(-lap.total.counts)))
    assert np.isclose(gained, change), f"verdicts promise {gained} nats, the ELBO rises by {change}"


def main() -> None:
    """Run the benchmark and print its table."""
    given = options(__doc__).parse_args()
    size = SMALL if given.small else FULL
    table = []
    with one_thread():
        for components in size.components:
            for name, allocation in ALLOCATIONS.items():
                lap = lap_of(components, allocation, size)
                if given.small:
                    check(lap)
                work = {
                    "pairs": lambda lap=lap: pair_gains(lap.model, lap.total),
                    "judge": lambda lap=lap: judge_moves(*lap),
                }
                seconds = alternate(work, size.rounds)
                proposals = sum(len(each) for each in lap.proposals)
                times = [spread(seconds["pairs"], 3), f"{peak(lap):.0f}", spread(seconds["judge"], 3)]
                table.append([components, name, proposals, *times])
    print(f"D={size.columns}, one thread, {size.rounds} rounds")
    print_table(["K", "concentration", "proposals", "gains of pairs, s", "peak MB", "verdicts, s"], table)


if __name__ == "__main__":
    main()
