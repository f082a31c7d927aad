"""Slow and obvious: algorithm 1 of Lin (2013) with the log evidence as the only thing known of a family."""

from __future__ import annotations

import numpy as np

from dpdist.inference.sva import OpeningRule
from dpdist.models.families import Family


def responsibilities(family: Family, stats: np.ndarray, feature: np.ndarray, rule: OpeningRule) -> np.ndarray:
    """rho of one row under the components, with an entry for a new one only if it is opened."""
    scores = [
        np.log(s[-1]) + family.log_evidence((s + feature)[None])[0] - family.log_evidence(s[None])[0] for s in stats
    ]
    may_open = rule.max_components is None or len(stats) < rule.max_components
    if may_open:
        scores.append(np.log(rule.concentration) + family.log_evidence(feature[None])[0])
    rho = np.exp(np.array(scores) - max(scores))
    opens = may_open and rho[-1] > rule.threshold * (rho[:-1][rho[:-1] >= rule.floor].sum() + rho[-1])
    if may_open and not opens:
        rho = rho[:-1]
    keep = rho >= rule.floor
    keep[-1] |= opens
    rho = np.where(keep, rho, 0.0)
    return rho / rho.sum()


def sequential_pass(
    family: Family, rows: np.ndarray, weights: np.ndarray, rule: OpeningRule
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Statistics (K, F), all responsibilities (n, K), and the sums of min(rho_a, rho_b), (K, K)."""
    features = family.features(rows)
    dense = features if isinstance(features, np.ndarray) else features.toarray()
    stats, history = np.zeros((0, dense.shape[1])), []
    for feature, weight in zip(dense, weights, strict=True):
        rho = np.zeros(len(stats))
        if weight > 0:
            rho = responsibilities(family, stats, feature, rule)
            grown = np.zeros((len(rho), dense.shape[1]))
            grown[: len(stats)] = stats
            stats = grown + weight * rho[:, None] * feature
        history.append(rho)
    resp = np.zeros((len(dense), len(stats)))
    for n, rho in enumerate(history):
        resp[n, : len(rho)] = rho
    overlap = np.einsum("n,nab->ab", weights, np.minimum(resp[:, :, None], resp[:, None, :]))
    np.fill_diagonal(overlap, 0.0)
    return stats, resp, overlap
