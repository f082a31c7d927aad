"""Laws of sources: the same rows from any kind of array, cut once and for all, known by their fingerprint."""

from __future__ import annotations

import pickle
import shutil

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpdist.core.errors import CorruptDataError, InputError
from dpdist.data import ArraySource, DaskSource, Source, ZarrSource, as_source
from dpdist.data.base import FEWEST_ROWS, MOST_ROWS, PARTITION_BYTES, READ_BYTES, cut_rows, require_weights
from dpdist.data.documents.counts import check_block
from dpdist.data.zarr import COMPLETE
from dpdist.testing import check_source

ROWS = np.arange(69.0).reshape(23, 3) % 7


def stored(folder, rows: np.ndarray = ROWS, name: str = "rows.zarr") -> str:
    """The path of a Zarr array of rows."""
    zarr.create_array(store=str(folder / name), data=rows, chunks=(5, 2))
    return str(folder / name)


def grouped(folder) -> str:
    """The path of a Zarr group with an array of rows."""
    zarr.open_group(str(folder / "group.zarr"), mode="w").create_array("rows", data=ROWS, chunks=(5, 3))
    return str(folder / "group.zarr")


KINDS = {
    "numpy": lambda folder: ROWS,
    "numpy, column-major": lambda folder: np.asfortranarray(ROWS),
    "lists": lambda folder: ROWS.tolist(),
    "objects": lambda folder: ROWS.astype(object),
    "pandas": lambda folder: pd.DataFrame(ROWS),
    "csr": lambda folder: sparse.csr_array(ROWS),
    "csc matrix": lambda folder: sparse.csc_matrix(ROWS),
    "dask": lambda folder: da.from_array(ROWS, chunks=(4, 2)),
    "zarr": lambda folder: zarr.open_array(stored(folder), mode="r"),
    "path": stored,
    "path object": lambda folder: type(folder)(stored(folder)),
    "group": grouped,
    "xarray": lambda folder: xr.DataArray(ROWS),
    "xarray of dask": lambda folder: xr.DataArray(da.from_array(ROWS, chunks=(6, 3))),
    "source": lambda folder: ArraySource(ROWS, partition_rows=4),
}


def dense(rows) -> np.ndarray:
    """Rows as a NumPy array."""
    return rows.toarray() if sparse.issparse(rows) else rows


def all_rows(source: Source) -> np.ndarray:
    """Rows of the partitions one after the other."""
    return np.concatenate([dense(partition.load()[0]) for partition in source.partitions])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_same_rows(kind, tmp_path) -> None:
    source = as_source(KINDS[kind](tmp_path))
    assert source.shape == ROWS.shape
    check_source(source)
    np.testing.assert_array_equal(all_rows(source), ROWS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "source"])
def test_weights_go_with_their_rows(kind, tmp_path) -> None:
    weights = np.arange(1.0, 24.0)
    source = as_source(KINDS[kind](tmp_path), weights)
    found = [partition.load()[1] for partition in source.partitions]
    np.testing.assert_array_equal(np.concatenate(found), weights)


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_travel(kind, tmp_path) -> None:
    for partition in as_source(KINDS[kind](tmp_path)).partitions:
        again = pickle.loads(pickle.dumps(partition))
        assert (again.index, again.start, again.stop) == (partition.index, partition.start, partition.stop)
        np.testing.assert_array_equal(dense(again.load()[0]), ROWS[partition.start : partition.stop])


@given(
    rows=st.integers(1, 10**6),
    row_bytes=st.integers(1, 10**6),
    chunk=st.none() | st.integers(100, 10**6),
)
def test_a_cut_covers_rows_once_in_order_and_in_bounds(rows, row_bytes, chunk) -> None:
    bounds = np.array(cut_rows(rows, row_bytes, chunk).bounds)
    sizes = np.diff(bounds)
    assert (bounds[0], bounds[-1]) == (0, rows)
    assert (sizes > 0).all()
    assert sizes.max() <= MOST_ROWS
    assert sizes.max() == 1 or sizes.max() * row_bytes <= PARTITION_BYTES


@given(rows=st.integers(1, 10**5), row_bytes=st.integers(1, 10**4), chunk=st.integers(1, 10**5))
def test_a_partition_is_whole_chunks_or_part_of_one(rows, row_bytes, chunk) -> None:
    for _, start, stop in cut_rows(rows, row_bytes, chunk).ranges():
        whole = start % chunk == 0 and (stop % chunk == 0 or stop == rows)
        assert whole or start // chunk == (stop - 1) // chunk


@pytest.mark.parametrize("held", [True, False])
def test_a_partition_of_a_dask_array_travels_without_the_others(held) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 5))
    array = da.from_array(rows, chunks=(100, 5)) if held else da.from_array(rows, chunks=(100, 5)) + 1
    for partition in as_source(array).partitions:
        assert len(pickle.dumps(partition)) < 100 * 5 * 8 + 3000
        assert (type(partition).__name__ == "ArrayPartition") == held


def test_a_dask_array_that_is_computed_anew_in_every_lap_says_so_before_laps_only() -> None:
    array = da.from_array(ROWS, chunks=(4, 3))
    for held in (array, (array + 1).persist(scheduler="synchronous"), xr.DataArray(array)):
        as_source(held).prepare_for_laps()
    lazy = as_source(array + 1)
    all_rows(lazy)
    with pytest.warns(UserWarning, match=r"each pass computes its blocks again. Call array\.persist\(\) first"):
        lazy.prepare_for_laps()


@given(rows=st.integers(1, 40), size=st.integers(1, 50))
def test_partitions_of_a_given_size_cover_all_rows(rows, size) -> None:
    values = np.arange(2.0 * rows).reshape(rows, 2)
    source = ArraySource(values, partition_rows=size)
    check_source(source)
    np.testing.assert_array_equal(all_rows(source), values)
    assert all(partition.rows <= size for partition in source.partitions)


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), columns=st.integers(1, 4))
def test_row_chunks_of_a_dask_array_are_its_partitions(sizes, columns) -> None:
    rows = np.arange(sum(sizes) * 4.0).reshape(-1, 4)
    source = DaskSource(da.from_array(rows, chunks=(tuple(s for s in sizes if s), columns)))
    check_source(source)
    assert [partition.rows for partition in source.partitions] == [size for size in sizes if size]
    np.testing.assert_array_equal(all_rows(source), rows)


def test_empty_chunks_of_a_dask_array_are_passed_over() -> None:
    array = da.from_array(ROWS, chunks=((0, 9, 0, 0, 9, 5, 0), 3))
    for source in (DaskSource(array), DaskSource(array + 0)):
        assert [partition.rows for partition in source.partitions] == [9, 9, 5]
        np.testing.assert_array_equal(all_rows(source), ROWS)


def test_shards_of_a_zarr_array_are_never_cut_across(tmp_path) -> None:
    chunk = FEWEST_ROWS // 2
    shape, shards, chunks = (12 * chunk, 2), (3 * chunk, 2), (chunk, 2)
    source = ZarrSource(zarr.create_array(str(tmp_path / "a"), shape=shape, shards=shards, chunks=chunks, dtype="f4"))
    for partition in source.partitions:
        assert partition.start // shards[0] == (partition.stop - 1) // shards[0]
    check_source(source)


def test_entries_stored_twice_in_a_sparse_matrix_are_added() -> None:
    twice = sparse.coo_array((np.array([1.0, 2.0, 4.0]), (np.array([0, 0, 1]), np.array([1, 1, 0]))), shape=(2, 3))
    compressed = sparse.csr_array((twice.data, twice.col, np.array([0, 2, 3])), shape=(2, 3))
    for values in (twice, compressed):
        assert as_source(values).partitions[0].load()[0].nnz == 2
        np.testing.assert_array_equal(all_rows(as_source(values)), [[0, 3, 0], [4, 0, 0]])
    assert compressed.nnz == 3


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
@pytest.mark.parametrize("form", ["coo", "csr"])
def test_entries_stored_often_are_added_beyond_their_dtype_and_keep_it_within(form, dtype) -> None:
    place = np.zeros(300, dtype=np.int32), np.repeat([0, 1], [260, 40]).astype(np.int32)
    tokens = sparse.coo_array((np.ones(300, dtype=dtype), place), shape=(1, 2))
    if form == "csr":
        tokens = sparse.csr_array((tokens.data, tokens.col, np.array([0, 300])), shape=(1, 2))
    np.testing.assert_array_equal(all_rows(as_source(tokens)), [[260, 40]])
    np.testing.assert_array_equal(check_block(tokens, 0, "documents").toarray(), [[260, 40]])
    once = sparse.coo_array((np.ones(2, dtype=dtype), ([0, 1], [0, 1])), shape=(2, 2))
    assert as_source(once if form == "coo" else once.tocsr()).dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_a_fingerprint_is_plain_and_stays_the_same(kind, tmp_path) -> None:
    data = KINDS[kind](tmp_path)
    found = as_source(data).fingerprint()
    assert found == as_source(data).fingerprint()
    assert all(isinstance(value, str | list) for value in found.values())


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, lambda rows: da.from_array(rows, chunks=(7, 3))])
@pytest.mark.parametrize("row", [0, 15, 22])
def test_a_fingerprint_changes_with_an_entry_at_the_start_the_middle_or_the_end(make, row) -> None:
    changed = ROWS.copy()
    changed[row, 1] += 1
    assert as_source(make(changed)).fingerprint() != as_source(make(ROWS)).fingerprint()


def test_a_fingerprint_changes_with_shape_type_weights_and_partitions() -> None:
    weights = np.ones(23)
    sources = [
        ArraySource(ROWS),
        ArraySource(ROWS[:, :2]),
        ArraySource(ROWS[:-1]),
        ArraySource(ROWS.astype(np.float32)),
        ArraySource(ROWS.astype(np.int64)),
        ArraySource(ROWS, weights),
        ArraySource(ROWS, 2 * weights),
        ArraySource(ROWS, partition_rows=5),
        ArraySource(ROWS, partition_rows=6),
        ArraySource(sparse.csr_array(ROWS)),
    ]
    found = [str(source.fingerprint()) for source in sources]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (np.ones(3), r"should be 2-D, .* got 1-D\. Reshape your data: x\.reshape\(1, -1\) if it is one row"),
        (np.ones((3, 2, 2)), r"should be 2-D, .* got 3-D\. Reshape it to \(rows, columns\)\."),
        (np.ones((0, 2)), r"has 0 sample\(s\) .* at least one row and one column\."),
        (np.ones((2, 0)), r"has 0 feature\(s\) .* at least one row and one column\."),
        (None, "should be a path, or an array with one row per observation; got None"),
        (np.array([["a", 1.0]], dtype=object), r"should be numbers; .*Encode or drop columns of other types\."),
        (pd.DataFrame({"a": [1.0], "b": ["x"]}), r"column 'b' should hold numbers; .*Encode it, or leave it out\."),
        (np.array([["1", "2"]]), r"should contain real numbers; got dtype <U1\. Convert them to float first\."),
        (np.ones((2, 2), dtype=complex), r"should contain real numbers; Complex data not supported\."),
        (np.ones(3, dtype="f8,f8"), r"got a structured array with the fields f0, f1\. Convert it with numpy\.lib"),
        (np.array(["a text", "b"]), r"should be numbers; .*a text.*\. Count the words of texts first, .*Vectorizer"),
        (pd.Series(["a text", "b"]), r"should be numbers; .*'a text'\. Count the words of texts first, .*Vectorizer"),
        ("rows.npz", r"If it holds rows in an array of NumPy, save this array alone as \.npy, with numpy\.save\."),
        ([[1.0, 2.0], [3.0]], "should be numbers; "),
        (
            sparse.csr_array(np.ones((2, 2), dtype=complex)),
            r"should contain real numbers; Complex data not supported\.",
        ),
        (sparse.coo_array(np.ones(3)), "should be 2-D, .* got 1-D"),
        (sparse.coo_array(np.ones((3, 2, 2))), "should be 2-D, .* got 3-D"),
        (da.ones(3), "dask.array should be 2-D, .* got 1-D"),
        (da.ones((0, 2)), r"dask.array has 0 sample\(s\)"),
        (da.ones((3, 2), dtype=complex), "dask.array should contain real numbers; Complex data not supported"),
        (da.ones((9, 2))[da.ones(9) > 0], r"chunks of unknown size; call array\.compute_chunk_sizes\(\) first\."),
        (
            iter([np.ones((3, 2))]),
            "should be an array or a path; got a stream of blocks, which only SVA.fit accepts",
        ),
        ("rows.npy", r"there is no file at rows\.npy; check the path"),
        (
            "nowhere.zarr",
            r"there is no Zarr array and no corpus at nowhere\.zarr\. .* create one with: dpdist convert",
        ),
    ],
)
def test_data_that_cannot_be_rows_are_refused_in_a_sentence(data, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        as_source(data).fingerprint()


@pytest.mark.parametrize("bad", [-1, 4, 10**9])
@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
def test_a_sparse_matrix_with_entries_beyond_it_is_refused_before_it_is_read(form, bad) -> None:
    blocks = {"blocksize": (1, 1)} if form == "bsr" else {}
    matrix = getattr(sparse, f"{form}_array")(np.ones((4, 4)), **blocks)
    matrix.indices[2] = bad
    with pytest.raises(InputError, match=rf"its indices should be from 0 to 3; got {bad}\. Build the matrix again\."):
        as_source(matrix)


def test_a_block_of_other_length_than_was_told_is_refused() -> None:
    short = da.from_array(ROWS, chunks=(5, ROWS.shape[1])).map_blocks(lambda x: x[:2], dtype=float, meta=ROWS[:0])
    with pytest.raises(InputError, match=r"partition 0 .* should hold 5 rows; got 2\."):
        as_source(short).partitions[0].load()


def test_rows_lie_in_one_order_whatever_they_came_in() -> None:
    for table in (ROWS, np.asfortranarray(ROWS), ROWS[::-1][::-1]):
        rows, _ = as_source(table).partitions[0].load()
        assert rows.flags.c_contiguous


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ({"dtype": "int16", "scale_factor": 0.01, "_FillValue": -99}, "_FillValue and scale_factor"),
        ({"dtype": "int16", "_FillValue": -99}, "_FillValue"),
        ({"add_offset": 3.0}, "add_offset"),
        ({}, None),
        ({"dtype": "float32"}, None),
    ],
)
def test_numbers_that_stand_for_others_are_refused(tmp_path, encoding, told) -> None:
    xr.Dataset({"v": (("row", "column"), ROWS)}).to_zarr(
        tmp_path / "v.zarr", encoding={"v": encoding}, consolidated=False
    )
    if told is None:
        assert as_source(str(tmp_path / "v.zarr")).shape == ROWS.shape
        return
    with pytest.raises(InputError, match=rf"according to its attributes {told}, .*xarray\.open_zarr"):
        as_source(str(tmp_path / "v.zarr"))


def test_damaged_metadata_are_told_as_such(tmp_path) -> None:
    zarr.create_array(tmp_path / "rows.zarr", data=ROWS)
    (tmp_path / "rows.zarr" / "zarr.json").write_text("{")
    with pytest.raises(CorruptDataError, match=r"the metadata of .*rows\.zarr are damaged"):
        as_source(str(tmp_path / "rows.zarr"))


@pytest.mark.parametrize("held", ["here", "lazy", "derived"])
def test_masked_entries_of_a_dask_array_are_refused(held: str) -> None:
    masked = np.ma.masked_equal(ROWS, ROWS[3, 0])
    array = {
        "here": da.from_array(masked, chunks=(5, -1)).persist(),
        "lazy": da.from_array(masked, chunks=(5, -1)),
        "derived": da.ma.masked_equal(da.from_array(ROWS, chunks=(5, -1)), ROWS[3, 0]),
    }[held]
    with pytest.raises(InputError, match=r"should have no masked entries; got some\."):
        [part.load() for part in as_source(array).partitions]
    plain = as_source(da.from_array(np.ma.array(ROWS), chunks=(5, -1)))
    loaded = [part.load()[0] for part in plain.partitions]
    assert not any(isinstance(rows, np.ma.MaskedArray) for rows in loaded)
    np.testing.assert_array_equal(np.concatenate(loaded), ROWS)


def test_masked_weights_are_refused() -> None:
    weights = np.ma.masked_equal(np.arange(len(ROWS)), 3)
    with pytest.raises(InputError, match=r"sample_weight should have no masked entries; got some\."):
        ArraySource(ROWS, weights)


def test_stored_data_that_cannot_be_rows_are_refused_in_a_sentence(tmp_path) -> None:
    with pytest.raises(InputError, match=r"line\.zarr should be 2-D"):
        as_source(stored_line(tmp_path))
    with pytest.raises(InputError, match=r"z\.zarr should contain real numbers; Complex data not supported\."):
        as_source(stored(tmp_path, ROWS.astype(complex), "z.zarr"))


def stored_line(folder) -> str:
    """The path of a one-dimensional Zarr array."""
    zarr.create_array(store=str(folder / "line.zarr"), data=np.ones(4))
    return str(folder / "line.zarr")


def test_partitions_of_a_path_travel_as_that_path_from_anywhere(tmp_path, monkeypatch) -> None:
    stored(tmp_path)
    monkeypatch.chdir(tmp_path)
    partition = as_source("rows.zarr").partitions[0]
    sent = pickle.dumps(partition)
    assert len(sent) < 600
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(pickle.loads(sent).load()[0], ROWS)


def test_partitions_are_named_by_their_rows_and_where_they_are(tmp_path) -> None:
    assert ArraySource(ROWS, partition_rows=5).partitions[2].label == "partition 2 (rows 10 to 15)"
    path = stored(tmp_path)
    assert as_source(path).partitions[0].label == f"partition 0 (rows 0 to 23) of {path}"


@pytest.mark.parametrize("codec", [None, zarr.codecs.BloscCodec(), zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()])
@pytest.mark.parametrize("given_open", [False, True])
def test_a_chunk_that_does_not_decode_is_named(tmp_path, codec, given_open) -> None:
    path = tmp_path / "rows.zarr"
    zarr.create_array(path, data=ROWS, chunks=(5, 3), compressors=codec)
    np.testing.assert_array_equal(all_rows(as_source(path)), ROWS)
    (path / "c/2/0").write_bytes((path / "c/2/0").read_bytes()[:20])
    source = as_source(zarr.open_array(path, mode="r") if given_open else path)
    with pytest.raises(CorruptDataError, match=r"partition 0 \(rows 0 to 23\).* is damaged \(.*Write the rows again"):
        source.partitions[0].load()


def test_missing_metadata_is_a_failure_to_read_and_no_damage(tmp_path) -> None:
    partition = as_source(stored(tmp_path)).partitions[0]
    (tmp_path / "rows.zarr" / "zarr.json").unlink()
    with pytest.raises(OSError, match=r"partition 0 .* could not be read: the Zarr array at .* was removed"):
        partition.load()


def test_missing_chunks_are_counted_unless_the_array_says_it_is_complete(tmp_path) -> None:
    path = stored(tmp_path)
    shutil.rmtree(tmp_path / "rows.zarr/c/1")
    with pytest.warns(UserWarning, match=r"2 of 10 chunks of .* are missing and are read as 0"):
        source = as_source(path)
    assert not source.partitions[0].load()[0][5:10].any()
    zarr.open_array(path).attrs[COMPLETE] = True
    with pytest.raises(CorruptDataError, match=r"partition 0 .* is damaged: chunk c/1/0 is missing\."):
        as_source(path).partitions[0].load()
    with pytest.raises(CorruptDataError, match=r"partition 0 .* is damaged: chunk c/1/0 is missing\."):
        as_source(zarr.open_array(path, mode="r")).partitions[0].load()


def test_a_group_without_rows_is_refused_naming_what_it_holds(tmp_path) -> None:
    path = str(tmp_path / "group.zarr")
    group = zarr.open_group(path, mode="w")
    with pytest.raises(InputError, match=r"should contain an array named 'rows', .*; its arrays: none\. Give the path"):
        as_source(path)
    group.create_array("z", data=ROWS)
    group.create_array("a", data=ROWS)
    with pytest.raises(InputError, match=r"its arrays: a \(23, 3\), z \(23, 3\)\."):
        as_source(path)
    np.testing.assert_array_equal(all_rows(as_source(f"{path}/z")), ROWS)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.ones(5), "should have 23 numbers, one per row; got shape"),
        (np.ones((23, 1)), "should have 23 numbers"),
        (np.full(23, np.nan), "should be finite, zero or more; got nan for row 0"),
        (np.full(23, np.inf), "should be finite"),
        (-np.ones(23), r"should be finite, zero or more; got -1\.0 for row 0"),
        (np.zeros(23), "should have a finite sum above zero"),
    ],
)
def test_weights_that_cannot_be_are_refused_in_a_sentence(weights, sentence) -> None:
    with pytest.raises(InputError, match=f"sample_weight {sentence}"):
        as_source(ROWS, weights)


def test_one_weight_stands_for_all_rows() -> None:
    np.testing.assert_array_equal(require_weights(2, 3), [2.0, 2.0, 2.0])
    assert require_weights(None, 3) is None


def test_weights_belong_to_a_source_that_is_made_already() -> None:
    with pytest.raises(InputError, match="sample_weight cannot be given with a source"):
        as_source(ArraySource(ROWS), np.ones(23))


@given(
    rows=st.integers(1, 10**6),
    row_bytes=st.integers(1, 10**5),
    chunk=st.none() | st.integers(100, 10**6),
    work=st.integers(1, 10**6),
)
def test_work_only_ever_makes_partitions_smaller_and_never_smaller_than_pays(rows, row_bytes, chunk, work) -> None:
    freely, sizes = (np.diff(cut_rows(rows, row_bytes, chunk, each).bounds) for each in (None, work))
    assert sizes.max() <= freely.max() and sizes.sum() == rows
    reads = max(1, -(-min(chunk or 0, rows) * row_bytes // READ_BYTES))
    assert sizes.max() <= max(work * reads, FEWEST_ROWS)
    if sizes.max() < freely.max():
        assert 2 * sizes.max() >= min(max(work * reads, FEWEST_ROWS), freely.max())


@pytest.mark.parametrize("kind", ["array", "zarr", "npy"])
def test_rows_cut_by_work_are_the_same_rows_and_say_how_they_are_cut(kind, tmp_path) -> None:
    rows = np.random.default_rng(0).normal(size=(70_000, 3))
    if kind == "zarr":
        zarr.create_array(str(tmp_path / "a"), data=rows, chunks=(2_000, 3))
    if kind == "npy":
        np.save(tmp_path / "a.npy", rows)
    source = as_source({"array": rows, "zarr": str(tmp_path / "a"), "npy": str(tmp_path / "a.npy")}[kind])
    again = source.in_partitions_of(300)
    check_source(again)
    np.testing.assert_array_equal(all_rows(again), rows)
    assert len(again.partitions) > len(source.partitions) and max(part.rows for part in again.partitions) <= 300
    assert (again.identity()["partition_rows"], "partition_rows" in source.identity()) == (300, False)
    assert again.in_partitions_of(None) is again and source.in_partitions_of(None) is source
    assert again.in_partitions_of(300).identity() == again.identity()


def test_a_cut_that_is_given_stays() -> None:
    given = ArraySource(np.zeros((1000, 2)), partition_rows=500)
    for source in (given, as_source(da.zeros((1000, 2), chunks=(500, 2))), as_source(sparse.csr_array((1000, 2)))):
        assert source.in_partitions_of(256) is source


@pytest.mark.parametrize("texts", [["a few words", "of two documents"], ["a " * 300], ("hello world",)])
def test_texts_are_not_taken_for_paths(texts) -> None:
    with pytest.raises(InputError, match=r"got strings that look like documents\. Count their words first"):
        as_source(texts)


def test_what_a_dask_array_cannot_hold_is_told() -> None:
    array = da.ones((6, 3), chunks=(2, 3)).map_blocks(sparse.csr_array)
    with pytest.raises(InputError, match="should be dense; got sparse matrices"):
        as_source(array).partitions[0].load()
