"""Peak memory of the coordinator as components and batches grow, their summaries in files or in memory.

    python workflows/benchmarks/memory_coordinator.py [--components 1000] [--columns 128] [--batches 40] [--where files]
                                                 [--rows-each 10]

Rows of as many clusters as components, by default ten rows each, with full-covariance Gaussians from a k-means++ start.
Few rows suffice, because the memory of summaries does not depend on their number. Two laps with moves on worker
processes; the second one measures splits of the clusters whose turn it is. Each case runs in its own processes; peaks
are the kernel's VmHWM. The scheduler is in the coordinator's process. With ``--where memory`` summaries stay in the
coordinator's memory, however large they are.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from common import options, print_table
from memory import megabytes

LAPS = 2


def draw_rows(components: int, columns: int, batches: int, each: int) -> np.ndarray:
    """Rows around as many means as components, so many of each; as many as there are batches at least."""
    rng, rows = np.random.default_rng(0), max(each * components, 8 * batches)
    means = 3 * rng.normal(size=(components, columns))
    return means[rng.permutation(rows) % components] + rng.normal(size=(rows, columns))


def fit_measured(components: int, columns: int, batches: int, where: str, workers: int, each: int) -> dict[str, Any]:
    """Two laps; memory in MB of the coordinator and of the workers before and at its peak."""
    from dpdist import DPMixture
    from dpdist.data import ArraySource
    from dpdist.execution.connecting import local_backend
    from dpdist.inference.mixture import kept
    from dpdist.inference.mixture.engine import memo_bytes
    from dpdist.inference.schedules import Memoized
    from dpdist.models.families import Gaussian
    from dpdist.storage.codec import shape_of

    kept.MEMO_BYTES = 0 if where == "files" else 2**62  # the coordinator alone decides by it
    rows = draw_rows(components, columns, batches, each)
    source = ArraySource(rows, partition_rows=-(-len(rows) // batches))
    model = DPMixture(
        Gaussian(),
        initial="k-means++",
        initial_components=components,
        schedule=Memoized(batches=batches),
        tolerance=0.0,
        max_laps=LAPS,
        random_state=0,
    )
    backend = local_backend(workers)
    before, began, largest = megabytes("VmRSS"), time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        fit = model.prepare(source, f"{folder}/run.zarr", backend=backend)
        started = megabytes("VmHWM")
        for step in fit:
            largest = max(largest, memo_bytes(fit.problem, step.state, len(rows)) / 1e6)
            held = sum(shape_of(each)[1] for each in step.state.batch_summaries) / 1e6
        workers_peaks = sorted(backend.client.run(megabytes, "VmHWM").values())
        found = fit.fitted
    result = {
        "memo": largest,
        "held": held,
        "before": before,
        "started": started,
        "peak": megabytes("VmHWM"),
        "workers": workers_peaks,
        "seconds": time.perf_counter() - began,
        "left": len(found.ids),
        "elbo": found.elbo,
    }
    backend.close()
    return result


def in_own_process(components: int, given: argparse.Namespace, batches: int, where: str) -> dict[str, Any]:
    """The measurement of one case, made by a fresh interpreter."""
    sizes = ["--components", components, "--columns", given.columns, "--batches", batches, "--workers", given.workers]
    sizes += ["--rows-each", given.rows_each]
    command = [sys.executable, __file__, "--measure", "--where", where, *map(str, sizes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--components", type=int, nargs="+", default=[1000])
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[40])
    parser.add_argument("--where", nargs="+", choices=("files", "memory"), default=["files"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows-each", type=int, default=10, help="of a cluster")
    parser.add_argument("--measure", action="store_true", help="measure in this process (the benchmark calls itself)")
    given = parser.parse_args()
    if given.small:
        given.components, given.columns, given.batches, given.where = [12], 6, [3], ["files", "memory"]
        given.workers = 1
    if given.measure:
        (components,), (batches,), (where,) = given.components, given.batches, given.where
        found = fit_measured(components, given.columns, batches, where, given.workers, given.rows_each)
        print(json.dumps(found))
        return
    cases = [(k, b, where) for k in given.components for b in given.batches for where in given.where]
    columns = ["K", "batches", "in", "summaries", "held at the end", "coordinator before", "its peak", "workers' peaks"]
    print(f"D={given.columns}, full covariance, {LAPS} laps, worker processes: {given.workers}")
    bits: dict[tuple[int, int], list[float]] = {}
    lines = []
    for components, batches, where in cases:
        one = in_own_process(components, given, batches, where)
        bits.setdefault((components, batches), []).append(one["elbo"])
        numbers = [f"{one[name]:.0f} MB" for name in ("memo", "held", "before", "peak")]
        peaks = " ".join(f"{peak:.0f}" for peak in one["workers"])
        seconds = f"{one['seconds']:.0f}"
        lines.append([components, batches, where, *numbers, f"{peaks} MB", seconds, one["left"], f"{one['elbo']:.6f}"])
    print_table([*columns, "seconds", "K at last", "ELBO"], lines)
    for elbos in bits.values():
        assert len(set(elbos)) == 1 and math.isfinite(elbos[0]), "where summaries are decides bits"


if __name__ == "__main__":
    main()
