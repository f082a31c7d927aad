"""Sampled rows of components that a move replaced are passed to their replacements, so that moves can use them at once.

Each row goes to the replacement that explains it best. Rows are reweighted so that each component of the group is
sampled at the same rate.
"""

from __future__ import annotations

import numpy as np

from dpdist.core.threads import one_thread
from dpdist.execution.base import Backend
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import Heirs
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.change import Change
from dpdist.inference.moves.sampling import in_equal_shares, rows_each
from dpdist.inference.sample import Sample
from dpdist.inference.state import State
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary


def samples_after(
    problem: Problem,
    backend: Backend,
    state: State,
    total: BatchSummary,
    turned: Change,
    heirs: Heirs,
    summary: Summary,
) -> dict[int, tuple[Rows, np.ndarray]]:
    """Sampled rows and weights by new position; components made by a move receive those of the replaced ones.

    Parameters
    ----------
    problem, backend : of the run
    state, total : at the end of the lap, before its moves
    turned, heirs : map from the lap's components to the new ones, and to those that may hold their rows
    summary : of the new components
    """
    sample, limit = state.sample, problem.sampling.rows
    if sample is None:
        return {}
    found = {place: sample.of(int(old), limit) for place, old in enumerate(turned.origins) if old >= 0}
    removed = [state.proposals[m].removed(j) for m, j in turned.accepted]
    groups = [heirs.new[heirs.old == group[0]] for group in removed]
    drawn = [_drawn(sample, group, total.summary.counts, limit) for group in removed]
    shared = [backend.share(problem.model)] * len(groups) if groups else []
    refs = backend.map(_by_owner, shared, [summary.stats[group] for group in groups], [rows for rows, _ in drawn])
    for group, (rows, weights), owners in zip(groups, drawn, backend.fetch(refs), strict=True):
        for place, component in enumerate(group.tolist()):
            own = np.flatnonzero(owners == place)
            found[component] = rows[own], weights[own]
    return {place: found[place] for place in sorted(found) if len(found[place][1])}


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
