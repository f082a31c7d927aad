"""The rows of a partition with nonzero weight, and the blocks in which rows are processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.base import Partition
from dpdist.models.families.base import Rows

#: Numbers in a block's features: few enough for the cache, enough for an efficient matrix product.
BLOCK_NUMBERS = 2**19
#: Bounds on the rows of a block. Every block adds (K, F) sums, which does not pay for a few rows.
FEWEST_BLOCK_ROWS, MOST_BLOCK_ROWS = 512, 4096
#: Largest amount of numbers in a block of the fewest rows (128 MiB); wider rows come in smaller blocks, but never fewer
#: than this many rows.
MOST_BLOCK_NUMBERS, FEWEST_WIDE_ROWS = 2**24, 64


def block_rows(columns: int) -> int:
    """Rows of a block whose features have `columns` columns."""
    fewest = max(FEWEST_WIDE_ROWS, min(FEWEST_BLOCK_ROWS, MOST_BLOCK_NUMBERS // columns))
    return min(MOST_BLOCK_ROWS, max(fewest, BLOCK_NUMBERS // columns))


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """The blocks of `rows` rows whose features have `columns` columns; one empty block if there are no rows."""
    step = block_rows(columns)
    return (slice(start, start + step) for start in range(0, max(1, rows), step))


def finite_rows(partition: Partition) -> tuple[Rows, np.ndarray | None]:
    """Rows as stored, and their weights; raises :class:`InputError` if they hold NaN or infinity."""
    stored, weights = partition.load()
    values = stored.data if sparse.issparse(stored) else stored
    if not np.isfinite(values).all():
        bad = "" if sparse.issparse(stored) else f", first in row {partition.start + _first_bad(stored)}"
        raise InputError(f"the rows hold NaN or infinity{bad}; every entry should be finite. Drop or fill those rows.")
    return stored, weights


def _first_bad(stored: np.ndarray) -> int:
    return int(np.argmin(np.isfinite(stored).all(axis=1)))


def weighing_rows(
    partition: Partition, load: Callable[[Partition], tuple[Rows, np.ndarray | None]] = Partition.load
) -> tuple[Rows, np.ndarray | None, np.ndarray]:
    """The rows of a partition with nonzero weight, their weights and positions; other rows are ignored."""
    rows, weights = load(partition)
    if weights is None or weights.all():
        return rows, weights, np.arange(partition.rows)
    places = np.flatnonzero(weights)
    return rows[places], weights[places], places
