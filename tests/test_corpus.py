"""Laws of corpora: the same counts from any file, cut once and for all, never read as other counts."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import pickle
import re
import shutil
import tracemalloc
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from typer.testing import CliRunner

import dpdist
from dpdist.cli.root import app
from dpdist.core.errors import CorruptDataError, InputError, OutputExistsError
from dpdist.core.places import place_of
from dpdist.data import ArraySource, CorpusSource, as_source
from dpdist.data.base import FEWEST_ROWS, MOST_ROWS, PARTITION_BYTES, TARGET_PARTITIONS
from dpdist.data.corpora import DOCUMENT_BYTES, ENTRY_BYTES, WORK_ENTRIES, cut_documents, write_corpus
from dpdist.data.corpus import FORMAT, partition_name
from dpdist.data.documents import FORMATS, docword, npz, open_documents, read_vocabulary, text
from dpdist.data.zarr import COMPLETE
from dpdist.testing import check_source
from tests.conftest import shared_path
from tests.daemons.s3 import BUCKET, environment, moto_server

DOCUMENTS, WORDS = 900, 40
VOCABULARY = [f"mot{place}é" for place in range(WORDS)]


def convert_corpus(
    source: Path, out: Path, vocabulary: Path | None = None, format: str = "auto", overwrite: bool = False
) -> tuple[int, int]:
    """Write a file of documents as a corpus, as ``dpdist corpus`` does."""
    known = None if vocabulary is None else read_vocabulary(str(vocabulary))
    return write_corpus(out, open_documents(str(source), format, known), known, overwrite, str(source))


def some_documents(documents: int = DOCUMENTS, words: int = WORDS, seed: int = 0) -> sparse.csr_array:
    """Counts (D, W) with documents that are empty at the start, the middle and the end."""
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.poisson(0.3, size=(documents, words)), 5)
    counts[[0, 1, documents // 2, documents - 1]] = 0
    return sparse.csr_array(counts.astype(np.int32))


COUNTS = some_documents()


def write_text(path: Path, lines: str) -> Path:
    """A file of text, compressed if it is called so."""
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def write_save_npz(path: Path, counts: sparse.csr_array) -> Path:
    sparse.save_npz(path, counts)
    return path


def write_savez(path: Path, counts: sparse.csr_array) -> Path:
    arrays = {"indptr": counts.indptr.astype(">i8"), "indices": counts.indices, "data": counts.data.astype(float)}
    np.savez(path, shape=np.array(counts.shape), **arrays)
    return path


def write_docword(path: Path, counts: sparse.csr_array) -> Path:
    coo = counts.tocoo()
    lines = [f"{d + 1} {w + 1} {c}" for d, w, c in zip(*coo.coords, coo.data, strict=True)]
    return write_text(path, "\n".join([*map(str, (*counts.shape, counts.nnz)), *lines, ""]))


def write_ldac(path: Path, counts: sparse.csr_array) -> Path:
    def line(row: int) -> str:
        part = slice(counts.indptr[row], counts.indptr[row + 1])
        terms = [f"{w}:{c}" for w, c in zip(counts.indices[part], counts.data[part], strict=True)]
        return " ".join([str(len(terms)), *terms])

    return write_text(path, "\n".join(map(line, range(counts.shape[0]))) + "\n")


FILES = {
    "counts.npz": write_save_npz,
    "arrays.npz": write_savez,
    "docword.some.txt": write_docword,
    "docword.some.txt.gz": write_docword,
    "some.ldac": write_ldac,
    "some.dat.gz": write_ldac,
}


def blocks_of(counts: sparse.csr_array, size: int) -> Iterator[sparse.csr_array]:
    """Counts in blocks of some documents."""
    return (counts[start : start + size] for start in range(0, counts.shape[0], size))


def all_counts(source: CorpusSource) -> sparse.csr_array:
    """The documents of the partitions one after the other."""
    return sparse.vstack([partition.load()[0] for partition in source.partitions], format="csr")


def assert_holds(source: CorpusSource, counts: sparse.csr_array) -> None:
    found = all_counts(source)
    assert found.shape == counts.shape
    assert found.data.dtype == np.int32
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, name), getattr(counts, name))


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out" / "corpus.zarr"


@pytest.fixture(autouse=True)
def folder_for_output(tmp_path) -> None:
    (tmp_path / "out").mkdir()


@pytest.fixture
def vocabulary_file(tmp_path) -> Path:
    return write_text(tmp_path / "vocab.txt", "\n".join(VOCABULARY))


@pytest.fixture
def small_reads(monkeypatch) -> None:
    """Readers that see a little at a time."""
    for module in (npz, docword):
        monkeypatch.setattr(module, "BLOCK_DOCUMENTS", 64)
    monkeypatch.setattr(npz, "BLOCK_ENTRIES", 100)
    monkeypatch.setattr(text, "_READ_BYTES", 1000)


# What is in the file is in the corpus


@pytest.mark.parametrize("name", FILES)
def test_every_file_gives_the_same_corpus(tmp_path, out, name, small_reads) -> None:
    file = FILES[name](tmp_path / name, COUNTS)
    assert convert_corpus(file, out) == COUNTS.shape
    source = as_source(out)
    assert isinstance(source, CorpusSource)
    assert_holds(source, COUNTS)
    assert source.vocabulary is None and source.weights is None
    check_source(source)


def test_every_format_is_tested() -> None:
    assert {name.removesuffix(".gz").rpartition(".")[2] for name in FILES} == {"npz", "txt", "ldac", "dat"}
    assert set(FORMATS) == {"npz", "docword", "ldac"}


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_told_by_name_or_by_the_caller(tmp_path, out, name) -> None:
    format = {"npz": "npz", "doc": "docword"}.get(name[-3:] if "npz" in name else name[:3], "ldac")
    file = FILES[name](tmp_path / name, COUNTS)
    renamed = file.rename(tmp_path / ("other.gz" if file.suffix == ".gz" else "other"))
    with pytest.raises(InputError, match=r"should have a name like .*Rename it, or give format=NAME"):
        convert_corpus(renamed, out)
    assert convert_corpus(renamed, out, format=format) == COUNTS.shape


@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "uint64", "float32", "float64"])
def test_whole_counts_of_any_dtype_are_kept(out, kind) -> None:
    counts = sparse.coo_array((COUNTS > 0) if kind == "bool" else COUNTS).astype(kind)
    write_corpus(out, [counts])
    assert_holds(as_source(out), sparse.csr_array(counts).astype(np.int32))


def test_words_given_twice_are_added_and_those_of_no_count_left_out(tmp_path, out) -> None:
    rows = sparse.csr_array((np.array([1, 2, 0, 4]), np.array([2, 2, 0, 1]), np.array([0, 3, 4])), shape=(2, 3))
    write_corpus(out, [rows])
    meant = sparse.csr_array(np.array([[0, 0, 3], [0, 4, 0]]))
    assert_holds(as_source(out), meant)
    convert_corpus(write_text(tmp_path / "a.ldac", "3 2:1 2:2 0:0\n1 1:4\n"), out, overwrite=True)
    assert_holds(as_source(out), meant)
    convert_corpus(write_text(tmp_path / "docword.a.txt", "2\n3\n3\n1 3 1\n1 3 2\n2 2 4\n"), out, overwrite=True)
    assert_holds(as_source(out), meant)


@pytest.mark.parametrize("lines", ["1 2:1\r\n0\r\n", "1 2:1\n0", " 1\t2:1 \n0\n\n \n"])
def test_text_of_any_line_ends_is_read(tmp_path, out, lines) -> None:
    convert_corpus(write_text(tmp_path / "a.ldac", lines), out)
    np.testing.assert_array_equal(all_counts(as_source(out)).toarray(), [[0, 0, 1], [0, 0, 0]])


def test_words_are_kept(out) -> None:
    write_corpus(out, blocks_of(COUNTS, 100), VOCABULARY)
    assert as_source(out).vocabulary == VOCABULARY


def test_a_corpus_is_plain_arrays_that_say_what_they_are(out) -> None:
    write_corpus(out, [COUNTS])
    group = zarr.open_group(out, mode="r")
    assert (group.attrs["documents"], group.attrs["words"]) == COUNTS.shape
    assert (group.attrs["tokens"], group.attrs["entries"]) == (COUNTS.sum(), COUNTS.nnz)
    assert sorted(group.keys()) == ["bounds", "partitions"]
    for array in (group["bounds"], *group[partition_name(0)].arrays()):
        found = array if isinstance(array, zarr.Array) else array[1]
        assert [type(codec).__name__ for codec in found.compressors] == ["ZstdCodec", "Crc32cCodec"]
        assert found.metadata.dimension_names is not None


# Partitions


def test_partitions_do_not_depend_on_how_documents_came(tmp_path) -> None:
    found = []
    for size in (5, 300, DOCUMENTS):
        path = tmp_path / f"{size}.zarr"
        write_corpus(path, blocks_of(COUNTS, size))
        found.append(as_source(path).fingerprint())
    assert all(each == found[0] for each in found)
    assert len(as_source(path).partitions) == 4


@given(
    lengths=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=400),
    at_once=st.integers(1, 400),
    repeat=st.sampled_from([1, 1000]),
)
def test_a_cut_covers_documents_once_in_order_and_in_bounds(lengths, at_once, repeat) -> None:
    entries = np.repeat(np.array(lengths, dtype=np.int64), repeat)
    pieces = [entries[start : start + at_once * repeat] for start in range(0, len(entries), at_once * repeat)]
    bounds = cut_documents(pieces, len(entries), int(entries.sum()))
    np.testing.assert_array_equal(bounds, cut_documents([entries], len(entries), int(entries.sum())))
    assert (bounds[0], bounds[-1]) == (0, len(entries))
    assert (np.diff(bounds) > 0).all() and np.diff(bounds).max() <= MOST_ROWS
    sizes = 8 * np.add.reduceat(entries, bounds[:-1])
    assert sizes.max() <= PARTITION_BYTES + 8 * entries.max()


@pytest.mark.parametrize("documents", [40_000, 80_000, 300_000])
def test_a_large_corpus_has_as_many_partitions_as_batches_want_and_more_where_they_are_much_work(documents) -> None:
    lengths = np.full(documents, 100, dtype=np.int64)
    bounds = cut_documents([lengths], documents, int(lengths.sum()))
    sizes = np.diff(bounds)
    work = -(-(ENTRY_BYTES * 100 + DOCUMENT_BYTES) * documents // (ENTRY_BYTES * WORK_ENTRIES))
    assert len(sizes) == pytest.approx(max(TARGET_PARTITIONS, work), abs=1)
    assert np.ptp(sizes[:-1]) <= 1 and sizes[-1] <= sizes[0] + 1


def test_long_documents_are_not_alone() -> None:
    lengths = np.full(40_000, 10_000, dtype=np.int64)
    assert np.diff(cut_documents([lengths], 40_000, int(lengths.sum())))[:-1].min() >= FEWEST_ROWS - 1


def test_partitions_travel_as_the_path_of_the_corpus_from_anywhere(out, monkeypatch) -> None:
    write_corpus(out, [COUNTS])
    monkeypatch.chdir(out.parent)
    source = as_source("corpus.zarr")
    sent = [pickle.dumps(partition) for partition in source.partitions]
    assert max(map(len, sent)) < 600
    monkeypatch.chdir("/")
    for data, (_, start, stop) in zip(sent, source.cut.ranges(), strict=True):
        rows, weights = pickle.loads(data).load()
        assert weights is None
        np.testing.assert_array_equal(rows.toarray(), COUNTS[start:stop].toarray())
    assert pickle.loads(sent[1]).label == f"partition 1 (documents {start_of(source, 1)}) of {out}"


def start_of(source: CorpusSource, index: int) -> str:
    """The documents of a partition, as its label names them."""
    return f"{source.cut.bounds[index]} to {source.cut.bounds[index + 1]}"


def test_documents_without_words_are_documents(out) -> None:
    assert write_corpus(out, [sparse.csr_array((1000, 5))]) == (1000, 5)
    check_source(as_source(out))
    assert all_counts(as_source(out)).nnz == 0


def test_other_processes_load_what_this_one_loads(out) -> None:
    write_corpus(out, [COUNTS])
    partitions, load = as_source(out).partitions, methodcaller("load")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for partition, (rows, _) in zip(partitions, pool.map(load, partitions), strict=True):
            assert pickle.dumps(rows) == pickle.dumps(partition.load()[0])


def test_a_fit_of_a_corpus_is_that_of_the_same_rows_in_memory(out) -> None:
    write_corpus(out, [COUNTS])
    source = as_source(out)
    model = dpdist.DPMixture(family=dpdist.families.Multinomial(), random_state=0, max_laps=2)
    first = model.fit(str(out)).elbo_
    assert model.fit(ArraySource(COUNTS, cut=source.cut)).elbo_ == first


def test_a_fingerprint_changes_with_any_count(tmp_path) -> None:
    changed = COUNTS.copy()
    changed.data[changed.nnz // 3] += 1
    for name, counts in (("a", COUNTS), ("b", changed), ("c", COUNTS)):
        write_corpus(tmp_path / name, [counts])
    one, other, again = (as_source(tmp_path / name).fingerprint() for name in "abc")
    assert one == again != other
    assert all(isinstance(value, str | list) for value in one.values())


def test_weights_are_refused(out) -> None:
    write_corpus(out, [COUNTS])
    with pytest.raises(InputError, match="is a corpus, whose documents have no weights; leave sample_weight out"):
        as_source(out, np.ones(DOCUMENTS))


# What is refused


def refused(out: Path, sentence: str, call) -> None:
    """Assert that a call fails with one sentence and leaves nothing behind."""
    with pytest.raises(InputError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", ")"))
    assert list(out.parent.iterdir()) == []


def rows_of(data, indices=(0, 1), indptr=(0, 1, 2), columns: int = 3) -> sparse.csr_array:
    """Two documents."""
    return sparse.csr_array((np.array(data), np.array(indices), np.array(indptr)), shape=(len(indptr) - 1, columns))


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (
            rows_of([1, -1]),
            "document 903 of the documents should hold counts, .*; got -1 of word",
        ),
        (rows_of([1.5, 1.0]), "document 902 of .*; got 1.5 of word 0. Correct or drop it"),
        (rows_of([1.0, np.nan]), "document 903 of .*; got nan of word 1"),
        (rows_of([1.0, np.inf]), "document 903 of .*; got inf"),
        (rows_of([2**31, 1]), "document 902 of .*; got 2147483648"),
        (rows_of([2**30] * 4, [0] * 4, [0, 4]), "document 902 of .*; got 4294967296"),
        (rows_of([1, 1j]), "should hold counts; got dtype complex128"),
        (
            rows_of([1, 1], [0, 3]),
            "document 903 of .* should have words from 0 to 2; got 3. Correct the document, or give",
        ),
        (rows_of([1, 1], [-1, 0]), "document 902 of .* should have words from 0 to 2; got -1"),
        (np.ones((2, 3)), r"should be blocks of 2-D SciPy sparse matrices.*; got an array of shape \(2, 3\)"),
        (sparse.coo_array(np.ones(3)), "should be blocks of 2-D SciPy sparse matrices.*; got coo_array"),
        (["a", "b"], "should be blocks of 2-D SciPy sparse matrices.*; got list"),
    ],
)
def test_blocks_that_are_no_counts_are_refused(out, block, sentence) -> None:
    blocks = [COUNTS, sparse.csr_array((2, 3)), block]
    refused(out, sentence, lambda: write_corpus(out, blocks))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"documents": []}, "should have at least 1 document and from 1 to .* words; got 0 documents and 0 words"),
        ({"documents": [sparse.csr_array((3, 0))]}, "should have at least 1 document.*; got 3 documents and 0 words"),
        (
            {"vocabulary": VOCABULARY[1:]},
            "should have 39 columns, one for each word .*; got 40 in the block that starts at document 0",
        ),
        ({"vocabulary": range(WORDS)}, "vocabulary should contain only strings; got 0"),
    ],
)
def test_documents_that_cannot_be_a_corpus_are_refused(out, arguments, sentence) -> None:
    refused(out, sentence, lambda: write_corpus(out, **{"documents": [COUNTS], **arguments}))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "line 1 of .* should be the number of documents; got ''"),
        ("2\n3\n", "line 3 of .* should be the number of lines that follow; got ''"),
        ("2\nthree\n1\n1 1 1\n", "line 2 of .* should be the number of words; got 'three'"),
        (
            "2\n3\n2\n1 1 1\n2 2 -1\n",
            "line 5 of .* should be 'document word count' with whole numbers .*; got '2 2 -1'",
        ),
        ("2\n3\n2\n1 1 1.5\n2 2 1\n", "line 4 of .* got '1 1 1.5'"),
        ("2\n3\n2\n1 1 nan\n2 2 1\n", "line 4 of .* got '1 1 nan'"),
        ("2\n3\n2\n1 1 1\n2 2\n", "line 5 of .* got '2 2'"),
        ("2\n3\n2\n1 1\n1 2 2 1\n", "line 4 of .* got '1 1'"),
        ("2\n3\n2\n1 1 1\n\n2 2 1\n", "line 5 of .* got ''"),
        (
            "2\n3\n2\n1 1 1\n2 4 1\n",
            "line 5 of .* a document from 1 to 2 and a word from 1 to 3.*; got document 2 and word",
        ),
        ("2\n3\n2\n1 0 1\n2 3 1\n", "line 4 of .* got document 1 and word 0"),
        ("2\n3\n2\n1 1 1\n3 3 1\n", "line 5 of .* got document 3 and word 3"),
        (
            "2\n3\n2\n2 1 1\n1 3 1\n",
            "line 5 of .* should have document 2 or a later one; got document 1. Sort the lines",
        ),
        (
            "2\n3\n3\n1 1 1\n2 3 1\n",
            "should have 3 lines after its header, as line 3 says; got 2. The file is truncated",
        ),
        ("2\n3\n1\n1 1 1\n2 3 1\n", "should have 1 lines after its header, as line 3 says; got 2"),
        ("2\n3\n1\n1 1 99999999999999999999\n", "document 0 of .* should hold counts.*; got 9223372036854775807"),
        ("2\n0\n0\n", "should have at least 1 document.*; got 2 documents and 0 words"),
    ],
)
def test_docword_that_is_not_as_it_says_is_refused(tmp_path, out, lines, sentence) -> None:
    file = write_text(tmp_path / "docword.a.txt", lines)
    refused(out, sentence, lambda: convert_corpus(file, out))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "should have at least 1 document.*; got 0 documents and 0 words"),
        ("1 0:1\n2 0:1\n", "line 2 of .* should have 2 terms, as its first number says; got 1. Correct it"),
        ("1 0:1\n1 0:1 2:1\n", "line 2 of .* should have 1 terms, as its first number says; got 2"),
        ("1 0:1\n1 0:-1\n", "line 2 of .* should be 'M word:count word:count ...' with whole numbers .*; got '1 0:-1'"),
        ("1 0:1.5\n", "line 1 of .* got '1 0:1.5'"),
        ("1 0:inf\n", "line 1 of .* got '1 0:inf'"),
        ("1 0:1\n1 -2:1\n", "line 2 of .* got '1 -2:1'"),
        ("1 0:1\n1 2\n", "line 2 of .* got '1 2'"),
        ("1 0:1\n\n1 0:1\n", "line 2 of .* got ''"),
        ("1 0:1\n2 0:1:3 4\n", "line 2 of .* got '2 0:1:3 4'"),
        (f"1 0:1\n{'9' * 100}\n", "line 2 of .*should have 9223372036854775807 terms.*; got 0"),
        ("1 0:1\n1 99999999999:1\n", "line 2 of .* should have words from 0 to 2147483646; got word 99999999999"),
        ("0\n0\n", "should have at least 1 document.*; got 2 documents and 0 words"),
    ],
)
def test_ldac_that_is_not_as_it_says_is_refused(tmp_path, out, lines, sentence) -> None:
    file = write_text(tmp_path / "a.ldac", lines)
    refused(out, sentence, lambda: convert_corpus(file, out))


def test_lines_are_numbered_through_the_whole_file(tmp_path, out, small_reads) -> None:
    file = write_text(tmp_path / "a.ldac", "2 0:1 3:1\n" * 5000 + "2 0:1 3:x\n" + "0\n" * 5000)
    refused(out, "line 5001 of", lambda: convert_corpus(file, out))
    lines = "".join(f"{d} 1 1\n" for d in range(1, 5001))
    file = write_text(tmp_path / "docword.a.txt", f"9999\n3\n5001\n{lines}5000 4 1\n")
    refused(out, "line 5004 of .* word 4", lambda: convert_corpus(file, out))


def test_words_beyond_the_vocabulary_are_refused_with_their_line(tmp_path, out, vocabulary_file) -> None:
    file = write_text(tmp_path / "a.ldac", "1 39:1\n0\n2 0:1 40:1\n")
    sentence = "line 3 of .* should have words from 0 to 39, as in the vocabulary; got word 40"
    refused(out, sentence, lambda: convert_corpus(file, out, vocabulary=vocabulary_file))


@pytest.mark.parametrize("name", ["counts.npz", "docword.some.txt"])
def test_a_vocabulary_of_another_length_is_refused(tmp_path, out, vocabulary_file, name) -> None:
    file = FILES[name](tmp_path / name, COUNTS[:, :-1])
    sentence = "the vocabulary should have 39 words, as many as .*; got 40. Give the vocabulary of this file"
    refused(out, sentence, lambda: convert_corpus(file, out, vocabulary=vocabulary_file))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a\n\nb\n", "line 2 of .* should be a word; it is empty"),
        (b"a\n\xff\xfe\n", r"should be UTF-8 text with one word per line, but reading it failed.* Save it as UTF-8\."),
        (b"a\nb\nc\nb\n", "the words of .* should differ; 'b' is on two lines"),
        (None, "there is no vocabulary at .*Check the path"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(tmp_path, out, content, sentence) -> None:
    file, words = FILES["counts.npz"](tmp_path / "counts.npz", COUNTS), tmp_path / "words"
    if content is not None:
        words.write_bytes(content)
    refused(out, sentence, lambda: convert_corpus(file, out, vocabulary=words))


def arrays_of(counts: sparse.csr_array = COUNTS, **other) -> dict[str, np.ndarray]:
    """What a matrix is in an archive."""
    arrays = {"indptr": counts.indptr, "indices": counts.indices, "data": counts.data, "shape": counts.shape}
    return {name: np.array(value) for name, value in {**arrays, **other}.items() if value is not None}


LATE = np.where(np.arange(COUNTS.nnz) == COUNTS.indptr[700], WORDS, COUNTS.indices)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (arrays_of(indptr=None), "should contain a CSR matrix, .*; got no array 'indptr'. Save it with: scipy.sparse"),
        (arrays_of(shape=None), "got no array 'shape'"),
        (arrays_of(format=b"csc"), "got a matrix in csc. Save it with: .*tocsr"),
        (arrays_of(shape=[3]), "should contain a 2-D matrix"),
        (
            arrays_of(shape=[DOCUMENTS - 1, WORDS]),
            "for 899 documents, indptr should have 900 entries .*; indptr has 901 entries",
        ),
        (arrays_of(data=COUNTS.data[1:]), f"with {COUNTS.nnz} indices and {COUNTS.nnz - 1} counts"),
        (arrays_of(indptr=COUNTS.indptr + 1), r"entries and starts at \[1\]"),
        (arrays_of(indptr=np.r_[0, 9, 5, COUNTS.indptr[3:]]), "document 1 goes from entry 9 to 5 of"),
        (arrays_of(indptr=np.r_[COUNTS.indptr[:-1], 10**6]), "document 899 goes from entry .* to 1000000 of"),
        (arrays_of(indptr=COUNTS.indptr // 2), "its documents end at entry"),
        (arrays_of(indices=LATE), r"document 700 of .* should have words from 0 to 39; got 40"),
        (arrays_of(indices=COUNTS.indices.astype(float)), "its array indices should be .* 1-D of dtype float64"),
        (arrays_of(data=COUNTS.data[:, None]), "its array data should be 1-D numbers; it is 2-D of dtype int32"),
        (arrays_of(data=COUNTS.data.astype(str)), "its array data should be .* 1-D of dtype"),
        (arrays_of(data=-COUNTS.data), "document 2 of .* should hold counts"),
    ],
)
def test_archives_that_are_no_counts_are_refused(tmp_path, out, arrays, sentence) -> None:
    np.savez(tmp_path / "counts.npz", **arrays)
    refused(out, sentence, lambda: convert_corpus(tmp_path / "counts.npz", out))


def test_damaged_archives_are_refused(tmp_path, out) -> None:
    file = tmp_path / "counts.npz"
    np.savez(file, **arrays_of())
    whole = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        place = archive.getinfo("data.npy").header_offset + 400
    for data in (b"", bytes(whole[:-3000]), bytes([*whole[:place], whole[place] ^ 1, *whole[place + 1 :]])):
        file.write_bytes(data)
        sentence = "should be a NumPy archive of a CSR matrix, but reading it failed: .*download it again"
        refused(out, sentence, lambda: convert_corpus(file, out))


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".gz")])
@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: data[:500] + b"x" * 50 + data[550:]])
def test_damaged_compressed_text_is_refused(tmp_path, out, name, damage) -> None:
    file = FILES[name](tmp_path / name, COUNTS)
    file.write_bytes(damage(file.read_bytes()))
    refused(out, "but reading it failed|line .* should be", lambda: convert_corpus(file, out))


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("none.npz", {}, "there is no file at .*; check the path"),
        ("none.zarr", {}, "should have a name like"),
        ("none.npz", {"format": "csv"}, "format should be one of auto, npz, docword, ldac; got 'csv'"),
    ],
)
def test_files_that_are_not_there_or_no_documents_are_refused(tmp_path, out, name, options, sentence) -> None:
    refused(out, sentence, lambda: convert_corpus(tmp_path / name, out, **options))


# Outputs


def test_a_corpus_is_replaced_only_if_asked_and_only_by_a_whole_one(tmp_path, out) -> None:
    write_corpus(out, [COUNTS])
    with pytest.raises(OutputExistsError, match="exists; choose another name"):
        write_corpus(out, [COUNTS])
    with pytest.raises(InputError):
        write_corpus(out, [COUNTS, -COUNTS], overwrite=True)
    assert_holds(as_source(out), COUNTS)
    write_corpus(out, [COUNTS[:10]], overwrite=True)
    assert_holds(as_source(out), COUNTS[:10])
    assert list(out.parent.iterdir()) == [out]


def test_what_interrupts_the_documents_leaves_nothing(out) -> None:
    def broken() -> Iterator[sparse.csr_array]:
        yield COUNTS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(out, broken())
    assert list(out.parent.iterdir()) == []


def test_what_came_to_the_place_of_a_corpus_meanwhile_stays(out) -> None:
    def documents() -> Iterator[sparse.csr_array]:
        yield COUNTS
        out.mkdir()

    with pytest.raises(OutputExistsError, match="exists; choose another name"):
        write_corpus(out, documents())
    assert list(out.parent.iterdir()) == [out] and not list(out.iterdir())


@pytest.mark.parametrize("name", ["docword.a.txt", "a.ldac"])
@pytest.mark.parametrize("begin", [b"", "\ufeff".encode()])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_and_gzip_of_another_name_are_read(tmp_path, out, name, begin, pack) -> None:
    lines = "1\n3\n1\n1 2 4\n" if name.startswith("docword") else "1 1:4\n"
    (tmp_path / name).write_bytes(pack(begin + lines.encode()))
    convert_corpus(tmp_path / name, out)
    assert all_counts(as_source(out)).toarray().ravel().tolist()[:2] == [0, 4]


@pytest.mark.parametrize(("line", "what"), [(1, "documents"), (2, "words")])
def test_more_documents_or_words_than_can_be_are_refused_before_any_is_written(tmp_path, out, line, what) -> None:
    lines = ["2", "3", "1", "1 1 2"]
    lines[line - 1] = "99999999999"
    file = write_text(tmp_path / "docword.h.txt", "\n".join(lines))
    told = f"line {line} of .* should be the number of {what}, at most 2147483647; got '9+'"
    refused(out, told, lambda: convert_corpus(file, out))


def test_what_killed_attempts_left_goes_with_the_next(out) -> None:
    for kind in ("partial-0123", "old-77"):
        out.with_name(f".{out.name}.{kind}").mkdir()
    write_corpus(out, [COUNTS])
    assert list(out.parent.iterdir()) == [out]


def peak_of(call) -> int:
    """Most bytes that a call held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_block_however_many_there_are(out) -> None:
    block = some_documents(30, 2000)
    peak = peak_of(lambda: write_corpus(out, (block for _ in range(150))))
    assert as_source(out).shape == (4500, 2000)
    assert peak < 150 * block.nnz * 8 / 5


@pytest.mark.parametrize("name", ["arrays.npz", "docword.some.txt", "some.ldac"])
def test_memory_of_a_reader_is_that_of_a_block(tmp_path, out, name, monkeypatch) -> None:
    counts = some_documents(8_000, 40)
    file = FILES[name](tmp_path / name, counts)
    monkeypatch.setattr(npz, "BLOCK_DOCUMENTS", 500)
    monkeypatch.setattr(npz, "BLOCK_ENTRIES", 2000)
    monkeypatch.setattr(text, "_READ_BYTES", 5000)
    reader = FORMATS[{"arrays": "npz", "docword": "docword", "some": "ldac"}[name.partition(".")[0]]]
    peak = peak_of(lambda: sum(block.nnz for block in reader(file, None)))
    assert peak < file.stat().st_size / 3


# Damage


DAMAGES = {
    "a flipped bit": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "the end cut off": lambda data: data[:-10],
    "nothing": lambda data: b"",
    "another's bytes": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("array", ["indptr", "indices", "data"])
@pytest.mark.parametrize("damage", [*DAMAGES, "lost"])
def test_a_damaged_chunk_is_named_and_never_a_count(out, array, damage) -> None:
    write_corpus(out, [COUNTS])
    chunk = out / partition_name(1) / array / "c" / "0"
    chunk.unlink() if damage == "lost" else chunk.write_bytes(DAMAGES[damage](chunk.read_bytes()))
    first, second, *_ = as_source(out).partitions
    first.load()
    told = (
        rf"{array} of partition 1 .* is damaged: chunk c/0 is missing"
        if damage == "lost"
        else "partition 1 .* is damaged"
    )
    with pytest.raises(CorruptDataError, match=f"{told}.*Write the corpus again .* dpdist corpus FILE --overwrite"):
        second.load()


def test_a_partition_in_the_place_of_another_is_damage(out) -> None:
    write_corpus(out, [COUNTS])
    shutil.rmtree(out / partition_name(1) / "data")
    shutil.copytree(out / partition_name(0) / "data", out / partition_name(1) / "data")
    with pytest.raises(CorruptDataError, match=r"partition 1 .* is damaged: its arrays do not fit together"):
        as_source(out).partitions[1].load()


def test_words_out_of_range_are_damage(out) -> None:
    write_corpus(out, [COUNTS])
    zarr.open_array(out / partition_name(0) / "indices")[3] = WORDS
    with pytest.raises(CorruptDataError, match=r"partition 0 .* is damaged: its arrays do not fit together"):
        as_source(out).partitions[0].load()


def test_a_missing_partition_is_a_failure_to_read(out) -> None:
    write_corpus(out, [COUNTS])
    partition = as_source(out).partitions[2]
    shutil.rmtree(out / partition_name(2))
    with pytest.raises(OSError, match=r"partition 2 .* could not be read: the Zarr array at .* was removed"):
        partition.load()


@pytest.mark.parametrize("name", ["bounds", "vocabulary/text", "vocabulary/offsets"])
def test_damaged_bounds_and_names_are_named(out, name) -> None:
    write_corpus(out, [COUNTS], VOCABULARY)
    (out / name / "c" / "0").unlink()
    with pytest.raises(CorruptDataError, match=f"{name.rpartition('/')[2]} of .* is damaged: chunk c/0 is missing"):
        source = as_source(out)
        assert source.vocabulary


@pytest.mark.parametrize(
    ("attribute", "error", "sentence"),
    [
        ({FORMAT: 99}, InputError, "is a corpus of layout 99; this dpdist reads only 1. Install a newer one"),
        ({COMPLETE: False}, CorruptDataError, "is incomplete: writing it was interrupted. Write the corpus again"),
    ],
)
def test_corpora_of_the_future_or_cut_short_are_refused(out, attribute, error, sentence) -> None:
    write_corpus(out, [COUNTS])
    zarr.open_group(out).update_attributes(attribute)
    with pytest.raises(error, match=sentence):
        as_source(out)


def test_a_place_without_a_corpus_is_told(tmp_path) -> None:
    zarr.create_array(tmp_path / "rows.zarr", data=np.ones((2, 2)))
    for name in ("rows.zarr", "nowhere.zarr"):
        with pytest.raises(InputError, match=f"there is no corpus at .*{name}. Check the path, or create one with"):
            CorpusSource.open(str(tmp_path / name))
    for name in ("docword.kos.txt", "kos.npz", "ap.ldac"):
        with pytest.raises(
            InputError, match=f"{name} is not Zarr. If it contains documents, convert them with: dpdist corpus"
        ):
            as_source(name)


# Elsewhere


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with moto_server() as settings, environment(settings):
        yield


def test_a_corpus_in_an_object_store_is_the_corpus_on_disk(server, out) -> None:
    write_corpus(out, [COUNTS], VOCABULARY)
    url = f"s3://{BUCKET}/some/corpus.zarr"
    place = place_of(url)
    for file in out.rglob("*"):
        if file.is_file():
            place.replace(str(file.relative_to(out)), file.read_bytes())
    here, there = as_source(out), as_source(url)
    assert isinstance(there, CorpusSource)
    assert there.fingerprint() == here.fingerprint()
    assert there.vocabulary == here.vocabulary
    assert_holds(there, COUNTS)
    place.remove(f"{partition_name(1)}/data/c/0")
    partition = pickle.loads(pickle.dumps(there.partitions[1]))
    with pytest.raises(CorruptDataError, match=f"data of partition 1 .* of {url} is damaged: chunk c/0 is missing"):
        partition.load()
    with pytest.raises(InputError, match="there is no corpus at s3://"):
        CorpusSource.open(f"s3://{BUCKET}/nowhere")


def test_a_corpus_is_written_to_disk_only(out) -> None:
    refused(out, "written to local disk; got the URL s3://", lambda: write_corpus("s3://bucket/a.zarr", [COUNTS]))


def test_the_command_writes_a_corpus(tmp_path, out, vocabulary_file) -> None:
    file = FILES["some.ldac"](tmp_path / "some.ldac", COUNTS)
    command = ["corpus", str(file), "--out", str(out), "--vocabulary", str(vocabulary_file), "--format", "ldac"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert re.sub(r"\s", "", done.output) == f"900documentsover40wordsin{out}"
    assert as_source(out).vocabulary == VOCABULARY
    assert isinstance(CliRunner().invoke(app, command).exception, OutputExistsError)
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0


def test_the_corpus_of_a_political_blog_is_itself(out) -> None:
    file = shared_path("data", "text_kos", "kos.npz")
    words = shared_path("data", "text_kos", "vocab.txt")
    convert_corpus(file, out, vocabulary=words)
    source = as_source(out)
    with np.load(file) as kos:
        counts = sparse.csr_array((kos["data"], kos["indices"], kos["indptr"]), shape=tuple(kos["shape"]))
    assert_holds(source, counts)
    assert source.shape == (3430, 6906)
    assert all_counts(source).sum() == 467_714
    assert source.vocabulary == words.read_text().split()
    assert len(source.partitions) == 14
    assert json.loads((out / "zarr.json").read_text())["attributes"]["tokens"] == 467_714


@pytest.mark.parametrize("mark", [b"", "\ufeff".encode()], ids=["plain", "with a byte-order mark"])
def test_a_vocabulary_is_the_same_whatever_it_begins_with(mark: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(mark + "été\nété2\n".encode())
    assert read_vocabulary(str(path)) == ["été", "été2"]
