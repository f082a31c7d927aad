"""A run submitted to a real SLURM goes on through whatever SLURM does to it, and ends with the bits of serial."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from dpdist.cli.root import app
from dpdist.cluster.certificates import make_certificates
from dpdist.cluster.submission import Job
from dpdist.cluster.submitted import latest_request, recorded
from dpdist.core.places import place_of
from dpdist.storage.checkpoint import RunStore
from tests.daemons.slurm import SlurmCluster, slurm_cluster
from tests.runs import clusters, digest
from tests.waiting import wait_until

LAPS = 16
SETTINGS = f"""
data = "rows.zarr"
tolerance = 0
max_laps = {LAPS}

[schedule]
batches = 4
"""
#: The coordinator and one worker fill a node's memory.
CLUSTER = """
type = "slurm"
jobs = 2

[job]
cores = 1
memory = "3GB"
walltime = "01:00:00"
interface = "lo"
local_directory = "scratch"
log_directory = "workers"

[scheduler_options]
host = "127.0.0.1"

[security]
certificates = "certificates"
"""


def told(*command: str) -> str:
    """What a command of dpdist's prints."""
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def wait(ready: Callable[[], bool], seen: Callable[[], object]) -> None:
    wait_until(ready, seen, pause=0.3)


def laps_in(log: str) -> list[int]:
    return [int(found) for found in re.findall(r"^lap +(\d+) ", log, re.MULTILINE)]


@dataclass
class Run:
    """A submitted run, and what it was like each time its coordinator ended.

    Attributes
    ----------
    ends : length of the log, and the lap that the last checkpoint is in
    """

    slurm: SlurmCluster
    path: str
    ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def job(self) -> str:
        """Number of the coordinator's job."""
        place = place_of(self.path)
        job = recorded(place, latest_request(place)[0], Job)
        assert job is not None
        return job.identity

    def about_job(self) -> dict[str, str]:
        return self.slurm.job(self.job)

    def queue(self) -> dict[str, str]:
        """State by number of the jobs that have not ended."""
        active = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
        return {number: state for number, state in self.slurm.jobs().items() if state in active}

    def workers(self) -> list[str]:
        """Numbers of the workers' jobs that run."""
        return [number for number, state in self.queue().items() if state == "RUNNING" and number != self.job]

    def status(self) -> dict[str, Any]:
        return dict(json.loads(told("status", self.path, "--json")))

    def log(self) -> str:
        return "".join(path.read_text() for path in Path(f"{self.path}.logs").glob("*.log"))

    def laps(self) -> list[int]:
        """Laps that the log tells of."""
        return laps_in(self.log())

    def goes_on(self) -> None:
        """Wait for the end of another lap."""
        before = len(self.laps())
        wait(lambda: len(self.laps()) > before, self.log)

    def note_end(self) -> None:
        """Note what a coordinator that ended leaves."""
        self.ends.append((len(self.log()), RunStore.open(self.path).state()[0].lap))

    def laps_of_lives(self) -> Iterator[tuple[int, list[int]]]:
        """The lap that each coordinator went on with, and those it told of."""
        log, begun = self.log(), [(0, 1), *self.ends]
        for (start, lap), (end, _) in zip(begun, [*self.ends, (len(log), 0)], strict=True):
            yield lap, laps_in(log[start:end])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Data and settings in the current folder, and two nodes; nothing is left of them afterwards."""
    rows = clusters(7, rows=12_000, columns=6, groups=9, spread=2.0)
    monkeypatch.chdir(tmp_path)
    zarr.create_array("rows.zarr", shape=rows.shape, dtype="float64", chunks=(1000, 6))[...] = rows
    make_certificates(tmp_path / "certificates")
    Path("run.toml").write_text(SETTINGS)
    Path("slurm.toml").write_text(CLUSTER)
    with slurm_cluster(tmp_path) as slurm:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        yield Run(slurm, str(tmp_path / "run.zarr"))
        slurm.run("scancel", "--user", getpass.getuser())


@pytest.mark.slow
def test_a_run_goes_on_through_everything_and_ends_with_the_bits_of_serial(run: Run) -> None:
    told("submit", "run.toml", "--cluster", "slurm.toml", "--out", run.path, "--checkpoint-seconds", "0.5")
    run.goes_on()
    lose_a_worker(run)
    run.goes_on()
    come_near_the_walltime(run)
    run.goes_on()
    lose_the_coordinators_node(run)
    run.goes_on()
    cancel(run)
    told("resume", run.path, "--cluster", "slurm.toml")
    told("fit", "--config", "run.toml", "--out", "serial.zarr", "--serial")
    wait(lambda: run.about_job()["JobState"] == "COMPLETED", run.log)
    found = run.status()
    assert (found["state"], found["queue"], found["laps"]) == ("ended", "COMPLETED, exit 0", LAPS)
    assert found["stop_reason"] == "stopped: max_laps reached"
    assert found["ended"].startswith("status 0 at ")
    wait(lambda: not run.queue(), run.queue)
    for lap, laps in run.laps_of_lives():
        assert laps == list(range(lap, lap + len(laps)))
    assert_same_bits(run.path, "serial.zarr")


def lose_a_worker(run: Run) -> None:
    """A worker's job is cancelled."""
    found = run.status()
    assert (found["state"], found["queue"], found["cluster"]) == ("running", "RUNNING", "slurm")
    wait(lambda: len(run.workers()) == 2, run.queue)
    run.slurm.run("scancel", run.workers()[0])


def come_near_the_walltime(run: Run) -> None:
    """SLURM tells the coordinator, as it does itself some time before the walltime; it only looks once a minute."""
    run.slurm.run("scancel", "--signal=USR1", "--batch", run.job)
    wait(lambda: run.about_job()["Restarts"] == "1", run.log)
    run.note_end()
    found = run.status()
    assert found["state"] in ("waiting", "running") and "ended" not in found


def lose_the_coordinators_node(run: Run) -> None:
    """The node dies with the coordinator, whose lease is left, and a worker; it comes back later."""
    node = run.about_job()["BatchHost"]
    with_it = [number for number in run.workers() if run.slurm.job(number)["NodeList"] == node]
    run.slurm.node_down(node)
    run.note_end()
    found = run.status()
    assert found["state"] == "waiting" and "ended" not in found
    assert "coordinator" in found, "its lease should be there still"
    wait(lambda: run.about_job()["JobState"] == "RUNNING", run.about_job)
    assert run.about_job()["BatchHost"] != node
    assert run.about_job()["Restarts"] == "2"
    run.slurm.node_up(node)
    for number in with_it:
        assert run.slurm.job(number)["JobState"] == "NODE_FAIL", (
            "started again, it would look for a scheduler that is gone"
        )


def cancel(run: Run) -> None:
    """The coordinator writes a last checkpoint, takes its workers with it, and does not come back."""
    told("cancel", run.path, "--wait", "150")
    run.note_end()
    found = run.status()
    assert (found["state"], found["queue"]) == ("ended", "FAILED, exit 143")
    assert found["ended"].startswith("status 143 at ") and "coordinator" not in found
    assert found["stop_reason"] is None
    assert run.about_job()["Restarts"] == "2"
    wait(lambda: not run.queue(), run.queue)


def assert_same_bits(path: str, expected: str) -> None:
    """Statistics, entropies, ids, ELBO, leaves, laps and proposals; only the seconds may differ."""
    ours, theirs = RunStore.open(path), RunStore.open(expected)
    assert digest(ours.state()[0]) == digest(theirs.state()[0])
    found, wanted = ours.fitted(), theirs.fitted()
    assert found is not None and wanted is not None
    for name in ("stats", "entropy"):
        np.testing.assert_array_equal(getattr(found.total, name), getattr(wanted.total, name))
    np.testing.assert_array_equal(found.ids, wanted.ids)
    assert (found.elbo, found.rows, found.total.base) == (wanted.elbo, wanted.rows, wanted.total.base)
    laps = ours.history().columns(), theirs.history().columns()
    for name in laps[1].keys() - {"seconds"}:
        np.testing.assert_array_equal(laps[0][name], laps[1][name])
