"""Progress from afar: another client sees what a local run draws, and the scheduler's metrics say where a run is."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from dpdist.cluster.attach import follow, listen
from dpdist.cluster.metrics import COUNTERS, GAUGES, MetricsPlugin, SchedulerOutlet, connection, publish, serve_metrics
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.engine import Step, steps
from dpdist.inference.schedules import Memoized
from dpdist.inference.sva.sequence import _scored
from dpdist.runs.events import (
    TOPIC,
    TOPICS,
    BatchEvent,
    Broadcast,
    Event,
    Happening,
    LapEvent,
    NoteEvent,
    event_of_step,
    from_dict,
    note,
    to_dict,
)
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.progress import LiveProgress, event_line, lap_line
from tests.runs import begun, clusters, mixture, source_of


def sending(run: str, client: Callable[[], Client], interval: float = 0.3) -> closing[Broadcast]:
    """A broadcast of a run to the scheduler of a client, until the end of a block."""
    return closing(Broadcast(run, SchedulerOutlet(client).send, interval))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes, with a dashboard."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit="1GB",
    ) as started:
        yield started


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Of a coordinator."""
    with Client(cluster.scheduler_address, set_as_default=False) as connected:
        yield connected


@pytest.fixture
def watcher(cluster: LocalCluster) -> Iterator[Client]:
    """Of someone who looks on."""
    with Client(cluster.scheduler_address, set_as_default=False) as connected:
        yield connected


def paper() -> Console:
    """A console to look at afterwards."""
    return Console(file=io.StringIO(), width=120)


def lines(console: Console) -> list[str]:
    """What was drawn on it, but for the empty line that a bar leaves where there is no terminal."""
    assert isinstance(console.file, io.StringIO)
    return [line for line in console.file.getvalue().splitlines() if line]


def batch(done: int, **more: Any) -> BatchEvent:
    return BatchEvent(lap=1, done=done, of=8, **more)


def lap(number: int, elbo: float = -1234.5, **more: Any) -> LapEvent:
    return LapEvent(
        lap=number,
        elbo=elbo,
        per_unit=elbo / 100,
        rows=100,
        n_components=7,
        seconds=0.25,
        accepted={"split": 2, "merge": 1},
        batches=8,
        **more,
    )


def passed(number: int, rows: int, seconds: float, holdout: float | None = None) -> LapEvent:
    return LapEvent(
        lap=number, of=9, rows=rows, n_components=4, seconds=seconds, holdout=holdout, rows_per_second=rows / seconds
    )


ENDED = note(Happening.ENDED, "converged: the ELBO settled and no move is pending")


def stepped(laps: int, rows: int = 2000) -> Iterator[Step]:
    """Steps of a small fit."""
    source = source_of(clusters(0, rows=rows, groups=4))
    problem, state = begun(mixture(schedule=Memoized(4)), source)
    for step in steps(problem, source, state, SerialBackend()):
        yield step
        if step.state.lap > laps:
            return


# lines


def test_a_lap_is_a_line() -> None:
    console = paper()
    with LiveProgress(console) as progress:
        for event in (batch(1), lap(1), batch(2), note(Happening.CHECKPOINT, "written"), lap(12, elbo=-math.inf)):
            progress.tell(event)
    assert lines(console) == [
        "lap    1   K     7   ELBO/row   -12.345000      0.25 s   1 merge, 2 splits",
        "lap   12   K     7   ELBO/row         -inf      0.25 s   1 merge, 2 splits",
    ]


def test_the_bound_of_documents_is_told_per_token() -> None:
    told = replace(lap(1), per_unit=-2.469, unit="token")
    assert lap_line(told).startswith("lap    1   K     7   ELBO/token    -2.469000 ")
    assert from_dict(to_dict(told)) == told


def test_a_round_is_a_line_with_what_is_known_of_it() -> None:
    console = paper()
    with LiveProgress(console) as progress:
        progress.tell(passed(1, 1000, 2.0))
        progress.tell(passed(2, 4000, 3.0, holdout=-2.5))
    assert lines(console) == [
        "round    1 of 9   rows         1000   K     4      2.00 s",
        "round    2 of 9   rows         4000   K     4      3.00 s   held out    -2.500000",
    ]


@pytest.mark.parametrize("before", [0, 100, 4000])
@pytest.mark.parametrize("visited", [0, 7])
def test_held_out_rows_are_scored_whenever_a_pass_has_grown_by_a_share_and_at_its_end(
    before: int, visited: int
) -> None:
    sizes = [5 + 37 * number % 61 for number in range(60)]
    passed_after = [before + sum(sizes[: number + 1]) for number in range(60)]
    expected = {0, 59}
    for number, rows in enumerate(passed_after):
        last = max(each for each in expected if each <= number)
        if rows >= 1.05 * passed_after[last]:
            expected.add(number)
    assert _scored(sizes, before + sum(sizes[:visited]), visited) == expected
    assert 2 < len(expected) < 60


def test_a_note_is_its_sentence_whatever_it_is_about() -> None:
    console = paper()
    sentence = "partition 7 [of 40] was visited again: its worker at tcp://127.0.0.1:1 is lost " + "and " * 40 + "gone."
    with LiveProgress(console) as progress:
        progress.tell(note(Happening.RESUBMITTED, sentence))
        progress.tell(replace(note(Happening.NOTE, "well."), about="made up later"))
    assert lines(console) == [sentence, "well."]


def test_a_log_has_the_same_lines() -> None:
    told = [lap(1), passed(1, 1000, 2.0), passed(2, 4000, 3.0, -2.5), note(Happening.NOTE, "well.")]
    console = paper()
    with LiveProgress(console) as progress:
        for event in told:
            progress.tell(event)
    assert [event_line(event) for event in told] == lines(console)


def test_lines_are_as_long_as_they_are_where_there_is_no_terminal() -> None:
    narrow = Console(file=io.StringIO(), width=30)
    told = [lap(1, new=4, gone=1), passed(2, 4000, 3.0, holdout=-2.5), note(Happening.NOTE, "well [so to say]. " * 9)]
    with LiveProgress(narrow) as progress:
        for event in told:
            progress.tell(event)
    assert [line.rstrip() for line in lines(narrow)] == [event_line(event).rstrip() for event in told]


def test_a_lap_tells_how_many_components_are_new_and_gone() -> None:
    assert lap_line(lap(1, new=4, gone=1)).endswith("   1 merge, 2 splits: 4 new, 1 gone")
    assert lap_line(lap(1, new=0, gone=1)).endswith("   1 merge, 2 splits: 1 gone")
    assert lap_line(replace(lap(1, new=2, gone=0), accepted={})).endswith(" s   2 new")
    assert lap_line(replace(lap(1), accepted={}, refining=5)).endswith(" s   5 being refined")
    assert lap_line(replace(lap(1), refining=5)) == lap_line(lap(1))
    assert lap_line(lap(1, new=0, gone=0)) == lap_line(lap(1))


def test_a_bar_names_the_lap_under_way_also_of_a_run_that_goes_on() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with LiveProgress(console) as progress:
        assert "lap" not in progress.description
        progress.tell(replace(batch(3), lap=37))
        assert progress.description == "lap 37, batches"
        progress.tell(lap(37))
        assert progress.description == "lap 38, batches"


# following


def test_another_client_draws_the_lines_of_the_local_run(client: Client, watcher: Client) -> None:
    local, remote, late = paper(), paper(), paper()
    ends: list[NoteEvent | None] = []
    looking = threading.Thread(target=lambda: ends.append(follow(watcher, remote, "fitted", 0.2)), daemon=True)
    with LiveProgress(local) as progress, sending("fitted", lambda: client, 0.0) as broadcast:
        for number, step in enumerate(stepped(laps=6)):
            event = event_of_step(MemoizedMixture(), step)
            progress.tell(event)
            broadcast.tell(event)
            if number == 9:
                looking.start()
        broadcast.tell(ENDED)
    looking.join(60)
    assert not looking.is_alive() and broadcast.lost == 0
    assert follow(client, late, "fitted") is not None
    assert ends[0] is not None and ends[0].sentence == ENDED.sentence
    assert len(lines(local)) == 6
    assert lines(remote) == lines(local)
    assert lines(late) == lines(local)


def test_who_joins_late_sees_every_event_once_and_in_order(client: Client, watcher: Client) -> None:
    seen: list[Event] = []

    def look() -> None:
        for events in listen(watcher, "counted", 0.2):
            seen.extend(events)
            if any(isinstance(event, NoteEvent) for event in events):
                return

    looking = threading.Thread(target=look, daemon=True)
    with sending("counted", lambda: client, 0.0) as broadcast:
        other = Broadcast("another run", SchedulerOutlet(lambda: client).send, 0.0)
        for number in range(1, 201):
            broadcast.tell(batch(number % 8))
            broadcast.tell(lap(number))
            other.tell(lap(number))
            if number == 60:
                looking.start()
        broadcast.tell(ENDED)
        other.close()
    looking.join(60)
    assert not looking.is_alive()
    assert sorted(event.sequence for event in seen) == list(range(1, len(seen) + 1))
    assert [event.lap for event in seen if isinstance(event, LapEvent)] == list(range(1, 201))
    assert len(seen) + broadcast.dropped == 401


def test_a_resumed_run_is_drawn_on_as_a_run_of_its_own(client: Client, watcher: Client) -> None:
    local, remote = paper(), paper()
    for first, ending in ((1, "stopped: max_laps reached"), (3, ENDED.sentence)):
        told = [passed(first, 1000 * first, 2.0), passed(first + 1, 5000 * first, 3.0, -2.0)]
        with LiveProgress(local) as progress, sending("resumed", lambda: client) as broadcast:
            for event in (*told, note(Happening.ENDED, ending)):
                progress.tell(event)
                broadcast.tell(event)
    end = follow(watcher, remote, "resumed")
    assert end is not None and end.sentence == ENDED.sentence
    assert lines(remote) == lines(local)[:-1]  # the last word is for who follows


class Memory:
    """A scheduler's topic without a scheduler."""

    status = "running"

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def get_events(self, topic: str) -> list[tuple[float, dict[str, Any]]]:
        return list(enumerate(self.kept)) if topic == TOPIC else []


def numbered(count: int) -> list[LapEvent]:
    """Laps of a session of the run "r"."""
    return [replace(lap(number), run="r", session="s", sequence=number) for number in range(1, count + 1)]


def test_what_is_new_at_each_question_is_told_once() -> None:
    memory, told = Memory(), numbered(3)
    heard = listen(memory, "r", 0.0)
    assert next(heard) == []
    memory.kept += [to_dict(told[0]), to_dict(replace(told[1], run="another"))]
    assert next(heard) == told[:1]
    memory.kept += map(to_dict, told[1:])
    assert next(heard) == told[1:] and next(heard) == []


def test_the_last_word_of_a_run_is_told_by_who_follows_it() -> None:
    memory, console = Memory(), paper()
    end = replace(ENDED, run="r", session="s", sequence=3)
    memory.kept = [to_dict(event) for event in (*numbered(2), end)]
    assert follow(memory, console, "r") == end
    assert len(lines(console)) == 2


def test_ctrl_c_ends_following(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, console = Memory(), paper()
    memory.kept = [to_dict(event) for event in numbered(3)]

    def pressed(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpdist.cluster.attach.time.sleep", pressed)
    assert follow(memory, console, "r") is None
    assert len(lines(console)) == 3


def test_following_a_scheduler_that_is_gone_says_so(cluster: LocalCluster) -> None:
    gone = Client(cluster.scheduler_address, set_as_default=False)
    gone.close()
    with pytest.raises(ConnectionError, match="the connection to the Dask scheduler is closed"):
        follow(gone, paper(), "r")


# metrics


def scraped(address: str) -> dict[tuple[str, str], float]:
    """What a scheduler shows over HTTP of runs: (metric, run) -> value."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert any(family.name == "dask_scheduler_workers" for family in families)
    return {
        (sample.name, sample.labels["run"]): sample.value
        for family in families
        for sample in family.samples
        if family.name.startswith("dpdist_") and not sample.name.endswith("_created")
    }


def of_run(cluster: LocalCluster, run: str) -> dict[str, float]:
    shown = scraped(cluster.dashboard_link.replace("/status", "/metrics"))
    return {name: value for (name, other), value in shown.items() if other == run}


def test_the_scheduler_shows_the_last_values_beside_dasks_own(cluster: LocalCluster, client: Client) -> None:
    saved = note(Happening.CHECKPOINT, "generation 3 is written")
    with sending("shown", lambda: client, 0.0) as broadcast:
        for event in (
            lap(1, elbo=-9000.0),
            note(Happening.RESUBMITTED, "4 partitions are visited again", count=4),
            saved,
            lap(2, elbo=-250.0),
            note(Happening.RESUBMITTED, "1 partition is visited again"),
            note(Happening.STUCK, "1 task is started again"),
        ):
            broadcast.tell(event)
    stamp = {"run": "shown", "session": broadcast_session(client, "shown"), "sequence": 99}
    publish(client, batch(2, rows=25, rows_per_second=1500.0, **stamp))
    expected = {
        "dpdist_rows_per_second": 1500.0,
        "dpdist_lap": 2.0,
        "dpdist_lap_share": 0.25,
        "dpdist_elbo_nats": -250.0,
        "dpdist_elbo_nats_per_row": -2.5,
        "dpdist_components": 7.0,
        "dpdist_resubmissions_total": 5.0,
        "dpdist_stuck_restarts_total": 1.0,
        "dpdist_last_checkpoint_timestamp_seconds": saved.time,
    }
    assert of_run(cluster, "shown") == expected
    assert set(expected) < set(GAUGES) | set(COUNTERS)
    publish(client, replace(ENDED, **stamp))
    assert of_run(cluster, "shown") == {}, "an ended run is no longer shown"


def broadcast_session(client: Client, run: str) -> str:
    """The last session of a run."""
    return [event["session"] for _, event in client.get_events(TOPIC) if event["run"] == run][-1]


def test_a_pass_and_values_that_are_no_numbers_are_shown_too(cluster: LocalCluster, client: Client) -> None:
    with sending("passing", lambda: client) as broadcast:
        for event in (passed(1, 1000, 2.0, -3.0), passed(2, 4000, 3.0)):
            broadcast.tell(event)
    with sending("strange", lambda: client) as broadcast:
        broadcast.tell(lap(1, elbo=math.nan))
    with sending("endless", lambda: client) as broadcast:
        broadcast.tell(lap(1, elbo=-math.inf))
    assert of_run(cluster, "passing") == {
        "dpdist_rows_per_second": 4000 / 3,
        "dpdist_lap": 2.0,
        "dpdist_lap_share": 2 / 9,
        "dpdist_components": 4.0,
        "dpdist_holdout_nats_per_row": -3.0,
    }
    with sending("documents", lambda: client) as broadcast:
        broadcast.tell(replace(lap(1, elbo=-250.0), per_unit=-0.5, unit="token"))
    documents = of_run(cluster, "documents")
    assert documents["dpdist_elbo_nats_per_token"] == -0.5 and "dpdist_elbo_nats_per_row" not in documents
    assert math.isnan(of_run(cluster, "strange")["dpdist_elbo_nats"])
    assert of_run(cluster, "endless")["dpdist_elbo_nats"] == -math.inf


def test_a_second_registration_changes_nothing(cluster: LocalCluster, client: Client, watcher: Client) -> None:
    with sending("twice", lambda: client) as broadcast:
        broadcast.tell(note(Happening.STUCK, "1 task is started again"))
    before = of_run(cluster, "twice")
    assert before == {"dpdist_stuck_restarts_total": 1.0}
    serve_metrics(client)
    serve_metrics(watcher)
    assert of_run(cluster, "twice") == before
    with sending("beside it", lambda: watcher) as broadcast:
        broadcast.tell(note(Happening.STUCK, "1 task is started again"))
    assert of_run(cluster, "twice") == of_run(cluster, "beside it") == before, "nothing is counted twice"


def test_a_session_that_replaces_another_begins_anew(cluster: LocalCluster, client: Client) -> None:
    with sending("killed", lambda: client) as broadcast:
        broadcast.tell(lap(9))
        broadcast.tell(note(Happening.STUCK, "3 tasks are started again", count=3))
    assert of_run(cluster, "killed")["dpdist_stuck_restarts_total"] == 3
    with sending("killed", lambda: client) as broadcast:
        broadcast.tell(note(Happening.STUCK, "1 task is started again"))
    assert of_run(cluster, "killed") == {"dpdist_stuck_restarts_total": 1.0}


def started(**more: Any) -> LocalCluster:
    """A scheduler alone."""
    return LocalCluster(n_workers=0, host="127.0.0.1", processes=True, **more)


def test_metrics_registered_late_know_what_was_logged_before() -> None:
    with started(dashboard_address="127.0.0.1:0") as cluster, Client(cluster, set_as_default=False) as client:
        publish(client, lap(4, run="early", session="s", sequence=1))
        publish(client, replace(ENDED, run="over", session="t", sequence=2))
        client.log_event(TOPIC, "something that is no event")
        assert of_run(cluster, "early") == {}
        serve_metrics(client)
        assert of_run(cluster, "early")["dpdist_lap"] == 4
        assert of_run(cluster, "over") == {}


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Path]:
    """The file that says where a scheduler in a process of its own is."""
    path = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    command += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(path)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield path
    finally:
        process.kill()
        process.wait()


def test_a_scheduler_in_a_process_of_its_own_shows_them(scheduler: Path) -> None:
    with Client(scheduler_file=str(scheduler), set_as_default=False) as client:
        with sending("apart", lambda: client) as broadcast:
            broadcast.tell(lap(3))
            wait_for(client, 1)
        assert broadcast.lost == 0
        port = json.loads(scheduler.read_text())["services"]["dashboard"]
        assert scraped(f"http://127.0.0.1:{port}/metrics")["dpdist_lap", "apart"] == 3


def test_a_scheduler_without_dashboard_passes_events_on_all_the_same() -> None:
    bare = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with started(**bare) as cluster, Client(cluster, set_as_default=False) as client:
        with sending("unseen", lambda: client) as broadcast:
            broadcast.tell(lap(1))
            broadcast.tell(ENDED)
        assert broadcast.lost == 0
        assert client.run_on_scheduler(lambda dask_scheduler: MetricsPlugin.name in dask_scheduler.plugins)
        console = paper()
        assert follow(client, console, "unseen") is not None
        assert len(lines(console)) == 1


def test_a_new_scheduler_is_made_to_show_metrics_too() -> None:
    with (
        started(dashboard_address="127.0.0.1:0") as first,
        started(dashboard_address="127.0.0.1:0") as second,
        Client(first, set_as_default=False) as one,
        Client(second, set_as_default=False) as two,
    ):
        clients = [one]
        with sending("moved", lambda: clients[-1]) as broadcast:
            broadcast.tell(lap(1))
            wait_for(one, 1)
            clients.append(two)
            broadcast.tell(note(Happening.RESTARTED, "the cluster was started anew"))
        assert broadcast.lost == 0
        assert all(
            c.run_on_scheduler(lambda dask_scheduler: MetricsPlugin.name in dask_scheduler.plugins) for c in (one, two)
        )
        assert [len(c.get_events(TOPIC)) for c in (one, two)] == [1, 1]


def wait_for(client: Client, count: int) -> None:
    """Until so many events are logged."""
    pause = threading.Event()
    while sum(len(client.get_events(topic)) for topic in TOPICS) < count:
        pause.wait(0.01)


# what must not disturb a run


def test_a_closed_client_loses_events_and_nothing_else(cluster: LocalCluster) -> None:
    speaker = Client(cluster.scheduler_address, set_as_default=False)
    speaker.close()
    for call in (lambda: publish(speaker, lap(1)), lambda: serve_metrics(speaker)):
        with pytest.raises(ConnectionError, match="is closed"):
            call()
    assert not SchedulerOutlet(lambda: None).send(lap(1))
    laps = 0
    with sending("mute", lambda: speaker) as broadcast:
        for step in stepped(laps=2, rows=600):
            broadcast.tell(event_of_step(MemoizedMixture(), step))
            laps += step.info is not None
    assert laps == 2 and broadcast.lost >= 2


def test_a_scheduler_that_died_loses_events_and_nothing_else() -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "500ms"}):
        cluster = started(dashboard_address="127.0.0.1:0")
        client = Client(cluster.scheduler_address, set_as_default=False)
        outlet = SchedulerOutlet(lambda: client)
        assert outlet.send(lap(1))
        cluster.close()
        assert not outlet.send(lap(2))
        with closing(Broadcast("mute", outlet.send)) as broadcast:
            broadcast.tell(lap(3))
            broadcast.tell(lap(4))
        client.close()
    assert broadcast.lost == 2


class WithoutDpdist:
    """The client of a scheduler that cannot import dpdist."""

    status = "running"

    def __init__(self) -> None:
        self.logged: list[object] = []

    def register_plugin(self, plugin: MetricsPlugin) -> None:
        raise ModuleNotFoundError("No module named 'dpdist'")

    def log_event(self, topic: str, message: object) -> None:
        self.logged.append(message)


def test_a_scheduler_without_dpdist_is_told_of_and_passes_events_on() -> None:
    client = WithoutDpdist()
    outlet = SchedulerOutlet(lambda: client)
    with pytest.warns(UserWarning, match="needs this version of dpdist to show metrics"):
        assert outlet.send(lap(1))
    assert outlet.send(lap(2))
    assert client.logged == [to_dict(lap(1)), to_dict(lap(2))]


def test_errors_that_are_not_the_networks_are_raised(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), connection(client):
        _ = 1 / 0
    with pytest.raises(TypeError), connection(client):
        client.log_event(TOPIC, object())
