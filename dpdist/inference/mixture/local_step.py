"""A worker's task for one partition under one posterior: local step, measurements of moves, and a sample of rows."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import softmax

from dpdist.core.errors import PrecisionError
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition
from dpdist.inference.blocks import block_rows, blocks, weighing_rows
from dpdist.inference.files import RunFiles
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import RowGroup, owner_type, row_groups
from dpdist.inference.mixture.owners import AnyOwners, join_owners, keep_owners, read_owners
from dpdist.inference.moves.base import Proposals
from dpdist.inference.sample import Sample, join_samples
from dpdist.inference.transform import Preparation
from dpdist.kernels.rows import add_held
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Block, Posterior, local_step
from dpdist.models.sufficient_statistics import Summary

#: Check of float32 products against float64: number of rows of a partition compared, smallest responsibility that
#: counts, largest error of log probabilities in nats, and share of rows that may have larger errors.
CHECKED_ROWS, COUNTED, OFF, FAR_OUT = 64, 1e-3, 0.25, 0.1


@dataclass(frozen=True, eq=False)
class Visit:
    """The result of visiting rows; adds over rows."""

    batch_summary: BatchSummary
    sample: Sample

    def __add__(self, other: Visit) -> Visit:
        """The result for consecutive rows of the same batch."""
        owners = join_owners(self.batch_summary.owners, other.batch_summary.owners)
        joined = replace(self.batch_summary + other.batch_summary, owners=owners)
        return Visit(joined, self.sample + other.sample)


@dataclass(frozen=True, eq=False)
class LocalStepTask:
    """What workers need for one batch in addition to its rows.

    Parameters
    ----------
    posterior : q in the form that the local step uses
    proposals : measured along with the components
    sampling_probabilities : (K,) probability with which a row is drawn into the sample of its owner
    most : largest number of rows in the sample of a component
    seed, lap : key of the random draws
    candidates : (K, K) bool, of each owner's rows; None for all components
    owned : whether the next visit will need the owners found in this one
    files : where workers store results
    keeps : whether batch summaries and owners are written to files
    """

    posterior: Posterior
    proposals: tuple[Proposals, ...]
    sampling_probabilities: np.ndarray
    most: int
    seed: int
    lap: int
    candidates: np.ndarray | None = None
    owned: bool = False
    files: RunFiles = field(default_factory=RunFiles)
    keeps: bool = False


def visit(partition: Partition, preparation: Preparation, task: LocalStepTask, known: AnyOwners = None) -> Visit:
    """Visit one partition; if there are candidates, with the owners `known` from its last visit. Raises
    :class:`PrecisionError` if log probabilities are not finite, or float32 products are too inaccurate."""
    rows, weights, places = weighing_rows(partition)
    counted = weights is not None and len(task.proposals) > 0
    rng = generator(task.seed, "sample", task.lap, partition.index)
    owners = None if task.candidates is None else read_owners(known, task.files)
    sums, samples = _Sums(task, partition), []
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite are refused
        log_volume = preparation.transform.log_volume
        if task.posterior.precision.dtype != np.float64:
            check_products(preparation.apply(rows[:CHECKED_ROWS]), task.posterior)
        for group in groups_of_rows(len(places), None if owners is None else owners[places], task):
            part = preparation.apply(rows[group.rows])
            own = np.ones(part.shape[0]) if weights is None else weights[group.rows]
            block, best, summary = _local_step(part, own, task, group.components)
            base = float(own @ (task.posterior.family.log_base_measure(part) + log_volume))
            measured = tuple(each.measure(block) for each in task.proposals)
            sums.take(replace(summary, base=base + summary.base), measured, group.components)
            sums.own(places[group.rows], best, block)
            samples.append(_draw(block, best, task, rng, _rows_seen(block, task.proposals) if counted else None))
    return sums.visit(samples)


def check_products(rows: Rows, posterior: Posterior) -> None:
    """Raise :class:`PrecisionError` if products in a shorter type than float64 are too inaccurate for prepared rows."""
    if not rows.shape[0]:
        return
    dtype = posterior.precision.dtype
    short = np.asarray(posterior.logits(posterior.family.features(rows, dtype)), dtype=np.float64)
    long = np.asarray(posterior.family.features(rows) @ posterior.coefficients.astype(np.float64))
    counted = np.maximum(softmax(short, axis=1), softmax(long, axis=1)) > COUNTED
    off = float(np.quantile(np.abs(short - long).max(axis=1, where=counted, initial=0.0), 1 - FAR_OUT))
    if not off <= OFF:
        raise PrecisionError(
            f"products in {np.dtype(dtype).name} change log probabilities of rows by {off:.2g} nats: values in columns "
            "are too large compared with the spread of clusters. Use compute_dtype='float64' or, for real-valued "
            "columns, centre and scale them (row_transform=TransformPlan(center=True, scale=True))."
        )


def groups_of_rows(rows: int, owners: np.ndarray | None, task: LocalStepTask) -> Iterator[RowGroup]:
    """Rows that are processed together; at least one group, which may be empty.

    Groups are blocks whose boundaries depend on F only or, with candidates, those of :func:`row_groups` for the
    `owners`.
    """
    columns = task.posterior.coefficients.shape[0]
    if task.candidates is not None:
        assert owners is not None, "the last visit of rows with candidates found their owners"
        return row_groups(owners, task.candidates, block_rows(columns))
    return (RowGroup(block, None) for block in blocks(rows, columns))


def _local_step(
    rows: Rows, weights: np.ndarray, task: LocalStepTask, components: np.ndarray | None
) -> tuple[Block, np.ndarray, Summary]:
    """The local step over the given components, or over all of them.

    Returns
    -------
    block : its responsibilities cover all components if moves measure them
    owners : (n,) the component with the largest responsibility for each row
    summary : of the components considered
    """
    posterior = task.posterior
    features = posterior.family.features(rows, posterior.precision.dtype)
    resp, summary = local_step(posterior.among(components), features, weights)
    wanted = task.owned or task.sampling_probabilities.any()
    owners = resp.argmax(axis=1) if wanted and len(resp) else np.zeros(len(resp), np.int64)
    if components is not None:
        owners = components[owners] if len(resp) else owners
        resp = _spread(resp, components, posterior.coefficients.shape[1]) if task.proposals else resp
    return Block(rows, features, weights, resp, posterior), owners, summary


def _spread(resp: np.ndarray, components: np.ndarray, all_components: int) -> np.ndarray:
    """Responsibilities for all components, zero except for the given ones."""
    spread = np.zeros((len(resp), all_components), resp.dtype)
    spread[:, components] = resp
    return spread


class _Sums:
    """Accumulated results of a partition's groups of rows; components are added in place."""

    def __init__(self, task: LocalStepTask, partition: Partition) -> None:
        self._task, self._partition = task, partition
        columns, components = task.posterior.coefficients.shape
        self._total = Summary.zeros(components, columns)
        self._measured: tuple[Summary, ...] | None = None
        self._owners = np.zeros(partition.rows, owner_type(components)) if task.owned else None
        self._held = np.zeros((components, components)) if task.owned and task.candidates is None else None

    def take(self, found: Summary, measured: tuple[Summary, ...], components: np.ndarray | None) -> None:
        """Add the sums of the given `components` and the measurements of moves."""
        some, total = slice(None) if components is None else components, self._total
        total.stats[some] += found.stats
        total.entropy[some] += found.entropy
        self._total = replace(total, base=total.base + found.base)
        before = self._measured
        self._measured = measured if before is None else tuple(map(operator.add, before, measured))

    def own(self, places: np.ndarray, owners: np.ndarray, block: Block) -> None:
        """Store the owners of the rows at `places` in the partition, and add up the responsibilities by owner."""
        if self._owners is not None:
            self._owners[places] = owners
        if self._held is not None:
            add_held(block.resp, block.weights, owners, self._held)

    def visit(self, samples: list[Sample]) -> Visit:
        """The complete result."""
        assert self._measured is not None, "there is at least one group of rows"
        sample, task, owners = replace(join_samples(samples), held=self._held), self._task, self._owners
        if task.keeps and owners is not None:
            kept = keep_owners(task.files, task.lap, self._partition.index, owners)
            return Visit(BatchSummary(self._total, self._measured, kept), sample)
        return Visit(BatchSummary(self._total, self._measured, owners), sample)


def _draw(
    block: Block, owners: np.ndarray, task: LocalStepTask, rng: np.random.Generator, seen: BatchSummary | None
) -> Sample:
    if not task.sampling_probabilities.any():
        none = slice(0, 0)
        return Sample(np.zeros(0), np.zeros(0, np.int64), block.weights[none], block.rows[none], task.most, seen)
    keys = rng.random(len(owners))
    drawn = keys < task.sampling_probabilities[owners]
    if block.posterior.outside is not None:
        drawn &= block.resp.sum(axis=1) > 0.5  # rows mostly of the background are no sample of clusters
    chosen: np.ndarray = np.flatnonzero(drawn)
    return Sample(keys[chosen], owners[chosen], block.weights[chosen], block.rows[chosen], task.most, seen)


def _rows_seen(block: Block, proposals: tuple[Proposals, ...]) -> BatchSummary:
    """The rows of a block, each counted once: a batch summary of components and replacements with one column."""
    once = replace(block, weights=np.ones(len(block.weights)))
    own = Summary(once.resp.sum(axis=0, dtype=np.float64)[:, None], np.zeros(once.resp.shape[1]))
    measured = [each.measure(once) for each in proposals]
    return BatchSummary(own, tuple(Summary(each.stats[:, -1:], each.entropy) for each in measured))
