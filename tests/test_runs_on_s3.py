"""Whole runs whose rows and checkpoints lie in an object store: the bits of local disk, whatever is killed when."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import dpdist
import dpdist.runs.limits
import dpdist.runs.opening
from dpdist.cli import root as cli
from dpdist.core.places import place_of
from dpdist.core.places.zarr_store import zarr_store
from dpdist.storage.checkpoint import Generation, RunStore
from dpdist.storage.commits import commits, read_commit
from dpdist.storage.generations import KEEP
from tests.daemons.s3 import BUCKET, environment, moto_server, rgw_server
from tests.runs import clusters, is_finished, mixture

SERVERS = {"moto": moto_server, "rgw": rgw_server}
#: Forks of a process that has imported all this, and done nothing else: they start at once.
PROCESSES = multiprocessing.get_context("forkserver")
ROWS, LAPS = clusters(0, rows=600), 3


@pytest.fixture(scope="module", params=["moto", pytest.param("rgw", marks=pytest.mark.rgw)])
def server(request) -> Iterator[str]:
    """The kind of server, running, the environment leading there."""
    with SERVERS[request.param]() as settings, environment(settings):
        yield request.param


@pytest.fixture(scope="module")
def rows(server) -> str:
    """The rows in the object store."""
    url = f"s3://{BUCKET}/rows.zarr"
    zarr.create_array(zarr_store(url, read_only=False), data=ROWS, chunks=(150, 3))
    return url


@pytest.fixture(scope="module")
def local_rows(tmp_path_factory) -> str:
    """The same rows on disk."""
    path = tmp_path_factory.mktemp("rows") / "rows.zarr"
    zarr.create_array(path, data=ROWS, chunks=(150, 3))
    return str(path)


@pytest.fixture
def run(server) -> str:
    """A URL at which nothing is yet."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/run.zarr"


def fit(laps: int = LAPS) -> dpdist.DPMixture:
    return mixture(max_laps=laps, tolerance=0.0)


def bits(path: Any) -> tuple[Any, ...]:
    """What a fit found, to the bit."""
    store = RunStore.open(path)
    found, laps = store.fitted(), store.history().laps
    arrays = (found.ids, found.total.stats, found.total.entropy)
    return (*(array.tobytes() for array in arrays), found.elbo, found.stop, [row.elbo for row in laps])


def pass_bits(path: Any) -> tuple[Any, ...]:
    """What a pass found, to the bit."""
    growth = RunStore.open(path).fitted().total
    return growth.table.tobytes(), growth.ids.tobytes(), growth.overlap.tobytes(), growth.rows


@pytest.fixture(scope="module")
def undisturbed(local_rows, tmp_path_factory) -> tuple[Any, ...]:
    """The bits of the fit on local disk."""
    path = tmp_path_factory.mktemp("undisturbed") / "run.zarr"
    for _ in fit().iter_fit(local_rows, checkpoint_path=path):
        pass
    return bits(path)


def check_whole(path: str) -> int:
    """Read every file that the commits of a run name, whose digests tell damage; the number of the last commit."""
    place = place_of(path)
    found = [read_commit(place, number) for number in commits(place)]
    for name, digests in {name: files for commit in found for name, files in commit["digests"].items()}.items():
        place.group(name, digests)
    RunStore.open(path).state()
    return int(found[-1]["number"])


def leftovers(path: str) -> set[str]:
    """What no commit names."""
    place = place_of(path)
    found = [read_commit(place, number) for number in commits(place)]
    named = {name for commit in found for name in (commit["problem"], commit["generation"], *commit["objects"])}
    folders = ("problems", "generations", "objects")
    return {f"{folder}/{name}" for folder in folders for name in place.names(folder)} - named


def test_a_fit_on_an_object_store_ends_with_the_bits_of_one_on_disk(rows, run, undisturbed) -> None:
    for _ in fit().iter_fit(rows, checkpoint_path=run):
        pass
    assert bits(run) == undisturbed
    assert check_whole(run) >= 2 and leftovers(run) == set()
    assert len(commits(place_of(run))) == KEEP


def test_a_fit_interrupted_within_a_lap_resumes_to_the_same_bits(rows, run, undisturbed) -> None:
    begun = fit().prepare(rows, run)
    begun.checkpoint_seconds = 0.0
    for count, _ in enumerate(begun):
        if count == 6:
            break
    assert RunStore.open(run).state()[0].visited not in (0, 4)
    assert dpdist.resume(run, rows, max_laps=LAPS).elbo_ == undisturbed[3]
    assert bits(run) == undisturbed and leftovers(run) == set()


def test_a_pass_on_an_object_store_ends_with_the_bits_of_one_on_disk(rows, run, local_rows, tmp_path) -> None:
    model = dpdist.SVA(random_state=0, round_partitions=2)
    for given, path in ((local_rows, tmp_path / "model.zarr"), (rows, run)):
        for _ in model.iter_fit(given, checkpoint_path=path):
            pass
    assert pass_bits(run) == pass_bits(tmp_path / "model.zarr")
    broken = f"{run}.broken"
    for _, info in model.iter_fit(rows, checkpoint_path=broken, checkpoint_seconds=0.0):
        if info.lap == 2:
            break
    assert not is_finished(broken)
    dpdist.resume(broken, rows)
    assert pass_bits(broken) == pass_bits(run)


def test_what_was_fitted_is_loaded_shown_and_predicts(rows, run, tmp_path, monkeypatch, capsys) -> None:
    model = fit()
    for _ in model.iter_fit(rows, checkpoint_path=run):
        pass
    np.testing.assert_array_equal(dpdist.load(run).predict(ROWS), model.predict(ROWS))
    assert f"{model.elbo_:.4f}" in printed(monkeypatch, capsys, "show", run)
    printed(monkeypatch, capsys, "predict", run, rows, "--out", tmp_path / "labels.zarr", "--serial")
    labels = xr.open_zarr(tmp_path / "labels.zarr", consolidated=False)["label"].values
    np.testing.assert_array_equal(labels, model.predict(ROWS))


def printed(monkeypatch, capsys, *arguments: object) -> str:
    """What a command prints, run in this process."""
    monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    found = capsys.readouterr()
    assert not ended.value.code, found.err
    return found.out


@pytest.mark.parametrize("where", ["s3", "local"])
def test_an_existing_run_is_readable_until_the_one_that_replaces_it_commits(
    where, rows, run, tmp_path, undisturbed
) -> None:
    path = run if where == "s3" else str(tmp_path / "run.zarr")
    for _ in fit().iter_fit(rows, checkpoint_path=path):
        pass
    with pytest.raises(dpdist.OutputExistsError, match="overwrite=True"):
        fit().prepare(rows, path)
    store = RunStore.open(path)
    other = mixture(max_laps=2, tolerance=0.0, random_state=5)
    seen: list[bool] = []

    class Watched(RunStore):
        def commit(self, *arguments: Any) -> None:
            seen.append(bits(path) == undisturbed)
            super().commit(*arguments)

    posed = dpdist.runs.methods.mixture.MemoizedMixture().begin(
        other.spec(), dpdist.data.as_source(rows), dpdist.execution.SerialBackend()
    )
    replacing = Watched.create(path, posed[0], {}, {"made": "up"}, overwrite=True)
    replacing.put_batch_summaries("objects/000000-aa", posed[1].batch_summaries[:1])
    assert bits(path) == undisturbed and store.fitted().elbo == undisturbed[3]
    replacing.commit(Generation(None, None, dpdist.storage.history.History()))
    assert seen == [True] and RunStore.open(path).fitted() is None
    replacing.release()


@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_generations_are_kept_as_were_asked_for(rows, run, keep) -> None:
    begun = fit(laps=1).prepare(rows, run)
    begun.store.keep, begun.checkpoint_seconds = keep, 0.0
    batches = sum(1 for _ in begun)
    assert commits(place_of(run)) == list(range(batches + 2 - keep, batches + 2))
    assert len(place_of(run).names("generations")) == keep
    assert check_whole(run) == batches + 1 and leftovers(run) == set()


# A run that is killed


def fit_aloud(settings: dict[str, str], pipe: Connection, rows: str, run: str) -> None:
    """Begin a fit or go on with one, and tell each commit once it is acknowledged."""
    os.environ.update(settings)
    commit = RunStore._commit

    def aloud(self: RunStore, number: int, attributes: dict[str, Any]) -> None:
        commit(self, number, attributes)
        pipe.send(self.number)

    RunStore._commit = aloud
    source, backend = dpdist.data.as_source(rows), dpdist.execution.SerialBackend()
    if commits(place_of(run)):
        work = dpdist.runs.opening.resumed(RunStore.open(run), source, backend, dpdist.runs.limits.Limits(LAPS))
    else:
        work = fit().prepare(source, run)
    work.checkpoint_seconds = 0.0
    for _ in work:
        pass


def killed_after(seconds: float, rows: str, run: str) -> list[int]:
    """The commits acknowledged by a fit until it was killed, some seconds after its first; none if it had ended."""
    near, far = PROCESSES.Pipe(duplex=False)
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    process = PROCESSES.Process(target=fit_aloud, args=(settings, far, rows, run))
    process.start()
    far.close()
    told = []
    try:
        told.append(near.recv())
        time.sleep(seconds)
    except EOFError:
        process.join()
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    with contextlib.suppress(EOFError, OSError):
        while True:
            told.append(near.recv())
    return told


@pytest.mark.slow
def test_a_killed_fit_loses_no_acknowledged_commit_and_ends_with_the_same_bits(server, rows, run, undisturbed) -> None:
    draw = random.Random(1)
    for turn in range(12 if server == "rgw" else 3):
        path = f"{run}.{turn // 2}"  # most are killed twice
        told = killed_after(draw.uniform(0, 2.0), rows, path)
        assert check_whole(path) >= max(told, default=LAPS)
        if turn % 2 or turn == 2:
            dpdist.resume(path, rows, max_laps=LAPS)
            assert bits(path) == undisturbed
            assert leftovers(path) == set()
            assert len(commits(place_of(path))) == KEEP
