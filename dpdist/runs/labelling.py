"""Labels of many rows, and topics of many documents, computed by workers and written to Zarr."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Protocol

import numpy as np
import zarr

from dpdist.core.outputs import claim_folder, written_aside
from dpdist.core.stored import Stored
from dpdist.data.base import Partition, Source
from dpdist.execution import Backend
from dpdist.inference.prediction import Outputs
from dpdist.runs.label_table import RowIds, claim_file, is_table, numbered, write_ids, write_table
from dpdist.storage import codec


class Labeller(Protocol):
    """A model of rows or of documents, as far as its predictions are written."""

    ids: np.ndarray

    def check_source(self, source: Source, model: str = "the model") -> None:
        """Raise :class:`InputError` unless the model can be asked of these rows."""

    def outputs(self, top: int, density: bool) -> Outputs:
        """What is written of each row."""

    def predictions(self, partition: Partition, top: int, density: bool) -> dict[str, np.ndarray]:
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
    out : folder; arrays ``label`` (N,), positions as ``predict`` of the estimators gives them, and ``id`` (K,), so that
        ``id[label]`` are stable ids; with ``top > 1`` also ``top_label`` and ``top_probability`` (N, min(top, K)); with
        `density` also ``log_density`` (N,); of documents also ``proportion`` (N, K), where labels are the largest
    overwrite : whether to replace what is there
    ids : what the rows are called, written beside their labels as text

    Raises
    ------
    OutputExistsError, InputError
        If `out` is taken, the rows have other columns than the model's, or it tells no such thing.
    """
    predictor.check_source(source)
    outputs, target, partitions = predictor.outputs(top, density), claim_folder(out, overwrite), source.partitions
    with written_aside(target) as aside:
        _create(str(aside), source.shape[0], outputs, predictor.ids)
        shared = backend.share(predictor)
        # Chunks of the outputs may span partitions, so blocks come back here and are written in order.
        for start in range(0, len(partitions), _TOGETHER):
            group = partitions[start : start + _TOGETHER]
            columns = ([value] * len(group) for value in (shared, top, density))
            refs = backend.map(_predictions, backend.share_each(group), *columns)
            for partition, found in zip(group, backend.fetch(refs), strict=True):
                _store(str(aside), partition, found)
        if ids is not None:
            write_ids(zarr.open_group(str(aside), mode="r+"), ids)


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
#: Bounds on a chunk: rows, and numbers.
_CHUNK_ROWS, _CHUNK_NUMBERS = 2**16, 2**22


def _create(path: str, rows: int, outputs: Outputs, ids: np.ndarray) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    codec.put(group, "id", ids, _OUTPUTS["id"])
    for name, (shape, dtype) in outputs.items():
        stored, width = _OUTPUTS[name], math.prod(shape)
        group.create_array(
            name,
            shape=(rows, *shape),
            dtype=dtype,
            chunks=(max(1, min(rows, _CHUNK_ROWS, _CHUNK_NUMBERS // width)), *shape),
            dimension_names=list(stored.dims),
            attributes={"units": stored.units, "long_name": stored.doc},
        )


def _predictions(partition: Partition, predictor: Labeller, top: int, density: bool) -> dict[str, np.ndarray]:
    return predictor.predictions(partition, top, density)


def _store(path: str, partition: Partition, found: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="r+")
    for name, values in found.items():
        group[name][partition.start : partition.stop] = values
