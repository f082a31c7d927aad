"""Rows drawn from all partitions before the first lap, for starts and priors."""

from __future__ import annotations

import numpy as np

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source, rows_with_weight
from dpdist.execution.base import Backend
from dpdist.inference.blocks import weighing_rows
from dpdist.inference.sample import Sample
from dpdist.inference.transform import Preparation

#: Smallest expected number of drawn rows, so that some are drawn: with 40, the probability of none is exp(-40).
FEWEST = 40


def draw_rows(preparation: Preparation, seed: int, source: Source, backend: Backend, wanted: int) -> Sample:
    """About `wanted` rows, at least :data:`FEWEST` in expectation, prepared; each row has the same probability."""
    partitions = backend.share_each(source.partitions)
    shared = backend.share((preparation, seed, min(1.0, max(wanted, FEWEST) / rows_with_weight(source))))
    return backend.gathered("rows drawn", _draw, partitions, [shared] * len(partitions))


def _draw(partition: Partition, shared: tuple[Preparation, int, float]) -> Sample:
    preparation, seed, chance = shared
    rows, weights, _ = weighing_rows(partition)
    keys = generator(seed, "start sample", partition.index).random((rows.shape[0],))
    own = np.ones(rows.shape[0]) if weights is None else weights
    chosen = np.flatnonzero(keys < chance)
    with one_thread():
        prepared = preparation.apply(rows[chosen])
    return Sample(keys[chosen], np.zeros(len(chosen), dtype=np.int64), own[chosen], prepared)
