"""Products in few digits along axes that a run chooses: what counts is kept, and people see their own columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dpdist
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.local_step import check_products
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import (
    DiagonalGaussian,
    Family,
    Gaussian,
    IsotropicGaussian,
    Multinomial,
    Poisson,
    ZeroMeanGaussian,
)
from dpdist.models.mixture import Model, Posterior, Precision
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import MemoizedMixture

RNG = np.random.default_rng(0)
#: Rows whose columns add up to nothing, of groups as wide as they like.
OWNERS = RNG.integers(4, size=3000)
ROWS = np.einsum("nd,nde->ne", RNG.normal(size=(3000, 12)), RNG.normal(size=(4, 12, 12))[OWNERS])
ROWS = (ROWS - ROWS.mean(axis=1, keepdims=True)) * np.exp(OWNERS)[:, None]


def begun(family, dtype: str, **given):
    model = dpdist.DPMixture(family, compute_dtype=dtype, initial=OWNERS, **given)
    return MemoizedMixture().begin(model.spec(), ArraySource(ROWS), SerialBackend())


def errors(dtype: str) -> float:
    """The largest error of products in float32 that counts, of a run that is begun for `dtype`."""
    problem, state = begun(ZeroMeanGaussian(), dtype)
    rows, total = problem.preparation.apply(ROWS), 1e5 * state.start.summary.stats
    long, short = (logits(problem.model, total, rows, each) for each in (np.float64, np.float32))
    return float(np.abs(long - short)[long > long.max(axis=1, keepdims=True) - 18].max())


def logits(model: Model, stats: np.ndarray, rows: np.ndarray, dtype: type) -> np.ndarray:
    posterior: Posterior = model.posterior(Summary(stats, np.zeros(len(stats))), Precision(dtype))
    return np.asarray(posterior.logits(model.family.features(rows, dtype)), dtype=np.float64)


def test_along_its_axes_a_run_keeps_what_counts() -> None:
    assert errors("float32") < 0.01 < 10.0 < errors("float64")


@pytest.mark.parametrize("family", [Gaussian(), ZeroMeanGaussian()], ids=lambda family: family.name)
@pytest.mark.parametrize("scale", [False, True], ids=["as they are", "scaled"])
def test_the_model_is_the_same_in_any_axes(family, scale) -> None:
    plain, turned = (
        begun(family, each, row_transform=dpdist.TransformPlan(scale=scale)) for each in ("float64", "float32")
    )
    found = []
    for problem, state in (plain, turned):
        exact = replace(problem, precision=Precision())
        total = state.start.summary
        predictor = MemoizedMixture().predictor(exact, total, np.arange(4))
        found.append((exact.model.elbo(total), predictor.described()["covariance"][1]))
    assert turned[0].preparation.transform.matrix is not None, "it is turned"
    assert plain[0].preparation.transform.matrix is None, "where digits abound nothing is turned"
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6, atol=1e-6 * np.abs(found[0][1]).max())


def test_families_that_cannot_be_turned_and_columns_that_are_already_stay() -> None:
    assert begun(DiagonalGaussian(), "float32")[0].preparation.transform.is_identity
    pca = dpdist.TransformPlan(pca=5)
    kept = [begun(Gaussian(), each, row_transform=pca)[0].preparation.transform for each in ("float64", "float32")]
    np.testing.assert_array_equal(kept[0].matrix, kept[1].matrix)


LARGE = np.random.default_rng(0).poisson(np.repeat([[1e7], [1e7 + 1e4]], 100, axis=0), size=(200, 3)).astype(float)
CENTRES = np.random.default_rng(1).normal(size=(20, 4))
TIGHT = np.repeat(CENTRES, 50, axis=0) + 1e-4 * np.random.default_rng(2).normal(size=(1000, 4))


@pytest.mark.parametrize(
    ("family", "rows", "initial"),
    [
        (Poisson(), LARGE, "one"),
        (Multinomial(), LARGE, "one"),
        (IsotropicGaussian(variance=1e-8), TIGHT, "k-means++"),
    ],
    ids=lambda value: value.name if isinstance(value, Family) else None,
)
def test_where_short_products_do_not_tell_rows_apart_the_run_is_refused(family, rows, initial) -> None:
    asked = dpdist.DPMixture(family, initial=initial, initial_components=20, max_laps=2, compute_dtype="float32")
    with pytest.raises(dpdist.PrecisionError, match=r"float32 change log probabilities .* Use compute_dtype='float64'"):
        asked.fit(rows)


@pytest.mark.parametrize("scale", [1e19, 1e100])
@pytest.mark.parametrize("make", [Gaussian, DiagonalGaussian, IsotropicGaussian])
def test_rows_that_float32_cannot_hold_are_refused_in_a_sentence_alone(make, scale) -> None:
    rows = scale * np.concatenate([CENTRES, -CENTRES])
    with pytest.raises(dpdist.PrecisionError, match=r"not finite: .* choose compute_dtype='float64'"):
        dpdist.DPMixture(make(), max_laps=1, compute_dtype="float32").fit(rows)


def test_a_single_row_far_out_refuses_nothing() -> None:
    rows = np.concatenate([np.full((1, 4), 1e4), np.random.default_rng(0).normal(size=(400, 4))])
    family, posterior = IsotropicGaussian(variance=1.0, mean_variance=100.0, mean=np.zeros(4)), Precision(np.float32)
    owners = np.eye(2)[(rows[:, 0] > 100).astype(int)]
    total = Summary(owners.T @ family.features(rows), np.zeros(2))
    prepared = Model(family, DirichletProcess(1.0)).posterior(total, posterior)
    check_products(rows[:64], prepared)
    with pytest.raises(dpdist.PrecisionError, match="float32 change log probabilities"):
        check_products(np.repeat(rows[:1], 64, axis=0), prepared)
