"""Which components are sampled in a lap if not enough rows of all fit: groups of components take turns.

Moves look at components together with their neighbours, so a group consists of nearby components. Components are
bisected recursively along the direction in which their mean statistics differ most. The mean statistics are projected
onto a few random directions, redrawn in each round of turns, so that no two neighbours stay separated.
"""

from __future__ import annotations

import numpy as np

#: Number of random directions onto which mean statistics are projected.
DIRECTIONS = 32
#: Smallest count assumed for a component.
_FEW = 1e-3
#: Statistics are processed in chunks of about this many numbers.
_CHUNK = 2_000_000


def parts_of(stats: np.ndarray, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Group index of every component, (K,) intp, in `parts` groups whose sizes differ little.

    Parameters
    ----------
    stats : (K, F), the count last
    parts : at least 1
    rng : draws the directions
    """
    found = np.zeros(len(stats), dtype=np.intp)
    _cut(_projected(stats, rng), np.arange(len(stats)), range(parts), found)
    return found


def _cut(points: np.ndarray, chosen: np.ndarray, names: range, found: np.ndarray) -> None:
    """Assign the components `chosen` to the groups `names`, in place."""
    if len(names) == 1 or len(chosen) < 2:
        found[chosen] = names[0]
        return
    about = points[chosen] - points[chosen].mean(axis=0)
    along = about @ np.linalg.svd(about, full_matrices=False)[2][0]
    order, half = np.argsort(along, kind="stable"), len(names) // 2
    place = len(chosen) * half // len(names)
    _cut(points, chosen[order[:place]], names[:half], found)
    _cut(points, chosen[order[place:]], names[half:], found)


def _projected(stats: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mean statistics in units of their spread over components, projected onto random directions, (K, D)."""
    components, columns = stats.shape
    step = max(1, _CHUNK // columns)
    chunks = [slice(start, start + step) for start in range(0, components, step)]
    first, second = np.zeros(columns), np.zeros(columns)
    for chunk in chunks:
        means = _means(stats[chunk])
        first, second = first + means.sum(axis=0), second + (means**2).sum(axis=0)
    spread = np.sqrt(np.maximum(second / components - (first / components) ** 2, 0.0))
    directions = rng.standard_normal((columns, DIRECTIONS))
    directions *= np.divide(1.0, spread, out=np.zeros(columns), where=spread > 1e-12 * np.sqrt(second))[:, None]
    return np.concatenate([_means(stats[chunk]) @ directions for chunk in chunks])


def _means(stats: np.ndarray) -> np.ndarray:
    return np.asarray(stats / np.maximum(stats[:, -1:], _FEW))
