"""Many components seeded in a sample and merged: what they come to, and which of them a sample can speak for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dpdist
from dpdist.inference.moves import agglomerate, arrange
from dpdist.inference.moves.agglomerate import agglomerated
from dpdist.inference.moves.arrange import best_of, rearranged
from dpdist.inference.moves.regroup import Regroup
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.models.families import Moments
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary
from tests.cases import ALLOCATIONS, FAMILIES, filled
from tests.test_moves import entropy
from tests.test_regroup import drawn, model_of, sums

SHARES = pytest.mark.parametrize("share", [1.0, 0.3])


def of_case(case, allocation, share: float, rows: int = 60) -> SampledRows:
    """Weighted rows of a family, as a sample."""
    rng = np.random.default_rng(2)
    x = case.rows(rng, rows, 3)
    return SampledRows.of(Model(filled(case, x), allocation), x, rng.uniform(0.5, 2.0, rows), share)


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@SHARES
def test_merges_gain_what_the_bound_on_all_rows_says(case, allocation, share) -> None:
    """Responsibilities as they are: two components made one have the sum of theirs."""
    sample = of_case(case, allocation, share)
    (now,) = sample.stepped([np.random.default_rng(0).dirichlet(np.ones(5), size=60).T @ sample.features])
    taken = dict[tuple[int, int], float]()

    def bound(resp: np.ndarray) -> float:
        stats = np.asarray(sample.features.T @ resp).T
        every = Summary(stats, entropy(resp / sample.weights[:, None], sample.weights) / share)
        family, allocation = sample.model.family, sample.model.allocation
        gap = family.coefficients(stats) - family.coefficients(stats / share)
        counts = allocation.in_order(stats[:, -1] / share)
        elbo = family.log_evidence(stats / share).sum() + (gap.T * stats).sum() / share + every.entropy.sum()
        return float(elbo + allocation.log_evidence(counts))

    for i in range(5):
        for j in range(i + 1, 5):
            resp = np.delete(now.resp, [i, j], axis=1)
            taken[i, j] = bound(np.column_stack([resp, now.resp[:, i] + now.resp[:, j]])) - bound(now.resp)
    first = max(taken, key=lambda pair: taken[pair])
    pairs = agglomerate._pairs(sample, now)
    assert pairs[:1] == ([first] if taken[first] > 0 else [])
    assert all(taken[pair] > 0 for pair in pairs) and len({k for pair in pairs for k in pair}) == 2 * len(pairs)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@SHARES
def test_what_seeds_come_to_holds_all_rows(case, share) -> None:
    sample = of_case(case, ALLOCATIONS[0], share)
    found = agglomerated(sample, 4, np.random.default_rng(0))
    assert found
    for stats in found:
        np.testing.assert_allclose(stats.sum(axis=0), np.asarray(sample.features.T @ sample.weights), rtol=1e-9)
        assert 1 <= len(stats) <= 4


def test_clusters_are_found_from_more_seeds_than_there_are() -> None:
    rows, owners = drawn()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    truth = sample.settled(sums(sample.model, rows, owners))
    for stats in agglomerated(sample, 14, np.random.default_rng(0)):
        found = sample.settled(stats)
        assert len(stats) == 7 and found.elbo == pytest.approx(truth.elbo, abs=1.0)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_what_no_split_finds_seeds_may_in_one_or_two(monkeypatch, members) -> None:
    rows, owners = drawn()
    monkeypatch.setattr(arrange, "_changes", lambda *given: [])
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    start = sums(sample.model, rows, owners * members // (owners.max() + 1))
    found = rearranged(sample, sample.settled(start), Regroup().seedings, np.random.default_rng(0))
    assert (found is not None and len(found.stats) > 4) == (members < 3)
    few = rearranged(sample, sample.settled(start), Regroup().seedings, np.random.default_rng(0), most=3)
    assert few is None or len(few.stats) <= 3


def test_rows_too_alike_have_no_seeds() -> None:
    rows = np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], 30, axis=0)
    sample = SampledRows.of(model_of(rows), rows, np.ones(90))
    assert len(agglomerated(sample, 3, np.random.default_rng(0))) == 2 * agglomerate.DRAWS + 1
    # by the values of a column there are as many as there are of these
    assert len(agglomerated(sample, 4, np.random.default_rng(0))) == agglomerate.DRAWS
    sample = SampledRows.of(sample.model, rows[:30], np.ones(30))
    assert agglomerated(sample, 4, np.random.default_rng(0)) == []


def test_clusters_of_one_value_of_a_column_are_found_among_many() -> None:
    """Seven values, of which each has its own place in the other columns."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(7), 60)
    rows = np.column_stack(
        [owners.astype(float), rng.normal(size=(420, 2)) + owners[:, None] % 3, rng.normal(size=420)]
    )
    sample = SampledRows.of(model_of(rows), rows, np.ones(420))
    truth = sample.settled(sums(sample.model, rows, owners))
    ends = [sample.settled(stats) for stats in agglomerated(sample, 8, np.random.default_rng(0))]
    assert max(end.elbo for end in ends[-agglomerate.DRAWS :]) >= truth.elbo - 1.0 > max(end.elbo for end in ends[:5])


def in_many_columns(seed: int, apart: float) -> tuple[SampledRows, Arrangement, np.ndarray]:
    """600 rows of heavy tails seen of 3,000, of which 8 are drawn about a centre of their own, or about none."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_t(4, size=(600, 30))
    own = np.argsort(-(rows**2).sum(axis=1))[:8]
    if apart:
        rows[own] = apart + 0.1 * rng.normal(size=(8, 30))
    moments = Moments(600, rows.mean(0), rows.var(0), rows.min(0), rows.max(0), True)
    model = Model(dpdist.families.Gaussian().with_defaults(moments), ALLOCATIONS[0])
    sample = SampledRows.of(model, rows, np.ones(600), 0.2)
    owned = np.isin(np.arange(600), own).astype(int)
    return sample, sample.stepped([sums(model, rows, owned)])[0], own


def test_what_holds_the_very_rows_that_were_seen_is_not_believed_and_a_cluster_of_as_few_is() -> None:
    for seed in range(5):
        for apart, believed in ((0.0, 1), (6.0, 2)):
            sample, now, _ = in_many_columns(seed, apart)
            assert 7.0 < now.stats[1, -1] < 9.0
            assert len(sample.credible(now)) == believed
            # Where all rows were seen the bound is what it is.
            every = replace(sample, share=1.0)
            assert len(every.credible(now._replace(broader=every.broader(now.stats)))) == 2


def test_a_search_leaves_out_what_it_does_not_believe() -> None:
    sample, outer, _ = in_many_columns(0, 0.0)
    (one,) = sample.stepped([outer.stats.sum(axis=0, keepdims=True)])
    assert outer.elbo > one.elbo
    assert best_of(sample, [outer.stats], one.elbo + 1) is None
    assert best_of(replace(sample, share=1.0), [outer.stats], -np.inf) is not None


def test_of_components_that_a_sample_cannot_speak_for_all_are_kept() -> None:
    """Where no component is believed there is nothing else to go by."""
    sample, _, own = in_many_columns(0, 0.0)
    few = replace(sample, features=sample.features[own], points=sample.points[own], weights=np.ones(8), share=0.01)
    (now,) = few.stepped([np.stack([few.features[:4].sum(axis=0), few.features[4:].sum(axis=0)])])
    assert len(few.credible(now)) == 2
