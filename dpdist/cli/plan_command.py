"""The command that forecasts the cost of a fit: plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from dpdist.cli.foreground import NOT_KEPT, backend_of
from dpdist.cli.options import Options, split, with_settings
from dpdist.cli.run_commands import Drop
from dpdist.cli.terminal import MESSAGES, OUTPUT
from dpdist.core.checks import one_of
from dpdist.core.errors import InputError
from dpdist.data import Source
from dpdist.runs.config import Config, read_config
from dpdist.runs.progress import say
from dpdist.runs.specs.mixture import FitSpec

#: Largest number of laps that are forecast, if none is given.
LAPS = 40

#: Dtypes of stored rows.
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
#: Number of clusters that is assumed by default.
COMPONENTS = 100


ConfigFile = Annotated[Path | None, typer.Argument(help="TOML file with the settings of a fit; options override them.")]
Data = Annotated[str | None, typer.Option(help="Rows, as for dpdist fit.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(help="Columns of files to take, separated by commas; with --rows, the number of columns."),
]


@with_settings("fit")
def plan(
    options: Options,
    config: ConfigFile = None,
    data: Data = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Number of rows of data that are not written yet.")] = None,
    columns: Columns = None,
    drop: Drop = None,
    dtype: Annotated[str, typer.Option(help="Type in which data that are not written yet will be stored.")] = "float32",
    components: Annotated[int | None, typer.Option(min=1, help="Approximate number of clusters. Default: 100.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers of a cluster. Default: one per core, on this machine.")
    ] = None,
    laps: Annotated[
        int | None, typer.Option(min=1, help="Laps of a run. Default: 40, or max_laps if that is less.")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            help="File that --save-costs wrote, here or elsewhere, for the same family and number of columns."
        ),
    ] = None,
    save_costs: Annotated[Path | None, typer.Option(help="File to write the measured unit costs to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Forecast the cost of a fit: time, memory, checkpoints, the bottleneck, and settings that would be faster.

    Unit costs are measured on this machine, on some of the rows or on drawn ones, with the settings of the fit. This
    takes seconds, or a minute or two with a thousand components. --save-costs writes the costs to a file, and --costs
    reads a file that was written on this or another machine.
    """
    from dpdist.report.forecast import plan_tables
    from dpdist.runs.methods import method_named
    from dpdist.runs.planning.costs import claim_costs, read_costs
    from dpdist.runs.planning.plan import plan as planned

    if rows is not None and drop:
        raise InputError(
            "--drop leaves out columns of data; with --rows, give the number of the other columns as --columns."
        )
    known = None if costs is None else read_costs(costs)
    if save_costs is not None:
        claim_costs(save_costs)
    taken = None if rows is not None else split(columns)
    places = {"data": data, "columns": taken, "drop": split(drop)}
    given = {**options, **{name: place for name, place in places.items() if place is not None}}
    try:
        told = read_config("fit", config, given)
    except InputError as error:
        if config is not None and _is_of_topics(config):
            raise InputError(
                f"dpdist plan forecasts dpdist fit only; {config} has the settings of dpdist topics."
            ) from error
        raise
    assert isinstance(told.spec, FitSpec), "the command fit has the spec of a mixture"
    source = _source(told, rows, columns, dtype)
    count = _components(told.spec, components, source.shape[0])
    if rows is None:
        method_named(told.spec.method, told.holdout, source.names, told.tables)  # refuses wrong held-out rows
    cores = len(os.sched_getaffinity(0))
    laps = min(LAPS, told.spec.limits.max_laps or LAPS) if laps is None else laps
    if known is None:
        say(MESSAGES, f"measuring unit costs with {count} components")
    with backend_of(1 if known is None else None, None, known is not None, stopped=NOT_KEPT) as backend:
        found = planned(
            told.spec, source, count, workers or cores, laps, backend, known, None if workers else float(cores)
        )
    if save_costs is not None:
        found.costs.write(save_costs)
    if as_json:
        typer.echo(json.dumps(found.values, indent=2))
    else:
        OUTPUT.print(plan_tables(found))


def _is_of_topics(config: Path) -> bool:
    """Whether a configuration is valid for dpdist topics."""
    try:
        read_config("topics", config, {})
    except InputError:
        return False
    return True


def _source(told: Config, rows: int | None, columns: list[str] | None, dtype: str) -> Source:
    """The data, or, with a number of rows, unwritten data of this shape."""
    from dpdist.runs.planning.unwritten import UnwrittenSource

    if rows is None:
        if told.data is None:
            raise InputError("plan needs data: give their path with --data, or their size with --rows and --columns.")
        return told.source()
    count = ",".join(columns or [])
    if not count.isdecimal() or int(count) < 1:
        given = repr(count) if columns else None
        raise InputError(f"--columns should be the number of columns of the rows, as in 128; got {given}.")
    return UnwrittenSource(rows, int(count), one_of(*DTYPES).take("dtype", dtype))


def _components(spec: FitSpec, asked: int | None, rows: int) -> int:
    """The given number of components, or the largest possible one, at most :data:`COMPONENTS`."""
    limits = {"the number of rows": rows, "max_components": spec.allocation.max_components or rows}
    what, most = min(limits.items(), key=lambda limit: limit[1])
    if asked is not None and asked > most:
        raise InputError(f"--components should be at most {most}, like {what}; got {asked}.")
    return asked if asked is not None else min(COMPONENTS, most)
