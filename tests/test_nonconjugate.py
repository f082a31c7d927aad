"""Laws of likelihoods without a conjugate prior, and of passes with them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, gammaln, logsumexp, polygamma, psi
from scipy.stats import beta
from scipy.stats import dirichlet as dirichlet_law
from sklearn.metrics import adjusted_rand_score

import dpdist
from dpdist.core.errors import InputError, PrecisionError
from dpdist.inference.sva import nonconjugate
from dpdist.inference.sva.base import OpeningRule
from dpdist.inference.sva.nonconjugate import NonConjugate
from dpdist.models.families.base import Moments
from dpdist.models.likelihoods import Dirichlet, Likelihood

NO_DRAWS = np.zeros((0, 1))


def filled(precision: float, eta: float = 1.0, delta: float = 1e-6, **settings: Any) -> Dirichlet:
    """A likelihood with every hyperparameter given."""
    return Dirichlet(precision, eta, delta, **settings)


def proportions(rows: int, columns: int, seed: int, centres: int = 4, precision: float = 30.0) -> np.ndarray:
    """Rows on the simplex about a few centres."""
    rng = np.random.default_rng(seed)
    means = rng.dirichlet(np.ones(columns), centres) + 0.01
    x = rng.standard_gamma(precision * means[rng.integers(centres, size=rows)] + 1e-3)
    return x / x.sum(axis=1, keepdims=True)


def moments(x: np.ndarray) -> Moments:
    return Moments(float(len(x)), x.mean(axis=0), x.var(axis=0), x.min(axis=0), x.max(axis=0), False)


def advance(
    learner: NonConjugate, x: np.ndarray, weights: np.ndarray | None = None, rule: OpeningRule | None = None
) -> Any:
    """A finished pass that tracked overlaps."""
    going = learner.begin(np.zeros((0, learner.width)), rule or OpeningRule(), np.float64, np.zeros((0, 0)), 0.0)
    going.advance(x, np.ones(len(x)) if weights is None else weights)
    return going


def slopes(function: Any, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function, (P,)."""
    return np.array([(function(at + e) - function(at - e)) / (2 * step) for e in step * np.eye(len(at))])


def test_gradients_equal_finite_differences() -> None:
    law = filled(precision=20.0, eta=0.7)
    observed = law.observe(proportions(1, 5, seed=0))
    at = law.settle(np.random.default_rng(1).standard_normal((3, 5)))
    gradient, pull = law.gradient(observed[0], at), law.log_prior_gradient(at)
    for k in range(3):
        likelihood = slopes(lambda u: law.log_likelihood(observed, law.settle(u[None]))[0, 0], at[k])
        prior = slopes(lambda u: 0.7 * law.settle(u[None]).sum(), at[k])
        np.testing.assert_allclose(gradient[k], likelihood, atol=1e-6)
        np.testing.assert_allclose(pull[k], prior, atol=1e-6)


def test_log_likelihood_is_that_of_a_dirichlet() -> None:
    law, x = filled(precision=7.0, delta=1e-12), proportions(6, 4, seed=3)
    theta = proportions(3, 4, seed=4)
    expected = [[dirichlet_law.logpdf(row, 7.0 * mean) for mean in theta] for row in x]
    np.testing.assert_allclose(law.log_likelihood(law.observe(x), np.log(theta)), expected, rtol=1e-8)


def beta_evidence(share: float, law: Dirichlet) -> tuple[float, float]:
    """Evidence of (share, 1 - share) by the trapezoid rule in log odds, and the posterior mean of the first theta."""
    odds = np.linspace(-80, 80, 400_001)
    theta, rest = expit(odds), expit(-odds)
    logs = beta.logpdf(share, law.precision * theta, law.precision * rest) + law.eta * (np.log(theta) + np.log(rest))
    logs += gammaln(2 * law.eta) - 2 * gammaln(law.eta) + np.log(odds[1] - odds[0])
    whole = logsumexp(logs)
    return float(whole), float(np.exp(logs - whole) @ theta)


@pytest.mark.parametrize("precision", [0.5, 5.0, 100.0, 3000.0])
@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0, 50.0])
def test_evidence_by_expansion_equals_quadrature(precision: float, eta: float) -> None:
    law = filled(precision=precision, eta=eta, delta=1e-9)
    shares = np.array([0.5, 0.1, 0.003])
    evidence, start = law.open_components(law.observe(np.stack([shares, 1 - shares], axis=1)), NO_DRAWS)
    exact = np.array([beta_evidence(share, law) for share in shares])
    np.testing.assert_allclose(evidence, exact[:, 0], atol=0.015)
    np.testing.assert_allclose(np.exp(start[:, 0]), exact[:, 1], atol=0.04)


@pytest.mark.parametrize("eta", [1.0, 3.0])
def test_evidence_by_monte_carlo_equals_quadrature_within_its_error(eta: float) -> None:
    law = filled(precision=20.0, eta=eta, delta=1e-9, draws=40_000)
    draws = NonConjugate(law, 2, seed=5).draws
    for share in (0.5, 0.2, 0.03):
        observed = law.observe(np.array([[share, 1 - share]]))
        likelihood = np.exp(law.log_likelihood(observed, draws)[0])
        error = likelihood.std() / np.sqrt(len(draws)) / likelihood.mean()
        found, start = law.open_components(observed, draws)
        evidence, _ = beta_evidence(share, law)
        assert abs(found[0] - evidence) < 4 * error
        assert np.isclose(np.exp(start).sum(), 1.0)


def test_evidence_in_many_columns_equals_importance_sampling() -> None:
    """Draws about the posterior mean, where draws from the prior would all be far off."""
    columns, rng = 30, np.random.default_rng(0)
    law = filled(precision=30.0, eta=3.0)
    observed = law.observe(proportions(3, columns, seed=8))
    evidence, start = law.open_components(observed, NO_DRAWS)
    for n in range(3):
        alphas = [scale * np.exp(start[n]) for scale in (80.0, 120.0, 180.0)]
        draws = np.concatenate([np.log(rng.dirichlet(alpha, 20_000)) for alpha in alphas])
        proposal = [gammaln(a.sum()) - gammaln(a).sum() + draws @ a for a in alphas]
        prior = gammaln(90.0) - 30 * gammaln(3.0) + 3.0 * draws.sum(axis=1)
        logs = law.log_likelihood(observed[n : n + 1], draws)[0] + prior - logsumexp(proposal, axis=0) + np.log(3)
        ratio = np.exp(logs - logs.max())
        error = ratio.std() / np.sqrt(len(ratio)) / ratio.mean()
        assert error < 0.05
        assert abs(evidence[n] - np.log(ratio.mean()) - logs.max()) < 4 * error + 0.01


def reference(law: Dirichlet, x: np.ndarray, weights: np.ndarray, rule: OpeningRule, learner: NonConjugate) -> Any:
    """The pass as the formulas have it: table and overlaps."""
    logs = law.observe(x)
    theta, mass, overlap, seen = np.zeros((0, x.shape[1])), np.zeros(0), np.zeros((0, 0)), 0.0
    for row, weight in zip(logs, weights, strict=True):
        if weight == 0:
            continue
        opening = law.open_components(row[None], NO_DRAWS)
        known = [
            np.log(m) + dirichlet_law.logpdf(np.exp(row), law.precision * t) for m, t in zip(mass, theta, strict=True)
        ]
        scores = np.append(known, np.log(rule.concentration) + opening.evidence)
        share = np.exp(scores - scores.max())
        share[:-1] *= share[:-1] >= rule.floor
        opens = share[-1] > rule.threshold * share.sum()
        share = share if opens else share[:-1]
        share /= share.sum()
        seen += weight
        if opens:
            mass, overlap = np.append(mass, 0.0), np.pad(overlap, (0, 1))
        mass = mass + weight * share
        for k in np.flatnonzero(share[: len(theta)]):
            theta[k] = moved(law, theta[k], row, weight * share[k], mass[k], seen, learner)
        theta = np.concatenate([theta, np.exp(opening.start)]) if opens else theta
        overlap += weight * np.minimum.outer(share, share)
    np.fill_diagonal(overlap, 0.0)
    return np.concatenate([np.log(theta), mass[:, None]], axis=1), overlap


def moved(
    law: Dirichlet, theta: np.ndarray, row: np.ndarray, gained: float, mass: float, seen: float, learner: NonConjugate
) -> np.ndarray:
    """theta after a step, the information inverted as a matrix."""
    g, jacobian = law.precision, np.diag(theta) - np.outer(theta, theta)
    part = 1.0 if learner.rows is None else min(seen / learner.rows, 1.0)
    gradient = jacobian @ (g * (row - psi(g * theta)))
    gradient += part / mass * law.eta * (1 - len(theta) * theta)
    if law.natural:
        gradient = np.linalg.pinv(jacobian @ np.diag(g**2 * polygamma(1, g * theta)) @ jacobian, rcond=1e-12) @ gradient
    clock = max(mass if learner.own_clock else seen, 1.0)
    logits = np.log(theta) + min(gained * clock**-learner.forgetting, 1.0) * gradient
    return np.exp(logits - logsumexp(logits))


@pytest.mark.parametrize("block", [1, 7, 512])
@pytest.mark.parametrize(
    ("natural", "own_clock", "rows"), [(True, True, None), (False, False, 90.0), (True, False, None), (False, True, 60)]
)
def test_pass_equals_the_formulas(
    block: int, natural: bool, own_clock: bool, rows: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonconjugate, "BLOCK", block)
    x = proportions(90, 4, seed=2)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], size=90)
    law, rule = filled(precision=8.0, natural=natural), OpeningRule(concentration=0.5, threshold=0.05, floor=1e-6)
    learner = NonConjugate(law, 4, forgetting=0.7, rows=rows, own_clock=own_clock)
    going = advance(learner, x, weights, rule)
    table, overlap = reference(law, x, weights, rule, learner)
    np.testing.assert_allclose(going.table, table, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(going.overlap, overlap, rtol=1e-8, atol=1e-8)
    assert len(table) > 2


class Uncompiled(Dirichlet):
    """The same through the loop that any likelihood has."""

    advance = Likelihood.advance


@pytest.mark.parametrize("draws", [0, 200])
def test_compiled_pass_equals_the_loop_for_any_likelihood(draws: int) -> None:
    x = proportions(200, 3, seed=6)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], size=200)
    compiled, loop = (
        advance(NonConjugate(kind(25.0, 0.7, 1e-6, draws), 3), x, weights) for kind in (Dirichlet, Uncompiled)
    )
    np.testing.assert_allclose(compiled.table, loop.table, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(compiled.overlap, loop.overlap, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("law", [filled(25.0), filled(25.0, draws=200), Uncompiled(25.0, delta=1e-6)])
def test_two_halves_equal_one_pass_bit_for_bit(law: Dirichlet) -> None:
    x, learner = proportions(700, 5, seed=7), NonConjugate(law, 5, forgetting=0.6, own_clock=False)
    whole, half = advance(learner, x), advance(learner, x[:333])
    rest = pickle.loads(pickle.dumps(learner)).begin(half.table, OpeningRule(), np.float64, half.overlap, 333.0)
    rest.advance(x[333:], np.ones(len(x) - 333))
    np.testing.assert_array_equal(rest.table, whole.table)
    np.testing.assert_array_equal(rest.overlap, whole.overlap)


@pytest.mark.parametrize("natural", [True, False])
@pytest.mark.parametrize("precision", [0.3, 30.0, 3000.0])
def test_parameters_stay_on_the_simplex(natural: bool, precision: float) -> None:
    x = proportions(400, 6, seed=1)
    x[::3] = np.eye(6)[np.arange(400)[::3] % 6]
    table = advance(NonConjugate(filled(precision, natural=natural), 6, forgetting=0.51), x).table
    np.testing.assert_allclose(np.exp(table[:, :-1]).sum(axis=1), 1.0, rtol=1e-12)
    assert np.isfinite(table).all()
    assert np.isclose(table[:, -1].sum(), 400)


def test_zeros_and_single_precision_rows_are_taken() -> None:
    law = filled(10.0, delta=1e-4)
    observed = law.observe(np.array([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0]], dtype=np.float32) * np.float32(1.00005))
    np.testing.assert_allclose(np.exp(observed).sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.exp(observed[0, 0]), 1e-4 / 1.0003, rtol=1e-12)
    assert np.isfinite(law.open_components(observed, NO_DRAWS).evidence).all()


@pytest.mark.parametrize("row", [[0.5, 0.6], [0.5, 0.501], [0.5, 0.499], [-0.1, 1.1], [np.nan, 1.0]])
def test_rows_off_the_simplex_are_refused(row: list[float]) -> None:
    with pytest.raises(InputError, match=r"that are zero or more and sum to 1; got .* Remove"):
        advance(NonConjugate(filled(10.0), 2), np.array([[0.5, 0.5], row]))
    with pytest.raises(InputError, match="proportions that sum to 1"):
        Dirichlet().check_moments(moments(np.array([row, row])))


@pytest.mark.parametrize(
    ("settings", "name"), [({"precision": 0.0}, "precision"), ({"eta": -1.0}, "eta"), ({"delta": 0.0}, "delta")]
)
def test_hyperparameters_that_are_not_positive_are_refused(settings: dict[str, float], name: str) -> None:
    with pytest.raises(InputError, match=f"{name} should be finite and above zero"):
        Dirichlet(**settings).with_defaults(moments(proportions(20, 3, seed=0)))


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"forgetting": 0.5}, "forgetting"), ({"forgetting": 1.1}, "forgetting"), ({"rows": 0.0}, "rows")],
)
def test_steps_out_of_range_are_refused(settings: dict[str, float], name: str) -> None:
    with pytest.raises(InputError, match=f"{name} should be finite and above"):
        NonConjugate(filled(10.0), 3, **settings)  # type: ignore[arg-type]


def test_evidence_merges_are_refused() -> None:
    learner, table = NonConjugate(filled(10.0), 3), np.zeros((2, 4))
    for refused in (lambda: learner.gains(table, table), lambda: learner.affinity(table)):
        with pytest.raises(InputError, match="Merge them by distance"):
            refused()


def test_default_precision_is_ten_times_that_of_one_dirichlet() -> None:
    x = np.random.default_rng(0).dirichlet([2.0, 3.0, 4.0], 20_000)
    assert np.isclose(Dirichlet().with_defaults(moments(x)).precision, 90.0, rtol=0.03)


def test_zeros_raise_the_default_delta() -> None:
    x = proportions(50, 3, seed=0)
    assert Dirichlet().with_defaults(moments(x)).delta == 1e-6
    assert Dirichlet().with_defaults(moments(np.concatenate([x, np.eye(3)]))).delta == 1e-3


def test_well_separated_clusters_are_recovered() -> None:
    rng = np.random.default_rng(0)
    means = np.full((5, 8), 0.02)
    means[np.arange(5), np.arange(5)] = 0.86
    truth = rng.integers(5, size=2000)
    x = np.array([rng.dirichlet(60 * means[k]) for k in truth])
    learner = NonConjugate(filled(60.0).with_defaults(moments(x)), 8)
    table = advance(learner, x).table
    large = table[table[:, -1] > 20]
    assert len(large) == 5
    found = (learner.log_predictive(x, table)[:, :-1] + np.log(table[:, -1])).argmax(axis=1)
    assert adjusted_rand_score(truth, found) > 0.99
    estimates = learner.describe(large)["probability"][1]
    np.testing.assert_allclose(estimates[estimates.argmax(axis=1).argsort()], means, atol=0.02)


def test_joined_components_keep_their_weight_and_lie_between() -> None:
    learner = NonConjugate(filled(30.0), 4)
    table = advance(learner, proportions(300, 4, seed=3)).table
    both = learner.join(table[[0, 2]], table[[1, 0]])
    for joined, parts in zip(both, ([0, 1], [2, 0]), strict=True):
        assert joined[-1] == pytest.approx(table[parts, -1].sum())
        average = np.average(table[parts, :-1], axis=0, weights=table[parts, -1])
        np.testing.assert_allclose(joined[:-1], average - logsumexp(average))


def test_predictive_of_two_columns_integrates_to_one() -> None:
    learner = NonConjugate(filled(8.0, 1.5, delta=1e-12), 2)
    grid = (np.arange(20_000) + 0.5) / 20_000
    table = np.append(np.log([0.4, 0.6]), 3.0)[None]
    density = np.exp(learner.log_predictive(np.stack([grid, 1 - grid], axis=1), table)).mean(axis=0)
    np.testing.assert_allclose(density, 1.0, atol=0.01)


def test_draws_follow_their_component_and_new_ones_the_prior() -> None:
    learner, rng = NonConjugate(filled(12.0, 2.0), 3), np.random.default_rng(0)
    theta, every = np.array([0.2, 0.3, 0.5]), np.zeros(20_000, dtype=np.intp)
    known = learner.sample(np.append(np.log(theta), 5.0)[None], every, rng)
    np.testing.assert_allclose(known.mean(axis=0), theta, atol=0.005)
    np.testing.assert_allclose(known.var(axis=0), theta * (1 - theta) / 13, rtol=0.05)
    fresh = learner.sample(np.zeros((1, 4)), every, rng)
    np.testing.assert_allclose(fresh.mean(axis=0), 1 / 3, atol=0.005)
    of_theta = 2 / 9 / 7  # of the prior, Dirichlet(2, 2, 2)
    np.testing.assert_allclose(fresh.var(axis=0), of_theta + (2 / 9 - of_theta) / 13, rtol=0.05)
    np.testing.assert_allclose(fresh.sum(axis=1), 1.0)


@dataclass(frozen=True, eq=False)
class Laplace(Likelihood):
    """A location with Laplace noise of known scale and a Gaussian prior: what a user might bring."""

    scale: float = 1.0
    spread: float = 10.0

    name = "laplace"
    draws = 4000

    def with_defaults(self, moments: Moments) -> Laplace:
        return self

    def log_likelihood(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        gaps = np.abs(observed[:, None] - parameters).sum(axis=2)
        return np.asarray(-gaps / self.scale - observed.shape[1] * np.log(2 * self.scale))

    def gradient(self, observed: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        return np.asarray(np.sign(observed - parameters) / self.scale)

    def log_prior_gradient(self, parameters: np.ndarray) -> np.ndarray:
        return np.asarray(-parameters / self.spread**2)

    def prior_draws(self, rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
        return rng.normal(0, self.spread, (count, columns))

    def describe(self, parameters: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        return {"location": (("component", "column"), parameters)}

    def sample(self, parameters: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.laplace(parameters, self.scale)


def test_a_likelihood_of_ones_own_recovers_its_clusters() -> None:
    rng = np.random.default_rng(0)
    places = np.array([[-12.0, 0.0], [0.0, 9.0], [12.0, -3.0]])
    truth = rng.integers(3, size=900)
    learner = NonConjugate(Laplace(), 2)
    table = advance(learner, rng.laplace(places[truth]), rule=OpeningRule(concentration=0.01)).table
    large = table[table[:, -1] > 20]
    found = learner.describe(large)["location"][1]
    np.testing.assert_allclose(found[found[:, 0].argsort()], places, atol=0.4)
    assert learner.log_predictive(places, table).shape == (3, len(table) + 1)
    assert learner.sample(table, np.arange(len(table)), rng).shape == (len(table), 2)


def test_a_row_without_finite_density_stops_the_pass_with_a_sentence() -> None:
    with pytest.raises(PrecisionError, match="log probabilities of a row are not finite; remove the row"):
        advance(NonConjugate(Laplace(), 1), np.array([[0.0], [np.nan]]))


def test_a_pass_counts_the_prior_by_what_rows_weigh() -> None:
    """A tenth of ten rows each is a row; the prior is one of all the rows either way."""
    x, law = proportions(400, 3, seed=0, centres=1), filled(20.0, eta=300.0)

    def location(rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        model = dpdist.SVA(law, concentration=1e-9, max_components=1, prune=0.0, merge=None)
        return model.fit(rows, sample_weight=weights).view().predictor.described()["probability"][1][0]

    tenfold = np.repeat(x, 10, axis=0)
    np.testing.assert_allclose(location(tenfold, np.full(len(tenfold), 0.1)), location(x, None), atol=2e-3)
