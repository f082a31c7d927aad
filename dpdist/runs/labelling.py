"""Labels of many rows, and topics of many documents, computed by workers and written to Zarr."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpdist.core.outputs import METADATA, written_at
from dpdist.core.places import place_of
from dpdist.core.stored import Stored
from dpdist.data.base import Partition, Source
from dpdist.data.filling import array_at
from dpdist.execution import Backend
from dpdist.execution.base import Ref
from dpdist.inference.prediction import Outputs
from dpdist.runs.label_table import (
    RowIds,
    claim_file,
    create_ids,
    is_table,
    numbered,
    refuse_taken,
    write_ids,
    write_table,
)
from dpdist.storage import codec

#: What is said of some rows, by the name of the array that it goes to.
Found: TypeAlias = dict[str, np.ndarray]


class Labeller(Protocol):
    """A model of rows or of documents, as far as its predictions are written."""

    ids: np.ndarray

    def check_source(self, source: Source, model: str = "the model") -> None:
        """Raise :class:`InputError` unless the model can be asked of these rows."""

    def outputs(self, top: int, density: bool) -> Outputs:
        """What is written of each row."""

    def predictions(self, partition: Partition, top: int, density: bool) -> Found:
        """What is written of some rows."""


def write_predictions(
    predictor: Labeller,
    source: Source,
    backend: Backend,
    out: str | os.PathLike[str],
    *,
    top: int = 1,
    density: bool = False,
    overwrite: bool = False,
    ids: RowIds | None = None,
) -> None:
    """Write a group with what a model says of each row.

    Parameters
    ----------
    predictor, source, backend : model, rows or documents, and where to run
    out : folder or URL; arrays ``label`` (N,), positions as ``predict`` of the estimators gives them, and ``id`` (K,),
        so that ``id[label]`` are stable ids; with ``top > 1`` also ``top_label`` and ``top_probability``
        (N, min(top, K)); with `density` also ``log_density`` (N,); of documents also ``proportion`` (N, K), where
        labels are the largest
    overwrite : whether to replace what is there
    ids : what the rows are called, written beside their labels as text

    Raises
    ------
    OutputExistsError, InputError
        If `out` is taken, the rows have other columns than the model's, or it tells no such thing.
    """
    predictor.check_source(source)
    outputs = predictor.outputs(top, density)
    with written_at(out, overwrite) as where:
        files = _described(source.shape[0], outputs, predictor.ids, ids)
        metadata = {name: json.loads(files[f"{name}/{METADATA}"]) for name in outputs}
        _write_blocks(where, metadata, source.partitions, backend, (backend.share(predictor), top, density))
        if ids is not None:
            write_ids(array_at(where, json.loads(files[f"{ids.name}/{METADATA}"]), ids.name), ids)
        place = place_of(where)
        for name in sorted(files, key=lambda name: (name == METADATA, name)):
            place.replace(name, files[name])


def write_labels(
    predictor: Labeller,
    source: Source,
    backend: Backend,
    out: str | os.PathLike[str],
    *,
    top: int = 1,
    density: bool = False,
    overwrite: bool = False,
    ids: RowIds | None = None,
) -> None:
    """As :func:`write_predictions`, or where `out` ends in .csv, .tsv or .parquet as a table.

    Parameters
    ----------
    ids : what the rows are called; default in a table: their numbers from 0
    """
    if not is_table(out):
        write_predictions(predictor, source, backend, out, top=top, density=density, overwrite=overwrite, ids=ids)
        return
    target = claim_file(out, overwrite)
    with tempfile.TemporaryDirectory(prefix=".labels-", dir=target.absolute().parent) as folder:
        labels = Path(folder) / "labels.zarr"
        write_predictions(predictor, source, backend, labels, top=top, density=density)
        write_table(labels, target, ids or numbered(source.shape[0]))


_OUTPUTS = {
    "id": Stored(("component",), "stable identity of a component"),
    "label": Stored(("row",), "position of the most probable component; id[label] is its stable identity; -1: outlier"),
    "top_label": Stored(("row", "rank"), "positions of the most probable components, best first"),
    "top_probability": Stored(("row", "rank"), "their probabilities"),
    "log_density": Stored(("row",), "log predictive density in raw columns", "nat"),
    "proportion": Stored(("row", "component"), "expected proportion of a topic in a document"),
}
#: Partitions under way at once; bounds the coordinator's memory.
_TOGETHER = 32
#: Bounds on a chunk: rows, of which a task writes so many, and numbers. Powers of two, so that these are whole chunks.
_CHUNK_ROWS, _CHUNK_NUMBERS = 2**16, 2**22


def _described(rows: int, outputs: Outputs, components: np.ndarray, ids: RowIds | None) -> dict[str, bytes]:
    """The files of the group, but for the chunks of what is said of rows."""
    parts: dict[str, Buffer] = {}
    group = zarr.open_group(MemoryStore(parts), mode="w", zarr_format=3)
    codec.put(group, "id", components, _OUTPUTS["id"])
    if ids is not None:
        refuse_taken(ids.name, ("id", *outputs))
        create_ids(group, ids.name, rows)
    for name, (shape, dtype) in outputs.items():
        stored, most = _OUTPUTS[name], max(1, _CHUNK_NUMBERS // math.prod(shape))
        group.create_array(
            name,
            shape=(rows, *shape),
            dtype=dtype,
            chunks=(min(rows, _CHUNK_ROWS, 2 ** int(math.log2(most))), *shape),
            dimension_names=list(stored.dims),
            attributes={"units": stored.units, "long_name": stored.doc},
        )
    return {name: part.to_bytes() for name, part in parts.items()}


def _write_blocks(
    where: str,
    metadata: Mapping[str, object],
    partitions: Sequence[Partition],
    backend: Backend,
    asked: tuple[Any, ...],
) -> None:
    """Have workers predict partitions, and others of them write what is said, a block of whole chunks at a time."""
    begun, held = 0, list[tuple[Partition, Ref[Found]]]()
    for first in range(0, len(partitions), _TOGETHER):
        group = partitions[first : first + _TOGETHER]
        columns = ([value] * len(group) for value in asked)
        held += zip(group, backend.map(_predictions, backend.share_each(group), *columns), strict=True)
        rows, last = group[-1].stop, first + _TOGETHER >= len(partitions)
        starts = range(begun, rows if last else rows - _CHUNK_ROWS + 1, _CHUNK_ROWS)
        blocks = [(start, min(start + _CHUNK_ROWS, rows)) for start in starts]
        inside = [[i for i in range(len(held)) if _overlap(held[i][0], block)] for block in blocks]
        places = [tuple(held[i][0].start for i in several) for several in inside]
        parts = [[held[i][1] for i in several] for several in inside]
        same = ([value] * len(blocks) for value in (where, metadata))
        backend.fetch(backend.map(_write_block, *same, blocks, places, parts))
        begun = blocks[-1][1] if blocks else begun
        held = [(each, ref) for each, ref in held if each.stop > begun]


def _overlap(partition: Partition, block: tuple[int, int]) -> bool:
    return partition.start < block[1] and partition.stop > block[0]


def _predictions(partition: Partition, predictor: Labeller, top: int, density: bool) -> Found:
    return predictor.predictions(partition, top, density)


def _write_block(
    where: str,
    metadata: Mapping[str, Mapping[str, object]],
    block: tuple[int, int],
    places: Sequence[int],
    parts: Sequence[Found],
) -> None:
    """Write what is said of the rows of a block, which partitions that start at `places` hold."""
    start, stop = block
    for name, about in metadata.items():
        values = [part[name][max(start - place, 0) : stop - place] for place, part in zip(places, parts, strict=True)]
        array_at(where, about, name)[start:stop] = np.concatenate(values)
