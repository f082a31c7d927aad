"""Starts of memoized runs by a sequential pass: over a sample or over everything, for every family."""

from __future__ import annotations

import numpy as np
import pytest

import dpdist
from dpdist.backends import SerialBackend
from dpdist.backends.dask import local_backend
from dpdist.fitting import pose, start_summary
from dpdist.sources import ArraySource
from dpdist.summary import Summary
from tests.cases import FAMILIES, FamilyCase
from tests.runs import clusters, mixture, source_of

CASES = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)


def start(model: dpdist.DPMixture, source, backend=None) -> Summary:
    """The statistics that a model starts from."""
    backend = backend or SerialBackend()
    recipe = model.recipe()
    summary = start_summary(recipe, pose(recipe, source, backend), source, backend)
    assert summary is not None
    return summary


@CASES
@pytest.mark.parametrize("rows", [None, 300], ids=["everything", "sample"])
def test_a_sequential_start_holds_the_weight_of_all_rows(case: FamilyCase, rows: int | None) -> None:
    x = case.rows(np.random.default_rng(0), 900, 4)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=len(x))
    model = mixture(family=case.make(), initial="sva", initial_rows=rows, initial_components=5)
    found = start(model, ArraySource(x, weights, 100))
    assert found.counts.sum() == pytest.approx(weights.sum(), rel=1e-9)
    assert (found.counts > 0).all() and (found.entropy >= -1e-9).all()


def test_a_start_over_everything_sums_the_statistics_of_all_rows() -> None:
    x = clusters(0, 900, 3)
    model = mixture(family=dpdist.families.DiagonalGaussian(), initial="sva", initial_rows=None)
    source = source_of(x)
    found = start(model, source)
    recipe = model.recipe()
    problem = pose(recipe, source, SerialBackend())
    features = problem.model.family.features(problem.preparation.apply(x))
    np.testing.assert_allclose(found.stats.sum(axis=0), features.sum(axis=0), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("rows", [None, 500], ids=["everything", "sample"])
def test_a_sequential_start_has_the_same_bits_on_dask(rows: int | None) -> None:
    source = source_of(clusters(1, 900, 3))
    model = mixture(initial="sva", initial_rows=rows)
    here = start(model, source)
    backend = local_backend(2)
    try:
        there = start(model, source, backend)
    finally:
        backend.close()
    assert here.stats.tobytes() == there.stats.tobytes() and here.entropy.tobytes() == there.entropy.tobytes()


@pytest.mark.parametrize("family", [dpdist.families.Gaussian(), dpdist.families.IsotropicGaussian(1.0)], ids=repr)
def test_a_run_from_a_sequential_start_finds_the_groups(family) -> None:
    model = dpdist.DPMixture(family, initial="sva", random_state=0, max_laps=30).fit(
        clusters(3, 1500, 4, 6, spread=9.0)
    )
    assert model.n_components_ == 6


def test_a_sequential_start_of_rows_on_a_few_points_is_refused() -> None:
    x = np.repeat(np.eye(3), 100, axis=0)
    with pytest.raises(dpdist.InputError, match=r"needs (at least|rows that differ)"):
        start(mixture(initial="sva"), source_of(x))


def test_an_unknown_start_is_refused_by_name() -> None:
    with pytest.raises(dpdist.InputError, match="'sva'"):
        start(mixture(initial="svd"), source_of(clusters(0)))
