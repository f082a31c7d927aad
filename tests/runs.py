"""Small runs for tests of the engine, checkpoints and backends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import dpdist
from dpdist.core.lease import Owner, process_began, this_process
from dpdist.data import ArraySource
from dpdist.data.base import Source
from dpdist.execution import SerialBackend
from dpdist.inference.files import RunFiles
from dpdist.inference.mixture.engine import Step, steps
from dpdist.inference.mixture.kept import AnyBatchSummary, read_batch_summary
from dpdist.inference.mixture.owners import read_owners
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.registry import MOVES
from dpdist.inference.state import State
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.storage.checkpoint import RunStore


def clusters(seed: int, rows: int = 900, columns: int = 3, groups: int = 5, spread: float = 6.0) -> np.ndarray:
    """Rows drawn from Gaussian clusters."""
    rng = np.random.default_rng(seed)
    means = spread * rng.normal(size=(groups, columns))
    return means[rng.integers(groups, size=rows)] + rng.normal(size=(rows, columns))


def stored_clusters(folder: Path) -> str:
    """The path of stored rows from Gaussian clusters, in twelve partitions."""
    path = folder / "rows.zarr"
    zarr.create_array(path, data=clusters(0, rows=6000, columns=4, groups=6), chunks=(512, 4))
    return str(path)


#: All moves except regroups, which take four fifths of the time of a small run: for tests that do not concern moves.
FEW_MOVES = (dpdist.Split(), dpdist.Merge(), dpdist.Delete())
#: Regroups that search once, in small groups and few rows.
_SHORT = {"largest": 3, "widest": 4, "rows": 400, "searches": 1}
#: All moves, but with short searches: for tests that concern moves, but not their results.
ALL_MOVES = tuple(replace(move, **_SHORT) if isinstance(move, dpdist.Regroup) else move for move in MOVES)


def mixture(**parameters) -> dpdist.DPMixture:
    """A mixture with few batches and laps, and few moves; with none if its schedule makes none."""
    defaults = {
        "schedule": dpdist.schedules.Memoized(batches=4),
        "moves": FEW_MOVES,
        "random_state": 0,
        "max_laps": 12,
    }
    given = {**defaults, **parameters}
    if isinstance(given["schedule"], dpdist.schedules.Stochastic):
        given["moves"] = None
    return dpdist.DPMixture(**given)


class Elsewhere(SerialBackend):
    """A backend whose workers are on a machine without files at a path."""

    def map(self, function, *columns):
        return [[]] if function.__name__ == "_problems_at" else super().map(function, *columns)


def source_of(rows: np.ndarray, partition_rows: int = 100, weights: np.ndarray | None = None) -> Source:
    """Rows in partitions of a given size."""
    return ArraySource(rows, weights, partition_rows)


def begun(model: dpdist.DPMixture, source: Source) -> tuple[Problem, State]:
    """The problem and the first state."""
    return MemoizedMixture().begin(model.spec(), source, SerialBackend())


def some_steps(problem: Problem, source: Source, state: State, count: int, backend=None) -> Iterator[Step]:
    """The first steps of a run."""
    for _, step in zip(range(count), steps(problem, source, state, backend or SerialBackend()), strict=False):
        yield step


def another_process() -> Owner:
    """The parent of this process, as a stand-in for the owner of a lease."""
    return this_process()._replace(pid=os.getppid(), began=process_began(os.getppid()))


def is_finished(path: Any) -> bool:
    """Whether a stored run has ended."""
    fitted = RunStore.open(path).fitted()
    return fitted is not None and fitted.stop is not None


def _batch_summary_bytes(batch_summary: AnyBatchSummary, files: RunFiles) -> bytes:
    found, owners = read_batch_summary(batch_summary, files), read_owners(batch_summary.owners, files)
    parts = [found.summary, *found.measured]
    sums = b"".join(p.stats.tobytes() + p.entropy.tobytes() + np.float64(p.base).tobytes() for p in parts)
    return sums + (b"" if owners is None else owners.tobytes())


def value_bytes(value: Any) -> bytes:
    """All bits of a dataclass of arrays, numbers and other plain values."""
    if is_dataclass(value):
        return b"".join(value_bytes(getattr(value, each.name)) for each in fields(value))
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


def digest(state: State, path: Any = None) -> str:
    """A hash of all bits that the rest of a run depends on; some may be in files of the run at `path`."""
    total, files = hashlib.sha256(), RunFiles(None if path is None else str(path))
    for batch_summary in (
        *state.batch_summaries,
        *state.queue,
        *(batch_summary for batch_summary in (state.start, state.running) if batch_summary is not None),
    ):
        total.update(_batch_summary_bytes(batch_summary, files))
    total.update(repr((state.lap, state.order, state.visited, state.next_id, state.elbo, state.quiet)).encode())
    total.update(b"".join(map(value_bytes, state.proposals)) + state.ids.tobytes())
    total.update(state.sampling_probabilities.tobytes())
    total.update(b"" if state.candidates is None else state.candidates.tobytes())
    total.update(b"" if state.momentum is None else value_bytes(state.momentum))
    if state.sample is not None:
        total.update(state.sample.keys.tobytes() + np.asarray(state.sample.rows).tobytes())
        total.update(repr(state.sample.most).encode() + state.sample.weights.tobytes())
        total.update(b"" if state.sample.seen is None else _batch_summary_bytes(state.sample.seen, files))
        total.update(b"" if state.sample.held is None else state.sample.held.tobytes())
    return total.hexdigest()


def bits(model: Any) -> str:
    """The model and history of a fitted estimator, without times."""
    kept, total = model._history, model._fitted.total
    arrays = next(getattr(total, name).tobytes().hex() for name in ("stats", "table", "words") if name in dir(total))
    return repr((model._fitted.ids.tolist(), [(row.lap, row.elbo) for row in kept.laps])) + arrays
