"""Learned hyperparameters: those that maximise the bound, given sums over documents.

    gamma = K / -sum_k E log(1 - u_k)            alpha = D K / -sum_k E[beta_k] sum_j E log pi_jk

alternating with the sticks, whose optimum depends on both; eta, which affects only the topics' evidences, by Newton's
method on its logarithm. Source: the bound of :mod:`dpdist.inference.topics.model` with its derivatives set to zero.

With a point estimate of the global weights each has its own terms in the bound:

    gamma = K / -log beta_rest
    alpha : psi(alpha) - sum_k beta_k psi(alpha beta_k) + sum_k beta_k mean_j E log pi_jk = 0
    eta   : where sum_k A(T_k), the evidence of the topics' counts, is highest

The bound is concave in alpha, and gamma and alpha have a unique optimum for any positive number of documents and
topics. Both are optimal for the weights after the global update and the sums over the present documents.

Online, eta needs care. The topics' counts after the global update represent the corpus: if T_k = S_k, as after a batch
update, sum_k A(T_k) is the bound itself, because lambda_k = eta + S_k is then optimal for any eta. The counts of a
scaled mini-batch alone are not suitable: they lack rare words and repeat the others, so the optimal eta for them is too
small, the more so the smaller the mini-batch. Source: Bryant & Sudderth (NeurIPS 2012), section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
from scipy.special import psi

from dpdist.core.checks import LARGEST, SMALLEST
from dpdist.core.errors import InputError
from dpdist.inference.topics.model import TopicModel
from dpdist.inference.topics.summary import LOG_PI, TopicSummary
from dpdist.kernels.topics import evidence_slopes
from dpdist.models.allocations.hierarchical import HierarchicalDirichletProcess, Sticks
from dpdist.models.allocations.point_weights import PointWeights

#: Hyperparameters that can be learned, by the names of the model's parameters.
LEARNABLE = ("concentration", "document_concentration", "pseudocount")
#: Largest number of rounds of sticks and concentrations, and the relative change at convergence.
_ROUNDS, _SETTLED = 50, 1e-9
#: Largest extrapolation, as a multiple of the last change.
_FARTHEST = 20.0
#: Change of the logarithm after which another Newton step would change it by about 1e-6.
_NEAR = 1e-3
#: A Newton search that moves the logarithm by less than this is sure to have increased the evidence.
_BESIDE = 0.05
#: Newton's method: number of steps, longest step in the logarithm, and bounds of the logarithm.
_STEPS, _LONGEST, _LEAST, _MOST = 100, 1.0, math.log(1e-8), math.log(1e4)


def check_learnable(names: tuple[str, ...]) -> None:
    """Raise :class:`InputError` unless all of `names` can be learned."""
    unknown = [str(name) for name in names if name not in LEARNABLE]
    if unknown:
        raise InputError(f"learned hyperparameters should be among {', '.join(LEARNABLE)}; got {', '.join(unknown)}.")


def values_of(model: TopicModel) -> dict[str, float]:
    """The hyperparameters of a model by name."""
    return {**asdict(model.allocation), "pseudocount": model.pseudocount}


def with_values(model: TopicModel, values: dict[str, float]) -> TopicModel:
    """The model with the hyperparameters in `values` replaced."""
    found = values_of(model) | values
    pseudocount = found.pop("pseudocount")
    return replace(model, allocation=HierarchicalDirichletProcess(**found), pseudocount=pseudocount)


def learned(model: TopicModel, total: TopicSummary, names: tuple[str, ...]) -> TopicModel:
    """The model with the hyperparameters in `names` set to those that maximise its bound on `total`.

    Parameters
    ----------
    model : start of the search; other hyperparameters are unchanged
    total : sums over documents
    names : as in :data:`LEARNABLE`
    """
    allocation, pseudocount = model.allocation, model.pseudocount
    if total.documents > 0 and {"concentration", "document_concentration"} & set(names):
        allocation = _learned_concentrations(allocation, total.groups[:, LOG_PI], total.documents, names)
    if "pseudocount" in names and total.words.any():
        pseudocount = best_pseudocount(model, total.words)
    return replace(model, allocation=allocation, pseudocount=pseudocount)


def _learned_concentrations(
    allocation: HierarchicalDirichletProcess, log_pi: np.ndarray, documents: float, names: tuple[str, ...]
) -> HierarchicalDirichletProcess:
    own = np.array([allocation.concentration, allocation.document_concentration])
    moved = np.array(["concentration" in names, "document_concentration" in names])

    def with_scales(place: np.ndarray) -> HierarchicalDirichletProcess:
        return HierarchicalDirichletProcess(*np.where(moved, np.clip(np.exp(place), SMALLEST, LARGEST), own).tolist())

    def update(place: np.ndarray) -> np.ndarray:
        sticks = with_scales(place).sticks(log_pi, documents)
        best = _global(sticks), documents * len(sticks.first) / -float(sticks.weights @ log_pi)
        return np.where(moved, np.log(best), place)

    return with_scales(settled(update, np.log(own)))


def settled(update: Callable[[np.ndarray], np.ndarray], place: np.ndarray) -> np.ndarray:
    """The fixed point of an update of numbers (n,), by Anderson acceleration with the last two iterates."""
    found, change = place, np.zeros_like(place)
    for _ in range(_ROUNDS):
        last, before = found, change
        found = update(place)
        change = found - place
        if np.abs(change).max() < _SETTLED:
            break
        turn = change - before
        share = float(change @ turn / (turn @ turn)) if before.any() and turn.any() else 0.0
        place = found - min(max(share, -_FARTHEST), 1.0) * (found - last)
    return found


def _global(sticks: Sticks) -> float:
    left = psi(sticks.second) - psi(sticks.first + sticks.second)
    return float(len(left) / -left.sum())


def best_pseudocount(model: TopicModel, words: np.ndarray) -> float:
    """The eta that maximises the evidence of counts (W, K); the model's own if the search finds no better one."""
    found = replace(model, pseudocount=uphill(lambda eta: evidence_slopes(words, eta), model.pseudocount))
    if abs(math.log(found.pseudocount / model.pseudocount)) < _BESIDE:
        return found.pseudocount
    better = found.log_evidences(words).sum() > model.log_evidences(words).sum()
    return found.pseudocount if better else model.pseudocount


def uphill(slopes: Callable[[float], tuple[float, float]], start: float) -> float:
    """The maximum of a function of a positive number, by Newton's method on its logarithm.

    Where the function is not concave in the logarithm, it takes steps uphill instead.

    Parameters
    ----------
    slopes : computes the first and second derivative with respect to the number
    start : of the search, which stays between 1e-8 and 1e4
    """
    place = math.log(start)
    for _ in range(_STEPS):
        value = math.exp(place)
        slope, bend = slopes(value)
        slope, bend = value * slope, value * slope + value**2 * bend
        step = -slope / bend if bend < 0 else math.copysign(_LONGEST, slope)
        ahead = min(max(place + min(max(step, -_LONGEST), _LONGEST), _LEAST), _MOST)
        change, place = abs(ahead - place), ahead
        if change < _NEAR:
            break
    return math.exp(place)


def best_values(
    model: TopicModel, total: TopicSummary, words: np.ndarray, weights: np.ndarray, names: tuple[str, ...]
) -> dict[str, float]:
    """The values of hyperparameters that maximise the bound.

    Parameters
    ----------
    model : start of the search
    total : sums over documents; those of a mini-batch scaled to the corpus
    words : (W, K) lambda minus the pseudocount, after the global update
    weights : (K + 1,) global weights after it
    names : as in :data:`LEARNABLE`
    """
    found, allocation = dict[str, float](), model.allocation
    if "concentration" in names:
        found["concentration"] = PointWeights(allocation).best_concentration(weights)
    if "document_concentration" in names:
        log_pi = total.groups[:, LOG_PI]
        found["document_concentration"] = _best_document_concentration(allocation, weights, log_pi, total.documents)
    if "pseudocount" in names:
        found["pseudocount"] = best_pseudocount(model, words) if words.any() else model.pseudocount
    return found


def _best_document_concentration(
    allocation: HierarchicalDirichletProcess, weights: np.ndarray, log_pi: np.ndarray, documents: float
) -> float:
    def objective(alpha: float) -> PointWeights:
        return PointWeights(replace(allocation, document_concentration=alpha))

    def value(alpha: float) -> float:
        return objective(alpha).value(weights, log_pi, documents)

    before = allocation.document_concentration
    found = uphill(lambda alpha: objective(alpha).document_slopes(weights, log_pi, documents), before)
    return found if value(found) >= value(before) else before
