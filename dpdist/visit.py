"""What a worker does with one partition under one posterior: the local step, the trials' measurements, a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpdist.families.base import Rows
from dpdist.model import Block, Posterior, share_out
from dpdist.moves.base import Trial
from dpdist.preparation import Preparation
from dpdist.randomness import generator
from dpdist.sources.base import Partition
from dpdist.summary import Summary
from dpdist.threads import one_thread

#: Numbers in a block's features: small enough for the cache, large enough for the matrix product.
BLOCK_NUMBERS = 2**19


@dataclass(frozen=True, eq=False)
class Leaf:
    """Components' summary and the trials' measurements over the same rows."""

    summary: Summary
    trials: tuple[Summary, ...] = ()

    def __add__(self, other: Leaf) -> Leaf:
        trials = tuple(a + b for a, b in zip(self.trials, other.trials, strict=True))
        return Leaf(self.summary + other.summary, trials)

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of what is stored of it, the same for all leaves that can be added."""
        return tuple(shape for part in (self.summary, *self.trials) for shape in (part.stats.shape, part.entropy.shape))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.stats.nbytes + part.entropy.nbytes for part in (self.summary, *self.trials))

    def scaled(self, factor: float) -> Leaf:
        """Every entry times `factor`."""
        return Leaf(self.summary.scaled(factor), tuple(trial.scaled(factor) for trial in self.trials))


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn for components: random ``keys`` (m,), the ``owners`` (m,), ``weights`` (m,), ``rows`` (m, D)."""

    keys: np.ndarray
    owners: np.ndarray
    weights: np.ndarray
    rows: Rows

    def __add__(self, other: Sample) -> Sample:
        return join_samples([self, other])

    def of(self, component: int, limit: int) -> tuple[Rows, np.ndarray]:
        """The at most `limit` rows of smallest key drawn for a component, with their weights."""
        mine = np.flatnonzero(self.owners == component)
        mine = np.sort(mine[np.argsort(self.keys[mine], kind="stable")[:limit]])
        return self.rows[mine], self.weights[mine]


def stack_rows(parts: list[Rows]) -> Rows:
    """Rows one set below the other, dense or CSR as they came."""
    if sparse.issparse(parts[0]):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Visit:
    """What comes back from rows; adds over rows."""

    leaf: Leaf
    sample: Sample

    def __add__(self, other: Visit) -> Visit:
        return Visit(self.leaf + other.leaf, self.sample + other.sample)


@dataclass(frozen=True, eq=False)
class Orders:
    """All that workers need for one wave besides their rows.

    Parameters
    ----------
    posterior : q in the form of the local step
    trials : measured beside the components
    chances : (K,) probability with which a row is drawn into the sample of the component it belongs to
    seed, lap : key of the draws
    """

    posterior: Posterior
    trials: tuple[Trial, ...]
    chances: np.ndarray
    seed: int
    lap: int


def visit(partition: Partition, preparation: Preparation, orders: Orders, _known: None = None) -> Visit:
    """Visit one partition; rows leave nothing behind for the next visit."""
    rows, weights = partition.load()
    rng = generator(orders.seed, "sample", orders.lap, partition.index)
    leaf, samples = None, []
    with one_thread():
        for block in blocks(rows, weights, preparation, orders.posterior):
            seen = visit_block(block, orders, rng)
            leaf = seen.leaf if leaf is None else leaf + seen.leaf
            samples.append(seen.sample)
    assert leaf is not None, "a partition holds at least one row"
    return Visit(leaf, join_samples(samples))


def join_samples(samples: list[Sample]) -> Sample:
    """Samples one after the other; those without rows cost nothing."""
    drawn = [sample for sample in samples if len(sample.keys)] or samples[:1]
    return Sample(
        np.concatenate([sample.keys for sample in drawn]),
        np.concatenate([sample.owners for sample in drawn]),
        np.concatenate([sample.weights for sample in drawn]),
        stack_rows([sample.rows for sample in drawn]),
    )


def blocks(
    rows: Rows, weights: np.ndarray | None, preparation: Preparation, posterior: Posterior
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Prepared rows and their weights, a cache-sized block at a time; boundaries depend on the width only."""
    step = block_rows(posterior.coefficients.shape[0])
    for start in range(0, rows.shape[0], step):
        part = preparation.apply(rows[start : start + step])
        own = np.ones(part.shape[0]) if weights is None else weights[start : start + step]
        yield part, own


def block_rows(columns: int) -> int:
    """Rows of a block whose features have `columns` columns."""
    return int(np.clip(BLOCK_NUMBERS // columns, 64, 4096))


def visit_block(part: tuple[Rows, np.ndarray], orders: Orders, rng: np.random.Generator) -> Visit:
    """The local step on one block, with everything that rides along."""
    rows, weights = part
    posterior = orders.posterior
    features = posterior.family.features(rows, posterior.precision.dtype)
    resp, summary = share_out(posterior, features, weights)
    base = float(weights @ posterior.family.log_base_measure(rows))
    block = Block(rows, features, weights, resp, posterior)
    leaf = Leaf(Summary(summary.stats, summary.entropy, base), tuple(trial.measure(block) for trial in orders.trials))
    return Visit(leaf, _draw(block, orders.chances, rng))


def _draw(block: Block, chances: np.ndarray, rng: np.random.Generator) -> Sample:
    keys: np.ndarray = rng.random((block.resp.shape[0],))
    owners = block.resp.argmax(axis=1).astype(np.int64) if chances.any() else np.zeros(len(keys), dtype=np.int64)
    chosen: np.ndarray = np.flatnonzero((keys < chances[owners]) & (block.weights > 0))
    return Sample(keys[chosen], owners[chosen], block.weights[chosen], block.rows[chosen])
