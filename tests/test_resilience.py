"""Nothing is lost: whatever dies, a fetch gives the bits of serial or a sentence that names what could not be done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, Worker
from distributed.worker_state_machine import FreeKeysEvent
from hypothesis import given
from hypothesis import strategies as st

from dpdist.core.errors import ClusterError, ClusterLostError, InputError
from dpdist.core.trees import join_pairwise
from dpdist.execution import SerialBackend
from dpdist.execution.base import add_results
from dpdist.execution.connecting import connect, local_backend
from dpdist.execution.dask import DaskBackend
from dpdist.execution.faults import TaskLimits
from dpdist.execution.grouping import LONG_ENOUGH, TOO_SHORT, group_size
from dpdist.execution.local import PersistentCluster
from dpdist.execution.settings import WORKER_ENVIRONMENT, environment, worker_settings
from tests.waiting import scheduler_address, wait_until

#: Short, so that tests are.
LIMITS = TaskLimits(pause=0.05, period=0.2, grace=2.0, stuck_after=120.0)
#: A busy machine may take a slow task for a stuck one, which is begun again, and harms nothing.
HASTY = TaskLimits(stuck_after=4.0, period=0.2, attempts=10)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two worker processes whose scheduler gives up tasks at the fourth death, and workers silent for 6 s."""
    settings = {**worker_settings(6.0), "distributed.scheduler.allowed-failures": 3}
    with (
        environment(WORKER_ENVIRONMENT),
        dask.config.set(settings),
        PersistentCluster(2, "1GB") as cluster,
        Client(cluster) as client,
    ):
        yield client


def peopled(client: Client) -> Client:
    """The client when both workers are there."""
    client.wait_for_workers(2, timeout=300)
    return client


@pytest.fixture
def backend(client: Client) -> DaskBackend:
    """A backend of its own for each test, on two living workers."""
    return DaskBackend(peopled(client), limits=LIMITS, workers=2)


def tries(path: Path | str) -> int:
    """How often a task noted there was begun."""
    return len(Path(path).read_text()) if Path(path).exists() else 0


def begin(path: str) -> int:
    """Note a try of a task; returns its number, from one."""
    with open(path, "a") as file:
        file.write("x")
    return tries(path)


def fail_twice(path: str) -> str:
    if begin(path) < 3:
        raise OSError("the disk did not answer")
    return "read"


def fail_always(rows: str) -> None:
    raise OSError(f"{rows} cannot be read")


def refuse(path: str) -> None:
    begin(path)
    raise InputError("rows 3 to 5 are not numbers; drop them.")


def kill_self(rows: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep_first(path: str) -> str:
    if begin(path) == 1:
        time.sleep(10_000)
    return "done"


def sleep_always(rows: str) -> None:
    time.sleep(10_000)


def scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return factor * array


def scaled_slowly(array: np.ndarray, factor: float) -> np.ndarray:
    time.sleep(0.1)
    return factor * array


def test_a_task_that_fails_to_read_twice_succeeds(backend: DaskBackend, tmp_path: Path) -> None:
    assert backend.fetch(backend.map(fail_twice, [str(tmp_path / "tries")])) == ["read"]
    assert tries(tmp_path / "tries") == 3
    assert backend.counts.resubmissions >= 1


def test_a_partition_that_cannot_be_read_is_named(backend: DaskBackend) -> None:
    shared = [backend.share(f"rows {i}", label=f"partition {i}") for i in range(3)]
    with pytest.raises(ClusterError, match=r"fail_always of partition 0 failed in 3 of 3 tries, last with OSE") as told:
        backend.fetch([backend.sum(backend.map(fail_always, shared[:1]))])
    assert "can read the data and write the output, and that its disk has space" in str(told.value)


def test_an_error_of_the_task_is_raised_as_it_is_and_at_once(backend: DaskBackend, tmp_path: Path) -> None:
    refs = backend.map(refuse, [str(tmp_path / "tries")])
    with pytest.raises(InputError, match="rows 3 to 5 are not numbers"):
        backend.fetch([backend.sum([*refs, *backend.map(abs, [1, 2])])])
    assert tries(tmp_path / "tries") == 1


def test_cancelled_results_lose_the_batch_alone(backend: DaskBackend) -> None:
    large = backend.share(np.arange(10_000.0))
    refs = backend.map(scaled_slowly, [large] * 20, range(20))
    total = backend.sum(refs)
    for lost in (total, refs[3], large):  # one by one: Dask's scheduler ends a client who cancels what is cancelled
        backend.client.cancel([lost.future], force=True)
    with pytest.raises(ClusterLostError, match="results were cancelled or lost"):
        backend.fetch([total])
    again = backend.map(scaled, [backend.share(np.arange(10_000.0))] * 20, range(20))
    np.testing.assert_array_equal(backend.fetch([backend.sum(again)])[0], 190 * np.arange(10_000.0))


def test_a_poison_partition_is_named_and_ends_the_run(backend: DaskBackend) -> None:
    before = backend.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler._workers_removed_total)
    partitions = [backend.share(f"rows {i}", label=f"partition {i}") for i in range(12)]
    visits = [backend.map(len, [p])[0] if i != 4 else backend.map(kill_self, [p])[0] for i, p in enumerate(partitions)]
    with pytest.raises(ClusterError, match=r"kill_self of partition 4 .* worker processes ended .* memory"):
        backend.fetch([backend.sum(visits)])
    after = backend.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler._workers_removed_total)
    assert after - before in (4, 5), "the last one by itself"


def test_who_waits_behind_a_deadly_task_is_not_blamed() -> None:
    settings = {**worker_settings(120.0), "distributed.scheduler.allowed-failures": 1}
    with dask.config.set(settings), PersistentCluster(1, "1GB") as cluster, Client(cluster) as client:
        backend = DaskBackend(client, limits=LIMITS, workers=1)
        partitions = [backend.share(f"rows {i}", label=f"partition {i}") for i in range(8)]
        visits = [backend.map(kill_self if i == 2 else len, [p])[0] for i, p in enumerate(partitions)]
        with pytest.raises(ClusterError, match="kill_self of partition 2 could not be finished"):
            backend.fetch([backend.sum(visits[::-1])])


def test_a_task_that_never_ends_goes_to_another_worker(client: Client, tmp_path: Path) -> None:
    backend = DaskBackend(peopled(client), limits=HASTY, workers=2)
    refs = backend.map(sleep_first, [str(tmp_path / "tries")])
    assert backend.fetch(refs) == ["done"]
    assert backend.counts.restarts >= 1


def test_a_task_that_never_ends_anywhere_is_named(client: Client) -> None:
    backend = DaskBackend(peopled(client), workers=2, limits=TaskLimits(attempts=1, stuck_after=0.6, period=0.2))
    partition = backend.share("rows", label="partition 7")
    with pytest.raises(ClusterError, match=r"sleep_always of partition 7 did not finish within 0\.6 s on 1 workers"):
        backend.fetch(backend.map(sleep_always, [partition]))


def forget_what_waits(dask_worker: Worker) -> int:
    """Drop tasks that wait for the worker's thread; the scheduler goes on believing that it has them."""
    waiting = [task.key for task in dask_worker.state.ready]
    dask_worker.handle_stimulus(FreeKeysEvent(keys=waiting, stimulus_id="test"))
    return len(waiting)


def test_workers_that_do_nothing_end_with_a_sentence() -> None:
    """One worker: a second one that is done early asks for the first one's tasks, and finds what was lost."""
    with dask.config.set(worker_settings(120.0)), PersistentCluster(1, "1GB") as cluster, Client(cluster) as client:
        backend = DaskBackend(client, limits=TaskLimits(idle_after=1.5, period=0.2), workers=1)
        refs = backend.map(scaled_slowly, [np.arange(5.0)] * 30, range(30))
        wait_until(lambda: sum(client.run(forget_what_waits).values()), lambda: "no task waits", pause=0)
        with pytest.raises(ClusterLostError, match=r"no worker .* was active for 1\.5 s, although tasks are waiting"):
            backend.fetch(refs)


def test_workers_at_one_long_task_do_something(client: Client) -> None:
    backend = DaskBackend(peopled(client), limits=TaskLimits(idle_after=1.5, period=0.2), workers=2)
    assert backend.fetch(backend.map(time.sleep, [3.5])) == [None]


def test_a_stopped_worker_process_is_replaced(client: Client) -> None:
    backend = DaskBackend(peopled(client), limits=HASTY, workers=2)
    expected = SerialBackend().total(scaled, [np.arange(5.0)] * 30, range(30))
    victim = next(iter(backend.client.run(os.getpid).values()))
    refs = backend.map(scaled_slowly, [np.arange(5.0)] * 30, range(30))
    total = backend.sum(refs)
    os.kill(victim, signal.SIGSTOP)
    try:
        np.testing.assert_array_equal(backend.fetch([total])[0], expected)
        assert backend.counts.lost >= 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def test_workers_killed_at_random_and_all_at_once_change_no_bit(client: Client) -> None:
    backend = DaskBackend(peopled(client), workers=2, limits=TaskLimits(period=0.2))
    factors = list(np.random.default_rng(0).normal(size=60) * 10.0 ** np.arange(-30, 30))
    expected = SerialBackend().total(scaled, [np.ones(5)] * 60, factors)
    killer = threading.Thread(target=kill_workers, args=(client,))
    killer.start()
    try:
        while killer.is_alive():
            found = backend.fetch([backend.total(scaled_slowly, [np.ones(5)] * 60, factors)])[0]
            assert found.tobytes() == expected.tobytes()
    finally:
        killer.join()


def kill_workers(client: Client) -> None:
    """Kill one of the workers that are there, then another, then all."""
    rng, rounds = np.random.default_rng(1), 0
    while rounds < 3:
        time.sleep(0.7)
        there = client.scheduler_info(n_workers=-1)["workers"].values()
        pids = [client.cluster.workers[each["name"]].pid for each in there]
        for pid in pids if rounds == 2 else rng.permutation(pids)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        rounds += bool(pids)


def test_results_of_dropped_refs_are_freed(backend: DaskBackend) -> None:
    refs = backend.map(scaled, [np.ones(50_000)] * 16, range(16))
    total = backend.sum(refs)
    backend.fetch([total])
    del refs
    wait_until(lambda: _held(backend) <= 1, lambda: f"{_held(backend)} results are on the cluster")
    assert _held(backend) == 1, "only the sum that is still held is left on the cluster"
    np.testing.assert_array_equal(backend.fetch([total])[0], 120 * np.ones(50_000))


def _held(backend: DaskBackend) -> int:
    """Its results in memory; of one that is freed the scheduler keeps the recipe while something made of it is held."""
    keys = backend.client.run_on_scheduler(
        lambda dask_scheduler: [key for key, task in dask_scheduler.tasks.items() if task.state == "memory"]
    )
    return sum(isinstance(key, tuple) and key[0].endswith(backend._run) for key in keys)


@pytest.mark.parametrize("seconds", [None, 0.2, 0.05, 0.02, 0.001])
def test_grouped_totals_have_the_bits_of_serial(backend: DaskBackend, seconds: float | None) -> None:
    factors = list(np.random.default_rng(2).normal(size=37) * 10.0 ** np.arange(-18, 19))
    expected = SerialBackend().total(scaled, [np.ones(3)] * 37, factors)
    if seconds is not None:
        backend._seconds["scaled"] = seconds
    found = backend.fetch([backend.total(scaled, [backend.share(np.ones(3))] * 37, factors)])[0]
    assert found.tobytes() == expected.tobytes()
    assert backend._seconds["scaled"] < 0.1, "a total tells how long a row took"


@given(st.integers(1, 200))
def test_neighbours_are_joined_and_then_neighbours_of_those(count: int) -> None:
    level = letters = [str(i) for i in range(count)]
    while len(level) > 1:
        pairs = [_pair(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    assert join_pairwise(iter(letters), _pair) == level[0]


def _pair(a: str, b: str) -> str:
    return f"({a} {b})"


class Tree(str):
    """Text that shows the tree in which it was added."""

    def __add__(self, other: str) -> Tree:
        return Tree(_pair(self, other))


@given(st.integers(1, 150), st.integers(0, 4))
def test_aligned_groups_are_subtrees_of_the_tree_that_adds_all(count: int, power: int) -> None:
    backend, rows = SerialBackend(), [Tree(i) for i in range(count)]
    whole = backend.sum(backend.map(Tree, rows))
    groups = [rows[i : i + 2**power] for i in range(0, count, 2**power)]
    assert backend.sum([add_results(Tree, group) for group in groups]) == whole == backend.total(Tree, rows)


@given(st.integers(1, 5000), st.floats(1e-5, 10.0), st.integers(1, 64))
def test_groups_are_long_enough_and_leave_work_for_every_thread(rows: int, seconds: float, threads: int) -> None:
    size = group_size(rows, seconds, threads)
    groups = -(-rows // size)
    assert size & (size - 1) == 0
    assert size == 1 or groups >= threads or size // 2 * seconds < TOO_SHORT
    assert size >= rows or size * seconds >= LONG_ENOUGH or groups < 4 * threads
    assert size // 2 * seconds < LONG_ENOUGH


@contextlib.contextmanager
def process(*arguments: str, **variables: str) -> Iterator[subprocess.Popen]:
    """A process of dask's, in a group of its own that ends with the block."""
    started = subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments],
        env={**os.environ, **variables},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@contextlib.contextmanager
def scheduler(folder: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler process, and its address."""
    file = folder / "scheduler.json"
    with process(
        "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)
    ) as started:
        yield started, scheduler_address(file, started)


def worker(address: str, folder: Path, *arguments: str) -> contextlib.AbstractContextManager[subprocess.Popen]:
    """A worker process."""
    given = ["--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder)]
    return process("worker", address, *given, *arguments, PYTHONPATH=str(folder))


def test_a_killed_scheduler_is_told_by_every_call(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (started, address), worker(address, tmp_path):
        backend = connect(address, limits=replace(LIMITS, grace=0.3))
        backend.client.wait_for_workers(1, timeout=300)
        array = backend.share(np.ones(10_000))
        total = backend.total(scaled_slowly, [array] * 100, range(100))
        os.killpg(started.pid, signal.SIGKILL)
        with pytest.raises(ClusterLostError, match=r"scheduler at .* is gone"):
            backend.fetch([total])
        for call in (
            lambda: backend.map(scaled, [array], [1.0]),
            lambda: backend.share(np.ones(10_000)),
            lambda: backend.total(scaled, [array], [1.0]),
            lambda: backend.fetch([array]),
        ):
            with pytest.raises(ClusterLostError, match="Start a cluster again, then resume"):
                call()
        backend.close()


def test_a_cluster_without_workers_is_waited_for_and_given_up(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (_, address):
        backend = connect(address, limits=TaskLimits(patience=0.5, period=0.1))
        with pytest.raises(ClusterLostError, match=r"had no worker, or did not answer, for .* s"):
            backend.fetch(backend.map(abs, [1]))
        backend.close()


def test_a_worker_with_other_versions_is_refused_at_once_or_when_it_joins(tmp_path: Path) -> None:
    pretended = tmp_path / "scipy-0.0.1.dist-info"
    pretended.mkdir()
    (pretended / "METADATA").write_text("Metadata-Version: 2.1\nName: scipy\nVersion: 0.0.1\n")
    with scheduler(tmp_path) as (_, address):
        early = connect(address, limits=LIMITS)
        with worker(address, tmp_path):
            early.client.wait_for_workers(1, timeout=300)
            with pytest.raises(InputError, match=r"the worker on .* has scipy 0\.0\.1 instead of 1\."):
                early.fetch(early.map(abs, [1]))
            with pytest.raises(InputError, match=r"the worker on .* has scipy 0\.0\.1 instead of 1\."):
                connect(address)
        early.close()


def _briefly(x: int) -> int:
    time.sleep(1.0)
    return x


def test_a_task_that_was_given_up_is_not_held_against_the_next() -> None:
    backend = local_backend(1, limits=TaskLimits(attempts=1, stuck_after=4.0, period=0.2))
    try:
        with pytest.raises(ClusterError, match=r"sleep_always .* did not finish"):
            backend.fetch(backend.map(sleep_always, ["rows"]))
        assert backend.fetch(backend.map(_briefly, [2])) == [2]
        assert backend.counts.restarts == 1
    finally:
        backend.close()
