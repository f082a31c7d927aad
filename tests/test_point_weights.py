"""A point estimate of the global weights: its density, slopes and optimum, and the hyperparameters that follow it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit, psi

from dpdist.core.errors import InputError, PrecisionError
from dpdist.inference.topics.hyperparameters import LEARNABLE, best_values
from dpdist.inference.topics.model import TopicModel, point_elbo, point_posterior, point_weights
from dpdist.inference.topics.summary import TopicSummary
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.models.allocations.point_weights import PointWeights, _inverse_psi
from tests.test_topics import changed, corpus, random_fit, some_sums, value_of

PROCESSES = [HierarchicalDirichletProcess(gamma, 0.7) for gamma in (0.4, 1.0, 3.0)]


def masses(sticks: np.ndarray) -> np.ndarray:
    """The first K masses of K sticks."""
    return sticks * np.cumprod(np.append(1.0, 1 - sticks[:-1]))


@pytest.mark.parametrize("process", PROCESSES)
def test_the_density_of_masses_is_that_of_sticks_and_the_jacobian(process: HierarchicalDirichletProcess) -> None:
    sticks, gamma = np.array([0.3, 0.5, 0.2, 0.6]), process.concentration
    jacobian = approx_fprime(sticks, masses, 1e-7)
    expected = (np.log(gamma) + (gamma - 1) * np.log(1 - sticks)).sum() - np.log(np.linalg.det(jacobian))
    beta = masses(sticks)
    found = PointWeights(process).log_density(np.append(beta, 1 - beta.sum()))
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("topics", [0, 1, 2, 7])
def test_slopes_of_the_objective_are_its_finite_differences(process: HierarchicalDirichletProcess, topics: int) -> None:
    objective, log_pi = PointWeights(process), some_sums(topics or 1, 30.0)[-topics - 1 :]
    point = np.random.default_rng(topics).dirichlet(np.full(topics + 1, 5.0))
    slopes = objective.gradient(point, log_pi, 30.0)
    steps = 1e-6 * np.diag(point)
    found = [(objective.value(point + e, log_pi, 30.0) - objective.value(point - e, log_pi, 30.0)) / 2 for e in steps]
    np.testing.assert_allclose(slopes, found / np.diag(steps), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("topics", "documents"), [(1, 1.0), (6, 3.0), (6, 400.0), (80, 3000.0)])
def test_weights_are_the_optimum_that_a_plain_search_over_sticks_finds(
    process: HierarchicalDirichletProcess, topics: int, documents: float
) -> None:
    objective, log_pi = PointWeights(process), some_sums(topics, documents)
    weights = objective.weights(log_pi, documents)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12) and (weights > 0).all()
    best = objective.value(weights, log_pi, documents)

    def negative(x: np.ndarray) -> float:
        beta = masses(np.clip(expit(x), 1e-12, 1 - 1e-12))
        return -objective.value(np.append(beta, max(1 - beta.sum(), 1e-300)), log_pi, documents)

    if topics < 10:
        other = minimize(negative, np.zeros(topics), method="Powell", options={"xtol": 1e-8, "ftol": 1e-13})
        assert -other.fun <= best + 1e-9 * abs(best)
        assert -other.fun == pytest.approx(best, rel=1e-7)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.3):
        near = weights * np.exp(size * rng.normal(size=(20, topics + 1)))
        for row in near / near.sum(axis=1, keepdims=True):
            assert objective.value(row, log_pi, documents) <= best + 1e-12 * abs(best)


def test_the_density_of_masses_integrates_to_one() -> None:
    side = 120
    places = (np.arange(side) + 0.5) / side
    for gamma in (2.0, 3.5):
        density = PointWeights(HierarchicalDirichletProcess(gamma, 0.7)).log_density
        one = np.array([density(np.array([b, 1 - b])) for b in places])
        assert np.exp(one).mean() == pytest.approx(1.0, abs=1e-3)
    # of two masses, where the first is u and the second v (1 - u)
    two = [[density(np.array([u, v * (1 - u), (1 - v) * (1 - u)])) + np.log(1 - u) for u in places] for v in places]
    assert np.exp(two).mean() == pytest.approx(1.0, abs=1e-3)


def test_weights_without_topics_have_no_density() -> None:
    assert PointWeights(PROCESSES[2]).log_density(np.ones(1)) == 0.0


@pytest.mark.parametrize("topics", [1, 4, 30])
def test_the_best_concentration_is_where_the_density_is_flat(topics: int) -> None:
    weights = np.random.default_rng(topics).dirichlet(np.ones(topics + 1))

    def density(gamma: float) -> float:
        return PointWeights(HierarchicalDirichletProcess(gamma, 0.7)).log_density(weights)

    best = PointWeights(PROCESSES[0]).best_concentration(weights)
    below, at, above = (density(best * (1 + e)) for e in (-1e-3, 0.0, 1e-3))
    assert max(below, above) < at
    assert above - below == pytest.approx(0.0, abs=1e-2 * (2 * at - above - below))


def test_the_digamma_function_is_inverted() -> None:
    values = np.concatenate([-np.geomspace(1e-3, 1e6, 60), np.linspace(-3, 12, 90)])
    np.testing.assert_allclose(psi(_inverse_psi(values)), values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("topics", [1, 6, 50])
def test_the_search_begins_at_the_optimum_of_all_but_the_prior(topics: int) -> None:
    objective, mean = PointWeights(PROCESSES[1]), some_sums(topics, 1.0)
    begin = objective._without_prior(mean)
    assert begin.sum() == pytest.approx(1.0, abs=1e-12)
    slopes = psi(0.7 * begin) - mean  # equal where the documents' terms are flat along the simplex
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-8)


def test_sums_without_documents_or_that_are_not_finite_are_refused() -> None:
    objective = PointWeights(PROCESSES[0])
    with pytest.raises(PrecisionError, match="finite"):
        objective.weights(np.array([-1.0, np.nan]), 3.0)
    for documents in (0.0, 0.99, np.nan):
        with pytest.raises(InputError, match="one document or more"):
            objective.weights(np.array([-1.0, -2.0]), documents)
    assert objective.weights(np.array([-1.0, -2.0]), 1.0).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("topics", [1, 7])
def test_slopes_by_alpha_are_finite_differences(process: HierarchicalDirichletProcess, topics: int) -> None:
    log_pi, weights = some_sums(topics, 30.0), np.random.default_rng(topics).dirichlet(np.full(topics + 1, 2.0))
    for alpha in (0.01, 0.7, 20.0):
        step = 1e-5 * alpha
        behind, at, ahead = (
            PointWeights(replace(process, document_concentration=each)) for each in (alpha - step, alpha, alpha + step)
        )
        slope, bend = at.document_slopes(weights, log_pi, 30.0)
        values = [each.value(weights, log_pi, 30.0) for each in (behind, ahead)]
        slopes = [each.document_slopes(weights, log_pi, 30.0)[0] for each in (behind, ahead)]
        assert slope == pytest.approx((values[1] - values[0]) / (2 * step), rel=1e-6, abs=1e-6)
        assert bend == pytest.approx((slopes[1] - slopes[0]) / (2 * step), rel=1e-6)
        assert bend < 0


def given(seed: int) -> tuple[TopicModel, TopicSummary, np.ndarray, np.ndarray]:
    """A model, sums over documents, and topics and weights that came of other sums."""
    rng, model = np.random.default_rng(seed), TopicModel(40, 0.2, HierarchicalDirichletProcess(2.0, 0.7))
    weights = rng.dirichlet(np.full(5, 3.0))
    total = random_fit(corpus(seed), 4, 0.7 * weights, seed).summary(0.7 * weights)
    return model, total.scaled(3.0), rng.gamma(0.3, 20.0, size=(40, 4)), rng.dirichlet(np.full(5, 3.0))


@pytest.mark.parametrize("name", LEARNABLE)
@pytest.mark.parametrize("begin", [1e-6, 0.05, 1.0, 40.0])
def test_each_learned_value_is_where_its_terms_are_flat_wherever_the_search_begins(name: str, begin: float) -> None:
    model, total, words, weights = given(3)
    model = changed(model, name, begin / value_of(model, name))
    found = best_values(model, total, words, weights, (name,))
    assert set(found) == {name}

    def value(factor: float) -> float:
        at = changed(model, name, factor * found[name] / value_of(model, name))
        if name == "pseudocount":
            return float(at.log_evidences(words).sum())
        return point_elbo(at, total, words, weights)

    below, best, above = value(1 - 1e-3), value(1.0), value(1 + 1e-3)
    assert max(below, above) < best
    assert above - below == pytest.approx(0.0, abs=1e-2 * (2 * best - above - below))
    assert best >= value(begin / found[name])


def test_learned_values_do_not_depend_on_one_another() -> None:
    model, total, words, weights = given(4)
    together = best_values(model, total, words, weights, LEARNABLE)
    assert together == {name: best_values(model, total, words, weights, (name,))[name] for name in LEARNABLE}
    assert best_values(model, total, words, weights, ()) == {}
    none = best_values(model, total, np.zeros((40, 4)), weights, ("pseudocount",))
    assert none == {"pseudocount": model.pseudocount}


def test_workers_are_handed_alpha_beta_and_the_expected_words() -> None:
    model, _, words, weights = given(5)
    posterior = point_posterior(model, words, weights)
    np.testing.assert_allclose(posterior.prior, 0.7 * weights, rtol=1e-15)
    expected = np.exp(psi(0.2 + words) - psi(8.0 + words.sum(axis=0)))
    np.testing.assert_allclose(posterior.weights, expected / expected.max(axis=1, keepdims=True), rtol=1e-11)
    assert point_weights(model).process == model.allocation
