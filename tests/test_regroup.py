"""Regroups: which components are arranged anew together, from which rows, and what is found there."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.special import softmax

import dpdist
from dpdist.core.errors import PrecisionError
from dpdist.execution import SerialBackend
from dpdist.inference.moves import regroup
from dpdist.inference.moves.accept import Reason, Verdict
from dpdist.inference.moves.arrange import _candidates, _Change, _changes, best_of, rearranged
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.children import Children
from dpdist.inference.moves.cooldown import Cooldown, Cooldowns
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.regroup import Regroup, _arrange_task
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.inference.moves.searched import SearchedGroups
from dpdist.inference.moves.sketch import Found, Sketch, union_of
from dpdist.inference.moves.split import Split
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Moments
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary
from tests.cases import ALLOCATIONS, FAMILIES, filled
from tests.test_moves import entropy

#: Clusters in pairs of neighbours, each pair far from the others.
CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [50.0, 0.0], [59.0, 0.0], [0.0, 50.0], [9.0, 50.0], [50.0, 50.0]])


def drawn(seed: int = 0, each: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the clusters, and whose they are."""
    owners = np.repeat(np.arange(len(CENTRES)), each)
    return CENTRES[owners] + np.random.default_rng(seed).normal(size=(len(owners), 2)), owners


def model_of(rows: np.ndarray) -> Model:
    moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), True)
    return Model(dpdist.families.Gaussian().with_defaults(moments), DirichletProcess(1.0))


def sums(model: Model, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Statistics (K, F) of components that own their rows whole."""
    return np.stack([model.family.features(rows[labels == k]).sum(axis=0) for k in range(labels.max() + 1)])


def end_of(rows: np.ndarray, labels: np.ndarray, **changed) -> LapEnd:
    """The end of a lap whose components own their rows whole, and in which nothing changed."""
    model, components = model_of(rows), labels.max() + 1
    summary = Summary(sums(model, rows, labels), np.zeros(components))
    samples = {k: (rows[labels == k], np.ones((labels == k).sum())) for k in range(components)}
    places = np.arange(components)
    end = LapEnd(model, SerialBackend(), 0, 5, False, places + 10, summary, places, samples)
    return replace(end, **changed)


class Tried(Divisions):
    """Splits of a move before, all of which were tried."""

    def tried(self, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids), dtype=bool)


class Judging(Divisions):
    """Splits of a move before, all of which were judged but one."""

    def tried(self, ids: np.ndarray) -> np.ndarray:
        return ids != 12


def groups_tried(end: LapEnd, move: Regroup, others: tuple[Proposals, ...] = (), **given) -> list[set[int]]:
    busy = given.get("busy", np.zeros(len(end.ids), bool))
    resting = replace(move.none(), searched=given.get("searched", SearchedGroups()))
    return [set(group) for group in move.births(end, busy, resting, others)]


def test_neighbours_are_those_with_which_least_is_lost_a_row() -> None:
    near = end_of(*drawn()).neighbours
    assert near[:6, 0].tolist() == [1, 0, 3, 2, 5, 4]
    assert all(sorted([k, *row]) == list(range(7)) for k, row in enumerate(near.tolist()))


def test_neighbours_of_a_large_component_are_not_just_the_small_ones() -> None:
    """In all least is lost by taking in a few rows, however far they are."""
    rows, owners = np.random.default_rng(0).normal(size=(2010, 2)), np.repeat([0, 1, 2], [1000, 1000, 10])
    end = end_of(rows + np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 12.0]])[owners], owners)
    assert end.pair_gains[0, 2] > end.pair_gains[0, 1]
    assert end.neighbours[0].tolist() == [1, 2]


def test_the_order_of_groups_is_another_in_every_wave_and_lap() -> None:
    end, move = end_of(*drawn()), Regroup(smallest=2, largest=2, widest=2)

    def first_of(lap: int, wave: int) -> tuple[int, ...]:
        sketch = Sketch.of(replace(end, lap=lap), np.ones(7, dtype=bool))
        return move._groups(sketch, SearchedGroups(), wave, 1e12, True)[0]

    assert len({first_of(0, wave) for wave in range(8)}) > 2
    assert len({first_of(lap, 0) for lap in range(8)}) > 2


def test_what_a_search_made_is_searched_on_before_it_was_split() -> None:
    end, move, others = end_of(*drawn()), Regroup(smallest=2), (Judging.begun([], []),)
    assert not any(2 in group for group in groups_tried(end, move, others))
    made = replace(end, made={move.kind: np.array([2])})
    assert any(2 in group for group in groups_tried(made, move, others))
    assert not any(2 in group for group in groups_tried(replace(end, made={"split": np.array([2])}), move, others))


def test_what_was_found_in_a_part_of_a_division_is_free_once_another_move_ended_that() -> None:
    """A refused division leaves its parts searched; one that another move took a member of says nothing of the rest."""
    end, move = end_of(*drawn()), Regroup(smallest=2, largest=2, widest=2)
    groups = [(0, 1), (2, 3)], [(0, 1, 4), (2, 3, 5)]
    searched = move.none().searched.after(end, groups[0])
    under_way = replace(Divisions.begun(groups[1], [3, 3]), searched=searched)
    after = replace(end, origins=np.where(np.arange(7) == 4, -1, np.arange(7)), samples={})
    verdicts = [Verdict(0, np.nan, Reason.CONFLICT), Verdict(1, -1.0, Reason.NO_GAIN)]
    left = move.propose(after, under_way, verdicts, ()).proposals.searched
    assert not left.holds([10, 11]) and left.holds([12, 13]) and left.holds([12, 13, 15])


def test_groups_are_disjoint_components_with_their_nearest() -> None:
    tried = groups_tried(end_of(*drawn()), Regroup(smallest=2))
    assert sum(map(len, tried)) == len(set().union(*tried))
    assert len(tried) == 3 and sum(group in ({0, 1}, {2, 3}, {4, 5}) for group in tried) >= 2


def test_a_run_about_to_rest_searches_every_group_once_and_proposes_disjoint_ones() -> None:
    rows, owners = drawn()
    end = end_of(rows, np.array([0, 0, 1, 2, 3, 4, 5])[owners])
    for each in (replace(end, settled=True), replace(end, change=1e-3)):
        found = Regroup(smallest=3, largest=6, widest=6).births(each, np.zeros(6, bool), Regroup().none(), ())
        tried = [group for group, stats in found.items() if stats is not None]
        assert len(tried) == 1 and 0 in tried[0] and len(found[tried[0]]) == len(tried[0]) + 1
        vain = [frozenset(group) for group, stats in found.items() if stats is None]
        near = {frozenset([k, *each.neighbours[k, : size - 1].tolist()]) for k in range(6) for size in (3, 4, 5, 6)}
        assert len(vain) == len(set(vain)) and near >= set(vain) >= {g for g in near if g.isdisjoint(tried[0])}
    assert len(Regroup(smallest=3, largest=6, widest=6).births(end, np.zeros(6, bool), Regroup().none(), ())) <= 4


def test_groups_of_every_size_are_searched_before_a_run_rests() -> None:
    found = Regroup(smallest=3, largest=5, widest=5).births(
        replace(end_of(*drawn()), settled=True), np.zeros(7, bool), Regroup().none(), ()
    )
    assert {len(group) for group in found} == {3, 4, 5} and all(stats is None for stats in found.values())


@pytest.mark.parametrize(
    ("rows", "searches", "most"),
    [(3, 1, 6), (40, 2, 6), (90, 4, 6), (90, 3, 3), (100, 4, 6), (300, 1, 6), (1000, 1, 6)],
)
def test_where_rows_are_few_vain_searches_are_made_again(rows, searches, most, monkeypatch) -> None:
    """Seven components of six columns, which count as 355 rows; in groups of two, for each 30 rows of which once."""
    made = []
    end = replace(end_of(*drawn(each=rows)), settled=True)
    move = Regroup(smallest=2, largest=2, widest=2, searches=most)
    monkeypatch.setattr("dpdist.inference.moves.regroup.rearranged", lambda *given: made.append(given[1].stats))
    found = move.births(end, np.zeros(7, bool), move.none(), ())
    times = [sum(np.array_equal(stats, each) for each in made) for stats in made]
    assert found and set(times) == {searches}
    better = end.summary.stats[:2]
    made.clear()

    def second(sample, *given):
        made.append(given[0])
        return sample.settled(better) if len(made) == 2 else None

    monkeypatch.setattr("dpdist.inference.moves.regroup.rearranged", second)
    drawn_rows = move._drawn(end, (0, 1), (0, 0, 0, 10))
    result = _arrange_task((end.model, move), better, drawn_rows, searches, 0, 4.0, (0, 0, 0, 10))
    assert len(made) == min(searches, 2) and (result is None) == (searches == 1)


def test_groups_searched_in_vain_rest_until_a_member_changes() -> None:
    end, move = end_of(*drawn()), Regroup(smallest=2, largest=2, widest=2)
    calm = replace(end, settled=True)
    found = move.births(calm, np.zeros(7, bool), move.none(), ())
    assert found and all(stats is None for stats in found.values())
    resting = move.resting(calm, move.none(), list(found))
    assert not groups_tried(calm, move, searched=resting.searched) and not move.unfinished(calm, resting)
    three = {3, int(end.neighbours[3, 0])}
    moved = replace(calm, origins=np.where(np.arange(7) == 3, -1, calm.origins))
    grown = replace(
        calm, summary=Summary(calm.summary.stats * np.where(np.arange(7) == 3, 1.2, 1.0)[:, None], np.zeros(7))
    )
    for each in (moved, grown):
        left = move.resting(each, resting, [])
        assert move.unfinished(each, left)
        again = groups_tried(each, move, searched=left.searched)
        assert three in again and all(3 in group for group in again)
    slightly = replace(calm, summary=Summary(calm.summary.stats * 1.05, np.zeros(7)))
    assert len(move.resting(slightly, resting, []).searched.members) == len(resting.searched.members)


def test_a_group_in_which_something_was_found_is_not_searched_again_after_that_was_refused(monkeypatch) -> None:
    """Be it refused as a part of something larger: a search of the same rows would find something again."""
    rows, owners = drawn(each=400)
    mixed = np.array([0, 0, 1, 2, 3, 4, 4])[owners]
    mixed[(owners == 2) & (rows[:, 1] > 0)] = 5
    end, move, searched = end_of(rows, mixed), Regroup(smallest=2, largest=4, widest=4), list[list[frozenset[int]]]()
    search = Regroup._search

    def told(self, end, groups, wave):
        searched[-1] += [frozenset(end.ids[list(group)].tolist()) for group in groups]
        return search(self, end, groups, wave)

    monkeypatch.setattr(Regroup, "_search", told)
    resting, calm, united = move.none(), replace(end, settled=True), 0
    for lap in range(20):
        searched.append([])
        found = move.births(replace(calm, lap=lap), np.zeros(6, bool), resting, ())
        standing = [group for group in searched[-1] if group <= set(end.ids.tolist())]
        united += any(stats is not None and frozenset(group) not in standing for group, stats in found.items())
        resting = move.resting(calm, resting, list(found))
    every = [group for each in searched for group in each if group <= set(end.ids.tolist())]
    assert united and len(every) == len(set(every)) and not searched[-1]


def test_a_group_within_one_that_was_searched_in_vain_is_searched_too() -> None:
    """Of fewer members more changes are tried and more rows of each are seen."""
    end, move = replace(end_of(*drawn()), settled=True), Regroup(smallest=2, largest=3, widest=3)
    found = {k: frozenset([k, *end.neighbours[k, :2].tolist()]) for k in range(7)}
    resting = move.resting(end, move.none(), [tuple(group) for group in found.values()])
    tried = groups_tried(end, move, searched=resting.searched)
    assert tried and all(len(group) == 2 for group in tried) and move.unfinished(end, resting)


@pytest.mark.parametrize(
    ("made", "refused", "limit", "groups"),
    [
        ({}, {}, "MOST_LAPS", 1),
        ({}, {}, "MOST_LAPS", 2),
        ({}, {}, "MOST_LAPS", 5),
        ({"regroup": np.arange(7)}, {}, "MOST_LAPS", 2),
        ({"split": np.arange(3)}, {}, "MOST_LAPS", 1),
        ({"split": np.arange(4)}, {}, "LAPS_MEANWHILE", 1),
        ({"split": np.arange(4)}, {}, "LAPS_MEANWHILE", 5),
        ({"split": np.arange(2)}, {12: 7, 13: 7, 14: 7}, "LAPS_MEANWHILE", 2),
        ({"split": np.arange(2)}, {12: 6, 13: 7, 14: 6}, "MOST_LAPS", 2),
        ({}, {10: 7, 12: 7, 13: 7, 14: 7}, "LAPS_MEANWHILE", 1),
    ],
    ids=[
        *("nothing, one", "nothing, two", "nothing, all", "by regroups", "few by splits", "most by splits, one"),
        *("most by splits, all", "with those refused", "with less", "refused"),
    ],
)
def test_searches_of_a_lap_end_stop_at_their_share_of_work(made, refused, limit, groups, monkeypatch) -> None:
    """Groups of two hold 300 rows; searches end with the first that reaches what all of them may take."""
    end, move = replace(end_of(*drawn()), settled=True, made=made), Regroup(smallest=2, largest=2, widest=2, rows=200)
    share = (groups - 0.5) * move._work(end, (0, 1)) / (float(end.summary.counts.sum()) * 7)
    cooldowns = Cooldowns.of({i: Cooldown(1, until, 150.0) for i, until in refused.items()})
    splits = Tried(*vars(replace(Divisions.begun([], []), cooldowns=cooldowns)).values())
    monkeypatch.setattr(regroup, "MOST_PRODUCTS", 0.0)
    monkeypatch.setattr(regroup, "MOST_LAPS", np.inf)
    monkeypatch.setattr(regroup, "LAPS_MEANWHILE", np.inf)
    monkeypatch.setattr(regroup, limit, share)
    monkeypatch.setattr(regroup, "rearranged", lambda *given: None)  # nothing is found here anyway, which takes seconds
    found = move.births(end, np.zeros(7, bool), move.none(), (splits,))
    assert len(found) == min(groups, 4) and move.unfinished(end, move.resting(end, move.none(), list(found))) == (
        groups < 4
    )
    monkeypatch.setattr(regroup, "MOST_PRODUCTS", 1e9)
    assert len(move.births(end, np.zeros(7, bool), move.none(), (splits,))) == 4


def test_a_wave_that_found_something_is_the_last_where_work_is_spent(monkeypatch) -> None:
    rows, owners = drawn()
    end = replace(end_of(rows, np.array([0, 0, 0, 1, 1, 2, 2])[owners]), settled=True)
    monkeypatch.setattr(regroup, "MOST_PRODUCTS", 0.0)
    (stats,) = Regroup(smallest=2).births(end, np.zeros(3, bool), Regroup().none(), ()).values()
    monkeypatch.setattr(regroup, "MOST_PRODUCTS", 1e9)
    found = Regroup(smallest=2).births(end, np.zeros(3, bool), Regroup().none(), ())
    (more,) = (each for each in found.values() if each is not None)
    assert 2 < len(stats) < len(more) == 7


def test_what_one_wave_finds_the_next_goes_on_from() -> None:
    """One component stands for seven clusters: a single lap's end finds them, by changes that rest on each other."""
    rows, owners = drawn()
    end = end_of(rows, np.array([0, 0, 0, 0, 1, 1, 1])[owners])
    found = Regroup(smallest=2).births(replace(end, settled=True), np.zeros(2, bool), Regroup().none(), ())
    (stats,) = (each for each in found.values() if each is not None)
    np.testing.assert_allclose(stats[:, -1], np.full(7, 150.0), atol=3.0)
    np.testing.assert_allclose(stats.sum(axis=0), end.summary.stats.sum(axis=0), rtol=1e-9, atol=1e-6)


def test_changes_that_rest_on_each_other_replace_what_all_of_them_replaced() -> None:
    end = end_of(*drawn())
    sketch = Sketch.of(end, np.ones(7, dtype=bool))

    def swapped(group: tuple[int, ...], into: int) -> Found:
        """As many components as asked for, which share a group's statistics and samples evenly."""
        stats = sketch.end.summary.stats[list(group)].sum(axis=0)
        parts = [sketch.end.samples[k] for k in group][:into]
        return Found(np.repeat(stats[None] / into, into, axis=0), parts)

    for group, into in (((0, 1), 1), ((2, 3), 2)):
        place = [sketch.end.ids.tolist().index(10 + k) for k in group]
        sketch = sketch.after([tuple(place)], [swapped(tuple(place), into)])
    assert sorted(map(sorted, set(sketch.replaced))) == [[0, 1], [2, 3], [4], [5], [6]]
    assert sketch.standing().free.sum() == 3 and sketch.free.sum() == 6
    four = sketch.end.ids.tolist().index(14)
    new = sketch.replaced.index(frozenset([2, 3]))
    sketch = sketch.after([(four, new)], [swapped((four, new), 2)])
    found = sketch.divisions()
    assert {group: len(stats) for group, stats in found.items()} == {(0, 1): 1, (2, 3, 4): 3}
    for group, stats in found.items():
        np.testing.assert_allclose(stats.sum(axis=0), end.summary.stats[list(group)].sum(axis=0))


@pytest.mark.parametrize("most", [3, 4, 8])
def test_groups_of_a_wave_are_disjoint_and_what_rests_on_the_same_changes_is_replaced_together(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Components 0 and 3 were replaced together by two, so changes beside either are one change."""
    monkeypatch.setattr(regroup, "MOST_TOGETHER", most)
    end, shared = replace(end_of(*drawn()), settled=True), 0
    sketch = Sketch.of(end, np.ones(7, dtype=bool))
    sketch = sketch.after([(0, 3)], [Found(end.summary.stats[[0, 3]], [end.samples[0], end.samples[3]])])
    for wave in range(20):
        groups = Regroup(smallest=2, largest=3, widest=3)._groups(sketch, SearchedGroups(), wave, np.inf, True)
        assert sum(map(len, groups)) == len(set().union(*groups)) and groups
        rests = [union_of(sketch.replaced[k] for k in group) for group in groups]
        shared += sum(map(len, rests)) > len(union_of(rests))
        found = [Found(sketch.end.summary.stats[list(g)], [sketch.end.samples[k] for k in g]) for g in groups]
        classes = set(sketch.after(groups, found).replaced)
        assert sorted(k for each in classes for k in each) == list(range(7))
        assert all(len(each) <= most for each in classes)
        assert all(any(rest <= each for each in classes) for rest in rests)
    assert shared or most == 3


@pytest.mark.parametrize(("most", "found"), [(None, 7), (6, 6), (5, 5)])
def test_searches_find_no_more_components_than_there_may_be(most, found) -> None:
    """Of seven clusters two share a component, three another, and one is cut in two."""
    rows, owners = drawn()
    mixed = np.array([0, 0, 1, 1, 1, 2, 3])[owners]
    mixed[(owners == 5) & (rows[:, 1] > np.median(rows[owners == 5, 1]))] = 4
    end = end_of(rows, mixed)
    end = replace(end, model=replace(end.model, allocation=DirichletProcess(1.0, max_components=most)), settled=True)
    full = most == 5
    # Where no more may be, splits are not tried, and nobody waits for them.
    assert Split().unfinished(end, Split().none()) != full
    births = Regroup(smallest=5).births(
        end, np.zeros(5, bool), Regroup().none(), (Judging.begun([], []),) if full else ()
    )
    ((group, stats),) = ((group, stats) for group, stats in births.items() if stats is not None)
    assert 5 - len(group) + len(stats) == found


def test_components_at_work_without_rows_or_not_split_yet_are_in_no_group() -> None:
    end, move = end_of(*drawn()), Regroup(smallest=2)
    busy = np.arange(7) == 2
    unseen = replace(end, samples={k: part for k, part in end.samples.items() if k != 2})
    nothing = Judging.begun([], [])
    for tried in (
        groups_tried(end, move, busy=busy),
        groups_tried(unseen, move),
        groups_tried(end, move, (nothing,)),
    ):
        assert tried and not any(2 in group for group in tried)


def test_groups_wait_for_members_whose_turn_was_in_another_lap_and_not_for_those_without_rows() -> None:
    move, every = Regroup(smallest=2, largest=2, widest=2), replace(end_of(*drawn()), settled=True)
    others = {k: part for k, part in every.samples.items() if k != 3}
    for asked, waits in (((np.arange(7) != 3), True), (np.ones(7, dtype=bool), False)):
        end = replace(every, samples=others, asked=asked)
        found = move.births(end, np.zeros(7, bool), move.none(), ())
        assert found and not any(3 in group for group in found)
        assert move.unfinished(end, move.resting(end, move.none(), list(found))) == waits
    assert move.unfinished(replace(every, samples={}, asked=np.zeros(7, dtype=bool)), move.none())


def test_who_is_alone_is_a_group() -> None:
    rows, owners = drawn()
    end = end_of(rows, np.zeros_like(owners))
    assert Regroup().unfinished(end, Regroup().none())
    found = Regroup().births(end, np.zeros(1, bool), Regroup().none(), ())
    assert list(found) == [(0,)]
    assert not Regroup().unfinished(end, Regroup().resting(end, Regroup().none(), list(found)))


def test_clusters_of_which_no_two_parts_pay_are_found_from_one() -> None:
    rng = np.random.default_rng(2)
    rows = 3.0 * rng.integers(0, 3, (250, 2)) + 0.3 * rng.normal(size=(250, 2))
    family = dpdist.families.Gaussian(degrees_of_freedom=259.0, scale=256 * 0.09)
    assert dpdist.DPMixture(family, random_state=0).fit(rows).n_components_ == 9


def test_answers_of_a_questionnaire_are_found_from_one_as_from_many() -> None:
    """To part one answer from the others does not pay, to part several does."""
    common, own = np.random.default_rng(0).normal(size=(200, 6))[:, :1], np.random.default_rng(1).normal(size=(200, 5))
    rows = np.clip(np.rint(2 + common + own), 0, 4)
    one, many = (dpdist.DPMixture(initial=start, random_state=0).fit(rows) for start in ("one", "k-means++"))
    assert one.n_components_ > 1
    assert one.elbo_ > many.elbo_ - 0.1 * len(rows)


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@pytest.mark.parametrize("share", [1.0, 0.2, 1.01])
def test_the_bound_of_a_sample_is_that_of_its_responsibilities(case, allocation, share, monkeypatch) -> None:
    """Of all rows for which it stands: as if these repeated it, but under the q that the sample alone leads to.

    The sample takes several blocks, the last of which has fewer rows.
    """
    monkeypatch.setattr("dpdist.inference.moves.sampled_rows.BLOCK_NUMBERS", 1)
    monkeypatch.setattr("dpdist.inference.moves.sampled_rows.FEWEST_ROWS", 7)
    rng = np.random.default_rng(1)
    rows, weights = case.rows(rng, 40, 3), rng.uniform(0.5, 2.0, 40)
    model = Model(filled(case, rows), allocation)
    sample = SampledRows.of(model, rows, weights, share)
    features = model.family.features(rows)
    candidates = [rng.dirichlet(np.ones(k), size=40).T @ features for k in (2, 3)]
    for stats, found in zip(candidates, sample.stepped(candidates), strict=True):
        resp = softmax(features @ model.gradient(stats[None])[0].T, axis=1)
        resp = resp[:, np.argsort(-(weights @ resp), kind="stable")] if allocation.ordered else resp
        own = (weights[:, None] * resp).T @ features
        every = Summary(own / share, entropy(resp, weights) / share)
        gap = model.gradient(own[None])[0] - model.gradient(every.stats[None])[0]
        assert found.elbo == pytest.approx(model.elbo(every) + (gap * every.stats).sum(), rel=1e-9)


@pytest.mark.parametrize("apart", [0.0, 1.0, 2.0, 2.5])
def test_what_a_sample_says_of_a_split_is_right_on_average(apart) -> None:
    """Halves of one cluster, or two that overlap: whatever share is seen, the gain told is that on all rows."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(6000, 4)) + np.outer(np.arange(6000) % 2, [apart, 0, 0, 0])
    model, halves = model_of(rows), (rows[:, 0] > apart / 2).astype(int)

    def gain(seen: np.ndarray) -> float:
        sample = SampledRows.of(model, rows[seen], np.ones(len(seen)), len(seen) / len(rows))
        starts = [sums(model, rows[seen], labels[seen]) for labels in (np.zeros(6000, dtype=int), halves)]
        one, two = (sample.settled(start) for start in starts)
        return two.elbo - one.elbo

    all_rows = gain(np.arange(6000))
    assert (all_rows > 0) == (apart > 2)
    for rows_seen in (600, 1500):
        told = [gain(rng.permutation(6000)[:rows_seen]) for _ in range(12)]
        assert np.mean(told) == pytest.approx(all_rows, abs=4 * np.std(told) / np.sqrt(12))


@pytest.mark.parametrize(
    "labels", [[0, 0, 1, 2], [0, 1, 1, 1], [0, 1, 2, 0], [0, 0, 0, 0]], ids=["swap", "three", "far", "one"]
)
def test_clusters_are_found_whatever_the_arrangement_before(labels) -> None:
    """Three clusters, of which the last comes in two halves where there are four labels."""
    rng = np.random.default_rng(3)
    centres = np.array([[0.0, 0.0], [7.0, 0.0], [0.0, 7.0]])
    owners = np.repeat([0, 1, 2, 2], 50)
    rows = centres[owners] + rng.normal(size=(200, 2))
    given = np.repeat(labels, 50)
    model = model_of(rows)
    truth, before = sums(model, rows, owners), sums(model, rows, given)
    sample = SampledRows.of(model, rows, np.ones(200))
    first = sample.settled(before)
    found = rearranged(sample, sample.settled(before), Regroup().seedings, rng) or first
    np.testing.assert_allclose(np.sort(found.stats[:, -1]), np.sort(truth[:, -1]), atol=2.0)
    after = sample.stepped([found.stats])[0]
    assert (found.elbo > first.elbo + 1) == (found is not first) and found.elbo == pytest.approx(after.elbo, abs=0.1)
    np.testing.assert_allclose(found.resp.sum(axis=1), 1.0, rtol=1e-12)
    assert rearranged(sample, sample.settled(found.stats), Regroup().seedings, rng) is None


def test_a_candidate_that_stands_still_below_the_least_is_given_up_and_a_rising_one_overtakes_a_higher() -> None:
    rows, owners = drawn()
    model = model_of(rows)
    sample = SampledRows.of(model, rows, np.ones(len(rows)))
    truth = sums(model, rows, owners)
    top = sample.settled(truth).elbo
    assert best_of(sample, [truth], top + 1) is None and best_of(sample, [], -np.inf) is None
    joined = sums(model, rows, np.array([0, 0, 1, 2, 3, 4, 5])[owners])
    poor = sums(model, rows, np.random.default_rng(0).choice(7, len(rows), p=[0.4, *[0.1] * 6]))
    assert best_of(sample, [joined, poor, truth], -np.inf).elbo == pytest.approx(top, abs=0.1)


def test_what_stands_still_below_the_least_takes_no_more_steps(monkeypatch) -> None:
    rows, owners = drawn()
    model, steps = model_of(rows), []
    sample = SampledRows.of(model, rows, np.ones(len(rows)))
    settled = sample.settled(sums(model, rows, owners))
    stepped = SampledRows.stepped
    monkeypatch.setattr(SampledRows, "stepped", lambda self, given: steps.append(len(given)) or stepped(self, given))
    assert best_of(sample, [settled.stats] * 12, settled.elbo + 1) is None
    assert steps == [10, 10]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_sample_of_which_nothing_can_be_said_is_refused(bad) -> None:
    rows, owners = drawn()
    sample = SampledRows.of(model_of(rows), rows, np.ones(len(rows)))
    sample.features[7, 0] = bad
    with pytest.raises(PrecisionError, match=r"not finite; standardise the columns\.$"):
        sample.stepped([sums(sample.model, rows, owners)])


def test_changes_keep_all_rows_and_gain_what_the_evidence_says(monkeypatch) -> None:
    """Children are a third and two thirds of what they share out, and gain as much as that is."""

    def thirds(sample: SampledRows, weights: np.ndarray, *_: object) -> list[Children]:
        every = (weights @ sample.features)[None]
        return [Children(float(weights.sum()), every * [[share], [1 - share]]) for share in (1 / 3, 0.5)]

    monkeypatch.setattr("dpdist.inference.moves.arrange._split", thirds)
    rows, owners = drawn()
    model = model_of(rows)
    sample = SampledRows.of(model, rows, np.ones(len(rows)), 0.2)
    now = sample.stepped([sums(model, rows, np.array([0, 0, 1, 1, 2, 2, 2])[owners])])[0]
    changes = list(_changes(sample, now, Regroup().seedings, np.random.default_rng(0), np.inf))
    kinds = sorted((tuple(removed), len(added)) for _, removed, added in changes)
    pairs = list(combinations(range(3), 2))
    assert kinds == sorted(
        [((k,), 2) for k in range(3)] * 2 + [(pair, 2) for pair in pairs] * 2 + [(p, 1) for p in pairs]
    )
    for gain, removed, added in changes:
        held = now.stats[removed]
        np.testing.assert_allclose(added.sum(axis=0), held.sum(axis=0), rtol=1e-9, atol=1e-9)
        as_one = model.family.log_evidence(np.stack([held.sum(axis=0), *held]) / sample.share)
        lost = as_one[0] - as_one[1:].sum() + (held[:, -1].sum() if len(added) == 2 else 0.0)
        assert gain == pytest.approx(lost, rel=1e-9, abs=1e-6)


def test_splits_merges_and_both_at_once_have_their_turn_each_the_most_promising_first(monkeypatch) -> None:
    gains = {"split": (-50.0, -40.0), "merge": (-900.0, -1e4, -800.0), "both": (-2e4,)}
    removed = {"split": [0], "merge": [0, 1], "both": [0, 1]}
    changes = [
        _Change(gain, removed[kind], np.full((1 if kind == "merge" else 2, 1), gain))
        for kind, found in gains.items()
        for gain in found
    ]
    monkeypatch.setattr("dpdist.inference.moves.arrange._changes", lambda *_: iter(changes))
    now = Arrangement(np.ones((2, 1)), 0.0, np.ones((5, 2)), np.zeros(2))
    found = _candidates(None, now, Regroup().seedings, np.random.default_rng(0), np.inf)
    assert [float(each[-1, 0]) for each in found] == [-40.0, -800.0, -2e4, -50.0, -900.0, -1e4]
    assert [len(each) for each in found] == [3, 1, 2, 3, 1, 1]


def test_what_is_found_in_a_sample_stands_for_all_rows_of_the_group() -> None:
    rows, owners = drawn(each=400)
    mixed = np.array([0, 0, 1, 2, 3, 4, 4])[owners]
    mixed[(owners == 2) & (rows[:, 1] > 0)] = 5
    few = Regroup(smallest=6, largest=8, widest=8, rows=300)
    end = end_of(rows, mixed)
    thin = {k: (part[:: k + 1], own[:: k + 1]) for k, (part, own) in end.samples.items()}
    for each in (end, replace(end, samples=thin)):
        ((group, stats),) = few.births(each, np.zeros(6, bool), Regroup().none(), ()).items()
        assert stats is not None and set(group) == set(range(6))
        np.testing.assert_allclose(np.sort(stats[:, -1]), np.full(7, 400.0), rtol=0.2)
        assert stats[:, -1].sum() == pytest.approx(len(rows))


def test_searches_are_sent_the_rows_they_look_at_and_no_others() -> None:
    sent = list[int]()

    class Sending(SerialBackend):
        def map(self, function, *columns):
            if function is regroup._arrange_task:
                sent.extend(len(drawn.weights) for drawn in columns[2])
            return super().map(function, *columns)

    end = end_of(*drawn(each=400), backend=Sending())
    Regroup(rows=300).births(end, np.zeros(7, bool), Regroup().none(), ())
    assert sent and max(sent) <= 300


@pytest.mark.parametrize(("apart", "found"), [(2.2, 2), (3.0, 3)])
def test_a_few_rows_of_a_group_show_what_pays_on_all_of_them(apart, found) -> None:
    """One component holds two clusters that overlap, which the bound of 600 rows alone would keep together."""
    rng = np.random.default_rng(2)
    owners = np.arange(9000) % 3
    rows = rng.normal(size=(9000, 4)) + np.array([[0.0, 0, 0, 0], [apart, 0, 0, 0], [0, 60, 0, 0]])[owners]
    end = end_of(rows, np.array([0, 0, 1])[owners])
    ((_, stats),) = Regroup(smallest=2, rows=600).births(end, np.zeros(2, bool), Regroup().none(), ()).items()
    assert (2 if stats is None else len(stats)) == found


def test_nothing_is_proposed_where_nothing_is_better() -> None:
    found = Regroup(smallest=2).births(end_of(*drawn()), np.zeros(7, bool), Regroup().none(), ())
    assert found and all(stats is None for stats in found.values())


def test_a_fit_with_regroups_finds_what_its_start_hid() -> None:
    rows, owners = drawn(1)
    start = np.array([0, 0, 1, 2, 3, 4, 4])[owners]
    start[(owners == 2) & (rows[:, 1] > 0)] = 5
    usual = {"initial": start, "random_state": 0, "max_laps": 40}
    alone = dpdist.DPMixture(moves=[Regroup(), dpdist.Merge()], **usual).fit(rows)
    none = dpdist.DPMixture(moves=[dpdist.Merge()], **usual).fit(rows)
    assert alone.n_components_ == 7 and alone.elbo_ > none.elbo_ + 100
    assert alone.converged_


@pytest.mark.parametrize("seed", [47])
def test_components_of_next_to_no_weight_are_left_alone(seed) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(200, 3)), 10.0 ** rng.uniform(-4, 4, 200)
    model = dpdist.DPMixture(dpdist.families.IsotropicGaussian(), random_state=0, max_laps=11)
    model.fit(rows, sample_weight=weights)
    assert model.weights_.sum() + model.rest_weight_ == pytest.approx(1.0)
