"""Writing of documents as a corpus for :class:`dpdist.data.CorpusSource` (``dpdist corpus``).

Documents arrive in blocks of any size. Their counts are first written to plain files, while only sums are kept in
memory. Then the number of documents is known, and they are cut into partitions of about equal size, each written as
separate arrays. Only one block and one partition are in memory at a time. The corpus is written aside and renamed into
place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import zarr
from scipy import sparse
from zarr.codecs import Crc32cCodec, ZstdCodec

from dpdist.core.errors import InputError
from dpdist.core.outputs import claim_folder
from dpdist.core.places import absolute
from dpdist.core.strings import join_strings
from dpdist.data.base import FEWEST_ROWS, MOST_ROWS, PARTITION_BYTES, TARGET_PARTITIONS
from dpdist.data.corpus import FORMAT, LAYOUT, OFFSETS, TEXT, partition_name
from dpdist.data.documents.counts import MOST, check_block
from dpdist.data.filling import Filling
from dpdist.data.zarr import COMPLETE

#: Bytes of an entry, and bytes added for each document, which combine the bounds on bytes and on documents.
ENTRY_BYTES, DOCUMENT_BYTES = 8, PARTITION_BYTES // MOST_ROWS
#: Largest number of entries of a partition: about a second of work with a hundred topics.
WORK_ENTRIES = 2**17
#: Largest chunk, in bytes.
_CHUNK_BYTES = 64 * 2**20
#: Number of documents whose lengths are read at a time.
_AT_ONCE = 2**16


def write_corpus(
    path: str | os.PathLike[str],
    documents: Iterable[sparse.csr_array],
    vocabulary: Sequence[str] | None = None,
    overwrite: bool = False,
    label: str = "the documents",
) -> tuple[int, int]:
    """Write documents as a corpus, in bounded memory.

    Parameters
    ----------
    path : of the corpus; appears only when complete
    documents : SciPy sparse blocks (n, W) of counts, one row a document, as from
        :func:`dpdist.data.documents.open_documents`
    vocabulary : (W,) the word of each column; default: no words, and W is the number of columns of the widest block
    overwrite : replace an existing Zarr array or group
    label : name of the documents in messages

    Returns
    -------
    shape : (documents, words) of the corpus

    Raises
    ------
    InputError
        If there are no documents or no words, a count is not a non-negative integer, the vocabulary has another number
        of words, or a file is damaged.
    OutputExistsError
        If something exists at `path` and `overwrite` is false, or it is not Zarr.
    """
    filling = Filling(absolute(claim_folder(path, overwrite)), uuid.uuid4().hex)
    with filling.begun(overwrite):
        filling.forget()  # remains of a killed process: documents are read once, from the first
        try:
            shape = _write(Path(filling.where), documents, vocabulary, label)
            filling.is_free(overwrite)  # raises if something appeared there in the meantime
            filling.appear("bounds", "partitions", *(() if vocabulary is None else ("vocabulary",)))
        finally:
            filling.forget()
    return shape


def _write(
    folder: Path, documents: Iterable[sparse.csr_array], vocabulary: Sequence[str] | None, label: str
) -> tuple[int, int]:
    """Write the corpus to a new folder; returns its shape."""
    group = zarr.open_group(folder, mode="w", zarr_format=3)
    with _Heap(folder / "heap") as heap:
        for block in documents:
            heap.add(_checked(block, vocabulary, heap.documents, label))
        shape = _checked_shape(heap, vocabulary, label)
        if vocabulary is not None:
            _store_strings(group, "vocabulary", list(vocabulary))
        digest = _store_counts(group, heap)
        sums = {"documents": shape[0], "words": shape[1], "tokens": heap.tokens, "entries": heap.entries}
    group.update_attributes({FORMAT: LAYOUT, **sums, "sha256": digest, COMPLETE: True})
    return shape


def cut_documents(lengths: Iterable[np.ndarray], documents: int, entries: int) -> np.ndarray:
    """First document of each partition, and the number of documents, by a rule that depends only on the data.

    Partitions have about equal size, where an entry counts 8 bytes and a document 256 more, which bounds both documents
    and bytes; the last document of a partition may exceed the bound.

    Parameters
    ----------
    lengths : number of entries of each document, some documents at a time
    documents, entries : total numbers
    """
    parts = min(TARGET_PARTITIONS, -(-documents // FEWEST_ROWS))
    whole = ENTRY_BYTES * entries + DOCUMENT_BYTES * documents
    fewest = FEWEST_ROWS * whole // documents
    size = min(PARTITION_BYTES, -(-whole // parts), max(ENTRY_BYTES * WORK_ENTRIES, fewest))
    bounds, first, end, before = [0], 0, 0, 0
    for piece in lengths:
        weights = ENTRY_BYTES * piece + DOCUMENT_BYTES
        ends = end + np.cumsum(weights)
        numbers = np.concatenate([[before], (ends - weights) // size])
        bounds += (first + np.flatnonzero(np.diff(numbers))).tolist()
        first, end, before = first + len(piece), int(ends[-1]), int(numbers[-1])
    return np.array([*bounds, documents], dtype=np.int64)


def _checked(block: sparse.sparray, vocabulary: Sequence[str] | None, first: int, label: str) -> sparse.csr_array:
    rows = check_block(block, first, label)
    if vocabulary is not None and rows.shape[1] != len(vocabulary):
        raise InputError(
            f"{label} should have {len(vocabulary)} columns, one for each word of the vocabulary; got {rows.shape[1]} "
            f"in the block that starts at document {first}. Give the vocabulary of these documents."
        )
    return rows


def _checked_shape(heap: _Heap, vocabulary: Sequence[str] | None, label: str) -> tuple[int, int]:
    words = heap.words if vocabulary is None else len(vocabulary)
    if not heap.documents or not 0 < words <= MOST:
        raise InputError(
            f"{label} should have at least 1 document and from 1 to {MOST} words; got {heap.documents} documents and "
            f"{words} words. Check the source of the documents."
        )
    return heap.documents, words


class _Heap:
    """Counts of documents in three plain files in a new folder, which is removed in the end."""

    def __init__(self, folder: Path) -> None:
        self.documents = self.words = self.entries = self.tokens = 0
        self._folder = folder

    def __enter__(self) -> _Heap:
        self._folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)

    def add(self, rows: sparse.csr_array) -> None:
        """Append documents."""
        for name, values in (("lengths", np.diff(rows.indptr)), ("indices", rows.indices), ("data", rows.data)):
            with open(self._folder / name, "ab") as stream:
                stream.write(np.ascontiguousarray(values, np.int32).data)
        self.documents, self.words = self.documents + rows.shape[0], max(self.words, rows.shape[1])
        self.entries, self.tokens = self.entries + rows.nnz, self.tokens + int(rows.data.sum(dtype=np.int64))

    def lengths(self) -> Iterator[np.ndarray]:
        """Number of entries of the documents, some documents at a time."""
        with open(self._folder / "lengths", "rb") as stream:
            while len(piece := np.fromfile(stream, np.int32, _AT_ONCE)):
                yield piece.astype(np.int64)

    def parts(self, bounds: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        """The CSR arrays of the documents between bounds."""
        with (
            open(self._folder / "lengths", "rb") as lengths,
            open(self._folder / "indices", "rb") as indices,
            open(self._folder / "data", "rb") as data,
        ):
            for documents in np.diff(bounds):
                indptr = np.concatenate([[0], np.cumsum(np.fromfile(lengths, np.int32, documents), dtype=np.int64)])
                entries = int(indptr[-1])
                columns, counts = (np.fromfile(stream, np.int32, entries) for stream in (indices, data))
                yield {"indptr": indptr, "indices": columns, "data": counts}


# Arrays of the group


def _store_counts(group: zarr.Group, heap: _Heap) -> str:
    """Store the partitions and their bounds; returns a hash of all counts."""
    digest, bounds = hashlib.sha256(), cut_documents(heap.lengths(), heap.documents, heap.entries)
    _store(group, "bounds", bounds, "boundary")
    for index, arrays in enumerate(heap.parts(bounds)):
        partition = group.create_group(partition_name(index))
        for name, values in arrays.items():
            digest.update(values.data)
            _store(partition, name, values, "boundary" if name == "indptr" else "entry")
    return digest.hexdigest()


def _store_strings(group: zarr.Group, name: str, strings: list[str]) -> None:
    """Store strings as concatenated UTF-8, with the offset of each and of the end."""
    odd = next((each for each in strings if not isinstance(each, str)), None)
    if odd is not None:
        raise InputError(f"{name} should contain only strings; got {odd!r}. Give a string for each word.")
    text, offsets = join_strings(strings)
    inner = group.create_group(name)
    _store(inner, TEXT, text, "byte")
    _store(inner, OFFSETS, offsets, "boundary")


def _store(group: zarr.Group, name: str, values: np.ndarray, dimension: str) -> None:
    """Store an array with all chunks written, each with a checksum."""
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(max(1, min(len(values), _CHUNK_BYTES // values.itemsize)),),
        compressors=[ZstdCodec(), Crc32cCodec()],
        dimension_names=(dimension,),
        attributes={COMPLETE: True},
        config={"write_empty_chunks": True},
    )
    if len(values):
        array[...] = values
