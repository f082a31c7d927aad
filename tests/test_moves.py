"""The law of moves: a predicted gain is the change of the ELBO recomputed from explicit responsibilities."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.inference.moves.accept import Reason
from dpdist.inference.moves.change import change_from, judge_moves
from dpdist.inference.moves.delete import Deletes
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.merge import Merges, propose_merges
from dpdist.inference.moves.pairs import pair_gains
from dpdist.models.allocations import DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.models.families import FAMILIES, Moments
from dpdist.models.mixture import Block, Model, Posterior, Precision, local_step
from dpdist.models.sufficient_statistics import Summary

ALLOCATIONS = [DirichletProcess(3.0), LearnedDirichletProcess(), FiniteDirichlet(50, 2.0)]
COMPONENTS, CHILDREN, WAVES = 6, 3, 4


def rows_for(name: str, rng: np.random.Generator, spread: float) -> np.ndarray:
    """Rows of six groups; a larger `spread` makes responsibilities harder."""
    owner = rng.integers(COMPONENTS, size=90)
    if name == "bernoulli":
        return (rng.random((90, 5)) < rng.random((COMPONENTS, 5))[owner]).astype(float)
    if name in ("multinomial", "poisson"):
        return rng.poisson(np.exp(0.3 * spread * rng.normal(size=(COMPONENTS, 5)))[owner]).astype(float)
    return rng.normal(size=(90, 3)) + spread * rng.normal(size=(COMPONENTS, 3))[owner]


def entropy(resp: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """-sum_n c_n r log r for each column."""
    logs = np.log(resp, out=np.zeros_like(resp), where=resp > 0)
    return -weights @ (resp * logs)


def summary_of(features: np.ndarray, resp: np.ndarray, weights: np.ndarray) -> Summary:
    """The summary of explicit responsibilities, components by descending count."""
    resp = resp[:, np.argsort(-(weights @ resp), kind="stable")]
    return Summary((weights[:, None] * resp).T @ features, entropy(resp, weights))


class Explicit:
    """A lap whose every responsibility is held, batch by batch under different posteriors."""

    def __init__(self, name: str, allocation, seed: int, spread: float) -> None:
        rng = np.random.default_rng(seed)
        self.rows = rows_for(name, rng, spread)
        rows = self.rows
        moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), True)
        self.model = Model(FAMILIES[name]().with_defaults(moments), allocation)
        self.weights = rng.uniform(0.5, 2.0, size=len(rows))
        self.features = self.model.family.features(rows)
        pairs = np.array([[0, 1], [2, 3], [1, 4], [0, 5]])
        self.proposals = (
            Divisions.begun([(0,), (2,), (4,)], [CHILDREN] * 3),
            Merges(pairs),
            Deletes(np.array([5, 3]), np.array([[1, 2], [0, 4]])),
        )
        self._visit_all(rng)

    def _random_summary(self, rng: np.random.Generator, components: int) -> Summary:
        resp = rng.dirichlet(np.full(components, 0.3), size=len(self.rows))
        return Summary(resp.T @ self.features, np.zeros(components))

    def _visit_all(self, rng: np.random.Generator) -> None:
        self.blocks, self.armed, self.total, measured = [], [], None, None
        for part in np.array_split(np.arange(len(self.rows)), WAVES):
            posterior = self.model.posterior(self._random_summary(rng, COMPONENTS), Precision(floor=1e-3))
            children = self._random_summary(rng, 3 * CHILDREN)
            proposals = [each.armed(self.model, posterior, children) for each in self.proposals]
            features, weights = self.features[part], self.weights[part]
            resp, summary = local_step(posterior, features, weights)
            block = Block(self.rows[part], features, weights, resp, posterior)
            found = [each.measure(block) for each in proposals]
            self.blocks.append(block)
            self.armed.append(proposals)
            self.total = summary if self.total is None else self.total + summary
            measured = found if measured is None else [a + b for a, b in zip(measured, found, strict=True)]
        self.measured = tuple(measured)
        self.resp = np.concatenate([block.resp for block in self.blocks])

    def columns(self, move: int, proposal: int, resp: np.ndarray) -> np.ndarray:
        """Explicit responsibilities of the replacements."""
        parts, start = [], 0
        for block, proposals in zip(self.blocks, self.armed, strict=True):
            own = resp[start : start + len(block.resp)]
            parts.append(explicit_replacement(proposals[move], proposal, block, own))
            start += len(own)
        return np.concatenate(parts)

    def elbo_after(self, accepted: list[tuple[int, int]]) -> float:
        """ELBO of the explicit responsibilities after some moves."""
        removed = {k for m, j in accepted for k in self.proposals[m].removed(j)}
        kept = [k for k in range(COMPONENTS) if k not in removed]
        columns = [self.resp[:, kept]] + [self.columns(m, j, self.resp) for m, j in accepted]
        summary = summary_of(self.features, np.concatenate(columns, axis=1), self.weights)
        return self.model.elbo(summary)


def explicit_shares(logits: np.ndarray, floor: float) -> np.ndarray:
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[shares < floor] = 0.0
    return shares / shares.sum(axis=1, keepdims=True)


def explicit_replacement(trial, proposal: int, block: Block, resp: np.ndarray) -> np.ndarray:
    if isinstance(trial, Merges):
        return resp[:, trial.pairs[proposal]].sum(axis=1, keepdims=True)
    width = CHILDREN if isinstance(trial, Divisions) else trial.absorbers.shape[1]
    logits = block.features @ trial.coefficients[proposal * width : (proposal + 1) * width].T
    shares = explicit_shares(logits, block.posterior.precision.floor)
    if isinstance(trial, Divisions):
        return resp[:, trial.removed(proposal)].sum(axis=1, keepdims=True) * shares
    return resp[:, trial.absorbers[proposal]] + resp[:, [trial.targets[proposal]]] * shares


@pytest.mark.parametrize("spread", [0.3, 8.0], ids=["soft", "hard"])
@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_gain_of_a_proposal_equals_the_change_of_the_recomputed_elbo(name, allocation, spread) -> None:
    lap = Explicit(name, allocation, seed=1, spread=spread)
    before = lap.elbo_after([])
    for t, trial in enumerate(lap.proposals):
        for j in range(len(trial)):
            alone = [trial_or_none(lap, t, s, j) for s in range(3)]
            verdict = judge_moves(lap.model, lap.total, alone, only(lap, t, j))[0]
            assert verdict.gain == pytest.approx(lap.elbo_after([(t, j)]) - before, abs=1e-8 * abs(before))


def trial_or_none(lap: Explicit, wanted: int, trial: int, proposal: int):
    """The trials with one proposal left."""
    splits, merges, deletes = lap.proposals
    none = np.zeros(0, int)
    keep = [proposal] if wanted == trial else none
    if trial == 0:
        return Divisions.begun([splits.removed(j) for j in keep], [CHILDREN] * len(keep))
    return Merges(merges.pairs[keep]) if trial == 1 else Deletes(deletes.targets[keep], deletes.absorbers[keep])


def only(lap: Explicit, trial: int, proposal: int) -> list[Summary]:
    """The measurements with one proposal left."""
    width = {0: CHILDREN, 1: 1, 2: 2}[trial]
    rows = slice(proposal * width, (proposal + 1) * width)
    parts = [Summary(m.stats[:0], m.entropy[:0]) for m in lap.measured]
    own = lap.measured[trial]
    parts[trial] = Summary(own.stats[rows], own.entropy[rows])
    return parts


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)
@pytest.mark.parametrize("name", ["gaussian", "multinomial"])
def test_several_moves_in_a_lap_change_the_elbo_by_the_sum_of_their_gains(name, allocation, seed) -> None:
    lap = Explicit(name, allocation, seed, spread=[0.3, 2.0, 8.0][seed % 3])
    verdicts = judge_moves(lap.model, lap.total, lap.proposals, lap.measured)
    accepted = [(v.move, v.proposal) for v in verdicts if v.reason is Reason.ACCEPTED]
    before, after = lap.elbo_after([]), lap.elbo_after(accepted)
    gains = sum(v.gain for v in verdicts if v.reason is Reason.ACCEPTED)
    assert gains == pytest.approx(after - before, abs=1e-8 * abs(before))
    assert all(v.gain > 0 for v in verdicts if v.reason is Reason.ACCEPTED)
    assert len(verdicts) == sum(len(trial) for trial in lap.proposals)


@pytest.mark.parametrize("seed", range(4))
def test_a_change_applied_to_leaves_sums_to_the_change_applied_to_the_total(seed) -> None:
    lap = Explicit("gaussian", DirichletProcess(3.0), seed, spread=2.0)
    verdicts = judge_moves(lap.model, lap.total, lap.proposals, lap.measured)
    change = change_from(lap.model, lap.total, lap.proposals, lap.measured, verdicts)
    total = None
    for block, proposals in zip(lap.blocks, lap.armed, strict=True):
        _, own = local_step(block.posterior, block.features, block.weights)
        batch_summary = change.apply(own, lap.proposals, [each.measure(block) for each in proposals])
        total = batch_summary if total is None else total + batch_summary
    whole = change.apply(lap.total, lap.proposals, lap.measured)
    np.testing.assert_allclose(total.stats, whole.stats, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(total.entropy, whole.entropy, rtol=1e-10, atol=1e-9)
    assert lap.model.elbo(whole) == pytest.approx(lap.elbo_after(list(change.accepted)), rel=1e-10)
    assert (np.diff(whole.counts) <= 0).all()


def test_a_split_is_compared_with_the_sum_of_its_own_children() -> None:
    lap = Explicit("gaussian", DirichletProcess(3.0), 2, spread=2.0)
    splits, measured = lap.proposals[:1], lap.measured[:1]
    elsewhere = lap.total.stats * np.append(np.full(lap.total.stats.shape[1] - 1, 1 + 1e-3), 1.0)
    disturbed = Summary(elsewhere, lap.total.entropy)
    found = judge_moves(lap.model, disturbed, splits, measured)
    assert [verdict.gain for verdict in found] == [v.gain for v in judge_moves(lap.model, lap.total, splits, measured)]


@pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)
def test_a_merge_gains_what_its_pair_does_less_the_entropy_that_it_loses(allocation) -> None:
    lap = Explicit("gaussian", allocation, 3, spread=1.0)
    bound, lost = pair_gains(lap.model, lap.total), lap.measured[1].entropy
    for j, (a, b) in enumerate(lap.proposals[1].pairs):
        exact = lap.elbo_after([(1, j)]) - lap.elbo_after([])
        assert exact == pytest.approx(bound[a, b] + lost[j], abs=1e-8)
        assert lost[j] < 0


def test_an_identical_twin_is_merged() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 2))
    moments = Moments(400, rows.mean(0), rows.var(0), rows.min(0), rows.max(0), False)
    model = Model(FAMILIES["gaussian"]().with_defaults(moments), DirichletProcess(1.0))
    features = model.family.features(rows)
    half = np.full((400, 2), 0.5)
    total = Summary(half.T @ features, entropy(half, np.ones(400)))
    merges = propose_merges(pair_gains(model, total), 5)
    assert len(merges) == 1
    block = Block(rows, features, np.ones(400), half, Posterior(model.family, np.zeros((6, 2)), Precision()))
    verdict = judge_moves(model, total, [merges], [merges.measure(block)])[0]
    assert verdict.reason is Reason.ACCEPTED
