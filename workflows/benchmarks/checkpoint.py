"""Cost of a checkpoint: bytes and seconds for all batch summaries of a lap, and for the end of a lap.

    python workflows/benchmarks/checkpoint.py [--batches 20 100] [--components 200] [--columns 64] [--place s3://…]
    python workflows/benchmarks/checkpoint.py --share [--rows 200000]

The second command measures the share of a run's time spent on checkpoints: the same laps with and without checkpoints,
alternating, on two workers.

The state imitates a settled run: K components of full-covariance Gaussians in D columns, a proposed split in two of
each, K proposed merges, and deletes of a tenth. A checkpoint at the end of a lap stores the summaries of all batches,
then commits.
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
from dpdist.execution.connecting import local_backend
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import Heirs
from dpdist.inference.mixture.engine import Step
from dpdist.inference.mixture.lap_moves import ComponentMap
from dpdist.inference.moves.change import Change
from dpdist.inference.moves.delete import Deletes
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.merge import Merges
from dpdist.inference.state import State
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.storage.checkpoint import Fitted, Generation, RunStore, StoredState
from dpdist.storage.codec import shape_of
from dpdist.storage.history import History
from dpdist.storage.memo import Memo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[20, 100])
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
        given.batches, given.components, given.columns, given.laps = [4], 20, 8, 2
    if given.share:
        print(share(given.rows, given.rounds))
        return
    print("batches  leaf MB  packs  lap's end MB  lap's end ms  all leaves MB  all leaves ms")
    for batches in given.batches:
        print(measure(batches, given.components, given.columns, given.laps, given.place))


def measure(batches: int, components: int, columns: int, laps: int, place: str | None) -> str:
    """One line of the table; medians over laps."""
    folder = tempfile.mkdtemp() if place is None else None
    path = f"{folder or place}/checkpoint-{batches}.zarr"
    rng = np.random.default_rng(0)
    problem, state = MemoizedMixture().begin(
        dpdist.DPMixture(schedule=dpdist.schedules.Memoized(batches)).spec(),
        ArraySource(rng.normal(size=(64 * batches, columns)), partition_rows=64),
        SerialBackend(),
    )
    state, component_map = settled(state, components, rng)
    store = RunStore.create(path, problem, {}, {"made": "up"})
    memo = Memo(state)
    total, measured = state.batch_summaries[0].summary, state.batch_summaries[0].measured
    batch_summaries_seconds, end_seconds = [], []
    for lap in range(1, laps + 1):
        state = replace(state, batch_summaries=tuple(BatchSummary(total, measured) for _ in range(batches)))
        memo.follow(Step(state, None, state.batch_summaries[0], 0, state.batch_summaries[0], component_map))
        manifest, packs = memo.manifest(state)
        began = time.perf_counter()
        for name, batch_summaries in packs.items():
            store.put_batch_summaries(name, batch_summaries)
        batch_summaries_seconds.append(time.perf_counter() - began)
        fitted = Fitted(state.ids, total, -1.0, 1.0, 1.0, state.next_id)
        predictor = MemoizedMixture().predictor(problem, total, state.ids)
        store.commit(Generation(fitted, predictor, History(), StoredState.of(state, manifest)))
        end_seconds.append(time.perf_counter() - began - batch_summaries_seconds[-1])
        memo.stored(state, manifest)
        assert lap == store.number
    batch_summaries_ms, end_ms = 1e3 * np.median(batch_summaries_seconds), 1e3 * np.median(end_seconds)
    batch_summary_bytes = shape_of(state.batch_summaries[0])[1]
    end_bytes = size_of(Path(path) / store.attributes["generation"]) if folder else float("nan")
    store.release()
    if folder:
        shutil.rmtree(folder)
    return (
        f"{batches:5d}  {batch_summary_bytes / 1e6:7.1f}  {len(packs):5d}  {end_bytes / 1e6:12.2f}  {end_ms:12.0f}  "
        f"{batches * batch_summary_bytes / 1e6:13.0f}  {batch_summaries_ms:13.0f}"
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


def settled(state: State, components: int, rng: np.random.Generator) -> tuple[State, ComponentMap]:
    """A state with `components` components and proposals on all, and what a lap's end without moves does to it."""
    columns = state.batch_summaries[0].summary.stats.shape[1]
    index, nothing = np.arange(components), np.zeros(0, dtype=np.intp)
    deletes = index[: components // 10]
    proposals = (
        Divisions.begun([(k,) for k in index.tolist()], [2] * components),
        Merges(np.stack([index, np.roll(index, 1)], axis=1)),
        Deletes(deletes, np.stack([deletes + 1, deletes + 2, deletes + 3], axis=1)),
    )

    def some(rows: int, entries: int) -> Summary:
        return Summary(rng.random((rows, columns)), rng.random(entries))

    parts = (some(2 * components, 2 * components), some(0, components), some(deletes.size * 3, deletes.size * 3))
    batch_summary = BatchSummary(some(components, components), parts)
    carried = (np.arange(2 * components), nothing, nothing)
    component_map = ComponentMap(Change(index, (), index), proposals, proposals, carried, Heirs(index, index))
    batches = len(state.batch_summaries)
    return State(
        2, state.order, 0, index, components, (batch_summary,) * batches, None, proposals, np.zeros(components)
    ), component_map


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":  # workers import this file
    main()
