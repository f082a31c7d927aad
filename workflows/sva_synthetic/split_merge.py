"""Split-merge proposals by restricted Gibbs scans, alternating with Gibbs sweeps.

Two rows are drawn. If they share a cluster, a split that separates them is proposed, otherwise the merge of their
clusters. The other rows of the one or two clusters are assigned to the two rows at random, and then moved by a few
Gibbs scans restricted to these two clusters; the result is the launch state. The final scan from the launch state gives
the proposed split, or, for a merge, leads back to the current clusters; its probability is that of the proposal.

Source: Jain & Neal (2004), A Split-Merge Markov Chain Monte Carlo Procedure for the Dirichlet Process Mixture Model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from clusters import (
    Model,
    Partition,
    Statistics,
    add_row,
    empty_partition,
    log_evidence,
    log_predictive,
    put_in,
    statistics,
    take_out,
)
from gibbs import sweep

from dpdist.kernels.jit import jit

#: In the place of a side: draw it.
ANY = -1


class Halves(NamedTuple):
    """Two clusters about two rows, changed in place: side 0 about the first row, side 1 about the second."""

    members: np.ndarray  # (M,) int64, the other rows
    sides: np.ndarray  # (M,) int64
    counts: np.ndarray  # (2,) float64, the two rows included
    sums: np.ndarray  # (2, D) float64


def split_merge(x: np.ndarray, model: Model, seed: int, proposals: int = 5, scans: int = 5) -> Iterator[Statistics]:
    """Clusters after each Gibbs sweep over `x`, (N, D), and the proposals after it, without end."""
    rng, partition = np.random.default_rng(seed), empty_partition(*x.shape)
    while True:
        sweep(x, partition, model, rng)
        for _ in range(proposals):
            propose(x, partition, model, scans, rng)
        yield statistics(partition)


@jit
def propose(x: np.ndarray, partition: Partition, model: Model, scans: int, rng: np.random.Generator) -> bool:
    """One proposal, accepted or not; whether it was."""
    first = rng.integers(0, len(x))
    second = (first + rng.integers(1, len(x))) % len(x)
    together = partition.labels[first] == partition.labels[second]
    halves = launch(x, partition, first, second, rng)
    anywhere = np.full(len(halves.members), ANY)
    for _ in range(scans):
        scan(x, halves, anywhere, model, rng)
    target = anywhere if together else sides_now(partition, halves.members, first)
    log_probability = scan(x, halves, target, model, rng)
    log_ratio = log_split_gain(halves, model) - log_probability
    accepted = math.log(1 - rng.random()) < (log_ratio if together else -log_ratio)
    if accepted:
        move(x, partition, halves, first, partition.order[partition.size[0]] if together else partition.labels[second])
    return accepted


@jit
def launch(x: np.ndarray, partition: Partition, first: int, second: int, rng: np.random.Generator) -> Halves:
    """Deal the rows that share a cluster with either of two rows to the two at random."""
    labels = partition.labels
    shared = (labels == labels[first]) | (labels == labels[second])
    shared[first] = shared[second] = False
    members = np.flatnonzero(shared)
    halves = Halves(members, np.empty_like(members), np.ones(2), np.stack((x[first], x[second])))
    for m in range(len(members)):
        halves.sides[m] = rng.integers(0, 2)
        count_in(x, halves, m, 1.0)
    return halves


@jit
def count_in(x: np.ndarray, halves: Halves, m: int, times: float) -> None:
    """Add a member to its side, or with -1 take it away."""
    side = halves.sides[m]
    halves.counts[side] += times
    add_row(halves.sums, side, x, halves.members[m], times)


@jit
def scan(x: np.ndarray, halves: Halves, target: np.ndarray, model: Model, rng: np.random.Generator) -> float:
    """One restricted Gibbs scan to the sides in `target`, drawn where it says ANY; the log probability of its draws."""
    log_probability = 0.0
    for m, i in enumerate(halves.members):
        count_in(x, halves, m, -1.0)
        log_odds = log_weight(x[i], halves, 1, model) - log_weight(x[i], halves, 0, model)
        side = target[m]
        if side == ANY:
            side = int(math.log(1 - rng.random()) < log_logistic(log_odds))
        log_probability += log_logistic(log_odds if side else -log_odds)
        halves.sides[m] = side
        count_in(x, halves, m, 1.0)
    return log_probability


@jit
def log_logistic(log_odds: float) -> float:
    """Log of a probability, without overflow."""
    return min(log_odds, 0.0) - math.log1p(math.exp(-abs(log_odds)))


@jit
def log_weight(row: np.ndarray, halves: Halves, side: int, model: Model) -> float:
    """Log weight of a side for a row that is on neither."""
    count = halves.counts[side]
    return math.log(count) + log_predictive(row, count, halves.sums[side], model)


@jit
def sides_now(partition: Partition, members: np.ndarray, first: int) -> np.ndarray:
    """The side of each row in the partition as it is: 0 where it shares the cluster of `first`."""
    return (partition.labels[members] != partition.labels[first]).astype(np.int64)


@jit
def log_split_gain(halves: Halves, model: Model) -> float:
    """Log posterior of the two clusters less that of the one they merge into."""
    one, two = halves.counts
    prior = math.log(model.concentration) + math.lgamma(one) + math.lgamma(two) - math.lgamma(one + two)
    apart = log_evidence(one, halves.sums[0], model) + log_evidence(two, halves.sums[1], model)
    return prior + apart - log_evidence(one + two, halves.sums[0] + halves.sums[1], model)


@jit
def move(x: np.ndarray, partition: Partition, halves: Halves, first: int, k: int) -> None:
    """Move side 0 into cluster `k`: a free one to split, that of side 1 to merge."""
    relabel(x, partition, first, k)
    for m, i in enumerate(halves.members):
        if halves.sides[m] == 0:
            relabel(x, partition, i, k)


@jit
def relabel(x: np.ndarray, partition: Partition, i: int, k: int) -> None:
    """Move a row to cluster `k`."""
    take_out(partition, x, i)
    put_in(partition, x, i, k)
