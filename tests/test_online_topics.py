"""Topic models with a point estimate of the global weights: bHDP, oHDP and oHDP-SM."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import gammaln, psi

from dpdist.core.errors import InputError
from dpdist.data import ArraySource
from dpdist.data.base import Partition
from dpdist.execution import SerialBackend
from dpdist.execution.connecting import local_backend
from dpdist.inference.moves.accept import Reason
from dpdist.inference.schedules import Batch, Stochastic
from dpdist.inference.topics.batch_summary import Measured
from dpdist.inference.topics.documents import DocumentTopics, Effort, local_step
from dpdist.inference.topics.hyperparameters import LEARNABLE, best_pseudocount, best_values
from dpdist.inference.topics.merges import judge_online_merges
from dpdist.inference.topics.model import TopicModel, TopicPosterior, point_elbo, point_posterior, word_values
from dpdist.inference.topics.online import OnlineState, first_online_state, updated, with_learned
from dpdist.inference.topics.online_engine import OnlineStep, batch_steps, online_steps, partial_step
from dpdist.inference.topics.online_splits import Restriction, judge_splits, with_split
from dpdist.inference.topics.problem import NO_MOVES, OnlinePlan, PointProblem, TopicProblem
from dpdist.inference.topics.restricted import Split, cut_tokens
from dpdist.inference.topics.summary import LOG_PI, TopicSummary
from dpdist.inference.topics.trials import Merging
from dpdist.kernels.sequential_counts import Sparse
from dpdist.kernels.topic_updates import AFTER, EVERY, KEPT, STEADIEST
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.models.allocations.point_weights import PointWeights
from tests.cases import online_bits
from tests.test_topics import Fitted, changed, corpus, model_of, random_fit, start_of, value_of

PROCESSES = [HierarchicalDirichletProcess(gamma, 0.7) for gamma in (0.4, 1.0, 3.0)]
STILL = OnlinePlan(split=False, merge=False, delete=False)


def test_a_start_without_topics_is_refused() -> None:
    with pytest.raises(InputError, match="from one topic or more"):
        first_online_state(model_of(corpus()), TopicSummary.zeros(40, 0))


def brute_force(model: TopicModel, fitted: Fitted, words: np.ndarray, weights: np.ndarray, scale: float = 1.0) -> float:
    """E log p - E log q, term by term and document by document, documents' terms times `scale`."""
    eta, alpha, gamma = model.pseudocount, model.allocation.document_concentration, model.allocation.concentration
    lam = eta + words.T
    log_phi = psi(lam) - psi(lam.sum(axis=1, keepdims=True))
    topics, vocabulary = lam.shape
    bound = topics * (gammaln(vocabulary * eta) - vocabulary * gammaln(eta)) + ((eta - 1) * log_phi).sum()
    bound -= (gammaln(lam.sum(axis=1)) - gammaln(lam).sum(axis=1) + ((lam - 1) * log_phi).sum(axis=1)).sum()
    left = 1 - np.cumsum(weights[:-1])
    bound += topics * np.log(gamma) + (gamma - 1) * np.log(left[-1]) - np.log(left[:-1]).sum()
    for j, r in enumerate(fitted.resp):
        row, theta = fitted.counts[[j]], fitted.theta[j]
        log_pi = psi(theta) - psi(theta.sum())
        part = scale * row.data[:, None] * r
        bound += (part * (log_phi.T[row.indices] + log_pi[:-1] - np.log(np.where(r > 0, r, 1)))).sum()
        prior = gammaln(alpha) - gammaln(alpha * weights).sum() + ((alpha * weights - 1) * log_pi).sum()
        own = gammaln(theta.sum()) - gammaln(theta).sum() + ((theta - 1) * log_pi).sum()
        bound += scale * (prior - own)
    return float(bound)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_of_documents_fitted_under_other_weights_and_topics_is_brute_force(seed: int) -> None:
    documents, rng = corpus(seed), np.random.default_rng(seed)
    priors = [0.7 * rng.dirichlet(np.ones(4)) for _ in range(2)]
    parts = [random_fit(documents[:25], 3, priors[0], seed), random_fit(documents[25:], 3, priors[1], seed + 9)]
    total = parts[0].summary(priors[0]) + parts[1].summary(priors[1])
    whole = Fitted(documents, parts[0].resp + parts[1].resp, np.concatenate([part.theta for part in parts]))
    model, weights = model_of(documents), rng.dirichlet(np.ones(4))
    for words in (total.words, rng.gamma(1.0, 5.0, size=total.words.shape)):
        for scale in (1.0, 7.0):
            found = point_elbo(model, total.scaled(scale), words, weights)
            assert found == pytest.approx(brute_force(model, whole, words, weights, scale), rel=1e-11)


def problem_of(
    documents: sparse.csr_array, plan: OnlinePlan = STILL, learn: tuple[str, ...] = (), **schedule: float
) -> PointProblem:
    rates = {"batches": 3, "forgetting": 0.5, **schedule}
    return TopicProblem(model_of(documents), "point", Stochastic(**rates), plan, Effort(1e-4, 200), seed=5, learn=learn)


def started(documents: sparse.csr_array, topics: int) -> OnlineState:
    start = start_of(documents[:50], topics)
    return first_online_state(model_of(documents), start.scaled(documents.shape[0] / start.documents))


def first(steps: Iterator[OnlineStep], number: int) -> list[OnlineStep]:
    return list(itertools.islice(steps, number))


@pytest.mark.parametrize("learn", [(), LEARNABLE, *((name,) for name in LEARNABLE)])
def test_batch_updates_never_lower_the_bound(learn: tuple[str, ...]) -> None:
    documents = corpus(1, documents=300)
    problem = problem_of(documents, learn=learn)
    source = ArraySource(documents, partition_rows=90)
    steps = first(batch_steps(problem, source, started(documents, 6), SerialBackend()), 35)
    bounds = [step.elbo for step in steps]
    for before, after in itertools.pairwise(bounds):
        assert after >= before - 1e-9 * abs(before)
    assert bounds[-1] > bounds[0]
    assert bounds[-1] - bounds[-2] < 1e-4 * abs(bounds[-1])


def summary_of(problem: PointProblem, documents: sparse.csr_array, state: OnlineState) -> TopicSummary:
    """Sums over documents fitted afresh."""
    posterior = point_posterior(problem.model, state.words, state.weights)
    unknown = DocumentTopics.unknown(documents.shape[0])
    return local_step(posterior, documents, unknown, np.zeros((0, 2), dtype=np.int64), problem.effort)[0]


@pytest.mark.parametrize("begin", [1e-6, 0.2, 30.0, 9e3])
@pytest.mark.parametrize("names", [LEARNABLE, *((name,) for name in LEARNABLE)])
def test_learned_values_are_where_the_bound_is_highest(names: tuple[str, ...], begin: float) -> None:
    documents = corpus(2, documents=300)
    problem, state = problem_of(documents, learn=names), started(documents, 5)
    summary = summary_of(problem, documents, state)
    for name in names:  # a search may begin anywhere
        problem = replace(problem, model=changed(problem.model, name, begin / value_of(problem.model, name)))
    after = updated(problem, state, summary, 1.0)
    model, unlearned = with_learned(problem, after).model, updated(replace(problem, learn=()), state, summary, 1.0)
    np.testing.assert_array_equal(after.weights, unlearned.weights)
    best = point_elbo(model, summary, after.words, after.weights)
    assert best >= point_elbo(problem.model, summary, after.words, after.weights)
    for name in names:
        values = [point_elbo(changed(model, name, 1 + e), summary, after.words, after.weights) for e in (-1e-3, 1e-3)]
        curve = 2 * best - values[0] - values[1]
        assert curve > 0 and abs(values[1] - values[0]) < 1e-2 * curve
        assert getattr(after, name) == value_of(model, name)
    for name in set(LEARNABLE) - set(names):
        assert getattr(after, name) is None and value_of(model, name) == value_of(problem.model, name)


def test_learned_values_follow_mini_batches_in_logarithms() -> None:
    documents = corpus(3, documents=300)
    problem, state = problem_of(documents, learn=LEARNABLE), started(documents, 4)
    summary, rate = summary_of(problem, documents[:100], state).scaled(3.0), 2.0**-0.5
    after = partial_step(problem, documents[:100], 300, state).state
    best = best_values(problem.model, summary, after.words, after.weights, LEARNABLE)
    for name in LEARNABLE:
        expected = (1 - rate) * np.log(value_of(problem.model, name)) + rate * np.log(best[name])
        assert np.log(getattr(after, name)) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    plain = partial_step(replace(problem, learn=()), documents[:100], 300, state).state
    np.testing.assert_array_equal(plain.words, after.words)
    again = partial_step(problem, documents[100:200], 300, after).elbo
    fixed = replace(problem, model=with_learned(problem, after).model, learn=())
    assert again == partial_step(fixed, documents[100:200], 300, after).elbo


def test_alpha_and_eta_of_drawn_documents_are_found() -> None:
    rng, alpha, eta = np.random.default_rng(5), 0.5, 0.05
    words, shares = rng.dirichlet(np.full(100, eta), size=8), rng.dirichlet(np.full(8, alpha / 8), size=1000)
    documents = sparse.csr_array(np.array([rng.multinomial(200, share @ words) for share in shares]).astype(float))
    problem = TopicProblem(
        TopicModel(100, 0.5, HierarchicalDirichletProcess(1.0, 2.0)), "point", Batch(), NO_MOVES, learn=LEARNABLE
    )
    state = OnlineState(4000 * words.T, np.append(np.full(8, 0.12), 0.04), 0, np.arange(8), 8)
    last = first(batch_steps(problem, ArraySource(documents), state, SerialBackend()), 15)[-1].state
    assert last.document_concentration == pytest.approx(alpha, rel=0.15)
    assert last.pseudocount == pytest.approx(eta, rel=0.25)
    assert last.concentration == pytest.approx(8 / -np.log(last.weights[-1]), rel=1e-12)


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(InputError, match=r"should be among concentration, .*; got alpha"):
        problem_of(corpus(), learn=("alpha",))


def test_a_vocabulary_of_one_word_says_nothing_of_the_pseudocount() -> None:
    assert best_pseudocount(TopicModel(1, 0.3, PROCESSES[0]), np.array([[4.0, 2.0]])) == 0.3


def test_one_mini_batch_of_all_documents_at_rate_one_is_a_batch_update() -> None:
    documents = corpus(2, documents=300)
    problem = problem_of(documents, batches=1, delay=0.0)
    source, state = ArraySource(documents, partition_rows=90), started(documents, 4)
    batch = first(batch_steps(problem, source, state, SerialBackend()), 1)[0].state
    online = first(online_steps(problem, source, state, SerialBackend()), 1)[0].state
    np.testing.assert_allclose(online.words, batch.words, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(online.weights, batch.weights, rtol=1e-6)  # of two searches for one optimum
    summary = summary_of(problem, documents, state)
    bounds = [point_elbo(problem.model, summary, batch.words, each.weights) for each in (online, batch)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)
    assert (online.step, online.lap, online.visited) == (1, 2, 0)


def test_a_step_averages_lambda_and_the_weights() -> None:
    documents = corpus(3, documents=300)
    problem, state = problem_of(documents), started(documents, 4)
    part = documents[:100]
    after = partial_step(problem, part, 300, state).state
    summary = summary_of(problem, part, state).scaled(3.0)
    rate, objective = 2.0**-0.5, PointWeights(problem.model.allocation)
    np.testing.assert_allclose(after.words, (1 - rate) * state.words + rate * summary.words, rtol=1e-12)
    log_pi, best = summary.groups[:, LOG_PI], (after.weights - (1 - rate) * state.weights) / rate
    bounds = [objective.value(weights, log_pi, 300.0) for weights in (best, objective.weights(log_pi, 300.0))]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-11)
    assert after.weights.sum() == pytest.approx(1.0, abs=1e-12) and after.step == 1


def test_mini_batches_that_do_not_fit_are_refused() -> None:
    documents = corpus(3)
    problem, state = problem_of(documents), started(documents, 2)
    with pytest.raises(InputError, match="40 columns, one per word of the vocabulary; got 30"):
        partial_step(problem, documents[:, :30], 60, state)
    with pytest.raises(InputError, match="at least 60, the number of documents in the mini-batch"):
        partial_step(problem, documents, 10, state)
    with pytest.raises(InputError, match="iterations of OnlinePlan should be a whole number of at least 1; got 0"):
        OnlinePlan(iterations=0)


def test_a_topic_that_the_mini_batch_does_not_use_is_kept_for_the_words_it_remembers() -> None:
    documents = corpus(4)
    model, found, there = model_of(documents), started(documents, 2), np.ones(40)
    there[10:14] = 0.0  # words of no document here
    seen = sparse.csr_array(documents @ sparse.diags_array(there))
    seen.eliminate_zeros()
    half, other = 2 * found.words[:, :1] * there[:, None], 4 * found.words[:, 1:] * there[:, None]
    words = np.concatenate([half, half, other, 5 * (1 - there[:, None])], axis=1)
    state = OnlineState(words, np.array([0.3, 0.3, 0.3, 0.02, 0.08]), 3, np.arange(4), 4)
    pairs, unknown = np.array([[0, 1], [2, 3]]), DocumentTopics.unknown(seen.shape[0])
    posterior = point_posterior(model, words, state.weights)
    total = Measured(*local_step(posterior, seen, unknown, pairs, Effort())).scaled(4.0)
    assert total.summary.counts[3] < 1
    batch, both = (judge_online_merges(model, state, total, pairs, lasting) for lasting in (False, True))
    assert batch[0].tolist() == [0, 1] and both[0].tolist() == [0]
    alone = model.log_evidences(words)[2:].sum() - model.log_evidences(words[:, 2:].sum(axis=1, keepdims=True))[0]
    own, joint = word_values(model, words, total.summary.words), words[:, 2:].sum(axis=1, keepdims=True)
    lost = word_values(model, joint, total.summary.words[:, 2:].sum(axis=1, keepdims=True))[0] - own[2:].sum()
    gains = [{one.proposal: one.gain for one in judged}[1] for _, judged in (batch, both)]
    assert gains[0] - gains[1] == pytest.approx(lost + alone)


def settled(update: Callable[[np.ndarray], np.ndarray], taken: np.ndarray) -> np.ndarray:
    """The n' and n'' of which the last update is to be made, extrapolated on the way as in the compiled step."""
    before, since = taken, 0
    for step in range(30):
        found = update(taken)
        if abs(found - taken).max() <= 1e-3:
            break
        since += 1
        if step < 29 and since >= EVERY and step >= AFTER:
            last, change = taken - before, found - taken
            ratio = np.clip(np.divide(change, last, out=np.zeros(2), where=last != 0), 0, STEADIEST)
            ahead = np.maximum(found + change * ratio / (1 - ratio), KEPT * found)
            found, since = ahead * found.sum() / ahead.sum(), 0
        if step < 29:
            before, taken = taken, found
    return taken


def divided(
    tokens: np.ndarray, row: np.ndarray, weights: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The restricted local step on one document, spelt out: shares (n, 2), and n' and n''."""

    def shares(pull: np.ndarray) -> np.ndarray:
        found = weights[row] * pull
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    taken = settled(lambda held: tokens @ shares(np.exp(psi(prior + held))), tokens @ shares(prior))
    last = shares(np.exp(psi(prior + taken)))
    return last, tokens @ last


@dataclass
class Splitting:
    """Sixty documents with three topics, the last two of which are to be split.

    `base` has responsibilities as tokens are cut: updated once more from where documents are.
    """

    model: TopicModel
    state: OnlineState
    measured: Measured
    partition: Partition
    begun: list[Split]
    base: Fitted

    def cut(self) -> tuple[Sparse, ...]:
        still = Merging(np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.intp), np.arange(3))
        posterior = point_posterior(self.model, self.state.words, self.state.weights)
        return cut_tokens(self.partition, self.measured, posterior, still, np.array([1, 2], dtype=np.int64))

    def posteriors(self) -> tuple[TopicPosterior, ...]:
        """Of the halves of each split."""
        return tuple(point_posterior(self.model, split.words, split.weights) for split in self.begun)

    def refined(self, smoothing: float, scale: float) -> Split:
        """The second split after one restricted iteration."""
        tokens, backend = [self.cut()], SerialBackend()
        restriction = Restriction(self.model, self.state, smoothing, backend, tokens, scale, 60 * scale)
        return restriction.refined(self.begun, 1)[1]

    def gain(self, split: Split, after: Fitted, scale: float) -> tuple[float, float]:
        """Change of the bound by the split when documents are as in `after`, and the bound before."""
        before = brute_force(self.model, self.base, self.state.words, self.state.weights, scale)
        words = np.column_stack([self.state.words[:, :2], split.words])
        return brute_force(
            self.model, after, words, with_split(self.state.weights, 2, split.weights), scale
        ) - before, before


def splitting(seed: int = 6) -> Splitting:
    documents, rng = corpus(seed), np.random.default_rng(seed)
    model, state = model_of(documents), started(documents, 3)
    posterior = point_posterior(model, state.words, state.weights)
    measured = Measured(
        *local_step(posterior, documents, DocumentTopics.unknown(60), np.zeros((0, 2), dtype=np.int64), Effort())
    )
    halves = [state.words[:, [k, k]] * rng.dirichlet(np.ones(2), size=40) for k in (1, 2)]
    begun = [Split(k, words, state.weights[k] * np.array([0.4, 0.6])) for k, words in zip((1, 2), halves, strict=True)]
    held = measured.topics.matrix(3).toarray()
    base = Fitted(documents, [], posterior.prior + np.pad(held, ((0, 0), (0, 1))))
    for j in range(60):
        row = documents[[j]]
        pulls = np.where(held[j] > 0, psi(base.theta[j, :-1]), -np.inf)
        logs = log_phi_of(model, state.words)[row.indices] + pulls
        r = np.exp(logs - logs.max(axis=1, keepdims=True))
        base.resp.append(r / r.sum(axis=1, keepdims=True))
    return Splitting(model, state, measured, ArraySource(documents).partitions[0], begun, base)


def log_phi_of(model: TopicModel, words: np.ndarray) -> np.ndarray:
    """E log phi, (W, K)."""
    return psi(model.pseudocount + words) - psi(model.vocabulary * model.pseudocount + words.sum(axis=0))


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_the_gain_of_a_split_is_the_change_of_the_recomputed_bound(scale: float) -> None:
    given = splitting()
    model, state, base = given.model, given.state, given.base
    alpha, documents = model.allocation.document_concentration, base.counts
    split = given.refined(scale / 2, scale)
    base.theta[:] = alpha * state.weights
    after = Fitted(documents, [], alpha * with_split(state.weights, 2, split.weights) + np.zeros((60, 5)))
    weights = point_posterior(model, given.begun[1].words, given.begun[1].weights).weights
    for j, r in enumerate(base.resp):
        row = documents[[j]]
        shares, _ = divided(row.data * r[:, 2], row.indices, weights, alpha * given.begun[1].weights)
        after.resp.append(np.concatenate([r[:, :2], r[:, 2:] * shares], axis=1))
        base.theta[j, :-1] += row.data @ r
        after.theta[j, :-1] += row.data @ after.resp[-1]
    seen = scale * after.summary(np.ones(5)).words[:, 2:]
    np.testing.assert_allclose(split.words.sum(axis=1), state.words[:, 2], rtol=1e-12)
    shares = (seen + scale / 2 * seen.sum(axis=0) / seen.sum()) / (seen.sum(axis=1, keepdims=True) + scale / 2)
    np.testing.assert_allclose(split.words, state.words[:, [2]] * shares, rtol=1e-9)
    gain, bound = given.gain(split, after, scale)
    chosen, judged = judge_splits(model, state.weights, [split], 10, 0.0)
    assert judged[0].gain == pytest.approx(gain, abs=1e-9 * abs(bound))
    assert chosen == ([0] if gain > 0 else [])


def test_a_topic_that_is_two_is_split_in_them_and_one_that_is_one_is_not() -> None:
    rng = np.random.default_rng(0)
    topics = np.zeros((3, 30))
    topics[0, :10], topics[1, 10:20], topics[2, 20:] = 0.1, 0.1, 0.1
    shares = rng.dirichlet(np.full(3, 0.2), size=400)
    documents = sparse.csr_array(np.array([rng.multinomial(60, share @ topics) for share in shares]).astype(float))
    plan = OnlinePlan(merge=False, delete=False)
    problem = TopicProblem(TopicModel(30, 0.1, HierarchicalDirichletProcess(1.0, 0.5)), "point", Stochastic(4), plan)
    words = np.stack([topics[0] + topics[1], topics[2]], axis=1) * 8000.0
    words += rng.gamma(1.0, 100.0, size=words.shape)
    state = OnlineState(words, np.array([0.6, 0.3, 0.1]), 0, np.arange(2), 2)
    source = ArraySource(documents, partition_rows=100)
    last = first(online_steps(problem, source, state, SerialBackend()), 8)[-1].state
    unit = last.words / np.linalg.norm(last.words, axis=0)
    assert last.ids.tolist() == list(range(len(last.ids))) and last.next_id == len(last.ids) >= 3
    assert len(last.ids) == 3
    assert ((topics / np.linalg.norm(topics, axis=1, keepdims=True)) @ unit).max(axis=1).min() > 0.98


def test_dask_gives_the_bits_of_serial_and_any_state_goes_on_to_the_same() -> None:
    documents = corpus(8, documents=900, topics=8)
    plan = OnlinePlan(splits=3, merges=6, iterations=4)
    problem, state = problem_of(documents, plan, LEARNABLE), started(documents, 4)
    source = ArraySource(documents, partition_rows=110)
    whole = first(online_steps(problem, source, state, SerialBackend()), 7)
    assert [(step.state.lap, step.state.visited) for step in whole[:4]] == [(1, 1), (1, 2), (2, 0), (2, 1)]
    for place in (1, 2, 4):
        stored = pickle.loads(pickle.dumps(whole[place].state))
        again = first(online_steps(problem, source, stored, SerialBackend()), 6 - place)
        assert online_bits(again[-1].state) == online_bits(whole[-1].state)
    unsure = replace(problem, plan=replace(plan, confidence=0.9))
    whole += first(online_steps(unsure, source, state, SerialBackend()), 2)
    backend = local_backend(2)
    try:
        distributed = first(online_steps(problem, source, state, backend), 7)
        distributed += first(online_steps(unsure, source, state, backend), 2)
    finally:
        backend.close()
    assert online_bits(whole[0].state) != online_bits(whole[7].state)
    for one, other in zip(whole, distributed, strict=True):
        assert online_bits(one.state) == online_bits(other.state) and one.elbo == other.elbo
        assert one.records == other.records
    accepted = {record.kind for step in whole for record in step.records if record.reason is Reason.ACCEPTED}
    assert "split" in accepted


def test_a_batch_state_goes_on_to_the_same_bits() -> None:
    documents = corpus(9, documents=300)
    problem, state = problem_of(documents, learn=LEARNABLE), started(documents, 4)
    source = ArraySource(documents, partition_rows=90)
    whole = first(batch_steps(problem, source, state, SerialBackend()), 4)
    again = first(batch_steps(problem, source, pickle.loads(pickle.dumps(whole[1].state)), SerialBackend()), 2)
    assert online_bits(again[-1].state) == online_bits(whole[-1].state)


def bars(documents: int) -> tuple[np.ndarray, sparse.csr_array]:
    """The 20 bars of a grid of 10 by 10, (20, 100), and documents of 250 words."""
    rng, topics = np.random.default_rng(0), np.zeros((20, 10, 10))
    for i in range(10):
        topics[i, i], topics[10 + i, :, i] = 0.1, 0.1
    topics = topics.reshape(20, 100)
    shares = rng.dirichlet(np.full(20, 0.1), size=documents)
    counts = [rng.multinomial(250, share / share.sum() @ topics) for share in shares]
    return topics, sparse.csr_array(np.array(counts, dtype=np.float64))


def found_bars(state: OnlineState, truth: np.ndarray) -> tuple[int, int]:
    """Bars with a topic of cosine above 0.95, and topics of more than 0.5 % of all tokens."""
    unit = state.words / np.linalg.norm(state.words, axis=0)
    likeness = truth / np.linalg.norm(truth, axis=1, keepdims=True) @ unit
    shares = state.words.sum(axis=0) / state.words.sum()
    return int((likeness.max(axis=1) > 0.95).sum()), int((shares > 0.005).sum())


@pytest.mark.parametrize("topics", [2, 50])
def test_splits_and_merges_find_all_bars_from_few_topics_and_from_many(topics: int) -> None:
    truth, documents = bars(1200)
    model, rng = TopicModel(100, 0.1, HierarchicalDirichletProcess(1.0, 1.0)), np.random.default_rng(1)
    words = rng.gamma(1.0, 3000.0 / topics, size=(100, topics))
    state = OnlineState(words, np.full(topics + 1, 1 / (topics + 1)), 0, np.arange(topics), topics)
    source = ArraySource(documents, partition_rows=150)
    plan = OnlinePlan(iterations=10)
    problem = TopicProblem(model, "point", Stochastic(8, forgetting=0.5), plan, Effort(1e-2, 100))
    moved = first(online_steps(problem, source, state, SerialBackend()), 24)[-1].state
    assert found_bars(moved, truth) == (20, 20)
    if topics == 2:
        problem = replace(problem, plan=STILL)
        plain = first(online_steps(problem, source, state, SerialBackend()), 16)[-1].state
        assert found_bars(plain, truth) == (0, 2)
