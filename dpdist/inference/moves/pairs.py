"""Change of the evidence when two components are merged: exact for few components, screened for many.

A is convex, as the logarithm of an integral of exp(eta . S), and its gradient is the family's coefficients. So at any
statistics T

    A(S_a + S_b) >= A(T) + <dA(T), S_a + S_b - T>,

and one matrix product gives the bounds of all T for all components. Each component has several T: twice its own
statistics, and mixtures of these with the statistics of as many average rows of the whole data, because a merged
component is broader than either part. For each component only the partners with the largest bounds are kept, ranked
both by the total gain and by the gain per row of the smaller component; only their evidences are computed exactly, in
parallel tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.threads import one_thread
from dpdist.execution.base import Backend
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary

#: Up to this many components, every pair is computed.
ALL = 64
#: With more components, this many partners of each are kept in either ranking.
NEAR = 16
#: Shares of the whole data in the statistics T at which tangents are taken. On SIFT, MNIST and patches the first alone
#: misses the best partner of a component three times as often as all of them do.
SHARES = (0.0, 0.05, 0.15)
#: Smallest count assumed for a component in losses per row.
_FEW = 1e-3
#: Evidences of pairs, and tangents, are computed in chunks of about this many numbers.
_CHUNK = 4_000_000


def pair_gains(model: Model, total: Summary) -> np.ndarray:
    """Change of A + A_alloc for every pair, (K, K), upper triangle; an upper bound of the gain, without entropy."""
    return with_shared(model, total, pair_losses(model, total.stats))


def with_shared(model: Model, total: Summary, losses: np.ndarray) -> np.ndarray:
    """Change of A + A_alloc for every pair, upper triangle, from the changes of A, `losses` (K, K)."""
    gains: np.ndarray = losses + model.allocation.merge_gains(total.counts)
    gains[np.tri(len(gains), dtype=bool)] = -np.inf
    return gains


def pair_losses(model: Model, stats: np.ndarray) -> np.ndarray:
    """Change of A for every pair of components with `stats` (K, F), (K, K), minus infinity on the diagonal."""
    first, second = np.triu_indices(len(stats), 1)
    lost = _Lost.of(model, stats)
    step, found = max(1, _CHUNK // stats.shape[1]), np.full((len(stats), len(stats)), -np.inf)
    for start in range(0, len(first), step):
        a, b = first[start : start + step], second[start : start + step]
        found[a, b] = found[b, a] = lost.exact(a, b)
    return found


def gains_with(model: Model, total: Summary, component: int) -> np.ndarray:
    """Change of A + A_alloc when `component` is merged with each other one, (K,); minus infinity for itself."""
    evidence = model.family.log_evidence(total.stats)
    joint = model.family.log_evidence(total.stats + total.stats[component])
    gains = joint - evidence - evidence[component] + model.allocation.merge_gains(total.counts)[component]
    gains[component] = -np.inf
    return np.asarray(gains)


def screened_losses(model: Model, total: Summary, backend: Backend) -> np.ndarray:
    """Like :func:`pair_losses`, but with more than :data:`ALL` components exact only for pairs that may matter.

    The other pairs hold a lower bound of their change.
    """
    if len(total.entropy) <= ALL:
        return pair_losses(model, total.stats)
    lost, shared = _Lost.of(model, total.stats), model.allocation.merge_gains(total.counts)
    counts = np.maximum(total.counts, _FEW)
    found = _bounds(lost, backend)
    gains = found + shared
    likely = _likely(gains) | _likely(gains / np.minimum.outer(counts, counts))
    a, b = np.nonzero(np.triu(likely, 1))
    found[a, b] = found[b, a] = _exact(lost, a, b, backend)
    return found


def losses_after(
    model: Model, before: np.ndarray, kept: Sequence[int], stats: np.ndarray, backend: Backend
) -> np.ndarray:
    """:func:`pair_losses` of new components, whose first ones are the components `kept` of a set with known losses."""
    found = np.full((len(stats), len(stats)), -np.inf)
    found[: len(kept), : len(kept)] = before[np.ix_(kept, kept)]
    a, b = np.triu_indices(len(stats), 1)
    fresh = b >= len(kept)
    a, b = a[fresh], b[fresh]
    if len(a):  # a single component has no pair
        found[a, b] = found[b, a] = _exact(_Lost.of(model, stats), a, b, backend)
    return found


@dataclass(frozen=True, eq=False)
class _Lost:
    """The change of A when pairs of components are merged.

    Parameters
    ----------
    model : has the family
    stats : (K, F) of the components
    evidence : (K,) A of each
    """

    model: Model
    stats: np.ndarray
    evidence: np.ndarray

    @staticmethod
    def of(model: Model, stats: np.ndarray) -> _Lost:
        """Compute the evidences of the components."""
        with one_thread():
            return _Lost(model, stats, model.family.log_evidence(stats))

    def bounds(self, chosen: slice) -> np.ndarray:
        """(J, K) lower bounds of the change when the `chosen` components merge with each other one, by tangents."""
        family, own, counts = self.model.family, self.stats[chosen], self.stats[chosen, -1:]
        alike = counts * (self.stats.sum(axis=0) / max(float(self.stats[:, -1].sum()), 1e-300))
        found = np.full((len(own), len(self.stats)), -np.inf)
        for share in SHARES:
            points = 2 * ((1 - share) * own + share * alike)
            gradient = family.coefficients(points).T
            fixed = family.log_evidence(points) + ((own - points) * gradient).sum(axis=1)
            np.maximum(found, fixed[:, None] + gradient @ self.stats.T, out=found)
        return np.asarray(found - self.evidence[chosen, None] - self.evidence)

    def exact(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """(P,) exact change for the pairs of components `a` and `b`."""
        joint = self.model.family.log_evidence(self.stats[a] + self.stats[b])
        return np.asarray(joint - self.evidence[a] - self.evidence[b])


def _bounds(lost: _Lost, backend: Backend) -> np.ndarray:
    """(K, K) symmetric, the higher of the two components' bounds; minus infinity on the diagonal."""
    components, columns = lost.stats.shape
    parts = _parts(components, _CHUNK // (len(SHARES) * columns))
    refs = backend.map(_bounds_task, [backend.share(lost)] * len(parts), parts)
    below = np.concatenate(backend.fetch(refs))
    found: np.ndarray = np.maximum(below, below.T)
    np.fill_diagonal(found, -np.inf)
    return found


def _exact(lost: _Lost, a: np.ndarray, b: np.ndarray, backend: Backend) -> np.ndarray:
    parts = _parts(len(a), _CHUNK // lost.stats.shape[1])
    pairs = [a[part] for part in parts], [b[part] for part in parts]
    refs = backend.map(_exact_task, [backend.share(lost)] * len(parts), *pairs)
    return np.concatenate(backend.fetch(refs))


def _parts(count: int, step: int) -> list[slice]:
    """A partition of `count` items that does not depend on the number of workers."""
    return [slice(start, start + max(1, step)) for start in range(0, count, max(1, step))]


def _bounds_task(lost: _Lost, chosen: slice) -> np.ndarray:
    with one_thread():
        return lost.bounds(chosen)


def _exact_task(lost: _Lost, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with one_thread():
        return lost.exact(a, b)


def _likely(gains: np.ndarray) -> np.ndarray:
    """(K, K) bool, symmetric: pairs in which one component is among the :data:`NEAR` best partners of the other."""
    near = np.argsort(-gains, axis=1, kind="stable")[:, :NEAR]
    likely = np.zeros(gains.shape, dtype=bool)
    np.put_along_axis(likely, near, True, axis=1)
    return likely | likely.T
