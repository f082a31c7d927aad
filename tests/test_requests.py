"""Requests: what a submitted run is asked for counts for that run alone, and for no other at its place."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dpdist
from dpdist.cli import job_commands
from dpdist.cli.root import app
from dpdist.cli.terminal import OUTPUT
from dpdist.cluster import coordinator
from dpdist.cluster.coordinator import coordinate, prepared
from dpdist.cluster.kinds.local import LocalConfig
from dpdist.cluster.running import FAILED
from dpdist.cluster.submission import Job, JobState
from dpdist.cluster.submission.process import ProcessSubmitter
from dpdist.cluster.submitted import Address, End, Request, forget, latest_request, newest_request, record
from dpdist.core.places import place_of
from dpdist.execution import SerialBackend
from dpdist.runs.config import parse_config
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.opening import open_run
from tests.runs import bits, clusters, source_of

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_a_submitted_run_begun_anew_has_the_limits_of_the_request(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", clusters(2))
    settings = parse_config("fit", {"data": str(tmp_path / "rows.npy"), "max_laps": 1, "tolerance": 0.0}).tables
    request = Request("id", "fit", settings, max_laps=2)
    run = prepared(place_of(str(tmp_path / "run.zarr")), request, SerialBackend())
    assert run.limits.max_laps == 2
    run.close()


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Commands on a local cluster whose coordinators die before they have written anything; what each said."""
    submit = ProcessSubmitter.submit

    def start(self: ProcessSubmitter, command: Sequence[str], *rest: Any) -> Job:
        job = submit(self, ["/bin/true"], *rest)
        os.waitid(os.P_PID, int(job.identity.split(" ")[1]), os.WEXITED | os.WNOWAIT)
        return job

    monkeypatch.setattr(ProcessSubmitter, "submit", start)
    (tmp_path / "local.toml").write_text('type = "local"\nn_workers = 1\n')

    def call(*arguments: object) -> str:
        given = [*map(str, arguments), "--cluster", str(tmp_path / "local.toml")]
        found = CliRunner().invoke(app, given)
        return (found.output or str(found.exception)).replace("\n", " ")

    return call


@pytest.mark.parametrize("replaced", [False, True], ids=["new", "in the place of one that ended"])
def test_a_submitted_run_killed_before_it_wrote_anything_is_gone_on_with(
    replaced: bool, dying: Callable[..., str], tmp_path: Path
) -> None:
    path, rows = tmp_path / "run.zarr", clusters(2)
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "fit.toml").write_text(f'data = "{tmp_path / "rows.npy"}"\ntolerance = 0.0\n')
    if replaced:
        dpdist.SVA().prepare(source_of(rows), path).close()
        dpdist.resume(path, source_of(rows))
    dying("submit", tmp_path / "fit.toml", "--out", path, *["--overwrite"][: int(replaced)])
    for limits in (["--max-laps", 2], ["--max-time", 1e6], []):
        dying("resume", path, *limits)
    number, request = latest_request(place_of(str(path)))
    assert number == 4 and request.fresh and request.limits == {"max_laps": 2, "max_time": 1e6}
    run = prepared(place_of(str(path)), request, SerialBackend())
    assert (run.limits.max_laps, run.limits.max_time) == (2, 1e6)
    run.close()
    assert open_run(path).method == "memoized"
    dying("resume", path, "--max-laps", 3)
    assert latest_request(place_of(str(path)))[1].limits == {"max_laps": 3}, "the others are kept with the run by now"


def test_a_submitted_pass_killed_before_it_wrote_anything_takes_no_limits(
    dying: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "pass.zarr"
    np.save(tmp_path / "rows.npy", clusters(2))
    (tmp_path / "sva.toml").write_text(f'data = "{tmp_path / "rows.npy"}"\n')
    dying("submit", tmp_path / "sva.toml", "--out", path, "--command", "sva")
    assert "which ends after its last row; leave out max_laps" in dying("resume", path, "--max-laps", 2)
    with pytest.raises(dpdist.CheckpointError, match=r"no checkpoint yet; .* dpdist resume .* --cluster FILE"):
        open_run(path)


def test_a_request_that_could_not_be_written_is_in_nobodys_way(dying: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "run.zarr"
    np.save(tmp_path / "rows.npy", clusters(2))
    (tmp_path / "fit.toml").write_text(f'data = "{tmp_path / "rows.npy"}"\n')
    (path / "requests").mkdir(parents=True)
    dying("submit", tmp_path / "fit.toml", "--out", path)
    assert latest_request(place_of(str(path)))[0] == 1


def test_a_run_that_was_followed_to_its_end_is_not_told_again(
    dying: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told, ends = tmp_path / "run.zarr", list[str](), [None] * 3 + [End(0, "it has ended")]
    np.save(tmp_path / "rows.npy", clusters(2))
    (tmp_path / "fit.toml").write_text(f'data = "{tmp_path / "rows.npy"}"\n')
    dying("submit", tmp_path / "fit.toml", "--out", path)
    record(place_of(str(path)), 1, Address("tcp://127.0.0.1:1"))
    monkeypatch.setattr(LocalConfig, "watch", lambda self, address: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(job_commands, "follow", lambda client, console, run: told.append(run) or "the end")
    losses = logging.getLogger("distributed.client")
    monkeypatch.setattr(losses, "level", logging.ERROR)
    monkeypatch.setattr(job_commands, "_ending", lambda place: ends.pop(0))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert "it has ended" in called("attach", path) and len(told) == 1 and not ends
    assert losses.level == logging.CRITICAL, "Dask says that the scheduler is gone, which is no error here"


class Here(SerialBackend):
    """Computes in this process, and says that it listens."""

    client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://127.0.0.1:1"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinators compute in this process instead of on a cluster."""
    monkeypatch.setattr(LocalConfig, "launch", lambda self: Here())
    monkeypatch.setattr(coordinator, "SchedulerOutlet", lambda client: SimpleNamespace(send=lambda event: True))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows, others, held-out ones of each, and settings that name the former."""
    monkeypatch.chdir(tmp_path)
    for name, rows in {"rows": clusters(2), "others": clusters(3)[:, :2], "held": clusters(2) + 3}.items():
        np.save(f"{name}.npy", rows)
    Path("fit.toml").write_text('data = "rows.npy"\nholdout = "held.npy"\ntolerance = 0.0\nmax_laps = 2\n')
    Path("wrong.toml").write_text('data = "nowhere.npy"\n')
    return tmp_path


def called(*arguments: object) -> str:
    """What a command of the command line says, in this process."""
    found = CliRunner().invoke(app, [*map(str, arguments)])
    return (found.output or str(found.exception)).replace("\n", " ")


def submitted(dying: Callable[..., str], *arguments: object) -> int:
    """What becomes of a request, coordinated here."""
    dying(*arguments)
    run = arguments[arguments.index("--out") + 1] if "--out" in arguments else arguments[1]
    return coordinate(str(run), OUTPUT)


FIT = ("submit", "fit.toml", "--out", "run.zarr")


def test_a_run_in_the_place_of_a_submitted_one_is_gone_on_with_as_it_was_asked(folder, dying, here) -> None:
    assert submitted(dying, *FIT) == 0
    asked = ("others.npy", "--holdout", "others.npy", "--tolerance", "0", "--serial", "--max-laps")
    called("fit", *asked, 1, "--out", "run.zarr", "--overwrite")
    assert newest_request(place_of("run.zarr")) == 0
    assert "was not submitted" in called("attach", "run.zarr")
    assert submitted(dying, "resume", "run.zarr", "--max-laps", 2) == 0
    called("fit", *asked, 2, "--out", "whole.zarr")
    scores = [dpdist.load(path).history_["holdout_score"].values for path in ("run.zarr", "whole.zarr")]
    np.testing.assert_array_equal(*scores)
    assert bits(dpdist.load("run.zarr")) == bits(dpdist.load("whole.zarr"))


def test_a_run_that_is_being_prepared_in_the_place_of_a_submitted_one_is_its_own(
    folder, dying, here, monkeypatch
) -> None:
    assert submitted(dying, *FIT) == 0
    asked = ("others.npy", "--tolerance", "0", "--serial", "--max-laps", 2, "--overwrite", "--out")
    with monkeypatch.context() as broken:
        broken.setattr(MemoizedMixture, "begin", lambda *given: 1 / 0)
        called("fit", *asked, "run.zarr")
    assert newest_request(place_of("run.zarr")) == 0
    assert submitted(dying, "resume", "run.zarr") == 0
    called("fit", *asked, "whole.zarr")
    assert bits(dpdist.load("run.zarr")) == bits(dpdist.load("whole.zarr"))


@pytest.mark.parametrize("between", [False, True], ids=["at once", "after a resume in the foreground"])
@pytest.mark.parametrize("command", ["fit", "sva"])
def test_a_request_that_could_not_begin_leaves_the_run_that_is_there(command, between, folder, dying, here) -> None:
    assert submitted(dying, *FIT) == 0
    wrong = ("submit", "wrong.toml", "--out", "run.zarr", "--overwrite", "--command", command)
    assert submitted(dying, *wrong) == FAILED
    if between:
        called("resume", "run.zarr", "--max-laps", 3, "--serial")
    assert "has ended (stopped: max_laps reached); give --max-laps" in dying("resume", "run.zarr")
    assert submitted(dying, "resume", "run.zarr", "--max-laps", 4) == 0
    assert list(dpdist.load("run.zarr").history_["lap"]) == [1, 2, 3, 4]


def test_a_request_that_was_killed_is_for_the_run_that_it_asks_for(folder, dying, here) -> None:
    """Also where somebody went on in the foreground with the run that it is to replace."""
    assert submitted(dying, *FIT) == 0
    Path("sva.toml").write_text('data = "rows.npy"\n')
    dying("submit", "sva.toml", "--out", "run.zarr", "--overwrite", "--command", "sva")  # its coordinator is killed
    called("resume", "run.zarr", "--max-laps", 3, "--serial")
    assert open_run("run.zarr").method == "memoized"
    assert submitted(dying, "resume", "run.zarr") == 0
    assert open_run("run.zarr").method == "sequential"
    assert "has ended (all rows were passed); add more data with: dpdist extend" in dying("resume", "run.zarr")


def test_an_end_is_believed_without_the_record_of_its_job(folder, dying, here) -> None:
    """As where the command was killed that was to record it."""
    dying(*FIT)
    place = place_of("run.zarr")
    forget(place, 1, Job)
    assert coordinate("run.zarr", OUTPUT) == 0
    assert "clusters, ELBO" in called("attach", "run.zarr", "--wait", 0.1)
    assert "has no job to cancel" in called("cancel", "run.zarr")


@pytest.mark.parametrize("recorded", [False, True], ids=["without a record", "after the job that is recorded"])
def test_whoever_goes_on_with_a_submitted_run_is_told_to_end(recorded, folder, dying) -> None:
    dying(*FIT)
    if not recorded:
        forget(place_of("run.zarr"), 1, Job)
    record(place_of("run.zarr"), 1, End(143, "stopped on request"))
    line = "import sys, time; from dpdist.core.lease import take_lease; from dpdist.core.places import place_of;"
    waits = [
        sys.executable,
        "-c",
        f"{line}take_lease(place_of('run.zarr')); print('held', flush=True); time.sleep(600)",
    ]
    with subprocess.Popen(waits, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            assert (
                f"process {process.pid}" in (told := called("status", "run.zarr")) and "stopped on request" not in told
            )
            assert "has stopped; continue with" in called("cancel", "run.zarr")
            process.wait(30)
        finally:
            process.kill()


def test_who_attaches_is_told_of_the_end_that_a_run_came_to_in_the_foreground(folder, dying, here) -> None:
    assert submitted(dying, *FIT) == 0
    record(place_of("run.zarr"), 1, End(143, "stopped on request"))
    called("resume", "run.zarr", "--max-laps", 3, "--serial")
    assert "stopped: max_laps reached" in called("attach", "run.zarr", "--wait", 0.1)


@pytest.mark.parametrize("status", [0, FAILED, 143])
def test_who_attaches_exits_as_the_run_did(folder, dying, status) -> None:
    dying("submit", "wrong.toml", "--out", "run.zarr")
    record(place_of("run.zarr"), 1, End(status, "that was it"))
    found = CliRunner().invoke(app, ["attach", "run.zarr", "--wait", "0.1"])
    assert (found.exit_code, found.output) == (status, "that was it\n")


def test_a_copy_has_no_job_but_its_own(folder, dying, here, monkeypatch) -> None:
    dying(*FIT)
    shutil.copytree("run.zarr", "copy.zarr")
    Path("link.zarr").symlink_to("run.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessSubmitter, "state", lambda self, job: (JobState.WAITING, "as ever"))
        patch.setattr(ProcessSubmitter, "cancel", lambda self, job: pytest.fail("it is the job of another run"))
        for command in ("cancel", "attach"):
            told = called(command, "copy.zarr", "--wait", 0.1)
            assert re.search(rf"copy.zarr is a copy of \S+/run.zarr and .*: dpdist {command} \S+/run.zarr$", told)
        assert "copy of" in (told := called("status", "copy.zarr")) and " process " not in told
        assert "copy of" not in (told := called("status", "link.zarr")) and "as ever" in told
        assert "copy.zarr submitted (process" in dying("resume", "copy.zarr")
        assert "is already submitted and will start" in dying("resume", "copy.zarr")
    assert coordinate("copy.zarr", OUTPUT) == 0 and len(dpdist.load("copy.zarr").history_["lap"]) == 2
    assert "copy of" not in called("status", "copy.zarr")
    Path("run.zarr").rename("moved.zarr")
    assert "copy of" not in called("status", "moved.zarr")


def test_a_run_that_was_not_submitted_is_not_to_be_cancelled(folder, dying, monkeypatch) -> None:
    called("fit", "rows.npy", "--out", "run.zarr", "--serial", "--max-laps", 1)
    monkeypatch.setattr(job_commands, "lives", lambda *given: True)
    assert "stop that process first" in dying("resume", "run.zarr", "--max-laps", 2)


@pytest.mark.parametrize("name", ["my run.zarr", "läufe.zarr", ".hidden", "x" * 90, "--", "日本"])
def test_runs_are_submitted_whatever_they_are_called(name: str, folder, dying, here) -> None:
    assert submitted(dying, "submit", "fit.toml", f"--out={folder / name}", "--out", folder / name) == 0
    assert dpdist.load(folder / name).n_components_ >= 1


def test_a_submission_that_fails_leaves_the_name_free(folder, dying, monkeypatch) -> None:
    def refused(self, *given: object) -> None:
        raise dpdist.InputError("the queue is closed.")

    with monkeypatch.context() as closed:
        closed.setattr(ProcessSubmitter, "submit", refused)
        assert "the queue is closed" in called(*FIT, "--cluster", "local.toml")
    called("fit", "rows.npy", "--out", "run.zarr", "--serial", "--max-laps", 1)
    assert dpdist.load("run.zarr").n_components_ >= 1


def test_damaged_records_are_told_with_what_helps(folder, dying, here) -> None:
    assert submitted(dying, *FIT) == 0
    for name, remedy in (
        ("jobs/000001-end.json", "remove it; it only describes a job"),
        ("requests/000001.json", "then continue with: dpdist resume"),
    ):
        path = Path("run.zarr", name)
        path.write_bytes(path.read_bytes()[:-5])
        assert "is damaged" in called("status", "run.zarr") and remedy in called("status", "run.zarr")
        path.unlink()
    assert submitted(dying, "resume", "run.zarr", "--max-laps", 3) == 0
    assert list(dpdist.load("run.zarr").history_["lap"]) == [1, 2, 3]


def test_status_breaks_no_path(folder, dying) -> None:
    dying(*FIT)
    lines = CliRunner().invoke(app, ["status", str(folder / "run.zarr")]).output.splitlines()
    (log,) = [line for line in lines if line.startswith("log ")]
    assert Path(log.split()[-1]).is_file() and len(log) > 80


@pytest.mark.parametrize("remote", [False, True], ids=["here", "submitted"])
def test_rows_held_out_may_move_too(remote: bool, folder, dying, here) -> None:
    assert submitted(dying, *FIT) == 0
    for name in ("rows", "held"):
        Path(f"{name}.npy").rename(f"moved-{name}.npy")
    rows, held = ("--data", "moved-rows.npy"), ("--holdout", "moved-held.npy")
    if remote:
        assert submitted(dying, "resume", "run.zarr", *rows, "--max-laps", 3) == FAILED
        assert submitted(dying, "resume", "run.zarr", *rows, *held, "--max-laps", 3) == 0
    else:
        said = called("resume", "run.zarr", *rows, "--max-laps", 3, "--serial")
        assert "held-out rows: there is no file at" in said
        called("resume", "run.zarr", *rows, *held, "--max-laps", 3, "--serial")
    found = dpdist.load("run.zarr").history_["holdout_score"].values
    assert len(found) == 3 and np.isfinite(found).all()
