"""Laws of the lease: one coordinator at a time, a dead one found at once or by its silence, and no clock compared."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import zarr

from dpdist.core import lease
from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.lease import FOLDER, LeaseHeldError, latest_lease, process_began, take_lease, this_process, worked_on
from dpdist.core.places import LocalPlace, Place, place_of
from dpdist.core.records import sealed
from dpdist.storage.commits import commits, read_commit
from dpdist.storage.generations import GenerationStore
from tests.daemons.s3 import BUCKET, environment, moto_server, rgw_server
from tests.runs import another_process
from tests.waiting import wait_until

#: Forks of a process that has imported all this, and done nothing else: they start at once.
PROCESSES = multiprocessing.get_context("forkserver")
SERVERS = {"moto": moto_server, "rgw": rgw_server}
#: Seconds between beats and of silence, short so that tests are.
BEAT, SILENCE = 0.1, 1.5


class Numbers(GenerationStore):
    """A store whose generations are a number each."""

    @classmethod
    def new(cls, path: str, overwrite: bool = False) -> Numbers:
        """A new store at `path`."""
        return cls.begin(path, "numbers", lambda group: group.attrs.update({"zero": 0}), {}, {"made": "up"}, overwrite)

    def commit(self, value: int) -> None:
        """Make `value` the current one."""

        def write(group: zarr.Group) -> None:
            group.create_group("part").create_array("value", data=np.array([value]))

        self.add_generation(write)

    @property
    def value(self) -> int:
        """The current one."""
        return int(self.generation("part")["value"][0])


@pytest.fixture(scope="module", params=["local", "moto", pytest.param("rgw", marks=pytest.mark.rgw)])
def kind(request) -> Iterator[str]:
    """The kind of place, its server running and the environment leading there."""
    if request.param == "local":
        yield "local"
    else:
        with SERVERS[request.param]() as settings, environment(settings):
            yield request.param


@pytest.fixture
def url(kind, tmp_path) -> str:
    """A path or URL at which nothing is yet."""
    return str(tmp_path / "run") if kind == "local" else f"s3://{BUCKET}/{uuid.uuid4().hex}/run"


@pytest.fixture
def place(url) -> Place:
    return place_of(url)


@pytest.fixture
def quick(monkeypatch) -> None:
    """Beats and silences that are short."""
    monkeypatch.setattr(lease, "BEAT", BEAT)
    monkeypatch.setattr(lease, "SILENCE", SILENCE)


def elsewhere(monkeypatch) -> None:
    """From here on this process is on another machine."""
    monkeypatch.setattr(lease, "_machine", lambda: "another machine")


@contextlib.contextmanager
def process(target, *arguments: object) -> Iterator[tuple[multiprocessing.Process, Connection]]:
    """A process that is told the object store's settings and a pipe; killed in the end."""
    near, far = PROCESSES.Pipe()
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    started = PROCESSES.Process(target=target, args=(settings, far, *arguments))
    started.start()
    far.close()
    try:
        yield started, near
    finally:
        started.kill()
        started.join()
        near.close()


def take_when_told(settings: dict[str, str], pipe: Connection, url: str) -> None:
    """Try to take the lease, say whether it was taken, and hold it until told."""
    os.environ.update(settings)
    place = place_of(url)
    pipe.send("ready")
    pipe.recv()
    try:
        held = take_lease(place)
    except LeaseHeldError:
        pipe.send(None)
    else:
        pipe.send(held.number)
        pipe.recv()
        held.release()
        pipe.send("released")


def test_of_eight_processes_at_once_one_takes_the_lease(url) -> None:
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(process(take_when_told, url))[1] for _ in range(8)]
        for pipe in pipes:
            assert pipe.recv() == "ready"
        for pipe in pipes:
            pipe.send("go")
        answers = [pipe.recv() for pipe in pipes]
        assert sorted(answers, key=str) == [1, *[None] * 7]
        with pytest.raises(
            LeaseHeldError, match=r"is being written by another coordinator \(process \d+ on .*end that process"
        ):
            take_lease(place_of(url))
        winner = pipes[answers.index(1)]
        winner.send("release")
        assert winner.recv() == "released"
        take_lease(place_of(url)).release()


def test_a_lease_whose_owner_died_is_taken_at_once(place, url) -> None:
    with process(take_when_told, url) as (owner, pipe):
        pipe.recv()
        pipe.send("go")
        assert pipe.recv() == 1
        owner.kill()
        owner.join()
        taken = take_lease(place)
    assert taken.number == 2
    taken.release()
    assert latest_lease(place)[1]["released"]


def written_by(owner: lease.Owner, beats: int = 0, released: bool = False) -> bytes:
    """A lease as `owner` writes it."""
    found = {"owner": owner._asdict(), "beats": beats, "released": released, "time": "2001-01-01T00:00:00+00:00"}
    return sealed(found)


def test_a_process_that_was_given_the_id_of_the_owner_is_not_the_owner(tmp_path) -> None:
    place, sleeper = LocalPlace(tmp_path / "run"), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    try:
        owner = this_process()._replace(pid=sleeper.pid, began=process_began(sleeper.pid))
        place.create("leases/000001.json", written_by(owner))
        with pytest.raises(LeaseHeldError, match=f"process {sleeper.pid}"):
            take_lease(place)
        place.replace("leases/000001.json", written_by(owner._replace(began=owner.began - 1)))
        take_lease(place).release()
    finally:
        sleeper.communicate(b"\n")


def test_an_owner_that_the_system_hides_is_refused_until_it_is_silent(tmp_path, monkeypatch, quick) -> None:
    place, owner, said = LocalPlace(tmp_path / "run"), another_process(), []
    place.create("leases/000001.json", written_by(owner))
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)  # as where /proc hides the processes of others
    (tmp_path / "proc/sys/kernel/random/boot_id").symlink_to("/proc/sys/kernel/random/boot_id")
    (tmp_path / "proc/self").symlink_to("/proc/self")
    (tmp_path / f"proc/{os.getpid()}").symlink_to("/proc/self")
    monkeypatch.setattr(lease, "_PROC", tmp_path / "proc")
    assert process_began(owner.pid) == 0
    assert process_began(os.getpid()) != 0
    assert worked_on(place) is None
    timer = threading.Timer(SILENCE / 3, place.replace, ("leases/000001.json", written_by(owner, 1)))
    timer.start()
    with pytest.raises(LeaseHeldError, match=f"process {owner.pid}"):
        take_lease(place, say=said.append)
    timer.join()
    assert len(said) == 1
    taken = take_lease(place)
    assert (taken.number, taken.usurped) == (2, True)
    taken.release()
    place.replace("leases/000002.json", written_by(owner._replace(pid=2**22 + 1)))
    assert worked_on(place) is False, "there is no such process"


def test_a_copy_of_a_run_is_not_its_owners(tmp_path, quick) -> None:
    place, sleeper = LocalPlace(tmp_path / "run"), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    owner = this_process()._replace(pid=sleeper.pid, began=process_began(sleeper.pid))
    try:
        place.create("leases/000001.json", lease._content(place, owner, 0, released=False))
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        (tmp_path / "link").symlink_to("run")
        for held in (place, LocalPlace(tmp_path / "link")):
            assert worked_on(held)
            with pytest.raises(LeaseHeldError, match=f"process {sleeper.pid}"):
                take_lease(held)
        assert worked_on(LocalPlace(tmp_path / "copy")) is None
        take_lease(LocalPlace(tmp_path / "copy")).release()
    finally:
        sleeper.communicate(b"\n")
    assert worked_on(place) is False


def test_a_process_that_ended_but_was_not_waited_for_is_dead(tmp_path) -> None:
    place, ended = LocalPlace(tmp_path / "run"), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    owner = this_process()._replace(pid=ended.pid, began=process_began(ended.pid))
    place.create("leases/000001.json", written_by(owner))
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    take_lease(place).release()
    ended.communicate()


def test_an_owner_elsewhere_is_refused_while_it_beats_and_followed_when_it_is_silent(
    place, monkeypatch, quick, tmp_path
) -> None:
    monkeypatch.setattr(lease, "SILENCE", 60.0)
    owner, beating, said = this_process()._replace(machine="far away", host="node7"), threading.Event(), []

    def beat() -> None:
        count = 0
        while not beating.wait(BEAT):
            count += 1
            place.replace("leases/000001.json", written_by(owner, count))

    place.create("leases/000001.json", written_by(owner))
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LeaseHeldError, match=r"on node7, last sign of life 2001-"):
            take_lease(place, say=said.append)
    finally:
        beating.set()
        thread.join()
    monkeypatch.setattr(lease, "SILENCE", SILENCE)
    taken = take_lease(place, say=said.append)
    assert taken.number == 2 and taken.usurped
    assert (
        all("checking for" in sentence and "node7 is still running" in sentence for sentence in said) and len(said) == 2
    )
    taken.release()


def test_an_owner_that_ends_while_it_is_watched_is_followed(place, quick) -> None:
    owner = this_process()._replace(machine="far away")
    place.create("leases/000001.json", written_by(owner))
    timer = threading.Timer(0.3, place.replace, ("leases/000001.json", written_by(owner, released=True)))
    timer.start()
    taken = take_lease(place, patience=300.0)
    timer.join()
    assert taken.number == 2
    taken.release()


@pytest.mark.parametrize("year", [1971, 2999])
def test_wrong_clocks_change_nothing(place, monkeypatch, quick, year) -> None:
    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(year, 1, 1, tzinfo=tz)

    monkeypatch.setattr(lease, "SILENCE", 60.0)
    first = take_lease(place)
    monkeypatch.setattr(datetime, "datetime", Moved)
    monkeypatch.setattr(time, "time", lambda: Moved.now(datetime.UTC).timestamp())
    elsewhere(monkeypatch)
    with pytest.raises(LeaseHeldError, match="being written by another"):
        take_lease(place)
    first.release()
    assert str(year) in latest_lease(place)[1]["time"]
    again = take_lease(place)
    assert again.number == 2 and not again.usurped
    again.release()


def test_of_two_stores_in_one_process_the_later_one_writes(url) -> None:
    first = Numbers.new(url)
    first.commit(1)
    second = Numbers.open(url)
    second.lock()
    with pytest.raises(LeaseHeldError, match=r"this process opened .* a second time and continued it"):
        first.commit(2)
    second.commit(3)
    second.release()
    first.release()
    with pytest.raises(LeaseHeldError, match="another coordinator has written to"):
        first.lock()
    assert Numbers.open(url).value == 3


def test_an_object_that_one_commit_does_not_name_may_be_named_by_the_next(url) -> None:
    store = Numbers.new(url)
    for name in ("objects/a", "objects/b"):
        store.add_object(name, lambda group, name=name: group.attrs.update({"name": name}))
    for objects in ([], ["objects/a"], ["objects/a", "objects/b"], ["objects/b"]):
        store.add_generation(lambda group: group.attrs.update({"one": 1}), objects)
        opened = Numbers.open(url)
        assert [opened.group(name).attrs["name"] for name in objects] == objects
        assert set(opened.attributes["digests"]) == {
            *objects,
            opened.attributes["problem"],
            opened.attributes["generation"],
        }
    store.release()


def test_a_store_that_let_go_goes_on_if_nobody_wrote_meanwhile(url) -> None:
    store = Numbers.new(url)
    for value in (1, 2):
        store.commit(value)
        store.release()
    assert Numbers.open(url).value == 2


def commit_until_refused(settings: dict[str, str], pipe: Connection, url: str) -> None:
    """Commit numbers, each when told, and say what became of it."""
    os.environ.update(settings)
    lease.BEAT = BEAT
    lease._machine = lambda: "another machine"
    store = Numbers.new(url)
    value = 0
    while True:
        value += 1
        try:
            store.commit(value)
        except CheckpointError as error:
            pipe.send(str(error))
            return
        pipe.send(store.number)
        pipe.recv()


def test_an_owner_that_slept_while_another_took_over_is_refused_at_its_next_commit(url, quick) -> None:
    with process(commit_until_refused, url) as (sleeper, pipe):
        assert pipe.recv() == 1
        os.kill(sleeper.pid, signal.SIGSTOP)
        store = Numbers.open(url)
        store.lock()
        assert (store.number, store.value) == (2, 1)  # the commit of the sleeper, made anew
        store.commit(100)
        os.kill(sleeper.pid, signal.SIGCONT)
        pipe.send("go on")
        sentence = pipe.recv()
        sleeper.join()
    assert "took over" in sentence and "nothing is lost" in sentence
    assert (Numbers.open(url).number, Numbers.open(url).value) == (3, 100)
    store.commit(101)
    store.release()
    assert latest_lease(place_of(url))[0] == store._held
    assert sorted(place_of(url).names("generations")) == sorted(
        read_commit(place_of(url), number)["generation"].partition("/")[2] for number in commits(place_of(url))
    )


def test_an_owner_that_slept_between_its_look_at_the_lease_and_its_commit_is_shut_out(url, quick, monkeypatch) -> None:
    elsewhere(monkeypatch)
    first = Numbers.new(url)
    first.commit(1)
    first._lease._ended.set()  # it beats no more
    monkeypatch.undo()
    monkeypatch.setattr(lease, "SILENCE", SILENCE)
    second, check = Numbers.open(url), lease.Lease.check

    def asleep_after(self: lease.Lease) -> None:
        check(self)
        monkeypatch.setattr(lease.Lease, "check", check)
        second.lock()

    monkeypatch.setattr(lease.Lease, "check", asleep_after)
    with pytest.raises(LeaseHeldError, match="took over"):
        first.commit(2)
    assert Numbers.open(url).value == 1
    second.commit(3)
    second.release()
    assert Numbers.open(url).value == 3
    assert Path(Numbers.open(url).attributes["generation"]).name in place_of(url).names("generations")


def test_who_was_overtaken_writes_no_more_even_when_the_other_is_gone(place, quick) -> None:
    first = take_lease(place)
    second = take_lease(place)
    first._thread.join(30)
    assert not first._thread.is_alive()
    second.withdraw()
    left = place.names(FOLDER)
    with pytest.raises(LeaseHeldError, match=r"took over|was moved, removed or replaced"):
        first.check()
    before = [place.read(f"{FOLDER}/{name}") for name in left]
    first.release()
    assert place.names(FOLDER) == left and [place.read(f"{FOLDER}/{name}") for name in left] == before


def test_who_withdraws_leaves_nothing_of_a_writer_that_was_killed_either(tmp_path) -> None:
    place = place_of(tmp_path / "writer")
    place.create(f"{FOLDER}/.000001.json.partial-abc", b"")
    take_lease(place).withdraw()
    assert not (tmp_path / "writer").exists()


def test_to_cancel_is_told_where_a_run_was_submitted_alone(place, monkeypatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(lease, "this_process", another_process)
        held = take_lease(place)
    with pytest.raises(LeaseHeldError, match="wait for it, or end that process"):
        take_lease(place)
    place.create("requests/000001.json", b"{}")
    with pytest.raises(LeaseHeldError, match="wait for it, or end it with: dpdist cancel"):
        take_lease(place)
    held.release()


def test_a_number_that_fell_free_is_no_lease(place, monkeypatch) -> None:
    """Between a look at the leases and the creation of the next, others came and went."""
    look, looks = lease.latest_lease, iter(range(100))

    def late(where: Place):
        seen = look(where)
        if next(looks) == 0:
            for number in (1, 2):
                where.create(f"leases/{number:06d}.json", written_by(this_process()))
            where.remove("leases/000001.json")
        return seen

    monkeypatch.setattr(lease, "latest_lease", late)
    taken = take_lease(place)
    assert taken.number == 3
    taken.release()


@pytest.mark.parametrize("error", [OSError, InputError, RuntimeError])
def test_beats_go_on_whatever_befell_one(tmp_path, monkeypatch, quick, error) -> None:
    place, renew, failed = LocalPlace(tmp_path / "run"), LocalPlace.renew, threading.Event()

    def once(self: LocalPlace, name: str, data: bytes) -> None:
        if not failed.is_set():
            failed.set()
            raise error("there are no credentials any more")
        renew(self, name, data)

    monkeypatch.setattr(LocalPlace, "renew", once)
    held = take_lease(place)
    wait_until(lambda: latest_lease(place)[1]["beats"] >= 2, lambda: "no beat followed the one that failed")
    held.release()
    assert failed.is_set() and latest_lease(place)[1]["released"]


def test_a_lease_is_given_up_soon_though_the_store_is_gone(tmp_path, monkeypatch, quick) -> None:
    monkeypatch.setattr(lease, "FAREWELL", 0.1)
    place, gone, forever = LocalPlace(tmp_path / "run"), threading.Event(), threading.Event()
    held = take_lease(place)

    def hang(*_arguments: object) -> None:
        gone.set()
        forever.wait()
        raise OSError("gone")

    monkeypatch.setattr(place, "renew", hang)
    assert gone.wait(60)
    held.release()
    forever.set()
    held._thread.join()
    assert not latest_lease(place)[1]["released"]


@pytest.mark.parametrize("content", [b"", b"{", b"null", written_by(this_process()).replace(b"pid", b"bid")])
def test_a_lease_that_is_damaged_is_told_with_what_to_do(tmp_path, content) -> None:
    place = LocalPlace(tmp_path / "run")
    place.create("leases/000004.json", content)
    told = (
        rf"^{place.label}/leases/000004\.json is damaged; a running coordinator rewrites it within 5 s, .* still "
        r"damaged then, no coordinator is running: remove the file\.$"
    )
    for look in (latest_lease, take_lease):
        with pytest.raises(CheckpointError, match=told):
            look(place)
    place.remove("leases/000004.json")
    taken = take_lease(place)
    taken.check()
    taken.release()


def test_a_living_owner_mends_its_damaged_lease_and_is_not_disturbed(tmp_path, quick) -> None:
    place = LocalPlace(tmp_path / "run")
    held = take_lease(place)
    for damage in (lambda name: place.replace(name, b"{"), place.remove):
        damage("leases/000001.json")
        with contextlib.suppress(LeaseHeldError):
            held.check()
        deadline = time.monotonic() + 60
        while place.read("leases/000001.json") in (None, b"{") and time.monotonic() < deadline:
            time.sleep(BEAT / 4)
        held.check()
        assert latest_lease(place)[1]["owner"] == this_process()._asdict()
    held.release()
    assert latest_lease(place)[1]["released"]


def test_the_lease_in_force_is_the_one_of_highest_number_whatever_else_lies_there(tmp_path) -> None:
    place = LocalPlace(tmp_path / "run")
    for number in (9, 11, 10):
        place.create(f"leases/{number:06d}.json", written_by(this_process()._replace(pid=number), released=True))
    for name in ("notes.json", "000012.json.copy", "xxxxxx.json"):
        place.create(f"leases/{name}", b"")
    assert latest_lease(place)[0] == 11 and latest_lease(place)[1]["owner"]["pid"] == 11
    taken = take_lease(place)
    assert taken.number == 12
    taken.release()
