"""What a worker does with one partition under one posterior: the local step, what moves measure, a sample."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated

import numpy as np

from dpdist.core.randomness import generator
from dpdist.core.stored import Stored
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.moves.base import Proposals
from dpdist.inference.transform import Preparation
from dpdist.models.families.base import Rows, stack_rows
from dpdist.models.mixture import Block, Posterior, local_step
from dpdist.models.sufficient_statistics import Summary

#: Numbers in a block's features: small enough for the cache, large enough for the matrix product.
BLOCK_NUMBERS = 2**19
#: Bounds on the rows of a block. Every block adds (K, F) sums to those before it: few rows would not be worth that.
FEWEST_BLOCK_ROWS, MOST_BLOCK_ROWS = 512, 4096
#: Numbers that fewest rows may take together (128 MiB); of wider rows there are fewer, though never below these.
MOST_BLOCK_NUMBERS, FEWEST_WIDE_ROWS = 2**24, 64


@dataclass(frozen=True, eq=False)
class BatchSummary:
    """Components' summary, and what each move's proposals measured, over the same rows."""

    summary: Summary
    measured: tuple[Summary, ...] = ()

    def __add__(self, other: BatchSummary) -> BatchSummary:
        measured = tuple(a + b for a, b in zip(self.measured, other.measured, strict=True))
        return BatchSummary(self.summary + other.summary, measured)

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what is stored of it, the same for all batch summaries that can be added."""
        return tuple(
            shape for part in (self.summary, *self.measured) for shape in (part.stats.shape, part.entropy.shape)
        )

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.stats.nbytes + part.entropy.nbytes for part in (self.summary, *self.measured))

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Digests of the files that go with it, by folder: none."""
        return {}

    def scaled(self, factor: float) -> BatchSummary:
        """Every entry times `factor`."""
        return BatchSummary(self.summary.scaled(factor), tuple(each.scaled(factor) for each in self.measured))


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn for components, and how many they were drawn from.

    Parameters
    ----------
    keys : (m,) random, in [0, 1)
    owners : (m,) components
    weights : (m,)
    rows : (m, D)
    most : rows kept of a component, those of smallest key; None for all
    seen : the rows that were there to draw, each counted once whatever its weight, of every component and of every
        proposal's replacements: a batch summary of one column; None where rows have no weights, so that counts say it
    """

    keys: Annotated[np.ndarray, Stored(("draw",), "random key of a sampled row")]
    owners: Annotated[np.ndarray, Stored(("draw",), "component a sampled row was drawn for")]
    weights: Annotated[np.ndarray, Stored(("draw",), "row weight of a sampled row")]
    rows: Annotated[Rows, Stored(("draw", "column"), "sampled rows, prepared")]
    most: int | None = None
    seen: BatchSummary | None = None

    def __add__(self, other: Sample) -> Sample:
        return join_samples([self, other])

    def take(self, chosen: np.ndarray) -> Sample:
        """Some of the rows, as many seen."""
        return replace(
            self,
            keys=self.keys[chosen],
            owners=self.owners[chosen],
            weights=self.weights[chosen],
            rows=self.rows[chosen],
        )

    def bounded(self) -> Sample:
        """The sample without the rows of a component beyond `most`, the order kept."""
        if self.most is None or not len(self.keys) or np.bincount(self.owners).max() <= self.most:
            return self
        order = np.lexsort((self.keys, self.owners))
        sorted_owners = self.owners[order]
        rank = np.arange(len(order)) - np.searchsorted(sorted_owners, sorted_owners)
        return self.take(np.sort(order[rank < self.most]))

    def of(self, component: int, limit: int) -> tuple[Rows, np.ndarray]:
        """The at most `limit` rows of smallest key drawn for a component, with their weights."""
        mine = np.flatnonzero(self.owners == component)
        mine = np.sort(mine[np.argsort(self.keys[mine], kind="stable")[:limit]])
        return self.rows[mine], self.weights[mine]


@dataclass(frozen=True, eq=False)
class Visit:
    """What comes back from rows; adds over rows."""

    batch_summary: BatchSummary
    sample: Sample

    def __add__(self, other: Visit) -> Visit:
        return Visit(self.batch_summary + other.batch_summary, self.sample + other.sample)


@dataclass(frozen=True, eq=False)
class LocalStepTask:
    """All that workers need for one batch besides their rows.

    Parameters
    ----------
    posterior : q in the form of the local step
    proposals : measured beside the components
    sampling_probabilities : (K,) probability with which a row is drawn into the sample of the component it belongs to
    most : rows that the sample of a component may hold
    seed, lap : key of the draws
    """

    posterior: Posterior
    proposals: tuple[Proposals, ...]
    sampling_probabilities: np.ndarray
    most: int
    seed: int
    lap: int


def visit(partition: Partition, preparation: Preparation, task: LocalStepTask, _known: None = None) -> Visit:
    """Visit one partition; rows leave nothing behind for the next visit."""
    rows, weights = weighing_rows(partition)
    counted = weights is not None and len(task.proposals) > 0
    rng = generator(task.seed, "sample", task.lap, partition.index)
    batch_summary, samples = None, []
    with one_thread():
        log_volume = preparation.transform.log_volume
        for block in blocks(rows, weights, preparation, task.posterior):
            seen = visit_block(block, task, rng, counted, log_volume)
            batch_summary = seen.batch_summary if batch_summary is None else batch_summary + seen.batch_summary
            samples.append(seen.sample)
    assert batch_summary is not None, "there is at least one block"
    return Visit(batch_summary, join_samples(samples))


def weighing_rows(partition: Partition) -> tuple[Rows, np.ndarray | None]:
    """The rows of a partition and their weights; those whose weight is zero are as if they were not there."""
    rows, weights = partition.load()
    if weights is None or weights.all():
        return rows, weights
    kept = np.flatnonzero(weights)
    return rows[kept], weights[kept]


def join_samples(samples: list[Sample]) -> Sample:
    """Samples one after the other, within their bound; those without rows cost nothing."""
    drawn = [sample for sample in samples if len(sample.keys)] or samples[:1]
    seen = [sample.seen for sample in samples if sample.seen is not None]
    return Sample(
        np.concatenate([sample.keys for sample in drawn]),
        np.concatenate([sample.owners for sample in drawn]),
        np.concatenate([sample.weights for sample in drawn]),
        stack_rows([sample.rows for sample in drawn]),
        samples[0].most,
        reduce(operator.add, seen) if seen else None,
    ).bounded()


def blocks(
    rows: Rows, weights: np.ndarray | None, preparation: Preparation, posterior: Posterior
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Prepared rows and their weights, a block at a time, an empty one of no rows; boundaries depend on F only."""
    step = block_rows(posterior.coefficients.shape[0])
    for start in range(0, max(1, rows.shape[0]), step):
        part = preparation.apply(rows[start : start + step])
        own = np.ones(part.shape[0]) if weights is None else weights[start : start + step]
        yield part, own


def block_rows(columns: int) -> int:
    """Rows of a block whose features have `columns` columns."""
    fewest = max(FEWEST_WIDE_ROWS, min(FEWEST_BLOCK_ROWS, MOST_BLOCK_NUMBERS // columns))
    return min(MOST_BLOCK_ROWS, max(fewest, BLOCK_NUMBERS // columns))


def visit_block(
    part: tuple[Rows, np.ndarray], task: LocalStepTask, rng: np.random.Generator, counted: bool, log_volume: float = 0.0
) -> Visit:
    """The local step on one block, with everything that rides along.

    Parameters
    ----------
    counted : whether its rows are to be counted, too
    log_volume : as :class:`Transform` has it
    """
    rows, weights = part
    posterior = task.posterior
    features = posterior.family.features(rows, posterior.precision.dtype)
    resp, summary = local_step(posterior, features, weights)
    base = float(weights @ (posterior.family.log_base_measure(rows) + log_volume))
    block = Block(rows, features, weights, resp, posterior)
    batch_summary = BatchSummary(
        Summary(summary.stats, summary.entropy, base), tuple(each.measure(block) for each in task.proposals)
    )
    return Visit(batch_summary, _draw(block, task, rng, _rows_seen(block, task.proposals) if counted else None))


def _draw(block: Block, task: LocalStepTask, rng: np.random.Generator, seen: BatchSummary | None) -> Sample:
    if not task.sampling_probabilities.any():
        none = slice(0, 0)
        return Sample(np.zeros(0), np.zeros(0, np.int64), block.weights[none], block.rows[none], task.most, seen)
    keys, owners = rng.random(len(block.resp)), block.resp.argmax(axis=1).astype(np.int64)
    chosen: np.ndarray = np.flatnonzero(keys < task.sampling_probabilities[owners])
    return Sample(keys[chosen], owners[chosen], block.weights[chosen], block.rows[chosen], task.most, seen)


def _rows_seen(block: Block, proposals: tuple[Proposals, ...]) -> BatchSummary:
    """The rows of a block each counted once: of components and replacements, a batch summary of one column."""
    once = replace(block, weights=np.ones(len(block.weights)))
    own = Summary(once.resp.sum(axis=0, dtype=np.float64)[:, None], np.zeros(once.resp.shape[1]))
    measured = [each.measure(once) for each in proposals]
    return BatchSummary(own, tuple(Summary(each.stats[:, -1:], each.entropy) for each in measured))
