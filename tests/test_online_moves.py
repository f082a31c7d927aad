"""Merges, splits and deletes judged on a mini-batch: which are tried, in which order, and what a step makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, psi

from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.execution.base import Ref
from dpdist.inference.moves.accept import Reason
from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.state import Info, Record
from dpdist.inference.topics.batch_summary import Measured, with_removed
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, PairSums, local_step
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.local_step import OnlineLocalStep, online_local_step
from dpdist.inference.topics.merges import ROUNDING, judge_online_merges, propose_online_pairs
from dpdist.inference.topics.model import TopicModel, point_elbo, point_posterior, point_weights
from dpdist.inference.topics.online import OnlineState, with_learned
from dpdist.inference.topics.online_deletes import apply_delete, choose_leftovers, fit_without, judge_deletes
from dpdist.inference.topics.online_engine import batch_steps, online_steps, partial_step, point_state, point_steps
from dpdist.inference.topics.online_splits import (
    Restriction,
    apply_split,
    begin_splits,
    choose_topics,
    judge_splits,
    with_split,
)
from dpdist.inference.topics.problem import NO_MOVES, OnlinePlan, PointProblem, TopicProblem
from dpdist.inference.topics.restricted import Split, cut_tokens, divide_tokens, divided_words
from dpdist.inference.topics.summary import LOG_PI, TopicSummary
from dpdist.inference.topics.trials import Merging
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from tests.test_online_topics import Splitting, bars, first, problem_of, splitting, started, summary_of
from tests.test_topics import corpus, model_of

NO_CHOICE = np.zeros(0, dtype=np.int64)
#: Plans of one kind of moves.
SPLITS: dict[str, Any] = {"merge": False, "delete": False, "iterations": 2}
DELETES: dict[str, Any] = {"merge": False, "split": False}

# deletes


def test_leftovers_are_drawn_from_small_topics_with_two_tokens() -> None:
    counts = np.array([100.0, 1.9, 2.0, 60.0, 5.0, 1e-9])
    drawn = [choose_leftovers(counts, 1, np.random.default_rng(seed)).tolist() for seed in range(20)]
    assert sorted({k for one in drawn for k in one}) == [2, 4]
    assert choose_leftovers(counts, 9, np.random.default_rng(0)).tolist() == [2, 4]
    assert choose_leftovers(np.array([3.0]), 9, np.random.default_rng(0)).tolist() == []


def test_the_gain_of_a_delete_is_the_change_of_the_recomputed_bound_and_grows_with_what_a_topic_remembers() -> None:
    documents, effort = corpus(3), Effort(1e-7, 400)
    model, state = model_of(documents), started(documents, 8)
    posterior, none = point_posterior(model, state.words, state.weights), Merging(NO_PAIRS, NO_CHOICE, np.arange(8))
    measured = Measured(*local_step(posterior, documents, DocumentTopics.unknown(60), NO_PAIRS, effort))
    partition = ArraySource(documents).partitions[0]
    for k in range(8):
        fit = fit_without(partition, measured, posterior, none, np.array([k]), effort)[0]
        tokens = 4 * fit.before.counts[k]
        words = state.words.copy()
        words[:, k] *= tokens / words[:, k].sum()
        alike = replace(state, words=words)
        after = apply_delete(alike, k)
        others = np.flatnonzero(measured.topics.matrix(8)[:, [k]].toarray().ravel() == 0)
        known = measured.topics.matrix(8)[others]
        same = local_step(posterior, documents[others], DocumentTopics.of(known.toarray()), NO_PAIRS, effort)[0]
        left = (with_removed(same, np.array([k])) + fit.after).scaled(4.0)
        change = point_elbo(model, left, after.words, after.weights)
        change -= point_elbo(model, (same + fit.before).scaled(4.0), alike.words, alike.weights)
        gain = judge_deletes(model, alike, [fit], np.array([k]), 4.0, 0.0)[1][0].gain
        assert gain == pytest.approx(change, rel=1e-6, abs=1e-5)
        more = judge_deletes(model, replace(state, words=5 * words), [fit], np.array([k]), 4.0, 0.0)[1][0].gain
        assert more < gain


def test_a_topic_that_mixes_two_others_goes_and_no_other_does() -> None:
    documents = corpus(5, documents=300)
    problem = problem_of(documents, OnlinePlan(split=False, merge=False))
    state = started(documents, 5)
    for _ in range(12):
        state = partial_step(problem, documents, 300.0, state).state
    kept = len(state.ids)
    mixed = np.column_stack([state.words, 0.01 * (state.words[:, 0] + state.words[:, 1])])
    weights = np.append(state.weights[:-1], [0.5 * state.weights[-1]] * 2)
    state = replace(state, words=mixed, weights=weights, ids=np.append(state.ids, 77), next_id=78)
    gone = list[Record]()
    for _ in range(12):
        step = partial_step(problem, documents, 300.0, state)
        gone += [one for one in step.records if one.reason is Reason.ACCEPTED]
        state = step.state
    assert [one.components for one in gone] == [(77,)] and len(state.ids) == kept


def beside_a_mixture(documents: sparse.csr_array, share: float = 0.1) -> OnlineState:
    """Five topics, and a small one that mixes the first two and may go."""
    state = started(documents, 5)
    mixed = np.column_stack([state.words, share * (state.words[:, 0] + state.words[:, 1])])
    weights = np.append(state.weights[:-1], [0.5 * state.weights[-1]] * 2)
    return replace(state, words=mixed, weights=weights, ids=np.arange(6), next_id=6)


@pytest.mark.parametrize("deletes", [0, 1, 3])
def test_a_step_tries_as_many_deletes_as_its_plan_asks_for(deletes: int) -> None:
    documents = corpus(3, documents=100)
    problem = problem_of(documents, OnlinePlan(split=False, merge=False, merges=2, splits=2, deletes=deletes))
    records = partial_step(problem, documents, 300.0, started(documents, 12)).records
    assert [record.kind for record in records] == ["delete"] * deletes


# merges


def visit_of(used: np.ndarray) -> OnlineLocalStep:
    """A visit of documents that have these tokens of topics, (n, K)."""
    topics = used.shape[1]
    totals = np.array([0.0, 0.0, len(used), used.sum()])
    empty = TopicSummary(np.zeros((1, topics)), np.zeros(topics), np.zeros((topics + 1, 4)), totals)
    return OnlineLocalStep(Measured(empty, PairSums.zeros(0)), used.sum(axis=0), used.T @ used)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("most", "alike"), [(0, 0), (3, 0), (100, 0), (0, 2), (0, 7), (2, 3)])
def test_pairs_tried_are_the_most_correlated_and_the_smallest_with_those_most_like_them(
    seed: int, most: int, alike: int
) -> None:
    rng = np.random.default_rng(seed)
    used = rng.gamma(0.5, 10.0, size=(60, 7)) @ rng.dirichlet(np.full(7, 0.5), size=7)
    words = rng.gamma(0.3, 10.0, size=(15, 7)) * rng.permutation(7.0 ** np.arange(7))
    correlations = np.corrcoef(used.T)
    positive = [pair for pair in itertools.combinations(range(7), 2) if correlations[pair] > 0]
    expected = set(sorted(positive, key=lambda pair: -correlations[pair])[:most])
    unit = words / np.linalg.norm(words, axis=0)
    for k in sorted(range(7), key=lambda k: words[:, k].sum())[:alike]:
        other = max((j for j in range(7) if j != k), key=lambda j: unit[:, j] @ unit[:, k])
        expected.add((min(k, other), max(k, other)))
    assert [
        tuple(pair) for pair in propose_online_pairs(visit_of(used).covariances, words, most, alike).tolist()
    ] == sorted(expected)


def test_visits_add_up_to_the_covariances_of_all_documents() -> None:
    used = np.random.default_rng(0).gamma(0.5, 10.0, size=(50, 4))
    both = visit_of(used[:20]) + visit_of(used[20:])
    np.testing.assert_allclose(both.covariances, np.cov(used.T, bias=True), rtol=1e-9, atol=1e-9)


def doubled(seed: int) -> tuple[TopicModel, OnlineState, Measured, np.ndarray]:
    """Twelve topics, the last four of which were cut off the first four, and a mini-batch with all pairs measured."""
    documents, rng = corpus(seed), np.random.default_rng(seed)
    model, state = model_of(documents), started(documents, 8)
    parts = np.concatenate([rng.uniform(0.2, 0.8, size=4), np.ones(4)])
    words = np.concatenate([state.words * parts, (state.words * (1 - parts))[:, :4]], axis=1)
    own = state.weights[:-1]
    weights = np.concatenate([own * parts, (own * (1 - parts))[:4], state.weights[-1:]])
    state = OnlineState(words, weights, 3, np.arange(12), 12)
    pairs = np.array(list(itertools.combinations(range(12), 2)))
    posterior, unknown = point_posterior(model, words, weights), DocumentTopics.unknown(60)
    return (
        model,
        state,
        Measured(*local_step(posterior, documents, unknown, pairs, Effort(1e-7, 400))).scaled(4.0),
        pairs,
    )


def bound_after(
    model: TopicModel, state: OnlineState, total: Measured, pairs: np.ndarray, united: Sequence[int]
) -> float:
    """The bound of the mini-batch with some pairs made one, computed anew."""
    chosen = np.array(sorted(united), dtype=np.intp)
    words, masses, topics = state.words.copy(), state.weights.copy(), len(state.ids)
    for a, b in pairs[chosen]:
        words[:, a] += words[:, b]
        masses[a] += masses[b]
    left = np.setdiff1d(np.arange(topics), pairs[chosen, 1])
    summary = Merging(pairs, chosen, np.arange(len(left))).apply(total, 0).summary
    return point_elbo(model, summary, words[:, left], masses[np.append(left, topics)])


def weights_gain(model: TopicModel, state: OnlineState, total: Measured, pairs: np.ndarray, place: int) -> float:
    """What one pair made one changes of the terms that depend on all weights."""
    first, second = pairs[place]
    log_pi, weights = total.summary.groups[:, LOG_PI].copy(), state.weights.copy()
    before = point_weights(model).value(weights, log_pi, total.summary.documents)
    log_pi[first], weights[first] = total.pairs.groups[place, LOG_PI], weights[first] + weights[second]
    left = np.arange(len(weights)) != second
    return point_weights(model).value(weights[left], log_pi[left], total.summary.documents) - before


@pytest.mark.parametrize("seed", [4, 5])
def test_every_pair_is_judged_once_best_first_on_the_change_of_the_bound_that_those_before_it_left(seed: int) -> None:
    model, state, total, pairs = doubled(seed)
    chosen, judged = judge_online_merges(model, state, total, pairs, lasting=False)
    assert sorted(one.proposal for one in judged) == list(range(66))
    before, united, taken = bound_after(model, state, total, pairs, []), list[int](), set[int]()
    noise = ROUNDING * abs(before)
    own = [bound_after(model, state, total, pairs, [place]) - before for place in range(66)]
    own = [gain - weights_gain(model, state, total, pairs, place) for place, gain in enumerate(own)]
    assert [own[one.proposal] for one in judged] == pytest.approx(sorted(own, reverse=True), abs=1e-9 * abs(before))
    for one in judged:
        pair = set(pairs[one.proposal].tolist())
        if pair & taken:
            assert one.reason is Reason.CONFLICT
            continue
        change = bound_after(model, state, total, pairs, [*united, one.proposal]) - before
        assert one.gain == pytest.approx(change, abs=1e-11 * abs(before))
        assert one.reason is (Reason.ACCEPTED if change > noise else Reason.NO_GAIN)
        if one.reason is Reason.ACCEPTED:
            united, taken, before = [*united, one.proposal], taken | pair, before + change
    assert chosen.tolist() == sorted(united) and 4 <= len(united) < 6
    assert len(set(pairs[chosen].ravel().tolist())) == 2 * len(chosen)


def test_a_gain_within_rounding_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, state, total, pairs = doubled(4)
    best = judge_online_merges(model, state, total, pairs, lasting=False)[1][0]
    bound = abs(point_elbo(model, total.summary, state.words, state.weights))
    for factor, reason in ((0.99, Reason.ACCEPTED), (1.01, Reason.ROUNDING)):
        monkeypatch.setattr("dpdist.inference.topics.merges.ROUNDING", factor * best.gain / bound)
        chosen, judged = judge_online_merges(model, state, total, pairs, lasting=False)
        assert judged[0].reason is reason and (best.proposal in chosen) == (reason is Reason.ACCEPTED)


# splits


@pytest.mark.parametrize("most", [1, 3, 9])
def test_topics_to_split_are_drawn_once_each_with_chances_of_their_tokens(most: int) -> None:
    counts = np.array([0.0, 30.0, 1.9, 2.0, 60.0, 8.0])
    drawn = [choose_topics(counts, most, np.random.default_rng(seed)) for seed in range(400)]
    for topics in drawn:
        assert topics.tolist() == sorted(set(topics.tolist())) and set(topics.tolist()) <= {1, 3, 4, 5}
        assert len(topics) == min(most, 4)
    if most == 1:
        share = np.bincount(np.concatenate(drawn), minlength=6) / 400
        np.testing.assert_allclose(share, np.where(counts >= 2, counts, 0) / 100, atol=0.06)
    assert len(choose_topics(np.array([1.0, 0.0]), most, np.random.default_rng(0))) == 0


def test_halves_begin_as_the_past_and_the_mini_batch_which_are_the_topic() -> None:
    documents, rate = corpus(1), 0.3
    model, before = model_of(documents), started(documents, 4)
    posterior = point_posterior(model, before.words, before.weights)
    scaled = local_step(posterior, documents, DocumentTopics.unknown(60), np.zeros((0, 2), dtype=np.int64), Effort())[0]
    words = (1 - rate) * before.words + rate * scaled.words
    after = replace(before, words=words, weights=np.random.default_rng(0).dirichlet(50 * before.weights))
    splits = begin_splits(model, before, after, scaled, rate, np.array([1, 3]))
    assert [split.topic for split in splits] == [1, 3]
    for split in splits:
        past = 0.7 * (0.2 + before.words[:, split.topic])
        batch = 0.3 * (0.2 + scaled.words[:, split.topic])
        np.testing.assert_allclose(0.2 + split.words, np.stack([past, batch], axis=1), rtol=1e-12)
        assert split.weights[0] == pytest.approx(0.7 * before.weights[split.topic])
        assert split.weights.sum() == pytest.approx(after.weights[split.topic])


def iterated(given: Splitting, smoothing: float, begun: list[Split], iterations: int, scale: float) -> list[Split]:
    restriction = Restriction(given.model, given.state, smoothing, SerialBackend(), [given.cut()], scale, 60 * scale)
    return restriction.refined(begun, iterations)


def test_an_iteration_divides_tokens_then_lambda_then_the_weights_that_raise_the_bound_most() -> None:
    given, scale = splitting(), 3.0
    given.begun = [replace(split, weights=split.weights.sum() * np.array([0.15, 0.85])) for split in given.begun]
    smoothing = 0.1 * scale
    halves = divide_tokens(given.cut(), given.posteriors(), False).scaled(scale)
    once = []
    for split, words, log_theta, totals in zip(given.begun, halves.words, halves.log_theta, halves.totals, strict=True):
        weights = best_halves(0.7 * split.weights, log_theta, totals[1], 60 * scale) / 0.7
        once.append(replace(split, words=divided_words(given.state.words, split, words, smoothing), weights=weights))
    two, composed = iterated(given, smoothing, given.begun, 2, scale), iterated(given, smoothing, once, 1, scale)
    for one, other, begun in zip(two, composed, given.begun, strict=True):
        assert abs(one.weights - begun.weights).max() > 1e-3
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-6)
        np.testing.assert_allclose(one.words, other.words, rtol=1e-5, atol=1e-5)
        assert one.gain == pytest.approx(other.gain, rel=1e-5)


def best_halves(prior: np.ndarray, log_theta: np.ndarray, used: float, documents: float) -> np.ndarray:
    """alpha beta of two halves that raises the bound most, by a plain search.

    Parameters
    ----------
    prior : (2,) under which documents were divided
    log_theta : (2,) sums of psi(theta) over the documents that use the topic
    used, documents : their number, and all
    """
    pull = log_theta + (documents - used) * psi(prior)

    def halves(odds: float) -> np.ndarray:
        return prior.sum() / (1 + np.exp(np.array([-odds, odds])))

    def lost(odds: float) -> float:
        return float(documents * gammaln(halves(odds)).sum() - halves(odds) @ pull)

    return halves(minimize_scalar(lost, bounds=(-15, 15), method="bounded", options={"xatol": 1e-10}).x)


@pytest.mark.parametrize("seed", [6, 7, 8])
def test_gains_rise_with_refinement(seed: int) -> None:
    given = splitting(seed)
    gains = np.array([[split.gain for split in iterated(given, 0.1, given.begun, n, 1.0)] for n in (1, 2, 5, 20)])
    assert (gains[1] > gains[0]).all() and (gains[2] > gains[1]).all() and (gains[3] > gains[1] + 5).all()


def test_a_step_refines_its_splits_as_often_as_its_plan_says() -> None:
    documents = corpus(2, documents=300)
    state, gains = started(documents, 4), list[list[float]]()
    for iterations in (1, 2, 12):
        problem = problem_of(documents, OnlinePlan(merge=False, delete=False, iterations=iterations))
        records = partial_step(problem, documents[:100], 300.0, state).records
        gains.append([record.gain for record in sorted(records, key=lambda record: record.components)])
    assert len(gains[0]) == 4
    assert (np.diff(gains, axis=0).sum(axis=1) > 0).all()


def test_splits_are_chosen_best_first_up_to_their_number_each_with_the_weights_of_those_before() -> None:
    rng, model = np.random.default_rng(0), model_of(corpus())
    weights = rng.dirichlet(np.full(7, 5.0))
    gains = [3.0, -50.0, 40.0, 12.0, 0.5, 12.0]
    splits = [Split(k, np.zeros((40, 2)), weights[k] * rng.dirichlet([4, 4]), gain) for k, gain in enumerate(gains)]
    density = point_weights(model).log_density
    for most in (0, 1, 3, 9):
        chosen, judged = judge_splits(model, weights, splits, most, 0.0)
        assert [one.proposal for one in judged] == [2, 3, 5, 0, 4, 1]
        now, expected = weights, list[int]()
        for one in judged:
            after = with_split(now, one.proposal, splits[one.proposal].weights)
            assert after.sum() == pytest.approx(1.0) and len(after) == len(now) + 1
            gain = gains[one.proposal] + density(after) - density(now)
            assert one.gain == pytest.approx(gain, rel=1e-12)
            pays = Reason.ACCEPTED if len(expected) < most else Reason.LIMIT
            assert one.reason is (pays if gain > 0 else Reason.NO_GAIN)
            if one.reason is Reason.ACCEPTED:
                now, expected = after, [*expected, one.proposal]
        assert chosen == expected and len(chosen) <= most
    noisy = judge_splits(model, weights, splits, 9, judged[0].gain)[1]
    assert noisy[0].reason is Reason.ROUNDING


def test_a_split_topic_keeps_its_id_and_place_and_its_second_half_comes_last() -> None:
    rng = np.random.default_rng(0)
    state = OnlineState(rng.gamma(1.0, size=(9, 3)), np.array([0.2, 0.3, 0.4, 0.1]), 5, np.array([4, 7, 2]), 11)
    split = Split(1, rng.gamma(1.0, size=(9, 2)), np.array([0.25, 0.05]))
    after = apply_split(state, split)
    assert after.ids.tolist() == [4, 7, 2, 11] and after.next_id == 12
    np.testing.assert_array_equal(after.words[:, [1, 3]], split.words)
    np.testing.assert_array_equal(after.words[:, [0, 2]], state.words[:, [0, 2]])
    np.testing.assert_allclose(after.weights, [0.2, 0.25, 0.4, 0.05, 0.1])


# steps


def check_step(before: OnlineState, after: OnlineState, records: Sequence[Record], bound: int) -> None:
    """K is within its bound, ids are new or were there, and no topic is in two moves of a kind."""
    accepted = {
        kind: [record.components for record in records if record.kind == kind and record.reason is Reason.ACCEPTED]
        for kind in ("merge", "split", "delete")
    }
    merged = list(itertools.chain(*accepted["merge"]))
    assert len(set(merged)) == len(merged)
    assert len(set(accepted["split"])) == len(accepted["split"])
    gone, born = {second for _, second in accepted["merge"]}, len(accepted["split"])
    gone |= {only for (only,) in accepted["delete"]}
    assert len(accepted["delete"]) <= (not born)
    assert after.ids.tolist() == [k for k in before.ids.tolist() if k not in gone] + list(
        range(before.next_id, before.next_id + born)
    )
    assert len(after.ids) <= max(bound, len(before.ids)) and after.next_id == before.next_id + born
    assert after.words.shape[1] == len(after.weights) - 1 == len(after.ids)
    assert after.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("topics", "bound"), [(2, 5), (30, 12), (12, 12)])
def test_the_number_of_topics_keeps_its_bound_after_every_step(topics: int, bound: int) -> None:
    _, documents = bars(400)
    model, rng = TopicModel(100, 0.1, HierarchicalDirichletProcess(1.0, 1.0)), np.random.default_rng(1)
    words = rng.gamma(1.0, 1000.0 / topics, size=(100, topics))
    state = OnlineState(words, np.full(topics + 1, 1 / (topics + 1)), 0, np.arange(topics), topics)
    plan = OnlinePlan(iterations=4, max_topics=bound)
    problem = TopicProblem(model, "point", Stochastic(4, forgetting=0.5), plan, Effort(1e-2, 50))
    reasons, sizes = set[Reason](), list[int]()
    for step in first(online_steps(problem, ArraySource(documents, partition_rows=100), state, SerialBackend()), 8):
        check_step(state, step.state, step.records, bound)
        state = step.state
        sizes.append(len(state.ids))
        reasons |= {record.reason for record in step.records if record.kind == "split"}
    assert max(sizes[1:]) >= bound or topics > bound
    assert Reason.LIMIT in reasons


def test_merged_topics_hand_on_their_words_and_weights() -> None:
    model, state, _, _ = doubled(4)
    late = replace(state, step=10**13)  # so that nothing is learned
    problem = replace(problem_of(corpus(4), OnlinePlan(split=False, merges=100, lasting=False)), model=model)
    info = partial_step(problem, corpus(4), 240.0, late)
    after = info.state
    np.testing.assert_allclose(after.words.sum(axis=1), state.words.sum(axis=1), rtol=1e-5, atol=1e-5)
    assert after.weights.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(after.weights[-1], state.weights[-1], rtol=1e-5)
    places = {int(own): place for place, own in enumerate(after.ids)}
    united = [record.components for record in info.records if record.reason is Reason.ACCEPTED]
    assert len(united) == 12 - len(after.ids) >= 4
    for kept, gone in united:
        expected = state.words[:, [kept, gone]].sum(axis=1)
        np.testing.assert_allclose(after.words[:, places[kept]], expected, rtol=1e-5, atol=1e-5)
        assert after.weights[places[kept]] == pytest.approx(state.weights[[kept, gone]].sum(), rel=1e-5)


class Watched(SerialBackend):
    """Takes down which documents are visited."""

    def __init__(self) -> None:
        self.visited = list[list[int]]()

    def map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Ref]:
        if function is online_local_step:
            self.visited.append([partition.index for partition in columns[0]])
        return super().map(function, *columns)


def test_each_pass_takes_every_partition_once_in_an_order_of_its_own() -> None:
    documents, backend = corpus(3, documents=240), Watched()
    problem, state = problem_of(documents, batches=4), started(documents, 3)
    source = ArraySource(documents, partition_rows=20)
    first(online_steps(problem, source, state, backend), 12)
    passes = [list(itertools.chain(*backend.visited[start : start + 4])) for start in (0, 4, 8)]
    assert all(sorted(each) == list(range(12)) for each in passes)
    assert len({tuple(each) for each in passes}) == 3
    assert {len(batch) for batch in backend.visited} == {3}


def kinds_in(problem: PointProblem, plan: OnlinePlan) -> tuple[int, int]:
    """How many merges and splits one step tries."""
    documents = corpus(3, documents=100)
    info = partial_step(replace(problem, plan=plan), documents, 300.0, started(documents, 6))
    kinds = [record.kind for record in info.records]
    return kinds.count("merge"), kinds.count("split")


def test_a_step_tries_as_many_moves_as_its_plan_asks_for() -> None:
    problem = problem_of(corpus(3))
    assert kinds_in(problem, OnlinePlan(splits=2, merges=0, alike=0, iterations=1)) == (0, 2)
    assert kinds_in(problem, OnlinePlan(splits=0, merges=1, merge_rate=1.0, alike=0)) == (1, 0)
    assert kinds_in(problem, OnlinePlan(split=False, merges=0, alike=1)) == (1, 0)
    assert kinds_in(problem, OnlinePlan(merge=False, iterations=1)) == (0, 6)
    assert 3 <= kinds_in(problem, OnlinePlan(splits=0, merges=0, alike=6))[0] <= 6


@pytest.mark.parametrize(("rate", "tried"), [(0.7, 0), (0.71, 1), (1.0, 1)])
def test_pairs_that_covary_wait_for_updates_of_the_rate_that_the_plan_says(rate: float, tried: int) -> None:
    problem = problem_of(corpus(3))
    assert 0.7 < problem.schedule.rate(0) < 0.71
    assert kinds_in(problem, OnlinePlan(splits=0, merges=1, merge_rate=rate, alike=0)) == (tried, 0)


def test_lasting_merges_are_the_choice_of_the_plan() -> None:
    model, state, _, _ = doubled(4)
    documents = corpus(4)
    lasting, batch = (
        partial_step(
            replace(problem_of(documents, OnlinePlan(split=False, lasting=each)), model=model), documents, 240.0, state
        )
        for each in (True, False)
    )
    gains = [{one.components: one.gain for one in step.records} for step in (lasting, batch)]
    assert any(gains[0][pair] < gains[1][pair] - 1 for pair in gains[0])


def test_topics_are_split_for_their_tokens_in_the_mini_batch_not_in_the_corpus() -> None:
    counts = np.random.default_rng(0).poisson(2.0, size=(50, 10)).astype(float)
    counts[:, 9], counts[7, 9] = 0.0, 1.0
    words = np.zeros((10, 3))
    words[:5, 0], words[5:9, 1], words[9, 2] = 900.0, 900.0, 900.0
    problem = TopicProblem(
        TopicModel(10, 0.1, HierarchicalDirichletProcess(1.0, 1.0)),
        "point",
        Stochastic(forgetting=0.5),
        OnlinePlan(merge=False, iterations=1),
    )
    state = OnlineState(words, np.array([0.4, 0.4, 0.1, 0.1]), 0, np.arange(3), 3)
    records = partial_step(problem, sparse.csr_array(counts), 5000.0, state).records
    assert sorted(record.components for record in records) == [(0,), (1,)]


def test_a_batch_update_tells_its_bound_with_what_it_has_learned() -> None:
    documents = corpus(1, documents=120)
    problem, state = problem_of(documents, learn=LEARNABLE), started(documents, 4)
    info = next(batch_steps(problem, ArraySource(documents), state, SerialBackend()))
    after = info.state
    summary = summary_of(problem, documents, state)
    expected = point_elbo(with_learned(problem, after).model, summary, after.words, after.weights)
    assert info.elbo == pytest.approx(expected, rel=1e-9)
    assert abs(expected - point_elbo(problem.model, summary, after.words, after.weights)) > 1e-3 * abs(expected)


@pytest.mark.parametrize("moves", [SPLITS | {"splits": 1}, DELETES | {"deletes": 1}], ids=["split", "delete"])
def test_each_step_draws_topics_of_its_own(moves: dict[str, Any]) -> None:
    documents, state = corpus(3, documents=100), started(corpus(3), 12)
    problem = problem_of(documents, OnlinePlan(**moves))
    steps = [replace(state, step=step) for step in (0, 1, 2, 3, 4, 5, 0)]
    drawn = [partial_step(problem, documents, 300.0, each).records[0].components for each in steps]
    assert len(set(drawn)) > 1 and drawn[0] == drawn[-1]


def test_a_step_tells_the_bound_of_its_mini_batch_under_the_topics_before_it() -> None:
    documents, state = corpus(3, documents=100), started(corpus(3), 4)
    problem = problem_of(documents, OnlinePlan(splits=2, iterations=2), LEARNABLE)
    info = partial_step(problem, documents, 700.0, state)
    summary = summary_of(problem, documents, state).scaled(7.0)
    assert info.elbo == pytest.approx(point_elbo(problem.model, summary, state.words, state.weights), rel=1e-6)
    assert (info.state.step, info.documents) == (1, 100.0)


@pytest.mark.parametrize("moves", [SPLITS, DELETES], ids=["splits", "deletes"])
def test_topics_are_judged_with_what_their_step_has_learned(moves: dict[str, Any]) -> None:
    documents, state = corpus(3, documents=100), started(corpus(3), 9)
    problem = problem_of(documents, OnlinePlan(**moves))
    fixed, learned = (partial_step(replace(problem, learn=names), documents, 300.0, state) for names in ((), LEARNABLE))
    assert learned.state.pseudocount is not None
    gains = [{one.components: one.gain for one in step.records} for step in (fixed, learned)]
    assert gains[0].keys() == gains[1].keys() and len(gains[0]) > 2
    assert all(abs(gain - gains[1][topic]) > 1e-3 for topic, gain in gains[0].items())


@pytest.mark.parametrize("moves", [SPLITS, DELETES], ids=["split", "delete"])
@pytest.mark.parametrize(("factor", "reason"), [(0.99, Reason.ACCEPTED), (1.01, Reason.ROUNDING)])
def test_a_step_takes_no_gain_within_rounding_of_the_bound_of_its_mini_batch(
    moves: dict[str, Any], factor: float, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = corpus(3, documents=100)
    state = started(documents, 4) if moves is SPLITS else beside_a_mixture(documents)
    given = problem_of(documents, OnlinePlan(**moves)), documents, 300.0, state
    plain = partial_step(*given)
    share = factor * plain.records[0].gain / abs(plain.elbo)
    monkeypatch.setattr("dpdist.inference.topics.online_engine.ROUNDING", share)
    assert partial_step(*given).records[0].reason is reason and plain.records[0].reason is Reason.ACCEPTED


def test_twice_the_documents_of_a_mini_batch_with_twice_the_smoothing_split_topics_alike() -> None:
    documents, state = corpus(3, documents=100), started(corpus(3), 4)
    one, two = (
        partial_step(problem_of(documents, OnlinePlan(**SPLITS, smoothing=3.0 * times)), each, 400.0, state)
        for times, each in ((1, documents), (2, sparse.csr_array(sparse.vstack([documents, documents]))))
    )
    assert len(one.state.ids) > 4
    np.testing.assert_allclose(two.state.words, one.state.words, rtol=1e-8, atol=1e-8)


def test_an_update_that_forgets_the_past_splits_nothing_and_the_next_does() -> None:
    documents = corpus(3, documents=100)
    problem = problem_of(documents, OnlinePlan(**SPLITS), delay=0.0)
    first_step = partial_step(problem, documents, 300.0, started(documents, 4))
    assert problem.schedule.rate(0) == 1 and first_step.records == ()
    assert np.isfinite(first_step.state.words).all() and np.isfinite(first_step.state.weights).all()
    assert partial_step(problem, documents, 300.0, first_step.state).records


def test_a_step_does_not_depend_on_how_its_documents_are_cut_into_partitions() -> None:
    documents, state = corpus(5, documents=200), started(corpus(5), 5)
    problem = problem_of(documents, OnlinePlan(iterations=3), batches=1)
    whole, cut = (
        next(online_steps(problem, ArraySource(documents, partition_rows=rows), state, SerialBackend()))
        for rows in (200, 30)
    )
    np.testing.assert_allclose(cut.state.words, whole.state.words, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(cut.state.weights, whole.state.weights, rtol=1e-4)
    assert cut.elbo == pytest.approx(whole.elbo, rel=1e-9)
    assert {one.kind for one in whole.records} == {"merge", "split"}
    for one, other in zip(whole.records, cut.records, strict=True):
        assert one.components == other.components and one.reason is other.reason
        assert one.gain == pytest.approx(other.gain, rel=1e-4, abs=1e-2)


def test_tokens_cut_for_splits_are_all_tokens_of_the_topics_left() -> None:
    model, state, _, pairs = doubled(4)
    documents, chosen = corpus(4), np.array([5, 33])
    merging = Merging(pairs, chosen, np.arange(10))
    posterior, unknown = point_posterior(model, state.words, state.weights), DocumentTopics.unknown(60)
    measured = Measured(*local_step(posterior, documents, unknown, pairs, Effort()))
    left = merging.left(12)
    after = point_posterior(model, state.words[:, left], state.weights[np.append(left, 12)])
    parts = cut_tokens(ArraySource(documents).partitions[0], measured, after, merging, np.arange(10))
    assert sum(part.values.sum() for part in parts) == pytest.approx(documents.sum(), rel=1e-6)
    found = np.zeros((60, 40))
    for part in parts:
        found[np.repeat(np.arange(60), np.diff(part.begins)), part.columns] += part.values
    np.testing.assert_allclose(found, documents.toarray(), rtol=1e-6)


# passes


def plain(info: Info) -> tuple[Any, ...]:
    return info.records, info.elbo, info.n_components, info.ids.tolist(), info.counts.tolist(), info.rows


def test_a_pass_tells_what_all_its_mini_batches_did_wherever_it_goes_on_from() -> None:
    documents = corpus(8, documents=300, topics=8)
    problem, state = problem_of(documents, OnlinePlan(splits=3, iterations=3)), started(documents, 4)
    source = ArraySource(documents, partition_rows=50)
    steps = first(online_steps(problem, source, state, SerialBackend()), 6)
    passes = list(islice(point_steps(problem, source, point_state(problem, source, state), SerialBackend()), 6))
    assert [each.info is None for each in passes] == [True, True, False] * 2
    assert [(each.state.lap, each.state.visited) for each in passes] == [(1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0)]
    for place, batches in ((2, steps[:3]), (5, steps[3:])):
        info, last = passes[place].info, batches[-1]
        assert info is not None and info.lap == place // 3 + 1
        records = tuple(itertools.chain(*(each.records for each in batches)))
        counts, ids = last.state.words.sum(axis=0).tolist(), last.state.ids.tolist()
        assert plain(info) == (records, last.elbo, len(ids), ids, counts, 300.0)
        assert info.seconds > 0 and passes[place].state.running.records == ()
        again = next(point_steps(problem, source, passes[place - 1].state, SerialBackend())).info
        assert again is not None and plain(again) == plain(info)
    assert len({step.records for step in steps}) == 6


def test_batch_inference_has_settled_when_the_bound_changes_by_less_than_a_tolerance_a_token() -> None:
    documents = corpus(1, documents=120)
    tokens, tolerance = documents.sum(), 2e-3
    problem = TopicProblem(
        model_of(documents), "point", Batch(), NO_MOVES, effort=Effort(1e-4, 200), tolerance=tolerance
    )
    source, state = ArraySource(documents, partition_rows=50), started(documents, 4)
    passes = list(islice(point_steps(problem, source, point_state(problem, source, state), SerialBackend()), 15))
    bounds = [each.info.elbo for each in passes if each.info is not None]
    assert bounds == [each.elbo for each in first(batch_steps(problem, source, state, SerialBackend()), 15)]
    settled = [bool(abs(change) < tolerance * tokens) for change in np.diff(bounds)]
    assert [each.state.quiet for each in passes] == [False, *settled] and any(settled) and not all(settled)
    falling = replace(passes[0].state, elbo=bounds[0] + 2 * tolerance * tokens + abs(bounds[1] - bounds[0]))
    after = next(point_steps(problem, source, falling, SerialBackend()))
    assert not after.state.quiet
