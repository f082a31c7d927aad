"""Whose rows are drawn in a lap where not enough of all components fit: parts of the components take turns.

Moves look at components together with those near them, so a part is made of components that lie near each other: they
are cut in two, over and over, along the direction in which their mean statistics differ most. What is looked at are
projections of these on a few random directions, others in every round of turns, so that no two neighbours are apart
for good.
"""

from __future__ import annotations

import numpy as np

#: Directions that mean statistics are projected on.
DIRECTIONS = 32
#: Rows that a component counts as, at least.
_FEW = 1e-3
#: Numbers of statistics that are looked at together.
_CHUNK = 2_000_000


def parts_of(stats: np.ndarray, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Which of so many parts, of as many components each but for one, every component is in, (K,) intp.

    Parameters
    ----------
    stats : (K, F), the count last
    parts : 1 at least
    rng : of the directions
    """
    found = np.zeros(len(stats), dtype=np.intp)
    _cut(_projected(stats, rng), np.arange(len(stats)), range(parts), found)
    return found


def _cut(points: np.ndarray, chosen: np.ndarray, names: range, found: np.ndarray) -> None:
    """Give the components `chosen` to parts of some `names`, in place."""
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
    """Mean statistics in units of their spread over components, (K, D), on random directions."""
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
