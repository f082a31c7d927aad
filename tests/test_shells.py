"""Rows cut into inner and outer ones, and what only such cuts find."""

import numpy as np
import pytest
from scipy import sparse

from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.moves.shells import column_depths, shells
from dpdist.inference.moves.split import Split, seed_children
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Gaussian
from dpdist.models.mixture import Model

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_deeper_a_row_the_more_inner_its_part(parts, seed) -> None:
    rng = np.random.default_rng(seed)
    depths, weights = rng.integers(0, 9, size=(60, 4)).astype(float), rng.uniform(0.1, 3.0, 60)
    owners = shells(depths, weights, parts, rng)
    assert owners.min() >= 0 and owners.max() < parts
    for depth, own in zip(depths.T, owners.T, strict=True):
        assert (np.diff(own[np.argsort(depth)]) <= 0).all()
        assert all(len(set(own[depth == value])) == 1 for value in depth)


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_divide_the_weight_anew_in_every_seeding(seed) -> None:
    rng = np.random.default_rng(seed)
    depths, weights = rng.standard_normal((4000, 5)), rng.uniform(0.5, 2.0, 4000)
    owners = shells(depths, weights, 3, rng)
    shares = np.sort([weights @ (owners >= part) / weights.sum() for part in (1, 2)], axis=None)
    fifths = np.repeat(np.arange(5), 2) / 5  # the cuts of a seeding are ordered, so two of all ten are in each fifth
    assert (shares > fifths - 1e-3).all() and (shares < fifths + 0.2 + 1e-3).all()


def test_a_row_of_weight_w_is_cut_as_w_such_rows() -> None:
    rng = np.random.default_rng(0)
    depths, times = rng.standard_normal((50, 3)), rng.integers(1, 5, 50)
    once = shells(depths, times.astype(float), 3, np.random.default_rng(1))
    copied = shells(np.repeat(depths, times, axis=0), np.ones(times.sum()), 3, np.random.default_rng(1))
    np.testing.assert_array_equal(np.repeat(once, times, axis=0), copied)


@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
def test_columns_are_drawn_by_fourth_moments_and_none_twice(thin) -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((500, 6))
    points[:, 2] = np.where(rng.random(500) < 0.01, 10.0, 0.0)
    points[:, 4] = 0.0
    weights = rng.uniform(0.5, 2.0, 500)
    given = sparse.csr_array(points) if thin else points
    first = [column_depths(given, weights, 1, np.random.default_rng(seed))[:, 0] for seed in range(400)]
    lonely = [set(depths.tolist()) == {0.0, -10.0} for depths in first]
    moments = weights @ points**4
    assert np.mean(lonely) == pytest.approx(moments[2] / moments.sum(), abs=0.08)
    every = column_depths(given, weights, 6, rng)
    found = sorted(tuple(np.sort(depths)) for depths in every.T)
    middles = [np.sort(points[:, d])[_middle(points[:, d], weights)] for d in range(6)]
    assert found == sorted(tuple(np.sort(-np.abs(points[:, d] - middles[d]))) for d in range(6))
    assert column_depths(given, weights, 9, rng).shape == (500, 9)


def _middle(column: np.ndarray, weights: np.ndarray) -> int:
    """Where along a sorted column half of the weight is reached."""
    held = np.cumsum(weights[np.argsort(column)])
    return int(np.argmax(held >= held[-1] / 2))


def concentric(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a narrow cluster in the middle of a wide one, and which is whose."""
    rng = np.random.default_rng(seed)
    wide = rng.random(2000) < 0.3
    return rng.standard_normal((2000, 8)) * np.where(wide, 6.0, 1.0)[:, None], wide


def in_a_column(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one Gaussian, but for a column that is zero in all but one row in thirty."""
    rng = np.random.default_rng(seed)
    rows, apart = rng.standard_normal((2000, 30)) * 10, rng.random(2000) < 1 / 30
    rows[:, 7] = np.where(apart, rng.integers(1, 5, 2000), 0.0)
    return rows, apart


def by_chance(*given) -> np.ndarray:
    """In place of a way to seed children, parts or depths of rows that say nothing."""
    rows, seedings, rng = given[0].shape[0], given[-2], given[-1]
    return rng.integers(2, size=(rows, seedings))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("draw", "other"), [(concentric, "column_depths"), (in_a_column, None)])
def test_shells_alone_tell_what_lies_around_what(draw, other, seed, monkeypatch) -> None:
    for way in {"many_nearest_seeds", other} - {None}:
        monkeypatch.setattr(f"dpdist.inference.moves.split.{way}", by_chance)
    rows, apart = draw(seed)
    family = Gaussian().with_defaults(summarise_source(ArraySource(rows), SerialBackend()).moments())
    model, rng = Model(family, DirichletProcess(1.0)), np.random.default_rng(seed)
    features, weights = family.features(rows), np.ones(len(rows))
    # One step only: on rows as clear as these, many lead to the same from anywhere.
    split = Split(seedings=32, seed_iterations=0)
    children = seed_children(model, features, family.points(rows), weights, 2000.0, split, rng)
    assert children is not None
    together, truly, found = (
        family.log_evidence(stats).sum()
        for stats in (
            features.sum(axis=0)[None],
            np.array([features[~apart].sum(axis=0), features[apart].sum(axis=0)]),
            children,
        )
    )
    assert found - together > 0.99 * (truly - together)
