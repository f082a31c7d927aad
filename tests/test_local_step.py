"""Laws of a visit: sums that do not depend on blocks, samples that are what was drawn, rows without weight absent."""

from __future__ import annotations

from functools import reduce
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.arrays import ArrayPartition
from dpdist.data.base import Source
from dpdist.execution import SerialBackend
from dpdist.inference.blocks import block_rows
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.engine import steps
from dpdist.inference.mixture.lap_moves import arm
from dpdist.inference.mixture.local_step import LocalStepTask, Visit, visit
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.merge import Merge
from dpdist.inference.moves.registry import MOVES
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.moves.split import Split
from dpdist.inference.sample import Sample, append_part, join_samples
from dpdist.inference.schedules import Memoized
from dpdist.inference.state import State
from dpdist.models.sufficient_statistics import Summary
from tests.cases import FAMILIES, FamilyCase
from tests.runs import begun, clusters, mixture, source_of

CASES = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
SEEDS = st.integers(0, 2**32 - 1)


# --- blocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "rows"),
    [(1, 4096), (128, 4096), (256, 2048), (1000, 524), (1326, 512), (8385, 512), (45451, 369), (2_003_001, 64)],
)
def test_blocks_are_as_long_as_their_width_allows(columns, rows) -> None:
    assert block_rows(columns) == rows


def orders_of(model, source: Source, laps: int = 3, **changed) -> tuple:
    """Problem, and task of a lap with every kind of proposal under way."""
    problem, state = begun(model, source)
    for step in steps(problem, source, state, SerialBackend()):
        state = step.state
        if step.info is not None and step.info.lap == laps:
            break
    total = reduce(BatchSummary.__add__, state.batch_summaries)
    posterior = problem.model.posterior(total.summary, problem.precision)
    proposals = arm(problem.model, posterior, total, state.proposals)
    given = {"sampling_probabilities": np.ones(len(state.ids)), "most": 10**6, "seed": 0, "lap": 5, **changed}
    return problem, LocalStepTask(posterior, proposals, **given)


def under_way(case: FamilyCase, rows: np.ndarray, **changed) -> tuple:
    """The same from a start of six groups of some rows."""
    start = np.arange(len(rows)) % 6
    moves = [Split(), Merge()] if case.sparse else MOVES
    return orders_of(mixture(family=case.make(), initial=start, moves=moves), source_of(rows), 2, **changed)


def assert_same(one: BatchSummary, two: BatchSummary) -> None:
    """Two leaves agree to rounding."""
    for a, b in zip((one.summary, *one.measured), (two.summary, *two.measured), strict=True):
        size = max(1.0, np.abs(b.stats).max(initial=0.0), np.abs(b.entropy).max(initial=0.0))
        np.testing.assert_allclose(a.stats, b.stats, rtol=1e-9, atol=1e-9 * size)
        np.testing.assert_allclose(a.entropy, b.entropy, rtol=1e-9, atol=1e-9 * size)
        assert a.base == pytest.approx(b.base, rel=1e-9, abs=1e-9)


def visited(problem, task: LocalStepTask, rows, weights=None, index: int = 0) -> Visit:
    """The visit of rows as one partition."""
    return visit(ArrayPartition(index, 0, len(rows), rows, weights), problem.preparation, task)


@CASES
def test_a_visit_does_not_depend_on_its_blocks(case: FamilyCase, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    rows, weights = case.rows(rng, 203, 4), rng.uniform(0.1, 3, 203)
    problem, task = under_way(case, rows)
    whole = visited(problem, task, rows, weights)
    assert whole.batch_summary.summary.counts.sum() == pytest.approx(weights.sum())
    for size in (1, 50, 202):
        monkeypatch.setattr("dpdist.inference.blocks.block_rows", lambda columns, size=size: size)
        part = visited(problem, task, rows, weights)
        assert_same(part.batch_summary, whole.batch_summary)
        assert_same(part.sample.seen, whole.sample.seen)
        np.testing.assert_array_equal(part.sample.weights, weights)
        np.testing.assert_array_equal(part.sample.rows, whole.sample.rows)
        np.testing.assert_array_equal(part.sample.owners, whole.sample.owners)
        np.testing.assert_array_equal(part.sample.keys, whole.sample.keys)


@CASES
def test_visits_add_over_rows_and_weights_repeat_them(case: FamilyCase) -> None:
    rng = np.random.default_rng(1)
    rows, weights = case.rows(rng, 90, 4), rng.integers(0, 4, 90).astype(float)
    problem, task = under_way(case, rows)
    weighted = visited(problem, task, rows, weights)
    repeated = visited(problem, task, np.repeat(rows, weights.astype(int), axis=0))
    assert_same(weighted.batch_summary, repeated.batch_summary)
    assert repeated.sample.seen is None
    parts = [visited(problem, task, rows[a:b], weights[a:b]) for a, b in ((0, 30), (30, 31), (31, 90))]
    added = parts[0] + parts[1] + parts[2]
    assert_same(added.batch_summary, weighted.batch_summary)
    assert_same(added.sample.seen, weighted.sample.seen)


@CASES
def test_rows_seen_are_those_that_count_whatever_their_weights(case: FamilyCase) -> None:
    rng = np.random.default_rng(2)
    rows, weights = case.rows(rng, 90, 4), rng.choice([0.0, 1e-3, 1.0, 1e5], size=90)
    problem, task = under_way(case, rows)
    seen = visited(problem, task, rows, weights).sample.seen
    once = visited(problem, task, rows[weights > 0]).batch_summary
    for a, b in zip((seen.summary, *seen.measured), (once.summary, *once.measured), strict=True):
        np.testing.assert_allclose(a.stats, b.stats[:, -1:], rtol=1e-9, atol=1e-9)


@CASES
@pytest.mark.parametrize("weightless", [slice(0, 40), slice(0, None)], ids=["some", "all"])
def test_rows_without_weight_are_as_if_absent(case: FamilyCase, weightless) -> None:
    rng = np.random.default_rng(3)
    rows, weights = case.rows(rng, 90, 4), rng.uniform(0.1, 3, 90)
    problem, task = under_way(case, rows)
    weights[weightless] = 0.0
    far = rows.copy()
    far[weightless] *= 1e200
    found = visited(problem, task, far, weights)
    kept = weights > 0
    if kept.any():
        expected = visited(problem, task, rows[kept], weights[kept])
        assert_same(found.batch_summary, expected.batch_summary)
        np.testing.assert_array_equal(found.sample.keys, expected.sample.keys)
        np.testing.assert_array_equal(found.sample.rows, expected.sample.rows)
    else:
        assert (
            not found.batch_summary.summary.stats.any()
            and found.batch_summary.summary.base == 0
            and not len(found.sample.keys)
        )
        assert not any(each.stats.any() or each.entropy.any() for each in found.batch_summary.measured)


# --- samples -----------------------------------------------------------------------------------------------------


def sample_of(seed: int, rows: int, owners: int, most: int | None) -> Sample:
    """Some drawn rows, each known by its only column."""
    rng = np.random.default_rng(seed)
    seen = BatchSummary(Summary(rng.random((owners, 1)), np.zeros(owners)))
    return Sample(
        keys=rng.random(rows),
        owners=rng.integers(owners, size=rows),
        weights=rng.random(rows),
        rows=rng.random((rows, 1)),
        most=most,
        seen=seen,
        held=rng.random((owners, owners)),
    )


@given(seed=SEEDS, most=st.integers(1, 12), data=st.data())
def test_joined_samples_hold_the_smallest_keys_of_each_component_in_any_tree(seed, most, data) -> None:
    whole = sample_of(seed, 40, 3, None)
    cuts = sorted(data.draw(st.sets(st.integers(0, 40), max_size=6)))
    ends = [0, *cuts, 40]
    parts = [
        Sample(*(column[a:b] for column in (whole.keys, whole.owners, whole.weights, whole.rows)), most, whole.seen)
        for a, b in pairwise(ends)
    ]
    count = len(parts)
    while len(parts) > 1:
        i = data.draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    found = parts[0].bounded()
    expected = [n for n in range(40) if (whole.keys[whole.owners == whole.owners[n]] < whole.keys[n]).sum() < most]
    np.testing.assert_array_equal(found.keys, whole.keys[expected])
    np.testing.assert_array_equal(found.owners, whole.owners[expected])
    np.testing.assert_array_equal(found.weights, whole.weights[expected])
    np.testing.assert_array_equal(found.rows, whole.rows[expected])
    np.testing.assert_allclose(found.seen.summary.stats, count * whole.seen.summary.stats)
    for component in range(3):
        rows, weights = found.of(component, most)
        np.testing.assert_array_equal(rows, whole.rows[expected][whole.owners[expected] == component])
        few, light = found.of(component, max(1, most // 2))
        lowest = np.sort(found.keys[found.owners == component])[: max(1, most // 2)]
        np.testing.assert_array_equal(np.sort(found.keys[np.isin(found.rows[:, 0], few[:, 0])]), lowest)
        assert len(light) == len(few) and len(weights) == len(rows)


@given(seed=SEEDS, sizes=st.lists(st.integers(0, 9), min_size=1, max_size=20), most=st.integers(1, 12))
def test_parts_that_are_gathered_are_few_and_the_sample_that_all_are(seed, sizes, most) -> None:
    every = [sample_of(seed + i, size, 3, most) for i, size in enumerate(sizes)]
    parts: tuple[Sample, ...] = ()
    for sample in every:
        parts = append_part(parts, sample)
    held = [len(part.keys) for part in parts]
    assert all(first > second for first, second in pairwise(held))
    found, expected = join_samples(parts), join_samples(every)
    for name in ("keys", "owners", "weights", "rows"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.seen.summary.stats, expected.seen.summary.stats)
    np.testing.assert_allclose(found.held, sum(sample.held for sample in every))


def test_a_row_is_copied_a_few_times_however_many_parts_come(monkeypatch) -> None:
    copied = []
    monkeypatch.setattr(
        Sample, "__add__", lambda a, b: copied.append(len(a.keys) + len(b.keys)) or join_samples([a, b])
    )
    parts: tuple[Sample, ...] = ()
    for i in range(64):
        parts = append_part(parts, sample_of(i, 10, 3, 1000))
    assert sum(copied) == 640 * np.log2(64)


def test_samples_without_rows_still_tell_what_was_seen() -> None:
    full, empty = sample_of(0, 10, 2, 100), sample_of(1, 0, 2, 100)
    for joined in (full + empty, empty + full, join_samples([empty, full, empty])):
        np.testing.assert_array_equal(joined.keys, full.keys)
    np.testing.assert_allclose((empty + full).seen.summary.stats, full.seen.summary.stats + empty.seen.summary.stats)
    np.testing.assert_allclose((empty + full).held, full.held + empty.held)


def test_every_row_is_drawn_with_the_chance_of_its_component_whatever_its_weight() -> None:
    rows = clusters(0, 4000, 2, 3, 8.0)
    weights = np.where(np.arange(4000) % 2, 1e5, 1e-5)
    labels = mixture(max_laps=30).fit(rows).predict(rows)
    chosen = np.array([0.5, 0.0, 0.1])
    problem, task = orders_of(mixture(initial=labels, moves=[Split(), Delete()]), source_of(rows), 1)
    size = np.bincount(labels)
    owners = visited(problem, task, rows).sample.owners
    np.testing.assert_array_equal(np.sort(np.bincount(owners)), np.sort(size))
    thin = LocalStepTask(task.posterior, task.proposals, chosen, 10**6, 0, 5)
    found = visited(problem, thin, rows, weights).sample
    drawn, there = np.bincount(found.owners, minlength=3), np.bincount(owners, minlength=3)
    assert (np.abs(drawn - chosen * there) <= 4 * np.sqrt(there * chosen * (1 - chosen))).all()
    assert (found.weights == 1e5).mean() == pytest.approx(0.5, abs=0.1)
    assert (found.keys < chosen[found.owners]).all()


def test_draws_differ_between_laps_partitions_and_seeds_and_are_the_same_again() -> None:
    rows = clusters(0, 200)
    problem, task = orders_of(mixture(), source_of(rows))

    def keys(seed: int = 0, lap: int = 1, partition: int = 0) -> np.ndarray:
        ordered = LocalStepTask(task.posterior, (), task.sampling_probabilities, task.most, seed, lap)
        return visited(problem, ordered, rows, index=partition).sample.keys

    np.testing.assert_array_equal(keys(), keys())
    several = [keys(), keys(seed=1), keys(lap=2), keys(partition=1), keys(seed=1, lap=2, partition=1)]
    assert len(np.unique(np.concatenate(several))) == 5 * 200


def states_of(model, source: Source, laps: int) -> tuple:
    """Problem, and a run's states within and after its first laps."""
    problem, state = begun(model, source)
    found: list[State] = [state]
    for step in steps(problem, source, state, SerialBackend()):
        found.append(step.state)
        if step.info is not None and step.info.lap == laps:
            return problem, found
    raise AssertionError("a run has no end of its own")


def test_a_first_lap_expects_the_rows_that_count_evenly_among_its_components() -> None:
    rows, weights = clusters(0, 1000), np.where(np.arange(1000) % 4, 0.0, 17.0)
    model = mixture(initial=np.arange(1000) % 5, sampling=Sampling(10))
    _, state = begun(model, source_of(rows, 100, weights))
    np.testing.assert_allclose(state.sampling_probabilities, 1.2 * 10 / (250 / 5))
    _, state = begun(model, source_of(rows, 100))
    np.testing.assert_allclose(state.sampling_probabilities, 1.2 * 10 / (1000 / 5))


def test_the_sample_of_a_lap_is_drawn_from_all_batches_visited() -> None:
    rows = clusters(0, 430)
    _, states = states_of(mixture(schedule=Memoized(4)), source_of(rows, 50), 3)
    for state in states:
        if not state.visited:
            assert state.sample is None
            continue
        parts = [p for batch in state.order[: state.visited] for p in range(batch, 9, 4)]
        visited_rows = np.concatenate([rows[50 * p : 50 * p + 50] for p in parts])
        drawn = state.sample.rows + rows.mean(0)
        np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(visited_rows, axis=0), atol=1e-12)


@pytest.mark.parametrize("weight", [None, 1e-3, 1.0, 1e5, "uneven"])
def test_samples_keep_within_their_bytes_and_are_not_starved_whatever_the_weights(weight) -> None:
    rows = clusters(0, 2000, 3, 4, 9.0)
    weights = None if weight is None else np.full(2000, 1.0) * (weight if weight != "uneven" else 1.0)
    if weight == "uneven":
        weights[rows[:, 0] > np.median(rows[:, 0])] = 1e4
    sampling, moves = Sampling(300, 24 * 400), [Split(cooldown=0), Merge(), Delete()]
    problem, states = states_of(mixture(moves=moves, sampling=sampling), source_of(rows, 100, weights), 10)
    fullest = []
    for state in states:
        if state.sample is not None:
            assert state.sample.rows.nbytes <= sampling.total_bytes
            if state.visited == 3:
                fullest.append(len(state.sample.keys) / sampling.each(1, 24))
    assert max(fullest) > 0.5 and problem.preparation.width == 3


def test_going_on_within_a_weighted_lap_knows_the_rows_seen() -> None:
    rows, weights = clusters(0, 600), np.random.default_rng(0).uniform(0, 3, 600)
    source = source_of(rows, 50, weights)
    problem, states = states_of(mixture(sampling=Sampling(20)), source, 4)
    for start in range(1, 12):
        again = list(islice(steps(problem, source, states[start], SerialBackend()), 16 - start))[-1].state
        np.testing.assert_array_equal(again.sampling_probabilities, states[16].sampling_probabilities)
