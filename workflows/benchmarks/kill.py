"""Kill a whole run at random moments, resume it, and compare bits with the undisturbed run.

Each round starts ``dpdist fit`` on a local cluster in its own process group, sends SIGKILL to the group at a random
moment (possibly during a checkpoint), and finishes with ``dpdist resume``. The reference is an undisturbed serial run.
Prints a row per round; ends with an error if any bit differs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from common import options

import dpdist
from dpdist.storage.checkpoint import RunStore

COMMAND = [sys.executable, "-m", "dpdist"]


def write_rows(path: Path, rows: int, seed: int = 0) -> None:
    """Rows of twelve Gaussian groups in sixteen columns."""
    rng = np.random.default_rng(seed)
    means = 4 * rng.normal(size=(12, 16))
    array = zarr.create_array(path, shape=(rows, 16), dtype="float32", chunks=(4096, 16), overwrite=True)
    array[...] = means[rng.integers(12, size=rows)] + rng.normal(size=(rows, 16))


class Size(NamedTuple):
    """How large the runs are, and how many are killed."""

    rows: int
    laps: int
    batches: int
    rounds: int


FULL, SMALL = Size(200_000, 14, 20, 5), Size(4_000, 4, 4, 1)


def fit_arguments(folder: Path, name: str, size: Size) -> list[str]:
    """The command that fits the rows, checkpointing every second at least."""
    given = [
        "--max-laps",
        str(size.laps),
        "--batches",
        str(size.batches),
        "--tolerance",
        "0",
        "--checkpoint-seconds",
        "1",
    ]
    return [*COMMAND, "fit", str(folder / "rows.zarr"), "--out", str(folder / name), "--overwrite", *given]


def kill_round(folder: Path, name: str, size: Size, moment: float) -> tuple[int, str]:
    """Kill a run `moment` seconds after its first checkpoint; its lap then, and how the group ended."""
    process = subprocess.Popen(
        [*fit_arguments(folder, name, size), "--workers", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    before = time.monotonic()
    while generation(folder / name) < 1 and process.poll() is None and time.monotonic() - before < 120:
        time.sleep(0.05)
    time.sleep(moment)
    ended = "finished before" if process.poll() is not None else "killed"
    if ended == "killed":
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    lap = len(RunStore.open(folder / name).history().laps)
    subprocess.run(
        [*COMMAND, "resume", str(folder / name)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return lap, ended


def generation(run: Path) -> int:
    """Number of the run's current checkpoint; -1 where there is none."""
    try:
        return RunStore.open(run).number
    except dpdist.CheckpointError:
        return -1


def bits(run: Path) -> bytes:
    """Final statistics, entropies and ELBO."""
    fitted = RunStore.open(run).fitted()
    assert fitted is not None and fitted.stop is not None
    return fitted.total.stats.tobytes() + fitted.total.entropy.tobytes() + np.float64(fitted.elbo).tobytes()


def labels(run: Path, folder: Path) -> bytes:
    """Labels of all rows."""
    return dpdist.load(run).predict(str(folder / "rows.zarr")).tobytes()


def main() -> None:
    """Run the rounds."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="default: 5, or 1")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    given.out.mkdir(parents=True, exist_ok=True)
    write_rows(given.out / "rows.zarr", size.rows)
    subprocess.run(
        [*fit_arguments(given.out, "whole.zarr", size), "--serial"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    length = sum(lap.seconds for lap in RunStore.open(given.out / "whole.zarr").history().laps)
    whole, named = bits(given.out / "whole.zarr"), labels(given.out / "whole.zarr", given.out)
    rng = np.random.default_rng(given.seed)
    print(f"{'round':>5} {'killed after (s)':>17} {'laps kept':>10} {'end':>16} {'same bits':>10} {'same labels':>12}")
    for number in range(given.rounds or size.rounds):
        moment = float(rng.uniform(0, 0.6 * length))
        run = given.out / f"killed-{number}.zarr"
        shutil.rmtree(run, ignore_errors=True)  # what an earlier round left would pass for this one's checkpoint
        kept, ended = kill_round(given.out, run.name, size, moment)
        same, alike = bits(run) == whole, labels(run, given.out) == named
        print(f"{number} {moment:17.2f} {kept:10d} {ended:>16} {same!s:>10} {alike!s:>12}", flush=True)
        assert same and alike, "a resumed run differs from the undisturbed one"


if __name__ == "__main__":
    main()
