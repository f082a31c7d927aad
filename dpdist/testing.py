"""Conformance suites: the laws that a part must keep, for dpdist's own parts and for users'.

Each check raises AssertionError, naming the law, if the part breaks it.

>>> import numpy as np, dpdist
>>> from dpdist.testing import check_family
>>> check_family(dpdist.families.Gaussian(), np.random.default_rng(0).normal(size=(40, 2)))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from dpdist.allocations import Allocation
from dpdist.backends import Backend, SerialBackend
from dpdist.families.base import Family, Rows
from dpdist.model import Block, Model, Precision, share_out
from dpdist.moves.base import Trial
from dpdist.sources.arrays import ArraySource
from dpdist.sources.base import Source
from dpdist.summary import Summary
from dpdist.survey import survey_source


def check_family(family: Family, rows: Rows, seed: int = 0) -> None:
    """Hold a likelihood to the laws of families on some rows that it can model.

    Parameters
    ----------
    family : hyperparameters may be missing
    rows : (n, D), at least 4 rows
    seed : of the random responsibilities tried
    """
    moments = survey_source(ArraySource(rows), SerialBackend()).moments()
    filled = family.with_defaults(moments)
    filled.check_moments(moments)
    features = filled.features(rows)
    dense = features.toarray() if hasattr(features, "toarray") else features
    stats = np.random.default_rng(seed).dirichlet(np.ones(3), size=len(dense)).T @ dense
    _hold("the last statistic of every row is 1", dense[:, -1], 1.0)
    _hold("the evidence of no rows is 0", filled.log_evidence(np.zeros_like(stats)), 0.0)
    _check_gradient(lambda s: filled.log_evidence(s), filled.coefficients(stats).T, stats)
    _hold(
        "the predictive is the difference of evidences",
        filled.log_predictive(features, stats),
        Family.log_predictive(filled, features, stats),
    )
    drawn = filled.sample(stats, np.random.default_rng(seed))
    assert drawn.shape == (3, rows.shape[1]), "a draw has the width of the rows"
    for name, (dims, values) in filled.describe(stats).items():
        assert dims[0] == "component" and values.shape[0] == 3, f"{name} is described a component at a time"
        assert len(dims) == values.ndim, f"every dimension of {name} has a name"
    _check_origin(filled, rows)


def check_allocation(allocation: Allocation, seed: int = 0) -> None:
    """Hold a prior over assignments to the laws of allocations."""
    rng = np.random.default_rng(seed)
    counts = np.sort(rng.gamma(1.0, 30.0, size=4))[::-1]
    _hold("the evidence of no counts is 0", np.asarray(allocation.log_evidence(np.zeros(4))), 0.0)
    _check_gradient(allocation.log_evidence, allocation.log_weights(counts)[None], counts[None])
    weights, rest = allocation.weights(counts)
    _hold("weights and rest sum to 1", np.asarray(weights.sum() + rest), 1.0)
    if allocation.ordered:
        best = float(allocation.log_evidence(counts))
        for _ in range(10):
            other = float(allocation.log_evidence(rng.permutation(counts)))
            assert other <= best + 1e-9 * abs(best), "descending counts have the highest evidence"


def check_move(trial: Trial, model: Model, rows: Rows, responsibilities: np.ndarray, seed: int = 0) -> None:
    """Hold proposals to the laws of moves on one block of rows.

    Parameters
    ----------
    trial : its proposals, over the components of `responsibilities`
    model : a filled model
    rows : (n, D)
    responsibilities : (n, K), whose statistics make the posterior
    """
    features = model.family.features(rows)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, size=features.shape[0])
    start = Summary(np.ascontiguousarray((features.T @ responsibilities).T), np.zeros(responsibilities.shape[1]))
    posterior = model.posterior(start, Precision())
    blank = trial.blank(features.shape[1])
    seeds = Summary(
        np.resize(start.stats, blank.stats.shape) + 0.1 * start.stats.mean(axis=0), np.zeros(len(blank.entropy))
    )
    armed = trial.armed(model, posterior, seeds)
    resp, summary = share_out(posterior, features, weights)
    whole = armed.measure(Block(rows, features, weights, resp, posterior))
    cut = len(weights) // 2
    halves = [slice(0, cut), slice(cut, None)]
    parts = [armed.measure(Block(rows[h], features[h], weights[h], resp[h], posterior)) for h in halves]
    _hold("measurements add over rows", parts[0].stats + parts[1].stats, whole.stats)
    _hold("measured entropies add over rows", parts[0].entropy + parts[1].entropy, whole.entropy)
    for proposal in range(len(trial)):
        removed = list(trial.removed(proposal))
        replaced = trial.replacement(proposal, summary, whole)
        _hold("replacements hold the removed rows", replaced.stats.sum(axis=0), summary.stats[removed].sum(axis=0))
        heirs = trial.heirs(proposal, summary, whole)
        assert len(heirs) == len(replaced.entropy), "every replacement has an heir, or -1"
        kept = [heir for heir in heirs if heir >= 0]
        assert len(set(kept)) == len(kept) and set(kept) <= set(removed), "identities pass on once"


def check_backend(backend: Backend) -> None:
    """Hold a backend to the meaning of the serial one."""
    serial, values = SerialBackend(), [10.0**k for k in range(-6, 7)] * 2
    results = []
    for each in (serial, backend):
        shared = each.share(np.arange(4.0))
        refs = each.map(_scaled, [shared] * len(values), values)
        labelled = each.share(values, label="the values")
        totals = [each.total(_scaled, [shared] * len(values), values) for _ in range(3)]
        results.append(each.fetch([each.sum(refs), *totals, *refs, each.map(np.asarray, [labelled])[0]]))
    for mine, meant in zip(results[1], results[0], strict=True):
        assert mine.tobytes() == meant.tobytes(), "a backend gives the serial backend's bits"


def check_source(source: Source) -> None:
    """Hold a source to covering its rows once, in order, the same each time."""
    partitions = source.partitions
    assert [p.index for p in partitions] == list(range(len(partitions))), "partitions are numbered in order"
    edges = [p.start for p in partitions] + [partitions[-1].stop]
    assert edges[0] == 0 and edges[-1] == source.shape[0], "partitions cover the rows"
    assert all(p.stop == q.start for p, q in itertools.pairwise(partitions)), "without gaps"
    for partition in partitions:
        rows, weights = partition.load()
        assert rows.shape == (partition.rows, source.shape[1]), "a partition loads the rows it names"
        assert weights is None or weights.shape == (partition.rows,), "weights are one a row"
    assert source.fingerprint() == source.fingerprint(), "a fingerprint does not change by itself"


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return factor * array


def _hold(law: str, found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=law)


def _check_gradient(function: Callable[[np.ndarray], np.ndarray], gradient: np.ndarray, at: np.ndarray) -> None:
    """Central differences along each column, against what `gradient` (K, F) promises."""
    for column in range(at.shape[1]):
        step = np.zeros_like(at)
        step[:, column] = 1e-5 * max(1.0, float(np.abs(at[:, column]).max()))
        change = (function(at + step) - function(at - step)) / (2 * step[:, column])
        scale = 1e-5 * (1.0 + np.abs(gradient).max())
        np.testing.assert_allclose(
            change, gradient[:, column], rtol=1e-4, atol=scale, err_msg="coefficients are the gradient"
        )


def _check_origin(family: Family, rows: Rows) -> None:
    if not family.has_location:
        return
    origin = np.asarray(rows, dtype=np.float64).mean(axis=0)
    here = family.log_evidence(family.features(rows).sum(axis=0)[None])
    moved = family.about(origin)
    there = moved.log_evidence(moved.features(rows - origin).sum(axis=0)[None])
    _hold("moving rows and prior together changes nothing", there, here)
