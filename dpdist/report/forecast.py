"""Tables of a plan: time, memory, causes, and possible improvements."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from dpdist.report.units import duration, size
from dpdist.runs.planning.plan import Plan


def plan_tables(plan: Plan) -> Group:
    """The tables of a plan."""
    told = plan.forecast
    changes = [_table(f"instead of {duration(told.lap)}, a lap would take", _changes(plan))] if told.changes else []
    return Group(
        _table("the run", _shape(plan)),
        _table(f"on {plan.workers:,} worker{'' if plan.workers == 1 else 's'}", _costs(plan)),
        *changes,
    )


def _shape(plan: Plan) -> dict[str, str]:
    shape = plan.shape
    laps = "all" if shape.dense_every == 1 else f"one in {shape.dense_every}"
    return {
        "rows": f"{shape.rows:,} of {size(shape.row_bytes)}, {size(shape.rows * shape.row_bytes)} in total",
        "components": f"{shape.components:,} with {shape.columns:,} statistics each",
        "batches": f"{shape.batches:,}, lookahead {shape.lookahead}",
        "partitions": f"{shape.partitions:,} of {shape.partition_rows:,.0f} rows, {shape.most_partitions:,} per batch",
        "laps that evaluate all components": laps,
    }


def _costs(plan: Plan) -> dict[str, str]:
    told = plan.forecast
    return {
        "a lap on average": duration(told.lap),
        "a lap that evaluates all components": duration(told.dense_lap),
        f"{plan.laps:,} laps": duration(told.run(plan.laps)),
        "share of workers' time in tasks": f"{100 * told.share:.0f} %",
        "workers busy at a time": f"at most {told.useful_workers:,}",
        "memory of the coordinator": size(told.coordinator),
        "memory of a worker": size(told.worker),
        "a checkpoint": f"{size(told.checkpoint_bytes)} in {duration(told.checkpoint_seconds)}",
        "share of the run's time for checkpoints": f"{100 * told.checkpoint_share:.1f} %",
        "bottleneck": told.bound,
    }


def _changes(plan: Plan) -> dict[str, str]:
    return {f"with {change.what}": duration(change.seconds) for change in plan.forecast.changes}


def _table(title: str, lines: dict[str, str]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in lines.items():
        table.add_row(name, value)
    return table
