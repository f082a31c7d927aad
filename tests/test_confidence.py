"""Moves of online topics that are accepted with confidence: standard errors over documents, and what they refuse."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpdist import OnlinePlan
from dpdist.core.errors import InputError
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.moves.accept import Reason, accepted, judge
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.confidence import (
    Contributions,
    UnionLogs,
    delete_contributions,
    split_contributions,
    split_logs,
    union_contributions,
)
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, PairSums, local_step
from dpdist.inference.topics.local_step import OnlineLocalStep
from dpdist.inference.topics.merges import judge_online_merges
from dpdist.inference.topics.model import TopicModel, point_elbo, point_posterior, word_values
from dpdist.inference.topics.online_deletes import Without, apply_delete, fit_without, judge_deletes
from dpdist.inference.topics.online_engine import partial_step
from dpdist.inference.topics.online_splits import Restriction, judge_splits
from dpdist.inference.topics.restricted import cut_tokens, divide_tokens
from dpdist.inference.topics.summary import TopicSummary
from dpdist.inference.topics.trials import Merging
from tests.cases import online_bits
from tests.test_online_moves import DELETES, NO_CHOICE, beside_a_mixture, bound_after, doubled
from tests.test_online_topics import problem_of, splitting, started
from tests.test_topics import corpus, model_of

ONCE = Effort(1e-7, most=1, fresh=False)

# the rule


@dataclass(frozen=True)
class Fixed:
    """Proposals of fixed gains that change some components each."""

    gains: tuple[float, ...]
    noise: float
    needs: tuple[frozenset[int], ...]
    most: int
    done: tuple[int, ...] = ()

    def gain(self, proposal: int) -> float:
        return self.gains[proposal]

    def threshold(self, proposal: int) -> float:
        return self.noise

    def holds(self, proposal: int) -> bool:
        return not any(self.needs[proposal] & self.needs[other] for other in self.done)

    def too_many_with(self, proposal: int) -> bool:
        return len(self.done) >= self.most

    def after(self, proposal: int) -> Fixed:
        return replace(self, done=(*self.done, proposal))


@st.composite
def doubted(draw) -> tuple[Fixed, np.ndarray]:
    size = draw(st.integers(0, 6))
    some = {"min_size": size, "max_size": size}
    gains = tuple(draw(st.lists(st.floats(-5, 5), **some)))
    needs = tuple(draw(st.lists(st.frozensets(st.integers(0, 4), max_size=2), **some)))
    noise, most = draw(st.sampled_from([0.0, 0.1])), draw(st.integers(0, 6))
    errors = draw(st.lists(st.sampled_from([0.0, np.inf]) | st.floats(0, 5), **some))
    return Fixed(gains, noise, needs, most), np.array(errors)


@given(case=doubted(), bold=st.floats(0.01, 3), more=st.floats(0, 3))
def test_more_confidence_accepts_less_but_for_what_the_accepted_stood_in_the_way_of(case, bold, more) -> None:
    standing, errors = case
    gains = np.array(standing.gains)
    less, some = (judge(standing, gains, doubts=errors * z) for z in (bold + more, bold))
    for verdicts, z in ((less, bold + more), (some, bold)):
        for proposal, gain, reason in verdicts:
            if reason is Reason.UNCERTAIN:
                assert standing.noise < gain <= z * errors[proposal]
            if reason is Reason.ACCEPTED:
                assert gain > max(z * errors[proposal], standing.noise)
    stood = {one.proposal for one in some if one.reason in (Reason.CONFLICT, Reason.LIMIT)}
    assert set(accepted(less)) <= set(accepted(some)) | stood
    if len(set().union(*standing.needs)) == sum(map(len, standing.needs)) and standing.most >= len(gains):
        assert set(accepted(less)) <= set(accepted(some))


@given(case=doubted())
def test_without_doubts_nothing_is_uncertain_and_none_is_as_no_errors(case) -> None:
    standing, errors = case
    plain, sure = (judge(standing, np.array(standing.gains), doubts=each) for each in (None, 0 * np.isinf(errors)))
    assert plain == sure and all(one.reason is not Reason.UNCERTAIN for one in plain)


@pytest.mark.parametrize("confidence", [0.5, 1.0, -1.0, "much", float("nan")])
def test_a_confidence_that_is_none_is_refused(confidence: object) -> None:
    with pytest.raises(InputError, match="confidence of OnlinePlan should be finite and above"):
        OnlinePlan(confidence=confidence)


def test_confidence_is_of_the_normal_distribution() -> None:
    assert OnlinePlan().errors is None
    assert OnlinePlan(confidence=0.975).errors == pytest.approx(1.959963984540054, rel=1e-12)


# standard errors


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=7), st.integers(2, 6))
def test_squared_errors_are_those_of_sampled_totals_on_average(values: list[float], drawn: int) -> None:
    assume(drawn < len(values))
    population, size = np.array(values), len(values)
    samples = [population[list(each)][:, None] for each in itertools.combinations(range(size), drawn)]
    totals = [size / drawn * sample.sum() for sample in samples]
    squares = [Contributions.of(sample).standard_errors(drawn, size)[0] ** 2 for sample in samples]
    assert np.mean(squares) == pytest.approx(np.mean((np.array(totals) - population.sum()) ** 2), abs=1e-9)


def test_all_documents_leave_no_doubt_and_one_leaves_nothing_else() -> None:
    some = Contributions(np.array([3.0, 0.0]), np.array([9.0, 0.0]))
    assert some.standard_errors(7, 7).tolist() == [0, 0] and some.standard_errors(1, 1).tolist() == [0, 0]
    assert some.standard_errors(1, 2).tolist() == [np.inf, np.inf]


def check(found: Contributions, brute: np.ndarray, documents: int, corpus_size: float) -> None:
    """Against what each document contributes, (n, P); others of so many contribute nothing."""
    every = np.zeros((documents, brute.shape[1]))
    every[: len(brute)] = brute
    spread = every.std(axis=0, ddof=1) / np.sqrt(documents) * np.sqrt(1 - documents / corpus_size)
    np.testing.assert_allclose(
        found.standard_errors(documents, corpus_size), corpus_size * spread, rtol=1e-7, atol=1e-9
    )
    np.testing.assert_allclose(found.first, every.sum(axis=0), rtol=1e-7, atol=1e-7)
    assert (spread > 1e-3).sum() > 0.9 * len(spread)


def nothing(words: np.ndarray) -> Measured:
    vocabulary, topics = words.shape
    return Measured(TopicSummary.zeros(vocabulary, topics), PairSums.zeros(66))


def test_what_documents_contribute_to_a_merge_is_the_change_of_the_bound_of_each_alone() -> None:
    model, state, _, pairs = doubled(4)
    documents, posterior = corpus(4), point_posterior(model, state.words, state.weights)
    known = local_step(posterior, documents, DocumentTopics.unknown(60), NO_PAIRS, Effort(1e-3, 20))
    done = OnlineLocalStep(Measured(*known), np.zeros(0), np.zeros((0, 0)))
    alone = [Measured(*local_step(posterior, documents[[j]], known[2].part(j, j + 1), pairs, ONCE)) for j in range(60)]
    constant = [
        bound_after(model, state, nothing(state.words), pairs, [p])
        - bound_after(model, state, nothing(state.words), pairs, [])
        for p in range(66)
    ]
    brute = np.array(
        [
            [
                bound_after(model, state, own, pairs, [p]) - bound_after(model, state, own, pairs, []) - constant[p]
                for p in range(66)
            ]
            for own in alone
        ]
    )
    logs = UnionLogs.of(model, state.words, pairs)
    parts = [
        union_contributions(ArraySource(documents[rows]).partitions[0], part, posterior, logs, Effort(1e-7))
        for rows, part in (
            (slice(0, 60), done),
            (slice(0, 25), replace(done, measured=replace(done.measured, topics=known[2].part(0, 25)))),
            (slice(25, 60), replace(done, measured=replace(done.measured, topics=known[2].part(25, 60)))),
        )
    ]
    check(parts[0], brute, 60, 240.0)
    check(parts[1] + parts[2], brute, 60, 240.0)


def test_what_documents_contribute_to_a_split_is_the_change_of_the_bound_of_each_alone() -> None:
    case, scale = splitting(), 4.0
    model, words = case.model, case.state.words
    tokens, posteriors, errors = case.cut(), case.posteriors(), 1.5
    restriction = Restriction(model, case.state, 0.1 * scale, SerialBackend(), [tokens], scale, 60 * scale)
    splits = restriction.refined(case.begun, 1, errors)
    posterior, topics = point_posterior(model, words, case.state.weights), np.array([1, 2])
    held, brute = case.measured.topics, list[list[float]]()
    assert held is not None
    for j in range(60):
        own = replace(case.measured, topics=held.part(j, j + 1))
        partition = ArraySource(case.base.counts[[j]]).partitions[0]
        still = Merging(NO_PAIRS, NO_CHOICE, np.arange(3))
        halves = divide_tokens(cut_tokens(partition, own, posterior, still, topics), posteriors, True)
        brute.append(
            [change_of(model, words, *each) for each in zip(splits, halves.words, halves.totals[:, 0], strict=True)]
        )
    found = split_contributions(tokens, posteriors, split_logs(model, words, splits))
    check(found, np.array(brute), 60, 240.0)
    np.testing.assert_allclose([split.doubt for split in splits], errors * found.standard_errors(60, 240.0), rtol=1e-9)
    constant = [gain_of(model, words, split, 0 * split.words) for split in splits]
    gains = [split.gain for split in splits]
    np.testing.assert_allclose(gains, np.array(constant) + scale * found.first, rtol=1e-9)
    without = restriction.refined(case.begun, 1)
    assert [split.gain for split in without] == gains and all(split.doubt == -np.inf for split in without)


def gain_of(model: TopicModel, words: np.ndarray, split, seen: np.ndarray) -> float:
    whole = word_values(model, words[:, [split.topic]], seen.sum(axis=1, keepdims=True))[0]
    return float(word_values(model, split.words, seen).sum() - whole)


def change_of(model: TopicModel, words: np.ndarray, split, seen: np.ndarray, measured: float) -> float:
    return gain_of(model, words, split, seen) - gain_of(model, words, split, 0 * seen) + measured


def test_what_documents_contribute_to_a_delete_is_the_change_of_the_bound_of_each_alone() -> None:
    documents, effort, scale = corpus(3), Effort(1e-7, 400), 4.0
    model, state = model_of(documents), started(documents, 8)
    state = replace(state, words=state.words * np.linspace(1.0, 8.0, 8))  # of some the mini-batch has a part
    posterior, none = point_posterior(model, state.words, state.weights), Merging(NO_PAIRS, NO_CHOICE, np.arange(8))
    measured = Measured(*local_step(posterior, documents, DocumentTopics.unknown(60), NO_PAIRS, effort))
    partition, topics = ArraySource(documents).partitions[0], np.arange(8)
    found = delete_contributions(partition, measured, posterior, none, topics, effort)
    fits, held = fit_without(partition, measured, posterior, none, topics, effort), measured.topics
    assert held is not None
    brute = np.zeros((60, 8))
    for j in range(60):
        own = replace(measured, topics=held.part(j, j + 1))
        alone = fit_without(ArraySource(documents[[j]]).partitions[0], own, posterior, none, topics, effort)
        brute[j] = [bound_without(model, state, fit, k) for k, fit in enumerate(alone)]
    empty = Without(TopicSummary.zeros(40, 8), TopicSummary.zeros(40, 7))
    brute -= np.where(held.matrix(8).toarray() > 0, [bound_without(model, state, empty, k) for k in range(8)], brute)
    check(found, brute, 60, 240.0)
    factors = [state.words[:, k].sum() / (scale * fit.before.counts[k]) for k, fit in enumerate(fits)]
    assert min(factors) < 1.5 < max(factors)
    for k, factor in enumerate(factors):
        paying = replace(fits[k], after=replace(fits[k].after, entropy=fits[k].after.entropy + 1e3))
        gain = judge_deletes(model, state, [paying], topics[[k]], scale, 0.0)[1][0].gain
        for part, reason in ((0.99, Reason.ACCEPTED), (1.01, Reason.UNCERTAIN)):
            doubt = np.array([part * gain / max(1.0, factor)])
            judged = judge_deletes(model, state, [paying], topics[[k]], scale, 0.0, doubt)[1]
            assert judged == [(0, gain, reason)] and gain > 0


def bound_without(model: TopicModel, state, fit: Without, k: int) -> float:
    after = apply_delete(state, k)
    change = point_elbo(model, fit.after, after.words, after.weights)
    return change - point_elbo(model, fit.before, state.words, state.weights)


# steps


def test_merges_and_splits_are_refused_where_doubts_are_larger_than_gains() -> None:
    model, state, total, pairs = doubled(4)
    plain = judge_online_merges(model, state, total, pairs, lasting=True)[1]
    gains = {one.proposal: one.gain for one in plain if one.reason is Reason.ACCEPTED}
    doubts = np.zeros(66)
    doubts[list(gains)] = [1.01 * gain for gain in gains.values()]
    judged = {one.proposal: one for one in judge_online_merges(model, state, total, pairs, True, doubts)[1]}
    assert gains and all(judged[p].reason is Reason.UNCERTAIN and judged[p].gain == gains[p] for p in list(gains)[:1])
    case = splitting()
    splits = [replace(split, gain=50.0, doubt=doubt) for split, doubt in zip(case.begun, (49.0, 200.0), strict=True)]
    reasons = {one.proposal: one.reason for one in judge_splits(case.model, case.state.weights, splits, 9, 0.0)[1]}
    assert reasons == {0: Reason.ACCEPTED, 1: Reason.UNCERTAIN}


def test_a_step_with_all_documents_has_no_doubts_and_with_some_accepts_less() -> None:
    model, state, _, _ = doubled(4)
    documents, plan = corpus(4), OnlinePlan(splits=6, merges=100, merge_rate=1.0, iterations=4)
    problem = replace(problem_of(documents, plan), model=model)
    sure = replace(problem, plan=replace(plan, confidence=0.999999))
    whole = [partial_step(each, documents, 60.0, state) for each in (problem, sure)]
    assert online_bits(whole[0].state) == online_bits(whole[1].state) and whole[0].records == whole[1].records
    some = [partial_step(each, documents, 240.0, state) for each in (problem, sure)]
    merges = [{one.components: one for one in step.records if one.kind == "merge"} for step in some]
    assert merges[0].keys() == merges[1].keys()
    kept = [{pair for pair, one in each.items() if one.reason is Reason.ACCEPTED} for each in merges]
    stood = {pair for pair, one in merges[0].items() if one.reason is Reason.CONFLICT}
    assert kept[1] - stood < kept[0]
    reasons = [{one.reason for one in step.records} for step in some]
    assert Reason.UNCERTAIN in reasons[1] and Reason.UNCERTAIN not in reasons[0]


@pytest.mark.parametrize(
    ("confidence", "reason"), [(None, Reason.ACCEPTED), (0.6, Reason.ACCEPTED), (0.999999, Reason.UNCERTAIN)]
)
def test_a_step_deletes_what_other_documents_may_need_unless_it_must_be_sure(
    confidence: float | None, reason: Reason
) -> None:
    documents = corpus(3, documents=100)
    problem = problem_of(documents, OnlinePlan(**DELETES, confidence=confidence))
    step = partial_step(problem, documents, 300.0, beside_a_mixture(documents))
    assert step.records[0].components == (5,) and step.records[0].reason is reason
    assert (5 in step.state.ids) == (reason is Reason.UNCERTAIN)


def test_topics_that_no_document_of_a_partition_uses_are_done_without_there_too() -> None:
    documents, effort = corpus(3), Effort(1e-7, 400)
    model, state = model_of(documents), started(documents, 8)
    posterior, none = point_posterior(model, state.words, state.weights), Merging(NO_PAIRS, NO_CHOICE, np.arange(8))
    measured = Measured(*local_step(posterior, documents[:1], DocumentTopics.unknown(1), NO_PAIRS, effort))
    assert measured.topics is not None
    unused = np.setdiff1d(np.arange(8), measured.topics.topics)[:1]
    given = (ArraySource(documents[:1]).partitions[0], measured, posterior, none, unused, effort)
    assert fit_without(*given)[0].before.documents == 0
    assert delete_contributions(*given).second.tolist() == [0.0]
