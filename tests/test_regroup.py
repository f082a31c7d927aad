"""Regroups: which components are arranged anew together, from which rows, and what is found there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

import dpdist
from dpdist.execution import SerialBackend
from dpdist.inference.moves.arrange import SampledRows, rearranged
from dpdist.inference.moves.base import LapEnd, Proposals
from dpdist.inference.moves.cooldown import Cooldown, Cooldowns
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.regroup import Regroup
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
    moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), True)
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


class Judging(Divisions):
    """Splits of a move before, some of which were judged."""

    def judged(self, ids: np.ndarray) -> np.ndarray:
        return ids != 12


def groups_tried(end: LapEnd, move: Regroup, others: tuple[Proposals, ...] = (), **given) -> list[set[int]]:
    busy = given.get("busy", np.zeros(len(end.ids), bool))
    cooldowns = given.get("cooldowns", Cooldowns())
    return [set(group) for group in move.births(end, busy, cooldowns, others)]


def test_neighbours_are_those_with_which_least_is_lost_a_row() -> None:
    near = end_of(*drawn()).neighbours
    assert near[:6, 0].tolist() == [1, 0, 3, 2, 5, 4]
    assert all(sorted([k, *row]) == list(range(7)) for k, row in enumerate(near.tolist()))


def test_groups_are_disjoint_components_with_their_nearest() -> None:
    tried = groups_tried(end_of(*drawn()), Regroup(members=2))
    assert sum(map(len, tried)) == len(set().union(*tried))
    assert len(tried) == 3 and sum(group in ({0, 1}, {2, 3}, {4, 5}) for group in tried) >= 2


@pytest.mark.parametrize("lap", range(5))
def test_who_finds_its_nearest_taken_is_grouped_with_the_nearest_left(lap) -> None:
    end, taken = end_of(*drawn(), lap=lap), {1}
    groups = list(Regroup(members=2, tries=4).births(end, np.isin(range(7), list(taken)), Cooldowns(), ()))
    assert len(groups) == 3
    for head, *near in groups:
        assert near == [k for k in end.neighbours[head].tolist() if k not in taken][: len(near)]
        taken |= {head, *near}


def test_a_run_about_to_rest_looks_at_all_groups_and_tries_disjoint_ones() -> None:
    rows, owners = drawn()
    end = replace(end_of(rows, np.array([0, 0, 1, 2, 3, 4, 5])[owners]), settled=True)
    found = Regroup(members=3).births(end, np.zeros(6, bool), Cooldowns(), ())
    tried = [group for group, stats in found.items() if stats is not None]
    assert len(tried) == 1 and 0 in tried[0]
    assert {group[0] for group in found} >= {k for k in range(6) if 0 not in (k, *end.neighbours[k, :2])}
    assert {len(group) for group in found} == {3, 4, 5}


def test_groups_have_a_member_more_at_every_try_until_they_are_left_alone() -> None:
    end = end_of(*drawn())
    once = {int(i): Cooldown(1, 0, 150.0) for i in end.ids}
    assert {len(group) for group in groups_tried(end, Regroup(members=2), cooldowns=Cooldowns.of(once))} == {3}
    often = {int(i): Cooldown(3, 0, 150.0) for i in end.ids}
    assert not groups_tried(end, Regroup(members=2), cooldowns=Cooldowns.of(often))


def test_components_at_work_just_changed_without_rows_or_not_split_yet_are_in_no_group() -> None:
    end, move = end_of(*drawn()), Regroup(members=2)
    busy = np.arange(7) == 2
    changed = replace(end, origins=np.where(busy, -1, end.origins))
    unseen = replace(end, samples={k: part for k, part in end.samples.items() if k != 2})
    nothing = Judging.begun([], [])
    for tried in (
        groups_tried(end, move, busy=busy),
        groups_tried(changed, move),
        groups_tried(unseen, move),
        groups_tried(end, move, (nothing,)),
    ):
        assert tried and not any(2 in group for group in tried)


def test_a_changed_neighbourhood_is_worth_another_try() -> None:
    end, move = end_of(*drawn()), Regroup(members=2, tries=1)
    end = replace(end, origins=np.where(np.arange(7) == 3, -1, end.origins))
    refused = Cooldowns.of({int(i): Cooldown(1, 0, 150.0) for i in end.ids})
    assert set(refused.entries) - set(move.rested(end, refused).entries) == {12}


def test_who_is_alone_has_nothing_to_regroup() -> None:
    rows, owners = drawn()
    end = end_of(rows, np.zeros_like(owners))
    assert Regroup().births(end, np.zeros(1, bool), Cooldowns(), ()) == {(0,): None}


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_the_bound_of_a_sample_is_that_of_its_responsibilities(case, allocation) -> None:
    rng = np.random.default_rng(1)
    rows, weights = case.rows(rng, 40, 3), rng.uniform(0.5, 2.0, 40)
    model = Model(filled(case, rows), allocation)
    sample = SampledRows.of(model, rows, weights)
    features = model.family.features(rows)
    candidates = [rng.dirichlet(np.ones(k), size=40).T @ features for k in (2, 3)]
    for stats, found in zip(candidates, sample.stepped(candidates), strict=True):
        resp = softmax(features @ model.gradient(stats[None])[0].T, axis=1)
        resp = resp[:, np.argsort(-(weights @ resp), kind="stable")] if allocation.ordered else resp
        summary = Summary((weights[:, None] * resp).T @ features, entropy(resp, weights))
        assert found.elbo == pytest.approx(model.elbo(summary), rel=1e-9)


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
    found, gain = rearranged(sample, before, Split(), rng)
    np.testing.assert_allclose(np.sort(found[:, -1]), np.sort(truth[:, -1]), atol=2.0)
    first = sample.settled(sample.stepped([before])[0])
    assert gain == pytest.approx(sample.settled(sample.stepped([found])[0]).elbo - first.elbo, abs=0.1)
    again, none = rearranged(sample, found, Split(), rng)
    assert none == 0.0 and len(again) == 3


def test_what_is_found_in_a_sample_stands_for_all_rows_of_the_group() -> None:
    rows, owners = drawn(each=400)
    mixed = np.array([0, 0, 1, 2, 3, 4, 4])[owners]
    mixed[(owners == 2) & (rows[:, 1] > 0)] = 5
    few = Regroup(members=6, rows=300)
    end = end_of(rows, mixed)
    thin = {k: (part[:: k + 1], own[:: k + 1]) for k, (part, own) in end.samples.items()}
    for each in (end, replace(end, samples=thin)):
        ((group, stats),) = few.births(each, np.zeros(6, bool), Cooldowns(), ()).items()
        assert stats is not None and set(group) == set(range(6))
        np.testing.assert_allclose(np.sort(stats[:, -1]), np.full(7, 400.0), rtol=0.2)
        assert stats[:, -1].sum() == pytest.approx(len(rows))


def test_nothing_is_proposed_where_nothing_is_better() -> None:
    found = Regroup(members=2).births(end_of(*drawn()), np.zeros(7, bool), Cooldowns(), ())
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
