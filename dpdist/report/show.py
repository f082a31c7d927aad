"""A stored run or model of any method as text: tables for people, plain values for scripts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dpdist.core.places import place_of
from dpdist.data.base import partitions_of
from dpdist.inference.moves.accept import Reason
from dpdist.runs.methods import METHODS
from dpdist.runs.methods.base import AnyMethod
from dpdist.runs.opening import open_run
from dpdist.storage.commits import preparation_told
from dpdist.storage.history import History

#: Largest number of shown components and laps.
LARGEST, LAST = 20, 5


def shown_values(path: str) -> dict[str, Any]:
    """The run or model at `path` as plain values, for ``--json``; None for values that a method does not have.

    For a run without a checkpoint, they contain the progress of its preparation.

    Raises
    ------
    CheckpointError
        If nothing readable is there.
    InputError
        If no lap was finished yet.
    """
    if (where := preparation_told(place_of(path))) is not None:
        return {"path": path, "preparing": where}
    store = open_run(path)
    fitted, history, problem, method = store.model(), store.history(), store.problem(), METHODS[store.method]
    predictor = method.predictor(problem, fitted.total, fitted.ids)
    weights, rest = predictor.weights()
    has_bound = not math.isnan(fitted.elbo)
    partitions = partitions_of(store.attributes["fingerprint"])
    held = history.laps[-1].holdout_score if history.laps else math.nan  # streams have no laps
    return {
        "path": str(store.path),
        "method": store.method,
        "laps": len(history.laps),
        "seconds": history.seconds,
        "rows": fitted.rows,
        "n_components": len(fitted.ids),
        "elbo": fitted.elbo if has_bound else None,
        f"elbo_per_{method.unit}": fitted.per_unit if has_bound else None,
        "holdout_score": None if math.isnan(held) else held,
        "partitions": partitions or None,
        "useful_workers": method.useful_workers(problem, partitions) if partitions else None,
        "stop_reason": fitted.stop,
        "converged": fitted.converged,
        "component_ids": fitted.ids.tolist(),
        "weights": weights.tolist(),
        "rest_weight": rest,
        "moves": move_counts(history),
        "settings": store.settings,
        **method.values(problem, fitted, predictor),
    }


def shown_tables(path: str) -> Group:
    """The run or model at `path` as tables: results, largest components, moves with their reasons, and last laps;
    raises as :func:`shown_values`."""
    values = shown_values(path)
    if "preparing" in values:
        where = f"{path} is preparing: {values['preparing']}. If it was killed, continue with: dpdist resume {path}"
        return Group(Text(where))
    store = open_run(path)
    method = METHODS[store.method]
    moves = [_moves(values)] if any(values["moves"].values()) else []
    laps = _laps(store.history(), method.lap)
    return Group(_facts(values, method), _components(values, method.parts), *moves, laps)


def move_counts(history: History) -> dict[str, dict[str, int]]:
    """Kind of move -> outcome -> number of proposals."""
    counts = Counter((row.kind, row.reason) for row in history.proposals)
    return {
        kind: {reason.value: counts[kind, reason] for reason in Reason if counts[kind, reason]}
        for kind in history.kinds
    }


#: Values that the table of facts leaves out.
_APART = {"path", "method", "laps", "seconds", "n_components", "stop_reason", "converged", "rest_weight"}


def _facts(values: dict[str, Any], method: AnyMethod) -> Table:
    table = Table(title=Text(values["path"], style="table.title"), show_header=False)
    weighted = not float(values["rows"]).is_integer()
    called = {"rows": f"total weight of {method.row}s" if weighted else f"{method.row}s"}
    table.add_row(method.parts, f"{values['n_components']}")
    for name, value in values.items():
        if name not in _APART and isinstance(value, str | int | float):
            table.add_row(called.get(name, name.replace("_", " ")), Text(told(value)))
    table.add_row(f"{method.lap}s", f"{values['laps']} in {values['seconds']:.1f} s")
    table.add_row("ended", values["stop_reason"] or "not yet: continue with dpdist resume")
    return table


def told(value: object) -> str:
    """A value as text, with a readable number of digits."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.6f}"
    return f"{value}"


def _components(values: dict[str, Any], parts: str) -> Table:
    count, words = min(LARGEST, values["n_components"]), values.get("top_words")
    more = "" if count == values["n_components"] else f" (largest {count} of {values['n_components']})"
    table = Table(title=f"{parts}{more}")
    for name in ("id", "size", "weight"):
        table.add_column(name, justify="right")
    if words:
        table.add_column("words")
    for k in np.argsort(-np.array(values["counts"]), kind="stable")[:count]:
        identity, size, weight = (values[name][k] for name in ("component_ids", "counts", "weights"))
        cells = [str(identity), f"{size:.1f}", f"{100 * weight:.2f} %"]
        table.add_row(*cells, *([Text(" ".join(words[k]))] if words else []))
    return table


def _moves(values: dict[str, Any]) -> Table:
    table = Table(title="moves")
    for name in ("kind", "outcome", "proposals"):
        table.add_column(name, justify="right" if name == "proposals" else "left")
    for kind, reasons in values["moves"].items():
        for reason, count in reasons.items():
            table.add_row(kind, reason, str(count))
    return table


def _cell(value: float, digits: int) -> str:
    """A number, or empty text for NaN."""
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _laps(history: History, lap: str) -> Table:
    table, gained = Table(title=f"last {lap}s of {len(history.laps)}"), history.gained()
    shown = history.laps[-LAST:]
    bound = any(not math.isnan(row.elbo) for row in shown)
    held = any(not math.isnan(row.holdout_score) for row in shown)
    names = [lap, "K", *(["ELBO", "gained by moves"] if bound else []), *(["held out"] if held else []), "seconds"]
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for row in shown:
        cells = [_cell(row.elbo, 4), _cell(gained[row.lap], 4)] if bound else []
        cells += [_cell(row.holdout_score, 6)] if held else []
        table.add_row(str(row.lap), str(row.n_components), *cells, f"{row.seconds:.2f}")
    return table
