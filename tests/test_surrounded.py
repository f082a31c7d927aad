"""A component of the rows that lie outermost in many: too few in each of them, enough together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpdist.inference.moves import regroup
from dpdist.inference.moves.arrange import OUTER, _around, rearranged_widely
from dpdist.inference.moves.regroup import Regroup
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.inference.moves.searched import SearchedGroups
from dpdist.models.allocations import DirichletProcess
from dpdist.models.mixture import Model
from tests.cases import ALLOCATIONS, FAMILIES, filled
from tests.test_regroup import CENTRES, drawn, end_of, model_of, sums

#: Clusters, and of each its rows and those among them that lie anywhere about.
MANY, EACH, FEW = 8, 150, 2


def scattered(columns: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of clusters, whose they are, and which of them are scattered."""
    rng = np.random.default_rng(0)
    owners, places = np.repeat(np.arange(MANY), EACH), np.tile(np.arange(EACH), MANY)
    spread = np.where(places < FEW, 4.0, 1.0)
    return (
        6 * rng.normal(size=(MANY, columns))[owners] + spread[:, None] * rng.normal(size=(len(owners), columns)),
        owners,
        places < FEW,
    )


def of_groups(members: int) -> tuple[SampledRows, np.ndarray, np.ndarray]:
    """The rows of so many of the clusters, the statistics of these, and which rows are scattered."""
    rows, owners, far = scattered()
    own = owners < members
    model = model_of(rows)
    return SampledRows.of(model, rows[own], np.ones(own.sum())), sums(model, rows[own], owners[own]), far[own]


def test_what_lies_outermost_in_many_is_found_where_that_of_a_few_does_not_pay() -> None:
    sample, stats, far = of_groups(MANY)
    found = rearranged_widely(sample, sample.settled(stats), np.random.default_rng(0))
    assert found is not None and len(found.stats) == MANY + 1
    beyond = found.resp.argmax(axis=1) == MANY
    assert beyond[far].mean() > 0.9 and beyond[~far].mean() < 0.01
    few, stats, _ = of_groups(2)
    assert rearranged_widely(few, few.settled(stats), np.random.default_rng(0)) is None


@pytest.mark.parametrize("share", OUTER)
@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_the_outer_rows_of_each_component_are_taken_by_their_density_and_no_row_is_lost(case, share) -> None:
    rng = np.random.default_rng(1)
    x, weights = case.rows(rng, 400, 3), rng.uniform(0.5, 2.0, 400)
    sample = SampledRows.of(Model(filled(case, x), ALLOCATIONS[0]), x, weights)
    resp = rng.dirichlet(np.ones(3), size=400) * weights[:, None]
    now = Arrangement(sample.sums(resp), 0.0, resp, np.zeros(3))
    parts = _around(sample, now)[OUTER.index(share)]
    np.testing.assert_allclose(parts.sum(axis=0), now.stats.sum(axis=0), rtol=1e-9, atol=1e-9)
    outer = parts[-1, -1] / now.stats[:, -1].sum()
    assert outer <= share + 1e-9 and (parts[:-1, -1] >= (1 - share) * now.stats[:, -1] - 1e-9).all()
    depths = np.asarray(sample.features @ sample.model.family.coefficients(now.stats))
    inner = [float((own @ depth) / own.sum()) for own, depth in zip(resp.T, depths.T, strict=True)]
    kept = [
        float(stats @ coefficients / stats[-1])
        for stats, coefficients in zip(parts[:-1], sample.model.family.coefficients(now.stats).T, strict=True)
    ]
    assert (np.array(kept) >= np.array(inner) - 1e-9).all()
    assert outer == 0 or max(np.array(kept) - np.array(inner)) > 0


def test_wide_groups_are_searched_for_what_lies_outermost_where_there_may_be_one_more() -> None:
    rows, owners, far = scattered()
    end, group, move = end_of(rows, owners), tuple(range(MANY)), Regroup(smallest=2, largest=2)
    (found,) = move._search(end, [group], 0)
    assert found is not None and len(found.stats) == MANY + 1
    beyond = {tuple(row) for row in found.samples[-1][0]}
    assert beyond == {tuple(row) for row in rows[far]}
    allocation = DirichletProcess(1.0, max_components=MANY)
    assert move._search(replace(end, model=replace(end.model, allocation=allocation)), [group], 0) == [None]


def test_a_group_is_as_wide_as_there_are_components_and_as_it_may_be() -> None:
    rows, owners, _ = scattered()
    for many, widest, sizes in ((MANY, 8, {2, 8}), (MANY, 5, {2, 5}), (6, 8, {2, 6}), (MANY, 2, {2})):
        own, move = owners < many, Regroup(smallest=2, largest=2, widest=widest)
        left = move._left(end_of(rows[own], owners[own]), SearchedGroups(), 0)
        assert [len(group) for group in left] == sorted(sizes)


def test_a_group_of_a_few_is_arranged_anew_and_a_wider_one_widely(monkeypatch) -> None:
    rows, owners, _ = scattered()
    tried = list[tuple[str, int]]()
    for name in ("rearranged", "rearranged_widely"):
        monkeypatch.setattr(regroup, name, lambda _, now, *others, name=name: tried.append((name, len(now.stats))))
    Regroup(largest=4)._search(end_of(rows, owners), [(0, 1), (2, 3, 4, 5), (1, 2, 3, 4, 5)], 0)
    assert list(dict.fromkeys(tried)) == [("rearranged", 2), ("rearranged", 4), ("rearranged_widely", 5)]


@pytest.mark.parametrize("calm", [False, True])
def test_wide_groups_wait_until_laps_gain_little_and_a_run_for_them(calm) -> None:
    end, move, many = replace(end_of(*drawn()), settled=calm), Regroup(smallest=2, largest=2), len(CENTRES)
    pairs = [(k, int(end.neighbours[k, 0])) for k in range(many)]
    resting = replace(move.none(), searched=SearchedGroups().after(end, pairs))
    assert list(map(len, move.births(end, np.zeros(many, bool), resting, ()))) == [many] * calm
    assert [len(group) for group in move._left(end, SearchedGroups(), 0)] == [2, many]


def test_who_was_in_a_wide_group_needs_none_of_its_own_and_who_was_not_does() -> None:
    end, move, many = end_of(*drawn()), Regroup(smallest=2, largest=2, widest=4), len(CENTRES)
    group = 0, *end.neighbours[0, :3].tolist()
    alone = next(k for k in range(many) if k not in group and int(end.neighbours[k, 0]) not in group)
    searched = SearchedGroups().after(end, [group, (alone, int(end.neighbours[alone, 0]))])
    wide = [k for k in range(many) if any(len(each) == 4 for each in move._left(end, searched, k))]
    assert wide == [k for k in range(many) if k not in group]
    assert [len(each) for each in move._left(end, searched, alone)] == [4]
