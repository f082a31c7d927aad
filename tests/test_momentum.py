"""Laws of momentum: the bound never falls, laps are saved, and a run continues with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import dpdist
from dpdist.core.errors import PrecisionError
from dpdist.execution import SerialBackend
from dpdist.inference.mixture import engine
from dpdist.inference.mixture import momentum as rules
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import laps
from dpdist.inference.mixture.momentum import MOST, Momentum
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.models.families import FAMILIES
from dpdist.models.mixture import Posterior, Precision
from dpdist.storage.checkpoint import RunStore
from tests.runs import ALL_MOVES, begun, clusters, digest, mixture, source_of
from tests.test_moves import rows_for


def overlapping(seed: int, rows: int = 600) -> np.ndarray:
    """Rows of two clusters that are hardly apart, so that laps gain little each."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 2)) + np.where(rng.random(rows) < 0.5, -1.0, 1.0)[:, None]


def fixed(moves: bool, batches: int = 1, **given) -> dpdist.DPMixture:
    """A mixture of four components, which settles after many laps; with `moves`, it is one that can never be made."""
    defaults = {"initial": np.arange(600) % 4, "max_components": 4, "max_laps": 400, "tolerance": 1e-7}
    own = [dpdist.Split()] if moves else []
    return mixture(**{**defaults, "moves": own, "schedule": Memoized(batches), **given})


# --- weights and trends ------------------------------------------------------------------------------------------


def test_the_weight_is_nesterovs_until_its_largest() -> None:
    coefficients, weights = np.zeros((2, 3)), []
    momentum = Momentum.begun(coefficients)
    for _ in range(80):
        weights.append(momentum.weight)
        momentum = momentum.after(coefficients, np.arange(2))
    assert weights[:5] == [0.0, 0.0, 0.25, 0.4, 0.5]
    assert weights[-1] == MOST and (np.diff(weights) >= 0).all()


def test_the_trend_follows_components_whose_order_changes() -> None:
    rng = np.random.default_rng(0)
    before, change, order = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.array([2, 0, 3, 1])
    momentum = Momentum.begun(before).after((before + change)[order], order)
    np.testing.assert_allclose(momentum.trend, change[order])
    np.testing.assert_array_equal(momentum.last, (before + change)[order])


def test_a_posterior_goes_further_by_the_weighted_trend() -> None:
    rng, family = np.random.default_rng(1), FAMILIES["gaussian"]()
    coefficients, trend = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    posterior = Posterior(family, np.ascontiguousarray(coefficients.T), Precision())
    momentum = Momentum(2, coefficients, trend)
    np.testing.assert_allclose(momentum.extrapolated(posterior).coefficients.T, coefficients + 0.25 * trend)
    assert momentum.stopped().extrapolated(posterior) is posterior


# --- runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 3])
def test_laps_are_saved_where_clusters_overlap(batches) -> None:
    rows = source_of(overlapping(1))
    with_it, without = (fixed(moves, batches).fit(rows) for moves in (True, False))
    assert with_it.converged_ and without.converged_
    assert with_it.n_iter_ < 0.6 * without.n_iter_
    assert with_it.elbo_ >= without.elbo_ - 1e-7 * 600 * 10


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("batches", [1, 3])
def test_the_bound_never_falls_whatever_the_weight(name, batches, monkeypatch) -> None:
    """Also with steps so long that nearly all of them must be taken back."""
    for weight in (None, 30.0):
        if weight is not None:
            monkeypatch.setattr(Momentum, "weight", property(lambda self, w=weight: w * (self.laps > 1)))
        rows, few = rows_for(name, np.random.default_rng(2), 0.5), {"max_laps": 25, "tolerance": 0.0}
        model = fixed(True, batches, family=FAMILIES[name](), initial=np.arange(90) % 3, **few)
        elbo = model.fit(source_of(rows, 30)).history_.elbo.to_numpy()
        assert len(elbo) == 25
        assert (np.diff(elbo) >= -1e-11 * abs(elbo[1:])).all()


def test_a_step_that_is_too_long_is_taken_back_and_momentum_begins_anew(monkeypatch) -> None:
    rows = source_of(overlapping(1))
    with monkeypatch.context() as never:
        never.setattr(Momentum, "weight", 0.0)
        plain = fixed(True, max_laps=7).fit(rows).history_.elbo.to_numpy()
    monkeypatch.setattr(Momentum, "weight", property(lambda self: 1e4 * (self.laps > 1)))
    problem, state = begun(fixed(True), rows)
    numbers, found = [], []
    for _, (after, info) in zip(range(7), laps(problem, rows, state, SerialBackend()), strict=False):
        numbers.append(after.momentum.laps)
        found.append(info.elbo)
    assert numbers == [0, 1, 2, 1, 2, 1, 2]
    assert found == plain.tolist()


def test_a_step_that_loses_its_precision_is_taken_back(monkeypatch) -> None:
    """As if every step further than coordinate ascent lost it: laps are those of coordinate ascent."""
    rows = source_of(overlapping(1))
    with monkeypatch.context() as never:
        never.setattr(Momentum, "weight", 0.0)
        plain = fixed(True, 3, max_laps=7).fit(rows).history_.elbo.to_numpy()

    seen = engine.visit

    def visit(partition, preparation, task, known):
        if further[-1]:
            raise PrecisionError("lost")
        return seen(partition, preparation, task, known)

    further, draft = [], engine._MixtureWork._draft

    def drafted(self, state):
        further.append(state.momentum is not None and state.momentum.weight > 0)
        return draft(self, state)

    monkeypatch.setattr(engine, "visit", visit)
    monkeypatch.setattr(engine._MixtureWork, "_draft", drafted)
    assert fixed(True, 3, max_laps=7).fit(rows).history_.elbo.to_numpy().tolist() == plain.tolist()
    assert any(further)


def test_only_a_plain_lap_tells_that_a_run_has_converged() -> None:
    rows, weights = source_of(overlapping(1)), [0.0]
    problem, state = begun(fixed(True), rows)
    for after, _ in laps(problem, rows, state, SerialBackend()):
        if after.quiet:
            break
        weights.append(after.momentum.weight)
    assert max(weights) > 0.0 and weights[-1] == 0.0 and weights[-2] > 0.0


def test_accepted_moves_end_momentum() -> None:
    rows = source_of(clusters(2, 600, 2, spread=1.5))
    problem, state = begun(mixture(moves=ALL_MOVES, schedule=Memoized(2), max_laps=20, tolerance=0.0), rows)
    numbers, taken = [], []
    for _, (after, info) in zip(range(12), laps(problem, rows, state, SerialBackend()), strict=False):
        numbers.append(after.momentum.laps)
        taken.append(any(record.reason.taken for record in info.records))
    assert any(taken[1:]) and not all(taken)
    for before, now, moved in zip(numbers, numbers[1:], taken[1:], strict=False):
        assert now == 0 if moved else 0 < now <= before + 1


@pytest.mark.parametrize(
    "given",
    [{"moves": []}, {"schedule": Memoized(3, lookahead=1)}, {"schedule": Stochastic(3)}],
    ids=["no moves", "look-ahead", "stochastic"],
)
def test_other_runs_have_none(given) -> None:
    rows = source_of(overlapping(3))
    problem, state = begun(mixture(initial=np.arange(600) % 3, **given), rows)
    for _, (after, _) in zip(range(4), laps(problem, rows, state, SerialBackend()), strict=False):
        assert after.momentum is None


def test_momentum_ends_where_batch_summaries_are_large(monkeypatch) -> None:
    rows = source_of(overlapping(3))
    problem, state = begun(fixed(True, 2), rows)
    for most, none in ((rules.LARGEST_MEMO, False), (0, True)):
        monkeypatch.setattr(rules, "LARGEST_MEMO", most)
        going = laps(problem, rows, state, SerialBackend())
        for _, (state, _) in zip(range(4), going, strict=False):
            assert (state.momentum is None) == none


@pytest.mark.parametrize("given", [{}, {"candidates": Candidates(every=3, components=2)}], ids=["dense", "candidates"])
def test_a_run_stopped_within_a_lap_with_momentum_continues_with_the_same_bits(given, tmp_path) -> None:
    rows, model = source_of(overlapping(4)), fixed(True, 3, max_laps=9, tolerance=0.0, **given)
    whole = model.prepare(rows, tmp_path / "whole")
    for _ in whole:
        pass
    halted = model.prepare(rows, tmp_path / "halted")
    for step in halted:
        if step.state.visited and step.state.momentum is not None and step.state.momentum.weight > 0:
            break
    assert 0 < step.state.visited < 3
    halted.save()
    halted.close()
    stored, _ = RunStore.open(tmp_path / "halted").state()
    assert stored.momentum.laps == step.state.momentum.laps
    dpdist.resume(tmp_path / "halted", rows)
    assert digest(RunStore.open(tmp_path / "whole").state()[0]) == digest(RunStore.open(tmp_path / "halted").state()[0])
