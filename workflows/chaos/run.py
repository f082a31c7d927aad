"""Submitted runs on real processes, disturbed at random: each must end with the bits of an undisturbed serial run.

Each run is submitted with ``dpdist submit``, disturbed in one of several ways, and continues by itself or by ``dpdist
resume --cluster``. Afterwards its statistics, entropies, ids, ELBO, batch summaries, laps and proposals are compared
with those of ``dpdist fit --serial``, and its log must show that nothing before the last checkpoint was repeated.
Prints a row per run; ends with an error unless all runs ended with the same bits. Signals are only sent to processes of
the sessions started here, and none is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zarr
from disturbances import KINDS, UNDISTURBED, Kind, Trial
from processes import ChaosError, Sessions, dpdist
from scheduler import STUCK_AFTER, Scheduler
from submitted_run import Run, bits, differing

from dpdist.core.errors import CheckpointError


@dataclass(frozen=True)
class Size:
    """Rows, laps and batches of a run, and seconds over which it is disturbed."""

    rows: int
    laps: int
    batches: int
    seconds: float


FULL, SMALL = Size(120_000, 8, 10, 12.0), Size(24_000, 5, 6, 4.0)


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
        """Write rows and settings, one for each number of batches looked ahead, and fit each undisturbed and serial."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_rows(self.folder / "rows.zarr", self.size.rows, self.size.batches)
        self.cluster = self.folder / "local.toml"
        self.cluster.write_text(f'type = "local"\nn_workers = 2\nstuck_after = {STUCK_AFTER}\npatience = 120\n')
        for lookahead in variants:
            config, whole = self.folder / f"fit-{lookahead}.toml", self.folder / f"whole-{lookahead}.zarr"
            config.write_text(
                f'data = "{self.folder / "rows.zarr"}"\nrandom_state = {lookahead}\ntolerance = 0.0\n'
                f"max_laps = {self.size.laps}\n[schedule]\nbatches = {self.size.batches}\nlookahead = {lookahead}\n"
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


def write_rows(path: Path, rows: int, batches: int) -> None:
    """Rows of twelve Gaussian groups in sixteen columns; two partitions a batch."""
    rng = np.random.default_rng(0)
    means, chunk = 4 * rng.normal(size=(12, 16)), rows // (2 * batches)
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
    calm = [campaign.disturb(number, "undisturbed", UNDISTURBED) for number in range(1 if given.small else 2)]
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
