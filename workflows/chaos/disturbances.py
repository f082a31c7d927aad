"""Ways to disturb a run, each at moments that it chooses."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
from processes import kill, until
from scheduler import STUCK_AFTER, Scheduler
from submitted_run import Reached, Run

from dpdist.core.lease import latest_lease
from dpdist.core.places import place_of

#: Seconds between two kills of a worker.
EVERY = 1.5


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


def the_coordinator_at_once(trial: Trial) -> None:
    """The coordinator, before it has written anything or soon after, after which resume is commanded."""
    _kill_and_resume(trial, 1, everything=False, when=lambda: trial.wait(trial.rng.uniform(0.0, 1.5)))


def the_coordinator_resumed_twice(trial: Trial) -> None:
    """The coordinator, after which resume is commanded twice at the same moment."""
    _kill_and_resume(trial, 1, everything=False, commands=2)


def everything(trial: Trial) -> None:
    """Coordinator and workers at once, after which resume is commanded."""
    _kill_and_resume(trial, trial.times(), everything=True)


def _kill_and_resume(
    trial: Trial,
    times: int,
    everything: bool,
    commands: int = 1,
    when: Callable[[], psutil.Process | None] | None = None,
) -> None:
    for _ in range(times):
        coordinator = trial.pause() if when is None else when()
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
    "coordinator at once": Kind(the_coordinator_at_once),
}
UNDISTURBED = Kind(leave_alone)
