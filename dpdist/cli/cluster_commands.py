"""Commands that look closer at the clusters of a model, with another pass or more over the rows: tree."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from dpdist.cluster.foreground import Scheduler, Serial, Workers, backend_of, data_of
from dpdist.cluster.terminal import OUTPUT
from dpdist.data import as_source
from dpdist.inference.hierarchy.tree import Tree
from dpdist.runs.opening import grow_stored_tree, open_run
from dpdist.runs.progress import say

#: Clusters shown at most.
_SHOWN = 20


def tree(
    run: Annotated[str, typer.Argument(help="A run or a model of rows.")],
    data: Annotated[str | None, typer.Option(help="Where the rows are now, if they moved.")] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Grow the tree of a model's clusters, from all of them down to one by exact merges, and keep it there.

    Takes at most two passes over the rows. dpdist predict --n-clusters cuts it. Shown of each cluster: the one with
    which it would best be merged, the nats of ELBO which speak against that, and its separation, 1 less the share of
    its rows that one other would take.
    """
    source = as_source(data_of(open_run(run).settings.get("data"), data))
    with backend_of(workers, scheduler, serial, source) as backend:
        found = grow_stored_tree(run, source, backend)
    OUTPUT.print(_table(found))
    say(OUTPUT, f"tree of {len(found)} clusters kept in {run}; cut it with: dpdist predict {run} DATA --n-clusters N")


def _table(found: Tree) -> Table:
    table = Table(title=f"the least separated of {len(found)} clusters")
    for name in ("id", "size", "nearest", "separation", "nats against merging"):
        table.add_column(name, justify="right")
    for k in np.argsort(found.separation, kind="stable")[:_SHOWN]:
        nearest, size = found.ids[found.nearest[k]], f"{found.counts[k]:.1f}"
        told = f"{found.separation[k]:.3f}", f"{found.evidence[k]:.1f}"
        table.add_row(str(found.ids[k]), size, str(nearest), *told)
    return table
