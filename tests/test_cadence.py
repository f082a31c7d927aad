"""When checkpoints are made, and what they write: cheap, and nothing is lost."""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import threading
import time
import weakref
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpdist
from dpdist.cluster.running import AGAIN, CANCELLED, OrderedToEnd, drive, obeying_signals
from dpdist.core.errors import CheckpointError, ClusterLostError
from dpdist.core.lease import latest_lease
from dpdist.core.places import LocalPlace, place_of
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.engine import steps
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.inference.topics.problem import TopicPlan
from dpdist.runs import cadence
from dpdist.runs.cadence import SHARE, Cadence
from dpdist.runs.events import Happening
from dpdist.runs.limits import Limits
from dpdist.runs.opening import resumed
from dpdist.runs.run import Run
from dpdist.storage import memo
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.codec import shape_of
from dpdist.storage.commits import commits
from tests.runs import ALL_MOVES, clusters, digest, is_finished, mixture, source_of

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


def prepared(run: Path | None, weights: np.ndarray | None = None, **parameters: Any) -> Run:
    """A fit of three batches, by default with moves to the end."""
    given = {"schedule": Memoized(3), "max_laps": LAPS, "tolerance": 0.0}
    fit = mixture(**{**given, **parameters}).prepare(source_of(clusters(0, rows=600), weights=weights), run)
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


#: Runs whose states hold all that states may hold.
RUNS = {
    "memoized": {},
    "look-ahead, all moves, candidates, weights": {
        "schedule": Memoized(3, lookahead=1),
        "moves": ALL_MOVES,
        "candidates": Candidates(every=3, components=2),
        "weights": np.random.default_rng(0).uniform(0, 3, 600),
    },
    "stochastic": {"schedule": Stochastic(3)},
}


@pytest.mark.parametrize(
    ("name", "pack_bytes"),
    list(zip(RUNS, (3000, 1, memo.PACK_BYTES), strict=True)),
)
def test_whenever_checkpoints_are_made_a_state_is_stored_to_the_bit_and_each_batch_summary_once(
    tmp_path, monkeypatch, at_will, name, pack_bytes
) -> None:
    monkeypatch.setattr(memo, "PACK_BYTES", pack_bytes)
    put, stored, run, rng = RunStore.put_batch_summaries, [], tmp_path / "run.zarr", random.Random(name)

    def noted(store: RunStore, name: str, batch_summaries: list[Any]) -> None:
        stored.extend(batch_summaries)
        assert len(batch_summaries) == 1 or sum(shape_of(each)[1] for each in batch_summaries) <= pack_bytes
        put(store, name, batch_summaries)

    monkeypatch.setattr(RunStore, "put_batch_summaries", noted)
    fit = prepared(run, **RUNS[name], initial="k-means++", initial_components=3, max_laps=4)
    assert digest(RunStore.open(run).state()[0]) == digest(fit.state)
    for step in fit:
        if rng.random() < 0.4:
            fit.save()
            fit.settle()
            assert digest(RunStore.open(run).state()[0]) == digest(step.state)
    assert len(stored) == len({id(batch_summary) for batch_summary in stored})


def test_batch_summaries_stored_within_a_lap_are_turned_by_its_own_end_alone(tmp_path, at_will) -> None:
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


@pytest.mark.parametrize("place", [0, 1, 4, 6, 13])
def test_a_fit_goes_on_from_any_checkpoint_to_the_same_bits_and_shares_its_batch_summaries(
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


def test_a_run_holds_no_batch_summaries_but_those_of_its_state_and_the_one_before(tmp_path, at_will) -> None:
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


def test_a_loop_of_an_estimator_that_lost_its_cluster_keeps_the_last_batch(tmp_path, monkeypatch) -> None:
    run = tmp_path / "run.zarr"
    model = mixture(schedule=Memoized(3), max_laps=4, tolerance=0.0)
    with monkeypatch.context() as patch, pytest.raises(ClusterLostError):
        interrupted(ClusterLostError("gone."), patch)
        for _ in model.iter_fit(clusters(0), checkpoint_path=run):
            pass
    state, _ = RunStore.open(run).state()
    assert (state.lap, state.visited) > (1, 0)
    assert latest_lease(place_of(run))[1]["released"], "nobody goes on with it here"
    whole = mixture(schedule=Memoized(3), max_laps=4, tolerance=0.0).fit(clusters(0))
    assert dpdist.resume(run, clusters(0)).elbo_ == whole.elbo_


def test_a_checkpoint_under_way_is_waited_for_however_often_that_is_interrupted(tmp_path, monkeypatch, at_will) -> None:
    fit, begun, commit, calls = prepared(tmp_path / "run.zarr"), threading.Event(), RunStore.commit, itertools.count()
    steps = iter(fit)
    next(steps)

    def slow(*arguments: Any) -> None:
        begun.wait(30)
        commit(*arguments)

    def impatient(futures: list[Any]) -> Any:
        if next(calls) < 3:
            raise KeyboardInterrupt
        begun.set()
        return wait(futures)

    monkeypatch.setattr(RunStore, "commit", slow)
    monkeypatch.setattr("dpdist.runs.run.wait", impatient)
    fit.save()
    with pytest.raises(KeyboardInterrupt):
        fit.close()
    assert next(calls) == 4 and number(tmp_path / "run.zarr") == 2


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_after_the_first_do_not_disturb_the_end(first) -> None:
    all_of_them, heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1), list[BaseException]()
    outside = [signal.signal(each, signal.default_int_handler) for each in all_of_them]  # some may be ignored here
    try:
        with obeying_signals():
            for each in (first, *all_of_them, signal.SIGINT):
                try:
                    os.kill(os.getpid(), each)
                    time.sleep(0.01)
                except (KeyboardInterrupt, OrderedToEnd) as order:
                    heard.append(order)
        assert {signal.getsignal(each) for each in all_of_them} == {signal.default_int_handler}
    finally:
        for each, handler in zip(all_of_them, outside, strict=True):
            signal.signal(each, handler)
    assert [type(each) for each in heard] == [KeyboardInterrupt if first == signal.SIGINT else OrderedToEnd]
    if isinstance(heard[0], OrderedToEnd):
        assert heard[0].status == (AGAIN if first == signal.SIGUSR1 else CANCELLED)


def test_a_terminal_may_close_on_what_nohup_started(monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with obeying_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


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
