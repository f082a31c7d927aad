"""Sampled rows of components that a move replaced: what is in their place takes them over, so that moves go on at once.

A row goes to the replacement that explains it best, and counts as much as what its component held says.
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
    model, backend : the run's
    sample : of the lap that ends
    heirs : where rows of the lap's components are
    removed : those that each accepted proposal replaced
    before : (K,) counts of the lap's components
    summary : of the new components
    limit : rows that a proposal's components pass on, at most
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
    """Rows of a group of components, which weigh the same share of what each holds."""
    held = counts[list(group)]
    parts = [sample.of(k, most) for k, most in zip(group, rows_each(held, limit), strict=True)]
    rows, weights, _ = in_equal_shares(parts, held)
    return rows, weights


def _by_owner(model: Model, stats: np.ndarray, rows: Rows) -> np.ndarray:
    """(n,) which of the components with `stats` (M, F) explains each row best."""
    if not rows.shape[0]:
        return np.zeros(0, dtype=np.intp)
    with one_thread():
        logits = model.family.features(rows) @ model.gradient(stats[None])[0].T
        return np.asarray(logits).argmax(axis=1)
