"""Commands of dpdist, each in its own process group, whose memory and processor time are followed and which can be
killed.

The result of each command is stored in a file, so that an interrupted workflow does not repeat it; an unfinished run is
resumed. Peaks are the kernel's VmHWM, so this needs Linux.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

import dpdist
from dpdist.core.errors import CheckpointError

#: Seconds between two looks at the processes.
_BETWEEN = 0.2
Fields = dict[str, Any]


class Attempt(NamedTuple):
    """A command's processes: seconds by the clock, seconds of processors, peaks in MB of its own process and of the
    fullest other, and whether it was killed."""

    seconds: float
    processor: float
    coordinator: float
    worker: float
    killed: bool = False


def run(arguments: Sequence[object], log: Path, kill_after: int | None = None) -> Attempt:
    """Give a command; its lines are added to `log`.

    Parameters
    ----------
    arguments : what comes after ``dpdist``
    log : file for what it prints
    kill_after : laps after which the whole group gets SIGKILL

    Raises
    ------
    SystemExit
        If the command fails.
    """
    command = [sys.executable, "-m", "dpdist", *map(str, arguments)]
    before, began = laps_told(log), time.perf_counter()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, env=environment)
    seen: dict[int, tuple[float, float]] = {}
    killed = False
    try:
        while process.poll() is None:
            _look(process.pid, seen)
            killed = kill_after is not None and laps_told(log) - before >= kill_after
            if killed:
                break
            time.sleep(_BETWEEN)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode and not killed:
        raise SystemExit(f"dpdist {' '.join(map(str, arguments))} failed; see {log}")
    own = seen.pop(process.pid, (0.0, 0.0))
    others = [peak for peak, _ in seen.values()]
    processor = own[1] + sum(seconds for _, seconds in seen.values())
    return Attempt(time.perf_counter() - began, processor, own[0], max(others, default=0.0), killed)


def laps_told(log: Path) -> int:
    """Laps that a command told of so far."""
    return len(re.findall(r"^lap +\d+", log.read_text(), re.MULTILINE)) if log.exists() else 0


def _look(root: int, seen: dict[int, tuple[float, float]]) -> None:
    """Note peak memory in MB and processor seconds of a process and all that came of it."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(root)
        for each in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError, StopIteration):
                times = each.cpu_times()
                seen[each.pid] = _peak(each.pid), times.user + times.system


def _peak(process: int) -> float:
    """The most memory that a process had, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def has_run(path: Path) -> bool:
    """Whether a run was begun there that can be resumed."""
    try:
        dpdist.load(path)
    except CheckpointError:
        return False
    return True


def once(file: Path, key: Fields, make: Callable[[], Fields]) -> Fields:
    """What is kept in a file under a key, made if it is not there; printed."""
    if file.exists() and (kept := json.loads(file.read_text()))["key"] == key:
        return kept["found"]
    found = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"key": key, "found": found}, indent=1) + "\n")
    told = {name: value for name, value in found.items() if not isinstance(value, list | dict)}
    print(f"{file.stem}: " + ", ".join(f"{name} {value}" for name, value in told.items()), flush=True)
    return found


def together(attempts: Sequence[Attempt]) -> Fields:
    """Attempts at one piece of work as one: seconds add up, of peaks the highest counts."""
    return {
        "seconds": round(sum(one.seconds for one in attempts), 2),
        "processor": round(sum(one.processor for one in attempts), 2),
        "coordinator": round(max(one.coordinator for one in attempts)),
        "worker": round(max(one.worker for one in attempts)),
        "kills": sum(one.killed for one in attempts),
    }


def found_in(path: Path, heldout: np.ndarray) -> Fields:
    """What a finished run holds: clusters, held-out nats a row, its course, its bytes, and a digest of its bits."""
    model = dpdist.load(path)
    history = model.history_
    spent = float(history["seconds"].sum() + history["checkpoint_seconds"].sum())
    return {
        "components": int(model.n_components_),
        "heldout": float(model.score(heldout)),
        "laps": int(history.sizes["lap"]),
        "checkpoint_share": float(history["checkpoint_seconds"].sum()) / spent if spent else 0.0,
        "bytes": sum(each.stat().st_size for each in path.rglob("*") if each.is_file()),
        "bits": digest(model),
        "course": {
            name: [float(value) for value in history[name].values]
            for name in ("rows", "elbo", "n_components", "seconds", "holdout_score", "worker_seconds")
        },
    }


def digest(model: Any) -> str:
    """Of the bits of a model's clusters and of the ELBO of each lap."""
    parts = [*(value.values for value in model.components_.data_vars.values()), model.component_ids_]
    parts += [model.history_[name].values for name in ("elbo", "n_components")]
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]
