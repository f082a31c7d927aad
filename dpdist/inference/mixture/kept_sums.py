"""Tree of sums of batch summaries in files: workers add them, and the coordinator asks for the root.

The tree is that of :class:`dpdist.inference.schedules.tree.SumTree`, and the sums have the same bits. Workers hold the
nodes of one middle level, each the sum of about sqrt(batches) adjacent leaves: one task reads these leaves and adds
them, another adds the nodes. Replacing a leaf recomputes its node and the root. What is lost with a worker is
recomputed from the files.

Workers that hold the nodes also compute the posteriors; the coordinator fetches the root only at a lap end. With
look-ahead the coordinator has the totals, because its states hold those of batches in progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.phases import Phase, phase
from dpdist.core.threads import one_thread
from dpdist.core.trees import join_pairwise
from dpdist.execution.base import Backend, Ref
from dpdist.inference.files import RunFiles
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.kept import AnyBatchSummary, KeptBatchSummary, read_batch_summary
from dpdist.inference.schedules.tree import Sums, total_of
from dpdist.models.sufficient_statistics import Summary


class KeptSums(Sums[BatchSummary]):
    """Sums of `batch_summaries`, any of which may be in files.

    Parameters
    ----------
    batch_summaries : one per batch
    files : where they are stored
    backend : its workers add them
    totals_here : whether totals are returned as numbers
    """

    def __init__(
        self,
        batch_summaries: Sequence[AnyBatchSummary],
        files: RunFiles,
        backend: Backend,
        totals_here: bool = False,
    ) -> None:
        self._leaves, self._files, self._backend = list(batch_summaries), files, backend
        self._totals_here = totals_here
        self._start: tuple[BatchSummary, Ref[BatchSummary]] | None = None  # a start in memory, and its ref
        self._refs: dict[int, Ref[BatchSummary]] = {}  # of leaves in memory, by id()
        self._size = leaves_of_a_node(len(self._leaves))
        self._nodes = self._sums(range(0, len(self._leaves), self._size))
        self._root: BatchSummary | None = None

    @property
    def batch_summaries(self) -> tuple[AnyBatchSummary, ...]:
        return tuple(self._leaves)

    @property
    def root(self) -> BatchSummary:
        if self._root is None:
            self._root = self._backend.fetch(self._backend.promptly(_sum_of_nodes, [self._nodes]))[0]
        return self._root

    def total(self, start: AnyBatchSummary | None, share: float) -> BatchSummary | DistantTotal:
        if self._totals_here:
            return total_of(self.root, None if start is None else self.numbers(start), share)
        return DistantTotal(tuple(self._nodes), self._sent(start), share)

    def _sent(self, start: AnyBatchSummary | None) -> object:
        """The start as a task argument; one in memory is sent once."""
        if not isinstance(start, BatchSummary):
            return start
        if self._start is None or self._start[0] is not start:
            self._start = start, self._backend.share(start)
        return self._start[1]

    def replace(self, index: int, batch_summary: AnyBatchSummary) -> None:
        self._leaves[index], self._root = batch_summary, None
        node = index // self._size
        self._nodes[node] = self._sums([node * self._size])[0]

    def numbers(self, batch_summary: AnyBatchSummary) -> BatchSummary:
        if not isinstance(batch_summary, KeptBatchSummary):
            return batch_summary
        return self._backend.fetch(self._backend.promptly(read_batch_summary, [batch_summary], [self._files]))[0]

    def _sums(self, begins: Sequence[int]) -> list[Ref[BatchSummary]]:
        """The nodes whose first leaves are at the positions `begins`."""
        there = {id(leaf) for leaf in self._leaves}
        self._refs = {key: ref for key, ref in self._refs.items() if key in there}
        columns = [[self._leaf(leaf) for leaf in self._leaves[begin : begin + self._size]] for begin in begins]
        return self._backend.promptly(_sum_of_leaves, columns, [self._files] * len(begins))

    def _leaf(self, leaf: AnyBatchSummary) -> object:
        """The leaf as a task argument; one in memory is sent once, even if it stands for several leaves."""
        if isinstance(leaf, KeptBatchSummary):
            return leaf
        if id(leaf) not in self._refs:
            self._refs[id(leaf)] = self._backend.share(leaf)
        return self._refs[id(leaf)]


@dataclass(frozen=True, eq=False)
class DistantTotal:
    """A total held by workers.

    Parameters
    ----------
    nodes : refs to sums that add up to the total
    start : statistics in place of rows not yet seen, in a file or a ref; None for zeros
    share : weight of the start
    """

    nodes: tuple[Ref[BatchSummary], ...]
    start: object
    share: float


def total_there(
    nodes: Sequence[BatchSummary], start: AnyBatchSummary | None, share: float, files: RunFiles
) -> BatchSummary:
    """The numbers of a distant total, computed where its parts are."""
    return total_of(_sum_of_nodes(nodes), None if start is None else read_batch_summary(start, files), share)


def leaves_of_a_node(leaves: int) -> int:
    """Leaves below each node that workers hold: a power of two, at least the square root of the number of leaves."""
    return int(2 ** math.ceil(math.log2(max(1, leaves)) / 2))


@dataclass(frozen=True, eq=False)
class _Sum:
    """A sum; `own` if it is the sum of two others, so that its arrays are not shared and can be added to in place."""

    value: BatchSummary
    own: bool = False

    def __add__(self, other: _Sum) -> _Sum:
        if self.own or other.own:  # addition of two numbers is commutative to the bit
            own, given = (self, other) if self.own else (other, self)
            return _Sum(_added_in_place(own.value, given.value), own=True)
        return _Sum(self.value + other.value, own=True)


def _sum_of_leaves(leaves: Sequence[AnyBatchSummary], files: RunFiles) -> BatchSummary:
    """The sum of adjacent leaves; only a few of them are in memory at a time."""
    with one_thread():
        read = (read_batch_summary(each, files) for each in leaves)
        return join_pairwise((_Sum(BatchSummary(each.summary, each.measured)) for each in read), _joined).value


def _sum_of_nodes(nodes: Sequence[BatchSummary]) -> BatchSummary:
    with one_thread():
        return join_pairwise([_Sum(each) for each in nodes], _joined).value


def _joined(first: _Sum, second: _Sum) -> _Sum:
    with phase(Phase.SUMS):
        return first + second


def _added_in_place(into: BatchSummary, other: BatchSummary) -> BatchSummary:
    """The sum, stored in the arrays of the first summary."""
    pairs = zip((into.summary, *into.measured), (other.summary, *other.measured), strict=True)
    first, *others = [_summary_added_in_place(mine, given) for mine, given in pairs]
    return BatchSummary(first, tuple(others))


def _summary_added_in_place(into: Summary, other: Summary) -> Summary:
    np.add(into.stats, other.stats, out=into.stats)
    np.add(into.entropy, other.entropy, out=into.entropy)
    return Summary(into.stats, into.entropy, into.base + other.base)
