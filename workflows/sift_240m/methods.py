"""Held-out score against a processor's seconds on a part of the vectors: SVA, SVA-PM, truncation-free inference.

All three have the same prior and read the same rows in one process: SVA and SVA-PM once, strictly sequentially;
truncation-free inference (workflows/sva_synthetic) in mini-batches, pass after pass, for the given time. Scoring does
not count in the seconds.

Source: Lin (2013), Online learning of nonparametric mixture models via sequential variational approximation, section
6.2; Wang & Blei (2012), Truncation-free Online Variational Inference for Bayesian Nonparametric Models.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpdist import SVA
from dpdist.models.families import IsotropicGaussian

sys.path.append(str(Path(__file__).resolve().parents[1] / "sva_synthetic"))
from clusters import Model
from data import follow
from truncation_free import truncation_free

#: What each sequential method adds to the estimator's settings. Pruning and merging are the default.
SEQUENTIAL: dict[str, dict[str, Any]] = {"SVA": {"merge": None, "prune": 0.0}, "SVA-PM": {}}
TRUNCATION_FREE = "truncation-free"
METHODS = (*SEQUENTIAL, TRUNCATION_FREE)
#: Rows by which functions are compiled.
_WARM = 64


def course(method: str, x: np.ndarray, holdout: np.ndarray, model: Model, most: float) -> dict[str, list[float]]:
    """Seconds, held-out nats a row and K as a method goes on.

    Parameters
    ----------
    x, holdout : (N, D), (H, D) about the prior mean
    most : seconds that truncation-free inference gets
    """
    if method in SEQUENTIAL:
        _passed(method, x[:_WARM], holdout[:1], model)
        return _passed(method, x, holdout, model)
    next(follow(truncation_free(x[:_WARM], model, 0), holdout[:1], model))
    found: dict[str, list[float]] = {"seconds": [], "heldout": [], "components": []}
    for snapshot in follow(truncation_free(x, model, 0), holdout, model):
        _note(found, snapshot.seconds, snapshot.score, len(snapshot.counts))
        if snapshot.seconds > most:
            return found
    raise AssertionError("inference without end has ended")


def _passed(method: str, x: np.ndarray, holdout: np.ndarray, model: Model) -> dict[str, list[float]]:
    family = IsotropicGaussian(model.variance, model.mean_variance, 0.0)
    estimator = SVA(
        family, model.concentration, parallel=False, shuffle=False, compute_dtype="float32", **SEQUENTIAL[method]
    )
    found: dict[str, list[float]] = {"seconds": [], "heldout": [], "components": []}
    seconds, size = 0.0, max(_WARM, len(x) // 100)
    following = 0.0
    for start in range(0, len(x), size):
        began = time.process_time()
        estimator.partial_fit(x[start : start + size])
        seconds += time.process_time() - began
        if seconds >= following or start + size >= len(x):
            following = 1.1 * seconds
            _note(found, seconds, estimator.score(holdout), estimator.n_components_)
    return found


def _note(found: dict[str, list[float]], seconds: float, score: float, components: int) -> None:
    for name, value in (("seconds", seconds), ("heldout", score), ("components", components)):
        found[name].append(float(value))


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Held-out score and K against seconds, as a PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method, one in found.items():
        left.plot(one["seconds"], one["heldout"], marker=".", label=method)
        right.plot(one["seconds"], one["components"], marker=".", label=method)
    left.set(xlabel="seconds of a processor", xscale="log", ylabel="held-out log density (nats a row)")
    right.set(xlabel="seconds of a processor", xscale="log", ylabel="clusters")
    left.legend()
    FigureCanvasAgg(figure).print_png(str(path))
