"""Arrangements that are refined side by side: which of them go on, and which are given up."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.inference.moves.children import paying, seed_children
from dpdist.inference.moves.contest import AHEAD, contest
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.sampling import share_of
from tests.cases import ALLOCATIONS, FAMILIES
from tests.test_agglomerate import of_case
from tests.test_regroup import model_of

STAGES = ((4, 2), (3, 1), (2, 3))


def candidates_of(sample: SampledRows, number: int) -> list[np.ndarray]:
    """Arrangements of two to four components of random responsibilities."""
    rng = np.random.default_rng(1)
    shares = [rng.dirichlet(np.full(2 + j % 3, 0.3), size=len(sample.weights)) for j in range(number)]
    return [(each * sample.weights[:, None]).T @ sample.features for each in shares]


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@pytest.mark.parametrize("some_dropped", [False, True])
def test_those_go_on_that_would_be_the_highest_soon(case, allocation, some_dropped, monkeypatch) -> None:
    """One candidate after the other, with all of its steps, and who is among the best looked up afterwards."""
    sample = of_case(case, allocation, 0.3)
    candidates = candidates_of(sample, 7)
    bounds, ends = np.zeros((7, 6)), []
    for stats, own in zip(candidates, bounds, strict=True):
        now = stats
        for step in range(6):
            (after,) = sample.stepped([now])
            own[step], now = after.elbo, after.stats
        ends.append(now)
    rises = np.diff(bounds, axis=1, prepend=-np.inf)
    going, step = list(range(7))[:4], 0  # none was refined: the first ones
    least = float(bounds[going].max()) if some_dropped else -np.inf
    still = float(np.median(rises[going, 1]))  # in the first stage, after which two are left
    monkeypatch.setattr("dpdist.inference.moves.contest.STEP_GAIN", still / sample.rows)
    for kept, steps in STAGES:
        if step:
            going = sorted(going, key=lambda j: -(bounds[j, step - 1] + AHEAD * rises[j, step - 1]))[:kept]
        for _ in range(steps):
            going = [j for j in going if bounds[j, step] >= least or rises[j, step] >= still]
            step += 1
        assert not some_dropped or len(going) < 3
    going.sort(key=lambda j: -(bounds[j, -1] + AHEAD * rises[j, -1]))
    found = contest(sample, candidates, STAGES, least, among_credible=False)
    assert [each.elbo for each in found] == pytest.approx([bounds[j, -1] for j in going], rel=1e-9)
    for each, j in zip(found, going, strict=True):
        np.testing.assert_allclose(each.stats, ends[j], rtol=1e-6, atol=1e-9)


def nearly_constant() -> np.ndarray:
    """Rows of which two columns of many are zero but in one of six, where the two vary; and a few rows far away."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((900, 24)) * np.linspace(0.5, 4.0, 24)
    rare = np.arange(900) % 6 == 0
    rows[:, :2] = np.where(rare[:, None], rng.uniform(0.0, 2.0, (900, 2)), 0.0)
    rows[1:900:150] *= 6.0
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_a_few_rows_that_lose_little_do_not_hide_children_that_gain_later(seed) -> None:
    rows = nearly_constant()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    found = paying(sample, seed_children(sample, 2, 8, np.random.default_rng(seed)), ((5, 2), (1, 4)))
    one = sample.stepped([sample.features.sum(axis=0, keepdims=True)])[0].elbo
    assert found and sample.settled(found[0].stats).elbo > one


def test_a_sample_of_nearly_all_rows_is_all_of_them() -> None:
    weights = np.full(100, 0.5)
    assert share_of(weights, 50.0) == share_of(weights, 51.0) == share_of(weights, 49.0) == 1.0
    assert share_of(weights, 200.0) == 0.25
