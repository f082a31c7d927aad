"""Laws of places: files appear whole or not at all, once at most where that is asked, and stay when acknowledged."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import pytest
import zarr

from dpdist.core.errors import CheckpointError
from dpdist.core.outputs import sole_writer
from dpdist.core.places import LocalPlace, Place, place_of
from tests.daemons.s3 import BUCKET, environment, moto_server, rgw_server
from tests.runs import clusters, mixture

PLACES = ["local", "moto", pytest.param("rgw", marks=pytest.mark.rgw)]
SERVERS = {"moto": moto_server, "rgw": rgw_server}


@pytest.fixture(scope="module", params=PLACES)
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


def test_what_was_never_written_is_not_there(place) -> None:
    assert not place.exists()
    assert place.read("file") is None
    assert place.names("") == place.names("folder") == []
    place.remove("file")
    assert place.files("folder") == place.files("") == {}


def test_files_read_back_as_they_were_written(place) -> None:
    assert place.create("one", b"")
    assert place.create("a/b/two", bytes(range(256)))
    place.replace("a/three", b"3")
    assert place.exists()
    assert (place.read("one"), place.read("a/b/two"), place.read("a/three")) == (b"", bytes(range(256)), b"3")
    assert place.read("a/b/tw") is None


def test_a_file_is_created_once_and_left_as_it_is(place) -> None:
    assert place.create("file", b"first")
    assert not place.create("file", b"second")
    assert not place.create("file", b"first")
    assert place.read("file") == b"first"
    place.replace("file", b"third")
    assert place.read("file") == b"third"
    place.remove("file")
    assert place.create("file", b"fourth")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_told(number, tmp_path, monkeypatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(OSError, match="the file system has no hard links"):
        place_of(tmp_path).create("one", b"1")
    with pytest.raises(CheckpointError, match=r"no hard links.* Choose a folder on another file system, then start"):
        mixture(max_laps=1).prepare(clusters(0), tmp_path / "run.zarr")
    with pytest.raises(OSError, match="has no hard links"):
        sole_writer(str(tmp_path / "rows.zarr")).__enter__()


@pytest.mark.parametrize("same", [False, True])
def test_of_eight_writers_at_once_one_is_told_that_it_created(url, same) -> None:
    places, barrier = [place_of(url) for _ in range(8)], threading.Barrier(8)

    def write(writer: int, turn: int) -> tuple[bool, bytes]:
        data = b"the same" if same else f"writer {writer}".encode()
        barrier.wait()
        return places[writer].create(f"commits/{turn}", data), data

    with ThreadPoolExecutor(8) as pool:
        for turn in range(4):
            told = list(pool.map(write, range(8), [turn] * 8))
            winners = [data for created, data in told if created]
            assert [places[0].read(f"commits/{turn}")] == winners


def test_a_reader_sees_the_old_file_or_the_new_one(place) -> None:
    size, done = 2**20, threading.Event()
    place.replace("file", bytes(size))

    def write() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(done.set)
            for turn in range(1, 21):
                place.replace("file", bytes([turn]) * size)

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        seen = place.read("file")
        assert seen == seen[:1] * size
    writer.join()
    assert place.read("file") == bytes([20]) * size


def test_names_are_those_directly_in_a_folder(place) -> None:
    for name in ("b", "a/1", "a/2", "a/deep/x", "ab/1", ".hidden/1", ".c"):
        place.create(name, b"x")
    assert place.names("") == ["a", "ab", "b"] and place.names(".hidden") == ["1"]
    assert place.names("a") == ["1", "2", "deep"]
    assert place.names("a/deep") == ["x"]


def test_removing_takes_a_folder_with_all_in_it_and_nothing_beside_it(place) -> None:
    for name in ("a/1", "a/deep/x", "ab/1", "b"):
        place.create(name, b"x")
    place.remove("a")
    assert place.names("") == ["ab", "b"]
    assert place.read("a/deep/x") is None
    place.remove("b")
    place.remove("")
    assert place.names("") == []


def test_removing_leaves_what_links_lead_to(tmp_path) -> None:
    other, place = LocalPlace(tmp_path / "other"), LocalPlace(tmp_path / "run")
    for name in ("x", "y/1", "y/deep/2"):
        other.create(name, b"x")
    for name in ("a/1", "a/b/2", "a/b/c/3", "d/4"):
        place.create(name, b"x")
    for link in ("a/link", "a/b/link", "a/b/c/link", "link"):
        (place.path / link).symlink_to(other.path)
    place.remove("a", "link", "d/4", "d/none", "none")
    assert place.names("") == ["d"] and place.names("d") == []
    assert sorted(other.files("")) == ["x", "y/1", "y/deep/2"]


def test_groups_read_back_to_the_bit(place) -> None:
    arrays = {
        "numbers": np.random.default_rng(0).normal(size=(300, 7)),
        "none": np.zeros((0, 3), np.float32),
        "bytes": np.arange(256, dtype=np.uint8),
    }

    def write(group: zarr.Group) -> None:
        for name, array in arrays.items():
            group.create_array(name, data=array)
        group.create_group("inner").create_array("zeros", data=np.zeros(3))
        group.attrs["lap"] = {"number": 3}

    found = place.group("generations/1", place.fill("generations/1", write))
    assert found.attrs["lap"] == {"number": 3}
    for name, array in arrays.items():
        assert (found[name].dtype, found[name][...].tobytes()) == (array.dtype, array.tobytes())
    assert found["inner/zeros"][...].tolist() == [0, 0, 0]
    assert place.names("") == ["generations"]
    assert place.names("generations") == ["1"]


def test_a_group_that_could_not_be_filled_leaves_the_old_one(place) -> None:
    def write(group: zarr.Group) -> None:
        group.create_array("new", data=np.ones(3))
        raise ZeroDivisionError

    digests = place.fill("g", lambda group: group.create_array("old", data=np.ones(3)))
    with pytest.raises(ZeroDivisionError):
        place.fill("g", write)
    assert sorted(place.group("g", digests).array_keys()) == ["old"]


def test_files_are_all_those_below_a_folder_but_those_being_written(place) -> None:
    for name in ("a/1", "a/deep/x", "a/.1.partial", "a/deep/.x", "ab/1", "b"):
        place.create(name, name.encode())
    assert place.files("a") == {"1": b"a/1", "deep/x": b"a/deep/x"}


def test_a_group_is_believed_only_if_every_file_is_what_was_written_and_no_other_is_there(place) -> None:
    def write(group: zarr.Group) -> None:
        group.attrs["elbo"] = 1.5
        group.create_group("inner").create_array("array", data=np.arange(3.0))

    digests, label = place.fill("g", write), f"{place.label}/g"
    files = place.files("g")
    assert files.keys() == digests.keys() and "inner/array/c/0" in files
    for name, data in files.items():
        for damaged in (data[:-1], data[:1] + bytes([data[1] ^ 1]) + data[2:], b"", data + b" "):
            place.replace(f"g/{name}", damaged)
            with pytest.raises(CheckpointError, match=rf"^{label}/{name} is damaged; restore it from a copy\.$"):
                place.group("g", digests)
        place.remove(f"g/{name}")
        with pytest.raises(CheckpointError, match=rf"^{label}/{name} is missing; restore"):
            place.group("g", digests)
        place.replace(f"g/{name}", data)
    place.create("g/inner/array/c/1", b"8")
    with pytest.raises(
        CheckpointError, match=rf"^{label}/inner/array/c/1 is not one of the files that dpdist wrote; remove it"
    ):
        place.group("g", digests)
    place.remove("g/inner/array/c/1")
    assert place.group("g", digests)["inner/array"][...].tolist() == [0, 1, 2]


# A writer that is killed


#: Forks of a process that has imported all this, and done nothing else: they start at once.
PROCESSES = multiprocessing.get_context("forkserver")


def write_rows(rows: np.ndarray, group: zarr.Group) -> None:
    for index, row in enumerate(rows):
        group.create_array(f"part{index}", data=row, chunks=(12_000,))


def commit_without_end(url: str, settings: dict[str, str], acknowledged: Connection) -> None:
    """Write a group and create the commit that names it, over and over, telling each number once acknowledged."""
    os.environ.update(settings)
    place, random_state = place_of(url), np.random.default_rng()
    number = max((int(name) for name in visible(place, "commits")), default=0)
    while True:
        number += 1
        folder, rows = f"generations/{number}-{uuid.uuid4().hex}", random_state.normal(size=(7, 20_000))
        digests = place.fill(folder, partial(write_rows, rows))
        commit = {"folder": folder, "digests": digests, "sha256": hashlib.sha256(rows.tobytes()).hexdigest()}
        if place.create(f"commits/{number}", json.dumps(commit).encode()):
            acknowledged.send(number)


def visible(place: Place, folder: str) -> list[str]:
    """Names in a folder without what a killed writer left aside."""
    return [name for name in place.names(folder) if not name.startswith(".")]


def killed_after(url: str, moment: Callable[[], float]) -> list[int]:
    """Numbers of the commits acknowledged before SIGKILL, some seconds after the first."""
    near, far = PROCESSES.Pipe(duplex=False)
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    writer = PROCESSES.Process(target=commit_without_end, args=(url, settings, far))
    writer.start()
    far.close()
    try:
        told = [near.recv()]
        time.sleep(moment())
    finally:
        writer.kill()
        writer.join()
    with contextlib.suppress(EOFError, OSError):
        while True:
            told.append(near.recv())
    return told


def test_commits_of_a_killed_writer_are_whole_and_none_acknowledged_is_lost(kind, url) -> None:
    draw = random.Random(0)
    place, acknowledged = place_of(url), []
    for _ in range(12 if kind == "rgw" else 3):
        acknowledged += killed_after(url, lambda: draw.uniform(0, 0.8))
    found = [int(name) for name in visible(place, "commits")]
    assert set(acknowledged) <= set(found)
    assert sorted(found) == list(range(1, len(found) + 1))
    for number in found:
        commit = json.loads(place.read(f"commits/{number}"))
        group = place.group(commit["folder"], commit["digests"])
        rows = b"".join(group[f"part{index}"][...].tobytes() for index in range(7))
        assert hashlib.sha256(rows).hexdigest() == commit["sha256"]
