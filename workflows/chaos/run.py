"""Submitted runs on real processes, disturbed at random: each has to end with the bits of an undisturbed serial run.

Each run is submitted with ``dpdist submit``, disturbed in one of several ways, and gone on with by itself or by
``dpdist resume --cluster``. Afterwards its statistics, entropies, ids, ELBO, leaves, laps and proposals are compared
with those of ``dpdist fit --serial``, and its log tells that nothing before the last checkpoint was done again.
Prints a row a run; ends with an error unless all runs ended, with the same bits. Only processes that belong to the
sessions begun here are ever sent a signal, and none is left.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import zarr

from dpdist.certificates import make_certificates
from dpdist.checkpoint import Store
from dpdist.cli import app
from dpdist.clusters import read_cluster
from dpdist.errors import CheckpointError, DpdistError
from dpdist.lease import latest_lease, process_began
from dpdist.places import place_of
from dpdist.storage import commits, read_commit
from dpdist.submission.base import CANCELLED
from dpdist.submitted import end_of, job_of, latest_request

COMMAND = [sys.executable, "-m", "dpdist.cli"]
#: Seconds after which a disturbed run counts as hanging.
PATIENCE = 420.0
#: Seconds after which a worker that does not come forward is restarted.
STUCK_AFTER = 8.0
#: Seconds between two kills of a worker.
EVERY = 1.5


@dataclass(frozen=True)
class Size:
    """Rows, laps and waves of a run, and seconds over which it is disturbed."""

    rows: int
    laps: int
    waves: int
    seconds: float


FULL, SMALL = Size(120_000, 8, 10, 12.0), Size(24_000, 5, 6, 4.0)


class ChaosError(Exception):
    """A run did not go on as it should."""


# --- processes


@dataclass
class Sessions:
    """The sessions of processes that were begun here, and what is done to them."""

    leaders: set[int] = field(default_factory=set)
    began: float = field(default_factory=time.time)

    def start(self, command: Sequence[str], log: Path, **variables: str) -> psutil.Popen:
        """A command in a session of its own."""
        with open(log, "ab") as output:
            process = psutil.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env={**os.environ, **variables}
            )
        self.leaders.add(process.pid)
        return process

    def living(self) -> list[psutil.Process]:
        """Processes of the sessions that have not ended."""
        return [each for each in psutil.process_iter() if self._is_ours(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            ours = os.getsid(process.pid) in self.leaders and process.create_time() > self.began - 1
            return ours and process.status() != psutil.STATUS_ZOMBIE
        return False

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until all have ended by themselves; an error names those that did not."""
        until(lambda: not self.living(), seconds, lambda: f"left running: {self.living()}")

    def end(self) -> None:
        """End whatever is left."""
        for process in self.living():
            kill(process)
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=10)


def kill(process: psutil.Process, number: int = signal.SIGKILL) -> bool:
    """Send a signal; whether the process was there."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Worker processes that belong to a coordinator or a nanny."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("spawn_main" in part for part in child.cmdline()):
                    found.append(child)
    return found


def until(ready: Callable[[], bool], seconds: float, told: Callable[[], str]) -> None:
    """Wait for something; :class:`ChaosError` if it takes longer than that."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ChaosError(told())
        time.sleep(0.05)


def dpdist(*arguments: object) -> None:
    """Run a command of dpdist's in this process; :class:`ChaosError` with its sentence if it fails."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            app([str(each) for each in arguments], standalone_mode=False)
        except DpdistError as error:
            raise ChaosError(str(error)) from error


def at_once(times: int, *arguments: object) -> list[str]:
    """Run a command of dpdist's in several processes at the same moment; what those that failed said."""
    command = [*COMMAND, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen(command, env={**os.environ, "NO_COLOR": "1"}, **pipes) for _ in range(times)]  # type: ignore[call-overload]
    texts = [each.communicate(timeout=PATIENCE)[0].strip() for each in started]
    return [text for text, each in zip(texts, started, strict=True) if each.returncode]


# --- a run


@dataclass(frozen=True)
class Reached:
    """What the last checkpoint of a run holds: its number, the lap under way, and waves of it that are in."""

    number: int = 0
    lap: int = 1
    visit: int = 0

    @classmethod
    def of(cls, run: Path) -> Reached:
        """Read it; generations may go while they are read."""
        while True:
            place = place_of(run)
            numbers = commits(place)
            if not numbers:
                return cls()
            try:
                commit = read_commit(place, numbers[-1])
                attributes = place.group(f"{commit['generation']}/state").attrs
                return cls(numbers[-1], int(attributes["lap"]), int(attributes["visit"]))  # type: ignore[arg-type]
            except (KeyError, OSError, ValueError):
                continue


@dataclass
class Run:
    """A submitted run: its files, its coordinator, and what was done to it.

    Attributes
    ----------
    lives : what each coordinator wrote to the log, and the checkpoint that was there when it ended
    waits : seconds from a commanded resume to the first new checkpoint
    """

    path: Path
    cluster: Path
    sessions: Sessions
    kills: int = 0
    resumes: int = 0
    lives: list[tuple[str, Reached]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    _read: int = 0

    def submit(self, settings: Path, checkpoint_every: float) -> None:
        """Begin it."""
        dpdist(
            "submit", settings, "--cluster", self.cluster, "--out", self.path, "--checkpoint-every", checkpoint_every
        )
        self.know_leaders()

    def know_leaders(self) -> None:
        """Count the sessions of all coordinators so far as ours."""
        self.sessions.leaders.update(pid for pid, _ in self._jobs())

    def _jobs(self) -> list[tuple[int, int]]:
        """Process id and start of every coordinator so far."""
        place = place_of(self.path)
        jobs = [job_of(place, int(name[:6])) for name in place.names("requests")]
        identities = [job.identity.split() for job in jobs if job is not None]
        return [(int(pid), int(start)) for _, pid, start in identities]

    def coordinators(self) -> list[psutil.Process]:
        """Coordinators that live; more than one where resume was commanded twice."""
        found = []
        for pid, start in self._jobs():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process_began(pid) == start:
                    found.append(psutil.Process(pid))
        return found

    def coordinator(self) -> psutil.Process | None:
        """The coordinator, if it lives."""
        return next(iter(self.coordinators()[::-1]), None)

    def workers(self) -> list[psutil.Process]:
        """Worker processes of a local cluster."""
        coordinator = self.coordinator()
        return [] if coordinator is None else workers_of(coordinator)

    def has_ended(self) -> bool:
        """Whether it found what it was after."""
        place = place_of(self.path)
        end = end_of(place, latest_request(place)[0])
        return end is not None and end.status == 0

    def bury(self, coordinator: psutil.Process, orderly: bool = False) -> None:
        """Wait for the end of a coordinator that was sent a signal, and note what it leaves."""
        until(lambda: process_began(coordinator.pid) == 0, 60.0, lambda: f"{coordinator} does not end")
        self._note_life()
        if orderly and not self.has_ended():
            place = place_of(self.path)
            end = end_of(place, latest_request(place)[0])
            if end is None or end.status != CANCELLED:
                raise ChaosError(f"a coordinator that was told to end should say {CANCELLED}; it said {end}")

    def _note_life(self) -> None:
        text = self.log()
        self.lives.append((text[self._read :], Reached.of(self.path)))
        self._read = len(text)

    def log(self) -> str:
        """The log of all coordinators so far."""
        return "".join(log.read_text() for log in sorted(Path(f"{self.path}.logs").glob("*.log")))

    def resume(self, times: int = 1) -> None:
        """Command that the run goes on, `times` at once: all but one are refused, or wait."""
        began, before = time.monotonic(), Reached.of(self.path)
        command = ["resume", self.path, "--cluster", self.cluster]
        try:
            if times == 1:
                dpdist(*command)
            elif len(refused := at_once(times, *command)) == times:
                raise ChaosError("; ".join(refused))
        except ChaosError as error:
            if "has ended" in str(error):
                return
            raise
        finally:
            self.know_leaders()
        self.resumes += 1
        until(lambda: self._has_moved(before), PATIENCE, lambda: f"no checkpoint after a resume; {self.log()[-800:]}")
        self.waits.append(time.monotonic() - began)

    def _has_moved(self, before: Reached) -> bool:
        moved = Reached.of(self.path).number > before.number or self.has_ended()
        if not moved and not self.coordinators():
            raise ChaosError(f"a resumed coordinator ended: {self.log()[-800:]}")
        return moved

    def finish(self) -> None:
        """Wait until it has ended, and all its processes with it."""
        deadline = time.monotonic() + PATIENCE
        while self.coordinators():
            if time.monotonic() > deadline:
                raise ChaosError(f"it did not end within {PATIENCE:.0f} s; {self.log()[-800:]}")
            time.sleep(0.1)
        self._note_life()
        fitted = Store.open(self.path).fitted()
        if fitted is None or fitted.stop is None:
            raise ChaosError(f"its coordinator ended before the run did: {self.log()[-800:]}")

    def laps_again(self) -> int:
        """Laps that were finished, and finished again after a death.

        Raises
        ------
        ChaosError
            If one of them was in a checkpoint, or a checkpoint that was told of is gone.
        """
        again, done, kept = 0, 0, Reached()
        for text, left in self.lives:
            laps = [int(lap) for lap in re.findall(r"^lap +(\d+) ", text, re.MULTILINE)]
            told = [int(number) for number in re.findall(r"^checkpoint (\d+) written", text, re.MULTILINE)]
            if laps and laps != list(range(kept.lap, kept.lap + len(laps))):
                raise ChaosError(f"laps {laps} were run from a checkpoint within lap {kept.lap}")
            if any(not kept.number < number <= left.number for number in told):
                raise ChaosError(f"checkpoints {told} were told of; there was {kept.number}, and is {left.number}")
            if (left.lap, left.visit) < (kept.lap, kept.visit):
                raise ChaosError(f"a checkpoint went back from {kept} to {left}")
            again += sum(lap <= done for lap in laps)
            done, kept = max([done, *laps]), left
        return again


# --- a scheduler of our own


@dataclass
class Scheduler:
    """A scheduler and two workers as a person would start them, with certificates, at one address."""

    folder: Path
    sessions: Sessions
    scheduler: psutil.Popen | None = None
    workers: list[psutil.Popen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificates = make_certificates(self.folder / "certificates")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tls://127.0.0.1:{self.port}"
        self.config = self.folder / "scheduler.toml"
        self.config.write_text(
            f'type = "scheduler"\naddress = "{self.address}"\nstuck_after = {STUCK_AFTER}\npatience = 120\n'
            f'[security]\ncertificates = "{self.certificates}"\n'
        )

    def start(self) -> None:
        """Start what does not run."""
        if self.scheduler is None or not self.scheduler.is_running() or self.scheduler.poll() is not None:
            self.scheduler = self._process("scheduler", "scheduler", "--port", str(self.port))
        self.workers = [each for each in self.workers if each.poll() is None]
        while len(self.workers) < 2:
            given = [self.address, "--nthreads", "1", "--local-directory", str(self.folder)]
            self.workers.append(self._process("worker", "worker", *given))

    def _process(self, role: str, *arguments: str) -> psutil.Popen:
        keys = {"ca-file": "ca.pem", "cert": f"{role}.pem", "key": f"{role}.key"}
        tls = [part for key, name in keys.items() for part in (f"--tls-{key}", str(self.certificates / name))]
        given = ["--protocol", "tls", "--host", "127.0.0.1", "--no-dashboard", *tls]
        command = [sys.executable, "-m", "dask", *arguments, *given]
        return self.sessions.start(command, self.folder / f"{role}.log", **read_cluster(self.config).variables())

    def wait(self) -> None:
        """Wait until the scheduler listens, as whoever commands a resume does."""
        until(self._listens, 60.0, lambda: f"the scheduler does not start: {self.folder}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler; its workers leave by themselves."""
        if self.scheduler is not None:
            kill(self.scheduler)
            self.scheduler.wait()

    def kill_workers(self) -> int:
        """SIGKILL to workers and nannies at once; how many."""
        killed = sum(kill(each) for nanny in self.workers for each in (nanny, *workers_of(nanny)))
        for nanny in self.workers:
            nanny.wait()
        return killed

    def end(self) -> None:
        """End all."""
        for process in [self.scheduler, *self.workers]:
            if process is not None:
                for each in (process, *workers_of(process)):
                    kill(each)
                process.wait()


# --- disturbances


@dataclass(frozen=True)
class Trial:
    """What a disturbance is given: the run, seeded draws, the seconds over which to act, and a scheduler of ours."""

    run: Run
    rng: np.random.Generator
    seconds: float
    scheduler: Scheduler | None = None

    def pause(self) -> psutil.Process | None:
        """Let the run go on for a while, mostly beyond a checkpoint; its coordinator then, or None if it has ended."""
        if self.rng.random() < 0.7:
            before = Reached.of(self.run.path).number
            while Reached.of(self.run.path).number == before and self.run.coordinator() is not None:
                time.sleep(0.05)
        return self.wait(self.rng.uniform(0.0, self.seconds))

    def workers(self) -> list[psutil.Process]:
        """Worker processes of a local cluster, waited for; none if the run has ended."""
        while not (found := self.run.workers()) and self.run.coordinator() is not None:
            time.sleep(0.05)
        return found

    def wait(self, seconds: float) -> psutil.Process | None:
        """As :meth:`pause`, for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.run.coordinator() is not None:
            time.sleep(0.05)
        return self.run.coordinator()

    def times(self, most: int = 3) -> int:
        """How often to strike."""
        return int(self.rng.integers(1, most + 1))


def leave_alone(trial: Trial) -> None:
    """Nothing happens."""


def a_worker_again_and_again(trial: Trial) -> None:
    """One random worker, every second and a half."""
    for _ in range(max(2, round(trial.seconds / EVERY))):
        workers = trial.workers()
        if trial.wait(EVERY) is None:
            return
        trial.run.kills += kill(workers[trial.rng.integers(len(workers))])


def all_workers(trial: Trial) -> None:
    """All workers of a local cluster at once, at random moments."""
    for _ in range(trial.times()):
        if trial.pause() is None:
            return
        trial.run.kills += sum([kill(worker) for worker in trial.workers()])


def all_nannies(trial: Trial) -> None:
    """All workers of a running scheduler and what looks after them; others are started later."""
    assert trial.scheduler is not None
    for _ in range(trial.times(2)):
        if trial.pause() is None:
            return
        trial.run.kills += trial.scheduler.kill_workers()
        trial.wait(trial.rng.uniform(0.0, 4.0))
        trial.scheduler.start()


def the_coordinator(trial: Trial) -> None:
    """The coordinator, after which resume is commanded."""
    _kill_and_resume(trial, trial.times(), everything=False)


def the_coordinator_resumed_twice(trial: Trial) -> None:
    """The coordinator, after which resume is commanded twice at the same moment."""
    _kill_and_resume(trial, 1, everything=False, commands=2)


def everything(trial: Trial) -> None:
    """Coordinator and workers at once, after which resume is commanded."""
    _kill_and_resume(trial, trial.times(), everything=True)


def _kill_and_resume(trial: Trial, times: int, everything: bool, commands: int = 1) -> None:
    for _ in range(times):
        coordinator = trial.pause()
        if coordinator is None:
            return
        if everything:
            os.killpg(coordinator.pid, signal.SIGKILL)
        else:
            kill(coordinator)
        trial.run.kills += 1
        trial.run.bury(coordinator)
        trial.run.resume(commands)


def the_scheduler(trial: Trial) -> None:
    """The scheduler, started again on the same address: the coordinator goes on by itself."""
    assert trial.scheduler is not None
    for _ in range(trial.times()):
        if trial.pause() is None:
            return
        trial.scheduler.kill_scheduler()
        trial.run.kills += 1
        trial.wait(trial.rng.uniform(0.0, 4.0))
        trial.scheduler.start()
        if trial.rng.random() < 0.5:
            trial.run.kills += trial.scheduler.kill_workers()
            trial.scheduler.start()


def the_scheduler_then_the_coordinator(trial: Trial) -> None:
    """The scheduler, and the coordinator a while after: what was stored before the first has to serve the second."""
    assert trial.scheduler is not None
    if trial.pause() is None:
        return
    trial.scheduler.kill_scheduler()
    trial.run.kills += 1
    trial.scheduler.start()
    trial.scheduler.wait()
    _kill_and_resume(trial, 1, everything=False)


def a_worker_stopped(trial: Trial) -> None:
    """A worker is stopped for a while, shorter or longer than one may be silent."""
    for _ in range(trial.times(2)):
        if trial.pause() is None:
            return
        workers = trial.workers()
        if workers:
            chosen = workers[trial.rng.integers(len(workers))]
            trial.run.kills += kill(chosen, signal.SIGSTOP)
            trial.wait(trial.rng.uniform(0.0, 2 * STUCK_AFTER))
            kill(chosen, signal.SIGCONT)


def told_to_end(trial: Trial) -> None:
    """SIGTERM to the coordinator, which writes a last checkpoint and ends with 143; then resume is commanded."""
    for _ in range(trial.times(2)):
        coordinator = trial.pause()
        if coordinator is None:
            return
        until(lambda: bool(latest_lease(place_of(trial.run.path))[0]) or not trial.run.coordinators(), 60.0, str)
        kill(coordinator, signal.SIGTERM)
        trial.run.kills += 1
        trial.run.bury(coordinator, orderly=True)
        trial.run.resume()


@dataclass(frozen=True)
class Kind:
    """A way to disturb a run; `remote` where the cluster is a running scheduler."""

    disturb: Callable[[Trial], None]
    remote: bool = False


KINDS = {
    "a worker every 1.5 s": Kind(a_worker_again_and_again),
    "all workers": Kind(all_workers),
    "workers and nannies": Kind(all_nannies, remote=True),
    "coordinator": Kind(the_coordinator),
    "coordinator, two resume": Kind(the_coordinator_resumed_twice),
    "scheduler": Kind(the_scheduler, remote=True),
    "scheduler, coordinator": Kind(the_scheduler_then_the_coordinator, remote=True),
    "everything": Kind(everything),
    "worker stopped": Kind(a_worker_stopped),
    "told to end": Kind(told_to_end),
}
UNDISTURBED = Kind(leave_alone)


# --- bits


def bits(run: Path) -> dict[str, bytes]:
    """Everything that a finished run holds, but for what its laps took."""
    store = Store.open(run)
    fitted, history, (state, _) = store.fitted(), store.history(), store.state()
    if fitted is None or fitted.stop is None:
        raise CheckpointError(f"{run} has not ended.")
    values = {name: column.tobytes() for name, column in history.columns().items() if name != "seconds"}
    values["statistics"] = fitted.total.stats.tobytes() + np.float64(fitted.total.base).tobytes()
    values["entropy"], values["ids"] = fitted.total.entropy.tobytes(), fitted.ids.tobytes() + state.ids.tobytes()
    values["end"] = repr((fitted.elbo, fitted.rows, fitted.stop, state.lap, state.order, state.elbo)).encode()
    values["rests"] = repr((state.next_id, sorted(state.rests.items()))).encode() + state.chances.tobytes()
    single = [leaf for leaf in (state.start, state.running) if leaf is not None]
    parts = [part for leaf in (*state.leaves, *state.queue, *single) for part in (leaf.summary, *leaf.trials)]
    values["leaves"] = b"".join(
        part.stats.tobytes() + part.entropy.tobytes() + np.float64(part.base).tobytes() for part in parts
    )
    return values


def differing(run: Path, expected: dict[str, bytes]) -> list[str]:
    """Names of what is not the same."""
    found = bits(run)
    return [name for name in expected if found[name] != expected[name]]


# --- the campaign


@dataclass(frozen=True)
class Outcome:
    """What became of a run; `fault` is empty where it ended with the same bits."""

    kind: str
    kills: int
    resumes: int
    seconds: float
    laps_again: int
    waits: tuple[float, ...]
    fault: str = ""


@dataclass
class Campaign:
    """Settings, data and reference runs that disturbed runs share.

    Parameters
    ----------
    folder : for files
    size : of the runs
    seed : of the disturbances
    """

    folder: Path
    size: Size
    seed: int
    settings: list[tuple[Path, dict[str, bytes]]] = field(default_factory=list)

    def prepare(self, variants: Sequence[int] = (0, 1)) -> None:
        """Write rows and settings, one for each number of waves looked ahead, and fit each undisturbed and serial."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_rows(self.folder / "rows.zarr", self.size.rows, self.size.waves)
        self.cluster = self.folder / "local.toml"
        self.cluster.write_text(f'type = "local"\nn_workers = 2\nstuck_after = {STUCK_AFTER}\npatience = 120\n')
        for lookahead in variants:
            config, whole = self.folder / f"fit-{lookahead}.toml", self.folder / f"whole-{lookahead}.zarr"
            config.write_text(
                f'data = "{self.folder / "rows.zarr"}"\nseed = {lookahead}\ntolerance = 0.0\n'
                f"max_laps = {self.size.laps}\n[schedule]\nwaves = {self.size.waves}\nlookahead = {lookahead}\n"
            )
            dpdist("fit", "--config", config, "--out", whole, "--serial", "--overwrite")
            self.settings.append((config, bits(whole)))

    def disturb(self, number: int, name: str, kind: Kind) -> Outcome:
        """One run, disturbed in one way; its files are kept where it failed."""
        rng = np.random.default_rng((self.seed, number))
        settings, expected = self.settings[number % len(self.settings)]
        folder, sessions = self.folder / f"run-{number:02d}", Sessions()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        run, began, again, fault = Run(folder / "run.zarr", self.cluster, sessions), time.monotonic(), 0, ""
        try:
            with _our_scheduler(kind, folder / "cluster", sessions) as scheduler:
                run.cluster = self.cluster if scheduler is None else scheduler.config
                began = time.monotonic()
                run.submit(settings, float(rng.choice([0.0, 1.0, 60.0])))
                kind.disturb(Trial(run, rng, self.size.seconds, scheduler))
                run.finish()
            seconds = time.monotonic() - began
            again, different = run.laps_again(), differing(run.path, expected)
            fault = f"other bits: {', '.join(different)}" if different else ""
            sessions.wait()
        except (ChaosError, CheckpointError, OSError, subprocess.SubprocessError) as error:
            seconds, fault = time.monotonic() - began, f"{type(error).__name__}: {error}"
        finally:
            run.know_leaders()
            sessions.end()
        if not fault:
            shutil.rmtree(folder)
        return Outcome(name, run.kills, run.resumes, seconds, again, tuple(run.waits), fault)


@contextlib.contextmanager
def _our_scheduler(kind: Kind, folder: Path, sessions: Sessions) -> Iterator[Scheduler | None]:
    if not kind.remote:
        yield None
        return
    scheduler = Scheduler(folder, sessions)
    try:
        scheduler.start()
        scheduler.wait()
        yield scheduler
    finally:
        scheduler.end()


def write_rows(path: Path, rows: int, waves: int) -> None:
    """Rows of twelve Gaussian groups in sixteen columns; two partitions a wave."""
    rng = np.random.default_rng(0)
    means, chunk = 4 * rng.normal(size=(12, 16)), rows // (2 * waves)
    array = zarr.create_array(path, shape=(rows, 16), dtype="float32", chunks=(chunk, 16), overwrite=True)
    array[...] = means[rng.integers(12, size=rows)] + rng.normal(size=(rows, 16))


def row(outcome: Outcome) -> str:
    """A line of the table."""
    return (
        f"{outcome.kind:<24} {outcome.kills:5d} {outcome.resumes:7d} {outcome.seconds:8.1f} {outcome.laps_again:10d} "
        f"{'no' if outcome.fault else 'yes':>9}  {outcome.fault}"
    ).rstrip()


def spread(values: Sequence[float]) -> str:
    """The median of some values, with the smallest and the largest."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "none"


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build") / "workflows" / "chaos", help="folder for files")
    parser.add_argument("--small", action="store_true", help="short runs, each kind once")
    parser.add_argument("--runs", type=int, help="default: 50, or one of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and choices")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only runs of this kind; may be given again")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = given.kind or list(KINDS)
    campaign = Campaign(given.out.absolute(), SMALL if given.small else FULL, given.seed)
    campaign.prepare()
    calm = [campaign.disturb(number, "undisturbed", UNDISTURBED) for number in range(2)]
    print(f"{'kind':<24} {'kills':>5} {'resumes':>7} {'seconds':>8} {'laps again':>10} {'same bits':>9}", flush=True)
    outcomes = []
    for number in range(given.runs or (len(names) if given.small else 50)):
        name = names[number % len(names)]
        outcomes.append(campaign.disturb(number, name, KINDS[name]))
        print(row(outcomes[-1]), flush=True)
    _sum_up(calm, outcomes)


def _sum_up(calm: Sequence[Outcome], outcomes: Sequence[Outcome]) -> None:
    """Print what it took; :class:`SystemExit` if a run failed."""
    usual = statistics.median(outcome.seconds for outcome in calm)
    lost = [
        (outcome.seconds - usual) / outcome.kills
        for outcome in outcomes
        if outcome.kind == "a worker every 1.5 s" and outcome.kills
    ]
    print(f"seconds of an undisturbed run: {spread([outcome.seconds for outcome in calm])}")
    print(f"seconds lost by the kill of a worker: {spread(lost)}")
    print(f"seconds from resume to a new checkpoint: {spread([wait for each in outcomes for wait in each.waits])}")
    same = sum(not outcome.fault for outcome in outcomes)
    print(f"{same} of {len(outcomes)} runs ended with the bits of the undisturbed serial run")
    if same < len(outcomes) or any(outcome.fault for outcome in calm):
        sys.exit(1)


if __name__ == "__main__":
    main()
