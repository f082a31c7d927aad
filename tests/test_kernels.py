"""Laws of the compiled kernels, each against plain NumPy."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special
from scipy.special import softmax

from dpdist.kernels.divide import divide_rows
from dpdist.kernels.jit import _OfUser, jit
from dpdist.kernels.packed import (
    fill_scatter,
    pack_gradient,
    pack_quadratic,
    packed_diagonal,
    packed_products,
    packed_width,
)
from dpdist.kernels.rows import take_columns
from dpdist.kernels.scores import highest, reaching
from dpdist.kernels.softmax import accumulate_sparse, pair_entropy, share_rows
from dpdist.kernels.special import log_beta, trigamma
from dpdist.kernels.vectorised import LEAST_EXPONENT, bits_of, digammas, exponentials, log_gammas, logarithms
from tests.cases import entropy_of

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 9))
FLOORS = st.sampled_from([0.0, 1e-8, 1e-3, 0.05])
#: Rows and components with a floor below one of so many, for few and for many of these.
SHARED = st.tuples(SIZES, FLOORS) | st.tuples(
    st.tuples(st.integers(1, 30), st.integers(10, 120)), st.sampled_from([0.0, 1e-8, 1e-3, 5e-3])
)


def floored(shares: np.ndarray, floor: float) -> np.ndarray:
    """Shares below the floor set to zero, the rest renormalised."""
    kept = np.where(shares < floor, 0.0, shares)
    return kept / kept.sum(axis=1, keepdims=True)


def truncated(logits: np.ndarray, floor: float) -> np.ndarray:
    """The softmax without what is below the floor beside the largest share, then beside all that is left."""
    shares = softmax(logits, axis=1)
    near = np.where(shares < floor * shares.max(axis=1, keepdims=True), 0.0, shares)
    return floored(near / near.sum(axis=1, keepdims=True), floor)


def negative_log(resp: np.ndarray) -> np.ndarray:
    """-r log r, zero at zero."""
    return -resp * np.log(resp, out=np.zeros_like(resp), where=resp > 0)


def shared(logits: np.ndarray, mass: np.ndarray, weights: np.ndarray, floor: float):
    """What ``share_rows`` gives: responsibilities, number above zero, counts, entropies."""
    resp, counts, entropy = logits.copy(), np.zeros(logits.shape[1]), np.zeros(logits.shape[1])
    return resp, share_rows(resp, mass, weights, floor, counts, entropy), counts, entropy


@given(seed=SEEDS, case=SHARED, spread=st.sampled_from([0.1, 3.0, 100.0]))
def test_rows_are_shared_by_a_truncated_softmax(seed, case, spread) -> None:
    rng, (size, floor) = np.random.default_rng(seed), case
    logits, mass, weights = spread * rng.normal(size=size), rng.uniform(0.1, 2, size[0]), rng.uniform(0, 3, size[0])
    resp, active, counts, entropy = shared(logits, mass, weights, floor)
    expected = mass[:, None] * truncated(logits, floor)
    np.testing.assert_allclose(resp, expected, rtol=1e-9, atol=1e-300)
    assert active == np.count_nonzero(resp)
    np.testing.assert_allclose(counts, weights @ resp, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(entropy, entropy_of(resp, weights), rtol=1e-8, atol=1e-9)


@given(seed=SEEDS, case=SHARED)
def test_a_row_keeps_its_mass_and_no_share_below_the_floor(seed, case) -> None:
    rng, (size, floor) = np.random.default_rng(seed), case
    logits, mass = 5 * rng.normal(size=size), rng.uniform(0.1, 2, size[0])
    resp, *_ = shared(logits, mass, np.ones(size[0]), floor)
    np.testing.assert_allclose(resp.sum(axis=1), mass, rtol=1e-12)
    shares = resp / mass[:, None]
    assert ((shares == 0) | (shares >= floor * (1 - 1e-12))).all()


@given(seed=SEEDS, case=SHARED)
def test_single_precision_logits_give_nearly_the_same_shares(seed, case) -> None:
    size, floor = case
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    ones = np.ones(size[0])
    single, _, counts, entropy = shared(logits, ones, ones, floor)
    double, _, counts_double, entropy_double = shared(logits.astype(np.float64), ones, ones, floor)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(counts, counts_double, rtol=1e-12)
    np.testing.assert_allclose(entropy, entropy_double, rtol=1e-12, atol=1e-12)


def test_sums_are_added_to_what_is_there() -> None:
    counts, entropy = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    share_rows(np.zeros((1, 2)), np.ones(1), np.ones(1), 0.0, counts, entropy)
    np.testing.assert_allclose(counts, [1.5, 2.5])
    np.testing.assert_allclose(entropy, np.array([3.0, 4.0]) + 0.5 * np.log(2))


def test_logits_far_apart_neither_overflow_nor_lose_mass() -> None:
    resp, active, *_ = shared(np.array([[-1e300, 0.0, -800.0], [1e300, 0.0, 1e300]]), np.ones(2), np.ones(2), 0.0)
    np.testing.assert_array_equal(resp, [[0, 1, 0], [0.5, 0, 0.5]])
    assert active == 3


def test_a_component_that_cannot_be_gets_nothing() -> None:
    resp, active, _, entropy = shared(np.array([[-np.inf, 0.0]]), np.ones(1), np.ones(1), 1e-8)
    np.testing.assert_array_equal(resp, [[0, 1]])
    np.testing.assert_array_equal(entropy, [0, 0])
    assert active == 1


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [0.0, np.inf], [-np.inf, -np.inf]])
@pytest.mark.parametrize("others", [0, 60])
def test_a_row_without_a_finite_largest_logit_is_reported(row, others) -> None:
    logits = np.array([[0.0, 1.0] + [0.5] * others, row + [row[1]] * others])
    assert shared(logits, np.ones(2), np.ones(2), 0.0)[1] == -1
    assert shared(logits[:1], np.ones(1), np.ones(1), 0.0)[1] == 2 + others


@given(numbers=arrays(np.float64, st.integers(1, 80), elements=st.floats(-800, 0)))
def test_exponentials_are_those_of_the_library_and_zero_below_the_least(numbers) -> None:
    found = np.empty(len(numbers))
    total = exponentials(numbers, LEAST_EXPONENT, bits_of(len(numbers)), found)
    np.testing.assert_allclose(found, np.where(numbers >= LEAST_EXPONENT, np.exp(numbers), 0.0), rtol=4e-16, atol=0)
    assert np.isclose(total, found.sum(), rtol=1e-13, atol=0)


#: Functions of many numbers at once, and those of the library.
AT_ONCE = {
    "log": (lambda x, far, found: logarithms(x, bits_of(len(x)), found), np.log),
    "psi": (lambda x, far, found: digammas(x, bits_of(len(x)), far, found), special.psi),
    "log Gamma": (lambda x, far, found: log_gammas(x, bits_of(len(x)), far, found), special.gammaln),
    "psi'": (lambda x, far, found: np.copyto(found, [trigamma(each) for each in x]), lambda x: special.polygamma(1, x)),
}


@pytest.mark.parametrize("name", AT_ONCE)
@given(logs=arrays(np.float64, st.integers(1, 60), elements=st.floats(-50, 50) | st.floats(-2, 3)))
def test_functions_of_many_numbers_are_those_of_the_library(name, logs) -> None:
    numbers, (function, expected) = np.exp(logs), AT_ONCE[name]
    found = np.empty(len(numbers))
    function(numbers, np.empty(len(numbers)), found)
    np.testing.assert_allclose(found, expected(numbers), rtol=3e-14, atol=1e-14)


@given(x=st.floats(1e-3, 1e12), small=st.integers(1, 6), y=st.floats(1e-3, 1e6))
def test_the_beta_function_is_that_of_the_library_and_exact_where_one_argument_is_small_and_whole(x, small, y) -> None:
    factors = math.fsum(math.log(x + k) for k in range(small))
    assert log_beta(x, float(small)) == pytest.approx(math.lgamma(small) - factors, rel=1e-13, abs=1e-13)
    assert log_beta(x, y) == log_beta(y, x) == pytest.approx(special.betaln(x, y), rel=1e-9, abs=1e-11)
    ratio = math.log(y) - math.log(x + y)
    assert log_beta(x, y + 1) - log_beta(x, y) == pytest.approx(ratio, rel=1e-9, abs=1e-14 * (1 + abs(log_beta(x, y))))


@pytest.mark.parametrize("name", sorted(set(AT_ONCE) - {"psi'"}))
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_functions_of_what_is_no_number_are_none(name, wrong) -> None:
    found = np.empty(40)
    AT_ONCE[name][0](np.where(np.arange(40) == 7, wrong, 2.0), np.empty(40), found)
    np.testing.assert_array_equal(np.isfinite(found), np.arange(40) != 7)


@given(columns=st.lists(st.integers(0, 4), max_size=7))
def test_columns_are_taken_in_the_order_asked_for(columns) -> None:
    rows, taken = np.arange(15.0).reshape(3, 5), np.empty((3, len(columns)))
    take_columns(rows, np.array(columns, dtype=np.intp), taken)
    np.testing.assert_array_equal(taken, rows[:, columns])


def test_logarithms_of_the_smallest_numbers() -> None:
    numbers = np.array([5e-324, 1e-310, 2.2250738585072014e-308, 1.7976931348623157e308, 1.0])
    found = np.empty(5)
    logarithms(numbers, bits_of(5), found)
    np.testing.assert_allclose(found, np.log(numbers), rtol=4e-16)


@given(
    scores=arrays(np.float32, st.integers(1, 80), elements=st.floats(-100, 100, width=32) | st.just(np.nan)),
    least=st.floats(-100, 100, width=32),
)
def test_the_highest_score_and_how_many_come_near(scores, least) -> None:
    top = highest(scores, np.empty(len(scores)))
    assert top == (-np.inf if np.isnan(scores).all() else np.nanmax(scores))
    assert reaching(scores, least) == np.count_nonzero(~(scores < least))


@given(seed=SEEDS, size=SIZES, zeros=st.floats(0.0, 1.0), dtype=st.sampled_from([np.float32, np.float64]))
def test_sparse_accumulation_is_the_matrix_product(seed, size, zeros, dtype) -> None:
    rng = np.random.default_rng(seed)
    resp = (rng.random(size) * (rng.random(size) >= zeros)).astype(dtype)
    weights, features = rng.uniform(0, 2, size[0]), rng.normal(size=(size[0], 5)).astype(dtype)
    start = rng.normal(size=(size[1], 5))
    stats = start.copy()
    accumulate_sparse(resp, weights, features, stats)
    expected = start + (weights[:, None] * resp).T @ features.astype(np.float64)
    np.testing.assert_allclose(stats, expected, rtol=1e-11, atol=1e-11)


@given(seed=SEEDS, floor=FLOORS)
def test_pair_entropy_is_the_change_when_two_columns_become_one(seed, floor) -> None:
    rng = np.random.default_rng(seed)
    resp, weights = floored(rng.dirichlet(np.full(5, 0.3), size=25), floor), rng.uniform(0, 2, 25)
    first, second = np.triu_indices(5, 1)
    found = np.full(len(first), 0.25)
    pair_entropy(resp, weights, first, second, found)
    alone = entropy_of(resp, weights)
    merged = entropy_of(resp[:, first] + resp[:, second], weights)
    np.testing.assert_allclose(found - 0.25, merged - alone[first] - alone[second], atol=1e-10)
    assert (found <= 0.25).all()


def divided(resp, weights, features, groups, onto, coefficients, floor):
    """What ``divide_rows`` gives for groups of as many replacements each: success, statistics, counts, entropies."""
    shape, ends = coefficients.shape, np.arange(1, len(groups) + 1) * onto.shape[1]
    flat = coefficients.reshape(-1, shape[2])
    stats, counts, entropy = np.zeros(flat.shape), np.zeros(onto.size), np.zeros(onto.size)
    done = divide_rows(resp, weights, features, groups, ends, onto.ravel(), flat, floor, stats, counts, entropy)
    return done, stats.reshape(shape), counts.reshape(onto.shape), entropy.reshape(onto.shape)


@given(
    seed=SEEDS,
    floor=FLOORS,
    absorbed=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    groups=st.sampled_from([[[4], [1]], [[4, 2], [1, -1]], [[1, 4], [5, 0]]]),
)
def test_rows_are_divided_within_what_their_group_holds(seed, floor, absorbed, dtype, groups) -> None:
    rng = np.random.default_rng(seed)
    resp = floored(rng.dirichlet(np.full(6, 0.3), size=20), 0.05).astype(dtype)
    features, weights = rng.normal(size=(20, 4)).astype(dtype), rng.uniform(0, 2, 20)
    groups, coefficients = np.array(groups), rng.normal(size=(2, 3, 4)).astype(dtype)
    onto = np.array([[0, 2, 3], [5, 0, 3]]) if absorbed else np.full((2, 3), -1)
    done, stats, counts, entropy = divided(resp, weights, features, groups, onto, coefficients, floor)
    assert done
    tolerance = {"rtol": 1e-9, "atol": 1e-10} if dtype == np.float64 else {"rtol": 1e-4, "atol": 1e-4}
    for j, group in enumerate(groups):
        mass = resp[:, group[group >= 0]].sum(axis=1, dtype=np.float64)
        share = floored(softmax(features.astype(float) @ coefficients[j].T.astype(float), axis=1), floor)
        part = mass[:, None] * share
        held = resp[:, onto[j]].astype(float) if absorbed else np.zeros_like(part)
        change = negative_log(held + part) - negative_log(held)
        np.testing.assert_allclose(stats[j], (weights[:, None] * part).T @ features, **tolerance)
        np.testing.assert_allclose(counts[j], weights @ part, **tolerance)
        np.testing.assert_allclose(entropy[j], weights @ change, **tolerance)
        np.testing.assert_allclose(counts[j].sum(), weights @ mass, rtol=1e-6)


def test_rows_that_a_component_does_not_hold_are_never_looked_at() -> None:
    features = np.array([[1.0, 2.0], [np.nan, np.nan]])
    resp = np.array([[1.0, 0.0], [0.0, 1.0]])
    coefficients = np.ones((1, 2, 2))
    done, stats, counts, _ = divided(
        resp, np.ones(2), features, np.array([[0]]), np.full((1, 2), -1), coefficients, 0.0
    )
    assert done
    np.testing.assert_allclose(counts, [[0.5, 0.5]])
    np.testing.assert_allclose(stats[0], [[0.5, 1.0], [0.5, 1.0]])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_division_without_a_finite_largest_logit_is_reported(value) -> None:
    features = np.array([[1.0], [value]])
    done, *_ = divided(
        np.ones((2, 1)), np.ones(2), features, np.array([[0]]), np.full((1, 2), -1), np.ones((1, 2, 1)), 0
    )
    assert not done


@given(seed=SEEDS, d=st.integers(1, 7))
def test_packing_a_row_gives_the_upper_triangle_of_its_outer_product(seed, d) -> None:
    rows = np.random.default_rng(seed).normal(size=(6, d))
    packed = np.empty((6, packed_width(d)))
    pack_quadratic(rows, packed)
    upper = np.triu_indices(d)
    np.testing.assert_array_equal(packed, rows[:, upper[0]] * rows[:, upper[1]])
    np.testing.assert_array_equal(packed[:, packed_diagonal(d)], rows**2)


@given(seed=SEEDS, d=st.integers(1, 7))
def test_a_packed_matrix_gives_the_quadratic_form_and_the_product(seed, d) -> None:
    rng = np.random.default_rng(seed)
    rows, matrices = rng.normal(size=(6, d)), rng.normal(size=(3, d, d))
    matrices = matrices + np.swapaxes(matrices, 1, 2)
    packed, gradient, products = np.empty((6, packed_width(d))), np.empty((3, packed_width(d))), np.empty((3, d))
    pack_quadratic(rows, packed)
    pack_gradient(np.triu(matrices), gradient)
    packed_products(gradient, rows[:3], products)
    expected = np.einsum("nd,kde,ne->nk", rows, matrices, rows)
    np.testing.assert_allclose(packed @ gradient.T, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(products, np.einsum("kij,kj->ki", matrices, rows[:3]), rtol=1e-10, atol=1e-10)


@given(seed=SEEDS, d=st.integers(1, 7))
def test_scatter_is_about_the_prior_mean_less_that_of_the_shift(seed, d) -> None:
    rng = np.random.default_rng(seed)
    rows, resp, mean, precision = rng.normal(size=(9, d)), rng.random((9, 3)), rng.normal(size=d), 1 + rng.random(3)
    packed = np.empty((9, packed_width(d)))
    root = rng.normal(size=(d, d))
    scale = root @ root.T
    pack_quadratic(rows, packed)
    scatter = np.zeros((3, d, d))
    fill_scatter(scale, resp.T @ packed, resp.T @ rows, resp.sum(axis=0), mean, precision, scatter)
    for k in range(3):
        gaps = rows - mean
        shift = resp[:, k] @ gaps
        expected = scale + (resp[:, k] * gaps.T) @ gaps - np.outer(shift, shift) / precision[k]
        np.testing.assert_allclose(scatter[k], np.triu(expected), rtol=1e-10, atol=1e-10)


def test_packing_leaves_the_columns_behind_it_alone() -> None:
    features = np.full((2, 8), 9.0)
    pack_quadratic(np.ones((2, 3)), features)
    np.testing.assert_array_equal(features, [[1, 1, 1, 1, 1, 1, 9, 9]] * 2)


CALLEE = "from dpdist.kernels.jit import jit\n@jit\ndef one():\n    return {}\n"
CALLER = (
    "from dpdist.kernels.jit import jit\nfrom kernels.callee import one\n@jit\ndef twice():\n    return one() + one()\n"
)


def twice(folder: Path, **variables: str) -> int:
    """What a kernel of a package in a folder gives in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), **variables}
    command = [sys.executable, "-c", "from kernels.caller import twice; print(twice())"]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def package(folder: Path, callee: int) -> Path:
    """A folder with a package of two kernels, of which one calls the other."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "kernels" / "callee.py").write_text(CALLEE.format(callee))
    (folder / "kernels" / "caller.py").write_text(CALLER)
    return folder


def test_a_kernel_follows_the_ones_it_calls(tmp_path: Path, monkeypatch) -> None:
    """Numba by itself would run what it kept, with the callee as it was."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for value in (1, 20):
        assert twice(package(tmp_path, value)) == 2 * value
        assert list(tmp_path.glob("kernels/__pycache__/caller.twice*.nbc")), "it is kept"


def test_copies_of_the_same_kernels_share_what_was_compiled(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    kept = []
    for copy, value in (("a", 1), ("b", 1), ("c", 5)):
        assert twice(package(tmp_path / copy, value), NUMBA_CACHE_DIR=str(shared)) == 2 * value
        kept.append({path: path.stat().st_mtime_ns for path in shared.rglob("*.nbc")})
    first, same, other = kept
    assert len(first) == 2 and same == first, "the second copy compiles nothing"
    assert len(other) == 4 and other.items() > first.items()


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_cache_is_compiled_again(tmp_path: Path, kind: str) -> None:
    folder, shared = package(tmp_path, 3), tmp_path / "shared"
    assert twice(folder, NUMBA_CACHE_DIR=str(shared)) == 6
    for file in shared.rglob(f"*.{kind}"):
        file.write_bytes(b"")
    assert twice(folder, NUMBA_CACHE_DIR=str(shared)) == 6
    assert all(file.stat().st_size for file in shared.rglob(f"*.{kind}"))


def test_a_kernel_that_cannot_be_stored_is_used_all_the_same(monkeypatch) -> None:
    def full(self, name: str, data: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
    assert jit(lambda x: 2 * x)(3) == 6


def test_without_any_folder_for_kernels_they_are_compiled_with_a_warning(monkeypatch) -> None:
    """As for a user without a home, of a package that another user installed."""
    monkeypatch.setattr("dpdist.kernels.jit._Kept._locator_classes", (_OfUser,))
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.warns(UserWarning, match="compiled functions cannot be stored.*Set NUMBA_CACHE_DIR"):
        compiled = jit(lambda x: 2 * x)
    assert compiled(3) == 6


METHOD = """
from typing import NamedTuple, Protocol
from dpdist.kernels.jit import jit, jit_methods
class Shape(Protocol):
    def area(self) -> float: ...
jit_methods(Shape)
"""


def test_a_kernel_follows_the_methods_of_what_it_is_called_with(tmp_path: Path) -> None:
    folder = package(tmp_path, 0) / "kernels"
    (folder / "shape.py").write_text(METHOD)
    square = "from typing import NamedTuple\nclass Square(NamedTuple):\n    side: float\n    def area(self):\n"
    (folder / "inner.py").write_text(
        "from dpdist.kernels.jit import jit\n@jit\ndef of(pair):\n    return pair[1].area()\n"
    )
    (folder / "caller.py").write_text(
        "from kernels import shape\nfrom kernels.square import Square\nfrom kernels.inner import of\n"
        "def twice():\n    return int(2 * of((1, Square(1.5))))\n"
    )
    for area, value in (("self.side", 3), ("self.side * 4.0", 12)):
        (folder / "square.py").write_text(f"{square}        return {area}\n")
        assert twice(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kept")) == value
    assert len(list(tmp_path.rglob("inner.of*.nbc"))) == 2, "both are kept"


@pytest.mark.parametrize("shared", [False, True], ids=["beside", "shared"])
def test_what_was_compiled_may_be_of_classes_that_are_no_more(shared: bool, tmp_path: Path, monkeypatch) -> None:
    """As where one version follows another in its place."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    folder = package(tmp_path, 0) / "kernels"
    (folder / "inner.py").write_text(
        "from dpdist.kernels.jit import jit\n@jit\ndef of(shape):\n    return shape.side + shape.side\n"
    )
    for module, name in (("first", "Square"), ("first", "Box"), ("second", "Box")):
        for old in ("first", "second"):
            (folder / f"{old}.py").unlink(missing_ok=True)
        (folder / f"{module}.py").write_text(
            f"from typing import NamedTuple\nclass {name}(NamedTuple):\n    side: int\n"
        )
        imports = f"from kernels.{module} import {name}\nfrom kernels.inner import of\n"
        (folder / "caller.py").write_text(f"{imports}def twice():\n    return of({name}(4))\n")
        assert twice(tmp_path, **({"NUMBA_CACHE_DIR": str(tmp_path / "kept")} if shared else {})) == 8
    assert len(list(tmp_path.rglob("inner.of*.nbc"))) == 3, "all are kept"
