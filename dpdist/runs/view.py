"""What there is to look at of a run or model, wherever it is held, and the few words of it that a notebook shows."""

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

#: Components that a report shows, and rows that it looks at, at most, unless told otherwise.
SHOWN, ROWS = 24, 20_000
#: Laps drawn in a notebook, at most.
DRAWN = 200


@dataclass(frozen=True, eq=False)
class View:
    """A run or model as it is now.

    Parameters
    ----------
    label : what a person calls it
    problem : what is fixed
    history : laps so far
    fitted : the model of the last lap; None before the first
    asked : what was asked for, by name
    settings : plain values told of the run, and the places of its data
    fingerprint : of the data; empty for a model that is held in memory
    versions : of packages, by name
    going_on : whether somebody works on it; None where only watching would tell, for it was somewhere else
    tree : of its clusters, where one was grown
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
        """What fits it."""
        return METHODS[self.problem.method]

    @property
    def predictor(self) -> Any:
        """What the model says of rows or documents; there is one once a lap was finished."""
        assert self.fitted is not None, "a lap was finished"
        return self.method.predictor(self.problem, self.fitted.total, self.fitted.ids)

    @property
    def state(self) -> str:
        """Where it stands, in a few words."""
        if self.fitted is not None and self.fitted.stop is not None:
            return self.fitted.stop
        if self.going_on is None:
            return "not at its end, and worked on by another machine if that lives: see dpdist status"
        return "going on" if self.going_on else "not at its end: go on with dpdist resume"

    @property
    def per_unit(self) -> list[float]:
        """The ELBO after each lap, nats a row or token; NaN where there is none."""
        return [row.per_unit for row in self.history.laps]


class Viewable(ABC):
    """What can be looked at: a run, a fitted estimator."""

    @abstractmethod
    def view(self) -> View:
        """It as it is now; raises what any use of a model raises that is not fitted."""

    def _repr_html_(self) -> str:
        return card(self.view())


def card(view: View) -> str:
    """A few facts and two lines as HTML, for notebooks; it takes the colours of what it stands in."""
    facts = {"laps": f"{len(view.history.laps)} in {view.history.seconds:.1f} s", "state": view.state}
    if view.fitted is not None:
        facts = {view.method.parts: f"{len(view.fitted.ids):,}", "rows": f"{view.fitted.rows:,.0f}", **facts}
        if not math.isnan(view.fitted.elbo):
            facts[f"ELBO a {view.method.unit}"] = f"{view.per_unit[-1]:.6f} nats"
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
    """A small picture of a course, from its lowest to its highest value."""
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
