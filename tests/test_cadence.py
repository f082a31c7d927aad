"""When checkpoints are made, what they write, and where small work runs: cheap, and nothing is lost."""

from __future__ import annotations

import itertools
import math
import os
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from typer.testing import CliRunner

import dpdist
from dpdist.cli import root as cli
from dpdist.cluster import foreground
from dpdist.cluster.running import drive
from dpdist.core.errors import CheckpointError, ClusterLostError
from dpdist.core.places import LocalPlace, place_of
from dpdist.data import ArraySource
from dpdist.data.corpora import write_corpus
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.engine import steps
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.inference.state import State
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary
from dpdist.inference.topics.documents import DocumentTopics, PairSums
from dpdist.inference.topics.kept import BatchDocuments, KeptDocuments, TopicNames, VisitedDocuments
from dpdist.inference.topics.problem import TopicPlan
from dpdist.inference.topics.summary import TopicSummary
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs import cadence
from dpdist.runs.cadence import SHARE, Cadence
from dpdist.runs.events import Happening
from dpdist.runs.limits import Limits
from dpdist.runs.methods.topics import UPDATES
from dpdist.runs.opening import resumed
from dpdist.runs.run import Run
from dpdist.storage import memo
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.codec import read, write
from dpdist.storage.commits import commits
from tests.runs import clusters, digest, is_finished, mixture, source_of

COSTS = st.floats(1e-3, 1e3)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def checkpoint(cadence: Cadence, clock: Clock, cost: float) -> None:
    """One that takes so many seconds."""
    cadence.begin()
    with cadence.timed():
        clock.now += cost


# When


@given(st.lists(COSTS, min_size=1, max_size=5))
def test_a_checkpoint_is_due_once_another_as_dear_leaves_all_within_three_per_cent_of_the_time(costs) -> None:
    clock, spent = Clock(), 0.0
    followed = Cadence(clock)
    for cost in costs:
        began = clock.now
        checkpoint(followed, clock, cost)
        spent += cost
        when = max((spent + cost) / SHARE, began + cost / SHARE)
        clock.now = max(clock.now, 0.999 * when)
        assert not followed.due(math.inf)
        clock.now = 1.001 * when
        assert followed.due(math.inf)


def test_time_to_spare_is_not_spent_on_checkpoints_in_a_row() -> None:
    clock = Clock()
    followed = Cadence(clock)
    checkpoint(followed, clock, 0.3)
    clock.now = 1000.0
    assert followed.due(math.inf)
    checkpoint(followed, clock, 0.3)
    clock.now = 1009.9
    assert not followed.due(math.inf)
    clock.now = 1010.1
    assert followed.due(math.inf)


@given(st.lists(st.floats(1e-3, 3.0), min_size=2, max_size=30), st.floats(0.5, 100))
def test_checkpoints_take_at_most_their_share_whatever_they_cost(costs, batch) -> None:
    clock = Clock()
    followed = Cadence(clock)
    for cost in costs:
        for _ in range(1000):
            clock.now += 0.0 if followed.due(math.inf) else batch
        assert followed.due(math.inf)
        checkpoint(followed, clock, cost)
    assert sum(costs[:-1]) + costs[-2] <= 0.03 * (clock.now - costs[-1]) * (1 + 1e-9)
    assert SHARE == 0.03


@given(COSTS, COSTS)
def test_no_cost_puts_a_checkpoint_off_beyond_the_longest_time(cost, longest) -> None:
    clock = Clock()
    followed = Cadence(clock)
    checkpoint(followed, clock, cost)
    clock.now = 1.001 * longest
    assert followed.due(longest)
    clock.now = 0.999 * min(longest, 2 * cost / SHARE)
    assert not followed.due(longest)


def test_the_first_is_due_at_once_and_with_no_longest_time_every_one_is() -> None:
    clock = Clock()
    followed = Cadence(clock)
    assert followed.due(math.inf)
    followed.begin()
    assert followed.due(0.0)


def test_none_is_due_while_one_is_written_but_by_the_longest_time() -> None:
    clock = Clock()
    followed = Cadence(clock)
    checkpoint(followed, clock, 1e-6)
    clock.now = 100.0
    followed.begin()
    clock.now = 150.0
    assert not followed.due(51.0) and followed.due(50.0)


def test_a_checkpoint_that_failed_has_its_cost_too() -> None:
    clock = Clock()
    followed = Cadence(clock)
    with pytest.raises(OSError), followed.timed():
        clock.now = 3.0
        raise OSError
    assert not followed.due(math.inf)
    clock.now = 201.0
    assert followed.due(math.inf)


# What of a fit


LAPS = 5


@pytest.fixture
def at_will(monkeypatch) -> None:
    """Checkpoints are made only where a test asks for them, at the beginning and at the end."""
    monkeypatch.setattr(cadence, "SHARE", 1e-300)


def prepared(run: Path | None, **parameters: Any) -> Run:
    """A fit of three batches, by default with moves to the end."""
    given = {"schedule": Memoized(3), "max_laps": LAPS, "tolerance": 0.0}
    fit = mixture(**{**given, **parameters}).prepare(source_of(clusters(0, rows=600)), run)
    fit.checkpoint_seconds = math.inf
    return fit


def gone_on(run: Path, fit: Run) -> Run:
    """The fit stored, at its end."""
    again = resumed(RunStore.open(run), fit.source, SerialBackend(), Limits(LAPS))
    for _ in again:
        pass
    return again


def found(fit: Run) -> tuple[Any, ...]:
    """What a fit found, to the bit, and how."""
    fitted, history = fit.fitted, fit.history
    laps = [row._replace(seconds=0.0) for row in history.laps]
    return fitted.elbo, fitted.total.stats.tobytes(), fitted.ids.tobytes(), laps, history.proposals


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Any, ...]:
    """What the fit finds without a store."""
    fit = prepared(None)
    for _ in fit:
        pass
    return found(fit)


def number(run: Path) -> int:
    """Of the last commit."""
    return int(commits(place_of(run))[-1])


def test_a_fit_is_stored_before_its_first_batch_and_at_its_end_in_any_case(tmp_path, at_will, undisturbed) -> None:
    run = tmp_path / "run.zarr"
    fit = prepared(run)
    assert number(run) == 1 and RunStore.open(run).fitted() is None
    for _ in fit:
        assert number(run) == 1 or fit.fitted.stop is not None
    assert number(run) == 2 and found(fit) == undisturbed
    assert RunStore.open(run).fitted().stop == fit.fitted.stop and len(RunStore.open(run).history().laps) == LAPS
    assert not list(fit)


def test_a_fit_checkpoints_as_its_cadence_says(tmp_path, monkeypatch, undisturbed) -> None:
    """A batch takes a second and a checkpoint a twelfth, so every third is followed by one: 36 times as long.

    But not the first three, by when the one at the beginning would have company too soon.
    """
    clock, run, taken = Clock(), tmp_path / "run.zarr", []
    monkeypatch.setattr("dpdist.runs.run.Cadence", lambda: Cadence(clock))
    commit = RunStore.commit

    def slow(store: RunStore, *given: Any) -> None:
        clock.now += 1 / 12
        commit(store, *given)

    monkeypatch.setattr(RunStore, "commit", slow)
    fit = prepared(run)
    for _ in fit:
        fit.settle()
        taken.append(number(run) - 1)
        clock.now += 1.0
    later = len(taken[:-1]) // 3 - 1 + (len(taken) % 3 != 1)
    assert taken == [*(max(0, step // 3 - 1) for step in range(len(taken) - 1)), later]
    assert found(fit) == undisturbed


@pytest.mark.parametrize("pack_bytes", [1, 3000, memo.PACK_BYTES])
@pytest.mark.parametrize("schedule", [Memoized(3), Memoized(3, lookahead=1), Stochastic(3)], ids=str)
def test_whenever_checkpoints_are_made_a_state_is_stored_to_the_bit_and_each_leaf_once(
    tmp_path, monkeypatch, at_will, schedule, pack_bytes
) -> None:
    monkeypatch.setattr(memo, "PACK_BYTES", pack_bytes)
    put, stored, run, rng = RunStore.put_batch_summaries, [], tmp_path / "run.zarr", random.Random(repr(schedule))

    def noted(store: RunStore, name: str, batch_summaries: list[Any]) -> None:
        stored.extend(batch_summaries)
        assert len(batch_summaries) == 1 or sum(batch_summary.nbytes for batch_summary in batch_summaries) <= pack_bytes
        put(store, name, batch_summaries)

    monkeypatch.setattr(RunStore, "put_batch_summaries", noted)
    fit = prepared(run, schedule=schedule, initial="k-means++", initial_components=3, max_laps=4)
    assert digest(RunStore.open(run).state()[0]) == digest(fit.state)
    for step in fit:
        if rng.random() < 0.4:
            fit.save()
            fit.settle()
            assert digest(RunStore.open(run).state()[0]) == digest(step.state)
    assert len(stored) == len({id(batch_summary) for batch_summary in stored})


def test_leaves_stored_within_a_lap_are_turned_by_its_own_end_alone(tmp_path, at_will) -> None:
    """Some outlast each lap's end unstored anew, and each end makes something else of them."""
    run, turned = tmp_path / "run.zarr", set()
    fit = prepared(run)
    for step in fit:
        if step.info is None:
            fit.save()
            fit.settle()
            state, manifest = RunStore.open(run).state()
            assert digest(state) == digest(step.state)
            turned |= {step.state.lap for kept in manifest.batches if kept.turned}
    assert turned == set(range(2, LAPS + 1))


@pytest.mark.parametrize("place", [0, 1, 2, 4, 6, 10, 13])
def test_a_fit_goes_on_from_any_checkpoint_to_the_same_bits_and_shares_its_leaves(
    tmp_path, at_will, undisturbed, place
) -> None:
    run = tmp_path / "run.zarr"
    fit = prepared(run)
    next(itertools.islice(iter(fit), place, None))  # the iterator is left, which makes the checkpoint
    state, manifest = RunStore.open(run).state()
    assert digest(state) == digest(fit.state) and (state.lap, state.visited) == (fit.state.lap, fit.state.visited)
    again = resumed(RunStore.open(run), fit.source, SerialBackend(), Limits(LAPS))
    next(iter(again))
    left = RunStore.open(run).state()[1]
    assert (
        sum(one == other for one, other in zip(manifest.batches, left.batches, strict=True)) >= 2
        or again.state.visited < 1
    )
    assert found(gone_on(run, fit)) == undisturbed


def files_of_a_checkpoint(run: Path, batches: int, monkeypatch) -> list[str]:
    """Names of the folders written by the last checkpoint of two laps, each as often as it has files."""
    written: list[str] = []
    put = LocalPlace._put

    def noted(place: LocalPlace, folder: str, parts: Any) -> None:
        written.extend(folder.split("/")[0] for _ in parts)
        put(place, folder, parts)

    fit = prepared(run, schedule=Memoized(batches), max_laps=2)
    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "_put", noted)
        for _ in fit:
            pass
    return sorted(written)


def test_a_checkpoint_of_a_small_run_has_as_many_files_however_many_batches_it_has(
    tmp_path, monkeypatch, at_will
) -> None:
    few, many = (files_of_a_checkpoint(tmp_path / f"{batches}.zarr", batches, monkeypatch) for batches in (2, 6))
    assert few == many and few.count("objects") <= 16
    commit = RunStore.open(tmp_path / "6.zarr").attributes
    assert len(commit["objects"]) == 1


def test_a_run_holds_no_leaves_but_those_of_its_state_and_the_one_before(tmp_path, at_will) -> None:
    fit, seen = prepared(tmp_path / "run.zarr", max_laps=4), list[list[weakref.ref]]()
    for step in fit:
        seen.append([weakref.ref(batch_summary) for batch_summary in step.state.batch_summaries])
        del step
        alive = {id(ref()) for ref in itertools.chain(*seen) if ref() is not None}
        assert alive <= {id(ref()) for ref in itertools.chain(*seen[-2:])}


class Broken(Exception):
    """Something that no code of a run raises."""


def interrupted(error: BaseException, monkeypatch, calls: int = 14) -> None:
    """Have the backend raise an error in the middle of a lap."""
    share, counted = SerialBackend.share, itertools.count()

    def broken(backend: SerialBackend, value: Any, label: str | None = None) -> Any:
        if next(counted) == calls:
            raise error
        return share(backend, value, label)

    monkeypatch.setattr(SerialBackend, "share", broken)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Broken(), MemoryError()], ids=repr)
def test_whatever_ends_a_fit_its_last_batch_is_kept(tmp_path, monkeypatch, at_will, undisturbed, error) -> None:
    run = tmp_path / "run.zarr"
    fit = prepared(run)
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        interrupted(error, patch)
        for _ in fit:
            pass
    stored = RunStore.open(run).state()[0]
    assert digest(stored) == digest(fit.state) and (stored.lap, stored.visited) > (1, 0) and number(run) == 2
    assert found(gone_on(run, fit)) == undisturbed


@pytest.mark.parametrize("after", [1, 3, 4])
def test_who_leaves_the_loop_or_breaks_it_keeps_the_last_step(tmp_path, at_will, undisturbed, after) -> None:
    for name in ("left", "broken"):
        run = tmp_path / f"{name}.zarr"
        fit = prepared(run)
        with pytest.raises(Broken) if name == "broken" else pytest.MonkeyPatch.context():
            for count, _ in enumerate(fit, 1):
                if count == after and name == "left":
                    break
                if count == after:
                    raise Broken
        stored = RunStore.open(run)
        assert digest(stored.state()[0]) == digest(fit.state) and stored.number == 2
        assert len(stored.history().laps) == after // 3
        assert found(gone_on(run, fit)) == undisturbed


def test_what_is_stored_already_is_not_stored_again(tmp_path, at_will) -> None:
    run = tmp_path / "run.zarr"
    fit = prepared(run)
    for _ in fit:
        fit.save()
        fit.settle()
        before = number(run)
        fit.save()
        break
    assert number(run) == before == 2


def test_who_only_lost_the_cluster_writes_nothing_and_stays_the_writer(tmp_path, monkeypatch, at_will) -> None:
    run = tmp_path / "run.zarr"
    fit, released, release = prepared(run), [], RunStore.release
    monkeypatch.setattr(RunStore, "release", lambda store: (released.append(store), release(store)))
    interrupted(ClusterLostError("gone."), monkeypatch)
    with pytest.raises(ClusterLostError):
        for _ in fit:
            pass
    assert number(run) == 1 and not released
    fit.close()
    assert released == [fit.store]


def test_a_run_that_finds_no_cluster_any_more_keeps_its_last_batch(tmp_path, monkeypatch, at_will, undisturbed) -> None:
    run, share, counted = tmp_path / "run.zarr", SerialBackend.share, itertools.count()
    fit = prepared(run)

    def gone(backend: SerialBackend, value: Any, label: str | None = None) -> Any:
        if next(counted) >= 14:
            raise ClusterLostError("gone.")
        return share(backend, value, label)

    with monkeypatch.context() as patch, pytest.raises(ClusterLostError):
        patch.setattr(SerialBackend, "share", gone)
        drive(lambda _: fit, SerialBackend, Deaf())
    stored = RunStore.open(run).state()[0]
    assert digest(stored) == digest(fit.state) and (stored.lap, stored.visited) > (1, 0)
    assert found(gone_on(run, fit)) == undisturbed


class Deaf:
    """Is told events and does nothing."""

    def tell(self, event: Any) -> None:
        """Take one event."""

    def end(self, sentence: str, happening: Happening = Happening.ENDED) -> None:
        """Take the last word."""


def failing(monkeypatch, allowed: int) -> list[str]:
    """Have all writes of groups but some fail; the folders tried."""
    tried: list[str] = []
    put = LocalPlace._put

    def full(place: LocalPlace, folder: str, parts: Any) -> None:
        tried.append(folder)
        if len(tried) > allowed:
            raise OSError(28, os.strerror(28))
        put(place, folder, parts)

    monkeypatch.setattr(LocalPlace, "_put", full)
    return tried


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_failed_checkpoint_ends_the_run_at_the_next_step_and_is_not_tried_again(
    tmp_path, monkeypatch, at_will, allowed
) -> None:
    run = tmp_path / "run.zarr"
    fit, steps = prepared(run), 0
    tried = failing(monkeypatch, allowed)
    with pytest.raises(CheckpointError, match="No space left"):
        for _ in fit:
            steps += 1
            if steps == 2:
                fit.save()
                fit._writer.submit(lambda: None).result()  # what was begun is done
    assert steps == 2 and len(tried) == allowed + 1
    assert number(run) == 1


def test_a_write_that_fails_is_told_even_where_the_next_is_begun_at_once(tmp_path, monkeypatch, at_will) -> None:
    fit = prepared(tmp_path / "run.zarr")
    failing(monkeypatch, 0)
    fit.checkpoint_seconds = 0.0
    with pytest.raises(CheckpointError, match="No space left"):
        for count, _ in enumerate(fit):
            assert count < 2


@pytest.mark.parametrize("kind", ["mixture", "topics"])
def test_estimators_checkpoint_as_often_as_they_are_told(tmp_path, at_will, kind) -> None:
    if kind == "mixture":
        model, x = mixture(max_laps=2, tolerance=0.0), source_of(clusters(0, rows=400))
    else:
        counts = np.random.default_rng(0).poisson(0.7, size=(120, 9))
        model, x = dpdist.HDPTopicModel(initial_topics=3, max_laps=2, moves=TopicPlan(birth=False)), ArraySource(counts)
    for seconds, wanted in ((math.inf, 2), (0.0, None)):
        run = tmp_path / f"{seconds}.zarr"
        for _ in model.iter_fit(x, checkpoint_path=run, checkpoint_seconds=seconds):
            pass
        batches = 2 * len(RunStore.open(run).state()[0].order) if kind == "mixture" else 2 * len(x.partitions)
        assert number(run) == (wanted or 1 + batches)


# What a checkpoint is made of


def random_batch_summary(rng: np.random.Generator, components: int = 3) -> BatchSummary:
    """A leaf of two trials, the second of which measures entropies alone."""
    sizes = ((components, components), (2, 2), (0, 4))
    parts = [Summary(rng.normal(size=(rows, 5)), rng.normal(size=entries), rng.normal()) for rows, entries in sizes]
    return BatchSummary(parts[0], tuple(parts[1:]))


def batch_summary_bits(batch_summary: BatchSummary) -> list[Any]:
    """A leaf, to the bit."""
    return [
        (p.stats.tobytes(), p.stats.shape, p.entropy.tobytes(), p.base)
        for p in (batch_summary.summary, *batch_summary.measured)
    ]


def test_leaves_of_a_mixture_are_stored_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for batch_summaries in (
        [random_batch_summary(rng) for _ in range(4)],
        [random_batch_summary(rng)],
        [BatchSummary(random_batch_summary(rng).summary)] * 2,
    ):
        group = zarr.group()
        write(group, batch_summaries)
        assert [batch_summary_bits(batch_summary) for batch_summary in read(group)] == [
            batch_summary_bits(batch_summary) for batch_summary in batch_summaries
        ]


def random_documents(rng: np.random.Generator, topics: int) -> Measured:
    """Sums over documents."""
    sums = (rng.normal(size=size) for size in ((6, topics), topics, (topics + 1, 4), 4))
    pairs = PairSums(rng.normal(size=2), rng.normal(size=(2, 4)))
    return Measured(TopicSummary(*sums), pairs)


def random_visit(rng: np.random.Generator, documents: int, tried: bool) -> VisitedDocuments:
    """Documents' topics as a visit leaves them, of 3 topics and of 4 candidates."""
    held = [rng.random((documents, k)) * (rng.random((documents, k)) < 0.5) for k in ((3, 4) if tried else (3,))]
    return VisitedDocuments(*map(DocumentTopics.of, held))


def visit_bits(visited: VisitedDocuments) -> list[Any]:
    """Documents' topics, to the bit."""
    sets = [each for each in (visited.current, visited.candidate) if each is not None]
    return [(array.tobytes(), array.dtype, array.shape) for each in sets for array in vars(each).values()]


def topic_bits(batch_summary: TopicBatchSummary) -> list[Any]:
    """A leaf of documents, to the bit."""
    found: list[Any] = []
    for part in (batch_summary.current, batch_summary.candidate):
        found.append(part is not None)
        if part is not None:
            sums, pairs = part.summary, part.pairs
            arrays = (sums.words, sums.entropy, sums.groups, sums.totals, pairs.entropy, pairs.groups)
            found += [(array.tobytes(), array.shape) for array in arrays]
    if (documents := batch_summary.documents) is not None:
        names = [each and (each.candidate, each.names) for each in (documents.current, documents.candidate)]
        kept = [(one.name, one.digest, one.here and visit_bits(one.here)) for one in documents.partitions]
        found += [documents.folder, repr(names), kept]
    return found


@pytest.mark.parametrize("known", ["nowhere", "here", "in files"])
@pytest.mark.parametrize("tried", [True, False])
def test_leaves_of_topics_are_stored_to_the_bit(known, tried) -> None:
    rng = np.random.default_rng(0)

    def left(sizes: tuple[int, ...]) -> BatchDocuments | None:
        kept = [
            KeptDocuments(f"{n}.npz", "", random_visit(rng, n, tried))
            if known == "here"
            else KeptDocuments(f"{n}", "7")
            for n in sizes
        ]
        names = TopicNames(candidate=False, names=rng.permutation(3)), TopicNames(candidate=True) if tried else None
        return None if known == "nowhere" else BatchDocuments("objects/3", tuple(kept), *names)

    batch_summaries = [
        TopicBatchSummary(random_documents(rng, 3), random_documents(rng, 4) if tried else None, left(sizes))
        for sizes in ((5, 1), (2,), (7, 3))
    ]
    group = zarr.group()
    write(group, batch_summaries)
    assert [topic_bits(batch_summary) for batch_summary in read(group)] == [
        topic_bits(batch_summary) for batch_summary in batch_summaries
    ]


@pytest.mark.parametrize("tried", [True, False])
def test_documents_topics_come_back_from_their_file_to_the_bit(tried) -> None:
    visited = random_visit(np.random.default_rng(0), 9, tried)
    assert visit_bits(VisitedDocuments.of(bytes(visited))) == visit_bits(visited)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=20), st.integers(1, 60))
def test_leaves_of_one_pack_have_one_layout(sizes, pack_bytes) -> None:
    batch_summaries = [SimpleNamespace(layout=layout, nbytes=nbytes) for layout, nbytes in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo, "PACK_BYTES", pack_bytes)
        packs = memo.packed(batch_summaries, 7)
    assert sorted(map(id, batch_summaries)) == sorted(
        id(batch_summary) for pack in packs.values() for batch_summary in pack
    )
    assert all(name.startswith("objects/000007-") for name in packs)
    for pack in packs.values():
        assert pack and len({batch_summary.layout for batch_summary in pack}) == 1
        assert len(pack) == 1 or sum(batch_summary.nbytes for batch_summary in pack) <= pack_bytes
    for layout in "abc":
        mine = [pack for pack in packs.values() if pack[0].layout == layout]
        filled = [
            sum(batch_summary.nbytes for batch_summary in pack) + after[0].nbytes
            for pack, after in itertools.pairwise(mine)
        ]
        assert all(size > pack_bytes for size in filled)  # a pack is begun only where the one before is full


def test_leaves_that_add_have_one_layout_and_others_another() -> None:
    rng = np.random.default_rng(0)
    one, other, larger = random_batch_summary(rng), random_batch_summary(rng), random_batch_summary(rng, 4)
    assert one.layout == other.layout == (one + other).layout != larger.layout
    assert one.nbytes == 8 * (3 * 5 + 3 + 2 * 5 + 2 + 4) and BatchSummary(one.summary).layout != one.layout
    sums, visited = random_documents(rng, 3), random_visit(rng, 5, tried=False)
    kept = [(KeptDocuments("5.npz", "", visited),), (KeptDocuments("5.npz", "7"),)]
    here, filed = (BatchDocuments("objects/3", each, TopicNames(candidate=False)) for each in kept)
    pairs = itertools.product((None, sums), (None, here, filed))
    batch_summaries = [TopicBatchSummary(sums, *pair) for pair in pairs]
    assert len({batch_summary.layout for batch_summary in batch_summaries}) == 6
    assert batch_summaries[3].nbytes == 2 * batch_summaries[0].nbytes == 2 * batch_summaries[2].nbytes
    assert batch_summaries[1].nbytes - batch_summaries[0].nbytes == sum(
        map(len, (each[0] for each in visit_bits(visited)))
    )


def test_the_state_before_a_step_can_still_be_stored(at_will) -> None:
    """An interruption may come between a step's arrival and its being taken over."""
    fit = prepared(None)
    followed, before = memo.Memo(fit.state), fit.state
    for step in itertools.islice(steps(fit.problem, fit.source, fit.state, fit.backend), 7):
        followed.follow(step)
        for state in (before, step.state):
            manifest, packs = followed.manifest(state)
            stored = [packs[kept.pack][kept.index] for kept in manifest.batch_summaries if kept.pack in packs]
            assert {id(batch_summary) for batch_summary in stored} <= {
                id(batch_summary) for batch_summary in memo.batch_summaries_of(state)
            }
            assert len(manifest.batches) == len(state.batch_summaries)
        before = step.state


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_every_leaf_of_a_state_is_named_at_its_own_place(started, running) -> None:
    rng = np.random.default_rng(0)
    batch_summaries = [random_batch_summary(rng) for _ in range(7)]
    start, total = batch_summaries[3] if started else None, batch_summaries[4] if running else None
    empty = np.zeros(0)
    state = State(
        4,
        (0, 1, 2),
        1,
        empty,
        0,
        tuple(batch_summaries[:3]),
        start,
        (),
        empty,
        queue=tuple(batch_summaries[5:]),
        running=total,
    )
    followed = memo.Memo(state)
    kept: dict[str, list[Any]] = {}
    for _ in range(2):  # stored anew, then known
        manifest, packs = followed.manifest(state)
        kept |= packs
        place = {"start": (manifest.start, start), "running": (manifest.running, total)}
        assert [kept[at.pack][at.index] for at in manifest.batches] == batch_summaries[:3]
        assert [kept[at.pack][at.index] for at in manifest.queue] == batch_summaries[5:]
        assert all((at is None) == (batch_summary is None) for at, batch_summary in place.values())
        assert all(kept[at.pack][at.index] is batch_summary for at, batch_summary in place.values() if at is not None)
        assert manifest.component_map is None and manifest.packs == sorted(kept)
        followed.stored(state, manifest)
    assert not packs


# What of a pass


def passing(run: Path, monkeypatch, share: float = 1e-300) -> Any:
    """A pass of five rounds."""
    monkeypatch.setattr(cadence, "SHARE", share)
    model = dpdist.SVA(dpdist.families.IsotropicGaussian(), random_state=0, round_partitions=1)
    work = model.prepare(source_of(clusters(0, rows=500)), run)
    work.checkpoint_seconds = math.inf
    return work


def test_a_pass_is_stored_before_its_first_round_and_at_its_end_in_any_case(tmp_path, monkeypatch) -> None:
    run = tmp_path / "run.zarr"
    work = passing(run, monkeypatch)
    rounds = [number(run) for _ in work]
    assert rounds[:-1] == [1] * 4 and number(run) == 2 and is_finished(run)


def test_a_pass_that_is_left_keeps_its_last_round_and_goes_on(tmp_path, monkeypatch) -> None:
    run, whole = tmp_path / "run.zarr", tmp_path / "whole.zarr"
    for _ in passing(whole, monkeypatch):
        pass
    work = passing(run, monkeypatch)
    for step in work:
        if step.state.visited == 3:
            break
    stored = RunStore.open(run)
    assert stored.state()[0].visited == 3 and not is_finished(run) and len(stored.history().laps) == 3
    dpdist.resume(run, work.source)
    one, other = (RunStore.open(path).fitted().total for path in (run, whole))
    assert one.table.tobytes() == other.table.tobytes() and one.ids.tobytes() == other.ids.tobytes()


# Where


def test_every_command_judges_its_own_work(tmp_path, monkeypatch) -> None:
    """What a command would run on is decided by its data, and for topics by the updates of documents."""
    zarr.create_array(tmp_path / "rows.zarr", data=clusters(0, rows=300), chunks=(100, 3))
    write_corpus(tmp_path / "corpus.zarr", [sparse.csr_array(np.eye(40, 6, dtype=np.int64))], None)
    judged: list[tuple[tuple[int, int], int]] = []

    def noted(source: Any, updates: int = 1) -> float:
        judged.append((source.shape, updates))
        return 0.0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(foreground, "lap_seconds", noted)
    rows, documents = ((300, 3), 1), ((40, 6), UPDATES)
    commands = {
        "fit rows.zarr --out run.zarr --max-laps 1": rows,
        "resume run.zarr --max-laps 2": rows,
        "predict run.zarr rows.zarr --out labels.zarr": rows,
        "sva rows.zarr --out pass.zarr": rows,
        "extend pass.zarr rows.zarr --again": rows,
        "topics corpus.zarr --out topics.zarr --max-laps 1 --initial-topics 2": documents,
        "resume topics.zarr --max-laps 2": documents,
        "predict topics.zarr corpus.zarr --out shares.zarr": documents,
    }
    for command, work in commands.items():
        done = CliRunner().invoke(cli.app, command.split())
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert judged.pop() == work and not judged, command
        assert "in this process" in done.stderr


def launched(
    monkeypatch, rows: int, columns: int, cores: int = 2, sparse: bool = False, updates: int = 1, **asked: Any
) -> Any:
    """Which kind of backend is chosen for data of a shape on so many cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("dpdist.execution.connecting.local_backend", lambda workers=None: ("local", workers))
    monkeypatch.setattr("dpdist.execution.connecting.connect", lambda address: ("connected", address))
    source: Any = SimpleNamespace(shape=(rows, columns), sparse=sparse)
    given = {"workers": None, "scheduler": None, "serial": False} | asked
    return foreground.launcher_of(**given, source=source, updates=updates)()


@pytest.fixture
def said(monkeypatch) -> Iterator[list[str]]:
    """What is told of the choice."""
    sentences: list[str] = []
    monkeypatch.setattr(foreground, "say", lambda console, sentence: sentences.append(sentence))
    yield sentences


def test_small_work_runs_in_this_process_and_large_work_on_a_cluster_and_the_choice_is_told(monkeypatch, said) -> None:
    assert isinstance(launched(monkeypatch, 5000, 36), SerialBackend)
    assert "in this process" in said[0] and "--workers 2" in said[0]
    assert launched(monkeypatch, 1_000_000, 36) == ("local", None)
    assert "cluster of 2 workers" in said[1] and "--serial" in said[1]


def test_what_was_asked_for_is_what_runs_and_nothing_is_told(monkeypatch, said) -> None:
    for rows in (10, 10**9):
        assert launched(monkeypatch, rows, 36, workers=3) == ("local", 3)
        assert launched(monkeypatch, rows, 36, scheduler="tcp://here:1") == ("connected", "tcp://here:1")
        assert isinstance(launched(monkeypatch, rows, 36, serial=True), SerialBackend)
    assert foreground.launcher_of(None, None, False)() == ("local", None)
    assert said == []


@given(st.floats(0, 1e6), st.integers(1, 256))
def test_a_cluster_pays_where_its_lap_is_the_shorter_one(seconds, cores) -> None:
    pays = foreground.cluster_pays(seconds, cores)
    assert pays == (seconds - seconds / cores > foreground.TASK_SECONDS) or cores == 1
    assert not foreground.cluster_pays(seconds, 1) and not foreground.cluster_pays(foreground.TASK_SECONDS, cores)
    assert not pays or foreground.cluster_pays(2 * seconds, cores)
    assert not pays or foreground.cluster_pays(seconds, cores + 1)


def seconds(rows: int, columns: int, sparse: bool = False, updates: int = 1) -> float:
    """Expected of a lap."""
    source: Any = SimpleNamespace(shape=(rows, columns), sparse=sparse)
    return foreground.lap_seconds(source, updates)


def test_a_lap_is_expected_to_take_as_long_as_it_has_numbers_to_go_over() -> None:
    same = [seconds(2000, 30), 2 * seconds(1000, 30), 2 * seconds(2000, 15), seconds(2000, 30, updates=3) / 3]
    assert same == pytest.approx([same[0]] * 4)
    assert seconds(1000, 50_000, sparse=True) == seconds(1000, 10_000, sparse=True) == seconds(1000, foreground.ENTRIES)
    assert seconds(1000, 20, sparse=True) == seconds(1000, 20)
    assert 0.05 < seconds(5000, 36) < 1 and 1 < seconds(80_000, 64) < 30
