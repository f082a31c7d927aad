"""Candidates: the few components that the local step considers for a row, so that its cost does not grow with K.

On real data a row is shared by a handful of components, however many there are. In a *dense* lap all components are
considered for every row. It finds each row's owner, the component with the largest responsibility, and how much of the
rows of each owner every component holds. Component k becomes a candidate of the rows of owner j if it holds more than a
small share of them. In the following laps the logits, softmax, entropies and sums of a row use only the candidates of
the owner found in its last visit. So rows are processed by owner: those of one owner share a matrix product, and owners
with similar candidates are processed together. A responsibility of zero is valid, so the ELBO is still exact for these
responsibilities and a lower bound, and moves are judged by it as usual; components missed by the candidates lower it
until the next dense lap. A run does not converge with candidates: a dense lap must confirm convergence.

Sources: Forster & Lücke (2018), "Can clustering scale sublinearly with its clusters?"; Salwig, Kahlke, Hirschberger,
Forster & Lücke (2025), arXiv:2501.12299. They find the neighbours of a component by distance; here they are found by
responsibilities, which needs a third as many for the same bound on 8x8 patches and SIFT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dpdist.core.checks import COUNT, number
from dpdist.core.settings import check_settings, documented, setting

#: Fixed cost of processing a group of rows, in rows: coefficients and sums of every candidate.
BESIDE = 48


@documented
@dataclass(frozen=True)
class Candidates:
    """When the local step uses candidates only."""

    every: int = setting(
        10,
        COUNT,
        "One of this many laps is dense: it compares every row with every cluster. 1: all laps are dense. The lap in "
        "which a run converges is always dense.",
    )
    components: int = setting(
        200, COUNT, "Smallest number of clusters at which candidates are used; with fewer, all laps are dense."
    )
    share: float = setting(
        1e-5,
        number(least=0, below=1),
        "A cluster is a candidate for the rows of another one if it holds more than this share of them. Smaller shares "
        "bring the bound closer to that of dense laps.",
    )

    def __post_init__(self) -> None:
        check_settings(self, " of Candidates")

    def serve(self, components: int) -> bool:
        """Whether there are enough components to use candidates."""
        return self.every > 1 and components >= self.components

    def of(self, held: np.ndarray) -> np.ndarray:
        """The candidates (K, K) bool of each owner's rows, from what each component `held` (K, K) of these rows.

        Rows that an owner of no row may gain later come from components for whose rows it is a candidate; these are its
        candidates until then.
        """
        likely = (held > self.share * held.sum(axis=1, keepdims=True)) | np.eye(len(held), dtype=bool)
        idle = ~held.any(axis=1)
        likely[idle] |= likely.T[idle]
        return likely

    def next_lap_is_dense(self, lap: int, dense: bool, resting: bool, changing: bool) -> bool:
        """Whether the lap after `lap` is dense although there are candidates.

        It is dense every `every` laps, and when the run has settled. What a dense lap gains over candidates would be
        lost again by using them, so the laps that follow it are dense too, until moves change components.

        Parameters
        ----------
        lap, dense : the lap that ends, and whether it was dense
        resting : whether the ELBO has settled and no move has more to try
        changing : whether moves changed components or have more to try
        """
        due, in_turn = lap % self.every == 0, (lap - 1) % self.every == 0
        return due or resting or (dense and not in_turn and not changing)


class Heirs(NamedTuple):
    """Map from the components before a lap end to those that may hold their rows after it.

    Parameters
    ----------
    old : (E,) components before, in ascending order, each at least once
    new : (E,) components that may hold its rows
    """

    old: np.ndarray
    new: np.ndarray

    def owners(self, owners: np.ndarray) -> np.ndarray:
        """The owners of rows (n,) after the lap end: the first heir of each; all heirs are candidates of each other."""
        first = self.new[np.searchsorted(self.old, np.arange(self.old[-1] + 1))]
        return first.astype(owner_type(int(self.new.max()) + 1))[owners]

    def candidates(self, candidates: np.ndarray) -> np.ndarray:
        """Candidates after the lap end: the heirs of an owner's candidates become candidates of the owner's heirs."""
        shape = len(candidates), int(self.new.max()) + 1
        passed = sparse.csr_array((np.ones(len(self.old), np.int64), (self.old, self.new)), shape=shape)
        counts: np.ndarray = passed.T @ (passed.T @ candidates.astype(np.int64)).T
        return np.ascontiguousarray(counts.T > 0)


def owner_type(components: int) -> type[np.unsignedinteger]:
    """The integer type in which owners are stored."""
    return np.uint16 if components <= 2**16 else np.uint32


class RowGroup(NamedTuple):
    """Rows that are processed together.

    Parameters
    ----------
    rows : positions in the partition
    components : (U,) the candidates of any of these rows, ascending; None for all components
    """

    rows: np.ndarray | slice
    components: np.ndarray | None


def row_groups(owners: np.ndarray, candidates: np.ndarray, most: int) -> Iterator[RowGroup]:
    """All rows of a partition in groups; at least one group, which may be empty.

    Owners are ordered so that those with common candidates are adjacent. Adjacent owners are joined while one product
    of all their rows and candidates costs at most as much as two.

    Parameters
    ----------
    owners : (n,) of the rows
    candidates : (K, K) bool, of each owner's rows
    most : largest number of rows in a group
    """
    order = reverse_cuthill_mckee(sparse.csr_array(candidates | candidates.T), symmetric_mode=True)
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    rows = np.argsort(place[owners], kind="stable")
    sizes = np.bincount(owners, minlength=len(order))[order]
    begin, end, joined = 0, 0, np.zeros(len(order), bool)
    for owner, size in zip(order[sizes > 0], sizes[sizes > 0].tolist(), strict=True):
        own, both = candidates[owner], joined | candidates[owner]
        apart = _cost(end - begin, joined) + _cost(size, own)
        if end > begin and (end - begin + size > most or _cost(end - begin + size, both) > apart):
            yield from _cut(rows[begin:end], joined, most)
            begin, both = end, own
        end, joined = end + size, both
    yield from _cut(rows[begin:end], joined, most)


def _cost(rows: int, candidates: np.ndarray) -> int:
    return (rows + BESIDE) * int(np.count_nonzero(candidates)) if rows else 0


def _cut(rows: np.ndarray, candidates: np.ndarray, most: int) -> Iterator[RowGroup]:
    """Rows in groups of at most `most`."""
    components = np.flatnonzero(candidates)
    for start in range(0, max(1, len(rows)), most):
        yield RowGroup(rows[start : start + most], components)
