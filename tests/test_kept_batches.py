"""Batch summaries in files: bits as in memory, wherever they are read, and nothing of them at the coordinator."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

import dpdist
from dpdist.core.places import place_of
from dpdist.execution import SerialBackend
from dpdist.execution.dask import DaskBackend
from dpdist.inference.files import RunFiles
from dpdist.inference.mixture import kept
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import memo_bytes, steps
from dpdist.inference.mixture.kept import KeptBatchSummary, keep_start, keep_visit, read_batch_summary
from dpdist.inference.mixture.kept_sums import DistantTotal, KeptSums, leaves_of_a_node, total_there
from dpdist.inference.mixture.local_step import Visit
from dpdist.inference.mixture.owners import KeptOwners
from dpdist.inference.sample import Sample
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.inference.schedules.tree import SumTree
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.limits import Limits
from dpdist.runs.opening import resumed
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.commits import commits, read_commit
from tests.runs import ALL_MOVES, begun, clusters, digest, mixture, source_of

#: Batches of the fits here.
BATCHES = 4
NO_SAMPLE = Sample(np.zeros(0), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 2)))


@pytest.fixture
def in_files(monkeypatch) -> None:
    """Whatever its size, a batch summary of a stored run goes to a file."""
    monkeypatch.setattr(kept, "MEMO_BYTES", 0)


def model(**parameters) -> dpdist.DPMixture:
    return mixture(**{"max_laps": 5, "tolerance": 0.0, **parameters})


def with_candidates(**parameters) -> dpdist.DPMixture:
    start = {"initial": "k-means++", "initial_components": 4, "candidates": Candidates(every=3, components=2)}
    return model(**start, moves=ALL_MOVES, **parameters)


def without_moves(**parameters) -> dpdist.DPMixture:
    return model(initial="k-means++", initial_components=4, moves=[], **parameters)


def undisturbed(estimator: dpdist.DPMixture, rows: np.ndarray, weights: np.ndarray | None = None) -> list[str]:
    """Digests of the state after every batch, of a run that is stored nowhere."""
    source = source_of(rows, weights=weights)
    problem, state = begun(estimator, source)
    found = []
    for step in steps(problem, source, state, SerialBackend()):
        found.append(digest(step.state))
        if step.state.lap > estimator.max_laps:
            return found
    raise AssertionError("laps have an end")


def summary_of(seed: int) -> BatchSummary:
    """Numbers of many sizes, whose sum depends on the order in which they are added."""
    rng = np.random.default_rng(seed)
    parts = [Summary(rng.normal(size=(k, 3)) * 10 ** rng.uniform(-8, 8, (k, 3)), rng.normal(size=e), rng.normal()) for
             k, e in ((2, 2), (4, 4), (0, 3))]  # fmt: skip
    return BatchSummary(parts[0], tuple(parts[1:]))


def assert_same(one: BatchSummary, other: BatchSummary) -> None:
    for mine, given in zip((one.summary, *one.measured), (other.summary, *other.measured), strict=True):
        assert mine.base == given.base
        np.testing.assert_array_equal(mine.stats, given.stats)
        np.testing.assert_array_equal(mine.entropy, given.entropy)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_sums_of_files_have_the_bits_of_sums_in_memory(tmp_path, count: int) -> None:
    files, leaves = RunFiles(str(tmp_path), "s"), [summary_of(seed) for seed in range(count)]
    there = [keep_visit(Visit(each, NO_SAMPLE), files, 1, i).batch_summary for i, each in enumerate(leaves)]
    mixed = [leaf if i % 3 == 2 else there[i] for i, leaf in enumerate(leaves)]
    tree = SumTree(leaves)
    for kept_sums in (KeptSums(there, files, SerialBackend()), KeptSums(mixed, files, SerialBackend())):
        assert_same(kept_sums.root, tree.root)
    sums = KeptSums(there, files, SerialBackend())
    for index in (count - 1, 0):
        new = summary_of(100 + index)
        tree.replace(index, new)
        sums.replace(index, keep_visit(Visit(new, NO_SAMPLE), files, 2, index).batch_summary)
        assert_same(sums.root, tree.root)
        assert_same(sums.numbers(sums.batch_summaries[index]), new)


def test_leaves_of_a_node_are_a_power_of_two_near_the_root_of_their_number() -> None:
    for count in range(1, 200):
        size = leaves_of_a_node(count)
        assert size & (size - 1) == 0 and count <= size**2 < 4 * count


@pytest.mark.parametrize(
    ("make", "schedule", "lookahead"),
    [(with_candidates, Memoized, 3), (without_moves, Stochastic, 0)],
)
def test_a_run_in_files_has_the_bits_of_one_in_memory_at_every_batch(
    tmp_path, in_files, make, schedule, lookahead
) -> None:
    rows, weights = clusters(2), np.random.default_rng(0).uniform(0, 3, 900) if lookahead else None
    estimator, run = make(schedule=schedule(BATCHES, lookahead)), tmp_path / "run.zarr"
    fit = estimator.prepare(source_of(rows, weights=weights), run)
    fit.checkpoint_seconds, found, kinds = 0.0, [], set()
    for step in fit:
        fit.settle()
        found.append(digest(step.state, run))
        assert digest(RunStore.open(run).state()[0], run) == found[-1]
        kinds |= {type(each) for each in step.state.batch_summaries[: step.state.visited or None]}
    assert found == undisturbed(estimator, rows, weights)
    assert KeptBatchSummary in kinds


def test_the_coordinator_holds_no_numbers_of_batches_and_no_owners(tmp_path, in_files) -> None:
    fit = with_candidates(schedule=Memoized(BATCHES)).prepare(source_of(clusters(1)), tmp_path / "run.zarr")
    starts = []
    for step in fit:
        if step.info is not None:
            assert all(isinstance(each, KeptBatchSummary) for each in step.state.batch_summaries)
            assert all(isinstance(each.owners, KeptOwners) for each in step.state.batch_summaries)
            starts.append(step.state.start)
        else:
            assert step.exact is None
    assert {type(start) for start in starts} == {KeptBatchSummary, type(None)}


@pytest.mark.parametrize("start", ["none", "in memory", "in a file"])
def test_a_distant_total_has_the_bits_of_one_in_memory(tmp_path, start: str) -> None:
    files, leaves = RunFiles(str(tmp_path), "s"), [summary_of(seed) for seed in range(5)]
    there = [keep_visit(Visit(each, NO_SAMPLE), files, 1, i).batch_summary for i, each in enumerate(leaves)]
    numbers = None if start == "none" else summary_of(9)
    given = keep_start(numbers, files, 1) if start == "in a file" else numbers
    expected = SumTree(leaves).total(numbers, 0.3)
    distant = KeptSums(there, files, SerialBackend()).total(given, 0.3)
    assert isinstance(distant, DistantTotal)
    backend = SerialBackend()
    parts = [[*distant.nodes]], [distant.start], [distant.share], [files]
    assert_same(backend.fetch(backend.map(total_there, *parts))[0], expected)
    assert_same(KeptSums(there, files, backend, totals_here=True).total(given, 0.3), expected)


def test_small_batch_summaries_stay_in_memory(tmp_path, monkeypatch) -> None:
    fit = model().prepare(source_of(clusters(1)), tmp_path / "run.zarr")
    sizes = []
    for step in fit:
        assert all(isinstance(each, BatchSummary) for each in step.state.batch_summaries)
        sizes.append(memo_bytes(fit.problem, step.state, 900))
        held = sum(part.stats.nbytes for each in step.state.batch_summaries for part in (each.summary, *each.measured))
        assert held == sizes[-1]
    monkeypatch.setattr(kept, "MEMO_BYTES", min(sizes))
    again = model().prepare(source_of(clusters(1)), tmp_path / "other.zarr")
    where = [{type(each) for each in step.state.batch_summaries} for step in again]
    assert {BatchSummary} in where and {KeptBatchSummary} in where  # what the sizes of the laps say, and bits do not
    assert digest(again.state, tmp_path / "other.zarr") == digest(fit.state)


@pytest.fixture(scope="module")
def last_digest() -> str:
    """Of a run that nothing interrupts."""
    return undisturbed(with_candidates(), clusters(3))[-1]


@pytest.mark.parametrize("stop", [1, 6, 11])
def test_going_on_from_files_gives_the_same_bits_and_leaves_nothing_behind(
    tmp_path, in_files, last_digest, stop: int
) -> None:
    source, run = source_of(clusters(3)), tmp_path / "run.zarr"
    fit = with_candidates().prepare(source, run)
    fit.checkpoint_seconds = 0.0
    for count, _ in enumerate(fit):
        if count == stop:
            break
    del fit  # as killed: nobody says goodbye
    again = resumed(RunStore.open(run), source, SerialBackend(), Limits(5))
    for step in again:
        state = step.state
    assert digest(state, run) == last_digest
    place = place_of(str(run))
    named = {name for number in commits(place) for name in read_commit(place, number)["objects"]}
    told = {folder for number in commits(place) for folder in read_commit(place, number)["digests"]}
    assert {f"objects/{name}" for name in place.names("objects")} <= named | told


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path, in_files) -> None:
    source, run = source_of(clusters(3)), tmp_path / "run.zarr"
    for _ in model().prepare(source, run):
        pass
    state, _ = RunStore.open(run).state()
    one = state.batch_summaries[0]
    path = Path(run, one.folder, one.name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(dpdist.CheckpointError, match=f"{one.name} is damaged; restore it from a copy"):
        one.read(RunFiles(str(run)))
    path.unlink()
    with pytest.raises(dpdist.CheckpointError, match=f"{one.name} is missing; restore it from a copy"):
        one.read(RunFiles(str(run)))
    with pytest.raises(dpdist.CheckpointError, match=r"sums of its batches in files .* which its workers cannot read"):
        one.read(RunFiles())
    with pytest.raises(dpdist.CheckpointError, match="is missing"):
        resumed(RunStore.open(run), source, SerialBackend(), Limits(9)).__iter__().__next__()


def test_what_a_laps_end_makes_of_a_file_is_made_when_it_is_read(tmp_path, in_files) -> None:
    fit, run = model().prepare(source_of(clusters(4)), tmp_path / "run.zarr"), tmp_path / "run.zarr"
    turned = 0
    for step in fit:
        for each in step.state.batch_summaries if step.component_map is not None else ():
            before = replace(each, component_map=None)
            files = RunFiles(str(run))
            assert each.component_map is step.component_map
            assert_same(each.read(files), step.component_map.batch_summary(read_batch_summary(before, files)))
            turned += 1
    assert turned >= BATCHES


def test_workers_that_keep_and_add_files_and_are_killed_change_no_bit(tmp_path, in_files) -> None:
    rows, run = clusters(5, rows=2000), tmp_path / "run.zarr"
    estimator = with_candidates(schedule=Memoized(5, 1), max_laps=6)
    expected = undisturbed(estimator, rows)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1") as one,
        Client(one) as client,
    ):
        fit = estimator.prepare(source_of(rows), run, backend=DaskBackend(client))
        for count, step in enumerate(fit):
            state = step.state
            if count in (7, 17):
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    assert all(isinstance(each, KeptBatchSummary) for each in state.batch_summaries)
    assert digest(state, run) == expected[-1]
