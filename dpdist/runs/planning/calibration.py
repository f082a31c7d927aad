"""Unit costs of a run, measured: a few laps over some rows on each worker, a few tasks, a file.

The laps use the settings and family of the run, on rows of its data or drawn ones, once with the given number of
components and once with half as many, to separate costs that grow with components from constant ones. All workers run
them at the same time, as in a run, because they may share the memory and cores of a host.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import psutil
import zarr

from dpdist.core.errors import InputError
from dpdist.core.phases import Phase, since, spent
from dpdist.core.places import place_of
from dpdist.data import ArraySource, Source, as_source
from dpdist.execution import Backend, SerialBackend
from dpdist.execution.base import Ref, Value
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.schedules import Memoized
from dpdist.inference.state import State
from dpdist.models.families.base import dense_rows
from dpdist.runs.methods.mixture import MemoizedMixture, prepared_problem
from dpdist.runs.planning.costs import UnitCosts
from dpdist.runs.planning.unwritten import UnwrittenSource, drawn_rows
from dpdist.runs.specs.mixture import FitSpec
from dpdist.storage.codec import shape_of

#: Rows of calibration laps: least number per component, factor over the rows that moves sample from a component, least
#: number of rows, and largest number of values. With the factor, most components have enough rows for the moves.
ROWS_EACH, ROOM, FEWEST, MOST_NUMBERS = 64, 2, 4_096, 2**25
#: Largest number of workers that run calibration laps at a time, to include the cost of sharing a host.
MOST_WORKERS = 16
#: Batches of these laps, and the lap that is measured: the first with moves measured on workers and accepted.
BATCHES, LAP = 2, 2
#: Number of trivial tasks, of values that each receives and returns, of bytes transferred, and of bytes of a test file.
TASKS, NUMBERS, TRAVELLING, FILE = 400, 2**12, 2**25, 2**24
#: Number of tasks that are awaited one by one.
TRIPS = 15
#: Number of partitions that are read.
READ = 3


class _LapCosts(NamedTuple):
    """Costs of one lap in one process: seconds by phase, components, rows of statistics per component in a summary.

    ``searches`` is the part of the moves that workers perform in a run.
    """

    local_step: float
    sums: float
    global_step: float
    moves: float
    searches: float
    components: float
    summary_rows: float
    summary_bytes: float


def calibrate(spec: FitSpec, source: Source, components: int, backend: Backend) -> UnitCosts:
    """Measure the unit costs of a run.

    Parameters
    ----------
    spec : settings of the run
    source : the data, cut as in the run; possibly unwritten
    components : expected number of components
    backend : one or more workers of the kind that the run will use

    Raises
    ------
    InputError
        If the family does not accept the rows, or cannot have that many components.
    """
    rows = _some_rows(spec, source, components)
    dense = Candidates(every=1)
    asked = [(max(1, components // 2), dense), (components, dense)]
    if spec.candidates.serve(components) and spec.schedule.name == "memoized":
        asked.append((components, spec.candidates))
    fewer, whole, *others = _laps(spec, rows, asked, backend)
    few = others[0].local_step / len(rows) if others else None
    more = max(1, whole.components - fewer.components)
    slope = max(0.0, whole.local_step - fewer.local_step) / more
    if whole.components == fewer.components:
        slope = whole.local_step / whole.components
    with tempfile.TemporaryDirectory() as folder:
        read_rate = _reading(source, rows, folder)
        write_seconds, write_rate = _writing(folder)
    tasks = cluster_costs(backend)
    return UnitCosts(
        row=max(0.0, whole.local_step - slope * whole.components) / len(rows),
        row_component=slope / len(rows),
        candidate_row=few,
        summary_rows=whole.summary_rows,
        add=_adding(int(whole.summary_bytes)),
        global_step=whole.global_step / (BATCHES * whole.components),
        lap_end=whole.moves / whole.components,
        search=whole.searches / whole.components,
        read_rate=read_rate,
        write_seconds=write_seconds,
        write_rate=write_rate,
        **tasks._asdict(),
    )


def planned(spec: FitSpec, source: Source, components: int) -> Problem:
    """The problem of the run, prepared from some of its rows."""
    rows = _some_rows(spec, source, components)
    return prepared_problem(_calibrating(spec), _in_batches(rows), SerialBackend())


# Laps


def _some_rows(spec: FitSpec, source: Source, components: int) -> np.ndarray:
    """Rows of the data, or drawn ones if it is unwritten, enough for all components."""
    columns = source.shape[1]
    each = max(ROWS_EACH, Sampling().each(components, 8 * columns))
    most = max(2 * components, MOST_NUMBERS // columns)
    wanted = min(max(FEWEST, ROOM * each * components), most, max(source.shape[0], 2 * components))
    if isinstance(source, UnwrittenSource):
        return _drawn_for(spec, wanted, columns, components)
    rows, found = [], 0
    for partition in source.partitions:
        rows.append(dense_rows(partition.load()[0])[: wanted - found])
        found += len(rows[-1])
        if found == wanted:
            break
    taken: np.ndarray = np.concatenate(rows)
    return np.resize(taken, (max(len(taken), 2 * components), columns))


def _drawn_for(spec: FitSpec, rows: int, columns: int, components: int) -> np.ndarray:
    """Drawn rows that the family accepts."""
    refused: InputError | None = None
    for kind in ("numbers", "counts", "bits"):
        found = drawn_rows(kind, rows, columns, components)
        try:
            MemoizedMixture().begin(replace(spec, initial="one"), ArraySource(found[:FEWEST]), SerialBackend())
        except InputError as error:
            refused = refused or error
        else:
            return found
    assert refused is not None, "the family refused all kinds of rows"
    raise refused


def _begun(spec: FitSpec, rows: np.ndarray, components: int) -> tuple[Problem, State, Source]:
    """The problem and first state of a fit that starts with `components` components, rows labelled by the nearest of
    evenly spaced rows."""
    means = rows[np.linspace(0, len(rows) - 1, components).astype(np.intp)].astype(np.float64)
    shift, each = 0.5 * (means * means).sum(axis=1), max(1, MOST_NUMBERS // components)
    labels = np.concatenate([(rows[n : n + each] @ means.T - shift).argmax(axis=1) for n in range(0, len(rows), each)])
    labels[np.linspace(0, len(rows) - 1, components).astype(np.intp)] = np.arange(components)
    source = _in_batches(rows)
    return *MemoizedMixture().begin(_calibrating(spec, labels), source, SerialBackend()), source


def _calibrating(spec: FitSpec, initial: str | np.ndarray = "one") -> FitSpec:
    """The settings of a run, with those of the measured laps."""
    return replace(spec, initial=initial, schedule=Memoized(batches=BATCHES), tolerance=0.0)


def _in_batches(rows: np.ndarray) -> Source:
    return ArraySource(rows, partition_rows=-(-len(rows) // BATCHES))


def _laps(spec: FitSpec, rows: np.ndarray, asked: list[tuple[int, Candidates]], backend: Backend) -> list[_LapCosts]:
    """Lap costs, averaged over workers, for each number of components and setting of candidates."""
    workers = min(max(1, backend.threads), MOST_WORKERS)
    given = backend.share(rows, "rows of calibrating laps")
    found = backend.fetch(backend.map(_laps_of_one, [spec] * workers, [given] * workers, [asked] * workers))
    return [_LapCosts(*np.mean(of_all, axis=0)) for of_all in zip(*found, strict=True)]


def _laps_of_one(spec: FitSpec, rows: np.ndarray, asked: list[tuple[int, Candidates]]) -> list[_LapCosts]:
    starts = {components: _begun(spec, rows, components) for components in {each for each, _ in asked}}
    return [_lap(*starts[components], components, candidates) for components, candidates in asked]


def _lap(problem: Problem, state: State, source: Source, components: int, candidates: Candidates) -> _LapCosts:
    """Costs of the measured lap."""
    problem = replace(problem, candidates=candidates)
    before, had, backend = spent(), components, _Searching()
    for step in MemoizedMixture().steps(problem, source, state, backend, None):
        if step.info is not None and step.info.lap == LAP:
            break
        if step.info is not None:
            before, had, backend.seconds = spent(), step.info.n_components, 0.0
    took, summary = since(before), step.batch_summary
    table = [part.stats.shape[0] for part in (summary.summary, *summary.measured)]
    return _LapCosts(
        took.get(Phase.LOCAL_STEP, 0.0),
        took.get(Phase.SUMS, 0.0),
        took.get(Phase.GLOBAL_STEP, 0.0),
        max(0.0, took.get(Phase.MOVES, 0.0) - backend.seconds),
        backend.seconds,
        had,
        sum(table) / had,
        shape_of(summary)[1],
    )


class _Searching(SerialBackend):
    """Sums the seconds of mapped tasks, such as searches for moves, which workers perform in a run."""

    seconds = 0.0

    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        began = time.perf_counter()
        found = super().map(function, *columns)
        self.seconds += time.perf_counter() - began
        return found


def _adding(size: int) -> float:
    """Seconds per byte to add two arrays of `size` bytes."""
    one, other = (np.ones(max(1, size // 8)) for _ in range(2))
    return _timed(lambda: one + other) / one.nbytes


# Places


def _reading(source: Source, rows: np.ndarray, folder: str) -> float | None:
    """Rate of reading partitions, in bytes a second; None if they are in memory."""
    if isinstance(source, UnwrittenSource):
        stored = rows[: int(source.partitions[0].rows)].astype(source.dtype)
        zarr.create_array(f"{folder}/rows.zarr", data=stored, chunks=stored.shape)
        source = as_source(f"{folder}/rows.zarr")
    partitions = source.partitions[:READ]
    if isinstance(source, ArraySource):
        return None
    began = time.perf_counter()
    size = sum(dense_rows(partition.load()[0]).nbytes for partition in partitions)
    return size / max(time.perf_counter() - began, 1e-9)


def _writing(folder: str) -> tuple[float, float]:
    """Seconds to write a small file, and the rate of writing a large one."""
    place, data = place_of(f"{folder}/run"), os.urandom(FILE)
    small = min(_timed(partial(place.create, f"small-{name}", b"1")) for name in range(3))
    large = _timed(lambda: place.create("large", data))
    return small, FILE / max(large - small, 1e-9)


class TaskCosts(NamedTuple):
    """The part of :class:`UnitCosts` that depends on the cluster only."""

    task: float
    round_trip: float
    submit: float
    transfer: float | None
    process: float


def cluster_costs(backend: Backend) -> TaskCosts:
    """Costs of tasks that return their input, of summing their results, and of transfers."""
    if not backend.threads:
        return TaskCosts(0.0, 0.0, 0.0, None, _memory(0))
    backend.fetch(backend.map(_nothing, range(8)))
    trips = [_timed(lambda: backend.fetch(backend.map(_nothing, [0]))) for _ in range(TRIPS)]
    shared = backend.share(np.zeros(NUMBERS))
    began = time.perf_counter()
    refs = backend.map(_as_given, [shared] * TASKS)
    submitted = time.perf_counter() - began
    backend.fetch([backend.sum(refs)])
    tasks = time.perf_counter() - began
    made = backend.map(_bytes, [TRAVELLING])
    backend.fetch(backend.map(_nothing, [made[0]]))
    seconds = _timed(lambda: backend.fetch(made))
    process = backend.fetch(backend.map(_memory, [0]))[0]
    rate = TRAVELLING / max(seconds, 1e-9)
    return TaskCosts(tasks / TASKS, float(np.median(trips)), submitted / TASKS, rate, process)


def _nothing(_: object) -> None:
    """A task without work, which waits for its input."""


def _as_given(value: np.ndarray) -> np.ndarray:
    """A task that returns its input."""
    return value


def _bytes(size: int) -> np.ndarray:
    return np.zeros(size // 8)


def _memory(_: object) -> float:
    return float(psutil.Process().memory_info().rss)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
