"""Laws of digests: any other value is another digest, and where values lie in memory is not; a record has its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpdist.core.digests import digest_of, digest_of_rows
from dpdist.core.errors import CheckpointError
from dpdist.core.records import sealed, unsealed

#: More rows than are taken at once.
ROWS = np.random.default_rng(0).poisson(0.7, size=(9000, 3)).astype(float)
WEIGHTS = np.random.default_rng(1).uniform(1, 2, size=9000)


def test_the_digest_of_bytes_changes_with_any_bit_and_with_their_number() -> None:
    data = bytes(range(40))
    flipped = [bytes(byte ^ (bit == place) for place, byte in enumerate(data)) for bit in range(40)]
    others = [digest_of(each) for each in (*flipped, data + b"\0", data[:-1], b"", data[::-1])]
    assert len({digest_of(data), *others}) == 45
    assert digest_of(memoryview(data)) == digest_of(data)


LAYOUTS = {
    "column-major": np.asfortranarray,
    "strided": lambda rows: np.repeat(np.repeat(rows, 2, axis=0), 2, axis=1)[::2, ::2],
    "reversed twice": lambda rows: np.ascontiguousarray(rows[::-1])[::-1],
    "read-only": lambda rows: np.frombuffer(rows.tobytes()).reshape(rows.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_digest_of_rows_does_not_mind_how_they_lie_in_memory(layout) -> None:
    assert digest_of_rows(LAYOUTS[layout](ROWS), WEIGHTS) == digest_of_rows(ROWS, WEIGHTS)
    assert digest_of_rows(ROWS, np.repeat(WEIGHTS, 2)[::2]) == digest_of_rows(ROWS, WEIGHTS)


def long_indices(rows: sparse.csr_array) -> sparse.csr_array:
    """The same with indices of another type."""
    return sparse.csr_array((rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)), shape=rows.shape)


def with_zeros(rows: sparse.csr_array) -> sparse.csr_array:
    """The same with every zero stored."""
    count, columns = rows.shape
    indices = np.tile(np.arange(columns), count)
    return sparse.csr_array((rows.toarray().ravel(), indices, columns * np.arange(count + 1)), shape=rows.shape)


def unordered(rows: sparse.csr_array) -> sparse.csr_array:
    """The same with the entries of each row the other way round."""
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)])
    return sparse.csr_array((rows.data[order], rows.indices[order], rows.indptr), shape=rows.shape)


@pytest.mark.parametrize("change", [long_indices, with_zeros, unordered])
def test_the_digest_of_sparse_rows_does_not_mind_how_they_are_stored(change) -> None:
    rows = sparse.csr_array(ROWS)
    other = change(rows)
    assert digest_of_rows(other, None) == digest_of_rows(rows, None)
    assert other.nnz >= rows.nnz, "what is digested is left as it is"
    assert digest_of_rows(sparse.vstack([rows, rows], format="csr")[9000:], None) == digest_of_rows(rows, None)


@given(
    row=st.integers(0, 8999), column=st.integers(0, 2), change=st.sampled_from([1, -1, 1e-9, 1e9]), kind=st.booleans()
)
def test_the_digest_of_rows_changes_with_any_entry(row, column, change, kind) -> None:
    make = sparse.csr_array if kind else np.asarray
    edited = ROWS.copy()
    edited[row, column] += change
    assert digest_of_rows(make(edited), WEIGHTS) != digest_of_rows(make(ROWS), WEIGHTS)


@given(row=st.integers(0, 8999))
def test_the_digest_of_rows_changes_with_any_weight(row) -> None:
    edited = WEIGHTS.copy()
    edited[row] = np.nextafter(edited[row], 2)
    assert digest_of_rows(ROWS, edited) != digest_of_rows(ROWS, WEIGHTS)


def test_other_types_shapes_orders_weights_and_kinds_are_other_digests() -> None:
    few, none = np.arange(12.0).reshape(4, 3), np.zeros((4, 3))
    places = [[0, 0, 1], [0, 0, 2], [1, 1, 2]], [[0, 1, 2], [0, 2, 2], [1, 2, 2]]
    moved = [
        sparse.csr_array(sparse.coo_array(([5.0, 6.0, 7.0], (at, columns)), shape=(4, 3)))
        for at in places[0]
        for columns in places[1]
    ]
    every = [
        (few, None),
        (few, np.ones(4)),
        (few.reshape(3, 4), None),
        (few[::-1], None),
        (few[:, ::-1], None),
        (few.T.copy(), None),
        (few.astype(np.float32), None),
        (few.astype(np.int64), None),
        (few.astype(">f8"), None),
        (sparse.csr_array(few), None),
        (sparse.csr_array(few), np.ones(4)),
        *((each, None) for each in moved),
        *((none.astype(kind), None) for kind in (np.float64, np.int64, np.uint64)),
        (sparse.csr_array(few.reshape(2, 6)), None),
        (np.concatenate([few, np.ones((1, 3))]), None),
    ]
    assert len({digest_of_rows(*each) for each in every}) == len(every)


# Records


VALUES = {"seed": 7, "elbo": -1234.5678, "name": "Gauß", "list": [1, None, True], "inner": {"b": 1, "a": 2}}


def test_a_record_reads_back_as_it_was_written() -> None:
    assert unsealed(sealed(VALUES), "file", "") == VALUES
    assert unsealed(sealed({"tuple": (1, 2)}), "file", "") == {"tuple": [1, 2]}
    assert unsealed(sealed({}), "file", "") == {}


def test_any_flipped_bit_of_a_record_is_told_or_changes_nothing() -> None:
    data, told = sealed(VALUES), 0
    for place in range(len(data)):
        for bit in range(8):
            try:
                assert (
                    unsealed(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :], "file", "") == VALUES
                )
            except CheckpointError:
                told += 1
    assert told > 6 * len(data)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"seed": 7}', sealed(VALUES)[:-1], b"\xff\xfe\x00"])
def test_what_is_no_record_is_told_with_what_to_do(data) -> None:
    with pytest.raises(CheckpointError, match=r"^run\.zarr/file is damaged; restore it\.$"):
        unsealed(data, "run.zarr/file", "restore it.")
