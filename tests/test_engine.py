"""Laws of the loop: exact, monotone, the same whatever the batches' timing, oracle by oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpdist
from dpdist.data.arrays import ArraySource
from dpdist.data.base import Partitioning, weight_of
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.batches import batches_that_pay
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import first_state, laps, steps
from dpdist.inference.mixture.local_step import LocalStepTask, visit
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.accept import Reason
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.merge import Merge, Merges
from dpdist.inference.moves.registry import MOVES
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.moves.split import Split
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.inference.schedules.base import Ledger, Schedule
from dpdist.inference.schedules.tree import SumTree
from dpdist.inference.state import Info, State
from dpdist.inference.transform import Preparation, Transform
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import FAMILIES, DiagonalGaussian, Gaussian
from dpdist.models.mixture import Model, Precision
from dpdist.models.sufficient_statistics import Summary
from dpdist.storage.checkpoint import RunStore
from tests.conftest import shared_path
from tests.runs import ALL_MOVES, begun, clusters, digest, mixture, some_steps, source_of
from tests.test_moves import entropy, explicit_shares, rows_for

QUIET: list = []  # no moves


class RecordingBackend(SerialBackend):
    """Keeps the last orders under which each partition was visited."""

    def __init__(self) -> None:
        self.task: dict[int, LocalStepTask] = {}

    def total(self, function, *columns):
        if function is visit:
            for partition, task in zip(columns[0], columns[2], strict=True):
                self.task[partition.index] = task
        return super().total(function, *columns)


def explicit_resp(problem: Problem, source, backend: RecordingBackend) -> tuple[np.ndarray, dict]:
    """Every responsibility of the last lap, and those of each proposal's replacements."""
    resp, replaced = [], {}
    for partition in source.partitions:
        task = backend.task[partition.index]
        features = problem.model.family.features(problem.preparation.apply(partition.load()[0]))
        own = explicit_shares(features @ task.posterior.coefficients, problem.precision.floor)
        resp.append(own)
        for m, tried in enumerate(task.proposals):
            for j in range(len(tried)):
                replaced.setdefault((m, j), []).append(_replacement(tried, j, own, features, problem.precision.floor))
    return np.concatenate(resp), {key: np.concatenate(parts) for key, parts in replaced.items()}


def _replacement(tried, j: int, resp: np.ndarray, features: np.ndarray, floor: float) -> np.ndarray:
    if isinstance(tried, Merges):
        return resp[:, tried.pairs[j]].sum(axis=1, keepdims=True)
    if isinstance(tried, Divisions):
        held = resp[:, tried.removed(j)].sum(axis=1, keepdims=True)
        return held * explicit_shares(features @ tried.coefficients[tried.rows_of(j)].T, floor)
    width = tried.absorbers.shape[1]
    shares = explicit_shares(features @ tried.coefficients[j * width : (j + 1) * width].T, floor)
    return resp[:, tried.absorbers[j]] + resp[:, [tried.targets[j]]] * shares


def explicit_elbo(problem: Problem, source, columns: np.ndarray, weights: np.ndarray) -> float:
    """ELBO of explicit responsibilities, components by descending count."""
    resp = columns[:, np.argsort(-(weights @ columns), kind="stable")]
    return explicit_elbo_unsorted(problem, source, resp, weights)


@pytest.mark.parametrize(
    ("name", "lookahead"), [*((name, 0) for name in sorted(FAMILIES)), *(("gaussian", ahead) for ahead in (1, 2, 5))]
)
def test_elbo_of_every_lap_equals_that_of_its_explicit_responsibilities(name, lookahead) -> None:
    rows = np.concatenate([rows_for(name, np.random.default_rng(s), 4.0) for s in (1, 1, 1)])
    weights = np.random.default_rng(5).uniform(0.5, 2, size=len(rows))
    source = source_of(rows, 30, weights)
    labels = np.arange(len(rows)) % 4
    model = mixture(family=FAMILIES[name](), schedule=Memoized(4, lookahead), initial=labels, moves=ALL_MOVES)
    problem, state = begun(model, source)
    backend, accepted_at_all = RecordingBackend(), 0
    for _, (following, info) in zip(range(8), laps(problem, source, state, backend), strict=False):
        resp, replaced = explicit_resp(problem, source, backend)
        before = explicit_elbo_unsorted(problem, source, resp, weights)
        assert info.elbo_before_moves == pytest.approx(before, rel=1e-9)
        after, accepted = moved_resp(state, info, resp, replaced)
        accepted_at_all += accepted
        assert info.elbo == pytest.approx(explicit_elbo(problem, source, after, weights), rel=1e-9)
        state = following
    assert accepted_at_all > 0


def explicit_elbo_unsorted(problem: Problem, source, resp: np.ndarray, weights: np.ndarray) -> float:
    rows = problem.preparation.apply(source.values)
    family = problem.model.family
    stats = (weights[:, None] * resp).T @ family.features(rows)
    return problem.model.elbo(Summary(stats, entropy(resp, weights), float(weights @ family.log_base_measure(rows))))


def moved_resp(state: State, info: Info, resp: np.ndarray, replaced) -> tuple[np.ndarray, int]:
    """Responsibilities after the moves of a lap that were accepted, and how many these are."""
    accepted = _accepted(state, info)
    removed = {k for m, j in accepted for k in state.proposals[m].removed(j)}
    kept = resp[:, [k for k in range(resp.shape[1]) if k not in removed]]
    return np.concatenate([kept] + [replaced[key] for key in accepted], axis=1), len(accepted)


def _accepted(state: State, info: Info) -> list[tuple[int, int]]:
    """(move, proposal) of the accepted records, of the default moves."""
    kinds = {move.kind: m for m, move in enumerate(MOVES)}
    found = []
    for record in info.records:
        if record.reason is Reason.ACCEPTED:
            m = kinds[record.kind]
            tried = state.proposals[m]
            ids = [tuple(int(state.ids[k]) for k in tried.removed(j)) for j in range(len(tried))]
            found.append((m, ids.index(record.components)))
    return found


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_elbo_never_falls_from_lap_to_lap(name) -> None:
    rows = np.concatenate([rows_for(name, np.random.default_rng(s), 1.5) for s in range(4)])
    model = mixture(family=FAMILIES[name](), floor=0.0, max_laps=12, moves=ALL_MOVES)
    elbos = [info.elbo for _, info in model.iter_fit(source_of(rows, 40))]
    assert (np.diff(elbos) >= -1e-9 * abs(elbos[-1])).all()


def test_gains_of_a_lap_add_up_to_the_change_of_the_elbo() -> None:
    for _, info in mixture(max_laps=15, moves=ALL_MOVES).iter_fit(source_of(clusters(0))):
        gained = sum(r.gain for r in info.records if r.reason is Reason.ACCEPTED)
        reorder = info.elbo - info.elbo_before_moves - gained
        assert reorder >= -1e-9 * abs(info.elbo)


@pytest.mark.parametrize("batches", [1, 3, 9])
def test_more_batches_reach_the_same_clusters(batches) -> None:
    model = mixture(schedule=Memoized(batches), max_laps=60)
    assert model.fit(source_of(clusters(3))).n_components_ == 5


def test_order_of_partitions_does_not_matter_to_a_batch_lap_beyond_rounding() -> None:
    rows = clusters(1)
    shuffled = np.concatenate([part[::-1] for part in np.split(rows, 9)])
    one, two = (mixture(moves=QUIET, schedule=Memoized(3), initial=None, max_laps=5) for _ in range(2))
    labels = np.arange(len(rows)) % 4
    one.initial, two.initial = labels, np.concatenate([part[::-1] for part in np.split(labels, 9)])
    assert one.fit(source_of(rows)).elbo_ == pytest.approx(two.fit(source_of(shuffled)).elbo_, rel=1e-10)


@pytest.mark.parametrize("lookahead", [0, 1, 5])
@pytest.mark.parametrize("schedule", [Memoized, Stochastic])
def test_going_on_from_any_step_gives_the_same_bits(schedule, lookahead) -> None:
    source = source_of(clusters(2, 450), 50)
    few = {"sampling": Sampling(40), "moves": ALL_MOVES}  # so that only some rows are drawn
    model = mixture(schedule=schedule(4, lookahead), initial="k-means++", initial_components=3, **few)
    problem, state = begun(model, source)
    whole = [step.state for step in some_steps(problem, source, state, 22)]
    for stop in (0, 1, 2, 3, 6, 9, 12):  # for two laps and a batch
        again = [step.state for step in some_steps(problem, source, whole[stop], 9)]
        assert digest(again[-1]) == digest(whole[stop + 9])


def test_lookahead_starts_a_batch_from_the_posterior_before_last() -> None:
    source = source_of(clusters(2))
    problem, state = begun(mixture(schedule=Memoized(4, 1), moves=QUIET, initial=np.arange(900) % 3), source)
    seen = [step.state for step in some_steps(problem, source, state, 4)]
    first_batch = state.order[0]
    assert len(seen[0].queue) == 1
    np.testing.assert_array_equal(seen[0].queue[0].summary.stats, state.start.summary.stats)
    assert not (seen[1].queue[0].summary.stats == state.start.summary.stats).all()
    assert seen[0].batch_summaries[first_batch].summary.counts.sum() > 0


def opened(schedule: Schedule, state: State, rows: list[float]) -> Ledger:
    """The account of a lap whose sums are in memory."""
    return schedule.open(state, rows, SumTree(state.batch_summaries))


@pytest.mark.parametrize("lookahead", range(6))
def test_a_batch_goes_by_the_total_as_it_was_so_many_batches_before(lookahead) -> None:
    source = source_of(clusters(2))
    schedule = Memoized(4, lookahead)
    problem, state = begun(mixture(schedule=schedule, moves=QUIET, initial=np.arange(900) % 3), source)
    seen = [step.state for step in some_steps(problem, source, state, 3)]
    ledgers = [opened(schedule, each, [300.0, 200.0, 200.0, 200.0]).total() for each in (state, *seen)]
    for done, each in enumerate(seen, start=1):
        assert len(each.queue) == min(lookahead, 4 - done)
        for position, total in enumerate(each.queue, start=done):
            told = ledgers[max(0, position - lookahead)]
            np.testing.assert_array_equal(total.summary.stats, told.summary.stats)


@pytest.mark.parametrize("seed", range(20))
def test_what_stands_in_for_unseen_batches_depends_on_the_batches_left_alone(seed) -> None:
    """Whether sums of floats are compensated, as from Python 3.12 on, or added one after the other."""
    rng, schedule = np.random.default_rng(seed), Memoized(20)
    rows = (1000 * rng.exponential(size=20)).tolist()
    blank, start = (BatchSummary(Summary(value, np.zeros(3))) for value in (np.zeros((3, 4)), rng.normal(size=(3, 4))))
    order = tuple(rng.permutation(20).tolist())
    state = begun(mixture(moves=QUIET), source_of(clusters(2)))[1]
    state = replace(state, order=order, batch_summaries=(blank,) * 20, start=start)
    ledger = opened(schedule, state, rows)
    for done, batch in enumerate(order):
        unseen = math.fsum(rows[each] for each in order[done:]) / math.fsum(rows)
        np.testing.assert_array_equal(ledger.total().summary.stats, unseen * start.summary.stats)
        again = opened(schedule, replace(state, visited=done), rows)
        np.testing.assert_array_equal(again.total().summary.stats, ledger.total().summary.stats)
        ledger.fold(batch, blank)
    assert not ledger.total().summary.stats.any()


def test_only_the_seed_decides() -> None:
    rows = clusters(4, 450)
    one, two, other = (mixture(random_state=s, max_laps=8, moves=ALL_MOVES).fit(source_of(rows)) for s in (3, 3, 4))
    assert one.elbo_ == two.elbo_ and (one.component_ids_ == two.component_ids_).all()
    assert (one.history_.elbo != other.history_.elbo).any()


def test_float32_products_find_the_same_clusters() -> None:
    rows = clusters(5)
    one = mixture(max_laps=40).fit(rows)
    two = mixture(max_laps=40, compute_dtype="float32").fit(rows)
    assert one.n_components_ == two.n_components_ == 5
    assert two.elbo_ == pytest.approx(one.elbo_, rel=1e-5)


def test_data_far_from_zero_cluster_as_well_as_centred() -> None:
    rows = np.rint(1024 * clusters(6)) / 1024
    near, far = mixture(max_laps=40).fit(rows), mixture(max_laps=40).fit(rows + 1e8)
    assert near.n_components_ == far.n_components_ == 5
    assert far.elbo_ == pytest.approx(near.elbo_, rel=1e-6)


def test_scaling_the_data_does_not_change_the_clustering() -> None:
    rows = clusters(7)
    one, two = mixture(max_laps=40).fit(rows), mixture(max_laps=40).fit(1000 * rows)
    np.testing.assert_array_equal(one.predict(rows), two.predict(1000 * rows))


STARTS = ("one", "k-means++", "labels")


@pytest.mark.parametrize(("name", "start"), [(name, STARTS[i % 3]) for i, name in enumerate(sorted(FAMILIES))])
def test_a_row_of_weight_w_equals_w_such_rows_for_a_whole_fit(name, start) -> None:
    rng = np.random.default_rng(5)
    rows = rows_for(name, np.random.default_rng(4), 4.0)
    weights, order = rng.integers(0, 4, size=len(rows)), rng.permutation(len(rows))
    labels = np.arange(len(rows)) % 4
    usual = {"family": FAMILIES[name](), "schedule": Memoized(1), "max_laps": 10, "tolerance": 1e-2}
    usual |= {"random_state": 1, "moves": ALL_MOVES}
    initial = [labels[order], np.repeat(labels, weights)] if start == "labels" else [start, start]
    one = mixture(**usual, initial=initial[0], initial_components=4)
    two = mixture(**usual, initial=initial[1], initial_components=4)
    one.fit(rows[order], sample_weight=weights[order].astype(float))
    two.fit(np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(one.history_.elbo, two.history_.elbo, rtol=1e-9)
    np.testing.assert_array_equal(one.component_ids_, two.component_ids_)
    np.testing.assert_array_equal(one.predict(rows), two.predict(rows))
    assert one.stop_reason_ == two.stop_reason_ and one.n_components_ > 1


@pytest.mark.parametrize(("schedule", "uneven"), [(Memoized(1), False), (Memoized(4), True)])
def test_where_samples_are_drawn_weights_find_the_clusters_of_repeated_rows(schedule, uneven) -> None:
    rows = clusters(3, 800, groups=4, spread=12.0)
    light = rows[:, 0] < np.median(rows[:, 0]) if uneven else np.random.default_rng(0).random(800) < 0.5
    weights = np.where(light, 1, 3)
    moves = [Split(cooldown=1, refine=4), Merge(), Delete()]
    given = {"schedule": schedule, "moves": moves, "sampling": Sampling(60), "max_laps": 25}
    one, two = (mixture(**given) for _ in range(2))
    one.fit(source_of(rows, 200, weights.astype(float)))
    two.fit(source_of(np.repeat(rows, weights, axis=0), 200))
    assert one.n_components_ == two.n_components_ == 4
    assert one.elbo_ / weights.sum() == pytest.approx(two.elbo_ / weights.sum(), abs=1e-3)


def test_few_heavy_rows_beside_many_light_ones_are_found_and_split() -> None:
    rng = np.random.default_rng(0)
    heavy = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 12.0])
    light = np.concatenate([rng.normal(size=(1200, 2)) - 40.0, rng.normal(size=(1200, 2)) - 60.0])
    rows, weights = np.concatenate([heavy, light]), np.repeat([1e3, 1.0], [60, 2400])
    order = rng.permutation(len(rows))
    model = mixture(sampling=Sampling(200), max_laps=30)
    labels = model.fit(source_of(rows[order], 400, weights[order])).predict(rows)
    groups = [set(labels[a:b].tolist()) for a, b in ((0, 30), (30, 60), (60, 1260), (1260, 2460))]
    assert all(not groups[i] & groups[j] for i in range(4) for j in range(i))


def test_rows_without_weight_are_as_if_absent_from_a_whole_fit() -> None:
    rows = clusters(2, 500)
    kept = np.random.default_rng(0).random(500) < 0.6
    masked = np.where(kept[:, None], rows, 1e30)
    for schedule in (Memoized(4), Stochastic(4)):
        given = {"schedule": schedule, "initial": "k-means++", "initial_components": 5, "max_laps": 15}
        one = mixture(**given).fit(ArraySource(masked, kept.astype(float), cut=Partitioning((0, 100, 200, 300, 500))))
        ends = np.cumsum(kept)[[99, 199, 299, 499]]
        two = mixture(**given).fit(ArraySource(rows[kept], cut=Partitioning((0, *map(int, ends)))))
        np.testing.assert_allclose(one.history_.elbo, two.history_.elbo, rtol=1e-10)


def test_the_chances_of_a_lap_are_those_of_the_rows_of_its_components() -> None:
    few, weights = Sampling(25), np.random.default_rng(1).choice([0.01, 1.0, 1e4], size=450)
    rows = np.concatenate([rows_for("gaussian", np.random.default_rng(s), 4.0) for s in range(5)])
    source = source_of(rows, 90, weights)
    model = mixture(sampling=few, initial=np.arange(450) % 7, schedule=Memoized(2), moves=ALL_MOVES)
    problem, state = begun(model, source)
    backend, accepted_at_all = RecordingBackend(), 0
    for _, (following, info) in zip(range(7), laps(problem, source, state, backend), strict=False):
        resp, replaced = explicit_resp(problem, source, backend)
        after, accepted = moved_resp(state, info, resp, replaced)
        accepted_at_all += accepted
        there = after[:, np.argsort(-(weights @ after), kind="stable")].sum(axis=0)
        expected = np.minimum(1.0, 1.2 * 25 / np.maximum(there, 1.0))
        drawn = following.sampling_probabilities > 0
        np.testing.assert_allclose(following.sampling_probabilities[drawn], expected[drawn], rtol=1e-6)
        wanted = [
            move.wants_rows(tried, following.ids, info.lap + 1)
            for move, tried in zip(problem.moves, following.proposals, strict=True)
        ]
        assert drawn.tolist() == np.any(wanted, axis=0).tolist()
        state = following
    assert accepted_at_all > 0


@pytest.mark.parametrize("schedule", [Memoized(4), Memoized(4, 1), Stochastic(4), Stochastic(4, 1)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_every_total_holds_the_weight_of_all_rows(schedule, weighted) -> None:
    rows, weights = clusters(1, 730), np.random.default_rng(1).uniform(0, 5, 730)
    weights[100:200] = 0.0
    cut = Partitioning((0, 100, 200, 240, 500, 730))  # batches of unequal rows and weights, one of none
    source = ArraySource(rows, weights if weighted else None, cut=cut)
    whole = weights.sum() if weighted else 730
    batches = [sum(weight_of(source, part) for part in source.partitions[batch::4]) for batch in range(4)]
    model = mixture(schedule=schedule, moves=QUIET, initial="k-means++", initial_components=3)
    problem, state = begun(model, source)
    for step in some_steps(problem, source, state, 12):
        total = opened(problem.schedule, step.state, batches).total()
        assert total.summary.counts.sum() == pytest.approx(whole, rel=1e-9)
        for waiting in step.state.queue:
            assert waiting.summary.counts.sum() == pytest.approx(whole, rel=1e-9)
        if step.info is not None:
            assert step.info.rows == pytest.approx(whole) and step.info.counts.sum() == pytest.approx(whole)


def test_a_run_is_quiet_where_its_elbo_neither_rises_nor_falls_by_the_tolerance() -> None:
    schedule = Stochastic(9, delay=0.0, forgetting=0.51)
    model = mixture(schedule=schedule, initial="k-means++", initial_components=7, tolerance=1e-3)
    rows = clusters(2, spread=1.0)
    source = source_of(rows[np.argsort(rows[:, 0])])  # batches unlike one another
    problem, state = begun(model, source)
    fell = 0
    for _, (following, info) in zip(range(20), laps(problem, source, state, SerialBackend()), strict=False):
        change = np.inf if state.elbo is None else info.elbo_before_moves - state.elbo
        fell += change < -1e-3 * 900
        assert following.quiet == (abs(change) < 1e-3 * 900)
        state = following
    assert fell > 0


def test_a_stochastic_step_averages_the_batch_amplified_to_all_rows() -> None:
    source = ArraySource(clusters(1, 730), cut=Partitioning((0, 400, 500, 730)))
    schedule = Stochastic(3, delay=2.0, forgetting=0.7)
    problem, state = begun(mixture(schedule=schedule, initial="k-means++", initial_components=3), source)
    rows, before = [400, 100, 230], state.start
    for count, step in enumerate(some_steps(problem, source, state, 7), 1):
        rate = (2.0 + count) ** -0.7
        expected = before.scaled(1 - rate) + step.batch_summary.scaled(rate * 730 / rows[step.batch])
        np.testing.assert_allclose(step.state.running.summary.stats, expected.summary.stats, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(step.state.running.summary.entropy, expected.summary.entropy, rtol=1e-9)
        before = step.state.running


def test_a_stochastic_run_without_moves_predicts_with_the_model_of_its_bound() -> None:
    source = ArraySource(clusters(1, 730), cut=Partitioning((0, 400, 500, 730)))
    schedule = Stochastic(3, delay=2.0, forgetting=0.7)
    problem, state = begun(mixture(schedule=schedule, moves=(), initial="k-means++", initial_components=3), source)
    (last,) = [step for step in some_steps(problem, source, state, 3) if step.info is not None]
    assert last.info.total is last.state.running.summary
    assert last.info.elbo == pytest.approx(problem.model.elbo(last.exact.summary, last.info.total), rel=1e-12)


def test_a_memoized_total_has_the_start_in_place_of_batches_not_yet_seen() -> None:
    source = ArraySource(clusters(1, 730), cut=Partitioning((0, 400, 500, 730)))
    rows = [400, 100, 230]
    for keep in (True, False):
        schedule = Memoized(3, keep_start=keep)
        problem, state = begun(
            mixture(schedule=schedule, moves=QUIET, initial="k-means++", initial_components=3), source
        )
        batch_summaries: dict[int, Summary] = {}
        for step in some_steps(problem, source, state, 2):
            batch_summaries[step.batch] = step.batch_summary.summary
            expected = sum(batch_summary.stats for batch_summary in batch_summaries.values())
            np.testing.assert_allclose(SumTree(step.state.batch_summaries).root.summary.stats, expected)
            unseen = 1 - sum(rows[batch] for batch in batch_summaries) / 730
            total = opened(schedule, step.state, rows).total().summary.stats
            np.testing.assert_allclose(total, expected + (unseen * state.start.summary.stats if keep else 0))


@given(batch_summaries=st.integers(1, 17), data=st.data())
def test_a_tree_of_sums_has_the_sum_of_its_leaves_whatever_is_replaced(batch_summaries, data) -> None:
    def batch_summary(number: int) -> BatchSummary:
        return BatchSummary(Summary(np.full((1, 1), float(number)), np.zeros(1)))

    values = [2**i for i in range(batch_summaries)]  # sums of powers of two tell every leaf
    tree = SumTree([batch_summary(value) for value in values])
    for index in data.draw(st.lists(st.integers(0, batch_summaries - 1), max_size=6)):
        assert tree.root.summary.stats[0, 0] == sum(values)
        values[index] = 3 * values[index] + 1
        tree.replace(index, batch_summary(values[index]))
    assert tree.root.summary.stats[0, 0] == sum(values)
    assert [each.summary.stats[0, 0] for each in tree.batch_summaries] == values


def test_every_lap_visits_every_batch_once_in_an_order_of_its_own() -> None:
    task = [Memoized(9).order(lap, seed, 9) for lap in (1, 2, 3) for seed in (0, 1)]
    assert all(sorted(order) == list(range(9)) for order in task)
    assert len(set(task)) == 6
    source = source_of(clusters(0), 100)
    problem, state = begun(mixture(schedule=Memoized(9), moves=QUIET), source)
    visited = [step.batch for step in some_steps(problem, source, state, 27)]
    assert [tuple(visited[a : a + 9]) for a in (0, 9, 18)] == [Memoized(9).order(lap, 0, 9) for lap in (1, 2, 3)]


def test_stochastic_elbo_is_that_of_the_running_posterior() -> None:
    source = source_of(clusters(9), 100)
    model = mixture(schedule=Stochastic(batches=3), initial="k-means++", initial_components=4, floor=0.0)
    problem, state = begun(model, source)
    backend = RecordingBackend()
    for _, (following, info) in zip(range(4), laps(problem, source, state, backend), strict=False):
        resp, _ = explicit_resp(problem, source, backend)
        rows = problem.preparation.apply(source.values)
        whole = Summary(resp.T @ problem.model.family.features(rows), entropy(resp, np.ones(len(rows))))
        assert info.elbo == pytest.approx(problem.model.elbo(whole, following.running.summary), rel=1e-9)
        assert info.elbo <= problem.model.elbo(whole) + 1e-9 * abs(info.elbo)
        state = following


def test_a_stochastic_step_of_rate_one_is_a_batch_step() -> None:
    @dataclass(frozen=True)
    class Sure(Stochastic):
        def rate(self, step: int) -> float:
            return 1.0

    source, labels = source_of(clusters(9)), np.arange(900) % 4
    batch = mixture(schedule=Memoized(1), moves=QUIET, initial=labels)
    sure = mixture(schedule=Sure(batches=1), initial=labels)
    for (_, one), (_, two) in zip(*([*m.iter_fit(source)] for m in (batch, sure)), strict=False):
        assert one.elbo == pytest.approx(two.elbo, rel=1e-10)


# --- oracles ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered(Memoized):
    """Batches in given orders; only what was seen counts in the first lap."""

    task: tuple[tuple[int, ...], ...] = ()

    def order(self, lap: int, seed: int, batches: int) -> tuple[int, ...]:
        return self.task[lap - 1] if lap <= len(self.task) else tuple(range(batches))


def oracle_problem(numbers, rows: np.ndarray, gamma: float, prefix: str, schedule: Memoized) -> Problem:
    """The oracle's own priors, nothing moved."""
    prior = {name: numbers[f"{prefix}_prior_{name}"] for name in ("m", "kappa", "nu", "B")}
    moments = dpdist.families.Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), False)
    family = Gaussian(prior["m"], float(prior["kappa"]), float(prior["nu"]), prior["B"]).with_defaults(moments)
    return Problem(
        Model(family, DirichletProcess(gamma)),
        Preparation(Transform(), None, rows.shape[1]),
        schedule,
        (),
        Sampling(),
        Candidates(),
        Precision(floor=0.0),
        seed=0,
        tolerance=0.0,
    )


@pytest.mark.parametrize("name", ["vb_asterisk_default", "vb_digits20_covdata"])
def test_batch_trace_equals_the_oracle(name) -> None:
    numbers = np.load(shared_path("oracles", f"{name}.npz"), allow_pickle=False)
    rows, resp = numbers["X"], numbers["resp_init"]
    problem = oracle_problem(numbers, rows, float(numbers["t0_gamma0"]), "t0", Memoized(1))
    start = Summary(resp.T @ problem.model.family.features(rows), entropy(resp, np.ones(len(rows))))
    trace = [problem.model.elbo(start)]
    source = ArraySource(rows, partition_rows=len(rows))
    for _, (_, info) in zip(
        range(len(numbers["elbo_raw_trace"]) - 1),
        laps(problem, source, first_state(problem, source, start), SerialBackend()),
        strict=False,
    ):
        trace.append(info.elbo)
    np.testing.assert_allclose(trace, numbers["elbo_raw_trace"], rtol=1e-10)


def test_memoized_trace_equals_the_oracle_at_every_visit() -> None:
    numbers = np.load(shared_path("oracles", "memofixed_digits20_covdata.npz"), allow_pickle=False)
    batch = np.load(shared_path("oracles", "vb_digits20_covdata.npz"), allow_pickle=False)
    rows, resp = batch["X"][numbers["batch_ids"]], numbers["resp_init"][numbers["batch_ids"]]
    task = tuple(tuple(int(b) for b in order) for order in numbers["batch_orders"])
    schedule = Ordered(len(numbers["batch_sizes"]), keep_start=False, task=task)
    problem = oracle_problem(numbers, rows, 5.0, "final", schedule)
    cut = Partitioning((0, *(int(stop) for stop in np.cumsum(numbers["batch_sizes"]))))
    source = ArraySource(rows, cut=cut)
    start = Summary(resp.T @ problem.model.family.features(rows), np.zeros(resp.shape[1]))
    trace = [
        problem.model.elbo(SumTree(step.state.batch_summaries).root.summary)
        for _, step in zip(
            numbers["elbo_raw_trace"],
            steps(problem, source, first_state(problem, source, start), SerialBackend()),
            strict=False,
        )
    ]
    np.testing.assert_allclose(trace, numbers["elbo_raw_trace"], rtol=1e-10)


# --- plain cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [np.ones((50, 2)), np.zeros((1, 3)), np.full((7, 1), 1e9)], ids=["same", "one", "far"])
def test_identical_rows_are_one_cluster(rows) -> None:
    model = mixture(max_laps=40).fit(rows)
    assert model.n_components_ == 1 and np.isfinite(model.elbo_)
    assert model.converged_


def test_constant_and_duplicate_columns_work() -> None:
    rows = clusters(3, columns=2)
    wide = np.column_stack([rows, rows[:, 0], np.full(len(rows), 4.0)])
    model = mixture(max_laps=40).fit(wide)
    assert model.n_components_ >= 3 and np.isfinite(model.elbo_)


def test_a_component_left_without_rows_does_no_harm() -> None:
    rows = clusters(3)
    labels = np.where(np.arange(len(rows)) < 2, 7, np.arange(len(rows)) % 2)
    model = mixture(initial=labels, max_laps=20).fit(rows)
    assert np.isfinite(model.elbo_) and model.n_components_ >= 2


def test_more_components_than_rows_settle() -> None:
    rows = clusters(3, rows=6)
    model = mixture(initial=np.arange(6), max_laps=30).fit(rows)
    assert 1 <= model.n_components_ <= 6


def test_deletes_never_starve_births() -> None:
    with_deletes = mixture(max_laps=8, moves=[Split(), Merge(), Delete()]).fit(
        source_of(clusters(3, groups=8, spread=20.0))
    )
    without = mixture(max_laps=8, moves=[Split(), Merge()]).fit(source_of(clusters(3, groups=8, spread=20.0)))
    tried = [(m.history_.proposal_kind == "split").values.sum() for m in (with_deletes, without)]
    assert tried[0] >= tried[1]


def test_ids_of_kept_components_stay() -> None:
    source = source_of(clusters(3))
    problem, state = begun(mixture(), source)
    seen: set[int] = set(state.ids.tolist())
    for _, (following, _) in zip(range(10), laps(problem, source, state, SerialBackend()), strict=False):
        fresh = set(following.ids.tolist()) - seen
        assert all(identity >= state.next_id for identity in fresh)
        seen |= fresh
        state = following


@pytest.mark.parametrize("family", [Gaussian(), DiagonalGaussian()], ids=lambda family: family.name)
def test_batches_nobody_asked_for_are_as_many_as_cost_little_beside_their_rows(family) -> None:
    rows = clusters(0, columns=40)
    problem, state = begun(dpdist.DPMixture(family), source_of(rows, 10))
    asked, _ = begun(mixture(family=family), source_of(rows, 10))
    numbers = [batches_that_pay(problem, count) for count in (1, 1000, 10**4, 10**5, 10**9)]
    assert problem.schedule.batches == batches_that_pay(problem, len(rows)) == len(state.order) == 1
    assert asked.schedule.batches == 4
    assert numbers == sorted(numbers)
    assert numbers[0] == 1 < numbers[3] <= numbers[-1] == 40
    still = replace(problem, moves=())
    assert sum(batches_that_pay(still, count) for count in (10**4, 10**5)) > numbers[2] + numbers[3]


def test_a_run_goes_on_in_the_batches_it_began_with(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dpdist.runs.methods.mixture.batches_that_pay", lambda problem, rows: 3)
    dpdist.DPMixture(random_state=0).prepare(source_of(clusters(0)), tmp_path / "run.zarr")
    monkeypatch.setattr("dpdist.runs.methods.mixture.batches_that_pay", lambda problem, rows: 5)
    stored = RunStore.open(tmp_path / "run.zarr")
    assert stored.problem().schedule == Memoized(batches=3)
    assert len(stored.state()[0].order) == 3
