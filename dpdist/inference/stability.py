"""Stability of the clusters of a fitted model: which of them are found again in half of the rows.

Every refit starts from the fitted model and uses its own random half of the rows and its own random draws of moves. How
far a cluster is found again is measured by the largest Jaccard coefficient with a cluster of the refit. A cluster's
rows are those, among all rows, for which it is the most probable:

    J_k = max_j |k and j| / |k or j|.

A bootstrap would do harm: a row drawn three times gives three identical rows, which an unbounded mixture makes a
cluster. Source: Hennig, Cluster-wise assessment of cluster stability, Computational Statistics & Data Analysis 52
(2007), where using halves is called "subsetting".
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

#: Called after every lap of a refit with the refit's number (from 1), the lap, the number of clusters, and whether it
#: was the last lap.
Tell: TypeAlias = Callable[[int, int, int, bool], None]
#: Default number of refits, and default limit of laps in each.
REFITS, MAX_LAPS = 10, 20


@dataclass(frozen=True, eq=False)
class Stability:
    """Results of the refits for each cluster.

    Parameters
    ----------
    ids : (K,) stable ids of the clusters
    jaccard : (R, K) Jaccard coefficient in each refit, from 0 to 1; 0 for a cluster that is no row's most probable
    n_components : (R,) number of clusters at the end of each refit
    max_laps : limit of laps in each refit; 0 if it was not recorded
    """

    ids: Annotated[np.ndarray, Stored(("component",), "stable id of a component", name="id")]
    jaccard: Annotated[np.ndarray, Stored(("refit", "component"), "Jaccard coefficient of a cluster in a refit")]
    n_components: Annotated[np.ndarray, Stored(("refit",), "number of clusters at the end of a refit")]
    max_laps: int = 0

    def __len__(self) -> int:
        return len(self.n_components)

    def __repr__(self) -> str:
        return f"Stability(clusters={len(self.ids)}, refits={len(self)}, mean={np.round(self.mean, 2)})"

    @property
    def mean(self) -> np.ndarray:
        """(K,) mean Jaccard coefficient of each cluster; 0.85 or more is stable, less than 0.6 hardly a cluster."""
        return self.jaccard.mean(axis=0)

    def first(self, refits: int) -> Stability:
        """The results of the first `refits` refits."""
        return replace(self, jaccard=self.jaccard[:refits], n_components=self.n_components[:refits])

    def after(self, shared: np.ndarray) -> Stability:
        """The results with one more refit; `shared` (K, K') counts the rows shared by each pair of clusters."""
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
    """Refit a model several times, one after the other, each time on half of the rows.

    Parameters
    ----------
    problem : with which the model was fitted
    model : the start of every refit
    source : the rows it was fitted to
    backend : where to run
    refits : number of refits
    max_laps : limit of laps in each
    tell : called after every lap
    known : results of earlier refits of this model, which are reused if they had the same limit of laps
    keep : called after every refit with all results so far
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
    """Weight of the rows that each cluster of the model (K) shares with each cluster of a refit: (K, K')."""
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
    """Weight of a partition's rows that each cluster of one model shares with each cluster of another; a task."""
    one, other = models
    rows, weights, _ = weighing_rows(partition, finite_rows)
    table = np.zeros((len(one.ids), len(other.ids)))
    if not rows.shape[0]:
        return table
    (held,) = ArraySource(rows, partition_rows=rows.shape[0]).partitions
    np.add.at(table, (one.labels(held), other.labels(held)), 1.0 if weights is None else weights)
    return table


def _jaccard(table: np.ndarray) -> np.ndarray:
    """(K,) the largest Jaccard coefficient in each row of a table (K, K')."""
    either = table.sum(axis=1)[:, None] + table.sum(axis=0) - table
    return (table / np.where(either > 0, either, 1.0)).max(axis=1)


@dataclass(frozen=True, eq=False)
class _Half(Partition):
    """A partition in which a random half of the rows has zero weight."""

    inner: Partition
    seed: int

    def read(self) -> tuple[Rows, np.ndarray | None]:
        rows, weights = finite_rows(self.inner)
        count = rows.shape[0]
        kept = (generator(self.seed, "halves", self.index).permutation(count) < (count + 1) // 2).astype(np.float64)
        return rows, kept if weights is None else kept * weights


@dataclass(frozen=True, eq=False)
class _HalfThere(_Half, Remote):
    """The same for rows held by workers."""

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
    """A source with a random half of the rows."""

    def __init__(self, source: Source, seed: int) -> None:
        self.shape, self.label, self.sparse, self.weights = source.shape, source.label, source.sparse, source.weights
        self._partitions = [_half(each, seed) for each in source.partitions]

    @property
    def partitions(self) -> list[Partition]:
        return [*self._partitions]

    def identity(self) -> dict[str, object]:
        return {}
