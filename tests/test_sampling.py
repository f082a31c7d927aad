"""Samples of several components that are looked at as one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dpdist.inference.moves.sampling import in_equal_shares

COUNTS = np.array([40.0, 10.0, 250.0])


def sampled(*shares: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Four rows of each component, which weigh these shares of what it holds."""
    rng = np.random.default_rng(0)
    own = [rng.uniform(1, 2, 4) if share else np.empty(0) for share in shares]
    weights = [w * (share * n / max(w.sum(), 1.0)) for w, share, n in zip(own, shares, COUNTS, strict=True)]
    return [(rng.normal(size=(len(w), 2)), w) for w in weights]


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ((0.2, 0.7, 1.0), 0.2),
        ((0.94, 1.0, 1.0), 0.94),
        ((0.96, 0.99, 1.0), 1.0),
        ((1.0, 1.01, 1.02), 1.0),
        ((0.0, 0.3, 0.5), 0.3),
        ((0.0, 0.97, 0.99), 1.0),
    ],
    ids=str,
)
def test_components_are_sampled_at_the_rate_that_is_told_and_almost_all_rows_stand_for_all(shares, told) -> None:
    parts = sampled(*shares)
    rows, weights, share = in_equal_shares(parts, COUNTS)
    assert share == pytest.approx(told)
    assert (share == 1.0) == (told == 1.0)
    np.testing.assert_array_equal(rows, np.concatenate([own for own, _ in parts]))
    held = np.cumsum([0, *(len(own) for own, _ in parts)])
    sums = [weights[begin:end].sum() for begin, end in pairwise(held)]
    assert sums == pytest.approx(np.where(np.array(shares) > 0, told * COUNTS, 0.0))


def test_nothing_of_any_component_is_no_sample() -> None:
    rows, weights, _ = in_equal_shares(sampled(0.0, 0.0, 0.0), COUNTS)
    assert len(rows) == len(weights) == 0
