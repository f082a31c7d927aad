"""Commands that examine the clusters of a model by further passes over the rows: tree, stability."""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from dpdist.cluster.foreground import KEPT, NOT_KEPT, Scheduler, Serial, Workers, backend_of
from dpdist.cluster.terminal import MESSAGES, OUTPUT
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.stability import MAX_LAPS, REFITS
from dpdist.runs.opening import grow_stored_tree, model_in, open_run, refit_stored, rows_model, source_of
from dpdist.runs.progress import say

#: Largest number of shown clusters.
_SHOWN = 20
#: Seconds between two messages about a refit in progress.
_WHILE = 10.0


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
    store = open_run(run)
    rows_model(model_in(store), run)  # refuses topics before there is a cluster
    source = source_of(store, data)
    with backend_of(workers, scheduler, serial, source, stopped=NOT_KEPT) as backend:
        found = grow_stored_tree(run, source, backend)
    OUTPUT.print(_table(found), _levels(found))
    way_on = f"dpdist predict {shlex.quote(run)} DATA --n-clusters N"
    say(OUTPUT, f"tree of {len(found)} clusters kept in {run}; cut it with: {way_on}")


def stability(
    run: Annotated[str, typer.Argument(help="A run of dpdist fit, or a model saved from one.")],
    refits: Annotated[int, typer.Option(min=1, help="How many refits.")] = REFITS,
    max_laps: Annotated[int, typer.Option(min=1, help="Laps of each at most.")] = MAX_LAPS,
    data: Annotated[str | None, typer.Option(help="Where the rows are now, if they moved.")] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Refit a model some times, on halves of the rows, and say which clusters come back.

    Shown of each cluster: the mean and the least of the Jaccard coefficients of its rows with those of the refits'
    clusters that have most of them; 0.85 and more is stable, less than 0.6 hardly a cluster. Kept with the run after
    every refit: the same command goes on where it was stopped, and with more refits after those it has.
    """
    store = open_run(run)
    rows_model(model_in(store), run)  # refuses topics before there is a cluster
    source = source_of(store, data)
    with backend_of(workers, scheduler, serial, source, refits * max_laps, stopped=KEPT) as backend:
        found = refit_stored(run, source, backend, refits, max_laps, _Told(refits))
    table, counts = Table(title=f"the least stable of {len(found.ids)} clusters"), found.n_components
    for name in ("id", "mean Jaccard", "least"):
        table.add_column(name, justify="right")
    for k in np.argsort(found.mean, kind="stable")[:_SHOWN]:
        table.add_row(str(found.ids[k]), f"{found.mean[k]:.3f}", f"{found.jaccard[:, k].min():.3f}")
    OUTPUT.print(table)
    spread = (
        f"{counts.min()} to {counts.max()} clusters, median {np.median(counts):g}, where the model has {len(found.ids)}"
    )
    say(OUTPUT, f"{len(counts)} refits: {spread}; kept in {run}")


class _Told:
    """Prints the progress of refits: the end of each, and occasional messages in between."""

    def __init__(self, refits: int) -> None:
        self._refits, self._next = refits, time.monotonic() + _WHILE

    def __call__(self, number: int, lap: int, clusters: int, ended: bool) -> None:
        if ended or time.monotonic() > self._next:
            self._next = time.monotonic() + _WHILE
            so_far = "" if ended else f", lap {lap}"
            say(MESSAGES, f"refit {number} of {self._refits}{so_far}: {clusters} clusters")


def _table(found: Tree) -> Table:
    table = Table(title=f"the least separated of {len(found)} clusters")
    for name in ("id", "size", "nearest", "separation", "nats against merging"):
        table.add_column(name, justify="right")
    for k in np.argsort(found.separation, kind="stable")[:_SHOWN]:
        nearest, size = found.ids[found.nearest[k]], f"{found.counts[k]:.1f}"
        told = f"{found.separation[k]:.3f}", f"{found.evidence[k]:.1f}"
        table.add_row(str(found.ids[k]), size, str(nearest), *told)
    return table


def _levels(found: Tree) -> Table:
    """The ELBO lost by the coarsest levels; a level where the loss begins to grow fast is a candidate for a cut."""
    table = Table(title="nats of ELBO given up by so few clusters")
    for name in ("clusters", "in all", "a row"):
        table.add_column(name, justify="right")
    lost, rows = found.elbo.max() - found.elbo, float(found.counts[: len(found)].sum())
    for clusters in range(min(_SHOWN, len(found)), 0, -1):
        given_up = lost[len(found) - clusters]
        table.add_row(str(clusters), f"{given_up:,.1f}", f"{given_up / rows:.5f}")
    return table
