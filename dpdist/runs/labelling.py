"""Labels of many rows, and topic proportions of many documents, computed by workers and written to Zarr."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpdist.core.digests import digest_of
from dpdist.core.errors import InputError
from dpdist.core.outputs import METADATA, PLAN, sole_writer
from dpdist.core.places import absolute, place_of
from dpdist.core.stored import Stored
from dpdist.core.versions import versions
from dpdist.data.base import Partition, Source
from dpdist.data.filling import Filling, array_at
from dpdist.execution import Backend
from dpdist.execution.base import Ref
from dpdist.inference.prediction import Outputs
from dpdist.runs import label_blocks
from dpdist.runs.label_blocks import Arrays, Block, Layout, digest_of_values, lacking, mark
from dpdist.runs.label_table import (
    RowIds,
    check_table,
    claim_file,
    create_ids,
    is_table,
    numbered,
    refuse_taken,
    write_ids,
    write_table,
)
from dpdist.storage import codec
from dpdist.storage.arrays import put

#: Predictions for some rows, by the name of their array.
Found: TypeAlias = dict[str, np.ndarray]


class Labeller(Protocol):
    """The part of a predictor of rows or documents that labelling uses."""

    ids: np.ndarray

    def check_source(self, source: Source, model: str = "the model") -> None:
        """Raise :class:`InputError` unless the model accepts these rows."""

    def outputs(self, top: int, density: bool) -> Outputs:
        """The shapes and dtypes of the arrays to write."""

    def predictions(self, partition: Partition, top: int, density: bool) -> Found:
        """The predictions for the rows of a partition."""


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
    tell: Callable[[int], None] | None = None,
) -> None:
    """Write predictions for each row; a killed call is continued by calling again.

    Parameters
    ----------
    predictor, source, backend : model, rows or documents, and where to run
    out : a table if it ends in .csv, .tsv or .parquet, else a Zarr group at a folder or URL. Columns or arrays:
        ``label`` (N,), positions as from ``predict`` of the estimators; in a Zarr group ``id`` (K,), so that
        ``id[label]`` are stable ids; with ``top > 1`` also ``top_label`` and ``top_probability`` (N, min(top, K)); with
        `density` also ``log_density`` (N,); for documents also ``proportion`` (N, K), and ``label`` is the topic of the
        largest
    overwrite : whether to replace what is at `out`
    ids : ids of the rows, written beside their labels as text; default: none, in a table the row numbers from 0
    tell : called with the number of rows whose predictions were already written, if there are any

    Raises
    ------
    OutputExistsError, InputError
        If `out` exists, the rows lack the model's columns, or the model has no such predictions.
    """
    question = _Question(predictor, source, top, density)
    if not is_table(out):
        _write_group(question, backend, out, overwrite, ids, tell)
        return
    target, ids = claim_file(out, overwrite), ids or numbered(source.shape[0])
    outputs, filling = question.checked_outputs(), question.filling(out)
    check_table(target, ids.name, outputs)
    with sole_writer(filling.target):
        _fill(filling, question, backend, tell)
        write_table(Path(filling.where), target, ids, outputs, overwrite)
        filling.forget()


def _write_group(
    question: _Question,
    backend: Backend,
    out: str | os.PathLike[str],
    overwrite: bool,
    ids: RowIds | None,
    tell: Callable[[int], None] | None,
) -> None:
    outputs, filling = question.checked_outputs(), question.filling(out)
    with filling.begun(overwrite) as lease:
        _fill(filling, question, backend, tell, ids)
        lease.check()
        filling.is_free(overwrite)  # raises if something appeared there in the meantime
        filling.appear("id", *outputs, *(() if ids is None else (ids.name,)))


class _Question(NamedTuple):
    """What is to be predicted."""

    predictor: Labeller
    source: Source
    top: int
    density: bool

    def checked_outputs(self) -> Outputs:
        """The arrays to write; raises :class:`InputError` if the model cannot predict this."""
        self.predictor.check_source(self.source)
        return self.predictor.outputs(self.top, self.density)

    def filling(self, out: str | os.PathLike[str]) -> Filling:
        """The arrays being written, under a plan that identifies model, settings and source, but not the row values."""
        try:
            model = codec.digest(self.predictor)
        except InputError:  # parts defined outside modules have no digest: no later call can continue this
            model = uuid.uuid4().hex
        told = [model, self.source.identity(), self.top, self.density, label_blocks.BLOCK_ROWS, versions()]
        return Filling(absolute(out), digest_of(json.dumps(told).encode()))


def _fill(
    filling: Filling,
    question: _Question,
    backend: Backend,
    tell: Callable[[int], None] | None,
    ids: RowIds | None = None,
) -> None:
    """Write the predictions that are not written yet, then the metadata of the group."""
    predictor, source, top, density = question
    outputs, rows = predictor.outputs(top, density), source.shape[0]
    files = _described(rows, outputs, predictor.ids, ids)
    layout, place = Layout(source.partitions), place_of(filling.where)
    with filling.forgotten_if_refused():
        metadata = {name: json.loads(files[f"{name}/{METADATA}"]) for name in outputs}
        blocks = lacking(filling.where, metadata, layout, backend)
        there = rows - sum(block.stop - block.start for block in blocks)
        if there and tell is not None:
            tell(there)
        _write_blocks(filling.where, metadata, layout, blocks, backend, (backend.share(predictor), top, density))
    if ids is not None:
        write_ids(array_at(filling.where, json.loads(files[f"{ids.name}/{METADATA}"]), ids.name), ids)
    for name in sorted(files, key=lambda name: (name == METADATA, name)):
        place.replace(name, files[name])


_OUTPUTS = {
    "id": Stored(("component",), "stable identity of a component"),
    "label": Stored(("row",), "position of the most probable component; id[label] is its stable identity; -1: outlier"),
    "top_label": Stored(("row", "rank"), "positions of the most probable components, most probable first"),
    "top_probability": Stored(("row", "rank"), "probabilities of the most probable components"),
    "log_density": Stored(("row",), "log predictive density of the row, in raw columns", "nat"),
    "proportion": Stored(("row", "component"), "expected proportion of a topic in a document"),
}
#: Largest number of values in a chunk.
_CHUNK_NUMBERS = 2**22


def _described(rows: int, outputs: Outputs, components: np.ndarray, ids: RowIds | None) -> dict[str, bytes]:
    """The files of the group, except for the chunks of predictions."""
    parts: dict[str, Buffer] = {}
    group = zarr.open_group(MemoryStore(parts), mode="w", zarr_format=3)
    put(group, "id", components, _OUTPUTS["id"])
    if ids is not None:
        refuse_taken(ids.name, ("id", label_blocks.MARKS, METADATA, PLAN, *outputs))
        if not {"/", "\\"}.isdisjoint(ids.name) or not ids.name.strip(".") or not ids.name.isprintable():
            raise InputError(
                f"the column of ids has the name '{ids.name}', which cannot be the name of a Zarr array; rename the "
                "column in the data, or write labels.csv."
            )
        create_ids(group, ids.name, rows)
    for name, (shape, dtype) in outputs.items():
        stored, most = _OUTPUTS[name], max(1, _CHUNK_NUMBERS // math.prod(shape))
        group.create_array(
            name,
            shape=(rows, *shape),
            dtype=dtype,
            chunks=(min(rows, label_blocks.BLOCK_ROWS, 2 ** int(math.log2(most))), *shape),
            dimension_names=list(stored.dims),
            attributes={"units": stored.units, "long_name": stored.doc},
        )
    return {name: part.to_bytes() for name, part in parts.items()}


def _write_blocks(
    where: str,
    metadata: Arrays,
    layout: Layout,
    blocks: Sequence[Block],
    backend: Backend,
    asked: tuple[Any, ...],
) -> None:
    """Predict the partitions of some blocks on workers, and write each block in a further task."""
    partitions, places, waiting = layout.partitions, layout.all_inside(blocks), deque(blocks)
    held: dict[int, Ref[_Said]] = {}
    together = backend.at_a_time(label_blocks.TOGETHER)
    for first in range(0, len(places), together):
        group = places[first : first + together]
        columns = ([value] * len(group) for value in asked)
        shared = backend.share_each([partitions[place] for place in group])
        held |= zip(group, backend.map(_predictions, shared, *columns), strict=True)
        ready = list[Block]()
        while waiting and layout.inside(waiting[0])[-1] <= group[-1]:
            ready.append(waiting.popleft())
        inside = [layout.inside(block) for block in ready]
        starts = [tuple(partitions[place].start for place in several) for several in inside]
        parts = [[held[place] for place in several] for several in inside]
        same = ([value] * len(ready) for value in (where, metadata))
        backend.fetch(backend.map(_write_block, *same, ready, starts, parts))
        held = {place: ref for place, ref in held.items() if waiting and partitions[place].stop > waiting[0].start}


class _Said(NamedTuple):
    """Predictions for the rows of a partition, and the digest of these rows."""

    found: Found
    digest: str


def _predictions(partition: Partition, predictor: Labeller, top: int, density: bool) -> _Said:
    held = partition.loaded()  # read once, so that the digest is of the very rows that are predicted
    return _Said(predictor.predictions(held, top, density), held.digest())


def _write_block(
    where: str,
    metadata: Arrays,
    block: Block,
    starts: Sequence[int],
    parts: Sequence[_Said],
) -> None:
    """Write the predictions for the rows of a block; its overlapping partitions begin at `starts`."""
    first, stop = block
    said: dict[str, str] = {}
    for name, about in metadata.items():
        values = [
            part.found[name][max(first - start, 0) : stop - start] for start, part in zip(starts, parts, strict=True)
        ]
        array = array_at(where, about, name)
        array[first:stop] = whole = np.concatenate(values).astype(array.dtype, copy=False)
        said[name] = digest_of_values(whole)
    mark(where, block, {start: part.digest for start, part in zip(starts, parts, strict=True)}, said)
