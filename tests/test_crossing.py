"""Components divided by the values of a column and merged: what no change of a few of them finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpdist.inference.moves import arrange
from dpdist.inference.moves.arrange import CROSSED, rearranged, rearranged_widely
from dpdist.inference.moves.conjunctions import CONJUNCTIONS, by_conjunctions, evidence_of
from dpdist.inference.moves.crossing import COLUMNS, LARGE, LEAST, MERGED, REPLACED, VALUES, crossed, replaced
from dpdist.inference.moves.regroup import Regroup
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.seeding import by_value
from tests.cases import ALLOCATIONS, FAMILIES
from tests.test_agglomerate import SHARES, of_case
from tests.test_regroup import model_of, sums

#: Number of codes, and rows of each.
CODES, EACH = 5, 150


def coded(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose first column is a code, with a shape of its own in the other columns for each; and these codes."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(CODES), EACH)
    shapes = rng.normal(size=(CODES, 3, 3))
    rows = np.einsum("nij,nj->ni", shapes[codes], rng.normal(size=(len(codes), 3)))
    return np.column_stack([rng.permutation(CODES)[codes].astype(float), rows]), codes


def cut_otherwise(rows: np.ndarray) -> np.ndarray:
    """Components by another column than the codes, as many as there are codes."""
    return np.argsort(np.argsort(rows[:, 1])) * CODES // len(rows)


def test_components_cut_by_another_column_are_cut_by_the_codes_instead() -> None:
    rows, codes = coded()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    truth = sample.settled(sums(sample.model, rows, codes))
    now = sample.stepped([sums(sample.model, rows, cut_otherwise(rows))])[0]
    assert now.elbo < truth.elbo - 0.5 * len(rows)
    found = [sample.settled(stats) for stats in crossed(sample, now, np.random.default_rng(0))]
    assert len(found) == 3, "no value recurs in the other columns; parts are merged, divided off, or replace components"
    for each in found:
        assert each.elbo >= truth.elbo - 1.0 and len(each.occupied.stats) == CODES


def test_components_of_the_values_of_a_column_become_those_of_another_and_others_stay() -> None:
    rows, codes = coded()
    rng = np.random.default_rng(1)
    beside = np.column_stack([rng.integers(0, CODES, 200), 50.0 + rng.normal(size=(200, 3))])
    rows, shapes = np.concatenate([rows, beside]), np.append(codes, np.full(200, CODES))
    rows = np.column_stack([rows, rng.integers(0, 3, len(rows))])
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    by_other = np.where(shapes == CODES, 3, rows[:, 4].astype(int))
    now = sample.stepped([sums(sample.model, rows, by_other)])[0]
    found = replaced(sample, now, by_value(rows, sample.weights, COLUMNS, VALUES, LEAST, np.random.default_rng(0)))
    truth = sums(sample.model, rows, shapes)
    in_order = [stats[np.argsort(stats.sum(axis=1))] for stats in (found[0], truth)]
    np.testing.assert_allclose(*in_order, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_replacements_are_those_of_the_highest_evidence_with_rare_values_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = [np.minimum(rng.geometric(chance, 300), 14) for chance in (0.7, 0.6, 0.5, 0.4, 0.3)]
    rows = np.column_stack([*whole, rng.normal(size=(300, 4)) + whole[1][:, None]]).astype(float)
    sample = SampledRows.of(model_of(rows), rows, np.ones(300), share=0.25)
    now = sample.stepped([sums(sample.model, rows, rng.integers(0, 3, 300))])[0]
    divisions = by_value(rows, sample.weights, COLUMNS, VALUES, LEAST, np.random.default_rng(0))

    def evidence(stats: np.ndarray) -> float:
        mass = stats[:, -1] / sample.share
        return float(np.sum(sample.model.family.log_evidence(stats / sample.share) + mass * np.log(mass)))

    best, pooled = [], 0
    for ranks in divisions:
        several = [np.minimum(ranks, rare) for rare in range(1, int(ranks.max()) + 1)]
        best.append(max((sums(sample.model, rows, each) for each in several), key=evidence))
        pooled += len(best[-1]) < int(ranks.max()) + 1
    best.sort(key=evidence, reverse=True)
    found = replaced(sample, now, divisions)
    assert len(divisions) == 5 and len(found) == REPLACED
    assert pooled, "rare values are together"
    for stats, expected in zip(found, best, strict=False):
        np.testing.assert_allclose(stats, expected, rtol=1e-9)


def answered(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Answers from 1 to 3, where rows with two certain answers have others of their own; and who these rows are."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 4, size=(900, 6)).astype(float)
    found = np.where((rows[:, 0] == 2) & (rows[:, 1] == 3), 1, np.where((rows[:, 2] == 1) & (rows[:, 3] == 1), 2, 0))
    return np.column_stack([rows, 4.0 * (found == 1) - 3.0 * (found == 2) + 0.1 * rng.normal(size=900)]), found


def test_rows_of_two_certain_values_are_divided_off() -> None:
    rows, truth = answered()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    divisions = by_value(rows, sample.weights, COLUMNS, VALUES, LEAST, np.random.default_rng(0))
    found = by_conjunctions(sample, divisions)
    expected = sums(sample.model, rows, truth)
    for k in (1, 2):
        assert np.isclose(found, expected[k], rtol=1e-9, atol=1e-6).all(axis=1).sum() == 1
    assert 3 <= len(found) <= CONJUNCTIONS + 1


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@SHARES
def test_each_conjunction_gains_evidence_and_no_row_is_lost(case, share) -> None:
    sample = of_case(case, ALLOCATIONS[0], share)
    divisions = by_value(sample.points, sample.weights, COLUMNS, VALUES, LEAST, np.random.default_rng(0))
    codes = np.random.default_rng(0).integers(0, 3, size=(2, len(sample.weights)))
    found = by_conjunctions(sample, [*divisions, *codes])
    np.testing.assert_allclose(found.sum(axis=0), sample.total, rtol=1e-9, atol=1e-9)
    for number in range(1, len(found)):
        rest = found[number:].sum(axis=0)
        apart, before = evidence_of(sample, np.stack([found[number - 1], rest])), rest + found[number - 1]
        assert apart.sum() > evidence_of(sample, before[None])[0] - 1e-6


@pytest.mark.parametrize("wide", [False, True])
def test_groups_of_many_are_divided_by_values_within_their_limit(wide, monkeypatch) -> None:
    rows, codes = coded()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    truth = sample.settled(sums(sample.model, rows, codes))
    monkeypatch.setattr(arrange, "_changes", lambda *given: [])
    monkeypatch.setattr(arrange, "hopped", lambda *given: None)
    monkeypatch.setattr(arrange, "_around", lambda *given: [])
    monkeypatch.setattr(arrange, "agglomerated", lambda *given: [])

    def searched(members: int, most: float) -> float:
        owners = np.minimum(cut_otherwise(rows), members - 1)
        now = sample.stepped([sums(sample.model, rows, owners)])[0]
        given = (np.random.default_rng(0), most)
        found = rearranged_widely(sample, now, *given) if wide else rearranged(sample, now, Regroup().seedings, *given)
        assert found is None or len(found.stats) <= most
        return now.elbo if found is None else found.elbo

    assert searched(CODES, np.inf) >= truth.elbo - 1.0
    assert searched(CODES, CODES - 1) < truth.elbo - 1.0
    assert searched(LARGE - 1, np.inf) >= truth.elbo - 1.0 and CROSSED < LARGE <= CODES
    assert (searched(CROSSED - 1, np.inf) >= truth.elbo - 1.0) == wide


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@SHARES
def test_no_row_is_lost_in_any_family(case, share) -> None:
    sample = of_case(case, ALLOCATIONS[0], share)
    (now,) = sample.stepped([np.random.default_rng(0).dirichlet(np.ones(5), size=60).T @ sample.features])
    for stats in crossed(sample, now, np.random.default_rng(0)):
        np.testing.assert_allclose(stats.sum(axis=0), np.asarray(sample.features.T @ sample.weights), rtol=1e-2)
        assert 1 <= len(stats) <= MERGED[True][1]


@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
def test_rows_are_ranked_by_how_frequent_their_value_is(thin) -> None:
    rng = np.random.default_rng(0)
    values = rng.choice([7.0, -1.0, 0.0, 3.0], 400, p=[0.1, 0.5, 0.3, 0.1])
    rows, weights = np.column_stack([rng.normal(size=400), values, np.ones(400)]), np.ones(400)
    weights[values == 3.0] = 3.0 * LEAST * 400 / (values == 3.0).sum()
    weights[values == 7.0] = 0.5 * LEAST * 400 / (values == 7.0).sum()
    given = sparse.csr_array(rows) if thin else rows
    (found,) = by_value(given, weights, 9, 9, LEAST, np.random.default_rng(0))
    for value, rank in ((-1.0, 0), (0.0, 1), (3.0, 2), (7.0, 3)):
        assert set(found[values == value]) == {rank}
    (few,) = by_value(given, weights, 9, 1, LEAST, np.random.default_rng(0))
    np.testing.assert_array_equal(few, values != -1.0)
    order = rng.permutation(400)
    (other,) = by_value(given[order], weights[order], 9, 9, LEAST, np.random.default_rng(0))
    np.testing.assert_array_equal(other, found[order])


@pytest.mark.parametrize("rows", range(2, 70))
def test_a_constant_column_is_never_ranked(rows) -> None:
    some = np.column_stack([np.random.default_rng(rows).normal(size=rows), np.ones((rows, 4))])
    assert by_value(some, np.ones(rows), 9, 9, LEAST, np.random.default_rng(0)) == []


def test_no_more_columns_are_ranked_than_asked_and_none_twice() -> None:
    rows = np.random.default_rng(0).integers(0, 3, size=(300, 6)).astype(float)
    found = by_value(rows, np.ones(300), 4, 9, LEAST, np.random.default_rng(1))
    assert len({tuple(own) for own in found}) == len(found) == 4
    noise = np.random.default_rng(0).normal(size=(50, 3))
    assert by_value(noise, np.ones(50), 4, 9, LEAST, np.random.default_rng(1)) == []
