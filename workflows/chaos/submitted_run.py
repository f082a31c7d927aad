"""A submitted run as seen by a disturbance: coordinators, checkpoints, log, and finally its bits."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from processes import PATIENCE, ChaosError, Sessions, at_once, dpdist, until, workers_of

from dpdist.cluster.running import CANCELLED
from dpdist.cluster.submission import Job
from dpdist.cluster.submitted import End, latest_request, recorded
from dpdist.core.errors import CheckpointError
from dpdist.core.lease import process_began
from dpdist.core.places import place_of
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.commits import commits


@dataclass(frozen=True)
class Reached:
    """What the last checkpoint of a run holds: its number, the lap under way, and batches of it that are in."""

    number: int = 0
    lap: int = 1
    visited: int = 0

    @classmethod
    def of(cls, run: Path) -> Reached:
        """Read it; generations may go while they are read."""
        while True:
            if not commits(place_of(run)):
                return cls()
            try:
                store = RunStore.open(run)
                state, _ = store.state()
                return cls(store.number, state.lap, state.visited)
            except CheckpointError:
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
        """Begin it; what comes next may come before its first checkpoint."""
        dpdist(
            "submit", settings, "--cluster", self.cluster, "--out", self.path, "--checkpoint-seconds", checkpoint_every
        )
        self.know_leaders()

    def know_leaders(self) -> None:
        """Count the sessions of all coordinators so far as ours."""
        self.sessions.leaders.update(pid for pid, _ in self._jobs())

    def _jobs(self) -> list[tuple[int, int]]:
        """Process id and start of every coordinator so far."""
        place = place_of(self.path)
        jobs = [recorded(place, int(name[:6]), Job) for name in place.names("requests")]
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
        end = recorded(place, latest_request(place)[0], End)
        return end is not None and end.status == 0

    def bury(self, coordinator: psutil.Process, orderly: bool = False) -> None:
        """Wait for the end of a coordinator that was sent a signal, and note what it leaves."""
        until(lambda: process_began(coordinator.pid) == 0, 60.0, lambda: f"{coordinator} does not end")
        self._note_life()
        if orderly and not self.has_ended():
            place = place_of(self.path)
            end = recorded(place, latest_request(place)[0], End)
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
        fitted = RunStore.open(self.path).fitted()
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
            if (left.lap, left.visited) < (kept.lap, kept.visited):
                raise ChaosError(f"a checkpoint went back from {kept} to {left}")
            again += sum(lap <= done for lap in laps)
            done, kept = max([done, *laps]), left
        return again


def bits_of(value: Any) -> bytes:
    """Those of a dataclass of arrays, numbers and such, or of several."""
    if isinstance(value, tuple):
        return b"".join(map(bits_of, value))
    if is_dataclass(value):
        return b"".join(bits_of(getattr(value, each.name)) for each in fields(value))
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


def bits(run: Path) -> dict[str, bytes]:
    """Everything that a finished run holds, but for what its laps took."""
    store = RunStore.open(run)
    fitted, history, (state, _) = store.fitted(), store.history(), store.state()
    if fitted is None or fitted.stop is None:
        raise CheckpointError(f"{run} has not ended.")
    values = {name: column.tobytes() for name, column in history.columns().items() if name != "seconds"}
    values["statistics"] = fitted.total.stats.tobytes() + np.float64(fitted.total.base).tobytes()
    values["entropy"], values["ids"] = fitted.total.entropy.tobytes(), fitted.ids.tobytes() + state.ids.tobytes()
    values["end"] = repr((fitted.elbo, fitted.rows, fitted.stop, state.lap, state.order, state.elbo)).encode()
    values["rests"] = repr(state.next_id).encode() + bits_of(state.proposals) + state.sampling_probabilities.tobytes()
    single = [batch_summary for batch_summary in (state.start, state.running) if batch_summary is not None]
    parts = [
        part
        for batch_summary in (*state.batch_summaries, *state.queue, *single)
        for part in (batch_summary.summary, *batch_summary.measured)
    ]
    values["leaves"] = b"".join(
        part.stats.tobytes() + part.entropy.tobytes() + np.float64(part.base).tobytes() for part in parts
    )
    return values


def differing(run: Path, expected: dict[str, bytes]) -> list[str]:
    """Names of what is not the same."""
    found = bits(run)
    return [name for name in expected if found[name] != expected[name]]
