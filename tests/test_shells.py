"""Rows cut into inner and outer ones and into those near a row and others, and what only such cuts find."""

import numpy as np
import pytest
from scipy import sparse

from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.moves.children import seed_children
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.shells import LEAST_WEIGHT, column_depths, even_shares, shells, small_shares
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Gaussian
from dpdist.models.mixture import Model

SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_deeper_a_row_the_more_inner_its_part(parts, seed) -> None:
    rng = np.random.default_rng(seed)
    depths, weights = rng.integers(0, 9, size=(60, 4)).astype(float), rng.uniform(0.1, 3.0, 60)
    below = even_shares(parts - 1, 4, rng)
    owners = shells(depths, weights, below)
    alone = [shells(depths[:, :1], weights, below[:, [s]]) for s in range(4)]
    np.testing.assert_array_equal(shells(depths[:, :1], weights, below), np.hstack(alone))
    rounded = depths * (1 + 1e-14 * rng.standard_normal(depths.shape))
    np.testing.assert_array_equal(shells(rounded, weights, below), owners)
    assert owners.min() >= 0 and owners.max() < parts
    for depth, own in zip(depths.T, owners.T, strict=True):
        assert (np.diff(own[np.argsort(depth)]) <= 0).all()
        assert all(len(set(own[depth == value])) == 1 for value in depth)


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_divide_the_weight_anew_in_every_seeding(seed) -> None:
    rng = np.random.default_rng(seed)
    depths, weights = rng.standard_normal((4000, 5)), rng.uniform(0.5, 2.0, 4000)
    owners = shells(depths, weights, even_shares(2, 5, rng))
    shares = np.sort([weights @ (owners >= part) / weights.sum() for part in (1, 2)], axis=None)
    fifths = np.repeat(np.arange(5), 2) / 5  # the cuts of a seeding are ordered, so two of all ten are in each fifth
    assert (shares > fifths - 1e-3).all() and (shares < fifths + 0.2 + 1e-3).all()


def test_a_row_of_weight_w_is_cut_as_w_such_rows() -> None:
    rng = np.random.default_rng(0)
    depths, times = rng.standard_normal((50, 3)), rng.integers(1, 5, 50)
    below = np.hstack([even_shares(2, 2, rng), small_shares(times, 2, 1, rng)])
    once = shells(depths, times.astype(float), below)
    copied = shells(np.repeat(depths, times, axis=0), np.ones(times.sum()), below)
    np.testing.assert_array_equal(np.repeat(once, times, axis=0), copied)


@pytest.mark.parametrize("seed", SEEDS)
def test_small_shares_leave_from_few_rows_to_half_as_many_of_every_size(seed) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2.0, 4000)
    left = np.sort((1.0 - small_shares(weights, 2, 5, rng)) * weights.sum(), axis=None)
    ends = np.repeat(np.geomspace(LEAST_WEIGHT, weights.sum() / 2, 6), 2)
    assert (left >= ends[:-2] * (1 - 1e-9)).all() and (left <= ends[2:] * (1 + 1e-9)).all()
    np.testing.assert_array_equal(small_shares(np.ones(5), 1, 3, rng), 0.5)


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
@pytest.mark.parametrize(("draw", "others"), [(concentric, ["column_depths"]), (in_a_column, [])])
def test_shells_alone_tell_what_lies_around_what(draw, others, seed, monkeypatch) -> None:
    for way in ("many_nearest_seeds", "distances_from_drawn", *others):
        monkeypatch.setattr(f"dpdist.inference.moves.children.{way}", by_chance)
    rows, apart = draw(seed)
    found, truly = gains_of_seeding(rows, [apart], 32, seed)
    assert found > 0.99 * truly[0]


def small_within(seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows of a Gaussian with four small clusters as far from its middle as its own rows are, and where each is."""
    rng = np.random.default_rng(seed)
    rows, owners = rng.standard_normal((400, 12)), np.arange(400) // 15
    within = owners < 4
    rows[within] = rng.choice([-1.0, 1.0], (4, 12))[owners[within]] + 0.2 * rng.standard_normal((within.sum(), 12))
    return rows, [owners == c for c in range(4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_balls_alone_find_small_clusters_within_a_large_one(seed, monkeypatch) -> None:
    for way in ("many_nearest_seeds", "column_depths"):
        monkeypatch.setattr(f"dpdist.inference.moves.children.{way}", by_chance)
    rows, clusters = small_within(seed)
    found, truly = gains_of_seeding(rows, clusters, 96, seed)
    assert found > 0.6 * min(truly)
    monkeypatch.setattr("dpdist.inference.moves.children.distances_from_drawn", by_chance)
    without, _ = gains_of_seeding(rows, clusters, 96, seed)
    assert without < 0.6 * min(truly)


def gains_of_seeding(
    rows: np.ndarray, clusters: list[np.ndarray], seedings: int, seed: int
) -> tuple[float, list[float]]:
    """Evidence that two children add to one component, as they are seeded and with each cluster as one of them.

    They take one step only: on rows as clear as these, many lead to the same from anywhere.
    """
    family = Gaussian().with_defaults(summarise_source(ArraySource(rows), SerialBackend()).moments())
    features = family.features(rows)
    sample = SampledRows.of(Model(family, DirichletProcess(1.0)), rows, np.ones(len(rows)))
    children = seed_children(sample, 2, seedings, np.random.default_rng(seed))[0]
    all_rows = features.sum(axis=0)
    parts = [features[cluster].sum(axis=0) for cluster in clusters]
    found, *truly = (
        float(family.log_evidence(stats).sum() - family.log_evidence(all_rows[None]).sum())
        for stats in (children, *(np.array([part, all_rows - part]) for part in parts))
    )
    return found, truly
