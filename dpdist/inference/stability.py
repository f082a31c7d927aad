"""How stable the clusters of a fitted model are: which of them come back from half of the rows.

Every refit goes on from the found model, on a half of the rows of its own, with draws of moves of its own. A cluster
comes back as far as some cluster of the refit has the same rows: by the Jaccard coefficient of the rows, among all,
that each is most probable for,

    J_k = max_j |k and j| / |k or j|.

A bootstrap would do harm: a row that is drawn three times is three rows that are alike, of which an unbounded mixture
makes a cluster. Source: Hennig, Cluster-wise assessment of cluster stability, Computational Statistics & Data Analysis
52 (2007), where halves are "subsetting".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np

from dpdist.core.checks import COUNT
from dpdist.core.randomness import generator
from dpdist.core.stored import Stored
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Backend, Remote
from dpdist.inference.blocks import finite_rows, weighing_rows
from dpdist.inference.mixture.engine import first_state, laps
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.mixture.problem import Problem
from dpdist.models.families.base import Rows

#: Is told after every lap of a refit: its number, from 1, the lap, the clusters, and whether it was the last.
Tell: TypeAlias = Callable[[int, int, int, bool], None]
#: Refits, and laps of each at most, unless told otherwise.
REFITS, MAX_LAPS = 10, 20


@dataclass(frozen=True, eq=False)
class Stability:
    """What became of clusters in refits.

    Parameters
    ----------
    ids : (K,) stable ids of the clusters
    jaccard : (R, K) how far each came back in each refit, from 0 to 1; 0 for one that is no row's most probable
    n_components : (R,) clusters that each refit ended with
    max_laps : of each refit at most; 0 where that was not noted
    """

    ids: Annotated[np.ndarray, Stored(("component",), "stable identity of a component", name="id")]
    jaccard: Annotated[np.ndarray, Stored(("refit", "component"), "share of its rows that a cluster came back with")]
    n_components: Annotated[np.ndarray, Stored(("refit",), "clusters that a refit ended with")]
    max_laps: int = 0

    def __len__(self) -> int:
        return len(self.n_components)

    @property
    def mean(self) -> np.ndarray:
        """(K,) mean of each cluster's Jaccard coefficient; 0.85 and more is stable, less than 0.6 hardly a cluster."""
        return self.jaccard.mean(axis=0)

    def first(self, refits: int) -> Stability:
        """What the first so many refits said."""
        return replace(self, jaccard=self.jaccard[:refits], n_components=self.n_components[:refits])

    def after(self, shared: np.ndarray) -> Stability:
        """After one more refit, with each of whose clusters those of the model share so many rows (K, K')."""
        jaccard = np.concatenate([self.jaccard, _jaccard(shared)[None]])
        return replace(self, jaccard=jaccard, n_components=np.append(self.n_components, shared.shape[1]))


def refit(
    problem: Problem,
    model: MixturePredictor,
    source: Source,
    backend: Backend,
    refits: int = REFITS,
    max_laps: int = MAX_LAPS,
    tell: Tell = lambda number, lap, clusters, ended: None,
    known: Stability | None = None,
    keep: Callable[[Stability], None] = lambda found: None,
) -> Stability:
    """Refit a model some times, one after the other.

    Parameters
    ----------
    problem : as the model was fitted
    model : from which every refit begins
    source : the rows it was fitted to
    backend : where to run
    refits : how many
    max_laps : of each at most
    tell : called after every lap
    known : what refits of this model said before, which are not made again if they had as many laps
    keep : called after every refit with what all of them say so far
    """
    refits, max_laps = COUNT.take("refits", refits), COUNT.take("max_laps", max_laps)
    model.check_source(source)
    none = Stability(model.ids, np.zeros((0, len(model.ids))), np.zeros(0, dtype=np.int64), max_laps)
    found = known if known is not None and known.max_laps == max_laps else none
    while len(found) < refits:
        found = found.after(_refit(problem, model, source, backend, len(found), max_laps, tell))
        keep(found)
    return found.first(refits)


def _refit(
    problem: Problem,
    model: MixturePredictor,
    source: Source,
    backend: Backend,
    number: int,
    max_laps: int,
    tell: Tell,
) -> np.ndarray:
    """Rows, by weight, that each cluster of a model (K) shares with each of a refit: (K, K')."""
    own = replace(problem, seed=int(generator(problem.seed, "refit", number).integers(2**31)))
    drawn, last = _Halved(source, own.seed), None
    for state, info in laps(own, drawn, first_state(own, drawn, model.total), backend):
        last, ended = info, state.quiet or info.lap == max_laps
        tell(number + 1, info.lap, len(info.ids), ended)
        if ended:
            break
    assert last is not None, "there is a lap"
    other = MixturePredictor(model.model, model.preparation, last.total, last.ids)
    partitions = backend.share_each(source.partitions)
    table: np.ndarray = backend.fetch(
        [backend.total(_shared_rows, partitions, [backend.share((model, other))] * len(partitions))]
    )[0]
    return table


def _shared_rows(partition: Partition, models: tuple[MixturePredictor, MixturePredictor]) -> np.ndarray:
    """Rows of a partition, by weight, that each cluster of one model shares with each of another; a task."""
    one, other = models
    rows, weights, _ = weighing_rows(partition, finite_rows)
    table = np.zeros((len(one.ids), len(other.ids)))
    if not rows.shape[0]:
        return table
    (held,) = ArraySource(rows, partition_rows=rows.shape[0]).partitions
    np.add.at(table, (one.labels(held), other.labels(held)), 1.0 if weights is None else weights)
    return table


def _jaccard(table: np.ndarray) -> np.ndarray:
    """(K,) the best Jaccard coefficient of each row of a table (K, K')."""
    either = table.sum(axis=1)[:, None] + table.sum(axis=0) - table
    return (table / np.where(either > 0, either, 1.0)).max(axis=1)


@dataclass(frozen=True, eq=False)
class _Half(Partition):
    """A partition of whose rows a half, drawn anew, weighs nothing."""

    inner: Partition
    seed: int

    def read(self) -> tuple[Rows, np.ndarray | None]:
        rows, weights = finite_rows(self.inner)
        count = rows.shape[0]
        kept = (generator(self.seed, "halves", self.index).permutation(count) < (count + 1) // 2).astype(np.float64)
        return rows, kept if weights is None else kept * weights


@dataclass(frozen=True, eq=False)
class _HalfThere(_Half, Remote):
    """The same of rows that a cluster holds."""

    @property
    def future(self) -> object:  # type: ignore[override]
        return self._there.future

    @property
    def completion(self) -> Callable[[object], _Half]:
        return functools.partial(_completed, self._there.completion, self.seed)

    @property
    def _there(self) -> Remote:
        assert isinstance(self.inner, Remote), "its rows are held elsewhere"
        return self.inner


def _completed(completion: Callable[..., Any], seed: int, block: object) -> _Half:
    return _half(completion(block), seed)


def _half(inner: Partition, seed: int) -> _Half:
    kind = _HalfThere if isinstance(inner, Remote) else _Half
    return kind(inner.index, inner.start, inner.stop, inner, seed)


class _Halved(Source):
    """A half of the rows of a source."""

    def __init__(self, source: Source, seed: int) -> None:
        self.shape, self.label, self.sparse, self.weights = source.shape, source.label, source.sparse, source.weights
        self._partitions = [_half(each, seed) for each in source.partitions]

    @property
    def partitions(self) -> list[Partition]:
        return [*self._partitions]

    def identity(self) -> dict[str, object]:
        return {}
