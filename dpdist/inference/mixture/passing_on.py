"""Sampled rows of components that a move replaced are passed to their replacements, so that moves can use them at once.

Each row goes to the replacement that explains it best. Rows are reweighted so that each component of the group is
sampled at the same rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpdist.core.threads import one_thread
from dpdist.execution.base import Backend
from dpdist.inference.mixture.candidates import Heirs
from dpdist.inference.moves.sampling import in_equal_shares, rows_each
from dpdist.inference.sample import Sample
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary


def passed_on(
    model: Model,
    backend: Backend,
    sample: Sample,
    heirs: Heirs,
    removed: Sequence[tuple[int, ...]],
    before: np.ndarray,
    summary: Summary,
    limit: int,
) -> Mapping[int, tuple[Rows, np.ndarray]]:
    """Rows and weights of every new component.

    Parameters
    ----------
    model, backend : of the run
    sample : of the lap that ends
    heirs : map from the lap's components to those that may hold their rows
    removed : components that each accepted proposal removed
    before : (K,) counts of the lap's components
    summary : of the new components
    limit : largest number of rows passed on per proposal
    """
    if not removed:
        return {}
    groups = [heirs.new[heirs.old == group[0]] for group in removed]
    drawn = [_drawn(sample, group, before, limit) for group in removed]
    refs = backend.map(
        _by_owner,
        [backend.share(model)] * len(groups),
        [summary.stats[group] for group in groups],
        [rows for rows, _ in drawn],
    )
    found = {}
    for group, (rows, weights), owners in zip(groups, drawn, backend.fetch(refs), strict=True):
        for place, component in enumerate(group.tolist()):
            own = np.flatnonzero(owners == place)
            found[component] = rows[own], weights[own]
    return found


def _drawn(sample: Sample, group: tuple[int, ...], counts: np.ndarray, limit: int) -> tuple[Rows, np.ndarray]:
    """Rows of a group of components, sampled at the same rate from each."""
    held = counts[list(group)]
    parts = [sample.of(k, most) for k, most in zip(group, rows_each(held, limit), strict=True)]
    rows, weights, _ = in_equal_shares(parts, held)
    return rows, weights


def _by_owner(model: Model, stats: np.ndarray, rows: Rows) -> np.ndarray:
    """(n,) index of the component, among those with `stats` (M, F), that explains each row best."""
    if not rows.shape[0]:
        return np.zeros(0, dtype=np.intp)
    with one_thread():
        logits = model.family.features(rows) @ model.gradient(stats[None])[0].T
        return np.asarray(logits).argmax(axis=1)
