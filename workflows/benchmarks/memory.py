"""Peak memory of the coordinator and of the workers as the number of rows grows tenfold.

Drawn clusters as uint8 in 16 columns, written to Zarr while they are drawn; K = 50 from a k-means++ start, 20 batches,
two laps without moves, on two worker processes (``--small``: four batches, one worker). Each size runs in its own
processes. Peaks are the kernel's VmHWM, which restarts with each program (``getrusage`` would include the parent's
memory from before the exec). Workers import this script, which therefore imports dpdist only where it is used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from common import options, print_table, store_rows

if TYPE_CHECKING:
    from dpdist.execution import Backend
    from dpdist.inference.state import Info, State

COLUMNS, COMPONENTS, LAPS = 16, 50, 2
CHUNK = 65_536
#: SVAState of a peak from the fewest rows to ten times as many that still counts as flat.
FLAT = 1.5


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: tuple[int, ...]
    batches: int
    workers: int


FULL, SMALL = Size((1_000_000, 2_000_000, 5_000_000, 10_000_000), 20, 2), Size((10_000, 100_000), 4, 1)


def draw_blocks(rows: int) -> Iterator[np.ndarray]:
    """Blocks of rows around the same 50 means, uint8."""
    rng = np.random.default_rng(0)
    means = rng.uniform(40, 216, size=(COMPONENTS, COLUMNS))
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        block = means[rng.integers(COMPONENTS, size=count)] + 12 * rng.standard_normal((count, COLUMNS))
        yield np.clip(np.rint(block), 0, 255).astype(np.uint8)


def megabytes(field: str) -> float:
    """An entry of this process's status in the kernel, such as VmHWM, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"the kernel gives no {field} for this process; run this on Linux")


def fit_measured(path: str, size: Size) -> dict[str, Any]:
    """Two laps over the rows at `path`; memory in MB before and at its peak."""
    from dpdist import DPMixture
    from dpdist.inference.schedules import Memoized

    model = DPMixture(
        initial="k-means++",
        initial_components=COMPONENTS,
        schedule=Memoized(batches=size.batches),
        moves=[],
        tolerance=0.0,
        max_laps=LAPS,
        random_state=0,
    )
    return measured(lambda backend: model.iter_fit(path, backend=backend), size.workers)


def measured(fit: Callable[[Backend], Iterator[tuple[State, Info]]], workers: int) -> dict[str, Any]:
    """Run a fit; memory in MB of the coordinator and of the workers before and at its peak, and its ELBO a row."""
    from dpdist.execution.connecting import local_backend

    backend = local_backend(workers)
    workers_before = max(backend.client.run(megabytes, "VmRSS").values())
    before = megabytes("VmRSS")
    elbos = [info.elbo / info.rows for _, info in fit(backend)]
    peaks = sorted(backend.client.run(megabytes, "VmHWM").values())
    result = {"before": before, "peak": megabytes("VmHWM"), "workers_before": workers_before, "workers": peaks}
    backend.close()
    return {**result, "elbo_per_row": elbos[-1]}


def in_own_process(script: str, stored: str, given: argparse.Namespace) -> dict[str, Any]:
    """The measurement of one size, made by a fresh interpreter."""
    command = [sys.executable, script, "--measure", stored, *(["--small"] if given.small else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(sizes: tuple[int, ...], found: list[dict[str, Any]], unit: str = "row") -> list[float]:
    """Print the table; ratios of the last size's peaks to the first's: coordinator, fullest worker."""
    columns = [f"{unit}s", "coordinator before", "its peak", "workers before", "their peaks", f"ELBO/{unit}"]
    print_table(columns, [_line(rows, one) for rows, one in zip(sizes, found, strict=True)])
    first, last = found[0], found[-1]
    ratios = [last["peak"] / first["peak"], max(last["workers"]) / max(first["workers"])]
    print(f"peak at {sizes[-1]} {unit}s / peak at {sizes[0]}: coordinator {ratios[0]:.2f}, workers {ratios[1]:.2f}")
    return ratios


def _line(rows: int, one: dict[str, Any]) -> list[str]:
    peaks = " ".join(f"{peak:.0f}" for peak in one["workers"])
    numbers = [f"{one[name]:.0f} MB" for name in ("before", "peak", "workers_before")]
    return [str(rows), *numbers, f"{peaks} MB", f"{one['elbo_per_row']:.4f}"]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument(
        "--measure", metavar="ZARR", help="measure one fit in this process (the benchmark calls itself)"
    )
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    if given.measure:
        print(json.dumps(fit_measured(given.measure, size)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    paths = [
        store_rows(given.out / f"memory-{rows}.zarr", (rows, COLUMNS), "uint8", draw_blocks(rows), CHUNK)
        for rows in size.rows
    ]
    found = [in_own_process(__file__, path, given) for path in paths]
    print(f"D={COLUMNS} K={COMPONENTS}, {size.batches} batches, {LAPS} laps, worker processes: {size.workers}")
    ratios = report(size.rows, found)
    if given.small:
        assert max(ratios) < FLAT, f"memory grew with the rows: {ratios}"


if __name__ == "__main__":
    main()
