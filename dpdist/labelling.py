"""Labels of many rows, written to Zarr by the workers that compute them."""

from __future__ import annotations

import os

import numpy as np
import zarr

from dpdist import schema
from dpdist.backends import Backend
from dpdist.outputs import claim_folder, put_in_place, written_aside
from dpdist.prediction import Predictor
from dpdist.sources.base import Partition, Source


def write_labels(
    predictor: Predictor,
    source: Source,
    backend: Backend,
    out: str | os.PathLike[str],
    *,
    top: int = 1,
    density: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a group with each row's label and, on request, its most probable components and its density.

    Parameters
    ----------
    predictor, source, backend : model, rows and where to run
    out : folder; arrays ``label`` (N,), stable ids; with ``top > 1`` also ``top_id`` and ``top_probability``
        (N, top); with `density` also ``log_density`` (N,)
    overwrite : whether to replace what is there

    Raises
    ------
    OutputExistsError, InputError
        If `out` is taken, or the rows have another width than the model's.
    """
    target = claim_folder(out, overwrite)
    predictor.preparation.check_columns(source.shape[1])
    partitions = source.partitions
    aside = target.with_name(f".{target.name}.partial-{os.getpid()}")
    with written_aside(aside):
        _create(str(aside), source.shape[0], top, density)
        shared = backend.share(predictor)
        # Chunks of the outputs may span partitions, so blocks come back here and are written in order.
        for start in range(0, len(partitions), _TOGETHER):
            group = partitions[start : start + _TOGETHER]
            columns = [shared] * len(group), [top] * len(group), [density] * len(group)
            refs = backend.map(_label, backend.share_each(group), *columns)
            for partition, found in zip(group, backend.fetch(refs), strict=True):
                _store(str(aside), partition, found)
        put_in_place(aside, target)


#: Partitions under way at once; bounds the coordinator's memory.
_TOGETHER = 32


def _create(path: str, rows: int, top: int, density: bool) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    kinds: dict[str, tuple[tuple[int, ...], str]] = {"label": ((rows,), "int64")}
    if top > 1:
        kinds |= {"top_id": ((rows, top), "int64"), "top_probability": ((rows, top), "float64")}
    if density:
        kinds["log_density"] = ((rows,), "float64")
    for name, (shape, dtype) in kinds.items():
        variable = schema.VARIABLES[name]
        group.create_array(
            name,
            shape=shape,
            dtype=dtype,
            chunks=(min(rows, 65536), *shape[1:]),
            dimension_names=list(variable.dims),
            attributes={"units": variable.units, "long_name": variable.doc},
        )


def _label(partition: Partition, predictor: Predictor, top: int, density: bool) -> dict[str, np.ndarray]:
    places, shares = predictor.top(partition, min(max(top, 1), len(predictor.ids)))
    ids = predictor.ids[places]
    found = {"label": ids[:, 0]}
    if top > 1:
        missing = ((0, 0), (0, top - ids.shape[1]))
        found["top_id"] = np.pad(ids, missing, constant_values=-1)
        found["top_probability"] = np.pad(shares, missing)
    if density:
        found["log_density"] = predictor.log_density(partition)
    return found


def _store(path: str, partition: Partition, found: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="r+")
    for name, values in found.items():
        group[name][partition.start : partition.stop] = values
