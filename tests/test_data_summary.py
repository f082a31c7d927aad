"""Laws of the data summary: moments as NumPy has them, additive over rows, bad rows named."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import dpdist
from dpdist.core.errors import InputError
from dpdist.data import ArraySource, as_source
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import DataSummary, summarise_partition, summarise_source
from tests.cases import count_rows, real_rows

SEEDS = st.integers(0, 2**32 - 1)


def summary_of(rows, weights=None, products: bool = False, partition_rows: int | None = None) -> DataSummary:
    """The summary of rows, in partitions of a given size."""
    return summarise_source(ArraySource(rows, weights, partition_rows), SerialBackend(), products)


def assert_same(found: DataSummary, expected: DataSummary, rtol: float = 1e-9) -> None:
    """Two summaries agree."""
    size = np.abs(expected.scatter).max()
    np.testing.assert_allclose(found.count, expected.count, rtol=1e-12)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=rtol, atol=rtol * size)
    np.testing.assert_array_equal(found.minimum, expected.minimum)
    np.testing.assert_array_equal(found.maximum, expected.maximum)
    assert found.integral == expected.integral


@given(seed=SEEDS, size=st.integers(1, 50))
def test_moments_are_those_of_numpy(seed, size) -> None:
    rows = real_rows(np.random.default_rng(seed), 40, 3)
    moments = summary_of(rows, partition_rows=size).moments()
    assert moments.count == 40
    assert moments.dimension == 3
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-10)
    np.testing.assert_array_equal(moments.minimum, rows.min(0))
    np.testing.assert_array_equal(moments.maximum, rows.max(0))
    assert not moments.integral


@given(seed=SEEDS, size=st.integers(1, 50))
def test_weighted_moments_are_those_of_numpy(seed, size) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = real_rows(rng, 40, 3), rng.uniform(0, 3, 40) * (rng.random(40) < 0.8)
    found = summary_of(rows, weights, products=True, partition_rows=size)
    mean = np.average(rows, axis=0, weights=weights)
    covariance = (weights[:, None] * (rows - mean)).T @ (rows - mean) / weights.sum()
    np.testing.assert_allclose(found.count, weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.scatter / found.count, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.variance, np.diag(covariance), rtol=1e-9)


@pytest.mark.parametrize("products", [False, True])
def test_a_mean_far_from_zero_costs_no_digits(products) -> None:
    far = 1e8 + real_rows(np.random.default_rng(0), 10_000, 3)
    near = far - 1e8
    found = summary_of(far, products=products, partition_rows=700)
    np.testing.assert_allclose(found.mean - 1e8, near.mean(0), atol=1e-7)
    np.testing.assert_allclose(found.variance, near.var(0), rtol=1e-8)


def test_partitions_longer_than_a_block_are_surveyed_whole() -> None:
    rows = real_rows(np.random.default_rng(0), 9001, 2)
    found = summary_of(rows, products=True, partition_rows=9001)
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.scatter / 9001, np.cov(rows.T, ddof=0), rtol=1e-12)


@given(seed=SEEDS, size=st.integers(1, 50), weighted=st.booleans())
def test_sparse_rows_have_the_moments_of_dense_ones(seed, size, weighted) -> None:
    rng = np.random.default_rng(seed)
    rows = count_rows(rng, 40, 4)
    weights = rng.uniform(0, 3, 40) if weighted else None
    found = summary_of(sparse.csr_array(rows), weights, partition_rows=size)
    assert_same(found, summary_of(rows, weights))
    assert found.integral


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8])
@pytest.mark.parametrize("density", [0.3, 1.0])
def test_sparse_rows_far_from_zero_have_the_moments_of_dense_ones(far, density) -> None:
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((400, 3)) < density, far + rng.normal(size=(400, 3)), 0.0)
    weights = rng.uniform(0, 3, 400)
    found, dense = (summary_of(each, weights, partition_rows=150) for each in (sparse.csr_array(rows), rows))
    np.testing.assert_allclose(found.variance, dense.variance, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint16, np.int64, bool])
def test_moments_do_not_overflow_a_narrow_type(dtype) -> None:
    rows = (np.arange(600).reshape(300, 2) % 120).astype(dtype)
    found = summary_of(np.tile(rows, (20, 1)))
    np.testing.assert_allclose(found.mean, rows.astype(float).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.variance, rows.astype(float).var(0), rtol=1e-12)
    assert found.integral


@given(seed=SEEDS, products=st.booleans(), data=st.data())
def test_surveys_add_in_any_tree(seed, products, data) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = real_rows(rng, 30, 3), rng.uniform(0.1, 3, 30)
    cuts = sorted(data.draw(st.sets(st.integers(1, 29), max_size=6)))
    parts = [
        summary_of(part, own, products) for part, own in zip(np.split(rows, cuts), np.split(weights, cuts), strict=True)
    ]
    while len(parts) > 1:
        i = data.draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    assert_same(parts[0], summary_of(rows, weights, products))


def test_addition_does_not_mind_the_order() -> None:
    rows = real_rows(np.random.default_rng(0), 30, 3)
    parts = [summary_of(part) for part in np.split(rows, 5)]
    assert_same(reduce(DataSummary.__add__, parts[::-1]), summary_of(rows))


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@given(seed=SEEDS, size=st.integers(1, 60))
def test_rows_without_weight_are_as_if_absent(make, seed, size) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = count_rows(rng, 60, 3) + 1, rng.integers(0, 2, 60) * rng.uniform(0.1, 3, 60)
    weights[[int(rng.integers(60)), 7]] = 1.5, 0.0
    rows[weights == 0] = [[-1e30, 0.5, 1e30]]
    kept = weights > 0
    products = make is np.asarray
    found = summary_of(make(rows), weights, products, partition_rows=size)
    assert_same(found, summary_of(make(rows[kept]), weights[kept], products))
    assert found.integral and (found.minimum >= 1).all()


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_rows_not_finite_are_named_even_without_weight(make) -> None:
    rows, weights = np.ones((40, 3)), np.ones(40)
    rows[7, 1], weights[5:9] = np.nan, 0.0
    with pytest.raises(InputError, match=r"in 1 of 40 rows \(row 7\)"):
        summary_of(make(rows), weights, partition_rows=10)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_long_partitions_have_the_moments_of_their_own_rows_and_weights(make) -> None:
    rng = np.random.default_rng(0)
    rows = np.linspace(1, 30, 13_000)[:, None] * rng.poisson(3.0, size=(13_000, 2))
    weights = np.linspace(0.1, 5, 13_000)
    found = summary_of(make(rows), weights, partition_rows=8500)
    mean = np.average(rows, axis=0, weights=weights)
    assert found.count == pytest.approx(weights.sum(), rel=1e-12)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.variance, np.average((rows - mean) ** 2, axis=0, weights=weights), rtol=1e-9)
    np.testing.assert_array_equal(found.minimum, rows.min(axis=0))
    rows[[4095, 4096, 8499, 8500, 12_999], [0, 1, 1, 0, 1]] = np.nan
    with pytest.raises(InputError, match=r"in 5 of 13000 rows \(rows 4095, 4096, 8499, 8500, 12999\)"):
        summary_of(make(rows), weights, partition_rows=8500)


def test_a_survey_of_bad_rows_counts_them_once_and_only_them() -> None:
    rows = np.arange(24.0).reshape(12, 2)
    rows[[2, 9]] = np.nan
    parts = [ArraySource(rows, partition_rows=6).partitions[i] for i in (0, 1)]
    one, two = (summarise_partition(part, False, part.load()[0].shape[1]) for part in parts)
    assert (one.bad, two.bad, (one + two).bad) == (1, 1, 2)
    assert (one + two).first_bad == (2, 9) and (one + two).count == 10
    np.testing.assert_allclose((one + two).mean, np.delete(rows, [2, 9], axis=0).mean(axis=0))


@pytest.mark.parametrize("make", [np.asarray, np.float32, sparse.csr_array], ids=["dense", "float32", "sparse"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_rows_that_are_not_finite_are_counted_and_named(make, value, size) -> None:
    rows = np.ones((40, 3))
    rows[[3, 7, 8, 33], [0, 2, 1, 2]] = value
    rows[7] = value
    with pytest.raises(InputError, match=r"NaN or infinity in 4 of 40 rows \(rows 3, 7, 8, 33\); .*Drop or fill"):
        summary_of(make(rows), partition_rows=size)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_only_the_first_of_many_bad_rows_are_named(size) -> None:
    rows = np.ones((40, 2))
    rows[10:30, 0] = np.nan
    with pytest.raises(InputError, match=r"in 20 of 40 rows \(rows 10, 11, 12, 13, 14, \.\.\.\)"):
        summary_of(rows, partition_rows=size)


def test_rows_all_bad_are_refused_too() -> None:
    with pytest.raises(InputError, match="in 4 of 4 rows"):
        summary_of(np.full((4, 2), np.nan), products=True)


def test_products_of_sparse_rows_are_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"PCA needs dense rows; .*\.$"):
        summary_of(sparse.csr_array(np.ones((4, 2))), products=True)


def test_whole_numbers_and_negatives_are_noticed_wherever_they_are() -> None:
    rows = np.zeros((40, 2))
    assert summary_of(rows, partition_rows=7).integral
    rows[38, 1], rows[20, 0] = 0.5, -3.0
    for values in (rows, sparse.csr_array(rows)):
        found = summary_of(values, partition_rows=7)
        assert not found.integral
        np.testing.assert_array_equal(found.minimum, [-3.0, 0.0])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_numbers_that_float64_rounds_are_refused_by_their_place(dtype) -> None:
    rows = np.full((30, 2), 2**53, dtype=dtype)
    summary_of(rows)
    rows[17, 1] += 1
    with pytest.raises(InputError, match=r"from -2\*\*53 to 2\*\*53, .*; got 9007199254740993 in column 1 of row 17"):
        summary_of(rows, partition_rows=7)
    summary_of(rows.astype(np.float64))


BESIDE = {"a": [0.5, 1.5, 2.5], "b": [2**53 + 1, 3, 4]}
HUGE = [[2**53 + 1, 1], [4, 5], [6, 7]]
WHOLE = {
    "text": lambda folder: _as_text(folder, HUGE),
    "below": lambda folder: _as_text(folder, [[4, 5], [6, -(2**53) - 1]]),
    "objects": lambda folder: np.array(HUGE, dtype=object),
    "nullable": lambda folder: pd.DataFrame(HUGE, columns=["a", "b"]).astype("Int64"),
    "beyond 64 bits": lambda folder: np.array([[10**30, 1], [4, 5]], dtype=object),
    "NumPy": lambda folder: np.array(HUGE),
    "NumPy, below": lambda folder: np.array([[4, 5], [6, -(2**53) - 1]]),
    "text beyond 64 bits": lambda folder: _as_text(folder, [[10**25, 1], [4, 5]]),
    "sparse": lambda folder: sparse.csr_array(np.array([[0, 0], *HUGE])),
    **{
        f"{kind} beside floats": make
        for kind, make in {
            "pandas": lambda folder: pd.DataFrame(BESIDE),
            "polars": lambda folder: pl.DataFrame(BESIDE),
            "Arrow": lambda folder: pa.table(BESIDE),
            "Parquet": lambda folder: _as_parquet(folder, pd.DataFrame(BESIDE)),
            "Parquet with gaps": lambda folder: _as_parquet(
                folder, pd.DataFrame(BESIDE).astype({"b": "Int64"}).shift()
            ),
        }.items()
    },
}


def _as_parquet(folder, frame) -> str:
    frame.to_parquet(folder / "rows.parquet")
    return str(folder / "rows.parquet")


def _as_text(folder, values) -> str:
    pd.DataFrame(values, columns=["a", "b"]).to_csv(folder / "rows.csv", index=False)
    return str(folder / "rows.csv")


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_that_float64_rounds_are_refused_wherever_they_are(name: str, tmp_path) -> None:
    with pytest.raises(
        InputError, match=r"whole numbers should be from -2\*\*53 to 2\*\*53, .*; got -?[0-9]{16,} in column"
    ):
        summarise_source(as_source(WHOLE[name](tmp_path)), SerialBackend(), False)


@pytest.mark.parametrize("values", [[[2**53, -(2**53)], [1, 2]], [[1e100, 2.0], [1, 2]]])
def test_other_large_numbers_are_taken(values, tmp_path) -> None:
    given = (_as_text(tmp_path, values), np.array(values, dtype=object), pd.DataFrame(values))
    for each in given:
        assert summarise_source(as_source(each), SerialBackend(), False).maximum.max() == values[0][0]


@pytest.mark.parametrize("scale", [1e-150, 1e-155, 1e-160, 1e-170, 1e-300])
def test_columns_that_vary_by_less_than_squares_can_tell_are_refused(scale: float) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3)) * [1.0, scale, 1.0]
    with pytest.raises(
        InputError, match=r"column 1 of .* varies so little that squared differences underflow in float64"
    ):
        summarise_source(ArraySource(rows), SerialBackend())
    rows[:, 1] = scale  # a constant has no square to lose
    summarise_source(ArraySource(rows), SerialBackend())


def test_small_columns_are_no_matter_where_their_squares_have_all_digits() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3)) * 1e-140
    found = summarise_source(ArraySource(rows), SerialBackend())
    np.testing.assert_allclose(found.variance * 1e280, (rows * 1e140).var(axis=0), rtol=1e-12)


class Made(ArraySource):
    """Ten partitions of rows of which the last comes as it should not."""

    def __init__(self, last: Callable[[np.ndarray], object]) -> None:
        super().__init__(np.random.default_rng(0).normal(size=(100, 3)), partition_rows=10)
        self.last = last

    def partition(self, *given: Any) -> Any:
        made = super().partition(*given)
        if made.index == 9:
            vars(made)["read"] = lambda: self.last(made.values)
        return made


#: What a source of one's own may give for ten rows of three columns, and what is said of it.
WRONG: dict[str, tuple[Callable[[np.ndarray], object], str]] = {
    "rows only": (lambda rows: rows, "a tuple of rows and weights .or None."),
    "nothing": (lambda rows: None, "a tuple of rows and weights .or None.; got None"),
    "a list": (lambda rows: (rows.tolist(), None), "a 2-D array of real numbers"),
    "one axis": (
        lambda rows: (rows[:, 0], None),
        r"a 2-D array of real numbers; got an array of float64 of shape \(10,\)",
    ),
    "words": (lambda rows: (rows.astype(str), None), "a 2-D array of real numbers"),
    "objects": (lambda rows: (rows.astype(object), None), "a 2-D array of real numbers"),
    "complex": (lambda rows: (rows + 1j, None), "a 2-D array of real numbers"),
    "fewer rows": (lambda rows: (rows[:9], None), "10 rows; got 9"),
    "fewer columns": (lambda rows: (rows[:, :2], None), "3 columns, as its source declares; got 2"),
    "one column": (lambda rows: (rows[:, :1], None), "3 columns, as its source declares; got 1"),
    "fewer weights": (lambda rows: (rows, np.ones(9)), "10 weights, one per row"),
    "a column of weights": (lambda rows: (rows, np.ones((10, 1))), "10 weights, one per row"),
    "weights below zero": (lambda rows: (rows, np.linspace(1, -0.1, 10)), "finite and zero or more; got -0.1"),
    "weights that are NaN": (lambda rows: (rows, np.where(np.arange(10) == 3, np.nan, 1)), "zero or more; got nan"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("error")
def test_what_a_source_of_ones_own_gives_is_checked_partition_by_partition(name) -> None:
    last, sentence = WRONG[name]
    with pytest.raises(dpdist.InputError, match=rf"partition 9 \(rows 90 to 100\).*{sentence}"):
        dpdist.DPMixture(max_laps=2).fit(Made(last))
