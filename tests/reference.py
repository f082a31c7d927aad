"""Brute-force references: posteriors, predictives and the ELBO by textbook formulas, from the rows themselves.

Nothing here uses packed sufficient statistics, nor the log evidence as a function of them. Sources: Murphy (2007),
"Conjugate Bayesian analysis of the Gaussian distribution"; Bishop (2006), appendix B.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln, multigammaln, psi

from dpdist.models.allocations import Allocation, DirichletProcess, FiniteDirichlet
from dpdist.models.families import Family

Parameters = tuple[Any, ...]


class Reference(ABC):
    """The brute-force reference of a family; `weights` are the weights of rows within a component."""

    def __init__(self, family: Family) -> None:
        self.family: Any = family

    @abstractmethod
    def posterior(self, rows: np.ndarray, weights: np.ndarray) -> Parameters:
        """Parameters of q(theta)."""

    @abstractmethod
    def log_predictive(self, q: Parameters, row: np.ndarray) -> float:
        """log p(row | q), base measure included."""

    @abstractmethod
    def expected_log_likelihood(self, q: Parameters, rows: np.ndarray) -> np.ndarray:
        """E_q[log p(row | theta)], (n,), base measure included."""

    @abstractmethod
    def divergence(self, q: Parameters, p: Parameters) -> float:
        """KL(q || p)."""

    @abstractmethod
    def predictive_moments(self, q: Parameters, size: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of each column of a new row; `size` is a multinomial row's total."""

    @abstractmethod
    def means(self, q: Parameters) -> dict[str, np.ndarray]:
        """Posterior means by name."""

    def prior(self, rows: np.ndarray) -> Parameters:
        """Parameters of p(theta), which is the posterior without rows."""
        return self.posterior(rows[:0], np.zeros(0))

    def log_evidence(self, rows: np.ndarray) -> float:
        """log p(rows), as a product of sequential predictives."""
        ones = np.ones(len(rows))
        return sum(self.log_predictive(self.posterior(rows[:n], ones[:n]), rows[n]) for n in range(len(rows)))


def weighted_mean(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean of rows; zero without rows."""
    total = weights.sum()
    return weights @ rows / total if total > 0 else np.zeros(rows.shape[1])


def wishart_divergence(nu_q: float, b_q: np.ndarray, nu_p: float, b_p: np.ndarray) -> float:
    """KL between W(nu, B^-1) distributions."""
    d = len(b_q)

    def log_normaliser(nu: float, b: np.ndarray) -> float:
        return 0.5 * nu * d * np.log(2) - 0.5 * nu * np.linalg.slogdet(b)[1] + multigammaln(nu / 2, d)

    expected = nu_q * np.linalg.inv(b_q)
    trace = np.trace((b_q - b_p) @ expected)
    gap = 0.5 * (nu_q - nu_p) * expected_log_precision(nu_q, b_q) - 0.5 * trace
    return gap - log_normaliser(nu_q, b_q) + log_normaliser(nu_p, b_p)


def expected_log_precision(nu: float, b: np.ndarray) -> float:
    """E log |precision| under W(nu, B^-1)."""
    d = len(b)
    return psi((nu - np.arange(d)) / 2).sum() + d * np.log(2) - np.linalg.slogdet(b)[1]


def gamma_divergence(a_q: Any, b_q: Any, a_p: Any, b_p: Any) -> Any:
    """KL between Gamma(shape, rate) distributions."""
    logs = a_p * (np.log(b_q) - np.log(b_p))
    return (a_q - a_p) * psi(a_q) - gammaln(a_q) + gammaln(a_p) + logs + a_q * (b_p - b_q) / b_q


def dirichlet_divergence(a_q: np.ndarray, a_p: np.ndarray) -> float:
    """KL between Dirichlet distributions."""
    normalisers = gammaln(a_q.sum()) - gammaln(a_p.sum()) - (gammaln(a_q) - gammaln(a_p)).sum()
    return normalisers + (a_q - a_p) @ (psi(a_q) - psi(a_q.sum()))


def beta_divergence(a_q: Any, b_q: Any, a_p: Any, b_p: Any) -> Any:
    """KL between Beta distributions."""
    total = psi(a_q + b_q)
    logs = (a_q - a_p) * (psi(a_q) - total) + (b_q - b_p) * (psi(b_q) - total)
    return betaln(a_p, b_p) - betaln(a_q, b_q) + logs


class GaussianReference(Reference):
    """Normal-Wishart: q = (m, kappa, nu, B)."""

    def posterior(self, rows, weights):
        f, count, mean = self.family, weights.sum(), weighted_mean(rows, weights)
        gaps, shift = rows - mean, mean - f.mean
        kappa = f.mean_precision + count
        scatter = f.scale + (weights[:, None] * gaps).T @ gaps
        scatter = scatter + f.mean_precision * count / kappa * np.outer(shift, shift)
        return (f.mean_precision * f.mean + count * mean) / kappa, kappa, f.degrees_of_freedom + count, scatter

    def log_predictive(self, q, row):
        m, kappa, nu, b = q
        freedom = nu - len(m) + 1
        return stats.multivariate_t(m, b * (kappa + 1) / (kappa * freedom), freedom).logpdf(row)

    def expected_log_likelihood(self, q, rows):
        m, kappa, nu, b = q
        gaps = rows - m
        quadratic = nu * np.einsum("nd,de,ne->n", gaps, np.linalg.inv(b), gaps) + len(m) / kappa
        return 0.5 * (expected_log_precision(nu, b) - len(m) * np.log(2 * np.pi) - quadratic)

    def divergence(self, q, p):
        (m, kappa, nu, b), (m_p, kappa_p, nu_p, b_p) = q, p
        shift = m - m_p
        means = len(m) * (np.log(kappa / kappa_p) + kappa_p / kappa - 1)
        means += kappa_p * nu * shift @ np.linalg.solve(b, shift)
        return 0.5 * means + wishart_divergence(nu, b, nu_p, b_p)

    def means(self, q):
        m, _, nu, b = q
        return {"mean": m, "covariance": b / (nu - len(m) - 1)}

    def predictive_moments(self, q, size):
        m, kappa, nu, b = q
        return m, np.diag(b) * (kappa + 1) / (kappa * (nu - len(m) - 1))


class ZeroMeanGaussianReference(Reference):
    """Wishart: q = (nu, B)."""

    def posterior(self, rows, weights):
        f = self.family
        return f.degrees_of_freedom + weights.sum(), f.scale + (weights[:, None] * rows).T @ rows

    def log_predictive(self, q, row):
        nu, b = q
        freedom = nu - len(b) + 1
        return stats.multivariate_t(np.zeros(len(b)), b / freedom, freedom).logpdf(row)

    def expected_log_likelihood(self, q, rows):
        nu, b = q
        quadratic = nu * np.einsum("nd,de,ne->n", rows, np.linalg.inv(b), rows)
        return 0.5 * (expected_log_precision(nu, b) - len(b) * np.log(2 * np.pi) - quadratic)

    def divergence(self, q, p):
        return wishart_divergence(*q, *p)

    def means(self, q):
        nu, b = q
        return {"covariance": b / (nu - len(b) - 1)}

    def predictive_moments(self, q, size):
        nu, b = q
        return np.zeros(len(b)), np.diag(b) / (nu - len(b) - 1)


class DiagonalGaussianReference(Reference):
    """Normal-Gamma for each column: q = (m, kappa, a, b)."""

    def posterior(self, rows, weights):
        f, count, mean = self.family, weights.sum(), weighted_mean(rows, weights)
        kappa = f.mean_precision + count
        spread = weights @ (rows - mean) ** 2 + f.mean_precision * count / kappa * (mean - f.mean) ** 2
        m = (f.mean_precision * f.mean + count * mean) / kappa
        return m, kappa, f.shape + 0.5 * count, f.rate + 0.5 * spread

    def log_predictive(self, q, row):
        m, kappa, a, b = q
        return stats.t(2 * a, m, np.sqrt(b * (kappa + 1) / (a * kappa))).logpdf(row).sum()

    def expected_log_likelihood(self, q, rows):
        m, kappa, a, b = q
        columns = psi(a) - np.log(b) - np.log(2 * np.pi) - 1 / kappa - a / b * (rows - m) ** 2
        return 0.5 * columns.sum(axis=1)

    def divergence(self, q, p):
        (m, kappa, a, b), (m_p, kappa_p, a_p, b_p) = q, p
        means = np.log(kappa / kappa_p) + kappa_p / kappa - 1 + kappa_p * a / b * (m - m_p) ** 2
        return (0.5 * means + gamma_divergence(a, b, a_p, b_p)).sum()

    def means(self, q):
        m, _, a, b = q
        return {"mean": m, "variance": b / (a - 1)}

    def predictive_moments(self, q, size):
        m, kappa, a, b = q
        return m, b * (kappa + 1) / (kappa * (a - 1))


class IsotropicGaussianReference(Reference):
    """Normal with known variance: q = (m, v), the mean and variance of the component's mean."""

    def posterior(self, rows, weights):
        f, count = self.family, weights.sum()
        variance = 1 / (1 / f.mean_variance + count / f.variance)
        return variance * (f.mean / f.mean_variance + weights @ rows / f.variance), variance

    def log_predictive(self, q, row):
        m, v = q
        return stats.norm(m, np.sqrt(v + self.family.variance)).logpdf(row).sum()

    def expected_log_likelihood(self, q, rows):
        m, v = q
        spread = ((rows - m) ** 2 + v) / self.family.variance
        return -0.5 * (np.log(2 * np.pi * self.family.variance) + spread).sum(axis=1)

    def divergence(self, q, p):
        (m, v), (m_p, v_p) = q, p
        return 0.5 * (v / v_p - 1 - np.log(v / v_p) + (m - m_p) ** 2 / v_p).sum()

    def means(self, q):
        return {"mean": q[0], "mean_variance": q[1]}

    def predictive_moments(self, q, size):
        m, v = q
        return m, np.full(len(m), v + self.family.variance)


class MultinomialReference(Reference):
    """Dirichlet: q = (alpha,)."""

    def posterior(self, rows, weights):
        return (self.family.pseudocount + weights @ rows,)

    def log_predictive(self, q, row):
        return float(stats.dirichlet_multinomial(q[0], int(row.sum())).logpmf(row.astype(int)))

    def expected_log_likelihood(self, q, rows):
        logs = psi(q[0]) - psi(q[0].sum())
        return gammaln(rows.sum(axis=1) + 1) - gammaln(rows + 1).sum(axis=1) + rows @ logs

    def divergence(self, q, p):
        return dirichlet_divergence(q[0], p[0])

    def means(self, q):
        return {"probability": q[0] / q[0].sum()}

    def predictive_moments(self, q, size):
        found = stats.dirichlet_multinomial(q[0], int(size))
        return found.mean(), found.var()


class BernoulliReference(Reference):
    """Beta for each column: q = (ones, zeros)."""

    def posterior(self, rows, weights):
        return self.family.ones + weights @ rows, self.family.zeros + weights @ (1 - rows)

    def log_predictive(self, q, row):
        return stats.betabinom(1, *q).logpmf(row.astype(int)).sum()

    def expected_log_likelihood(self, q, rows):
        ones, zeros = q
        total = psi(ones + zeros)
        return rows @ (psi(ones) - total) + (1 - rows) @ (psi(zeros) - total)

    def divergence(self, q, p):
        return beta_divergence(*q, *p).sum()

    def means(self, q):
        ones, zeros = q
        return {"probability": ones / (ones + zeros)}

    def predictive_moments(self, q, size):
        found = stats.betabinom(1, *q)
        return found.mean(), found.var()


class PoissonReference(Reference):
    """Gamma for each column: q = (shape, rate)."""

    def posterior(self, rows, weights):
        return self.family.shape + weights @ rows, self.family.rate + weights.sum()

    def log_predictive(self, q, row):
        shape, rate = q
        return stats.nbinom(shape, rate / (rate + 1)).logpmf(row.astype(int)).sum()

    def expected_log_likelihood(self, q, rows):
        shape, rate = q
        return (rows * (psi(shape) - np.log(rate)) - shape / rate - gammaln(rows + 1)).sum(axis=1)

    def divergence(self, q, p):
        return gamma_divergence(*q, *p).sum()

    def means(self, q):
        shape, rate = q
        return {"rate": shape / rate}

    def predictive_moments(self, q, size):
        shape, rate = q
        found = stats.nbinom(shape, rate / (rate + 1))
        return found.mean(), found.var()


REFERENCES: dict[str, type[Reference]] = {
    "gaussian": GaussianReference,
    "zero_mean_gaussian": ZeroMeanGaussianReference,
    "diagonal_gaussian": DiagonalGaussianReference,
    "isotropic_gaussian": IsotropicGaussianReference,
    "multinomial": MultinomialReference,
    "bernoulli": BernoulliReference,
    "poisson": PoissonReference,
}


def reference_of(family: Family) -> Reference:
    """The reference of a family whose hyperparameters are set."""
    return REFERENCES[family.name](family)


def stick_terms(concentration: float, counts: np.ndarray) -> float:
    """E log p(z | v) - KL(q(v) || p(v)) of stick breaking, summed stick by stick."""
    total, log_left = 0.0, 0.0
    for k, count in enumerate(counts):
        ones, zeros = 1 + count, concentration + counts[k + 1 :].sum()
        log_weight = log_left + psi(ones) - psi(ones + zeros)
        log_left += psi(zeros) - psi(ones + zeros)
        total += count * log_weight - beta_divergence(ones, zeros, 1.0, concentration)
    return total


def finite_terms(components: int, concentration: float, counts: np.ndarray) -> float:
    """E log p(z | w) - KL(q(w) || p(w)) of a finite mixture, including empty components."""
    padded = np.concatenate([counts, np.zeros(components - len(counts))])
    prior = np.full(components, concentration / components)
    posterior = prior + padded
    return padded @ (psi(posterior) - psi(posterior.sum())) - dirichlet_divergence(posterior, prior)


def allocation_terms(allocation: Allocation, counts: np.ndarray) -> float:
    """E log p(z | w) - KL(q(w) || p(w)) for allocations of fixed concentration."""
    if isinstance(allocation, DirichletProcess):
        return stick_terms(allocation.concentration, counts)
    assert isinstance(allocation, FiniteDirichlet)
    return finite_terms(allocation.components, allocation.concentration, counts)


def elbo(
    family: Family, allocation: Allocation, rows: np.ndarray, resp: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """The ELBO for given responsibilities, with the optimal q(theta) and q(w)."""
    brute = reference_of(family)
    shares = resp if weights is None else weights[:, None] * resp
    total = allocation_terms(allocation, shares.sum(axis=0))
    for share, r in zip(shares.T, resp.T, strict=True):
        q = brute.posterior(rows, share)
        total += share @ brute.expected_log_likelihood(q, rows) - brute.divergence(q, brute.prior(rows))
        total -= share[r > 0] @ np.log(r[r > 0])
    return float(total)
