"""Shared parts of these workflows: fits followed by lap, schedules, and the parts shared by all experiments."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from dpdist import DPMixture
from dpdist.inference.schedules import Memoized, Schedule, Stochastic
from dpdist.inference.state import Info

sys.path.append(str(Path(__file__).resolve().parents[1]))
from results import Fields, Kept, options, purity, spread, write_table

__all__ = ["RATES", "Fields", "Kept", "fixed_schedules", "follow", "options", "purity", "spread", "write_table"]

#: Stochastic inference with the rates (tau + t)^-kappa.
RATES = ((1.0, 0.6), (10.0, 0.5), (100.0, 0.5), (10.0, 0.9))


def follow(model: DPMixture, x: object, **told: Any) -> Fields:
    """Fit a model: what became of it, and its way lap by lap; seconds are the processor's."""
    began, infos, seconds = time.process_time(), list[Info](), list[float]()
    for _, info in model.iter_fit(x, **told):
        infos.append(info)
        seconds.append(round(time.process_time() - began, 3))
    elbos = [info.elbo / info.rows for info in infos]
    return {
        "elbo": elbos[-1],
        "components": infos[-1].n_components,
        "laps": len(infos),
        "seconds": seconds[-1],
        "elbo_trace": elbos,
        "component_trace": [info.n_components for info in infos],
        "second_trace": seconds,
    }


def fixed_schedules(batches: int) -> dict[str, Schedule]:
    """Inference with a fixed number of clusters, by name."""
    rates = {f"stochastic {delay:g}, {power:g}": Stochastic(batches, 0, delay, power) for delay, power in RATES}
    return {"batch": Memoized(1), "memoized": Memoized(batches), **rates}
