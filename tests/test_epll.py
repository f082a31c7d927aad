"""Denoising by patches: what its steps are by definition."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

FOLDER = Path(__file__).resolve().parents[1] / "workflows" / "memoized"
VARIANCE = 30.0


@pytest.fixture(scope="module")
def epll() -> SimpleNamespace:
    sys.path.insert(0, str(FOLDER))
    try:
        return SimpleNamespace(**runpy.run_path(str(FOLDER / "epll.py")))
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("pictures", None)


@pytest.fixture(scope="module")
def prior(epll):
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((5, epll.COLUMNS, 70)) * rng.uniform(0.5, 9, (5, 1, 70))
    return epll.Prior(rng.dirichlet(np.ones(5)), roots @ roots.swapaxes(1, 2) / 70)


@pytest.fixture(scope="module")
def rows(epll) -> np.ndarray:
    return (6 * np.random.default_rng(1).standard_normal((200, epll.COLUMNS))).astype(np.float32)


def test_patches_lose_their_mean_and_nothing_else(epll) -> None:
    picture = np.random.default_rng(0).uniform(0, 255, (13, 17))
    patches = epll.windows(picture, 1)
    again = patches @ epll.BASIS @ epll.BASIS.T + patches.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(again, patches)
    np.testing.assert_allclose(epll.overlapped(again, picture.shape), picture)


def test_each_row_is_filtered_by_the_component_that_is_likeliest_under_noise(epll, prior, rows) -> None:
    components = epll.under_noise(prior, VARIANCE)
    owners, _ = epll.choose(components, rows)
    noisy = prior.covariances + VARIANCE * np.eye(epll.COLUMNS)
    densities = [multivariate_normal.logpdf(rows, None, each) for each in noisy]
    np.testing.assert_array_equal(owners, np.argmax(np.log(prior.weights)[:, None] + densities, axis=0))
    assert len(np.unique(owners)) > 1
    clean = [prior.covariances[k] @ np.linalg.solve(noisy[k], row) for k, row in zip(owners, rows, strict=True)]
    np.testing.assert_allclose(epll.filtered(components, rows, owners), clean, rtol=1e-3, atol=1e-3)


def test_all_components_as_candidates_choose_what_all_components_do(epll, prior, rows) -> None:
    components = epll.under_noise(prior, VARIANCE)
    owners, nearest = epll.choose(components, rows)
    np.testing.assert_array_equal(nearest[:, 0], np.arange(5))
    assert (np.sort(nearest, axis=1) == np.arange(5)).all()
    before = np.random.default_rng(2).integers(5, size=len(rows))
    np.testing.assert_array_equal(epll.choose_again(components, rows, before, nearest), owners)
