"""A read-only view of a run or model, in memory or stored, and its summary card for notebooks."""

from __future__ import annotations

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpdist.inference.hierarchy.tree import Tree
from dpdist.runs.methods import METHODS
from dpdist.runs.methods.base import AnyMethod
from dpdist.storage.checkpoint import AnyFitted, ProblemLike
from dpdist.storage.history import History

#: Defaults of the largest number of components that a report shows, and of rows that it reads.
SHOWN, ROWS = 24, 20_000
#: Largest number of laps drawn in a notebook.
DRAWN = 200


@dataclass(frozen=True, eq=False)
class View:
    """The current state of a run or model.

    Parameters
    ----------
    label : its name for people
    problem : everything that is fixed during the run
    history : laps so far
    fitted : the model of the last lap; None before the first
    asked : estimator parameters, by name
    settings : plain values stored with the run, such as the paths of its data
    fingerprint : of the data; empty for a model in memory
    versions : of packages, by name
    going_on : whether a coordinator works on it; None if unknown because it ran on another machine
    tree : merge tree of its clusters, if one was grown
    """

    label: str
    problem: ProblemLike
    history: History
    fitted: AnyFitted | None
    asked: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    going_on: bool | None = False
    tree: Tree | None = None

    @property
    def method(self) -> AnyMethod:
        """The method of the fit."""
        return METHODS[self.problem.method]

    @property
    def predictor(self) -> Any:
        """The predictor of rows or documents; available after the first lap."""
        assert self.fitted is not None, "a lap was finished"
        return self.method.predictor(self.problem, self.fitted.total, self.fitted.ids)

    @property
    def state(self) -> str:
        """The state of the run, in a few words."""
        if self.fitted is not None and self.fitted.stop is not None:
            return self.fitted.stop
        if self.going_on is None:
            return "not finished; another machine may be working on it: see dpdist status"
        return "running" if self.going_on else "not finished: continue with dpdist resume"

    @property
    def per_unit(self) -> list[float]:
        """The ELBO after each lap, in nats per row or token; NaN if the method has none."""
        return [row.per_unit for row in self.history.laps]


class Viewable(ABC):
    """Base of what has a view: runs and fitted estimators."""

    @abstractmethod
    def view(self) -> View:
        """The current view; raises :class:`NotFittedError` of scikit-learn for an unfitted estimator."""

    def _repr_html_(self) -> str:
        return card(self.view())


def card(view: View) -> str:
    """A summary with two sparklines as HTML for notebooks, in the colours of its surroundings."""
    facts = {"laps": f"{len(view.history.laps)} in {view.history.seconds:.1f} s", "state": view.state}
    if view.fitted is not None:
        facts = {view.method.parts: f"{len(view.fitted.ids):,}", "rows": f"{view.fitted.rows:,.0f}", **facts}
        if not math.isnan(view.fitted.elbo):
            facts[f"ELBO per {view.method.unit}"] = f"{view.per_unit[-1]:.6f} nats"
    cells = "".join(
        f'<div><div style="opacity:.6;font-size:85%">{html.escape(name)}</div>{html.escape(value)}</div>'
        for name, value in facts.items()
    )
    bounds = [value for value in view.per_unit if not math.isnan(value)]
    counts = [row.n_components for row in view.history.laps]
    lines = _line("ELBO", bounds) + _line(view.method.parts, counts)
    return (
        '<div style="border:1px solid currentColor;border-radius:8px;padding:.6em 1em;display:inline-block;'
        f'max-width:100%"><b>{html.escape(view.label)}</b>'
        f'<div style="display:flex;flex-wrap:wrap;gap:.4em 1.6em;margin-top:.4em">{cells}{lines}</div></div>'
    )


def _line(name: str, values: Sequence[float]) -> str:
    """A sparkline, scaled from its lowest to its highest value."""
    if len(values) < 2:
        return ""
    taken = values[:: -(-len(values) // DRAWN)]
    low, high = min(taken), max(taken)
    scale = 30 / (high - low) if high > low else 0.0
    points = " ".join(f"{120 * i / (len(taken) - 1):.1f},{32 - scale * (v - low):.1f}" for i, v in enumerate(taken))
    return (
        f'<div><div style="opacity:.6;font-size:85%">{html.escape(name)}</div><svg width="120" height="34">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg></div>'
    )
