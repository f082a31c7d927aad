"""A tree of clusters, from the K that were found down to one by merges, with the exact ELBO of every level.

Nodes are numbered as in SciPy: the components 0 to K - 1, and K + i what the i-th merge makes. The responsibility of a
node is the sum of its components'. So a level is a model of its own, whose ELBO

    A(S) + A_alloc(N) + sum_c H_c + base,     S_c = sum_{k in c} S_k,     H_c = -sum_n c_n r_nc log r_nc

is exact, with counts in the allocation's order. A level gives up what its ELBO lies below that of the best level. That
need not grow from level to level, for a merge may gain. So the height of a merge is the least that is given up for so
few clusters or fewer: zero down to the best level, and never falling. Cutting at a height gives the fewest clusters
that cost no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dpdist.core.checks import number, whole
from dpdist.core.errors import InputError
from dpdist.core.stored import Stored

_COMPONENT = ("component",)


@dataclass(frozen=True, eq=False)
class Tree:
    """Merges of the components of a model, and how far apart these are.

    Parameters
    ----------
    ids : (K,) stable ids of the components
    merges : (K - 1, 2) intp, the nodes that become one, best first
    elbo : (K,) exact, of K clusters, K - 1, ..., 1; nats
    counts : (2 K - 1,) expected rows of every node
    overlap : (K, K) sums over rows of the products of two responsibilities
    nearest : (K,) intp, the component with which each would best be merged; itself where there is one only
    evidence : (K,) nats by which that merge alone would lower the ELBO; infinite where there is one component only
    """

    ids: Annotated[np.ndarray, Stored(_COMPONENT, "stable identity of a component", name="id")]
    merges: Annotated[np.ndarray, Stored(("merge", "pair"), "nodes that become one; K + i is what merge i makes")]
    elbo: Annotated[np.ndarray, Stored(("level",), "exact ELBO of K clusters, K - 1, and so on to one", "nat")]
    counts: Annotated[np.ndarray, Stored(("node",), "expected rows of a node")]
    overlap: Annotated[
        np.ndarray, Stored(("component", "component_2"), "sums over rows of products of two responsibilities")
    ]
    nearest: Annotated[np.ndarray, Stored(_COMPONENT, "component with which each would best be merged")]
    evidence: Annotated[np.ndarray, Stored(_COMPONENT, "ELBO that this merge alone would give up", "nat")]

    def __len__(self) -> int:
        """K, the number of components."""
        return len(self.ids)

    @property
    def heights(self) -> np.ndarray:
        """(K - 1,) of the merges: ELBO given up, in nats, for so few clusters or fewer; never falling."""
        lost = self.elbo.max() - self.elbo[1:]
        return np.minimum.accumulate(lost[::-1])[::-1]

    @property
    def linkage(self) -> np.ndarray:
        """(K - 1, 4) as :mod:`scipy.cluster.hierarchy` has it: two nodes, the height, the components below."""
        leaves = np.ones(2 * len(self) - 1)
        for place, (first, second) in enumerate(self.merges):
            leaves[len(self) + place] = leaves[first] + leaves[second]
        return np.column_stack([np.sort(self.merges, axis=1), self.heights, leaves[len(self) :]])

    @property
    def separation(self) -> np.ndarray:
        """(K,) 1 less the largest share of a component's rows that one other would take in a second draw."""
        shares = self.overlap / np.maximum(self.overlap.sum(axis=1, keepdims=True), 1e-300)
        np.fill_diagonal(shares, 0.0)
        return 1.0 - shares.max(axis=1)

    def groups(self, clusters: int) -> np.ndarray:
        """(K,) the place of each component among so many clusters, which stand in the order of their first one."""
        nodes = np.arange(len(self))
        for place, pair in enumerate(self.merges[: len(self) - clusters]):
            nodes[np.isin(nodes, pair)] = len(self) + place
        return in_order_of_first(nodes)

    def level(self, n_clusters: int | None = None, elbo_loss: float | None = None) -> int:
        """The number of clusters of a cut.

        Parameters
        ----------
        n_clusters : that number itself
        elbo_loss : nats below the best level that the cut may be; the fewest clusters that cost no more

        Raises
        ------
        InputError
            If both are given, or one is not what it should be.
        """
        if n_clusters is not None and elbo_loss is not None:
            raise InputError("a cut takes n_clusters or elbo_loss; got both. Leave one out.")
        if elbo_loss is not None:
            lost = number(least=0).called("elbo_loss").take("elbo_loss", elbo_loss)
            return len(self) - int(np.searchsorted(self.heights, lost, side="right"))
        return len(self) if n_clusters is None else whole(1, len(self)).take("n_clusters", n_clusters)


def in_order_of_first(groups: np.ndarray) -> np.ndarray:
    """Groups (K,) by any names numbered in the order of their first members."""
    _, first, names = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[names]
