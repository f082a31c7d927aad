"""Laws of data that were edited while a run rested, or after a fit: any one row is noticed when it is read again."""

from __future__ import annotations

import pickle
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone

import dpdist
from dpdist.core.errors import CheckpointError
from dpdist.data import ArraySource, DaskSource, Source, as_source, base
from dpdist.data.base import DIGESTS, GLANCED, spread_over
from dpdist.data.checked import CheckedSource
from dpdist.data.corpora import write_corpus
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.models.families import IsotropicGaussian, Multinomial
from dpdist.runs.extending import prepare_extension
from dpdist.runs.methods import METHODS
from dpdist.runs.methods.topics import take_census
from dpdist.runs.opening import run_at
from dpdist.storage.checkpoint import RunStore

#: Rows of each of eight partitions, whatever the source.
SIZE, PARTS = 256, 8
RNG = np.random.default_rng(0)
REAL = 6 * RNG.normal(size=(3, 2))[RNG.integers(3, size=PARTS * SIZE)] + RNG.normal(size=(PARTS * SIZE, 2))
COUNTS = RNG.poisson(RNG.gamma(0.4, 2.0, size=(3, 6))[RNG.integers(3, size=PARTS * SIZE)])
WEIGHTS = RNG.uniform(1, 2, size=PARTS * SIZE)

Make = Callable[[Path, np.ndarray], Source]


def stored(folder: Path, rows: np.ndarray) -> str:
    """The path of a Zarr array of rows."""
    path = folder / f"{uuid.uuid4().hex}.zarr"
    zarr.create_array(path, data=rows, chunks=(SIZE // 2, rows.shape[1]))
    return str(path)


def corpus(folder: Path, rows: np.ndarray) -> str:
    """The path of a corpus of counts, which says that it is one never edited."""
    path = folder / f"{uuid.uuid4().hex}.zarr"
    write_corpus(path, [sparse.csr_array(rows)])
    zarr.open_group(path, mode="r+").attrs["sha256"] = "as it was written"
    return str(path)


SOURCES: dict[str, Make] = {
    "dense": lambda _, rows: ArraySource(rows, partition_rows=SIZE),
    "weighted": lambda _, rows: ArraySource(rows, WEIGHTS, SIZE),
    "csr": lambda _, rows: ArraySource(sparse.csr_array(rows), partition_rows=SIZE),
    "zarr": lambda folder, rows: as_source(stored(folder, rows)),
    "weighted zarr": lambda folder, rows: as_source(stored(folder, rows), WEIGHTS),
    "dask": lambda _, rows: DaskSource(da.from_array(rows, chunks=(SIZE, 1))),
    "corpus": lambda folder, rows: as_source(corpus(folder, rows)),
}


def mixture(family: Any = None, **given: Any) -> dpdist.DPMixture:
    """A mixture of two batches."""
    given = {"schedule": Memoized(batches=2), "tolerance": 0.0, "random_state": 0, "max_laps": 3, **given}
    return dpdist.DPMixture(IsotropicGaussian() if family is None else family, **given)


def topics(schedule: Any, **given: Any) -> dpdist.HDPTopicModel:
    """A topic model."""
    return dpdist.HDPTopicModel(initial_topics=2, schedule=schedule, random_state=0, **{"max_laps": 3, **given})


def extension(source: Source, path: Path) -> Any:
    """The pass of another model that goes on with new rows."""
    dpdist.SVA(IsotropicGaussian(), random_state=0).fit(REAL[:300] + 1.0).save(path)
    return prepare_extension(path, source, SerialBackend(), None, False, {})


#: Kind of run -> what is ready to run at a path, and the rows it takes.
RUNS: dict[str, tuple[Callable[[Source, Path], Any], np.ndarray]] = {
    "mixture": (lambda source, path: mixture().prepare(source, path), REAL),
    "mixture of counts": (lambda source, path: mixture(Multinomial()).prepare(source, path), COUNTS),
    "k-means++ start": (lambda s, p: mixture(initial="k-means++", initial_components=3).prepare(s, p), REAL),
    "sva start": (lambda s, p: mixture(initial="sva", initial_components=3).prepare(s, p), REAL),
    "principal axes": (lambda s, p: mixture(row_transform=dpdist.TransformPlan(pca=1)).prepare(s, p), REAL),
    "pass": (lambda s, p: dpdist.SVA(IsotropicGaussian(), random_state=0).prepare(s, checkpoint_path=p), REAL),
    "extension": (extension, REAL),
    "topics": (lambda source, path: topics(Memoized(batches=2)).prepare(source, path), COUNTS),
    "online topics": (
        lambda source, path: topics(Stochastic(batches=2), weights="point").prepare(source, path),
        COUNTS,
    ),
    "batch topics": (lambda source, path: topics(Batch(), weights="point").prepare(source, path), COUNTS),
}
CASES = [
    *(("mixture", name) for name in ("dense", "weighted", "zarr", "dask")),
    ("mixture of counts", "csr"),
    *((run, "dense") for run in ("k-means++ start", "sva start", "principal axes", "extension")),
    *(("pass", name) for name in ("dense", "weighted zarr")),
    ("topics", "corpus"),
    *((run, "csr") for run in ("online topics", "batch topics")),
]


def edited(rows: np.ndarray, row: int) -> np.ndarray:
    """Rows of which one entry of one is another."""
    changed = rows.copy()
    changed[row, row % rows.shape[1]] += 1
    return changed


@pytest.mark.filterwarnings("ignore:the dask.array is not persisted:UserWarning")
@pytest.mark.parametrize(("run", "kind"), CASES, ids=[f"{run}, {kind}" for run, kind in CASES])
def test_any_edited_row_is_noticed_in_the_first_lap_after_a_resumption(run, kind, tmp_path) -> None:
    (begin, rows), make, path = RUNS[run], SOURCES[kind], tmp_path / "run.zarr"
    begin(make(tmp_path, rows), path).close()
    limits = {"max_laps": 1} if METHODS[run_at(path).method].endless else {}
    for row in (7, 1650):
        source = make(tmp_path, edited(rows, row))
        part = next(part for part in source.partitions if part.start <= row < part.stop)
        there = rf"partition {part.index} \((rows|documents) {part.start} to {part.stop}\)"
        copy = shutil.copytree(path, tmp_path / f"{row}.zarr")
        with pytest.raises(CheckpointError, match=rf"the data changed since .*\.zarr: {there}.*start a new run\.$"):
            dpdist.resume(copy, source, **limits)
    dpdist.resume(path, make(tmp_path, rows), **limits)


@pytest.mark.parametrize("run", ["mixture", "pass"])
def test_any_edited_weight_is_noticed(run, tmp_path) -> None:
    RUNS[run][0](ArraySource(REAL, WEIGHTS, SIZE), tmp_path / "run.zarr").close()
    changed = WEIGHTS.copy()
    changed[3 * SIZE - 1] *= 1.5
    for weights in (changed, None):
        with pytest.raises(CheckpointError, match=r"the data changed since the checkpoint"):
            dpdist.resume(tmp_path / "run.zarr", ArraySource(REAL, weights, SIZE))


def test_a_row_visited_in_the_lap_that_was_broken_off_is_noticed_in_the_next(tmp_path) -> None:
    fit = mixture().prepare(ArraySource(REAL, partition_rows=SIZE), tmp_path / "run.zarr")
    fit.checkpoint_seconds = 0.0
    visited = next(step.state.order[0] for step in fit if step.state.lap == 2 and step.state.visited == 1)
    fit.close()
    part = next(p for p in range(visited, PARTS, 2) if p not in spread_over(PARTS, GLANCED))
    with pytest.raises(CheckpointError, match=f"partition {part} "):
        dpdist.resume(tmp_path / "run.zarr", ArraySource(edited(REAL, part * SIZE + 5), partition_rows=SIZE))
    assert len(RunStore.open(tmp_path / "run.zarr").history().laps) == 2


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=0)[::2]])
def test_the_same_rows_in_another_order_of_memory_are_the_same_data(layout, tmp_path) -> None:
    mixture().prepare(ArraySource(REAL, partition_rows=SIZE), tmp_path / "run.zarr").close()
    dpdist.resume(tmp_path / "run.zarr", ArraySource(layout(REAL), partition_rows=SIZE), max_laps=1)


def test_rows_edited_in_place_between_two_resumptions_are_noticed(tmp_path) -> None:
    rows = REAL.copy()
    mixture().prepare(ArraySource(rows, partition_rows=SIZE), tmp_path / "run.zarr").close()
    dpdist.resume(tmp_path / "run.zarr", ArraySource(rows, partition_rows=SIZE), max_laps=1)
    rows[6 * SIZE + 3, 1] = 0.0
    with pytest.raises(CheckpointError, match="partition 6 "):
        dpdist.resume(tmp_path / "run.zarr", ArraySource(rows, partition_rows=SIZE), max_laps=2)


def test_a_partition_is_checked_once_a_session(tmp_path, monkeypatch) -> None:
    mixture().prepare(ArraySource(REAL, partition_rows=SIZE), tmp_path / "run.zarr").close()
    taken: list[int] = []
    digest = base.digest_of_rows
    monkeypatch.setattr(base, "digest_of_rows", lambda *given: (taken.append(1), digest(*given))[1])
    for laps in (3, 4):
        taken.clear()
        dpdist.resume(tmp_path / "run.zarr", ArraySource(REAL, partition_rows=SIZE), max_laps=laps)
        assert len(taken) == PARTS


@pytest.mark.filterwarnings("ignore:the dask.array is not persisted:UserWarning")
def test_blocks_of_a_dask_array_are_computed_once_before_the_first_lap(tmp_path) -> None:
    computed: list[int] = []

    def block(rows: np.ndarray) -> np.ndarray:
        computed.append(len(rows))
        return rows

    array = da.from_array(REAL, chunks=(SIZE, 2)).map_blocks(block, meta=REAL[:0])
    mixture().prepare(DaskSource(array), tmp_path / "run.zarr").close()
    assert computed == [SIZE] * PARTS


# What the first pass finds


@given(size=st.integers(1, 40), pca=st.booleans())
def test_the_first_pass_leaves_the_digest_of_each_partition_in_order(size, pca) -> None:
    rows, weights = REAL[:120], WEIGHTS[:120]
    for source in (ArraySource(rows, weights, size), ArraySource(rows, None, size)):
        assert source.digests is None
        expected = ArraySource(rows, source.weights, size).fingerprint()
        summarise_source(source, SerialBackend(), products=pca)
        assert source.digests == tuple(partition.digest() for partition in source.partitions)
        assert source.fingerprint() == expected and list(source.digests) == expected[DIGESTS]
    documents = ArraySource(sparse.csr_array(COUNTS[:120]), partition_rows=size)
    take_census(documents, SerialBackend(), 0)
    assert documents.digests == tuple(partition.digest() for partition in documents.partitions)


@given(row=st.integers(0, PARTS * SIZE - 1))
def test_a_fingerprint_changes_with_any_row_and_its_own_partition_alone(row) -> None:
    changed = REAL.copy()
    changed[row, 0] += 1
    old, new = (ArraySource(rows, partition_rows=SIZE).fingerprint()[DIGESTS] for rows in (REAL, changed))
    assert [place for place in range(PARTS) if old[place] != new[place]] == [row // SIZE]


def test_a_checked_source_is_its_source_in_all_else(tmp_path) -> None:
    for kind in ("weighted zarr", "csr"):
        source = SOURCES[kind](tmp_path, REAL)
        seen = CheckedSource(source, source.fingerprint()[DIGESTS], "the fit")
        assert (seen.shape, seen.label, seen.sparse, seen.identity()) == (
            source.shape,
            source.label,
            source.sparse,
            source.identity(),
        )
        assert seen.fingerprint() == source.fingerprint() and seen.glance() == source.glance()
        for mine, theirs in zip(seen.partitions, source.partitions, strict=True):
            mine = pickle.loads(pickle.dumps(mine))
            assert (mine.index, mine.start, mine.stop, mine.label) == (
                theirs.index,
                theirs.start,
                theirs.stop,
                theirs.label,
            )
            assert mine.digest() == theirs.digest()


# After a fit


@pytest.mark.parametrize(
    "ask", [lambda model: model.labels_, lambda model: model.tree(), lambda model: model.cut(1).labels_]
)
@pytest.mark.parametrize("model", [dpdist.DPMixture(max_laps=3), dpdist.DPMixture(n_init=2, max_laps=2), dpdist.SVA()])
@pytest.mark.parametrize("edit", [True, False])
def test_rows_edited_after_the_fit_are_not_taken_for_those_of_the_fit(model, ask, edit) -> None:
    rows = REAL.copy()
    fitted = clone(model).fit(rows)
    fitted.tree(REAL)
    rows[1000, 1] += edit
    if edit:
        with pytest.raises(CheckpointError, match=r"the data changed since the fit: .* has other rows or weights"):
            ask(fitted)
    else:
        ask(fitted)


# What is seen at once


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: ArraySource(REAL.astype(np.float32), partition_rows=SIZE), "dtype was float64, is float32"),
        (lambda: ArraySource(sparse.csr_array(REAL), partition_rows=SIZE), "kind was dense, is csr"),
        (lambda: ArraySource(REAL[:-1], partition_rows=SIZE), r"shape was \[2048, 2\], is \[2047, 2\]"),
        (lambda: ArraySource(REAL, partition_rows=SIZE // 2), r"\(cut was"),
    ],
    ids=["type", "kind", "shape", "cut"],
)
def test_data_of_another_kind_are_named_by_what_differs(other, told, tmp_path) -> None:
    mixture().prepare(ArraySource(REAL, partition_rows=SIZE), tmp_path / "run.zarr").close()
    with pytest.raises(CheckpointError, match=f"the data changed since the checkpoint in .*{told}.*start a new run"):
        RunStore.open(tmp_path / "run.zarr").same_data(other())


def test_the_first_the_last_and_a_middle_partition_are_compared_at_once(tmp_path) -> None:
    mixture().prepare(ArraySource(REAL, partition_rows=SIZE), tmp_path / "run.zarr").close()
    store, refused = RunStore.open(tmp_path / "run.zarr"), []
    for part in range(PARTS):
        try:
            store.same_data(ArraySource(edited(REAL, part * SIZE), partition_rows=SIZE))
        except CheckpointError:
            refused.append(part)
    assert refused == [0, 4, PARTS - 1]
