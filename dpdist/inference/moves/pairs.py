"""What becomes of the evidence when two components become one: exactly for few of them, screened for many.

A is convex, as the logarithm of an integral of exp(eta . S), and its gradient are the family's coefficients. So at any
statistics T

    A(S_a + S_b) >= A(T) + <dA(T), S_a + S_b - T>,

and what all T say of all components takes one product. The T of a component is twice its own statistics, some of
them those of as many rows of all data: what is as broad as both should be is nearer to their sum. For each component
only the partners with the largest bounds are kept, by the whole gain and by the gain a row of the smaller one; only
their evidences are computed, in tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.core.threads import one_thread
from dpdist.execution.base import Backend
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary

#: Up to so many components every pair is computed.
ALL = 64
#: Of more components so many others are kept of each, by either measure.
NEAR = 16
#: Shares of all data in the statistics at which tangents are taken. On SIFT, MNIST and patches the first of them alone
#: loses the best partner of a component three times as often as all of them do.
SHARES = (0.0, 0.05, 0.15)
#: Rows that a component counts as, at least, where what is lost a row is compared.
_FEW = 1e-3
#: Pair evidences, and tangents, are computed in chunks of about this many numbers.
_CHUNK = 4_000_000


def pair_gains(model: Model, total: Summary) -> np.ndarray:
    """Change of A + A_alloc for every pair, (K, K), upper triangle; entropy apart, so an upper bound of the gain."""
    return with_shared(model, total, pair_losses(model, total.stats))


def with_shared(model: Model, total: Summary, losses: np.ndarray) -> np.ndarray:
    """Of changes of A for every pair, (K, K), those of A + A_alloc; upper triangle."""
    gains: np.ndarray = losses + model.allocation.merge_gains(total.counts)
    gains[np.tril_indices(len(gains))] = -np.inf
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
    """Change of A + A_alloc where one component is merged with each other, (K,); minus infinity with itself."""
    evidence = model.family.log_evidence(total.stats)
    joint = model.family.log_evidence(total.stats + total.stats[component])
    gains = joint - evidence - evidence[component] + model.allocation.merge_gains(total.counts)[component]
    gains[component] = -np.inf
    return np.asarray(gains)


def screened_gains(model: Model, total: Summary, backend: Backend) -> np.ndarray:
    """As :func:`pair_gains`; but of more than :data:`ALL` components only for pairs that may matter.

    The others stand there with a bound that they do not fall below.
    """
    return with_shared(model, total, screened_losses(model, total, backend))


def screened_losses(model: Model, total: Summary, backend: Backend) -> np.ndarray:
    """As :func:`pair_losses`, in the same way."""
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
    """As :func:`pair_losses` of components of which the first are those `kept` of a set whose losses are known."""
    found = np.full((len(stats), len(stats)), -np.inf)
    found[: len(kept), : len(kept)] = before[np.ix_(kept, kept)]
    a, b = np.triu_indices(len(stats), 1)
    fresh = b >= len(kept)
    a, b = a[fresh], b[fresh]
    if len(a):  # a component alone has no pair
        found[a, b] = found[b, a] = _exact(_Lost.of(model, stats), a, b, backend)
    return found


@dataclass(frozen=True, eq=False)
class _Lost:
    """What A changes by when pairs of components are merged.

    Parameters
    ----------
    model : whose family it is
    stats : (K, F) of the components
    evidence : (K,) A of each
    """

    model: Model
    stats: np.ndarray
    evidence: np.ndarray

    @staticmethod
    def of(model: Model, stats: np.ndarray) -> _Lost:
        """With the evidences."""
        with one_thread():
            return _Lost(model, stats, model.family.log_evidence(stats))

    def bounds(self, chosen: slice) -> np.ndarray:
        """(J, K), not above the change with each other component, by tangents of some of them."""
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
        """(P,) the change for some pairs."""
        joint = self.model.family.log_evidence(self.stats[a] + self.stats[b])
        return np.asarray(joint - self.evidence[a] - self.evidence[b])


def _bounds(lost: _Lost, backend: Backend) -> np.ndarray:
    """(K, K) symmetric, the higher of the bounds of either component; minus infinity on the diagonal."""
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
    """A partition of so many things that knows nothing of workers."""
    return [slice(start, start + max(1, step)) for start in range(0, count, max(1, step))]


def _bounds_task(lost: _Lost, chosen: slice) -> np.ndarray:
    with one_thread():
        return lost.bounds(chosen)


def _exact_task(lost: _Lost, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with one_thread():
        return lost.exact(a, b)


def _likely(gains: np.ndarray) -> np.ndarray:
    """(K, K) bool, symmetric, pairs of which one is among the :data:`NEAR` best of the other."""
    near = np.argsort(-gains, axis=1, kind="stable")[:, :NEAR]
    likely = np.zeros(gains.shape, dtype=bool)
    np.put_along_axis(likely, near, True, axis=1)
    return likely | likely.T
