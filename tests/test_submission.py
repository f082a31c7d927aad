"""Submitted coordinators outlive their shell, end with a last word, and go on by themselves where they should.

A stand-in keeps the coordinator's side of the contract: it counts laps in a file, goes on where it stopped, and ends on
signals as :mod:`dpdist.cluster.submission.base` says.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dpdist.cluster.kinds import CLUSTERS, ClusterConfig, parse_cluster
from dpdist.cluster.kinds.slurm import JobConfig
from dpdist.cluster.submission import SUBMITTERS, Job, JobState, Submitter, submitter_for, submitter_of
from dpdist.cluster.submission.process import ProcessSubmitter
from dpdist.cluster.submission.slurm import SlurmSubmitter, job_script
from dpdist.core.errors import InputError
from tests.daemons.slurm import SlurmCluster, slurm_cluster
from tests.waiting import wait_until

COORDINATOR = """
import os, signal, sys, time
from pathlib import Path

folder, asked = Path(sys.argv[1]), []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: asked.append(number))
laps = folder / "laps"
count = int(laps.read_text()) if laps.exists() else 0
print(f"starts after {count} laps on {os.environ.get('SLURMD_NODENAME')}", flush=True)
while not asked:
    if (folder / "end").exists():
        sys.exit(int((folder / "end").read_text()))
    count += 1
    (folder / "aside").write_text(str(count))
    (folder / "aside").rename(laps)
    time.sleep(0.02)
ended = signal.SIGTERM in asked
print(f"last word after {count} laps on {'SIGTERM' if ended else 'SIGUSR1'}", flush=True)
sys.exit(143 if ended else 75)
"""
SECRET = "wJalrXUtnFEMI-K7MDENG"


@dataclass(frozen=True)
class Run:
    """One stand-in run: its folder, its job and what it told."""

    folder: Path
    submitter: Submitter
    job: Job

    @classmethod
    def submitted(cls, submitter: Submitter, folder: Path) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, submitter, submitter.submit(command(folder), "run", folder / "jobs"))

    def state(self) -> JobState:
        return self.submitter.state(self.job)[0]

    def words(self) -> str:
        return self.submitter.state(self.job)[1]

    def cancel(self) -> None:
        self.submitter.cancel(self.job)

    def end(self, status: int = 0) -> None:
        (self.folder / "aside-end").write_text(str(status))
        (self.folder / "aside-end").rename(self.folder / "end")

    def laps(self) -> int:
        return int((self.folder / "laps").read_text()) if (self.folder / "laps").exists() else 0

    def told(self) -> list[str]:
        return Path(self.job.log).read_text().splitlines()

    def wait_for_laps(self, more: int = 1) -> None:
        enough = self.laps() + more
        wait(lambda: self.laps() >= enough)

    def wait_for_end(self) -> str:
        wait(lambda: self.state() is JobState.ENDED)
        return self.words()


def command(folder: Path) -> list[str]:
    """The coordinator's command line for a run."""
    (folder / "coordinator.py").write_text(COORDINATOR)
    return [sys.executable, str(folder / "coordinator.py"), str(folder)]


def wait(ready: Callable[[], bool]) -> None:
    wait_until(ready, lambda: "see the job's log")


# --- processes


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Run]:
    run = Run.submitted(ProcessSubmitter(), tmp_path / "run")
    yield run
    run.cancel()
    wait(lambda: run.state() is JobState.ENDED)


def test_a_process_is_cancelled_with_sigterm_and_has_a_last_word(process: Run) -> None:
    process.wait_for_laps()
    assert process.state() is JobState.RUNNING
    process.cancel()
    assert process.wait_for_end() in ("exit 143", "the process no longer exists")
    assert process.told() == ["starts after 0 laps on None", f"last word after {process.laps()} laps on SIGTERM"]
    process.cancel()


def test_a_process_outlives_whoever_submitted_it(tmp_path: Path) -> None:
    line = (
        "import json, sys; from pathlib import Path; from dpdist.cluster.submission.process import ProcessSubmitter;"
        "job = ProcessSubmitter().submit(sys.argv[2:], 'run', Path(sys.argv[1]));"
        "print(json.dumps(vars(job)))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", line, str(tmp_path / "jobs"), *command(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        job = Job(**json.loads(shell.stdout.read()))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGHUP)
    run = Run(tmp_path, submitter_of(job), job)
    try:
        run.wait_for_laps(3)
        number = int(job.identity.split()[1])
        assert os.getsid(number) == number
        assert Path(f"/proc/{number}/fd/0").readlink() == Path(os.devnull)
    finally:
        run.cancel()
    assert run.wait_for_end()


def test_a_process_that_took_over_the_id_is_not_the_run(process: Run) -> None:
    host, number, start = process.job.identity.split()
    other = replace(process.job, identity=f"{host} {number} {int(start) - 1}")
    assert process.submitter.state(other)[0] is JobState.ENDED
    process.submitter.cancel(other)
    process.wait_for_laps(3)
    assert process.state() is JobState.RUNNING


def test_a_process_of_another_host_is_left_to_that_host(process: Run) -> None:
    other = replace(process.job, identity=process.job.identity.replace(socket.gethostname(), "elsewhere"))
    assert process.submitter.state(other) == (JobState.UNKNOWN, "runs on elsewhere: check it there")
    with pytest.raises(InputError, match="process on elsewhere, but this is"):
        process.submitter.cancel(other)
    process.wait_for_laps()


def test_logs_are_private_and_appended_to(process: Run, tmp_path: Path) -> None:
    process.wait_for_laps()
    process.cancel()
    process.wait_for_end()
    before = process.told()
    Path(process.job.log).chmod(0o644)
    again = Run.submitted(process.submitter, process.folder)
    try:
        again.wait_for_laps()
        assert stat.S_IMODE(Path(again.job.log).stat().st_mode) == 0o600
        assert again.told()[: len(before)] == before
    finally:
        again.cancel()
        again.wait_for_end()


def test_a_process_that_cannot_start_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/no/python cannot be started"):
        ProcessSubmitter().submit(["/no/python"], "run", tmp_path)


# --- jobs as values


def test_every_kind_of_cluster_has_one_submitter() -> None:
    assert {kind.submitted_as for kind in CLUSTERS.values()} == set(SUBMITTERS)
    assert isinstance(submitter_for(parse_cluster({"type": "local"})), ProcessSubmitter)
    assert isinstance(submitter_for(settings()), SlurmSubmitter)
    for kind in SUBMITTERS:
        assert submitter_of(Job(kind, "")).kind == kind
    with pytest.raises(InputError, match="kind 'pbs' is not known"):
        submitter_of(Job("pbs", "1"))


@pytest.mark.parametrize("name", ["", "../run", "a b", "-x", "x" * 101, "a\n"])
def test_names_that_cannot_be_files_are_refused(name: str, tmp_path: Path) -> None:
    for each in (ProcessSubmitter(), submitter()):
        with pytest.raises(InputError, match="name of a job should be at most 100 letters"):
            each.submit([sys.executable], name, tmp_path)


# --- job scripts


def settings(**coordinator: object) -> ClusterConfig:
    """Settings of a cluster on Slurm as a file would give them."""
    return parse_cluster(
        {
            "type": "slurm",
            "jobs": 2,
            "job": {"cores": 1, "memory": "1GB", "walltime": "01:00:00", "queue": "debug", "account": "lab"},
            "coordinator": coordinator,
            "security": {"tls": False},
        }
    )


def submitter(**coordinator: object) -> Submitter:
    return submitter_for(settings(**coordinator))


def test_what_the_coordinator_leaves_out_is_as_for_workers() -> None:
    given = settings(walltime="1-00:00:00", memory="2GB").coordinator
    assert (given.queue, given.account, given.walltime, given.memory) == ("debug", "lab", "1-00:00:00", "2GB")


def test_a_script_asks_for_a_notice_and_to_be_put_back(tmp_path: Path) -> None:
    job = JobConfig(cores=1, walltime="04:00:00", job_extra_directives=["--constraint=x"], memory="4GiB")
    lines = job_script(job, "run", tmp_path / "50%.log", ["/bin/python", "-c", "print('a b')"], 120).splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert {"--requeue", "--open-mode=append", "--signal=B:USR1@120", "-t 04:00:00", "--mem=4G"} < set(directives)
    assert f'--output="{tmp_path}/50%%.log"' in directives
    assert directives[-1] == "--constraint=x"


@pytest.mark.parametrize("walltime", ["1", "2:30"])
def test_a_walltime_without_room_for_the_last_checkpoint_is_refused(walltime: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="request a walltime of more than 150 s"):
        job_script(JobConfig(cores=1, memory="1GB", walltime=walltime), "run", tmp_path / "log", ["/bin/true"], 90)


def run_script(
    line: str, prologue: Sequence[str] = (), restarts: int = 1000, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The script run by bash alone, with no Slurm to go back to."""
    job = JobConfig(cores=1, memory="1GB", walltime="1:00:00", job_script_prologue=list(prologue))
    script = job_script(job, "run", Path("/log"), ["/bin/sh", "-c", line], restarts=restarts)
    return subprocess.run(["/bin/bash", "-c", script], env=environment, capture_output=True, text=True)


def test_a_job_that_was_started_too_often_gives_up() -> None:
    last, over = (run_script("echo runs", restarts=3, SLURM_RESTART_COUNT=count) for count in ("3", "4"))
    assert (last.returncode, last.stdout) == (0, "runs\n")
    assert (over.returncode, over.stdout) == (1, "")
    assert "restarted 3 times and is not restarted again" in over.stderr


@pytest.mark.parametrize("prologue", [(), ("set -euo pipefail",)])
def test_a_script_ends_with_the_coordinators_status(prologue: tuple[str, ...]) -> None:
    for status in (0, 1, 75):
        assert run_script(f"exit {status}", prologue, SLURM_JOB_ID="1").returncode == status
    assert "did not requeue the job" in run_script("exit 75", prologue, SLURM_JOB_ID="1").stderr


def test_a_cancelled_coordinator_is_not_put_back_whatever_its_status() -> None:
    done = run_script("trap '' TERM; sleep 0.2; kill -TERM $PPID; sleep 0.2; exit 75")
    assert (done.returncode, done.stderr) == (143, "")


# --- Slurm itself


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def slurm(two_nodes: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster, as this process sees it; without jobs afterwards, also where a test failed."""
    for name, value in two_nodes.environment.items():
        monkeypatch.setenv(name, value)
    yield two_nodes
    two_nodes.run("scancel", "--user", getpass.getuser())


def restarts(slurm: SlurmCluster, run: Run) -> int:
    return int(slurm.job(run.job.identity)["Restarts"])


def test_a_job_runs_in_the_queue_to_its_end(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run.submitted(submitter(), tmp_path / "100% of a run")
    assert run.state() in (JobState.WAITING, JobState.RUNNING)
    run.wait_for_laps()
    assert submitter_of(run.job).state(run.job) == (JobState.RUNNING, "RUNNING")
    run.end()
    assert run.wait_for_end() == "COMPLETED, exit 0"
    assert stat.S_IMODE(Path(run.job.log).stat().st_mode) == 0o600
    assert run.told()[0].startswith("starts after 0 laps on n")


def test_a_waiting_job_is_dropped(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run.submitted(submitter(job_extra_directives=["--hold"]), tmp_path / "run")
    assert submitter_of(run.job).state(run.job) == (JobState.WAITING, "PENDING (JobHeldUser)")
    run.cancel()
    assert run.wait_for_end() == "CANCELLED, exit 0"
    assert run.told() == []
    run.cancel()


def by_us(slurm: SlurmCluster, run: Run) -> None:
    run.cancel()
    run.cancel()


def by_scancel(slurm: SlurmCluster, run: Run) -> None:
    slurm.run("scancel", run.job.identity)


@pytest.mark.parametrize(("cancel", "words"), [(by_us, "FAILED, exit 143"), (by_scancel, "CANCELLED, ")])
def test_a_cancelled_job_has_a_last_word_and_does_not_come_back(
    cancel: Callable[[SlurmCluster, Run], None], words: str, slurm: SlurmCluster, tmp_path: Path
) -> None:
    run = Run.submitted(submitter(), tmp_path / "run")
    run.wait_for_laps()
    cancel(slurm, run)
    assert run.wait_for_end().startswith(words)
    assert f"last word after {run.laps()} laps on SIGTERM" in run.told()
    assert restarts(slurm, run) == 0


def test_a_job_that_is_put_back_at_this_moment_can_be_cancelled(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run.submitted(submitter(), tmp_path / "run")
    run.wait_for_laps()
    slurm.run("scancel", "--signal=USR1", "--batch", run.job.identity)
    wait(lambda: restarts(slurm, run) == 1)
    run.cancel()
    assert run.wait_for_end().startswith("CANCELLED")
    assert sum(line.startswith("starts") for line in run.told()) == 1


def test_a_failed_job_does_not_come_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run.submitted(submitter(), tmp_path / "run")
    run.end(1)
    assert run.wait_for_end() == "FAILED, exit 1"
    assert restarts(slurm, run) == 0


@pytest.mark.slow
def test_jobs_go_on_by_themselves_after_walltime_and_node_failure(slurm: SlurmCluster, tmp_path: Path) -> None:
    late, unlucky, untouched = (Run.submitted(submitter(memory="100MB"), tmp_path / str(i)) for i in range(3))
    for run in (late, unlucky, untouched):
        run.wait_for_laps()
    # What Slurm does itself some time before the walltime; it looks once a minute.
    slurm.run("scancel", "--signal=USR1", "--batch", late.job.identity)
    wait(lambda: restarts(slurm, late) == 1)
    node = slurm.job(unlucky.job.identity)["BatchHost"]
    slurm.node_down(node)
    try:
        assert unlucky.state() is JobState.WAITING
        reached = unlucky.laps()
        for run in (late, unlucky, untouched):
            run.wait_for_laps()
        assert restarts(slurm, late) >= 1
        assert restarts(slurm, unlucky) == 1
        assert slurm.job(unlucky.job.identity)["BatchHost"] != node
    finally:
        slurm.node_up(node)
        for run in (late, unlucky, untouched):
            run.end()
    for run in (late, unlucky, untouched):
        assert run.wait_for_end() == "COMPLETED, exit 0"
    (last,) = (line for line in late.told() if line.startswith("last word after "))
    count = int(last.removeprefix("last word after ").removesuffix(" laps on SIGUSR1"))
    for run, laps in ((late, count), (unlucky, reached)):
        assert any(line.startswith(f"starts after {laps} laps") for line in run.told())


def test_secrets_reach_the_job_but_not_its_script(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    line = 'test -n "$AWS_SECRET_ACCESS_KEY" && echo has it'
    job = submitter().submit(["/bin/sh", "-c", line], "run", tmp_path)
    wait(lambda: submitter_of(job).state(job)[0] is JobState.ENDED)
    assert Path(job.log).read_text() == "has it\n"
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert len(written) == 2
    assert not any(SECRET in text for text in [*written, slurm.run("scontrol", "show", "job", job.identity)])
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o600


def test_what_slurm_refuses_is_told_in_its_own_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sbatch was refused by SLURM: .*nvalid partition"):
        Run.submitted(submitter(queue="nowhere"), tmp_path / "run")


def test_a_job_that_slurm_forgot_has_ended(slurm: SlurmCluster) -> None:
    assert SlurmSubmitter().state(Job("slurm", "999999"))[0] is JobState.ENDED


def test_a_slurm_that_does_not_answer_is_unknown_not_ended(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slurm.conf").write_text(
        re.sub("(?m)^(SlurmctldPort)=.*$", r"\1=1\nMessageTimeout=1", (slurm.folder / "slurm.conf").read_text())
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert SlurmSubmitter().state(Job("slurm", "1"))[0] is JobState.UNKNOWN
    with pytest.raises(InputError, match="scancel was refused by SLURM: "):
        SlurmSubmitter().cancel(Job("slurm", "1"))


def test_missing_commands_of_slurm_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for start in (lambda: Run.submitted(submitter(), tmp_path / "run"), submitter().cluster.launch):
        with pytest.raises(InputError, match="sbatch was not found: run this on a host of the SLURM cluster"):
            start()
