"""Laws of ``convert``: what is in the file is what is in the array, and nothing is left by a failure."""

import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dpdist.core.errors import CorruptDataError, InputError, OutputExistsError
from dpdist.core.lease import _content, process_began, this_process
from dpdist.core.places import LocalPlace
from dpdist.data import as_source
from dpdist.data.base import FEWEST_ROWS, TARGET_PARTITIONS, cut_rows
from dpdist.data.convert import MOST_CHUNK_BYTES, chunk_rows, convert
from dpdist.data.files import ENDINGS
from dpdist.data.filling import Filling
from dpdist.data.tables import READERS
from dpdist.data.zarr import COMPLETE, ZarrSource
from tests.runs import another_process

ROWS, COLUMNS = 3000, 5


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(ROWS, COLUMNS))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.zarr"


def write_vectors(path, rows):
    """Rows in the TEXMEX format."""
    record = np.dtype([("width", "<i4"), ("vector", rows.dtype, (rows.shape[1],))])
    records = np.zeros(len(rows), record)
    records["width"], records["vector"] = rows.shape[1], rows
    records.tofile(path)
    return path


def write_npy(path, rows):
    np.save(path, rows)
    return path


def write_csv(path, rows):
    pd.DataFrame(rows).rename(columns="column {}".format).to_csv(path, index=False)
    return path


def write_parquet(path, rows):
    pd.DataFrame(rows).rename(columns=str).to_parquet(path)
    return path


def write_text(path, text):
    path.write_text(text)
    return path


def write_table(path, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=700)
    return path


def write_hdf5(path, rows):
    with h5py.File(path, "w") as file:
        file["rows"] = rows
    return path


WRITERS = {
    ".npy": (write_npy, np.float64),
    ".csv": (write_csv, np.float64),
    ".tsv": (write_csv, np.float64),
    ".dat": (write_csv, np.float64),
    ".data": (write_csv, np.float64),
    ".h5": (write_hdf5, np.float64),
    ".hdf5": (write_hdf5, np.float64),
    ".parquet": (write_parquet, np.float64),
    ".fvecs": (write_vectors, np.float32),
    ".bvecs": (write_vectors, np.uint8),
}


def written(source, out, **options):
    """The array that `source` is converted to."""
    shape = convert(source, out, **options)
    array = zarr.open_array(out, mode="r")
    assert array.shape == shape
    return array


def assert_same(array, rows):
    assert array.dtype == rows.dtype
    assert_array_equal(array[:], rows)


def refused(source, out, match, **options):
    """Assert that conversion fails with a sentence and leaves nothing behind."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(InputError, match=match):
        convert(source, out, **options)
    assert sorted(out.parent.iterdir()) == before


# What is in the file is in the array


def test_every_reader_is_tested():
    assert set(WRITERS) == set(READERS) == set(ENDINGS)


@pytest.mark.parametrize("ending", WRITERS)
def test_rows_are_kept_in_every_format(tmp_path, out, rows, ending):
    write, dtype = WRITERS[ending]
    rows = (100 * np.abs(rows)).astype(np.uint8) if dtype is np.uint8 else rows.astype(dtype)
    array = written(write(tmp_path / f"rows{ending}", rows), out)
    assert_same(array, rows)
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ("row", "column")
    codecs = ["ZstdCodec", "Crc32cCodec"] if dtype is np.uint8 else ["Crc32cCodec"]
    assert [type(codec).__name__ for codec in array.compressors] == codecs


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("write", [write_npy, write_parquet])
def test_dtypes_are_kept(tmp_path, out, rows, dtype, write):
    rows = np.abs(20 * rows).astype(dtype)
    ending = ".npy" if write is write_npy else ".parquet"
    assert_same(written(write(tmp_path / f"rows{ending}", rows), out), rows)


@pytest.mark.parametrize("write", [write_npy, write_parquet])
def test_booleans_become_bytes(tmp_path, out, rows, write):
    ending = ".npy" if write is write_npy else ".parquet"
    assert_same(written(write(tmp_path / f"rows{ending}", rows > 0), out), (rows > 0).astype(np.uint8))


def test_big_endian_becomes_native(tmp_path, out, rows):
    assert_same(written(write_npy(tmp_path / "rows.npy", rows.astype(">f4")), out), rows.astype(np.float32))


def test_fortran_order_is_kept_by_value(tmp_path, out, rows):
    assert_same(written(write_npy(tmp_path / "rows.npy", np.asfortranarray(rows)), out), rows)


@pytest.mark.parametrize("ending", [".npy", ".csv", ".parquet", ".fvecs"])
def test_numbers_that_are_not_finite_pass(tmp_path, out, rows, ending):
    write, dtype = WRITERS[ending]
    rows = rows.astype(dtype)
    rows[1:4, 1] = np.nan, np.inf, -np.inf
    assert_same(written(write(tmp_path / f"rows{ending}", rows), out), rows)


def test_endings_are_read_in_either_case(tmp_path, out, rows):
    write_npy(tmp_path / "rows.npy", rows).rename(tmp_path / "rows.NPY")
    assert_same(written(str(tmp_path / "rows.NPY"), str(out)), rows)


def test_progress_counts_the_rows(tmp_path, out, rows):
    seen = []
    convert(write_npy(tmp_path / "rows.npy", rows), out, progress=lambda done, total: seen.append((done, total)))
    step = chunk_rows(ROWS, 8 * COLUMNS)
    assert seen == [(min(done, ROWS), ROWS) for done in range(step, ROWS + step, step)]


# CSV


def test_csv_without_header_keeps_its_first_line(tmp_path, out, rows):
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", header=False, index=False)
    assert_same(written(tmp_path / "rows.csv", out), rows)


@pytest.mark.parametrize("text", ["1,NA\n3,4\n", "1, 2\r\n3, 4\r\n", "1,2\r3,4", "1,2\n\n\n3,4\n\n", "1,2\n3,4"])
def test_csv_of_any_line_ends(tmp_path, out, text):
    (tmp_path / "rows.csv").write_bytes(text.encode())
    values = written(tmp_path / "rows.csv", out)[:]
    assert_array_equal(values, [[1, np.nan if "NA" in text else 2], [3, 4]])


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "a,b\n1,2", "# a, b\n1,2\n", "a,2\n1,2\n", '"a\nb",c\n1,2\n'])
def test_csv_with_header_drops_it(tmp_path, out, text):
    assert_array_equal(written(write_text(tmp_path / "rows.csv", text), out)[:], [[1, 2]])


def test_csv_that_turns_from_integers_to_floats_is_float64(tmp_path, out):
    text = "a\n" + "1\n" * 2000 + "0.5\n"
    values = written(write_text(tmp_path / "rows.csv", text), out)
    assert_same(values, np.array([[1.0]] * 2000 + [[0.5]]))


def test_csv_with_ends_of_lines_in_quotes_is_cut_to_its_rows(tmp_path, out):
    text = "note,a\n" + "".join(f'"one\n{"more" * 9}\nline",{i}\n' for i in range(5000))
    values = written(write_text(tmp_path / "rows.csv", text), out, columns=["a"])
    assert_same(values, np.arange(5000.0)[:, None])


def test_csv_columns_are_chosen_in_the_order_named(tmp_path, out):
    source = write_text(tmp_path / "rows.csv", "a,label,b\n1,x,2\n3,y,4\n")
    assert_array_equal(written(source, out, columns=["b", "a"])[:], [[2, 1], [4, 3]])


def test_csv_without_header_names_columns_by_number(tmp_path, out):
    source = write_text(tmp_path / "rows.csv", "1,2,3\n4,5,6\n")
    assert_array_equal(written(source, out, columns=["2", "0"])[:], [[3, 1], [6, 4]])


def test_a_link_in_the_place_of_the_output_goes_and_what_it_leads_to_stays(tmp_path, out, rows):
    np.save(tmp_path / "rows.npy", rows)
    written(tmp_path / "rows.npy", tmp_path / "other.zarr")
    out.symlink_to(tmp_path / "other.zarr")
    assert_same(written(tmp_path / "rows.npy", out, overwrite=True), rows)
    assert not out.is_symlink() and sorted(path.name for path in tmp_path.iterdir()) == sorted(
        {"rows.npy", "other.zarr", out.name}
    )


def test_decimal_commas_may_begin_some_lines_down(tmp_path, out):
    source = write_text(tmp_path / "rows.csv", "a;b\n1;2\n3;4\n5,89;1,03\n")
    assert_array_equal(written(source, out)[:], [[1, 2], [3, 4], [5.89, 1.03]])
    text = write_text(tmp_path / "text.csv", "a;note\n1;x\n3.5;2,5\n")
    assert_array_equal(written(text, tmp_path / "text.zarr", columns=["a"])[:], [[1], [3.5]])


@pytest.mark.parametrize("index", [False, True])
def test_columns_that_pandas_counted_are_no_row(tmp_path, out, rows, index):
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=index)
    assert_same(written(tmp_path / "rows.csv", out), rows)


@pytest.mark.parametrize(("first", "rows"), [("0,1,2", 2), ("0,1,2,3", None), ("0,1,3,2", 2)])
def test_whole_numbers_that_count_columns_are_a_row_or_refused(tmp_path, out, first, rows):
    source = write_text(tmp_path / "rows.csv", f"{first}\n{first[::-1]}\n")
    if rows is not None:
        assert written(source, out).shape[0] == rows
        return
    with pytest.raises(InputError, match=r"should be either a row or column names; got 0, 1, 2 to 3.*header=False\.$"):
        written(source, out)


@pytest.mark.parametrize("first", ["2018,2019,2020,2021,2022,2023", "400,402,404,406,408,410", "1,2,3,4,5,6"])
def test_years_and_wavelengths_above_numbers_are_names(tmp_path, out, first):
    found = written(write_text(tmp_path / "rows.csv", f"{first}\n0.5,1.5,2,3,4,5\n"), out)
    assert_array_equal(found[:], [[0.5, 1.5, 2, 3, 4, 5]])
    assert found.attrs["dpdist_columns"] == first.split(",")
    with pytest.raises(InputError, match=r"either a row or column names; got .*, which may be either\. Write other"):
        written(write_text(tmp_path / "whole.csv", f"{first}\n7,3,5,9,1,1\n"), tmp_path / "whole.zarr")


@pytest.mark.parametrize("first", ["4,6,8,10", "3,3,3,3,3,3", "1,2,3,5,6,7"])
def test_whole_numbers_that_may_be_a_row_are_one(tmp_path, out, first):
    found = written(write_text(tmp_path / "rows.csv", f"{first}\n{'0.5,' * first.count(',')}1\n"), out)
    assert_array_equal(found[0], [float(cell) for cell in first.split(",")])


def test_an_index_that_pandas_wrote_is_left_out(tmp_path, out, rows):
    frame = pd.DataFrame(rows, index=np.arange(ROWS) + 7).rename(columns="c{}".format)
    frame.to_csv(tmp_path / "rows.csv")
    frame.to_parquet(tmp_path / "rows.parquet")
    assert_same(written(tmp_path / "rows.csv", out), rows)
    assert_same(written(tmp_path / "rows.parquet", out, overwrite=True), rows)


# Parquet


def by_pandas(frame, path):
    frame.to_parquet(path)
    return path


def by_dask(frame, path):
    dd.from_pandas(frame, npartitions=1).to_parquet(path.with_suffix(".parts"))
    return next(path.with_suffix(".parts").glob("*.parquet"))


INDEXES = {
    "range": pd.RangeIndex(ROWS),
    "range with steps": pd.RangeIndex(7, 7 + 2 * ROWS, 2),
    "numbers": pd.Index(np.arange(ROWS) + 7),
    "named": pd.Index(np.arange(ROWS) + 7, name="id"),
    "named range": pd.RangeIndex(ROWS, name="id"),
    "text": pd.Index([f"row {n:05}" for n in range(ROWS)], name="c9"),
    "several": pd.MultiIndex.from_arrays([np.arange(ROWS), np.arange(ROWS)], names=["day", None]),
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of dask's own
@pytest.mark.parametrize("write", [by_pandas, by_dask])
@pytest.mark.parametrize("index", INDEXES)
def test_the_index_of_a_data_frame_is_no_column(tmp_path, out, rows, write, index):
    if write is by_dask and index == "several":
        pytest.skip("dask has no index of several columns")
    names = [f"c{i}" for i in range(COLUMNS)]
    array = written(write(pd.DataFrame(rows, columns=names, index=INDEXES[index]), tmp_path / "rows.parquet"), out)
    assert_same(array, rows)
    assert as_source(out).names == tuple(names)


def test_an_index_is_taken_where_it_is_asked_for(tmp_path, out):
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]}, index=pd.Index([7, 8], name="id"))
    array = written(by_pandas(frame, tmp_path / "rows.parquet"), out, columns=["b", "id"])
    assert_array_equal(array[:], [[3, 7], [4, 8]])
    assert as_source(out).names == ("b", "id")


@pytest.mark.parametrize("name", ["__index_level_0__", "__null_dask_index__"])
def test_an_index_is_known_by_its_name_where_nothing_is_recorded(tmp_path, out, name):
    source = write_table(tmp_path / "rows.parquet", **{"a": [1.0, 2.0], name: [0, 1], "id": [5.0, 6.0]})
    assert_array_equal(written(source, out)[:], [[1, 5], [2, 6]])


def test_a_table_of_nothing_but_an_index_is_refused(tmp_path, out):
    source = by_pandas(pd.DataFrame(index=pd.Index([7, 8], name="id")), tmp_path / "rows.parquet")
    refused(source, out, r"no column of .* is left; choose at least one of: id\.")


def test_names_of_columns_are_kept_in_their_order(tmp_path, out):
    text = "b,a,c\n1,2,3\n4,5,6\n"
    written(write_text(tmp_path / "rows.csv", text), out)
    assert as_source(out).names == ("b", "a", "c")
    written(write_text(tmp_path / "rows.csv", text), out, overwrite=True, columns=["c", "b"])
    assert as_source(str(out)).names == as_source(zarr.open_array(out)).names == ("c", "b")
    written(write_text(tmp_path / "rows.csv", "1,2\n3,4\n"), out, overwrite=True)
    assert as_source(out).names is None
    vectors = write_table(tmp_path / "v.parquet", v=pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)))
    written(vectors, out, overwrite=True)
    assert as_source(out).names is None


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), COLUMNS), pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_a_column_of_vectors_is_the_rows(tmp_path, out, rows, kind):
    rows = rows.astype(np.float32)
    source = write_table(tmp_path / "rows.parquet", id=list(range(ROWS)), vector=pa.array(list(rows), kind))
    assert_same(written(source, out, columns=["vector"]), rows)


def test_parquet_columns_are_chosen_in_the_order_named(tmp_path, out):
    source = write_table(tmp_path / "rows.parquet", a=[1, 3], label=["x", "y"], b=[2, 4])
    assert_array_equal(written(source, out, columns=["b", "a"])[:], [[2, 1], [4, 3]])


def test_parquet_columns_share_a_dtype_that_holds_them(tmp_path, out):
    source = write_table(
        tmp_path / "rows.parquet", a=pa.array([1, 2], pa.int16()), b=pa.array([0.5, None], pa.float32())
    )
    assert_same(written(source, out), np.array([[1, 0.5], [2, np.nan]], np.float32))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, out, rows, monkeypatch):
    source = write_parquet(tmp_path / "rows.parquet", rows)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sentence = "reading Parquet needs pyarrow; install it with: pip install 'dpdist[parquet]'"
    refused(source, out, f"^{re.escape(sentence)}$")


# Chunks


def test_every_chunk_is_written_even_of_zeros_and_the_array_says_so(tmp_path, out):
    array = written(write_npy(tmp_path / "rows.npy", np.zeros((ROWS, COLUMNS))), out)
    assert array.nchunks_initialized == array.nchunks > 1
    assert array.attrs[COMPLETE] is True


@given(rows=st.integers(1, 2 * 10**7), row_bytes=st.integers(1, 2**14))
def test_partitions_are_whole_chunks(rows, row_bytes):
    chunk = chunk_rows(rows, row_bytes)
    assert all(start % chunk == 0 for _, start, _ in cut_rows(rows, row_bytes, chunk).ranges())
    assert chunk <= max(FEWEST_ROWS, -(-rows // TARGET_PARTITIONS))
    assert chunk * row_bytes <= MOST_CHUNK_BYTES


def test_a_row_larger_than_a_chunk_is_a_chunk():
    assert chunk_rows(100, 2 * MOST_CHUNK_BYTES) == 1


@pytest.mark.parametrize("ending", WRITERS)
def test_partitions_of_what_was_written_are_whole_chunks(tmp_path, out, ending):
    write, dtype = WRITERS[ending]
    convert(write(tmp_path / f"rows{ending}", np.ones((160_000, 2), dtype)), out)
    source = ZarrSource.open(str(out))
    (chunk, _), partitions = source.array.chunks, source.partitions
    assert chunk == 2000
    assert len(partitions) == 80
    assert all(part.start % chunk == 0 and part.stop % chunk == 0 for part in partitions)


def test_memory_is_bounded(tmp_path, out):
    size = 200 * 2**20
    np.lib.format.open_memmap(tmp_path / "rows.npy", mode="w+", dtype=np.float32, shape=(size // 256, 64)).flush()
    tracemalloc.start()
    try:
        convert(tmp_path / "rows.npy", out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size // 8


# What is refused


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros(5), r"should be 2-D.*got 1-D.*reshape\(-1, 1\)"),
        (np.zeros((2, 2, 2)), r"should be 2-D.*got 3-D"),
        (np.zeros((0, 3)), r"has 0 sample\(s\)"),
        (np.zeros((3, 0)), r"has 0 feature\(s\)"),
        (np.zeros((2, 2), object), "a NumPy array of numbers.*Python objects in dtype.*save it again"),
        (np.zeros((2, 2), complex), "should hold real numbers; got dtype complex128"),
        (np.zeros((2, 2), np.longdouble), "should hold real numbers; got dtype"),
        (np.zeros((2, 2), "U3"), "should hold real numbers; got dtype <U3"),
        (np.zeros((2, 2), "M8[s]"), "should hold real numbers; got dtype datetime64"),
    ],
)
def test_arrays_that_are_not_rows_of_numbers_are_refused(tmp_path, out, array, match):
    refused(write_npy(tmp_path / "rows.npy", array), out, match)


@pytest.mark.parametrize("ending", WRITERS)
def test_empty_files_are_refused(tmp_path, out, ending):
    refused(write_text(tmp_path / f"rows{ending}", ""), out, r"rows\.\w+ should .*\. \w+")


@pytest.mark.parametrize("ending", WRITERS)
def test_missing_files_are_refused(tmp_path, out, ending):
    refused(tmp_path / f"rows{ending}", out, "there is no file at .*; check the path")


@pytest.mark.parametrize("ending", [".npy", ".parquet", ".fvecs", ".bvecs"])
def test_truncated_files_are_refused(tmp_path, out, rows, ending):
    write, dtype = WRITERS[ending]
    source = write(tmp_path / f"rows{ending}", rows.astype(dtype))
    source.write_bytes(source.read_bytes()[:-3])
    refused(source, out, "should (be .*, but reading it failed|contain .*The file is truncated)")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("rows.zarr", "is already Zarr and needs no conversion"),
        ("rows.zarr/", "is already Zarr and needs no conversion"),
        ("rows.npz", "is a NumPy archive.*numpy.save.*sparse"),
        ("rows.txt", r"should end in one of \.csv, .*; got '\.txt'\. Save it"),
        ("rows", "should end in one of .*; got ''"),
    ],
)
def test_other_formats_are_refused(tmp_path, out, name, match):
    refused(f"{tmp_path}/{name}", out, match)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n", r"has 0 sample\(s\)"),
        ("a,b\n1,x\n", "column 'b' of .* should hold numbers; got 'x'. Leave it out"),
        ("1,2\n3,x\n", "column '1' of .* should hold numbers; got 'x'"),
        ("a\n" + "1\n" * 3000 + "x\n", "column 'a' of .* got 'x'"),
        ("a,b\n1,2,3\n", "should be text of numbers.*Expected 2 fields in line 2, saw 3"),
        ("a,b\n1,2\n1,2,3\n", "should be text of numbers.*Expected 2 fields in line 3, saw 3"),
        ("a,a\n1,2\n", "column 'a' of .* twice"),
    ],
)
def test_csv_that_is_not_numbers_is_refused(tmp_path, out, text, match):
    refused(write_text(tmp_path / "rows.csv", text), out, match)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (["c"], "has no column 'c'. Choose among: a, b"),
        ([], "no column of .* is left; choose at least one of: a, b"),
        (["a", "a"], "column 'a' of .* exists twice or was chosen twice"),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_columns_that_cannot_be_chosen_are_refused(tmp_path, out, columns, match, ending):
    source = tmp_path / f"rows{ending}"
    source = write_text(source, "a,b\n1,2\n") if ending == ".csv" else write_table(source, a=[1], b=[2])
    refused(source, out, match, columns=columns)


@pytest.mark.parametrize("ending", [".npy", ".fvecs", ".bvecs"])
def test_columns_of_files_without_names_are_refused(tmp_path, out, rows, ending):
    write, dtype = WRITERS[ending]
    refused(
        write(tmp_path / f"rows{ending}", rows.astype(dtype)),
        out,
        "columns are chosen by name, but .* has no column names",
        columns=["a"],
    )


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"a": [1, 2], "b": ["x", "y"]}, "column 'b' of .* should hold numbers; got string"),
        ({"a": [1, None]}, "column 'a' of .* should have no empty cells, because int64 .*; got 1"),
        ({"a": [[1.0, 2.0], [3.0]]}, "column 'a' of .* vectors of 2 numbers like its first; got one of 1"),
        ({"a": [[1.0, 2.0], None]}, "column 'a' of .* vectors of 2 numbers like its first; got an empty cell"),
        ({"a": [["x"]]}, "column 'a' of .* should hold numbers; got string"),
        ({"a": [1], "b": [[1.0]]}, "column 'b' of .* should hold numbers; got list.*one column of vectors"),
        ({"a": pa.array([], pa.float32())}, r"has 0 sample\(s\)"),
        ({"a": pa.array([[]], pa.list_(pa.float32()))}, r"has 0 feature\(s\)"),
    ],
)
def test_parquet_that_is_not_numbers_is_refused(tmp_path, out, columns, match):
    refused(write_table(tmp_path / "rows.parquet", **columns), out, match)


def test_vectors_that_differ_in_length_are_refused(tmp_path, out):
    source = write_vectors(tmp_path / "rows.fvecs", np.ones((5000, 3), np.float32))
    numbers = np.fromfile(source, "<i4").reshape(5000, 4)
    numbers[4000, 0] = 2
    numbers.tofile(source)
    refused(source, out, "vector 4000 has 2 numbers, but vector 0 has 3")


def test_vectors_of_no_length_are_refused(tmp_path, out):
    (tmp_path / "rows.bvecs").write_bytes(bytes(8))
    refused(
        tmp_path / "rows.bvecs",
        out,
        r"length of the first vector, which is 1 or more; got 0. Check that the format is .bvecs",
    )


# What is at the output


def test_an_output_is_replaced_only_when_asked(tmp_path, out, rows):
    source = write_npy(tmp_path / "rows.npy", rows)
    assert_same(written(source, out), rows)
    write_npy(source, rows[:7])
    with pytest.raises(OutputExistsError, match="exists"):
        convert(source, out)
    assert_same(zarr.open_array(out, mode="r"), rows)
    assert_same(written(source, out, overwrite=True), rows[:7])
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_a_failure_leaves_the_output_as_it_was(tmp_path, out, rows):
    convert(write_npy(tmp_path / "rows.npy", rows), out)
    refused(write_text(tmp_path / "bad.csv", "a\n" + "1\n" * 3000 + "x\n"), out, "column 'a'", overwrite=True)
    assert_same(zarr.open_array(out, mode="r"), rows)


def interrupted(source, out):
    """The folder that a conversion leaves which is interrupted after its first pieces."""

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, progress=stop)
    assert not out.exists()
    (aside,) = out.parent.glob(".out.zarr.partial-*")
    return aside


def chunk_times(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("c/*/0")}


@pytest.fixture
def by_twos(monkeypatch):
    """Two pieces at a time."""
    monkeypatch.setattr("dpdist.data.convert._TOGETHER", 2)


def test_what_was_interrupted_goes_on_where_it_was(tmp_path, out, rows, by_twos):
    source = write_npy(tmp_path / "rows.npy", rows)
    aside = interrupted(source, out)
    before, seen = chunk_times(aside), []
    assert set(before) == {"0", "1"}
    shutil.copy(aside / "c/1/0", aside / "c/1/0.0123.partial")  # as a write that was killed leaves it
    (aside / "c/2").mkdir()
    shape = convert(source, out, progress=lambda done, total: seen.append(done))
    assert shape == rows.shape and seen[0] == 3 * chunk_rows(ROWS, 8 * COLUMNS) and seen[-1] == ROWS
    assert chunk_times(out).items() > before.items()
    assert_same(zarr.open_array(out, mode="r"), rows)
    assert sorted(tmp_path.iterdir()) == [out, source] and not list(out.rglob("*.partial"))


def test_text_that_was_read_is_not_read_again(tmp_path, out, rows, by_twos, monkeypatch):
    for part in range(3):
        write_csv(tmp_path / f"{part}.csv", rows[part * 1000 : (part + 1) * 1000])
    source = f"{tmp_path}/*.csv"
    interrupted(source, out)
    monkeypatch.setattr("dpdist.data.convert.open_file", None)
    assert_same(written(source, out), rows)
    assert as_source(out).names == tuple(f"column {i}" for i in range(COLUMNS))
    assert sorted(path.name for path in out.iterdir()) == ["c", "zarr.json"]


def test_what_was_begun_with_other_rows_is_no_use(tmp_path, out, rows, by_twos):
    source = write_npy(tmp_path / "rows.npy", rows)
    interrupted(source, out)
    write_npy(source, -rows)
    assert_same(written(source, out), -rows)
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_a_file_that_changes_while_it_is_converted_is_refused(tmp_path, out, rows, by_twos):
    source = write_npy(tmp_path / "rows.npy", rows)
    with pytest.raises(InputError, match=r"rows\.npy changed while it was being converted; convert it again when"):
        convert(source, out, progress=lambda done, total: write_npy(source, -rows))
    assert list(tmp_path.iterdir()) == [source]
    assert_same(written(source, out), -rows)


@pytest.mark.parametrize("unlike", [False, True], ids=["like", "unlike"])
def test_of_two_conversions_to_one_place_the_later_is_refused(tmp_path, out, rows, by_twos, monkeypatch, unlike):
    source = write_npy(tmp_path / "rows.npy", rows)
    other = write_npy(tmp_path / "other.npy", -rows) if unlike else source
    refused_at = []

    def meanwhile(done, total):
        with monkeypatch.context() as patch:
            patch.setattr("dpdist.core.lease.this_process", another_process)
            with pytest.raises(OutputExistsError, match=r"out\.zarr is being written by another process \(process \d+"):
                convert(other, out, overwrite=True)
        refused_at.append(done)

    convert(source, out, progress=meanwhile)
    assert refused_at[-1] == ROWS
    assert_same(zarr.open_array(out, mode="r"), rows)
    assert sorted(tmp_path.iterdir()) == sorted({out, source, other})
    assert_same(written(other, out, overwrite=True), -rows if unlike else rows)


def test_the_place_of_a_process_that_was_killed_is_free(tmp_path, out, rows):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    began = process_began(ended.pid)
    ended.wait()
    left = LocalPlace(tmp_path / ".out.zarr.writer")
    left.create(
        "leases/000001.json", _content(left, this_process()._replace(pid=ended.pid, began=began), 0, released=False)
    )
    assert_same(written(write_npy(tmp_path / "rows.npy", rows), out), rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.zarr", "rows.npy"]


def test_a_conversion_begun_in_chunks_of_another_size_is_begun_anew(tmp_path, out, rows, by_twos, monkeypatch):
    source = write_npy(tmp_path / "rows.npy", rows)
    interrupted(source, out)
    monkeypatch.setattr("dpdist.data.convert.FEWEST_ROWS", 300)  # as another version may
    assert_same(written(source, out), rows)
    assert zarr.open_array(out, mode="r").chunks[0] == 300
    assert sorted(tmp_path.iterdir()) == [out, source]


def test_what_is_begun_beside_others_leaves_theirs_alone(tmp_path):
    ours, theirs = (Filling(str(tmp_path / name), "plan") for name in ("run[1].zarr", "run1.zarr"))
    for each in (ours, theirs):
        Path(each.where).mkdir()
    ours.forget()
    assert [str(path) for path in tmp_path.iterdir()] == [theirs.where]


def test_a_chunk_that_went_meanwhile_is_missed(tmp_path, out, rows):
    def lose(done, total):
        shutil.rmtree(next(tmp_path.glob(".*partial*/c")) / "3", ignore_errors=True)

    with pytest.raises(CorruptDataError, match=r"block 3 of .*out\.zarr was written but is gone"):
        convert(write_npy(tmp_path / "rows.npy", rows), out, progress=lose)
    assert not out.exists()


def test_large_groups_of_rows_are_read_once(tmp_path, out, rows):
    pd.DataFrame(rows).rename(columns=str).to_parquet(tmp_path / "rows.parquet", row_group_size=1500)
    seen = []
    assert_same(written(tmp_path / "rows.parquet", out, progress=lambda done, total: seen.append(done)), rows)
    assert seen == [1280, 2560, 3000]  # five chunks of 256 rows at a time


@pytest.mark.parametrize("name", ["rows.npy", "."])
def test_what_is_not_zarr_is_never_replaced(tmp_path, rows, monkeypatch, name):
    source = write_npy(tmp_path / "rows.npy", rows)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputExistsError, match="is not Zarr"):
        convert(source, Path(name), overwrite=True)
    assert_array_equal(np.load(source), rows)
    assert list(tmp_path.iterdir()) == [source]
