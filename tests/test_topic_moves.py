"""What topics' moves rest on: which pairs are tried, what births find, how many batches pay, who starts afresh."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import gammaln, psi

from dpdist import HDPTopicModel, TopicPlan
from dpdist.core.errors import InputError
from dpdist.execution import SerialBackend
from dpdist.inference.moves.accept import Reason
from dpdist.inference.moves.cooldown import Cooldown
from dpdist.inference.schedules import Memoized
from dpdist.inference.state import Record
from dpdist.inference.topics import lap_moves, seeking
from dpdist.inference.topics import local_step as steps
from dpdist.inference.topics.batches import ENTRIES, MOST, batches_that_pay
from dpdist.inference.topics.births import seek_topics
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.kept import (
    BatchDocuments,
    DocumentFiles,
    KeptDocuments,
    TopicNames,
    VisitedDocuments,
    tokens_beside,
)
from dpdist.inference.topics.merges import propose_pairs
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.prediction import split_tokens
from dpdist.inference.topics.summary import TopicSummary
from dpdist.inference.topics.trials import TopicTrials
from dpdist.kernels.sticks import multiplier_of
from dpdist.kernels.topics import expect_counts, union_evidences
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.models.families.multinomial import entries_of


def blocks(groups: int, documents: int = 400) -> sparse.csr_array:
    """Documents each of which has the ten words of its group, about five of each."""
    rng, own = np.random.default_rng(0), np.arange(documents) % groups
    rates = 5.0 * (np.arange(10 * groups) // 10 == own[:, None])
    return sparse.csr_array(rng.poisson(rates).astype(np.float64))


def model_over(vocabulary: int) -> TopicModel:
    return TopicModel(vocabulary, 0.1, HierarchicalDirichletProcess(2.0, 0.5))


@pytest.mark.parametrize("rank", range(3))
def test_pairs_are_of_topics_and_their_most_alike_in_order(rank: int) -> None:
    words = np.random.default_rng(rank).gamma(0.3, size=(20, 9))
    words[:, 7] = words[:, 2]  # as alike as can be, and both as alike to any other
    unit = words / np.linalg.norm(words, axis=0)
    likeness = np.round(unit.T @ unit, 12)
    expected = set()
    for k in range(9):
        others = sorted((other for other in range(9) if other != k), key=lambda other: (-likeness[k, other], other))
        expected.add((min(k, others[rank]), max(k, others[rank])))
    assert set(map(tuple, propose_pairs(words, rank).tolist())) == expected


def test_evidence_that_unions_gain_is_that_of_their_counts() -> None:
    rng, eta = np.random.default_rng(0), 0.3
    words = rng.gamma(0.5, size=(30, 6)) * (rng.random((30, 6)) < 0.4)

    def evidence(counts: np.ndarray) -> float:
        prior = len(counts) * eta
        return float((gammaln(eta + counts) - gammaln(eta)).sum() + gammaln(prior) - gammaln(prior + counts.sum()))

    pairs = np.array([[0, 1], [2, 5], [1, 4]])
    found = np.empty(len(pairs))
    union_evidences(words, pairs, eta, found)
    alone = [evidence(words[:, k]) for k in range(6)]
    expected = [evidence(words[:, a] + words[:, b]) - alone[a] - alone[b] for a, b in pairs]
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("size", [1, 2, 50])
def test_shares_add_up_to_one(size: int) -> None:
    excess = np.random.default_rng(size).gamma(0.1, 1e3, size=size)
    excess -= excess.min()
    assert (1 / (multiplier_of(excess) + excess)).sum() == pytest.approx(1.0, abs=1e-13)


def test_expected_counts_are_of_the_words_that_documents_have() -> None:
    rng = np.random.default_rng(1)
    documents = sparse.csr_array(rng.poisson(0.5, size=(7, 12)).astype(np.float64))
    used, words = sparse.csr_array(rng.poisson(0.5, size=(7, 4)).astype(np.float64)), rng.random((12, 4))
    found = np.empty(documents.nnz)
    expect_counts(entries_of(documents), entries_of(used), words, found)
    rows = np.repeat(np.arange(7), np.diff(documents.indptr))
    np.testing.assert_allclose(found, (used.toarray() @ words.T)[rows, documents.indices])


def test_new_topics_have_the_proportions_of_whole_documents() -> None:
    documents, model = blocks(4), model_over(40)
    # The first topic mixes two groups, of which new ones are to be made; each of the others has its own documents.
    words = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).repeat(10, axis=1).T * 1e3
    posterior = model.posterior_of(np.maximum(words, 1e-3), np.full(4, 0.125))
    total = local_step(posterior, documents, DocumentTopics.unknown(400), NO_PAIRS, Effort())[0]
    # Half of what documents hold is of other topics: a word of another group for each of their own.
    mixed = sparse.csr_array(documents + sparse.csr_array(np.roll(documents.toarray(), 20, axis=1)))
    for sample in (documents, mixed):
        seeds = seek_topics(model, total, sample, total.totals, 2, 5, np.random.default_rng(0), replaced=1)[0]
        assert seeds.replaced.tolist() == [0] and len(seeds) == 2
        prior = 0.5 * (1 - model.sticks(total).weights[1:-1].sum()) / 3
        tokens = sample.toarray().reshape(400, 4, 10).sum(axis=2)[:, :2]
        order = np.argsort(seeds.words[:10].sum(axis=0))[::-1]
        expected = (psi(prior + tokens) - psi(0.5 + sample.sum(axis=1))[:, None]).sum(axis=0)
        np.testing.assert_allclose(seeds.log_pi[order], expected, rtol=0.02)
        np.testing.assert_allclose(seeds.words.sum(axis=0)[order], tokens.sum(axis=0), rtol=0.02)


@pytest.mark.parametrize("other", ["many tokens", "few tokens a word"])
def test_topics_fit_worst_by_the_token_beyond_the_noise_of_their_words(other: str) -> None:
    """Of words that come in threes documents differ by more than chance; in all, more so where there are many, and by
    the token, more by chance alone where words have few."""
    rng, own = np.random.default_rng(0), blocks(2, 20).toarray()  # under one topic, each of half its words
    if other == "many tokens":
        worst, well = own, 3.0 * rng.poisson(5.0, size=(380, 10))
    else:
        worst, well = 3.0 * rng.poisson(15.0, size=(100, 10)), 1.0 * rng.poisson(5.0, size=(100, 10))
    documents = sparse.csr_array(sparse.block_diag([worst, well]).toarray())  # without zeros
    words = 1e3 * sparse.block_diag([np.ones((part.shape[1], 1)) for part in (worst, well)]).toarray()
    model, unknown = model_over(len(words)), DocumentTopics.unknown(documents.shape[0])
    posterior = model.posterior_of(words, np.full(3, 0.125))
    total = local_step(posterior, documents, unknown, NO_PAIRS, Effort())[0]
    seeds = seek_topics(model, total, documents, total.totals, 2, 1, rng, replaced=1)[0]
    assert seeds.replaced.tolist() == [0]


def test_words_of_topics_that_go_are_shared_out_as_documents_that_have_more_of_them_use_others() -> None:
    rng, removed, kept = np.random.default_rng(0), np.array([1, 3]), [0, 2, 4]
    held, words = rng.gamma(1.0, size=(30, 5)) * rng.gamma(1.0, 9.0, size=(30, 1)), rng.gamma(1.0, size=(7, 5))
    visits = [VisitedDocuments(DocumentTopics.of(part)) for part in np.split(held, [12])]
    batches = [BatchDocuments("", (KeptDocuments("", "", each),), TopicNames(candidate=False)) for each in visits]
    beside = tokens_beside(DocumentFiles(), batches, removed, 5, SerialBackend())
    np.testing.assert_allclose(beside, (held / held.sum(axis=1, keepdims=True))[:, removed].T @ held, rtol=1e-5)
    others = beside[:, kept] / beside[:, kept].sum(axis=1, keepdims=True)
    tried = TopicTrials(kind="delete", removed=removed, candidate_ids=np.arange(3))
    start = lap_moves.warm_start_of_removal(replace(TopicSummary.zeros(7, 5), words=words), tried, beside)
    assert start.candidate is not None
    np.testing.assert_allclose(start.candidate.summary.words, words[:, removed] @ others)


@pytest.mark.parametrize(("entries", "batches"), [(0, 1), (1, 1), (3, 3), (10**6, MOST)])
def test_batches_hold_so_many_entries_a_word(entries: int, batches: int) -> None:
    assert batches_that_pay(entries * ENTRIES * 7, 7) == batches


def test_a_fit_has_as_many_batches_as_pay_unless_it_is_told_how_many() -> None:
    documents = blocks(4, 120)
    wanted = batches_that_pay(documents.nnz, 40)
    assert 1 < wanted < MOST
    found = {}
    for name, schedule in (("default", None), ("asked", Memoized(batches=2)), ("as many as pay", Memoized())):
        model = HDPTopicModel(initial_topics=3, max_laps=1, schedule=schedule)
        with pytest.warns(match="before it converged"):
            found[name] = model.fit(documents)._problem.schedule.batches
    assert found == {"default": wanted, "asked": 2, "as many as pay": wanted}


def test_documents_start_afresh_but_where_candidates_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    laps, plain = [], steps.local_step

    def seen(posterior: object, documents: object, before: object, pairs: object, effort: Effort) -> object:
        laps[-1].append(effort.fresh)
        return plain(posterior, documents, before, pairs, effort)

    monkeypatch.setattr(steps, "local_step", seen)
    model, ages = HDPTopicModel(initial_topics=2, max_laps=12, schedule=Memoized(batches=1), learn=()), []
    laps.append([])
    for state, _ in model.iter_fit(blocks(4, 200), backend=SerialBackend()):
        laps.append([])
        ages.append((state.proposals[0].kind, state.proposals[0].age))
    expected = [[True], *([False, not age] if kind else [True] for kind, age in ages[:-1])]
    assert laps[: len(expected)] == expected and [False, True] in expected and [False, False] in expected


def test_deletes_follow_what_was_accepted_and_births_what_was_refused() -> None:
    """Of documents few of which are of the first of four topics, so that this one may be tried without."""
    documents, followed = blocks(4, 200), []
    of_first = np.asarray(documents[:, : documents.shape[1] // 4].sum(axis=1)).ravel() > 0.2 * documents[:1].sum()
    documents = documents[np.flatnonzero(~of_first | (np.arange(200) % 10 == 0))]
    model = HDPTopicModel(initial_topics=1, max_laps=40, schedule=Memoized(batches=1), learn=())
    for state, info in model.iter_fit(documents, backend=SerialBackend()):
        trials, moves = state.proposals[0], [one for one in info.records if one.kind != "merge"]
        if moves and moves[0].reason is not Reason.REFINING and trials.kind:
            followed.append((moves[0].kind, moves[0].reason is Reason.ACCEPTED, trials.kind))
    assert ("birth", True, "delete") in followed and ("birth", True, "birth") not in followed
    assert ("delete", False, "birth") in followed


@pytest.mark.parametrize("share", [0.1, 0.9, 1.0, 1.2])
def test_what_a_union_of_topics_promises_is_a_number_whatever_their_shares(share) -> None:
    """The step by which it is told may lead to more than all of a stick."""
    rng, process = np.random.default_rng(0), HierarchicalDirichletProcess(10.0, 1.0)
    log_pi, pairs = -160.0 * rng.uniform(3.0, 7.0, size=4), np.array([[0, 1], [1, 2]])
    unions = (1 - share) * log_pi[pairs].max(axis=1)
    found = process.union_gains(log_pi, 160.0, pairs, unions)
    assert found.shape == (2,) and np.isfinite(found).all()


@pytest.mark.parametrize("gamma", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_what_a_union_of_topics_promises_is_what_it_gains_but_for_some_nats(gamma: float, alpha: float) -> None:
    """Of unions whose shares are nearly those of both; of so many documents the square of what they lack counts."""
    rng, process, documents = np.random.default_rng(0), HierarchicalDirichletProcess(gamma, alpha), 1e6
    shares, pairs = rng.dirichlet(np.full(7, 5.0)), np.argwhere(np.tri(6, k=-1))
    together = shares[pairs].sum(axis=1) + rng.uniform(-0.01, 0.01, size=len(pairs))
    log_pi, unions = -documents / (alpha * shares), -documents / (alpha * together)

    def value(sums: np.ndarray) -> float:
        return process.value(process.sticks(sums, documents), sums, documents)

    merged = [np.delete(np.where(np.arange(7) == a, u, log_pi), b) for (a, b), u in zip(pairs, unions, strict=True)]
    gains = np.array([value(sums) for sums in merged]) - value(log_pi)
    np.testing.assert_allclose(process.union_gains(log_pi, documents, pairs, unions), gains, rtol=0, atol=12.0)


def test_documents_of_more_tokens_in_all_than_can_be_drawn_from_are_refused() -> None:
    documents = sparse.csr_array(np.array([[1, 2], [600_000_000, 600_000_000]]))
    with pytest.raises(InputError, match=r"document 1 should have fewer than 1000000000 tokens .* got 1200000000"):
        split_tokens(documents, 0.5, 0)


def test_where_all_topics_are_replaced_births_are_sought_as_first_topics_are(monkeypatch) -> None:
    """With a topic of 400 sought it is, and with nine of ten it is not: births replace a quarter of their number."""
    asked = []

    def spied(name: str, sought):
        def call(*given, **more):
            asked.append((name, more.get("fewer")))
            return sought(*given, **more)

        return call

    for name in ("seek_first", "seek_topics"):
        monkeypatch.setattr(seeking, name, spied(name, getattr(seeking, name)))
    for topics, births in ((1, 400), (9, 10)):
        plan = TopicPlan(births=births, sample=200)
        model = HDPTopicModel(initial_topics=topics, max_laps=5, schedule=Memoized(batches=1), learn=(), moves=plan)
        model.fit(blocks(4, 200))
        assert asked[0] == (("seek_first", False) if births == 400 else ("seek_topics", None))
        asked.clear()


def test_births_of_few_topics_are_sought_from_fewer_groups_once_they_were_refused(monkeypatch) -> None:
    asked, seek = [], seeking.seek_first

    def seen(model, documents, whole, topics, iterations, seed, fewer):
        asked.append((topics, iterations, fewer))
        return seek(model, documents, whole, topics, iterations, seed, fewer)

    monkeypatch.setattr(seeking, "seek_first", seen)
    plan = TopicPlan(births=100, sample=200)
    model = HDPTopicModel(initial_topics=4, max_laps=60, random_state=0, moves=plan).fit(blocks(4, 200))
    tried = [reason for kind, reason in zip(*proposals_of(model), strict=True) if kind == "birth"]
    assert asked[:2] == [(96, 5, False), (96, 1, True)] and len(tried) >= 2 and model.n_topics_ == 4


@pytest.mark.parametrize("seed", range(3))
def test_topics_that_join_several_are_found_though_none_found_afresh_are_better(seed: int) -> None:
    """Ten topics find eight of twelve bars; hundreds in their place gain nothing in the laps that they are given."""
    rng, side = np.random.default_rng(seed), 6
    grid, lines = np.arange(side * side).reshape(side, side), np.zeros((2 * side, side * side))
    for bar, words in enumerate([*grid, *grid.T]):
        lines[bar, words] = 1 / side
    shares = rng.dirichlet(np.full(2 * side, 0.15), size=600)
    counts = np.stack([rng.multinomial(120, each @ lines) for each in shares])
    topics = HDPTopicModel(initial_topics=10, random_state=0).fit(counts).components_
    found = topics / topics.sum(axis=1, keepdims=True)
    apart = np.abs(found[:, None] - lines).sum(axis=2) / 2
    assert len(found) == 2 * side and apart.min(axis=1).max() < 0.1 and apart.min(axis=0).max() < 0.1


def proposals_of(model: HDPTopicModel) -> tuple[list[str], list[str]]:
    """Kinds of all proposals, and what became of them."""
    history = model.history_
    return history.proposal_kind.values.tolist(), history.proposal_reason.values.tolist()


def dense_documents(seed: int, topics: int, words: int, documents: int = 150) -> np.ndarray:
    """Documents of 60 tokens that have some of all topics, each of so many words of its own."""
    rng, blocks = np.random.default_rng(seed), np.kron(np.eye(topics), np.full(words, 1 / words))
    return np.array([rng.multinomial(60, share @ blocks) for share in rng.dirichlet(np.ones(topics), size=documents)])


@pytest.mark.parametrize("begin", [10, 400])
@pytest.mark.parametrize(("topics", "words"), [(3, 4), (4, 30)])
def test_few_topics_that_all_documents_have_some_of_are_found_from_any_number(topics, words, begin) -> None:
    counts = dense_documents(1, topics, words)
    model = HDPTopicModel(initial_topics=begin, random_state=0).fit(counts)
    assert model.n_topics_ == topics
    of = model.components_.reshape(topics, topics, words).sum(axis=2)
    assert of.max(axis=1).min() > 0.9 and len(set(of.argmax(axis=1))) == topics


@pytest.mark.parametrize(("factor", "forming"), [(1.09, False), (0.91, False), (1.11, True), (0.89, True)])
def test_no_moves_are_tried_while_a_lap_changes_the_learned_pseudocount_by_a_tenth(
    factor: float, forming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, choose = [], lap_moves._next_trials

    def chosen(*given):
        tried.append(len(given))
        return choose(*given)

    monkeypatch.setattr(lap_moves, "_next_trials", chosen)
    monkeypatch.setattr(lap_moves, "learned", lambda model, *_: replace(model, pseudocount=factor * model.pseudocount))
    HDPTopicModel(initial_topics=3, max_laps=2, schedule=Memoized(batches=1)).fit(blocks(4, 100))
    assert len(tried) == (0 if forming else 2)


def test_what_accepted_moves_gained_is_what_the_bound_rose_by() -> None:
    """Also where a birth or a delete brings merges of its own; a better order of topics adds a little."""
    rng = np.random.default_rng(0)
    words = rng.dirichlet(np.full(60, 0.1), 8)
    x = np.array([rng.multinomial(50, rng.dirichlet(np.full(8, 0.3)) @ words) for _ in range(500)])
    model = HDPTopicModel(random_state=0, initial_topics=30, max_laps=12, learn=()).fit(x)
    history, gained = model.view().history, model.view().history.gained()
    brought = {
        row.lap for row in history.proposals if row.kind in ("birth", "delete") and row.reason is Reason.ACCEPTED
    }
    along = {row.lap for row in history.proposals if row.reason is Reason.ALONG}
    assert along and along <= brought, "of an accepted birth or delete the merges are told beside"
    assert all(row.gain > 0 for row in history.proposals if row.reason.taken)
    for row in history.laps:
        rose = row.elbo - row.elbo_before_moves
        assert gained[row.lap] - 1e-6 <= rose <= gained[row.lap] + 5, row.lap


@pytest.mark.parametrize("rests", [False, True])
def test_fewer_topics_are_removed_together_the_more_often_they_were_refused(rests) -> None:
    """Those that rest, be they ever so faint, neither go nor let others go."""
    faint, ids = [0.5] * 3 if rests else [], np.arange(12 if rests else 9)
    counts = np.array([900.0] * 5 + [300, 200, 100, 50, *faint])
    resting = {int(i): Cooldown(1, 99, 0.0) for i in ids[9:]}
    whole = SimpleNamespace(counts=np.concatenate([counts, np.full(31, 900.0)]))
    names = np.arange(len(whole.counts))
    for refused, number in enumerate([(len(names)) // 10 + 1, 1, 1]):
        gone = lap_moves._to_remove(TopicPlan(tries=3), whole, names, resting, refused)
        assert sorted(whole.counts[gone]) == [50.0, 100.0, 200.0, 300.0, 900.0][: min(number, 4)]
    assert not len(lap_moves._to_remove(TopicPlan(), whole, names, resting, TopicPlan().tries))
    all_faint = lap_moves._to_remove(TopicPlan(), SimpleNamespace(counts=counts), ids, {}, 1)
    assert (set(ids[9:]) or {8}) == set(all_faint.tolist())


@pytest.mark.parametrize("cooldown", [0, 1, 3])
def test_a_topic_that_alone_was_refused_to_go_rests_for_so_many_laps(cooldown) -> None:
    plan, ids, refusal = TopicPlan(cooldown=cooldown), np.arange(5), Record("delete", (3,), -1.0, Reason.NO_GAIN)
    rests = [lap_moves._cooldowns(plan, {}, refusal, 10, ids)]
    for lap in range(11, 16):
        rests.append(lap_moves._cooldowns(plan, rests[-1], None, lap, ids))
    assert [3 in each for each in rests] == [lap < cooldown for lap in range(6)]
    together = Record("delete", (2, 3), -1.0, Reason.NO_GAIN)
    assert not lap_moves._cooldowns(plan, {}, together, 10, ids)
    assert not lap_moves._cooldowns(plan, rests[0], None, 10, np.delete(ids, 3))


def test_births_have_the_turn_unless_they_were_refused_more_often_than_deletes(monkeypatch) -> None:
    words, sought = np.random.default_rng(0).gamma(1.0, size=(20, 12)), []
    total = SimpleNamespace(words=words, counts=np.arange(1.0, 13.0) ** 3)
    monkeypatch.setattr(lap_moves, "_seek", lambda topics, refused: sought.append(refused))
    plan = TopicPlan(tries=4)
    for births in range(3):
        for deletes in range(3):
            topics = SimpleNamespace(
                problem=SimpleNamespace(plan=plan), total=total, sample=words, lap=3, ids=np.arange(12), cooldowns={}
            )
            sought.clear()
            refused = TopicTrials(births_refused=births, deletes_refused=deletes)
            tried, _ = lap_moves._next_trials(topics, refused)
            assert sought == ([births] if births <= deletes else [])
            assert tried.kind == "delete" and tried.births_refused == births + len(sought)


def test_topics_come_in_the_order_that_has_the_higher_bound() -> None:
    rng, orders = np.random.default_rng(0), []
    model, process = model_over(30), HierarchicalDirichletProcess(2.0, 0.5)
    assert model.allocation == process
    for sizes in (np.arange(1.0, 9.0), np.arange(8.0, 0.0, -1.0)):
        mixed = np.array([rng.multinomial(60, rng.dirichlet(sizes**2 / 4)) for _ in range(40)])
        rates = np.repeat(mixed, 4, axis=1)[:, :30] + 0.0
        held = np.concatenate([rng.dirichlet(np.full(30, 0.1), size=8).T * mixed.sum(axis=0)], axis=1)
        posterior = model.posterior_of(held, np.append(np.full(8, 0.1), 0.1))
        summary, _, _ = local_step(posterior, sparse.csr_array(rates), DocumentTopics.unknown(40), NO_PAIRS, Effort())
        found = lap_moves._better_order(model, summary)
        largest = np.argsort(-summary.counts, kind="stable")

        def value(order: np.ndarray, summary=summary) -> float:
            return model.allocation_value(summary.groups_of(order), summary.totals, summary.documents)

        assert value(found) == max(value(np.arange(8)), value(largest))
        orders.append(found.tolist() == largest.tolist() != list(range(8)))
    assert any(orders), "one of them is not in order yet"
