"""Estimate of the memory that a lap takes, computed before it starts.

With F columns of statistics, K components, M children per split and B batches, in numbers of 8 bytes,

    F K (3 (1 + M) B + 12)     sums of the batches, for components and children: the old ones, their tree and the new
                               ones; then those of the lap end: before and after it, and of new children
    + max(min(48 F K, 6e6),    judging: a dozen arrays of F numbers for about four replacements per component, computed
          480 F)               in chunks; or a search from many seeds, with a dozen arrays for each
    + F max(m, b, g)           features of the m rows sampled from a component to seed children, of the b rows of a
                               block, or of the g rows of a group that is rearranged
    + 3 D min(N, K m)          the sampled rows themselves, while they are joined

all in one process, as with the serial backend; on a cluster the features and the search from many seeds take the
workers' memory.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from dpdist.data.base import Source
from dpdist.inference.blocks import block_rows
from dpdist.inference.loop import batch_count
from dpdist.inference.mixture.batches import REPLACEMENTS
from dpdist.inference.mixture.engine import feature_columns
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.agglomerate import DRAWS
from dpdist.inference.moves.arrange import SEEDS
from dpdist.models.families import Gaussian, ZeroMeanGaussian

#: Arrays of F numbers per component at a lap end, and for judging in addition; largest amount of numbers that judging
#: holds at a time; and arrays of a search from many seeds.
ENDING, JUDGING, JUDGED, SEEDED = 12, 48, 6_000_000, 12 * SEEDS * (DRAWS + 1)
#: A lap that needs more bytes than this is large on any machine.
LARGE = 4 * 2**30
#: Files in which Linux gives the memory limit of a container or job, for control groups v2 and v1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Footprint:
    """Bytes of a lap, and additional bytes for every further component."""

    total: float
    component: float


def footprint(problem: Problem, source: Source, components: int) -> Footprint:
    """Estimated memory of a lap with `components` components; accurate within a factor of about two."""
    (rows, _), width = source.shape, problem.preparation.width
    columns = feature_columns(problem)
    moves = problem.moves if problem.schedule.moves else ()
    children = sum(min(move.least_rows, REPLACEMENTS) for move in moves)
    each = min(problem.sampling.each(components, 8 * width), -(-rows // components)) if children else 0
    block = min(block_rows(columns), max(part.rows for part in source.partitions))
    own = columns * (3 * (1 + children) * batch_count(problem.schedule, source) + ENDING)
    judging = min(JUDGING * columns * components, JUDGED) if moves else 0
    grouped = min(max((move.most_rows for move in moves), default=0), rows)
    seeded = SEEDED * columns if grouped else 0
    further = JUDGING * columns if moves and seeded <= judging < JUDGED else 0
    shared = columns * max(each, block, grouped) + 3 * width * min(rows, components * each)
    return Footprint(8.0 * (components * own + max(judging, seeded) + shared), 8.0 * (own + further))


def warn_if_large(problem: Problem, source: Source, components: int, memory: float | None = None) -> None:
    """Warn if a lap needs more than half the `memory` (by default this machine's) or more than :data:`LARGE`."""
    here = machine_memory() if memory is None else memory
    needed = footprint(problem, source, components)
    if needed.total <= min(here / 2, LARGE):
        return
    family = problem.model.family
    full = isinstance(family, Gaussian | ZeroMeanGaussian)
    narrower = "fewer columns with row_transform=TransformPlan(pca=50)"
    warnings.warn(
        f"a lap of {type(family).__name__} over {problem.preparation.width} columns needs about "
        f"{_size(needed.total)} of memory with {components} component{'s' if components > 1 else ''}, and "
        f"{_size(needed.component)} more for each further component; this process may use {_size(here)}. Choose "
        + (f"DiagonalGaussian, or {narrower}." if full else f"fewer components or batches, or {narrower}."),
        stacklevel=2,
    )


def machine_memory() -> float:
    """Bytes of memory available to this process: of the machine, or of the container or job that it runs in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(min([whole, *(int(limit) for limit in map(_text, LIMITS) if limit.isdecimal())]))


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
