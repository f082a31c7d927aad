"""Batch summaries in files: a worker writes the sums of a visit and returns only a file name and a digest.

With K components, each with M replacements that moves measure, F columns and B batches, all batch summaries take 8 K (1
+ M) F B bytes: 8 GB for a thousand full-covariance Gaussians in 128 columns with splits in two, in 40 batches. If they
are large, the worker that completes a batch's sum writes it to a file at the run's place
(:mod:`dpdist.inference.files`). The coordinator does not hold its numbers; the checkpoint names the file. A file is one
array of float64 in NumPy's own format: the base measures of the components and of each move's measurement, then for
each of these in turn the statistics, row by row, and the entropies.

The component map of a lap end, which is small, is applied when the file is read; by the end of the next lap a new file
replaces it. Results are the same to the bit, wherever batch summaries are stored.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import numpy as np

from dpdist.core.stored import Stored
from dpdist.inference.files import RunFiles
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.candidates import Heirs
from dpdist.inference.mixture.local_step import Visit
from dpdist.inference.mixture.owners import AnyOwners, KeptOwners, owners_after
from dpdist.inference.sample import Sample
from dpdist.models.sufficient_statistics import Summary

#: Batch summaries beyond this size in total are stored in files, if workers can reach the run's place.
MEMO_BYTES = 2**30


class ComponentMap(Protocol):
    """The map that a lap end applies to every batch summary."""

    @property
    def heirs(self) -> Heirs:
        """Map from the old components to those that may hold their rows."""

    def batch_summary(self, old: Any, /) -> Any:
        """A batch summary after the lap end."""


@dataclass(frozen=True, eq=False)
class KeptBatchSummary:
    """A batch summary in a file.

    Parameters
    ----------
    folder, name, digest : of the file
    shapes : rows, columns and number of entropies of its parts: components, then the measurements of each move
    owners : of the batch's rows; None if candidates are not used
    component_map : of a lap end, applied when the file is read; None for no change
    """

    folder: str
    name: str
    digest: str
    shapes: tuple[tuple[int, int, int], ...]
    owners: Annotated[AnyOwners, Stored(("row",), "component with the largest responsibility for a row")] = None
    component_map: ComponentMap | None = None

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest."""
        own = {self.folder: {self.name: self.digest}}
        return {**own, **self.owners.files} if isinstance(self.owners, KeptOwners) else own

    def after(self, component_map: ComponentMap) -> KeptBatchSummary:
        """The same batch summary after a lap end."""
        assert self.component_map is None, "every lap visits every batch"
        return replace(self, owners=owners_after(self.owners, component_map.heirs), component_map=component_map)

    def read(self, files: RunFiles) -> BatchSummary:
        """The numbers, without owners; raises :class:`CheckpointError` if the file is missing or damaged."""
        first, *others = _parts(_values_of(files.read(self.folder, self.name, self.digest)), self.shapes)
        found = BatchSummary(first, tuple(others))
        return found if self.component_map is None else self.component_map.batch_summary(found)


#: A batch summary in memory or in a file.
AnyBatchSummary = BatchSummary | KeptBatchSummary


@dataclass(frozen=True, eq=False)
class KeptVisit:
    """The result of visiting the rows of a batch whose summary is in a file."""

    batch_summary: KeptBatchSummary
    sample: Sample


def keep_visit(visit: Visit, files: RunFiles, lap: int, batch: int) -> KeptVisit:
    """The visit of a batch with its summary written to a file; a repeated task writes the same file."""
    kept = _kept(visit.batch_summary, files, files.folder_of(lap, "batches"), f"{batch:06d}.npy")
    return KeptVisit(kept, visit.sample)


def keep_start(start: BatchSummary, files: RunFiles, lap: int) -> KeptBatchSummary:
    """Write the statistics that take the place of rows not yet seen in the lap after `lap` to a file."""
    return _kept(start, files, files.folder_of(lap, "start"), "start.npy")


def _kept(batch_summary: BatchSummary, files: RunFiles, folder: str, name: str) -> KeptBatchSummary:
    """Write a batch summary to a file of this name; its owners stay in memory or in their own files."""
    parts = batch_summary.summary, *batch_summary.measured
    digest = files.write(folder, name, _bytes_of(parts)).digest
    return KeptBatchSummary(folder, name, digest, _shapes_of(parts), batch_summary.owners)


def read_batch_summary(batch_summary: AnyBatchSummary, files: RunFiles) -> BatchSummary:
    """The numbers of a batch summary, from memory or a file."""
    return batch_summary.read(files) if isinstance(batch_summary, KeptBatchSummary) else batch_summary


def _bytes_of(parts: Sequence[Summary]) -> memoryview:
    """Summaries as the bytes of a NumPy file, copied once."""
    size, head = sum(part.stats.size + part.entropy.size + 1 for part in parts), io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (size,)})
    written = bytearray(head.tell() + 8 * size)
    written[: head.tell()] = head.getbuffer()
    values = np.frombuffer(written, "<f8", offset=head.tell())
    values[: len(parts)] = [part.base for part in parts]
    for part, own in zip(parts, _parts(values, _shapes_of(parts)), strict=True):
        own.stats[...], own.entropy[...] = part.stats, part.entropy
    return memoryview(written)


def _values_of(data: bytes) -> np.ndarray:
    """The array in the bytes of a NumPy file, without a copy."""
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    np.lib.format.read_array_header_1_0(stream)
    return np.frombuffer(data, "<f8", offset=stream.tell())


def _shapes_of(parts: Sequence[Summary]) -> tuple[tuple[int, int, int], ...]:
    return tuple((*part.stats.shape, len(part.entropy)) for part in parts)


def _parts(values: np.ndarray, shapes: Sequence[tuple[int, int, int]]) -> list[Summary]:
    """Summaries whose arrays are views of one array."""
    found, begin = [], len(shapes)
    for (rows, columns, entropies), base in zip(shapes, values[: len(shapes)].tolist(), strict=True):
        middle, end = begin + rows * columns, begin + rows * columns + entropies
        found.append(Summary(values[begin:middle].reshape(rows, columns), values[middle:end], base))
        begin = end
    return found
