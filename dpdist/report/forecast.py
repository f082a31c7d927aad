"""Tables of a plan: time, memory, causes, and possible improvements."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from dpdist.report.units import duration, size
from dpdist.runs.planning.plan import Plan


def plan_tables(plan: Plan) -> Group:
    """The tables of a plan."""
    told = plan.forecast
    changes = [_table(f"a lap of {duration(told.lap)} would take", _changes(plan))] if told.changes else []
    return Group(
        _table("the run", _shape(plan)),
        _table(f"on {plan.workers:,} worker{'' if plan.workers == 1 else 's'}", _costs(plan)),
        *changes,
    )


def _shape(plan: Plan) -> dict[str, str]:
    shape = plan.shape
    laps = "all" if shape.dense_every == 1 else f"one of {shape.dense_every}"
    return {
        "rows": f"{shape.rows:,} of {size(shape.row_bytes)}, {size(shape.rows * shape.row_bytes)} in all",
        "components": f"{shape.components:,} of {shape.columns:,} statistics",
        "batches": f"{shape.batches:,}, {shape.lookahead} ahead",
        "partitions": f"{shape.partitions:,} of {shape.partition_rows:,.0f} rows, {shape.most_partitions:,} a batch",
        "laps that look at every row for all": laps,
    }


def _costs(plan: Plan) -> dict[str, str]:
    told = plan.forecast
    return {
        "a lap": duration(told.lap),
        "a lap that looks at every row for all": duration(told.dense_lap),
        f"{plan.laps:,} laps": duration(told.run(plan.laps)),
        "workers' time in tasks": f"{100 * told.share:.0f} %",
        "workers at work at a time": f"{told.useful_workers:,} at most",
        "memory of the coordinator": size(told.coordinator),
        "memory of a worker": size(told.worker),
        "a checkpoint": f"{size(told.checkpoint_bytes)} in {duration(told.checkpoint_seconds)}",
        "checkpoints, of the run's time": f"{100 * told.checkpoint_share:.1f} %",
        "bound by": told.bound,
    }


def _changes(plan: Plan) -> dict[str, str]:
    return {f"with {change.what}": duration(change.seconds) for change in plan.forecast.changes}


def _table(title: str, lines: dict[str, str]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in lines.items():
        table.add_row(name, value)
    return table
