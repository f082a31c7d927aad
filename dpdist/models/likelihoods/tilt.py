"""The integral of a Dirichlet likelihood over its Dirichlet prior, by a saddlepoint approximation in one variable.

With y = gamma theta, the constraint sum(y) = gamma is the only coupling of the columns in

    integral of prod_d x_d^(gamma theta_d) theta_d^(eta - 1) / Gamma(gamma theta_d) over the simplex

so the integral is the density at gamma of a sum of independent variables. Let kappa(t) be the log of the integral over
y > 0 of exp(t y) y^(eta - 1) / Gamma(y), and t_d = log x_d. The saddlepoint approximation needs this function of one
variable and four derivatives, tabulated here; the kernel ``evidence_rows`` computes the rest.

Source: Daniels (1954), "Saddlepoint approximations in statistics", section 2, with its second term.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from dpdist.kernels.sequential_dirichlet import Curve

#: Number of points in the table, and quadrature points per standard deviation of the narrowest integrand.
POINTS, FINE = 800, 1.5


@lru_cache(maxsize=8)
def tabulate(precision: float, eta: float, dimension: int, smallest: float) -> Curve:
    """The table for rows of `dimension` columns.

    Parameters
    ----------
    precision : gamma
    eta : parameter of the symmetric prior
    dimension : D
    smallest : smallest possible entry of a row, above zero

    Returns
    -------
    Curve
        Values at equal steps of z = log(origin - t), from the largest t that a solution can have to the smallest.
    """
    origin = np.log(precision) + 1.5
    lowest = np.log(smallest) - 2 * dimension * (eta + 1) / precision - abs(origin) - 5.0
    z = np.linspace(0.0, np.log(origin - lowest), POINTS)
    places = origin - np.exp(z)
    values = np.concatenate([_cumulants(part, eta) for part in np.array_split(places, 40)])
    return Curve(float(origin), float(z[1]), values, _log_scale(precision, eta, dimension))


def _cumulants(places: np.ndarray, eta: float) -> np.ndarray:
    """kappa, the logs of the tilted mean and variance, and the third and fourth cumulant: (T, 5)."""
    top = max(np.exp(places.max()), 1.0) + eta
    step = 1 / (FINE * np.sqrt(top + 1))
    low = np.log(eta + 1) - np.log(max(-places.min(), 1.0)) - 40 / (eta + 1) - np.sqrt(80 / (eta + 1))
    u = np.arange(low, np.log(top + 12 * np.sqrt(top) + 40), step)
    y = np.exp(u)
    logs = places[:, None] * y + eta * u - gammaln(y) + np.log(step)
    kappa = logsumexp(logs, axis=1)
    share = np.exp(logs - kappa[:, None])
    mean = share @ y
    gap = y - mean[:, None]
    variance, third, fourth = (np.einsum("tu,tu->t", share, gap**power) for power in (2, 3, 4))
    return np.stack([kappa, np.log(mean), np.log(variance), third, fourth - 3 * variance**2], axis=1)


def _log_scale(precision: float, eta: float, dimension: int) -> float:
    """Log of the integral's factor: constants of likelihood, prior and the change of variables."""
    total = dimension * eta
    constants = gammaln(precision) + gammaln(total) - dimension * gammaln(eta) + (1 - total) * np.log(precision)
    return float(constants - 0.5 * np.log(2 * np.pi))
