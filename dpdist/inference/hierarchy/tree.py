"""A tree of clusters, made by merging the K fitted ones down to one, with the exact ELBO of every level.

Nodes are numbered as in SciPy: the components are 0 to K - 1, and merge i makes node K + i. The responsibility of a
node is the sum of its components' responsibilities. So every level is a model of its own, whose ELBO

    A(S) + A_alloc(N) + sum_c H_c + base,     S_c = sum_{k in c} S_k,     H_c = -sum_n c_n r_nc log r_nc

is exact, with counts in the allocation's order. The loss of a level is its ELBO's distance below that of the best
level. It need not increase from level to level, because a merge may gain. So the height of a merge is defined as the
smallest loss with this many clusters or fewer: it is zero down to the best level, and never decreases. Cutting at a
height gives the fewest clusters whose loss is at most this height.
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
    """Merges of the components of a model, and measures of their separation.

    Parameters
    ----------
    ids : (K,) stable ids of the components
    merges : (K - 1, 2) intp, the nodes that are merged, best first
    elbo : (K,) exact, of K clusters, K - 1, ..., 1; nats
    counts : (2 K - 1,) expected rows of every node
    overlap : (K, K) sums over rows of the products of two responsibilities
    nearest : (K,) intp, the best partner for a merge with each component; itself if it is the only one
    evidence : (K,) nats by which this merge alone would lower the ELBO; infinite for a single component
    """

    ids: Annotated[np.ndarray, Stored(_COMPONENT, "stable id of a component", name="id")]
    merges: Annotated[np.ndarray, Stored(("merge", "pair"), "nodes that are merged; merge i makes node K + i")]
    elbo: Annotated[np.ndarray, Stored(("level",), "exact ELBO of K clusters, K - 1, and so on to one", "nat")]
    counts: Annotated[np.ndarray, Stored(("node",), "expected rows of a node")]
    overlap: Annotated[
        np.ndarray, Stored(("component", "component_2"), "sums over rows of products of two responsibilities")
    ]
    nearest: Annotated[np.ndarray, Stored(_COMPONENT, "best partner for a merge with each component")]
    evidence: Annotated[np.ndarray, Stored(_COMPONENT, "ELBO lost by this merge alone", "nat")]

    def __len__(self) -> int:
        """K, the number of components."""
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Tree(components={len(self)}, elbo={self.elbo[0]:.6g}, elbo_as_one={self.elbo[-1]:.6g})"

    @property
    def heights(self) -> np.ndarray:
        """(K - 1,) height of each merge: the smallest ELBO loss in nats with at most as many clusters."""
        lost = self.elbo.max() - self.elbo[1:]
        return np.minimum.accumulate(lost[::-1])[::-1]

    @property
    def linkage(self) -> np.ndarray:
        """(K - 1, 4) in the format of :mod:`scipy.cluster.hierarchy`: two nodes, height, number of components."""
        leaves = np.ones(2 * len(self) - 1)
        for place, (first, second) in enumerate(self.merges):
            leaves[len(self) + place] = leaves[first] + leaves[second]
        return np.column_stack([np.sort(self.merges, axis=1), self.heights, leaves[len(self) :]])

    @property
    def separation(self) -> np.ndarray:
        """(K,) 1 minus the largest share of a component's rows that one other would get in a second draw of labels."""
        shares = self.overlap / np.maximum(self.overlap.sum(axis=1, keepdims=True), 1e-300)
        np.fill_diagonal(shares, 0.0)
        return 1.0 - shares.max(axis=1)

    def groups(self, clusters: int) -> np.ndarray:
        """(K,) cluster index of each component at a level of `clusters` clusters, numbered by their first component."""
        nodes = np.arange(len(self))
        for place, pair in enumerate(self.merges[: len(self) - clusters]):
            nodes[np.isin(nodes, pair)] = len(self) + place
        return in_order_of_first(nodes)

    def level(self, n_clusters: int | None = None, elbo_loss: float | None = None) -> int:
        """The number of clusters of a cut.

        Parameters
        ----------
        n_clusters : this number itself
        elbo_loss : nats by which the cut may be below the best level; the fewest clusters within this loss

        Raises
        ------
        InputError
            If both are given, or one is invalid.
        """
        if n_clusters is not None and elbo_loss is not None:
            raise InputError("a cut takes n_clusters or elbo_loss; got both. Leave one out.")
        if elbo_loss is not None:
            lost = number(least=0).called("elbo_loss").take("elbo_loss", elbo_loss)
            return len(self) - int(np.searchsorted(self.heights, lost, side="right"))
        return len(self) if n_clusters is None else whole(1, len(self)).take("n_clusters", n_clusters)


def in_order_of_first(groups: np.ndarray) -> np.ndarray:
    """Group labels (K,) renumbered in the order of their first members."""
    _, first, names = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[names]
