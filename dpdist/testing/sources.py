"""The laws of sources of rows."""

from __future__ import annotations

import itertools

import numpy as np

from dpdist.data.base import Source
from dpdist.models.families.base import dense_rows, is_sparse


def check_source(source: Source) -> None:
    """Check that a source covers its rows once, in order, and reads the same rows each time."""
    partitions = source.partitions
    assert [p.index for p in partitions] == list(range(len(partitions))), "partitions are numbered in order"
    edges = [p.start for p in partitions] + [partitions[-1].stop]
    assert {type(number) for number in (*source.shape, *edges)} == {int}, "its numbers are int, which JSON can store"
    assert edges[0] == 0 and edges[-1] == source.shape[0], "partitions cover the rows"
    assert all(p.stop == q.start for p, q in itertools.pairwise(partitions)), "partitions follow without gaps"
    for partition in partitions:
        rows, weights = partition.load()
        assert rows.shape == (partition.rows, source.shape[1]), "a partition loads the declared rows and columns"
        assert is_sparse(rows) == source.sparse, "rows are sparse or dense as the source declares"
        assert rows.dtype.kind in "biuf", "rows are numbers"
        assert weights is None or weights.shape == (partition.rows,), "there is one weight per row"
        assert weights is None or bool((np.isfinite(weights) & (weights >= 0)).all()), (
            "weights are finite and not below 0"
        )
        assert (weights is None) == (source.weights is None), "partitions have weights if the source has weights"
        if weights is not None and source.weights is not None:
            told = source.weights[partition.start : partition.stop]
            np.testing.assert_array_equal(weights, told, "weights are equal to those of the source")
        again = partition.load()[0]
        np.testing.assert_array_equal(dense_rows(again), dense_rows(rows), "a partition loads the same rows each time")
    assert source.names is None or len(source.names) == source.shape[1], "there is one name per column"
    assert source.fingerprint() == source.fingerprint(), "the fingerprint is the same each time"
