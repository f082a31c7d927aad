"""Posteriors with a Wishart prior: compiled loops for few columns, LAPACK for many, the same numbers from both."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.core.errors import PrecisionError
from dpdist.models.families import wishart
from tests.cases import FAMILIES, FamilyCase, filled

SEEDS = st.integers(0, 2**32 - 1)
wishart_families = pytest.mark.parametrize("case", [c for c in FAMILIES if c.make.turns], ids=lambda case: case.name)


def posed(case: FamilyCase, seed: int, columns: int, components: int = 5):
    """A family with a prior of its own, and statistics (K, F) of random responsibilities."""
    rng = np.random.default_rng(seed)
    rows = case.rows(rng, 40, columns)
    family = filled(case, rows, **case.prior(rng, columns))
    return family, rng.dirichlet(np.ones(components), size=len(rows)).T @ family.features(rows)


def by_lapack(family, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Evidences and coefficients as they are computed for many columns; a new family, which remembers nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wishart, "FEW_COLUMNS", 0)
        again = type(family)(**family.hyperparameters())
        return again.log_evidence(stats), again.coefficients(stats)


@wishart_families
@given(seed=SEEDS, columns=st.integers(1, 20))
def test_few_columns_give_what_many_give(case, seed, columns) -> None:
    family, stats = posed(case, seed, columns)
    evidence, coefficients = by_lapack(family, stats)
    np.testing.assert_allclose(family.log_evidence(stats), evidence, rtol=1e-10)
    found = family.coefficients(stats)
    np.testing.assert_allclose(found, coefficients, rtol=1e-8, atol=1e-9 * np.abs(coefficients).max())


@wishart_families
@pytest.mark.parametrize("columns", [wishart.FEW_COLUMNS, wishart.FEW_COLUMNS + 1])
def test_both_ways_refuse_the_same_component(case, columns) -> None:
    family, stats = posed(case, 0, columns)
    for wrong in (-1e6, np.nan):
        lost = stats.copy()
        lost[3, :-1] = wrong
        for method in (family.log_evidence, family.coefficients):
            with pytest.raises(PrecisionError, match=re.escape("scatter matrix of component 3 (")):
                method(lost)


@wishart_families
def test_a_column_without_width_is_refused_by_both(case) -> None:
    """The second column is the first but for rounding, which the diagonal does not show, but the pivot does."""
    rng = np.random.default_rng(0)
    rows = np.repeat(100 * rng.normal(size=(60, 1)), 2, axis=1)
    rows[:, 1] += 1e-6 * rng.normal(size=60)
    family = filled(case, rows, scale=1e-12)
    stats = family.features(rows).sum(axis=0)[None]
    for method in (family.log_evidence, family.coefficients, lambda stats: by_lapack(family, stats)):
        with pytest.raises(PrecisionError, match="columns are nearly collinear"):
            method(stats)


@wishart_families
def test_sums_in_any_memory_are_taken_and_left_alone(case) -> None:
    family, stats = posed(case, 1, 3)
    evidence, coefficients = family.log_evidence(stats), family.coefficients(stats)
    turned, fixed = np.asfortranarray(stats), stats.copy()
    fixed.flags.writeable = False
    for same in (turned, fixed, np.repeat(stats, 2, axis=0)[::2]):
        assert np.array_equal(family.log_evidence(same), evidence)
        assert np.array_equal(family.coefficients(same), coefficients)
        assert np.array_equal(same, stats)


@wishart_families
def test_matrices_made_a_few_components_at_a_time_change_no_bits(case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishart, "FEW_COLUMNS", 0)
    family, stats = posed(case, 3, 3, components=7)
    evidence, gradient = family.log_evidence(stats), family.coefficients(stats)
    made: list[int] = []
    whole = wishart.cholesky
    monkeypatch.setattr(wishart, "cholesky", lambda scatter, *rest: made.append(len(scatter)) or whole(scatter, *rest))
    monkeypatch.setattr(wishart, "BLOCK_BYTES", 2 * 8 * 9)
    assert np.array_equal(family.log_evidence(stats), evidence)
    assert np.array_equal(family.coefficients(stats), gradient)
    assert made == [2, 2, 2, 1] * 2
    lost = stats.copy()
    lost[5, :-1] = -1e6
    with pytest.raises(PrecisionError, match="scatter matrix of component 5 "):
        family.log_evidence(lost)
    assert family.log_evidence(lost[:0]).shape == (0,)
