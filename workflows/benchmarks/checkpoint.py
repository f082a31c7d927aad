"""What a checkpoint costs: bytes and seconds of all leaves of a lap, and of a lap's end.

    python workflows/benchmarks/checkpoint.py [--waves 20 100] [--components 200] [--columns 64] [--place s3://…]
    python workflows/benchmarks/checkpoint.py --share [--rows 200000]

The second measures what share of a run goes to checkpoints: the same laps with and without, in turn, on two workers.

A state as of a settled run is made up: K components of full-covariance Gaussians in D columns, a split in two tried on
each, K merges and deletes of a tenth. A checkpoint at a lap's end stores the leaves of all waves, then commits.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import dpdist
from dpdist.data import ArraySource
from dpdist.execution import Backend, SerialBackend
from dpdist.execution.dask import local_backend
from dpdist.inference.mixture.engine import Step
from dpdist.inference.mixture.lap_moves import Turning
from dpdist.inference.mixture.local_step import Leaf
from dpdist.inference.moves.base import Change
from dpdist.inference.moves.delete import Deletes
from dpdist.inference.moves.merge import Merges
from dpdist.inference.moves.split import Splits
from dpdist.inference.state import State
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.fitting import begin
from dpdist.storage.checkpoint import Fitted, Store
from dpdist.storage.history import History
from dpdist.storage.memo import Memo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waves", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--components", type=int, default=200)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--laps", type=int, default=5)
    parser.add_argument("--place", help="folder or URL; default: a temporary folder")
    parser.add_argument("--small", action="store_true", help="a reduced size, for tests")
    parser.add_argument("--out", help="taken as by the other workflows; nothing is written there")
    parser.add_argument("--share", action="store_true", help="measure laps with and without checkpoints instead")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.small:
        given.waves, given.components, given.columns, given.laps = [4], 20, 8, 2
    if given.share:
        print(share(given.rows, given.rounds))
        return
    print("waves  leaf MB  packs  lap's end MB  lap's end ms  all leaves MB  all leaves ms")
    for waves in given.waves:
        print(measure(waves, given.components, given.columns, given.laps, given.place))


def measure(waves: int, components: int, columns: int, laps: int, place: str | None) -> str:
    """One line of the table; medians over laps."""
    folder = tempfile.mkdtemp() if place is None else None
    path = f"{folder or place}/checkpoint-{waves}.zarr"
    rng = np.random.default_rng(0)
    problem, state = begin(
        dpdist.DPMixture(schedule=dpdist.schedules.Memoized(waves)).recipe(),
        ArraySource(rng.normal(size=(64 * waves, columns)), partition_rows=64),
        SerialBackend(),
    )
    state, turning = settled(state, components, rng)
    store = Store.create(path, problem, {}, {"made": "up"})
    memo = Memo(state)
    total, trials = state.leaves[0].summary, state.leaves[0].trials
    leaves_seconds, end_seconds = [], []
    for lap in range(1, laps + 1):
        state = replace(state, leaves=tuple(Leaf(total, trials) for _ in range(waves)))
        memo.follow(Step(state, None, state.leaves[0], 0, state.leaves[0], turning))
        manifest, packs = memo.manifest(state)
        began = time.perf_counter()
        for name, leaves in packs.items():
            store.put_leaves(name, leaves)
        leaves_seconds.append(time.perf_counter() - began)
        fitted = Fitted(state.ids, total, -1.0, 1.0)
        store.commit(problem, fitted, History(), state, manifest)
        end_seconds.append(time.perf_counter() - began - leaves_seconds[-1])
        memo.stored(state, manifest)
        assert lap == store.number
    leaves_ms, end_ms = 1e3 * np.median(leaves_seconds), 1e3 * np.median(end_seconds)
    leaf_bytes = state.leaves[0].nbytes
    end_bytes = size_of(Path(path) / store.attributes["generation"]) if folder else float("nan")
    store.release()
    if folder:
        shutil.rmtree(folder)
    return (
        f"{waves:5d}  {leaf_bytes / 1e6:7.1f}  {len(packs):5d}  {end_bytes / 1e6:12.2f}  {end_ms:12.0f}  "
        f"{waves * leaf_bytes / 1e6:13.0f}  {leaves_ms:13.0f}"
    )


def share(rows: int, rounds: int) -> str:
    """Seconds of six laps with checkpoints over those without: median, smallest and largest of pairs run in turn."""
    rng = np.random.default_rng(0)
    means = 4 * rng.normal(size=(60, 32))
    x = (means[rng.integers(60, size=rows)] + rng.normal(size=(rows, 32))).astype(np.float32)
    ratios, backend = [], local_backend(2)
    with tempfile.TemporaryDirectory() as folder:
        seconds_of(x, backend, None)
        for place in range(rounds):
            without = seconds_of(x, backend, None)
            ratios.append(seconds_of(x, backend, f"{folder}/{place}.zarr") / without)
    backend.close()
    return f"with over without: {np.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def seconds_of(x: np.ndarray, backend: Backend, path: str | None) -> float:
    """Wall time of six laps from 60 clusters."""
    model = dpdist.DPMixture(
        initial="k-means++", initial_components=60, compute_dtype="float32", max_laps=6, tolerance=0.0, random_state=0
    )
    fit = model.prepare(x, path, backend=backend)
    began = time.perf_counter()
    for _ in fit:
        pass
    return time.perf_counter() - began


def settled(state: State, components: int, rng: np.random.Generator) -> tuple[State, Turning]:
    """A state with `components` components and trials on all of them, and what a lap's end without moves does to it."""
    columns = state.leaves[0].summary.stats.shape[1]
    index = np.arange(components)
    deletes = index[: components // 10]
    trials = (
        Splits(index, 2, np.zeros(components, dtype=np.intp), np.full(components, -np.inf)),
        Merges(np.stack([index, np.roll(index, 1)], axis=1)),
        Deletes(deletes, np.stack([deletes + 1, deletes + 2, deletes + 3], axis=1)),
    )

    def some(rows: int, entries: int) -> Summary:
        return Summary(rng.random((rows, columns)), rng.random(entries))

    parts = (some(2 * components, 2 * components), some(0, components), some(deletes.size * 3, deletes.size * 3))
    leaf = Leaf(some(components, components), parts)
    turning = Turning(Change(index, (), index), trials, trials, np.arange(2 * components), 0)
    waves = len(state.leaves)
    return State(2, state.order, 0, index, components, (leaf,) * waves, None, trials, np.zeros(components)), turning


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":  # workers import this file
    main()
