"""Growing a tree from a fitted model: the order of merges from sampled rows, then every level in one pass.

The best merge of a level is the one that lowers the ELBO least. Its change of A and A_alloc follows from the
components' statistics. Its change of the entropy,

    dH_ab = -sum_n c_n [r_na log(1 + r_nb / r_na) + r_nb log(1 + r_na / r_nb)],

needs responsibilities, of merged components too. These are kept for at most about :data:`DRAWN` rows, drawn uniformly;
on larger data dH is estimated from them. So on data of at most this size the merges are exactly best first, and on
larger data according to this estimate. The ELBO of every level is always computed from all rows: a second pass sums the
columns of every node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from dpdist.data.base import Source, rows_with_weight
from dpdist.execution.base import Backend
from dpdist.inference.hierarchy.shares import Measured, Shares, draw_shares, measure
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.moves.pairs import pair_losses
from dpdist.inference.prediction import Predictor
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary

#: Rows whose responsibilities determine the order of merges.
DRAWN = 50_000


def grow_tree(predictor: Predictor, source: Source, backend: Backend, seed: int) -> Tree:
    """The tree of a fitted model's components, in at most two passes over the rows.

    Parameters
    ----------
    predictor : the model
    source : the rows, usually those of the fit
    backend : where to run
    seed : key of the draws

    Raises
    ------
    InputError
        If the rows do not have the model's columns, or its likelihood has no conjugate prior.
    """
    predictor.check_source(source)
    model, total = predictor.mixture()
    chance = min(1.0, DRAWN / rows_with_weight(source))
    partitions = backend.share_each(source.partitions)
    shared = backend.share((predictor, chance, seed))
    drawn: Shares = backend.fetch([backend.total(draw_shares, partitions, [shared] * len(partitions))])[0]
    merges, nearest = order_of_merges(model, total.stats, drawn, chance)
    sums = _nodes_and_pairs(merges, nearest)
    given = backend.share((predictor, model.family, sums))
    found: Measured = backend.fetch([backend.total(measure, partitions, [given] * len(partitions))])[0]
    return _tree(model, predictor.ids, merges, nearest, found)


def order_of_merges(model: Model, stats: np.ndarray, drawn: Shares, chance: float) -> tuple[np.ndarray, np.ndarray]:
    """The merges (K - 1, 2) down to one cluster, best first, and the best partner (K,) of each component.

    Parameters
    ----------
    model : family and allocation; what the allocation learns is fixed at its mean
    stats : (K, F) of the components
    drawn, chance : sampled rows, and the probability with which each was drawn
    """
    plain = replace(model, allocation=model.allocation.plug_in(stats[:, -1]))
    level = _Level.of(plain, stats, drawn, chance)
    gains = level.gains()
    nearest = gains.argmax(axis=1) if len(stats) > 1 else np.zeros(1, dtype=np.intp)
    merges = []
    for node in range(len(stats), 2 * len(stats) - 1):
        best = int(level.gains().argmax())
        first, second = sorted(divmod(best, len(level.nodes)))
        merges.append(level.nodes[[first, second]])
        level = level.merged(first, second, node)
    return np.array(merges, dtype=np.intp).reshape(-1, 2), nearest


@dataclass(frozen=True, eq=False)
class _Level:
    """The clusters of a level and the responsibilities of rows.

    Parameters
    ----------
    model : family and allocation
    nodes : (k,) of the tree
    stats : (k, F)
    evidence : (k,) A of each cluster
    fixed : (k, k) change of A and H by each merge, symmetric, minus infinity on the diagonal
    resp : (m, k) CSR, responsibilities for the sampled rows
    weights : (m,) weights of these rows, divided by the probability of a draw
    """

    model: Model
    nodes: np.ndarray
    stats: np.ndarray
    evidence: np.ndarray
    fixed: np.ndarray
    resp: sparse.csr_array
    weights: np.ndarray

    @staticmethod
    def of(model: Model, stats: np.ndarray, drawn: Shares, chance: float) -> _Level:
        """The level of the components themselves."""
        evidence, columns = model.family.log_evidence(stats), sparse.csc_array(drawn.resp)
        fixed = pair_losses(model, stats)
        weights = drawn.weights / chance
        fixed += np.stack([_entropy_gains(drawn.resp, columns, k, weights) for k in range(len(stats))])
        return _Level(model, np.arange(len(stats)), stats, evidence, fixed, drawn.resp, weights)

    def gains(self) -> np.ndarray:
        """(k, k) change of the ELBO by each merge."""
        return np.asarray(self.fixed + self.model.allocation.merge_gains(self.stats[:, -1]))

    def merged(self, first: int, second: int, node: int) -> _Level:
        """The level after merging two clusters; `first` < `second`, and the result takes the place of `first`."""
        kept = np.delete(np.arange(len(self.nodes)), second)
        stats, nodes, evidence = self.stats[kept], self.nodes[kept], self.evidence[kept]
        stats[first] += self.stats[second]
        nodes[first], evidence[first] = node, self.model.family.log_evidence(stats[first : first + 1])[0]
        places = np.insert(np.arange(len(kept)), second, first)
        members = sparse.csr_array((np.ones(len(places)), places, np.arange(len(places) + 1)))
        resp, fixed = sparse.csr_array(self.resp @ members), self.fixed[np.ix_(kept, kept)]
        joint = self.model.family.log_evidence(stats + stats[first]) - evidence - evidence[first]
        gains = joint + _entropy_gains(resp, sparse.csc_array(resp), first, self.weights)
        gains[first] = -np.inf
        fixed[first], fixed[:, first] = gains, gains
        return replace(self, nodes=nodes, stats=stats, evidence=evidence, fixed=fixed, resp=resp)


def _entropy_gains(resp: sparse.csr_array, columns: sparse.csc_array, k: int, weights: np.ndarray) -> np.ndarray:
    """(K,) change of the entropy if cluster k is merged with each other one; `columns` is `resp` as CSC.

    The entry of k itself has no meaning.
    """
    mine = slice(columns.indptr[k], columns.indptr[k + 1])
    rows = columns.indices[mine]
    others, held = resp[rows], np.diff(resp.indptr)[rows]
    ours, theirs = np.repeat(columns.data[mine], held), others.data
    change = ours * np.log1p(theirs / ours) + theirs * np.log1p(ours / theirs)
    return -np.bincount(others.indices, np.repeat(weights[rows], held) * change, resp.shape[1])


def _nodes_and_pairs(merges: np.ndarray, nearest: np.ndarray) -> sparse.csr_array:
    """(K, 2 K - 1) indicators of the components of each merged node, then of each component with its nearest one."""
    size = len(nearest)
    members = [np.array([k]) for k in range(size)]
    for first, second in merges:
        members.append(np.concatenate([members[first], members[second]]))
    columns = members[size:] + [np.unique([k, near]) for k, near in enumerate(nearest)]
    ends = np.cumsum([0, *map(len, columns)])
    ones = np.ones(ends[-1])
    return sparse.csr_array(sparse.csc_array((ones, np.concatenate(columns), ends), shape=(size, len(columns))))


def _tree(model: Model, ids: np.ndarray, merges: np.ndarray, nearest: np.ndarray, found: Measured) -> Tree:
    """The tree with the exact ELBO of every level, from measurements on all rows."""
    summary, size = found.summary, len(ids)
    stats, entropy = list(summary.stats), np.concatenate([summary.entropy, found.entropy[: size - 1]])
    for first, second in merges:
        stats.append(stats[first] + stats[second])
    nodes = np.stack(stats)
    parts = model.family.log_evidence(nodes) + entropy
    counts, standing = nodes[:, -1], np.zeros(len(nodes), dtype=bool)
    standing[:size] = True
    elbo = [_bound(model, parts[standing], counts[standing]) + summary.base]
    for place, pair in enumerate(merges):
        standing[pair], standing[size + place] = False, True
        elbo.append(_bound(model, parts[standing], counts[standing]) + summary.base)
    evidence = _evidence(model, summary, parts[:size], nearest, found.entropy[size - 1 :])
    return Tree(ids, merges, np.array(elbo), counts, found.overlap, nearest, evidence)


def _bound(model: Model, parts: np.ndarray, counts: np.ndarray) -> float:
    """A + A_alloc + H of clusters, given A + H in `parts` (k,) and their `counts` (k,)."""
    allocation = model.allocation
    return float(parts.sum() + allocation.log_evidence(allocation.in_order(counts)))


def _evidence(
    model: Model, summary: Summary, parts: np.ndarray, nearest: np.ndarray, entropy: np.ndarray
) -> np.ndarray:
    """(K,) decrease of the ELBO if only this component is merged with its nearest one.

    Parameters
    ----------
    parts : (K,) A + H of the components
    entropy : (K,) of each component joined with its nearest one
    """
    if len(parts) < 2:
        return np.full(len(parts), np.inf)
    joint = model.family.log_evidence(summary.stats + summary.stats[nearest]) + entropy
    before = _bound(model, parts, summary.counts)
    after = []
    for k, near in enumerate(nearest):
        others = np.delete(np.arange(len(parts)), [k, near])
        counts = np.append(summary.counts[others], summary.counts[[k, near]].sum())
        after.append(_bound(model, np.append(parts[others], joint[k]), counts))
    return before - np.array(after)
