"""Laws of the model: the bound is a function of summaries, and the local step is its softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import softmax

import dpdist
from dpdist.core.errors import PrecisionError
from dpdist.models import mixture as model_module
from dpdist.models.allocations import LearnedDirichletProcess
from dpdist.models.mixture import Model, Posterior, Precision, local_step
from dpdist.models.sufficient_statistics import Summary, concatenate
from tests.cases import ALLOCATIONS, FAMILIES, FamilyCase, entropy_of, filled
from tests.own_parts import Exponential
from tests.reference import elbo

SEEDS = st.integers(0, 2**32 - 1)
EXACT = Precision(floor=0.0)

every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
sparse_families = pytest.mark.parametrize("case", [c for c in FAMILIES if c.sparse], ids=lambda case: case.name)
every_allocation = pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)
fixed_allocations = pytest.mark.parametrize(
    "allocation", [a for a in ALLOCATIONS if not isinstance(a, LearnedDirichletProcess)], ids=lambda a: a.name
)


class Setting:
    """Rows with weights, a model of them, and random responsibilities."""

    def __init__(self, case: FamilyCase, allocation=ALLOCATIONS[0], seed: int = 0, n: int = 30, k: int = 4) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = case.rows(self.rng, n, 3)
        self.model = Model(filled(case, self.rows), allocation)
        self.features = self.model.family.features(self.rows)
        self.weights = self.rng.uniform(0.2, 3.0, size=n)
        self.resp = self.random_resp(k)

    def random_resp(self, k: int) -> np.ndarray:
        """Responsibilities, some of them very small."""
        return self.rng.dirichlet(np.full(k, 0.5), size=len(self.rows))

    def summary(self, resp: np.ndarray, part: slice = slice(None), weights: np.ndarray | None = None) -> Summary:
        """The summary of explicit responsibilities of some rows."""
        weights = np.ones(len(self.rows)) if weights is None else weights
        rows, resp, weights = self.rows[part], resp[part], weights[part]
        base = float(weights @ self.model.family.log_base_measure(rows))
        return Summary((weights[:, None] * resp).T @ self.features[part], entropy_of(resp, weights), base)


def assert_same(found: Summary, expected: Summary, rtol: float = 1e-10, atol: float = 1e-10) -> None:
    """Two summaries agree."""
    np.testing.assert_allclose(found.stats, expected.stats, rtol=rtol, atol=atol)
    np.testing.assert_allclose(found.entropy, expected.entropy, rtol=rtol, atol=atol)
    assert found.base == pytest.approx(expected.base, rel=max(rtol, 1e-12))


@every_family
@fixed_allocations
@given(seed=SEEDS)
def test_the_elbo_of_a_summary_is_the_elbo_of_its_rows(case, allocation, seed) -> None:
    setting = Setting(case, allocation, seed, n=12)
    expected = elbo(setting.model.family, allocation, setting.rows, setting.resp)
    assert setting.model.elbo(setting.summary(setting.resp)) == pytest.approx(expected, rel=1e-9, abs=1e-7)


@every_family
@fixed_allocations
def test_the_elbo_of_a_summary_is_the_elbo_of_its_weighted_rows(case, allocation) -> None:
    setting = Setting(case, allocation)
    expected = elbo(setting.model.family, allocation, setting.rows, setting.resp, setting.weights)
    found = setting.model.elbo(setting.summary(setting.resp, weights=setting.weights))
    assert found == pytest.approx(expected, rel=1e-9)


@every_family
@given(seed=SEEDS, cut=st.integers(0, 30))
def test_summaries_of_disjoint_rows_add(case, seed, cut) -> None:
    setting = Setting(case, seed=seed)
    parts = [setting.summary(setting.resp, part, setting.weights) for part in (slice(cut), slice(cut, None))]
    whole = setting.summary(setting.resp, weights=setting.weights)
    assert_same(parts[0] + parts[1], whole)
    assert_same(parts[1] + parts[0], whole)


@given(seed=SEEDS)
def test_addition_of_summaries_does_not_mind_the_grouping(seed) -> None:
    setting = Setting(FAMILIES[0], seed=seed)
    a, b, c = (setting.summary(setting.resp, part) for part in (slice(7), slice(7, 19), slice(19, None)))
    assert_same((a + b) + c, a + (b + c))
    zero = Summary.zeros(*a.stats.shape)
    assert_same(a + zero, a, rtol=0, atol=0)
    assert_same(a.scaled(2.0), a + a, rtol=0, atol=0)


def test_components_can_be_taken_and_set_side_by_side() -> None:
    whole = Setting(FAMILIES[0]).summary(Setting(FAMILIES[0]).resp)
    assert_same(concatenate([whole.take([0, 1]), whole.take([2, 3])]), whole, rtol=0, atol=0)
    np.testing.assert_array_equal(whole.take([2, 0]).counts, whole.counts[[2, 0]])


@every_family
@every_allocation
@given(seed=SEEDS)
def test_the_tangent_touches_the_elbo_and_lies_below_it(case, allocation, seed) -> None:
    setting = Setting(case, allocation, seed)
    summary = setting.summary(setting.resp, weights=setting.weights)
    other = setting.summary(setting.random_resp(4), weights=setting.weights)
    exact = setting.model.elbo(summary)
    assert setting.model.elbo(summary, summary) == pytest.approx(exact, rel=1e-12)
    assert setting.model.elbo(summary, other) <= exact + 1e-9 * abs(exact)


@every_family
@every_allocation
def test_the_tangent_is_exact_to_first_order(case, allocation) -> None:
    setting = Setting(case, allocation)
    summary, other = setting.summary(setting.resp), setting.summary(setting.random_resp(4))

    def gap(step: float) -> float:
        near = summary + (other + summary.scaled(-1.0)).scaled(step)
        return setting.model.elbo(summary) - setting.model.elbo(summary, near)

    assert gap(1e-2) == pytest.approx(100 * gap(1e-3), rel=0.2)


@every_family
@every_allocation
def test_the_local_step_is_the_softmax_of_the_gradient(case, allocation) -> None:
    setting = Setting(case, allocation)
    start = setting.summary(setting.resp)
    posterior = setting.model.posterior(start, EXACT)
    logits = setting.features @ setting.model.family.coefficients(start.stats)
    expected = softmax(logits + allocation.log_weights(start.counts), axis=1)
    resp, summary = local_step(posterior, setting.features, setting.weights)
    np.testing.assert_allclose(resp, expected, rtol=1e-9, atol=1e-12)
    base = setting.weights @ setting.model.family.log_base_measure(setting.rows)
    full = Summary(summary.stats, summary.entropy, float(base))
    assert_same(full, setting.summary(resp, weights=setting.weights), atol=1e-9)


@every_family
@every_allocation
@given(seed=SEEDS)
def test_no_responsibilities_beat_those_of_the_local_step(case, allocation, seed) -> None:
    setting = Setting(case, allocation, seed)
    source = setting.summary(setting.resp)
    resp, _ = local_step(setting.model.posterior(source, EXACT), setting.features, np.ones(len(setting.rows)))
    best = setting.model.elbo(setting.summary(resp), source)
    for other in (setting.resp, setting.random_resp(4), 0.99 * resp + 0.0025):
        assert setting.model.elbo(setting.summary(other), source) <= best + 1e-9 * abs(best)


@every_family
@every_allocation
def test_neither_step_of_an_iteration_lowers_the_elbo(case, allocation) -> None:
    setting = Setting(case, allocation, n=60)
    summary = setting.summary(setting.resp)
    for _ in range(8):
        resp, _ = local_step(setting.model.posterior(summary, EXACT), setting.features, np.ones(60))
        following = setting.summary(resp)
        before, between = setting.model.elbo(summary), setting.model.elbo(following, summary)
        assert before <= between + 1e-9 * abs(before)
        assert between <= setting.model.elbo(following) + 1e-9 * abs(before)
        summary = following


@every_family
def test_single_precision_products_give_nearly_the_same_summary(case) -> None:
    setting = Setting(case)
    start = setting.summary(setting.resp)
    family = setting.model.family
    double = local_step(setting.model.posterior(start, EXACT), setting.features, setting.weights)[1]
    posterior = setting.model.posterior(start, Precision(np.float32, 0.0))
    resp, single = local_step(posterior, family.features(setting.rows, np.float32), setting.weights)
    assert posterior.coefficients.dtype == resp.dtype == np.float32
    assert single.stats.dtype == single.entropy.dtype == np.float64
    assert_same(single, double, rtol=1e-4, atol=1e-3)


@sparse_families
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_rows_give_the_summary_of_dense_ones(case, dtype) -> None:
    setting = Setting(case)
    posterior = setting.model.posterior(setting.summary(setting.resp), Precision(dtype, 1e-3))
    features = setting.model.family.features(sparse.csr_array(setting.rows), dtype)
    assert sparse.issparse(features)
    resp, found = local_step(posterior, features, setting.weights)
    dense, expected = local_step(posterior, setting.features.astype(dtype), setting.weights)
    assert isinstance(resp, np.ndarray)
    tolerance = 1e-10 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(resp, dense, rtol=tolerance, atol=tolerance)
    assert_same(found, expected, rtol=tolerance, atol=tolerance)


@every_family
def test_whole_weights_are_repeated_rows(case) -> None:
    setting = Setting(case)
    posterior = setting.model.posterior(setting.summary(setting.resp), EXACT)
    times = setting.rng.integers(0, 4, size=len(setting.rows))
    _, weighted = local_step(posterior, setting.features, times.astype(float))
    repeated = np.repeat(setting.features, times, axis=0)
    _, expected = local_step(posterior, repeated, np.ones(len(repeated)))
    assert_same(weighted, expected)


@every_family
@given(seed=SEEDS)
def test_the_order_of_rows_matters_to_rounding_only(case, seed) -> None:
    setting = Setting(case, seed=seed)
    posterior = setting.model.posterior(setting.summary(setting.resp), EXACT)
    order = setting.rng.permutation(len(setting.rows))
    _, found = local_step(posterior, setting.features[order], setting.weights[order])
    assert_same(found, local_step(posterior, setting.features, setting.weights)[1])


@every_family
@pytest.mark.parametrize("k", [1, 2, 20])
def test_hard_and_soft_products_agree(case, k) -> None:
    setting = Setting(case, k=k)
    posterior = setting.model.posterior(setting.summary(setting.resp), EXACT)
    hard = Posterior(posterior.family, 1e6 * posterior.coefficients, Precision(floor=1e-8))
    for q in (posterior, hard):
        resp, summary = local_step(q, setting.features, setting.weights)
        np.testing.assert_allclose(summary.stats, (setting.weights[:, None] * resp).T @ setting.features, atol=1e-10)


def test_a_floor_truncates_and_the_bound_stays_exact() -> None:
    setting = Setting(FAMILIES[0])
    posterior = setting.model.posterior(setting.summary(setting.resp), Precision(floor=0.009))
    resp, summary = local_step(posterior, setting.features, np.ones(len(setting.rows)))
    assert ((resp == 0) | (resp >= 0.009)).all()
    np.testing.assert_allclose(resp.sum(axis=1), 1.0, rtol=1e-12)
    expected = elbo(setting.model.family, setting.model.allocation, setting.rows, resp)
    assert setting.model.elbo(summary) == pytest.approx(expected, rel=1e-10)


def test_logits_that_are_not_finite_are_an_error() -> None:
    setting = Setting(FAMILIES[0])
    posterior = setting.model.posterior(setting.summary(setting.resp), EXACT)
    features = setting.features.copy()
    features[3] = np.nan
    with pytest.raises(PrecisionError, match=r"not finite: .* Standardise the columns .*\.$"):
        local_step(posterior, features, setting.weights)


def test_gradients_of_mixtures_side_by_side_are_those_of_each_in_chunks_of_any_size(monkeypatch) -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(80, 3))
    case = next(case for case in FAMILIES if case.name == "diagonal_gaussian")
    model = Model(filled(case, rows), ALLOCATIONS[0])
    stats, ends = rng.dirichlet(np.ones(7), size=80).T @ model.family.features(rows), np.array([2, 5, 7])
    for numbers in (1, 2 * stats.shape[1], 10**9):
        monkeypatch.setattr(model_module, "_CHUNK", numbers)
        found = model.gradients(stats, ends)
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            assert np.array_equal(found[begin:end], model.gradient(stats[begin:end]))


@dataclass(frozen=True, eq=False)
class Lost(Exponential):
    """A family of whose evidence no number comes."""

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        return super().log_evidence(stats) * np.nan


def test_a_bound_that_is_no_number_is_refused() -> None:
    rows = np.random.default_rng(0).exponential(size=(200, 2))
    with pytest.raises(dpdist.PrecisionError, match=r"the ELBO is nan: .* under Lost"):
        dpdist.DPMixture(Lost(), max_laps=2).fit(rows)
