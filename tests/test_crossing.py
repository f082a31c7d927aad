"""Components divided by the values of a column and merged: what no change of a few of them finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpdist.inference.moves import arrange
from dpdist.inference.moves.arrange import CROSSED, rearranged, rearranged_widely
from dpdist.inference.moves.crossing import LEAST, PARTS, crossed
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.seeding import by_value
from dpdist.inference.moves.split import Split
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
    assert len(found) == 1, "no value recurs in the other columns"
    assert found[0].elbo >= truth.elbo - 1.0 and len(found[0].occupied.stats) == CODES


@pytest.mark.parametrize("wide", [False, True])
def test_groups_of_many_are_divided_by_values_within_their_limit(wide, monkeypatch) -> None:
    rows, codes = coded()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    truth = sample.settled(sums(sample.model, rows, codes))
    monkeypatch.setattr(arrange, "_changes", lambda *given: [])
    monkeypatch.setattr(arrange, "hopped", lambda *given: None)
    monkeypatch.setattr(arrange, "_around", lambda *given: [])

    def searched(members: int, most: float) -> float:
        owners = np.minimum(cut_otherwise(rows), members - 1)
        now = sample.stepped([sums(sample.model, rows, owners)])[0]
        given = (np.random.default_rng(0), most)
        found = rearranged_widely(sample, now, *given) if wide else rearranged(sample, now, Split(), *given)
        assert found is None or len(found.stats) <= most
        return now.elbo if found is None else found.elbo

    assert searched(CODES, np.inf) >= truth.elbo - 1.0
    assert searched(CODES, CODES - 1) < truth.elbo - 1.0
    assert CROSSED == CODES
    assert (searched(CROSSED - 1, np.inf) >= truth.elbo - 1.0) == wide


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@SHARES
def test_no_row_is_lost_in_any_family(case, share) -> None:
    sample = of_case(case, ALLOCATIONS[0], share)
    (now,) = sample.stepped([np.random.default_rng(0).dirichlet(np.ones(5), size=60).T @ sample.features])
    for stats in crossed(sample, now, np.random.default_rng(0)):
        np.testing.assert_allclose(stats.sum(axis=0), np.asarray(sample.features.T @ sample.weights), rtol=1e-2)
        assert 1 <= len(stats) <= PARTS


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


def test_no_more_columns_are_ranked_than_asked_and_none_twice() -> None:
    rows = np.random.default_rng(0).integers(0, 3, size=(300, 6)).astype(float)
    found = by_value(rows, np.ones(300), 4, 9, LEAST, np.random.default_rng(1))
    assert len({tuple(own) for own in found}) == len(found) == 4
    noise = np.random.default_rng(0).normal(size=(50, 3))
    assert by_value(noise, np.ones(50), 4, 9, LEAST, np.random.default_rng(1)) == []
