"""Data as people have them: files and tables of many kinds give the same rows, names and labels."""

from __future__ import annotations

import os
import resource
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array, save_npz
from zarr.storage import MemoryStore

import dpdist
from dpdist.cli import root as cli
from dpdist.cli.options import split
from dpdist.cli.terminal import as_options
from dpdist.core.errors import InputError
from dpdist.data import ArraySource, Source, as_source, chosen_source, row_ids, tables
from dpdist.data.convert import convert
from dpdist.data.tables import Choice, parquet
from dpdist.data.tables.source import FileSource, file_source
from dpdist.execution import SerialBackend
from dpdist.report.page import claim_page
from dpdist.runs.config import parse_config, read_config
from dpdist.runs.label_table import RowIds, claim_file, create_ids, write_ids
from dpdist.runs.labelling import write_labels
from dpdist.runs.opening import gone_on, open_run
from dpdist.testing import check_source
from tests.runs import clusters, mixture

ROWS = clusters(1)
FRAME = pd.DataFrame(ROWS, columns=["a", "b", "c"])
NAMED = FRAME.assign(who=[f"r{i}" for i in range(len(FRAME))])


def rows_of(source: Source) -> np.ndarray:
    return np.concatenate([np.asarray(part.load()[0]) for part in source.partitions])


def as_folder(folder: Path, group: int = 150) -> Path:
    """The frame in a folder of Parquet files, in groups of so many rows."""
    folder.mkdir()
    for place, start in enumerate(range(0, len(FRAME), 400)):
        FRAME[start : start + 400].to_parquet(folder / f"part-{place}.parquet", row_group_size=group)
    return folder


def as_parts(folder: Path) -> str:
    """The frame in several files of text, as the pattern that they fit."""
    folder.mkdir()
    for place, start in enumerate(range(0, len(FRAME), 400)):
        FRAME[start : start + 400].to_csv(folder / f"part-{place}.csv", index=False)
    return f"{folder}/part-*.csv"


def as_hdf5(path: Path) -> str:
    """The rows as one of two data sets."""
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = ROWS, ROWS[:3]
    return f"{path}/train"


def as_npy(path: Path) -> Path:
    np.save(path, ROWS)
    return path


def as_text(path: Path, **how) -> Path:
    FRAME.to_csv(path, index=False, **how)
    return path


#: Files, and whether they have names.
FILES = {
    "csv": (lambda folder: as_text(folder / "x.csv"), True),
    "gzip": (lambda folder: as_text(folder / "x.csv.gz"), True),
    "zstd": (lambda folder: as_text(folder / "x.CSV.xz"), True),
    "tabs": (lambda folder: as_text(folder / "x.tsv", sep="\t"), True),
    "bars": (lambda folder: as_text(folder / "x.csv", sep="|"), True),
    "semicolons": (lambda folder: as_text(folder / "x.csv", sep=";"), True),
    "decimal commas": (lambda folder: as_text(folder / "x.csv", sep=";", decimal=","), True),
    "no header": (lambda folder: as_text(folder / "x.csv", header=False, sep=";", decimal=","), False),
    "parts": (lambda folder: as_parts(folder / "x"), True),
    "folder": (lambda folder: as_folder(folder / "x"), True),
    "folder of large groups": (lambda folder: as_folder(folder / "x", 400), True),
    "npy": (lambda folder: as_npy(folder / "x.npy"), False),
    "hdf5": (lambda folder: as_hdf5(folder / "x.h5"), False),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_every_kind_are_the_same_rows_converted_or_not(kind: str, tmp_path: Path) -> None:
    write, named = FILES[kind]
    path = write(tmp_path)
    source = as_source(path)
    check_source(source)
    assert_array_equal(rows_of(source), ROWS)
    assert source.names == (("a", "b", "c") if named else None)
    convert(path, tmp_path / "rows.zarr")
    stored = as_source(tmp_path / "rows.zarr")
    assert_array_equal(rows_of(stored), ROWS)
    assert stored.names == source.names


@pytest.mark.parametrize("kind", ["npy", "hdf5", "folder", "folder of large groups"])
def test_files_that_are_read_anywhere_are_read_a_partition_at_a_time(kind: str, tmp_path: Path) -> None:
    source = as_source(FILES[kind][0](tmp_path))
    assert isinstance(source, FileSource) and len(source.partitions) > 2
    assert source.partitions[1].label.endswith(source.files[0])


@pytest.mark.parametrize("kind", ["npy", "hdf5"])
def test_more_files_can_be_read_than_a_process_may_have_open(kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "MOST_OPEN", 3)
    write = FILES[kind][0]
    folders = [tmp_path / str(place) for place in range(60)]
    for folder in folders:
        folder.mkdir()
    files = [str(write(folder)) for folder in folders]
    whole, limits = np.tile(ROWS, (60, 1)), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 40, limits[1]))
    try:
        source = as_source(files)
        convert(files, tmp_path / "rows.zarr")
        for each in (*source.partitions, *as_source(tmp_path / "rows.zarr").partitions):
            assert_array_equal(each.load()[0], whole[each.start : each.stop])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_partition_opens_the_files_that_hold_its_rows_and_no_others(tmp_path: Path) -> None:
    sizes, ends = [400, 0, 700, 1, 300, 0, 600], [0, 400, 400, 1100, 1101, 1401, 1401, 2001]
    names = [str(tmp_path / f"part-{place}.npy") for place in range(len(sizes))]
    rows = np.random.default_rng(0).normal(size=(ends[-1], 3))
    for place, name in enumerate(names):  # of types that need not be the same
        np.save(name, rows[ends[place] : ends[place + 1]].astype(np.float64 if place % 2 else np.float32))
    source = as_source(names).in_partitions_of(256)
    whole = np.concatenate([np.load(name) for name in names])
    assert len(source.partitions) > 6
    for each in source.partitions:
        held = [
            name for name, (a, b) in zip(names, pairwise(ends), strict=True) if max(a, each.start) < min(b, each.stop)
        ]
        assert [name for name in each.files if name in held] == held
        assert all(name in held or not np.load(name).size for name in each.files)
        found = each.load()[0]
        assert found.dtype == whole.dtype and found.tobytes() == whole[each.start : each.stop].tobytes()


#: Tables in memory, and what Dask and xarray have.
TABLES = {
    "pandas": lambda: FRAME,
    "polars": lambda: pl.DataFrame(dict(zip("abc", ROWS.T, strict=True))),
    "arrow": lambda: pa.table(dict(zip("abc", ROWS.T, strict=True))),
    "dask": lambda: dd.from_pandas(FRAME, npartitions=3),
    "columns": lambda: xr.Dataset({name: ("row", column) for name, column in zip("abc", ROWS.T, strict=True)}),
    "lazy columns": lambda: TABLES["columns"]().chunk(row=500),
    "one variable": lambda: xr.Dataset({"x": (("row", "column"), ROWS, {})}, coords={"column": ["a", "b", "c"]}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_every_kind_are_the_same_rows_with_their_names(kind: str) -> None:
    source = as_source(TABLES[kind]())
    check_source(source)
    assert source.names == ("a", "b", "c")
    assert_array_equal(rows_of(source), ROWS)
    assert isinstance(source, ArraySource) == (kind not in ("dask", "lazy columns"))


def test_files_come_in_the_order_of_the_numbers_in_their_names(tmp_path: Path) -> None:
    for kind, write in (("parquet", pd.DataFrame.to_parquet), ("csv", pd.DataFrame.to_csv)):
        (tmp_path / kind).mkdir()
        for place in range(12):
            write(FRAME[20 * place : 20 * place + 20], tmp_path / kind / f"part.{place}.{kind}", index=False)
    for pattern in ("parquet", "parquet/*.parquet", "csv/part.*.csv"):
        np.testing.assert_allclose(rows_of(as_source(f"{tmp_path}/{pattern}")), ROWS[:240], rtol=1e-12)


def test_a_folder_has_the_rows_of_what_is_not_hidden_and_empty_files_add_none(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "parts")
    for beside in ("_temporary/0/x.parquet", ".part-0.parquet", "_part.parquet"):
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        FRAME[:50].to_parquet(folder / beside)
    for empty in ("part-", "part-00", "part-9"):
        FRAME[:0].to_parquet(folder / f"{empty}.parquet")
    assert_array_equal(rows_of(as_source(str(folder))), ROWS)
    pd.DataFrame(columns=["a", "b", "c"]).to_parquet(folder / "part-5.parquet")
    assert_array_equal(rows_of(as_source(str(folder))), ROWS)
    np.save(tmp_path / "none.npy", ROWS[:0])
    np.save(tmp_path / "some.npy", ROWS)
    assert_array_equal(rows_of(as_source([str(tmp_path / "none.npy"), str(tmp_path / "some.npy")])), ROWS)
    named = [tmp_path / "none.csv", tmp_path / "some.csv"]
    FRAME[:0].to_csv(named[0], index=False)
    FRAME.to_csv(named[1], index=False)
    np.testing.assert_allclose(rows_of(as_source([str(each) for each in named])), ROWS, rtol=1e-12)
    convert([str(each) for each in named], tmp_path / "rows.zarr", backend=SerialBackend())
    np.testing.assert_allclose(zarr.open_array(tmp_path / "rows.zarr")[:], ROWS, rtol=1e-12)
    for nothing in ([str(named[0])], [str(named[0])] * 2, [str(folder / "part-.parquet")]):
        with pytest.raises(InputError, match="has 0 sample"):
            as_source(nothing)


def test_files_of_other_kinds_in_a_folder_of_parquet_are_told_of(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "parts")
    (folder / "notes.txt").write_text("no rows")
    as_source(str(folder))
    for name in ("more.csv", "x.npy", "_left.csv"):
        (folder / name).write_text("1,2,3")
    with pytest.warns(
        UserWarning, match=r"only the Parquet files in the folder .*parts are read, not more\.csv and 1 more"
    ):
        assert_array_equal(rows_of(as_source(str(folder))), ROWS)


def test_columns_in_the_names_of_folders_are_refused_unless_others_are_chosen(tmp_path: Path) -> None:
    FRAME.assign(k=np.arange(len(FRAME)) % 2).to_parquet(tmp_path / "parts", partition_cols=["k"])
    with pytest.raises(InputError, match="has a column 'k' in the names of its subfolders, such as k=0, which is not"):
        as_source(str(tmp_path / "parts"))
    assert chosen_source(str(tmp_path / "parts"), {"columns": ["a", "b"]}).shape == (len(FRAME), 2)


@pytest.mark.parametrize("group", [90, len(FRAME)])
def test_of_a_group_of_parquet_a_partition_takes_its_own_rows_alone(group: int, tmp_path: Path, monkeypatch) -> None:
    taken, column_block = [], parquet._column_block
    monkeypatch.setattr(
        parquet, "_column_block", lambda batch, **how: taken.append(len(batch)) or column_block(batch, **how)
    )
    FRAME.to_parquet(tmp_path / "x.parquet", row_group_size=group)
    table = parquet.open_parquet(tmp_path / "x.parquet", Choice())
    for start, stop in [(0, 100), (100, 117), (117, 300), (300, len(FRAME))]:
        taken.clear()
        assert_array_equal(table.part(start, stop), ROWS[start:stop])
        assert sum(taken) == stop - start


def test_a_damaged_page_of_parquet_is_refused_if_it_has_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    FRAME.to_parquet(path, index=False, write_page_checksum=True, use_dictionary=False, compression=None)
    check_source(as_source(str(path)))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="CRC"):
        check_source(as_source(str(path)))


def test_a_group_is_its_only_table(tmp_path: Path) -> None:
    xr.Dataset({"x": (("row", "column"), ROWS), "a": ("row", ROWS[:, 0])}).to_zarr(
        tmp_path / "x.zarr", consolidated=False
    )
    source = as_source(tmp_path / "x.zarr")
    check_source(source)
    assert_array_equal(rows_of(source), ROWS)
    TABLES["columns"]().to_zarr(tmp_path / "y.zarr", consolidated=False)
    with pytest.raises(InputError, match=r"its arrays: a \(900,\), b \(900,\), c .*xarray\.open_zarr"):
        as_source(tmp_path / "y.zarr")


def test_rows_mapped_into_memory_are_not_brought_there(tmp_path: Path) -> None:
    mapped = np.load(as_npy(tmp_path / "x.npy"), mmap_mode="r")
    assert all(np.shares_memory(part.load()[0], mapped) for part in as_source(mapped).partitions)
    assert mixture(max_laps=2).fit(mapped).elbo_ == mixture(max_laps=2).fit(str(tmp_path / "x.npy")).elbo_


def test_a_dataset_of_other_things_is_refused() -> None:
    with pytest.raises(InputError, match=r"got x \(4,\), y \(4, 2\)\. Give one variable"):
        as_source(xr.Dataset({"x": ("row", np.ones(4)), "y": (("row", "column"), np.ones((4, 2)))}))


@pytest.mark.parametrize("kind", ["datetime64[us]", "timedelta64[us]", "datetime64[D]"])
def test_columns_of_moments_are_no_numbers(kind: str) -> None:
    columns = {"x": np.arange(4.0), "when": np.arange(4).astype(kind)}
    tables = pl.DataFrame(columns), xr.Dataset({name: ("row", each) for name, each in columns.items()})
    for table in (*tables, pd.DataFrame(columns), dd.from_pandas(pd.DataFrame(columns), npartitions=1)):
        with pytest.raises(InputError, match=r"(column|variable) 'when' should hold numbers|should be numbers"):
            as_source(table)


def test_columns_are_taken_and_left_out_by_name(tmp_path: Path) -> None:
    NAMED.to_csv(tmp_path / "x.csv", index=False)
    NAMED.to_parquet(tmp_path / "x.parquet")
    for path in (str(tmp_path / "x.csv"), str(tmp_path / "x.parquet")):
        assert file_source(path, Choice(drop=["who", "b"])).names == ("a", "c")
        assert_array_equal(rows_of(file_source(path, Choice(["c", "a"]))), ROWS[:, [2, 0]])
        assert_array_equal(rows_of(as_source(path, known=("b", "a"))), ROWS[:, [1, 0]])
        with pytest.raises(InputError, match=r"has no column 'd'\. Choose among: a, b, c, who"):
            file_source(path, Choice(drop=["d"]))
        with pytest.raises(InputError, match=r"column 'who' of .* should hold numbers"):
            as_source(path)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_what_is_wrong_with_a_column_that_a_model_knows_is_told_of_that_column(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"a": ["1", "x", "3"], "b": [1.0, 2.0, 3.0], "who": ["p", "q", "r"]})
    if name.endswith(".csv"):
        frame.to_csv(tmp_path / name, index=False)
    else:
        frame.to_parquet(tmp_path / name)
    with pytest.raises(InputError, match="'a'"):
        as_source(tmp_path / name, known=("a", "b"))
    with pytest.raises(InputError, match="has no column 'c'"):
        as_source(tmp_path / name, known=("b", "c"))
    assert as_source(tmp_path / name, known=("b",)).shape == (3, 1)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_all_columns_of_words_are_named_at_once(tmp_path: Path, monkeypatch, capsys, name: str) -> None:
    frame = FRAME.assign(who="me", what="it's, so")
    frame.to_csv(tmp_path / name, index=False) if name.endswith("csv") else frame.to_parquet(tmp_path / name)
    with pytest.raises(InputError, match=rf"columns 'who', 'what' of .*{name} should hold numbers; got"):
        as_source(str(tmp_path / name))
    assert as_options("out with drop=['a b', 'c'], or") == "out with --drop 'a b' --drop c, or"


def test_rows_of_text_are_told_by_their_file(tmp_path: Path) -> None:
    FRAME.where(FRAME.min() < FRAME).to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(InputError, match=r"x\.csv holds NaN or infinity in 3 of"):
        dpdist.DPMixture(max_laps=1).fit(str(tmp_path / "x.csv"))


def test_numbers_as_pandas_read_them_are_not_looked_at_cell_by_cell(tmp_path: Path, monkeypatch) -> None:
    frame = pd.DataFrame({"a": [0.1, np.nan, 2e300], "b": [1, -2, 3], "c": [0.0, 1.0, 2.5]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    monkeypatch.setattr(pd, "to_numeric", lambda *_, **__: pytest.fail("columns of numbers are numbers already"))
    assert_array_equal(rows_of(as_source(str(tmp_path / "x.csv"))), frame.to_numpy())


def test_files_with_other_columns_than_the_first_are_refused(tmp_path: Path) -> None:
    as_text(tmp_path / "0.csv")
    FRAME[["b", "a", "c"]].to_csv(tmp_path / "1.csv", index=False)
    with pytest.raises(
        InputError, match=r"1\.csv should have the same columns as .*0\.csv, 3 \(a, b, c\); got 3 \(b, a"
    ):
        as_source(f"{tmp_path}/*.csv")
    with pytest.raises(InputError, match=r"no file matches .*\*\.tsv; check"):
        convert(f"{tmp_path}/*.tsv", tmp_path / "out.zarr")


def test_hdf5_of_several_sets_asks_for_one_and_needs_its_library(tmp_path: Path, monkeypatch) -> None:
    path = as_hdf5(tmp_path / "x.h5").removesuffix("/train")
    with pytest.raises(InputError, match=r"it has 2\. Choose among: .*x\.h5/test, .*x\.h5/train\."):
        as_source(path)
    with pytest.raises(InputError, match=r"no two-dimensional data set text\. Choose among"):
        as_source(f"{path}/text")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"pip install 'dpdist\[hdf5\]'"):
        as_source(path)


# Predictions


def test_what_is_said_of_a_dask_array_is_computed_when_it_is_asked_for() -> None:
    computed: list[int] = []

    def noted(block: np.ndarray) -> np.ndarray:
        computed.append(len(block))
        return block

    model = mixture(max_laps=2).fit(ROWS)
    lazy = da.from_array(ROWS, chunks=(700, 2)).rechunk({1: -1}).map_blocks(noted, meta=np.empty((0, 0)))
    for method in (model.predict, model.predict_proba, model.score_samples):
        told, found = method(lazy), method(ROWS)
        assert not computed and isinstance(told, da.Array) and (told.shape, told.dtype) == (found.shape, found.dtype)
        assert_array_equal(told.compute(), found)
        computed.clear()
    frame = dd.from_pandas(FRAME, npartitions=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the fit knows no names
        assert isinstance(model.predict(frame), da.Array)


def command(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command, in this process."""
    monkeypatch.setattr(sys, "argv", ["dpdist", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code


def test_a_newcomer_gets_from_a_csv_to_labels_in_two_commands(tmp_path: Path, monkeypatch) -> None:
    NAMED.to_csv(tmp_path / "x.csv.gz", index=False, sep=";", decimal=",")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpdist.runs.label_table.BLOCK", 400)
    command("fit", "x.csv.gz", "--drop", "who", "--serial", "--max-laps", 2, monkeypatch=monkeypatch)
    model, names = dpdist.load("run.zarr"), ["labels.csv", "labels.tsv", "labels.csv.gz", "labels.parquet"]
    places, shares = model.predict_top(FRAME, 2)
    for name in names:
        command(
            *("predict", "run.zarr", "x.csv.gz", "--ids", "who", "--out", name, "--density", "--top", 2, "--serial"),
            monkeypatch=monkeypatch,
        )
        labels = pd.read_parquet(name) if name.endswith("parquet") else pd.read_csv(name, sep=None, engine="python")
        assert_array_equal(labels["who"], NAMED["who"])
        assert_array_equal(labels["label"], model.predict(FRAME))
        assert_array_equal(labels["component_id"], model.component_ids_[labels["label"]])
        np.testing.assert_allclose(labels["log_density"], model.score_samples(FRAME))
        assert_array_equal(labels[["top_label_0", "top_label_1"]], places)
        assert_array_equal(labels[["top_component_id_0", "top_component_id_1"]], model.component_ids_[places])
        np.testing.assert_allclose(labels[["top_probability_0", "top_probability_1"]], shares)
    command("predict", "run.zarr", "x.csv.gz", "--ids", "who", "--out", "l.zarr", "--serial", monkeypatch=monkeypatch)
    stored = xr.open_zarr("l.zarr", consolidated=False)
    assert_array_equal(stored["who"], NAMED["who"])
    assert_array_equal(stored["label"], model.predict(FRAME))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["x.csv.gz", "run.zarr", "l.zarr", *names])
    command("resume", "run.zarr", "--max-laps", 3, "--serial", monkeypatch=monkeypatch)
    assert dpdist.load("run.zarr").n_iter_ == 3


@pytest.mark.parametrize(("count", "sentence"), [(2, "got 2"), (4, "got more")])
def test_ids_are_one_a_row(count: int, sentence: str) -> None:
    array = create_ids(zarr.create_group(store=MemoryStore()), "who", 3)
    with pytest.raises(InputError, match=rf"column 'who' should have 3 ids, one per row; {sentence}"):
        write_ids(array, RowIds("who", iter([["a"] * count])))


#: Ids of rows of which the first come in one block, and the last in another.
IDS = {
    "numbers, one missing": [*range(2**60, 2**60 + 5), None],
    "missing, then text": [None, None, None, None, None, "zz"],
    "missing, then numbers": [None, None, None, None, 7, 8],
    "missing": [None] * 6,
    "numbers, then text": [1, 2, 3, 4, "a", "b"],
    "both at once": [1, "a", 2, "b", 3, "c"],
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_are_written_as_they_are(kind: str, tmp_path: Path, monkeypatch) -> None:
    ids, model = IDS[kind], mixture(max_laps=1).fit(ROWS[:50])
    monkeypatch.setattr("dpdist.runs.label_table.BLOCK", 4)
    for name in ("labels.csv", "labels.parquet"):
        called = RowIds("k", iter([ids[:2], ids[2:]]))
        given = model._predictor, ArraySource(ROWS[:6]), SerialBackend(), tmp_path / name
        if name.endswith("parquet") and kind == "numbers, then text":
            with pytest.raises(InputError, match="ids in column 'k' should all be int64, like the first ones"):
                write_labels(*given, ids=called)
            continue
        write_labels(*given, ids=called)
        found = pq.read_table(tmp_path / name)["k"].to_pylist() if name.endswith("parquet") else _cells(tmp_path / name)
        one, other = ([None if each is None else str(each) for each in several] for several in (found, ids))
        assert one == other
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".") and each.is_file()]


def _cells(path: Path) -> list[str | None]:
    return [line.split(",")[0] or None for line in path.read_text().splitlines()[1:]]


@pytest.mark.parametrize("named", [True, False])
def test_ids_are_those_of_the_rows_that_are_read(tmp_path: Path, named: bool) -> None:
    path, header = str(tmp_path / "x.csv"), ["who", "a"] if named else False
    pd.DataFrame({"0": ["07", "008", "9"], "1": [1.5, 2.5, 3.5]}).to_csv(path, index=False, header=header)
    found = [cell for cells in row_ids(path, "who" if named else "0") for cell in cells]
    assert found == ["07", "008", "9"] and as_source(path, None, ("a",) if named else None).shape[0] == 3
    with pytest.raises(InputError, match="nobody"):
        row_ids(path, "nobody")


@pytest.mark.parametrize("first", [[None, None], [None]], ids=["two", "one"])
def test_a_vector_that_is_not_there_is_told_of_and_its_neighbours_are_not(tmp_path: Path, first: list[None]) -> None:
    pd.DataFrame({"v": [*first, [1.0, 2.0], [3.0, 4.0]]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="should hold vectors of 2 numbers like its first; got an empty cell"):
        list(as_source(str(tmp_path / "x.parquet")).partitions[0].load())


def test_a_file_of_settings_chooses_columns_as_options_do(tmp_path: Path) -> None:
    NAMED.to_csv(tmp_path / "x.csv", index=False)
    text = f"data = '{tmp_path}/x.csv'\nmax_laps = 1\n"
    for told, options, names in (
        ("drop = ['who', 'b']", {}, ("a", "c")),
        ("columns = ['c', 'a']", {}, ("c", "a")),
        ("columns = ['c', 'a']", {"columns": ["b"]}, ("b",)),
    ):
        (tmp_path / "fit.toml").write_text(text + told)
        config = read_config("fit", tmp_path / "fit.toml", options)
        assert parse_config("fit", config.tables).source().names == config.source().names == names
    with pytest.raises(InputError, match=r"drop should be a list of names, as in \['A', 'B'\].*got 'who'"):
        parse_config("fit", {"drop": "who"})
    with pytest.raises(InputError, match=r"columns can be chosen only from files"):
        parse_config("fit", {"data": "x.zarr", "columns": ["a"]}).source()


def test_rows_held_out_have_the_columns_that_were_taken(tmp_path: Path) -> None:
    NAMED.to_csv(tmp_path / "x.csv", index=False)
    place = str(tmp_path / "x.csv")
    config = parse_config("sva", {"data": place, "holdout": place, "drop": ["who", "b"], "random_state": 0})
    run = config.prepare(config.source(), tmp_path / "run.zarr", False, SerialBackend())
    assert sum(1 for _ in run) and run.store is not None
    run.close()
    store = open_run(tmp_path / "run.zarr")
    source = as_source(place, known=store.problem().names)
    gone_on(store.path, source, SerialBackend(), holdout=place).close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ids", "id", "--out", "l.zarr"], "column of ids has the name of a column of the output, 'id'"),
        (["--ids", "nobody", "--out", "l.csv"], "nobody"),
        (["--out", "there.csv"], "there.csv exists"),
    ],
)
def test_labels_that_cannot_be_written_are_refused_and_nothing_is(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    FRAME.assign(id="r").to_csv("x.csv", index=False)
    (tmp_path / "there.csv").write_text("mine")
    mixture(max_laps=1).fit(FRAME).save("m.zarr")
    monkeypatch.setattr(sys, "argv", ["dpdist", "predict", "m.zarr", "x.csv", "--serial", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1 and sentence in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.zarr", "there.csv", "x.csv"]
    assert (tmp_path / "there.csv").read_text() == "mine"


@pytest.mark.parametrize("kind", ["boolean", "Float64", "float64[pyarrow]", "category"])
def test_a_dask_frame_has_the_rows_of_the_frame_of_pandas(kind: str) -> None:
    frame = FRAME.assign(d=FRAME["a"] > 0).astype({"b": "float32" if kind == "boolean" else kind})
    frame["d"] = frame["d"].astype(bool if kind == "boolean" else "boolean")
    found = as_source(dd.from_pandas(frame, npartitions=3))
    assert_array_equal(rows_of(found), rows_of(as_source(frame)))
    assert found.names == ("a", "b", "c", "d")


@pytest.mark.parametrize("kind", ["category", "string", "object", "datetime64[ns]", "polars"])
def test_a_column_of_words_of_a_frame_is_named(kind: str) -> None:
    column = pd.Series(range(len(FRAME))) if kind.startswith("date") else pd.Series(["an oak", "an elm"] * 400)
    frame = FRAME.assign(who=column[: len(FRAME)].astype("object" if kind == "polars" else kind))
    with pytest.raises(InputError, match=r"^column 'who' should hold numbers; .*\. Encode it, or leave it out\.$"):
        as_source(pl.from_pandas(frame) if kind == "polars" else frame)


@pytest.mark.parametrize("kind", ["category", "string", "object", "datetime64[ns]"])
def test_a_column_of_words_of_a_dask_frame_is_named(kind: str) -> None:
    column = pd.Series(range(len(NAMED))) if kind.startswith("date") else NAMED["who"]
    frame = dd.from_pandas(NAMED.assign(who=column.astype(kind)), npartitions=2)
    with pytest.raises(InputError, match=r"column 'who' should hold numbers; got .*\. Encode it, or leave it out"):
        as_source(frame)
    assert_array_equal(rows_of(as_source(frame[["a", "b", "c"]])), ROWS)


def test_rows_that_look_like_columns_are_told() -> None:
    wide = np.random.default_rng(0).normal(size=(20, 120))
    with pytest.warns(UserWarning, match=r"fewer rows \(20\) than columns \(120\)\. .*be an observation; transpose"):
        mixture(family="diagonal_gaussian", max_laps=1).fit(wide)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", dpdist.estimators.fitted.ConvergenceWarning)
        mixture(family="diagonal_gaussian", max_laps=1).fit(wide.T[:, :19])


def test_a_folder_of_other_files_is_told_to_be_named_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "rows of mine").mkdir()
    with pytest.raises(
        InputError, match=r"neither Zarr nor Parquet\. Give its files, such as '.*rows of mine/\*\.csv'"
    ):
        chosen_source(str(tmp_path / "rows of mine"), {"drop": ["name"]})


def test_a_folder_without_a_choice_is_told_by_the_files_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    NAMED.to_csv(tmp_path / "mine" / "a.tsv", sep="\t")
    with pytest.raises(InputError, match=r"neither Zarr nor Parquet\. Give its files, such as '.*mine/\*\.tsv'"):
        as_source(tmp_path / "mine")
    with pytest.raises(InputError, match=r"there is no Zarr array and no corpus at .*none\. Check the path"):
        as_source(tmp_path / "none")


def test_a_group_of_zarr_and_a_list_of_files_are_rows_as_their_paths_are(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "rows.zarr")
    group.create_array("x", data=ROWS)
    group.create_array("y", data=ROWS[:, 0])
    assert_array_equal(rows_of(as_source(group)), ROWS)
    group.create_array("z", data=ROWS)
    with pytest.raises(
        InputError, match=r"group .*rows\.zarr should contain an array named 'rows', or exactly one two-dim"
    ):
        as_source(group)
    files = [tmp_path / "a.csv", str(tmp_path / "b.csv")]
    for file, part in zip(files, (FRAME[:300], FRAME[300:]), strict=True):
        part.to_csv(file, index=False)
    assert_array_equal(rows_of(as_source(files)), ROWS)
    assert as_source(files).names == ("a", "b", "c")
    assert_array_equal(mixture(max_laps=1).fit(files).labels_, mixture(max_laps=1).fit(FRAME).labels_)


def test_parts_of_other_libraries_tables_keep_their_names_or_are_told(tmp_path: Path) -> None:
    assert as_source(pa.RecordBatch.from_pandas(FRAME)).names == ("a", "b", "c")
    with pytest.raises(InputError, match=r"should be computed rows; got a LazyFrame\. Give x\.collect\(\)"):
        as_source(pl.LazyFrame(FRAME.to_dict("list")))


@pytest.mark.parametrize("name", ["fit", "sva", "predict"])
def test_files_that_a_shell_made_of_a_pattern_are_told(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["dpdist", name, "run.zarr", "part-1.csv", "part-2.csv"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert end.value.code == 2 and "part-2.csv). To read several files as one table, give a pattern in quotes" in told


def test_an_empty_text_names_nothing(tmp_path: Path, monkeypatch) -> None:
    assert split(None) is None and split([""]) == [] and split(["a,,b"]) == ["a", "", "b"]
    monkeypatch.chdir(tmp_path)
    save_npz("counts.npz", csr_array(np.random.default_rng(0).poisson(0.5, size=(30, 10))))
    cli.app(["corpus", "counts.npz", "--out", "corpus.zarr"], standalone_mode=False)
    asked = ["topics", "corpus.zarr", "--serial", "--max-laps", "1", "--initial-topics", "2"]
    for options, learned in ((["--learn", ""], ()), (["--learn", "concentration"], ("concentration",))):
        cli.app([*asked, *options, "--out", "topics.zarr", "--overwrite"], standalone_mode=False)
        assert dpdist.load("topics.zarr").learn == learned


def test_columns_named_one_after_the_other_or_by_commas_are_the_same_columns() -> None:
    assert split(["a", "b"]) == split(["a,b"]) == split(["a, b"]) == ["a", "b"]
    assert split([]) is split(None) is None


def test_repeated_options_leave_out_all_that_they_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(ROWS, columns=list("abcdef"[: ROWS.shape[1]])).assign(name="x", other="y z")
    frame.to_csv("rows.csv", index=False)
    cli.app(["convert", "rows.csv", "--drop", "name", "--drop", "other"], standalone_mode=False)
    assert as_source("rows.zarr").names == tuple(frame.columns[:-2])
    with pytest.raises(InputError, match=r"column 'other'.*drop=\['other'\]") as refused:
        convert("rows.csv", "more.zarr", drop=["name"])
    assert "--drop other," in as_options(str(refused.value))


def test_what_is_lacking_is_told_by_column(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS[:, :3], columns=["a", "größe", "c"])
    frame.loc[[3, 5], "größe"] = np.nan
    frame.loc[5, "a"] = np.inf
    told = r"in 2 of .* rows \(rows 3, 5\); .* NaN or infinity by column: column 'größe' \(2\), column 'a' \(1\)\. Drop"
    for rows in (frame, as_source(frame)):
        with pytest.raises(InputError, match=told):
            mixture(max_laps=1).fit(rows)
    with pytest.raises(InputError, match=r"column 1 \(2\), column 0 \(1\)"):
        mixture(max_laps=1).fit(frame.to_numpy())


def test_numbers_too_large_for_their_squares_are_told() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 3))
    rows[4, 1] = 1e200
    with pytest.raises(InputError, match="column 1 of the data holds numbers whose squares"):
        mixture(max_laps=1).fit(rows)


def test_a_file_where_a_run_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n")
    with pytest.raises(dpdist.CheckpointError, match="should be the folder of a run or model; it is a file, or in one"):
        open_run(tmp_path / "rows.csv")


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for claim in (claim_page, lambda path: claim_file(path, overwrite=True)):
        with pytest.raises(dpdist.OutputExistsError, match="is not a file, so it is not replaced"):
            claim(tmp_path / "pipe.csv")
        with pytest.raises(InputError, match="does not exist; create it first"):
            claim(tmp_path / "nowhere" / "x.csv")
        with pytest.raises(InputError, match=r"is written to local disk; got the URL s3://bucket/x\.csv\. Give a path"):
            claim("s3://bucket/x.csv")
