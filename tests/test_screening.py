"""Labels told by products in float32 are those of float64, wherever components lie and whatever rows are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from dpdist.inference.mixture import screening
from dpdist.inference.mixture.screening import FEWEST, MOST_IN_DOUBT, Screen
from dpdist.models.families import IsotropicGaussian, Poisson
from dpdist.models.mixture import Posterior, Precision
from tests.cases import FAMILIES, FamilyCase
from tests.test_prediction import Setting

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def of_few_components_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "FEWEST", 1)


def exactly(posterior: Posterior, rows: np.ndarray) -> np.ndarray:
    """What float64 tells."""
    return posterior.logits(posterior.family.features(rows)).argmax(axis=1)


def near_ties(rng: np.random.Generator, columns: int = 12, components: int = 9) -> Posterior:
    """Of spheres some of which are so near each other that float32 takes one for another."""
    size = 10.0 ** rng.uniform(-2, 2, size=(columns + 2, 1))
    apart = rng.normal(size=(columns + 2, components)) * 10.0 ** rng.uniform(-9, -5, size=components)
    coefficients = size * (rng.normal(size=(columns + 2, 3))[:, np.arange(components) % 3] + apart)
    return Posterior(IsotropicGaussian(variance=1.0), coefficients, Precision())


@every_family
@pytest.mark.parametrize("seed", range(3))
def test_every_family_has_the_labels_of_float64(case: FamilyCase, seed: int) -> None:
    setting = Setting(case, seed, k=7)
    posterior, rows = setting.predictor._posterior, setting.predictor.preparation.apply(setting.raw)
    for given in (rows, np.repeat(rows, 20, axis=0) * (1 + np.arange(400)[:, None] if case.real else 1)):
        np.testing.assert_array_equal(Screen(posterior).best(given), exactly(posterior, given))


def test_rows_that_float32_takes_for_others_are_told_by_float64() -> None:
    mistaken = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        posterior = near_ties(rng)
        rows = rng.normal(size=(800, 12)) * 10.0 ** rng.uniform(-3, 3, size=(800, 1))
        screen, expected = Screen(posterior), exactly(posterior, rows)
        coarse, doubted = screen._coarsely(rows)
        mistaken += int((coarse != expected).sum())
        np.testing.assert_array_equal(coarse[~doubted], expected[~doubted])
        np.testing.assert_array_equal(screen.best(rows), expected)
    assert mistaken > 100


def test_rows_of_clear_clusters_are_not_in_doubt_whatever_all_clusters_have_in_common() -> None:
    rng = np.random.default_rng(0)
    coefficients = rng.normal(size=(14, 9)) + 1e5 * rng.normal(size=(14, 1))
    posterior = Posterior(IsotropicGaussian(variance=1.0), coefficients, Precision())
    doubted = Screen(posterior)._coarsely(rng.normal(size=(5000, 12)))[1]
    assert doubted.mean() < 0.001


@pytest.mark.parametrize("size", [1e15, 1e25, 1e100, 1e200])
def test_rows_beyond_float32_are_told_by_float64_and_those_beyond_that_by_nothing(size: float) -> None:
    rng = np.random.default_rng(0)
    posterior = near_ties(rng)
    rows = rng.normal(size=(50, 12))
    rows[7] *= size
    with np.errstate(over="ignore", invalid="ignore"):
        expected = exactly(posterior, rows).astype(float)
        found = Screen(posterior).best(rows)
    expected[7] = np.nan if size > 1e150 else expected[7]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sure", [False, True])
def test_components_that_are_not_to_be_chosen_are_not(sure: bool) -> None:
    rng = np.random.default_rng(0)
    posterior = near_ties(rng)
    if sure:
        posterior = replace(posterior, coefficients=posterior.coefficients + rng.normal(size=(14, 9)))
    rows, without = rng.normal(size=(300, 12)), np.arange(9) % 3 != 1
    scores = posterior.logits(posterior.family.features(rows))
    scores[:, without] = -np.inf
    np.testing.assert_array_equal(Screen(posterior, without).best(rows), scores.argmax(axis=1))


def test_sparse_rows_have_the_labels_of_dense_ones() -> None:
    counts = np.random.default_rng(0).poisson(0.3, size=(200, 5)).astype(float)
    family = Poisson(shape=1.0, rate=1.0)
    posterior = Posterior(family, np.random.default_rng(1).normal(size=(6, 4)), Precision())
    np.testing.assert_array_equal(Screen(posterior).best(sparse.csr_array(counts)), Screen(posterior).best(counts))


@pytest.mark.parametrize("share", [0.5 * MOST_IN_DOUBT, 2 * MOST_IN_DOUBT])
def test_float32_is_given_up_once_it_leaves_many_rows_in_doubt(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, rows = near_ties(np.random.default_rng(0)), np.random.default_rng(1).normal(size=(400, 12))
    screen, tried = Screen(posterior), list[int]()

    def coarsely(self: Screen, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tried.append(len(rows))
        return exactly(posterior, rows).astype(float), np.arange(len(rows)) < share * len(rows)

    monkeypatch.setattr(Screen, "_coarsely", coarsely)
    for _ in range(3):
        np.testing.assert_array_equal(screen.best(rows), exactly(posterior, rows))
    assert tried == [400] * (3 if share < MOST_IN_DOUBT else 1)


@pytest.mark.parametrize("components", [FEWEST - 1, FEWEST])
def test_few_components_are_told_by_float64_alone(components: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    posterior, rows = near_ties(np.random.default_rng(0), components=components), np.zeros((5, 12))
    monkeypatch.setattr(Screen, "_coarsely", lambda self, rows: (np.full(len(rows), -7.0), np.zeros(len(rows), bool)))
    assert (Screen(posterior).best(rows) == -7.0).all() == (components == FEWEST)
