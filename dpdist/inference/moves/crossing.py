"""Components divided by the values of a column, and merged again.

Where columns hold whole numbers, codes or zeros, the rows of a component may share one value, and first splits decide
which column that is for each component. A better choice changes many components at once: divisions and merges of a few
lose. So all components of a group are divided by the values of one column, and their parts are merged as long as that
gains. On 3,000 rows of 16 whole numbers the bounds of seeds differed by 0.2 nats per row without this and by 0.02 with
it. Divisions by random directions, by quantiles of a column or by distance found nothing there.
"""

from __future__ import annotations

import numpy as np

from dpdist.inference.moves.agglomerate import merged_down
from dpdist.inference.moves.change import EMPTY
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.inference.moves.seeding import by_value

#: Largest number of columns that are tried, of parts that are merged, and smallest share of rows with a value.
COLUMNS, PARTS, LEAST = 4, 64, 0.03


def crossed(sample: SampledRows, now: Arrangement, rng: np.random.Generator) -> list[np.ndarray]:
    """Statistics (M, F) of an arrangement for each column tried; none if values recur in no column."""
    members, found = len(now.stats), list[np.ndarray]()
    for ranks in by_value(sample.points, sample.weights, COLUMNS, PARTS // members - 1, LEAST, rng):
        parts = int(ranks.max()) + 1
        resp = now.resp[:, :, None] * (ranks[:, None] == np.arange(parts))[:, None]
        stats = sample.sums(resp.reshape(len(resp), members * parts))
        found += merged_down(sample, [stats[stats[:, -1] >= EMPTY]])
    return found
