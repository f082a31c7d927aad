"""Commands that examine the clusters of a model by further passes over the rows: tree, stability."""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from dpdist.cli.foreground import KEPT, NOT_KEPT, Scheduler, Serial, Workers, backend_of
from dpdist.cli.terminal import MESSAGES, OUTPUT
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.stability import MAX_LAPS, REFITS
from dpdist.runs.events import count_of
from dpdist.runs.opening import grow_stored_tree, model_in, open_run, refit_stored, refittable, rows_model, source_of
from dpdist.runs.progress import say

#: Largest number of shown clusters.
_SHOWN = 20
#: Seconds between two messages about a refit in progress.
_WHILE = 10.0


def tree(
    run: Annotated[str, typer.Argument(help="A run or a model of rows.")],
    data: Annotated[str | None, typer.Option(help="New path of the rows, if they have moved.")] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Build the tree of a model's clusters by exact merges, from all clusters down to one, and store it in the run.

    This takes at most two passes over the rows. dpdist predict --n-clusters cuts the tree. For each cluster, the table
    shows the best other cluster to merge it with, the nats of ELBO that this merge would lose, and the separation: 1
    minus the largest share of its rows that one other cluster would take.
    """
    store = open_run(run)
    rows_model(model_in(store), run)  # refuses topics before there is a cluster
    source = source_of(store, data)
    with backend_of(workers, scheduler, serial, source, stopped=NOT_KEPT) as backend:
        found = grow_stored_tree(run, source, backend)
    OUTPUT.print(_table(found), _levels(found))
    way_on = f"dpdist predict {shlex.quote(run)} DATA --n-clusters N"
    say(OUTPUT, f"tree of {len(found)} clusters stored in {run}; cut it with: {way_on}")


def stability(
    run: Annotated[str, typer.Argument(help="A run of dpdist fit, or a model saved from one.")],
    refits: Annotated[int, typer.Option(min=1, help="Number of refits.")] = REFITS,
    max_laps: Annotated[int, typer.Option(min=1, help="Largest number of laps of each refit.")] = MAX_LAPS,
    data: Annotated[str | None, typer.Option(help="New path of the rows, if they have moved.")] = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    serial: Serial = False,
) -> None:
    """Refit a model several times on halves of the rows, and show which clusters are found again.

    For each cluster, the largest Jaccard coefficient of its rows with those of a cluster of the refit is computed. The
    table shows its mean and minimum over refits; 0.85 or more is stable, below 0.6 is hardly a cluster. The result is
    stored in the run after every refit: the same command continues where it stopped, and more refits add to those
    that are stored.
    """
    store = open_run(run)
    refittable(model_in(store), run)  # refuses other models before there is a cluster
    source = source_of(store, data)
    with backend_of(workers, scheduler, serial, source, refits * max_laps, stopped=KEPT) as backend:
        found = refit_stored(run, source, backend, refits, max_laps, _Told(refits))
    table, counts = Table(title=f"least stable of {len(found.ids)} clusters"), found.n_components
    for name in ("id", "mean Jaccard", "min Jaccard"):
        table.add_column(name, justify="right")
    for k in np.argsort(found.mean, kind="stable")[:_SHOWN]:
        table.add_row(str(found.ids[k]), f"{found.mean[k]:.3f}", f"{found.jaccard[:, k].min():.3f}")
    OUTPUT.print(table)
    spread = f"{counts.min()} to {counts.max()} clusters, median {np.median(counts):g}; the model has {len(found.ids)}"
    say(OUTPUT, f"{count_of(len(counts), 'refit')}: {spread}; stored in {run}")


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
    table = Table(title=f"least separated of {len(found)} clusters")
    for name in ("id", "size", "nearest", "separation", "nats lost by merging"):
        table.add_column(name, justify="right")
    for k in np.argsort(found.separation, kind="stable")[:_SHOWN]:
        nearest, size = found.ids[found.nearest[k]], f"{found.counts[k]:.1f}"
        told = f"{found.separation[k]:.3f}", f"{found.evidence[k]:.1f}"
        table.add_row(str(found.ids[k]), size, str(nearest), *told)
    return table


def _levels(found: Tree) -> Table:
    """The ELBO lost by the coarsest levels; a level where the loss begins to grow fast is a candidate for a cut."""
    table = Table(title="nats of ELBO lost by fewer clusters")
    for name in ("clusters", "total", "per row"):
        table.add_column(name, justify="right")
    lost, rows = found.elbo.max() - found.elbo, float(found.counts[: len(found)].sum())
    for clusters in range(min(_SHOWN, len(found)), 0, -1):
        given_up = lost[len(found) - clusters]
        table.add_row(str(clusters), f"{given_up:,.1f}", f"{given_up / rows:.5f}")
    return table
