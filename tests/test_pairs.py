"""Pairs of many components: bounds are bounds, what may matter is computed, and small numbers are as they were."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.execution import SerialBackend
from dpdist.inference.moves import pairs as pair_module
from dpdist.inference.moves.pairs import gains_with, losses_after, pair_gains, pair_losses, screened_losses, with_shared
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Gaussian, Moments
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary
from tests.cases import ALLOCATIONS, FAMILIES
from tests.conftest import shared_path
from tests.test_proposals import unsorted_total

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda c: c.name)


class Counting(SerialBackend):
    """Counts the calls it was given."""

    calls = 0

    def map(self, function, *columns):
        self.calls += len(columns[0])
        return super().map(function, *columns)


def overlapping(components: int, dimension: int = 3, scale: float = 2.0) -> tuple[Model, Summary]:
    """Gaussian components of all sizes and shapes, many of which overlap, as sums over rows of their own."""
    rng = np.random.default_rng(components)
    sizes = rng.integers(5, 200, size=components)
    owners = np.repeat(np.arange(components), sizes)
    shapes = (np.eye(dimension) + 0.5 * rng.normal(size=(components, dimension, dimension))) * rng.uniform(
        0.3, 1.0, size=(components, 1, 1)
    )
    noise = rng.normal(size=(len(owners), dimension))
    rows = scale * rng.normal(size=(components, dimension))[owners] + np.einsum("nd,nde->ne", noise, shapes[owners])
    family = Gaussian().with_defaults(Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), False))
    features = family.features(rows)
    stats = np.stack([features[owners == k].sum(axis=0) for k in range(components)])
    return Model(family, DirichletProcess(2.0)), Summary(stats, np.zeros(components))


def screened_gains(model: Model, total: Summary, backend: SerialBackend) -> np.ndarray:
    """Like ``pair_gains``, from screened losses."""
    return with_shared(model, total, screened_losses(model, total, backend))


def both(gains: np.ndarray) -> np.ndarray:
    return np.maximum(gains, gains.T)


@every_family
@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)
def test_what_is_not_computed_is_never_promised_too_much(case, allocation, monkeypatch) -> None:
    family, total = unsorted_total(case, 12)
    model, upper = Model(family, allocation), np.triu_indices(12, 1)
    exact = pair_gains(model, total)
    monkeypatch.setattr(pair_module, "ALL", 0)
    for near in (1, 11):
        monkeypatch.setattr(pair_module, "NEAR", near)
        found = screened_gains(model, total, SerialBackend())
        assert (found[np.tril_indices(12)] == -np.inf).all(), "a pair is told once, and none with itself"
        assert (found[upper] <= exact[upper] + 1e-7 * (1 + np.abs(exact[upper]))).all()
        if near == 11:
            np.testing.assert_allclose(found[upper], exact[upper], rtol=1e-12, atol=1e-9)


@every_family
def test_the_gains_with_one_component_are_its_row_of_all(case) -> None:
    family, total = unsorted_total(case)
    model = Model(family, DirichletProcess(2.0))
    exact = both(pair_gains(model, total))
    for k in range(len(exact)):
        np.testing.assert_allclose(gains_with(model, total, k), exact[k], rtol=1e-12, atol=1e-9)


@every_family
def test_losses_of_a_set_that_changed_are_those_of_the_new_set(case) -> None:
    family, total = unsorted_total(case)
    model, backend = Model(family, DirichletProcess(2.0)), SerialBackend()
    size = len(total.entropy)
    kept = np.random.default_rng(0).permutation(size)[: size - 2]
    stats = np.concatenate([total.stats[kept], total.stats[:1] + total.stats[1:2], 0.5 * total.stats[2:3]])
    before = pair_losses(model, total.stats)
    found = losses_after(model, before, kept.tolist(), stats, backend)
    np.testing.assert_allclose(found, pair_losses(model, stats), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found, found.T)
    old = losses_after(model, np.full_like(before, 7.0), kept.tolist(), stats, backend)
    assert (old[: len(kept), : len(kept)] == 7.0).all(), "what is known is not computed again"
    alone = losses_after(model, before, [], total.stats.sum(axis=0, keepdims=True), backend)
    assert alone.shape == (1, 1) and alone[0, 0] == -np.inf


def test_few_components_are_compared_as_ever_and_here() -> None:
    model, total = overlapping(pair_module.ALL)
    backend = Counting()
    np.testing.assert_array_equal(screened_gains(model, total, backend), pair_gains(model, total))
    assert not backend.calls


@pytest.mark.parametrize("dimension", [2, 4])
def test_the_pairs_that_matter_are_among_those_computed(dimension) -> None:
    model, total = overlapping(150, dimension)
    exact, found = both(pair_gains(model, total)), both(screened_gains(model, total, SerialBackend()))
    np.fill_diagonal(exact, -np.inf)
    known = np.isclose(found, exact, rtol=1e-9) & np.isfinite(exact)
    assert known.sum() < 0.35 * exact.size, "few pairs are computed"
    assert known[np.arange(150), exact.argmax(axis=1)].mean() > 0.95, "with the best partner"
    counts = total.counts
    nearest = np.argsort(-(exact / np.minimum.outer(counts, counts)), axis=1)[:, :4]
    assert np.take_along_axis(known, nearest, axis=1).mean() > 0.9, "with those that lose least a row"
    assert known[exact >= np.sort(exact, axis=None)[-300]].mean() > 0.95, "those that gain most of all"


@pytest.mark.slow
def test_the_best_partners_of_real_components_are_found() -> None:
    images = np.load(shared_path("data", "mnist", "mnist_train60k.npz"))["images"][:20_000]
    rows = images.reshape(-1, 784) / 255.0
    rows = rows - rows.mean(axis=0)
    rows = rows @ np.linalg.eigh(rows.T @ rows)[1][:, -20:]
    rng = np.random.default_rng(0)
    centres = rows[rng.permutation(len(rows))[:200]]
    owners = ((rows**2).sum(1)[:, None] - 2 * rows @ centres.T + (centres**2).sum(1)).argmin(axis=1)
    family = Gaussian().with_defaults(Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), False))
    resp = np.eye(200)[owners]
    model, total = Model(family, DirichletProcess(5.0)), Summary(resp.T @ family.features(rows), np.zeros(200))
    exact, found = both(pair_gains(model, total)), both(screened_gains(model, total, SerialBackend()))
    known = np.isclose(found, exact, rtol=1e-9) & np.isfinite(exact)
    np.fill_diagonal(exact, -np.inf)
    assert known[np.arange(200), exact.argmax(axis=1)].mean() > 0.95
