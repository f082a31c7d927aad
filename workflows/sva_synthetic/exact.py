"""The exact posterior of the number of clusters of a few rows, by enumerating all partitions; a check of the
samplers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from clusters import Model, Statistics, log_evidence
from scipy.special import gammaln, logsumexp

#: A set of clusters, each a list of rows.
Blocks = list[list[int]]


def partitions(rows: int) -> Iterator[Blocks]:
    """All partitions of the rows 0, 1, ..., rows - 1."""
    if rows == 0:
        yield []
        return
    last = rows - 1
    for blocks in partitions(last):
        for k, block in enumerate(blocks):
            yield [*blocks[:k], [*block, last], *blocks[k + 1 :]]
        yield [*blocks, [last]]


def log_posterior(x: np.ndarray, blocks: Blocks, model: Model) -> float:
    """Log posterior of a partition of rows (N, D), up to a constant."""
    counts = np.array([len(block) for block in blocks])
    prior = len(blocks) * np.log(model.concentration) + gammaln(counts).sum()
    return prior + sum(log_evidence(len(block), x[block].sum(axis=0), model) for block in blocks)


def size_posterior(x: np.ndarray, model: Model) -> np.ndarray:
    """Probability of 1, 2, ..., N clusters of rows (N, D)."""
    every = list(partitions(len(x)))
    logs = np.array([log_posterior(x, blocks, model) for blocks in every])
    probabilities = np.exp(logs - logsumexp(logs))
    return np.bincount([len(blocks) for blocks in every], probabilities, len(x) + 1)[1:]


def size_frequency(samples: Iterator[Statistics], rows: int, draws: int) -> np.ndarray:
    """Share of 1, 2, ..., N clusters in a sampler's first draws."""
    sizes = [len(found.counts) for found in islice(samples, draws)]
    return np.bincount(sizes, minlength=rows + 1)[1:] / draws
