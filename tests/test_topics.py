"""Topic models: the bound against brute force and an independent program, and the laws of moves and laps."""

from __future__ import annotations

import itertools
import pickle
import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import betaln, gammaln, polygamma, psi

from dpdist.core.errors import CheckpointError, InputError, PrecisionError
from dpdist.core.places import LocalPlace
from dpdist.data import ArraySource
from dpdist.execution import Backend, SerialBackend
from dpdist.execution.connecting import local_backend
from dpdist.inference.moves.accept import Reason
from dpdist.inference.schedules import Memoized
from dpdist.inference.topics.batch_summary import Measured, united, unused, with_removed
from dpdist.inference.topics.births import seek_topics
from dpdist.inference.topics.documents import DocumentTopics, Effort, PairSums, local_step
from dpdist.inference.topics.engine import first_topic_state, topic_steps
from dpdist.inference.topics.evaluation import coherence, completion_score, top_words
from dpdist.inference.topics.hyperparameters import LEARNABLE, learned
from dpdist.inference.topics.kept import DocumentFiles, TopicNames, VisitedDocuments
from dpdist.inference.topics.merges import judge_merges, propose_pairs
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.problem import TopicPlan, TopicProblem
from dpdist.inference.topics.summary import (
    DOCUMENTS,
    LOG_GAMMA,
    LOG_GAMMA_SUM,
    LOG_PI,
    PRIOR,
    PSI_SUM,
    SLACK,
    TopicSummary,
)
from dpdist.kernels.special import digamma, trigamma
from dpdist.kernels.topics import evidence_slopes
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess, Sticks
from dpdist.runs.limits import Limits
from dpdist.runs.methods.topics import MemoizedTopics
from dpdist.runs.opening import resumed
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import Asked, RunStore
from dpdist.storage.history import History
from dpdist.storage.memo import Memo
from tests.conftest import shared_path
from tests.runs import Elsewhere

NO_PAIRS = np.zeros((0, 2), dtype=np.int64)
ALLOCATION = HierarchicalDirichletProcess(2.0, 0.7)


def corpus(seed: int = 0, documents: int = 60, vocabulary: int = 40, topics: int = 5) -> sparse.csr_array:
    """Documents of a topic model, one of them empty."""
    rng = np.random.default_rng(seed)
    words = rng.dirichlet(np.full(vocabulary, 0.1), size=topics)
    shares = rng.dirichlet(np.full(topics, 0.3), size=documents)
    counts = np.array([rng.multinomial(rng.integers(20, 60), share @ words) for share in shares])
    counts[3] = 0
    return sparse.csr_array(counts.astype(np.float64))


def model_of(documents: sparse.csr_array) -> TopicModel:
    return TopicModel(documents.shape[1], 0.2, ALLOCATION)


@dataclass
class Fitted:
    """Documents with q(z) and q(pi) spelt out: responsibilities by document (words, K), and theta (n, K + 1)."""

    counts: sparse.csr_array
    resp: list[np.ndarray]
    theta: np.ndarray

    def summary(self, prior: np.ndarray) -> TopicSummary:
        """The sums, spelt out; `prior` (K + 1,) is what theta was made with."""
        documents, vocabulary = self.counts.shape
        topics = self.theta.shape[1] - 1
        words, entropy = np.zeros((vocabulary, topics)), np.zeros(topics)
        held = np.zeros((documents, topics + 1))
        for j, r in enumerate(self.resp):
            row = self.counts[[j]]
            part = row.data[:, None] * r
            words[row.indices] += part
            held[j, :-1] = part.sum(axis=0)
            entropy -= (part * np.log(np.where(r > 0, r, 1))).sum(axis=0)
        log_pi = psi(self.theta) - psi(self.theta.sum(axis=1, keepdims=True))
        slack = ((held - self.theta) * log_pi).sum(axis=0)
        groups = np.stack([log_pi.sum(0), gammaln(self.theta).sum(0), slack, documents * prior], axis=1)
        mass = self.theta.sum(axis=1)
        totals = np.array([gammaln(mass).sum(), psi(mass).sum(), documents, self.counts.sum()])
        return TopicSummary(words, entropy, groups, totals)


def brute_force(model: TopicModel, fitted: Fitted, words: np.ndarray, sticks: Sticks) -> float:
    """E log p - E log q, term by term and document by document, with the cumulant's bound for log p(pi | beta)."""
    eta, alpha, gamma = model.pseudocount, model.allocation.document_concentration, model.allocation.concentration
    lam = eta + words.T
    log_phi = psi(lam) - psi(lam.sum(axis=1, keepdims=True))
    topics, vocabulary = lam.shape
    bound = topics * (gammaln(vocabulary * eta) - vocabulary * gammaln(eta)) + ((eta - 1) * log_phi).sum()
    bound -= (gammaln(lam.sum(axis=1)) - gammaln(lam).sum(axis=1) + ((lam - 1) * log_phi).sum(axis=1)).sum()
    a, b = sticks.first, sticks.second
    log_u, log_not = psi(a) - psi(a + b), psi(b) - psi(a + b)
    bound += (np.log(gamma) + (gamma - 1) * log_not - (a - 1) * log_u - (b - 1) * log_not + betaln(a, b)).sum()
    log_beta = np.append(log_u, 0.0) + np.append(0.0, np.cumsum(log_not))
    for j, r in enumerate(fitted.resp):
        row, theta = fitted.counts[[j]], fitted.theta[j]
        log_pi = psi(theta) - psi(theta.sum())
        part = row.data[:, None] * r
        logs = np.log(np.where(r > 0, r, 1))
        bound += (part * (log_phi.T[row.indices] + log_pi[:-1] - logs)).sum()
        bound += topics * np.log(alpha) + log_beta.sum() + ((alpha * sticks.weights - 1) * log_pi).sum()
        bound -= gammaln(theta.sum()) - gammaln(theta).sum() + ((theta - 1) * log_pi).sum()
    return float(bound)


def expanded(summary: TopicSummary, fresh: int) -> TopicSummary:
    """The same documents with further topics that none of them uses, last: theta of the rest divided evenly."""
    documents = max(float(summary.totals[DOCUMENTS]), 1.0)
    each = summary.groups[-1, PRIOR] / documents / (fresh + 1)
    groups = np.concatenate([summary.groups[:-1], np.repeat(unused(summary, each)[None], fresh + 1, axis=0)])
    words = np.concatenate([summary.words, np.zeros((len(summary.words), fresh))], axis=1)
    return TopicSummary(words, np.concatenate([summary.entropy, np.zeros(fresh)]), groups, summary.totals)


def random_fit(documents: sparse.csr_array, topics: int, prior: np.ndarray, seed: int) -> Fitted:
    """Any responsibilities, and theta as `prior` makes it of them."""
    rng = np.random.default_rng(seed)
    resp = [rng.dirichlet(np.full(topics, 0.3), size=int(n)) for n in np.diff(documents.indptr)]
    held = np.array([documents[[j]].data @ r for j, r in enumerate(resp)]).reshape(-1, topics)
    return Fitted(documents, resp, np.concatenate([held, np.zeros((len(held), 1))], axis=1) + prior)


def test_special_functions_are_scipys() -> None:
    for x in np.exp(np.random.default_rng(0).uniform(-12, 12, 300)):
        assert digamma(x) == pytest.approx(psi(x), rel=1e-13, abs=1e-13)
        assert trigamma(x) == pytest.approx(polygamma(1, x), rel=1e-12)


def some_sums(topics: int, documents: float, seed: int = 0) -> np.ndarray:
    """Sums of E log pi of documents that use few topics each."""
    rng = np.random.default_rng(seed)
    theta = rng.gamma(np.append(rng.dirichlet(np.ones(topics)), 0.02), size=(200, topics + 1)) + 0.01
    return documents / 200 * (psi(theta) - psi(theta.sum(axis=1, keepdims=True))).sum(axis=0)


@pytest.mark.parametrize(("topics", "documents"), [(1, 5.0), (6, 0.0), (6, 40.0), (80, 3000.0)])
def test_no_sticks_nearby_are_better_than_those_found(topics: int, documents: float) -> None:
    log_pi = some_sums(topics, documents)
    sticks = ALLOCATION.sticks(log_pi, documents)
    best = ALLOCATION.value(sticks, log_pi, documents)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.3):
        for _ in range(20):
            other = Sticks(*(np.stack([sticks.first, sticks.second]) * np.exp(size * rng.normal(size=(2, topics)))))
            assert ALLOCATION.value(other, log_pi, documents) <= best + 1e-9 * abs(best)
    assert sticks.weights.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_of_documents_fitted_under_different_weights_is_brute_force(seed: int) -> None:
    documents, rng = corpus(seed), np.random.default_rng(seed)
    priors = [0.7 * rng.dirichlet(np.ones(4)) for _ in range(2)]
    parts = [random_fit(documents[:25], 3, priors[0], seed), random_fit(documents[25:], 3, priors[1], seed + 9)]
    total = parts[0].summary(priors[0]) + parts[1].summary(priors[1])
    whole = Fitted(documents, parts[0].resp + parts[1].resp, np.concatenate([part.theta for part in parts]))
    model = model_of(documents)
    expected = brute_force(model, whole, total.words, model.sticks(total))
    assert model.elbo(total) == pytest.approx(expected, rel=1e-11)


def reference_step(
    model: TopicModel,
    total: TopicSummary,
    documents: sparse.csr_array,
    effort: Effort,
    known: DocumentTopics | None = None,
) -> Fitted:
    """The local step in plain updates: from a fresh start with all topics in every document, or from those known."""
    lam = model.pseudocount + total.words.T
    e = np.exp(psi(lam) - psi(lam.sum(axis=1, keepdims=True)))
    prior = model.allocation.document_concentration * model.sticks(total).weights
    topics, resp, theta = len(lam), [], []
    starts = None if known is None else known.matrix(topics).toarray()
    for j in range(documents.shape[0]):
        row = documents[[j]]
        held = np.full(topics, row.data.sum() / topics) if starts is None else starts[j]
        used = held > 0
        r = np.zeros((0, topics))
        for _ in range(effort.most if len(row.data) else 0):
            r = e[:, row.indices].T * np.where(used, np.exp(psi(prior[:-1] + held)), 0.0)
            r /= r.sum(axis=1, keepdims=True)
            new, held = row.data @ r, held
            change, held = np.abs(new - held).sum(), new
            if change <= effort.tolerance * topics:
                break
        resp.append(r)
        theta.append(prior + np.append(held if len(row.data) else np.zeros(topics), 0.0))
    return Fitted(documents, resp, np.array(theta))


def start_of(documents: sparse.csr_array, topics: int, seed: int = 0) -> TopicSummary:
    whole = np.array([0.0, 0.0, documents.shape[0], documents.sum()])
    rng = np.random.default_rng(seed)
    return seek_topics(model_of(documents), None, documents, whole, topics, 5, rng)[1]


def test_the_compiled_local_step_is_the_plain_one() -> None:
    documents = corpus()
    model, total, effort = model_of(documents), start_of(documents, 4), Effort(1e-7, 400)
    prior = model.posterior(total).prior
    found, _, topics = local_step(
        model.posterior(total), documents, DocumentTopics.unknown(documents.shape[0]), NO_PAIRS, effort
    )
    expected = reference_step(model, total, documents, effort).summary(prior)
    for name in ("words", "entropy", "groups", "totals"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    assert model.elbo(found) == pytest.approx(model.elbo(expected), rel=1e-9)
    assert topics.indptr[4] == topics.indptr[3]  # the empty document uses no topic


def test_documents_that_begin_where_they_were_lose_nothing_and_fresh_starts_may_gain() -> None:
    documents = corpus(1)
    model, total = model_of(documents), start_of(documents, 6)
    unknown = DocumentTopics.unknown(documents.shape[0])
    posterior = model.posterior(total)
    rough, _, topics = local_step(posterior, documents, unknown, NO_PAIRS, Effort(1e-3, 2))
    onward, _, _ = local_step(posterior, documents, topics, NO_PAIRS, Effort(1e-6, 200, fresh=False))
    both, _, _ = local_step(posterior, documents, topics, NO_PAIRS, Effort(1e-6, 200))

    def local(summary: TopicSummary) -> float:
        """The part of the bound that the local step raises."""
        weights = model.pseudocount + total.words.T
        log_phi = psi(weights) - psi(weights.sum(axis=1, keepdims=True))
        groups = summary.groups
        alloc = (groups[:, SLACK] + posterior.prior * groups[:, LOG_PI] + groups[:, LOG_GAMMA]).sum()
        return float((summary.words.T * log_phi).sum() + summary.entropy.sum() + alloc - summary.totals[LOG_GAMMA_SUM])

    assert local(rough) <= local(onward) + 1e-6 and local(onward) <= local(both) + 1e-6


def test_summaries_add_over_documents_and_blocks() -> None:
    documents = corpus(2, documents=700)
    model, total, pairs = model_of(documents), start_of(documents, 5), np.array([[0, 1], [2, 4]])
    posterior = model.posterior(total)

    def shared(rows: sparse.csr_array) -> tuple[TopicSummary, PairSums, DocumentTopics]:
        return local_step(posterior, rows, DocumentTopics.unknown(rows.shape[0]), pairs, Effort())

    whole, parts = shared(documents), [shared(documents[:300]), shared(documents[300:])]
    for name in ("words", "entropy", "groups", "totals"):
        np.testing.assert_allclose(getattr(whole[0], name), getattr(parts[0][0] + parts[1][0], name), rtol=1e-11)
    np.testing.assert_allclose(whole[1].groups, (parts[0][1] + parts[1][1]).groups, rtol=1e-11)
    assert np.array_equal(whole[2].part(300, 700).counts, parts[1][2].counts)


@pytest.mark.parametrize("seed", range(4))
def test_an_empty_topic_never_raises_the_bound(seed: int) -> None:
    documents = corpus(seed)
    prior = 0.7 * np.random.default_rng(seed).dirichlet(np.ones(5))
    total = random_fit(documents, 4, prior, seed).summary(prior)
    model = model_of(documents)
    for fresh in (1, 3):
        wider = expanded(total, fresh)
        assert wider.groups.shape == (5 + fresh, 4)
        assert model.elbo(wider) < model.elbo(total)


def test_documents_given_unused_topics_are_brute_force() -> None:
    documents = corpus()
    prior = np.array([0.2, 0.1, 0.4])
    fitted = random_fit(documents, 2, prior, 0)
    wider = expanded(fitted.summary(prior), 2)
    third = np.repeat(prior[-1:] / 3, 3)
    theta = np.concatenate([fitted.theta[:, :-1], np.broadcast_to(third, (len(fitted.theta), 3))], axis=1)
    resp = [np.concatenate([r, np.zeros((len(r), 2))], axis=1) for r in fitted.resp]
    expected = Fitted(documents, resp, theta).summary(np.append(prior[:-1], third))
    for name in ("words", "entropy", "groups", "totals"):
        np.testing.assert_allclose(getattr(wider, name), getattr(expected, name), rtol=1e-11, atol=1e-11)


def test_documents_without_a_topic_are_brute_force_in_all_but_its_tokens() -> None:
    documents = corpus()
    prior = np.array([0.2, 0.1, 0.3, 0.4])
    fitted = random_fit(documents, 3, prior, 0)
    for r in fitted.resp:
        r[:, 1] = 0.0
    held = np.array([documents[[j]].data @ r for j, r in enumerate(fitted.resp)]).reshape(-1, 3)
    fitted.theta[:, :3] = prior[:3] + held
    left = with_removed(fitted.summary(prior), np.array([1]))
    theta = np.column_stack([fitted.theta[:, [0, 2]], fitted.theta[:, 3] + fitted.theta[:, 1]])
    resp = [r[:, [0, 2]] for r in fitted.resp]
    expected = Fitted(documents, resp, theta).summary(np.array([0.2, 0.3, 0.5]))
    np.testing.assert_allclose(left.words, expected.words)
    # The mass of the documents is the same, and the rest has taken up the topic's prior.
    np.testing.assert_allclose(left.groups, expected.groups, rtol=1e-11)
    np.testing.assert_allclose(left.totals, expected.totals)


@pytest.mark.parametrize("pairs", [[[0, 1]], [[0, 3], [1, 2]]])
def test_the_gain_of_merges_is_the_change_of_the_recomputed_bound(pairs: list[list[int]]) -> None:
    documents = corpus(4)
    model, total, union = model_of(documents), start_of(documents, 5), np.array(pairs)
    posterior, unknown = model.posterior(total), DocumentTopics.unknown(documents.shape[0])
    _, _, known = local_step(posterior, documents, unknown, union, Effort(1e-7, 400))
    summary, measured, _ = local_step(posterior, documents, known, union, Effort(1e-7, 1, fresh=False))
    joined = united(summary, measured, union, np.arange(len(union)))
    fitted = reference_step(model, total, documents, Effort(1e-7, 1), known)
    kept = [k for k in range(5) if k not in union[:, 1]]
    for first, second in union:
        fitted.theta[:, first] += fitted.theta[:, second]
        for r in fitted.resp:
            r[:, first] += r[:, second]
    theta, resp = fitted.theta[:, [*kept, 5]], [r[:, kept] for r in fitted.resp]
    after = Fitted(documents, resp, theta)
    prior = posterior.prior.copy()
    prior[union[:, 0]] += prior[union[:, 1]]
    expected = after.summary(prior[[*kept, 5]])
    np.testing.assert_allclose(joined.groups, expected.groups, rtol=1e-9, atol=1e-9)
    sticks = model.sticks(joined)
    assert model.elbo(joined) == pytest.approx(brute_force(model, after, joined.words, sticks), rel=1e-11)


def cut_in_two(total: TopicSummary) -> TopicSummary:
    """The sums with each topic twice, half of its tokens each."""
    return TopicSummary(
        np.concatenate([total.words / 2, total.words / 2], axis=1),
        np.concatenate([total.entropy, total.entropy]),
        np.concatenate([total.groups[:-1], total.groups]),
        total.totals,
    )


def test_each_merge_is_judged_once_on_the_change_of_the_bound_that_those_before_it_left() -> None:
    documents = corpus(4)
    model, total = model_of(documents), cut_in_two(start_of(documents, 5))
    pairs = np.array(list(itertools.combinations(range(10), 2)))
    unknown = DocumentTopics.unknown(60)
    summary, measured, _ = local_step(model.posterior(total), documents, unknown, pairs, Effort(1e-7, 400))
    chosen, judged = judge_merges(model, Measured(summary, measured), pairs)
    assert sorted(one.proposal for one in judged) == list(range(45))
    before, accepted, taken = model.elbo(summary), list[int](), set[int]()
    for one in judged:
        pair = set(pairs[one.proposal].tolist())
        assert (one.reason is Reason.CONFLICT) == bool(pair & taken)
        if pair & taken:
            continue
        after = model.elbo(united(summary, measured, pairs, np.sort([*accepted, one.proposal])))
        assert one.gain == pytest.approx(after - before, abs=1e-8 * abs(before))
        assert one.reason is (Reason.ACCEPTED if one.gain > 0 else Reason.NO_GAIN)
        if one.reason is Reason.ACCEPTED:
            before, accepted, taken = after, [*accepted, one.proposal], taken | pair
    assert chosen.tolist() == sorted(accepted) and len(chosen) == 5


@pytest.mark.parametrize("wanted", [0.5, -0.5, -100.0])
def test_merges_are_judged_on_the_best_sticks_unless_they_lose_much(wanted: float) -> None:
    documents = corpus(4, documents=300)
    model, total = model_of(documents), start_of(documents, 5)
    unknown = DocumentTopics.unknown(300)
    for pair in np.array([[0, 1], [1, 4], [2, 3]]):
        one = np.zeros(1, dtype=np.intp), pair[None]
        summary, measured, _ = local_step(model.posterior(total), documents, unknown, one[1], Effort(1e-7, 400))
        gain = model.elbo(united(summary, measured, one[1], one[0])) - model.elbo(summary)
        measured = replace(measured, entropy=measured.entropy + wanted - gain)
        verdict = judge_merges(model, Measured(summary, measured), one[1])[1][0]
        assert verdict.reason is (Reason.ACCEPTED if wanted > 0 else Reason.NO_GAIN)
        assert verdict.gain == pytest.approx(wanted, abs=1e-6 if wanted > -1 else 3.0)


def test_topics_cut_in_two_are_put_together() -> None:
    documents = corpus(5, documents=300)
    model = model_of(documents)
    problem = problem_of(documents, birth=False, delete=False)
    doubled = cut_in_two(start_of(documents, 5))
    pairs = propose_pairs(doubled.words, 0)
    assert [tuple(pair) for pair in pairs] == [(k, k + 5) for k in range(5)]
    last = run(problem, documents, start=doubled, laps=4)[-1]
    assert last.info.n_components == 5
    assert model.elbo(last.info.total) == last.info.elbo


def problem_of(
    documents: sparse.csr_array, batches: int = 3, lookahead: int = 0, learn: tuple[str, ...] = (), **plan: object
) -> TopicProblem:
    plans = TopicPlan(**{"births": 3, "sample": 100, "iterations": 5, **plan})
    return TopicProblem(
        model_of(documents), "posterior", Memoized(batches, lookahead), plans, Effort(1e-4, 200), 3, learn=learn
    )


def run(
    problem: TopicProblem,
    documents: sparse.csr_array,
    laps: int,
    start: TopicSummary | None = None,
    backend: Backend | None = None,
) -> list:
    """The steps that end laps."""
    source = ArraySource(documents, partition_rows=256)
    state = first_topic_state(problem, source, start_of(documents, 2) if start is None else start)
    found = []
    for step in topic_steps(problem, source, state, backend or SerialBackend()):
        if step.info is not None:
            found.append(step)
        if len(found) == laps:
            break
    return found


@pytest.mark.parametrize(("learn", "tried"), [((), "birth"), (LEARNABLE, "")])
def test_no_moves_are_tried_while_the_learned_eta_says_that_topics_still_form(
    learn: tuple[str, ...], tried: str
) -> None:
    documents = corpus(6, documents=300)
    end = run(problem_of(documents, learn=learn), documents, laps=1)[-1]
    assert end.state.proposals[0].kind == tried and not end.state.quiet


def test_topics_that_hold_nothing_are_all_removed_at_once() -> None:
    documents = corpus(5, documents=300)
    start = start_of(documents, 5)
    empty = replace(start, words=np.append(start.words, np.zeros((40, 30)), axis=1), entropy=np.zeros(35))
    empty = replace(
        empty, groups=np.concatenate([start.groups[:-1], np.tile(unused(start, 1e-3), (30, 1)), start.groups[-1:]])
    )
    steps = run(problem_of(documents, birth=False, merge=False), documents, start=empty, laps=2)
    assert steps[0].info.n_components == 35 and steps[1].info.n_components == 5


@pytest.mark.parametrize("learn", [(), LEARNABLE])
def test_the_bound_never_falls_from_lap_to_lap_while_topics_come_and_go(learn: tuple[str, ...]) -> None:
    documents = corpus(6, documents=900, topics=8)
    steps = run(problem_of(documents, learn=learn), documents, laps=12)
    bounds = [value for step in steps for value in (step.info.elbo_before_moves, step.info.elbo)]
    for before, after in itertools.pairwise(bounds):
        assert after >= before - 1e-8 * abs(before)
    kinds = {record.kind for step in steps for record in step.info.records if record.reason is Reason.ACCEPTED}
    assert "birth" in kinds and steps[-1].info.n_components > 2


def test_topics_that_fit_worst_give_way_to_several_that_explain_their_tokens() -> None:
    rng, own = np.random.default_rng(0), np.arange(400) % 4
    documents = sparse.csr_array(rng.poisson(5.0 * (np.arange(40) // 10 == own[:, None])).astype(np.float64))
    model = model_of(documents)
    rough = np.maximum(np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).repeat(10, axis=1).T * 1e3, 1.0)
    posterior = model.posterior_of(rough, np.full(4, 0.25))
    unknown = DocumentTopics.unknown(400)
    total = local_step(posterior, documents, unknown, NO_PAIRS, Effort())[0]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        seeds = seek_topics(model, total, documents, total.totals, 2, 5, rng, replaced=1)[0]
        assert seeds.replaced.tolist() == [0] and len(seeds) == len(seeds.log_pi) == 2
        assert seeds.words[:20].sum() > 0.99 * seeds.words.sum() > 0.9 * total.words[:, 0].sum()


def test_births_take_the_place_of_topics_and_candidates_have_hyperparameters_of_their_own() -> None:
    documents = corpus(6, documents=900, topics=8)
    problem, replaced, refined, tried = problem_of(documents, births=16, learn=LEARNABLE), 0, 0, []
    for step in run(problem, documents, laps=30):
        trials, records = step.state.proposals[0], step.info.records
        moves = [record for record in records if record.kind != "merge" and record.reason is not Reason.REFINING]
        accepted = any(record.reason is Reason.ACCEPTED for record in records)
        tried = [] if accepted else tried + [record.kind for record in moves]
        assert moves == [] or not accepted or trials.births_refused + trials.deletes_refused <= 0
        if trials.kind == "birth":
            kept = np.intersect1d(trials.candidate_ids, step.state.ids)
            replaced += trials.age == 0 and len(kept) < len(step.state.ids)
            assert trials.age or trials.candidate_model == problem.model
            assert trials.age or len(trials.candidate_ids) == len(kept) + trials.added
        refined += bool(trials.age) and trials.candidate_model != trials.model
    assert replaced and refined and trials.kind == ""
    assert max(tried.count("birth"), tried.count("delete") - 1) <= problem.plan.tries, "and then no more"


@pytest.fixture(scope="module")
def after_three_laps() -> tuple[TopicModel, TopicSummary]:
    """A model, and the sums over its corpus after three laps."""
    documents = corpus(7, documents=300, topics=6)
    return model_of(documents), run(problem_of(documents), documents, laps=3)[-1].info.total


@pytest.mark.parametrize("names", [LEARNABLE, *((name,) for name in LEARNABLE)])
def test_learned_hyperparameters_are_where_the_bound_is_highest(
    after_three_laps: tuple[TopicModel, TopicSummary], names: tuple[str, ...]
) -> None:
    before, total = after_three_laps
    model = learned(before, total, names)
    best = model.elbo(total)
    assert best >= before.elbo(total)
    for name, factor in itertools.product(names, (0.9, 0.99, 1.01, 1.1)):
        assert changed(model, name, factor).elbo(total) <= best
    for name in set(LEARNABLE) - set(names):
        assert value_of(model, name) == value_of(before, name)


def value_of(model: TopicModel, name: str) -> float:
    return float(getattr(model if name == "pseudocount" else model.allocation, name))


def changed(model: TopicModel, name: str, factor: float) -> TopicModel:
    value = factor * value_of(model, name)
    if name == "pseudocount":
        return replace(model, pseudocount=value)
    return replace(model, allocation=replace(model.allocation, **{name: value}))


def test_slopes_of_the_evidence_are_those_of_finite_differences() -> None:
    words = np.random.default_rng(2).gamma(0.2, 5.0, size=(30, 4)) * np.array([1.0, 1.0, 1.0, 0.0])

    def evidence(eta: float) -> float:
        return float(TopicModel(30, eta, ALLOCATION).log_evidences(words).sum())

    for eta in (0.01, 0.3, 4.0):
        slope, bend = evidence_slopes(words, eta)
        step = 1e-4 * eta
        assert slope == pytest.approx((evidence(eta + step) - evidence(eta - step)) / (2 * step), rel=1e-6)
        ahead, behind = evidence_slopes(words, eta + step)[0], evidence_slopes(words, eta - step)[0]
        assert bend == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(InputError, match=r"should be among concentration, .*; got seed"):
        problem_of(corpus(), learn=("seed", "pseudocount"))


def test_leaves_add_up_to_the_total_after_every_lap() -> None:
    documents = corpus(7, documents=900, topics=8)
    for step in run(problem_of(documents), documents, laps=6):
        batch_summaries = step.state.batch_summaries
        total = batch_summaries[0].summary
        for batch_summary in batch_summaries[1:]:
            total = total + batch_summary.summary
        for name in ("words", "entropy", "groups", "totals"):
            np.testing.assert_allclose(getattr(total, name), getattr(step.info.total, name), rtol=1e-9, atol=1e-8)
        for start in (start for batch_summary in batch_summaries for start in batch_summary.documents.starts()):
            known, _ = start.read(DocumentFiles())
            assert known.topics.max(initial=0) < step.info.n_components
        assert len(step.state.ids) == len(set(step.state.ids.tolist())) == step.info.n_components


@pytest.mark.parametrize(("lookahead", "workers"), [(0, 2), (1, 1)])
def test_dask_gives_the_bits_of_serial(lookahead: int, workers: int) -> None:
    documents = corpus(8, documents=2000, topics=6)
    problem = problem_of(documents, batches=4, lookahead=lookahead)
    serial = run(problem, documents, laps=5)
    backend = local_backend(workers)
    try:
        distributed = run(problem, documents, laps=5, backend=backend)
    finally:
        backend.close()
    for one, other in zip(serial, distributed, strict=True):
        assert one.info.elbo == other.info.elbo
        assert one.info.total.words.tobytes() == other.info.total.words.tobytes()


def test_topics_of_documents_are_renamed_joined_and_forgotten() -> None:
    held = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    topics = DocumentTopics.of(held)
    assert len(topics) == 3 and topics.part(1, 3).indptr.tolist() == [0, 0, 2]
    joined = topics.renamed(np.array([1, 1, -1]))
    assert joined.indptr.tolist() == [0, 1, 1, 2]
    assert joined.topics.tolist() == [1, 1] and joined.counts.tolist() == [3.0, 3.0]


def test_what_the_coordinator_holds_of_a_stored_run_does_not_grow_with_documents(tmp_path) -> None:
    """Its state, pickled, and all of its checkpoint but workers' files; partitions are as many, documents ten times."""
    held: dict[int, list[int]] = {}
    for documents in (60, 600):
        place = LocalPlace(tmp_path / f"{documents}.zarr")
        words = corpus(9, documents=documents, topics=6)
        source = ArraySource(words, partition_rows=documents // 6)
        problem = problem_of(words, batches=3, birth=False, merge=False, delete=False)
        store = RunStore.create(place.path, problem, {}, source.fingerprint())
        state = first_topic_state(problem, source, start_of(words, 4))
        fit = Run(MemoizedTopics(), problem, source, SerialBackend(), state, Limits(3), History(), store)
        for _ in fit:
            pass
        files = {folder: place.files(folder) for folder in ("commits", "generations", "objects")}
        sizes = {name: len(data) for found in files.values() for name, data in found.items()}
        written = sum(size for name, size in sizes.items() if name.endswith(".npz"))
        held[documents] = [len(pickle.dumps(fit.state)), sum(sizes.values()) - written, written]
    (state, stored, written), (state_of_many, stored_of_many, written_of_many) = held.values()
    assert state_of_many == pytest.approx(state, abs=100)
    assert stored_of_many == pytest.approx(stored, rel=0.01)
    assert written_of_many > 3 * written


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_a_file_of_documents_that_is_not_what_was_written_is_told(tmp_path, fault: str) -> None:
    place = LocalPlace(tmp_path)
    place.create("problems/7/zarr.json", b"")
    files = DocumentFiles.at(place.label, SerialBackend())
    kept = files.put(1, 7, VisitedDocuments(DocumentTopics.of(np.eye(3))))
    file = place.path / files.folder(1) / kept.name
    file.unlink() if fault == "missing" else file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=f"000007.npz is {fault}"):
        files.take(files.folder(1), kept)
    with pytest.raises(CheckpointError, match="which its workers cannot read"):
        DocumentFiles().take(files.folder(1), kept)


def test_topics_renamed_twice_go_by_their_last_names_and_stay_gone() -> None:
    names = TopicNames(candidate=False).renamed(np.array([1, -1, 0])).renamed(np.array([3, 2]))
    assert names.names.tolist() == [2, -1, 3]


def test_files_of_laps_gone_by_are_superseded_once(tmp_path) -> None:
    (tmp_path / "problems" / "7").mkdir(parents=True)
    documents = corpus(6, documents=300)
    problem, source = problem_of(documents), ArraySource(documents, partition_rows=100)
    state, laps = first_topic_state(problem, source, start_of(documents, 2)), 0
    memo = Memo(state)
    for step in topic_steps(problem, source, state, SerialBackend(), str(tmp_path)):
        memo.follow(step)
        laps += step.info is not None
        if laps == 3:
            break
    assert [name[:14] for name in memo.superseded()] == ["objects/000001"]
    assert memo.superseded() == []


def test_where_workers_do_not_reach_the_run_its_documents_go_with_its_summaries(tmp_path) -> None:
    documents = corpus(6, documents=300)
    store = RunStore.create(tmp_path / "run.zarr", problem_of(documents), {}, ArraySource(documents).fingerprint())
    runs = [fit_of(documents, None, 3), replace(fit_of(documents, store, 3), backend=Elsewhere())]
    for fit in runs:
        for _ in fit:
            pass
    assert bits(runs[0]) == bits(runs[1])
    assert all(one.here is not None for each in runs[1].state.batch_summaries for one in each.documents.partitions)


def test_counts_that_are_not_finite_are_refused() -> None:
    documents = corpus()
    model, total = model_of(documents), start_of(documents, 3)
    documents.data[5] = np.inf
    with pytest.raises(PrecisionError, match="counts should be finite"):
        local_step(model.posterior(total), documents, DocumentTopics.unknown(60), NO_PAIRS, Effort())


@pytest.mark.parametrize("values", [{"concentration": 0.0}, {"document_concentration": np.nan}])
def test_concentrations_are_above_zero(values: dict[str, float]) -> None:
    with pytest.raises(InputError, match="above zero"):
        HierarchicalDirichletProcess(**values)


ORACLE = ("oracles", "hdp_bars_many_200docs.npz")


@pytest.mark.parametrize("lap", ["lap1_preglobal", "lap1", "final"])
def test_the_bound_is_that_of_an_independent_program(lap: str) -> None:
    oracle = np.load(shared_path(*ORACLE), allow_pickle=False)
    allocation = HierarchicalDirichletProcess(float(oracle["gamma"]), float(oracle["alpha"]))

    def of(name: str) -> np.ndarray:
        return oracle[f"{lap}_{name}"]

    sticks = Sticks(of("rho") * of("omega"), (1 - of("rho")) * of("omega"))
    np.testing.assert_allclose(sticks.weights, of("Ebeta"), rtol=1e-12)
    log_pi = np.append(of("ss_sumLogPi"), of("ss_sumLogPiRem"))
    local = of("elboss_slackTheta").sum() + of("elboss_slackThetaRem") - of("elboss_gammalnSumTheta")
    local += of("elboss_gammalnTheta").sum() + of("elboss_gammalnThetaRem")
    value = allocation.value(sticks, log_pi, 200.0) + local
    assert value == pytest.approx(of("elbo_raw_Ltotal") - of("elbo_raw_Ldata") - of("elbo_raw_Lentropy"), rel=1e-10)
    best = allocation.sticks(log_pi, 200.0)
    assert allocation.value(best, log_pi, 200.0) >= allocation.value(sticks, log_pi, 200.0)
    if lap != "lap1_preglobal":
        model = TopicModel(144, float(oracle["lam_prior"]), allocation)
        np.testing.assert_allclose(model.log_evidences(of("ss_WordCounts").T).sum(), of("elbo_raw_Ldata"), rtol=1e-10)


@pytest.mark.parametrize("lap", ["lap1_preglobal", "lap1"])
def test_document_terms_are_those_of_an_independent_program(lap: str) -> None:
    oracle = np.load(shared_path(*ORACLE), allow_pickle=False)

    def of(name: str) -> np.ndarray:
        return oracle[f"{lap}_{name}"]

    bounds = oracle["doc_range"]
    counts = sparse.csr_array((oracle["word_count"], oracle["word_id"], bounds), shape=(200, 144))
    resp = [of("lp_resp")[a:b] for a, b in itertools.pairwise(bounds)]
    rest = np.full((200, 1), of("lp_thetaRem"))
    theta = np.concatenate([of("lp_theta"), rest], axis=1)
    prior = np.append(of("lp_theta")[0] - of("lp_DocTopicCount")[0], of("lp_thetaRem"))
    found = Fitted(counts, resp, theta).summary(prior)
    np.testing.assert_allclose(found.words.T, of("ss_WordCounts"), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.entropy, of("elboss_Hresp"), rtol=1e-8)
    np.testing.assert_allclose(found.groups[:-1, LOG_PI], of("ss_sumLogPi"), rtol=1e-8)
    np.testing.assert_allclose(found.groups[-1, LOG_PI], of("ss_sumLogPiRem"), rtol=1e-8)
    np.testing.assert_allclose(found.groups[:-1, LOG_GAMMA], of("elboss_gammalnTheta"), rtol=1e-8)
    np.testing.assert_allclose(found.totals[LOG_GAMMA_SUM], of("elboss_gammalnSumTheta"), rtol=1e-8)
    np.testing.assert_allclose(found.totals[PSI_SUM], of("lp_digammaSumTheta").sum(), rtol=1e-8)
    assert found.totals[DOCUMENTS] == of("ss_nDoc")


def test_merges_gain_what_an_independent_program_says_of_words_and_entropies() -> None:
    oracle = np.load(shared_path(*ORACLE), allow_pickle=False)
    model = TopicModel(144, float(oracle["lam_prior"]), HierarchicalDirichletProcess(10.0, 0.5))
    words = np.ascontiguousarray(oracle["final_ss_WordCounts"].T)
    own = model.log_evidences(words)
    np.testing.assert_allclose(own, oracle["final_Ldata_per_comp"], rtol=1e-8)


def test_the_score_is_the_plain_scorers() -> None:
    documents, rng = corpus(9), np.random.default_rng(0)
    topics, prior = rng.dirichlet(np.full(40, 0.2), size=6), rng.uniform(0.02, 0.4, size=6)
    observed = documents.copy()
    observed.data = rng.binomial(documents.data.astype(int), 0.8).astype(float)
    held = sparse.csr_array(documents - observed)
    held.eliminate_zeros()
    observed.eliminate_zeros()
    total = 0.0
    for j in range(documents.shape[0]):
        row, other = observed[[j]], held[[j]]
        theta = prior + row.data.sum() / 6
        for _ in range(200 if len(row.data) else 0):
            pull = np.exp(psi(np.maximum(theta, 1e-10)))
            phi = topics[:, row.indices]
            new = prior + pull * (phi @ (row.data / (pull @ phi + 1e-300)))
            change, theta = np.abs(new - theta).mean(), new
            if change < 1e-3 * max(1.0, row.data.sum() / 6):
                break
        total += other.data @ np.log(theta / theta.sum() @ topics[:, other.indices])
    found = completion_score(topics, prior, observed, held)
    assert found.tokens == held.sum()
    assert found.per_token == pytest.approx(total / held.sum(), rel=1e-10)
    with pytest.raises(InputError, match="the same number of documents and 40 words"):
        completion_score(topics, prior, observed[:, :30], held)
    with pytest.raises(InputError, match="no token is held out"):
        completion_score(topics, prior, observed, sparse.csr_array(held.shape))


def test_coherence_is_one_for_words_that_always_meet_and_minus_one_for_words_that_never_do() -> None:
    documents = sparse.csr_array(np.array([[1, 2, 0, 0], [3, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=float))
    topics = np.array([[0.4, 0.5, 0.05, 0.05], [0.05, 0.05, 0.5, 0.4]])
    np.testing.assert_allclose(coherence(topics, documents, words=2), [1.0, -1.0])
    assert top_words(topics, ["a", "b", "c", "d"], 2) == [["b", "a"], ["c", "d"]]


def fit_of(documents: sparse.csr_array, store: RunStore | None, laps: int) -> Run:
    problem = problem_of(documents, batches=3, lookahead=1, learn=LEARNABLE)
    source = ArraySource(documents, partition_rows=256)
    state = first_topic_state(problem, source, start_of(documents, 2))
    return Run(MemoizedTopics(), problem, source, SerialBackend(), state, Limits(laps), History(), store)


def bits(fit: Run) -> tuple:
    fitted = fit.fitted
    arrays = (fitted.total.words, fitted.total.groups, fitted.ids)
    return fitted.elbo, fit.history.proposals, *(array.tobytes() for array in arrays)


def test_a_stored_state_goes_on_from_every_batch_to_the_same_bits(tmp_path) -> None:
    documents = corpus(6, documents=900, topics=8)
    whole = fit_of(documents, None, 5)
    for _ in whole:
        pass
    source = ArraySource(documents, partition_rows=256)
    asked = Asked("dpdist:HDPTopicModel", {"max_laps": 5})
    store = RunStore.create(tmp_path / "run.zarr", whole.problem, {}, source.fingerprint(), asked=asked)
    fit, copies = fit_of(documents, store, 5), 0
    for step in fit:
        fit.checkpoint_seconds = 0.0 if step.state.lap == 4 else np.inf
        if step.state.lap == 4 and step.info is None:
            fit.settle()
            copies += 1
            shutil.copytree(tmp_path / "run.zarr", tmp_path / f"copy{copies}.zarr")
    assert bits(fit) == bits(whole)
    for number in range(1, copies + 1):
        shutil.rmtree(tmp_path / f"copy{number}.zarr" / "leases")  # the writer of the run itself is alive
        stored = RunStore.open(tmp_path / f"copy{number}.zarr")
        again = resumed(stored, source, SerialBackend(), Limits(5))
        for _ in again:
            pass
        assert bits(again) == bits(whole)
    assert copies == 2
    # Files that no checkpoint kept names are gone: of the laps of the last two there are no more than three left.
    assert len([name for name in store.place.names("objects") if "documents" in name]) <= 3
    fitted = RunStore.open(tmp_path / "run.zarr").fitted()
    assert fitted.total.words.tobytes() == whole.fitted.total.words.tobytes()
