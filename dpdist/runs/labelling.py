"""Labels of many rows, and topics of many documents, computed by workers and written to Zarr."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import zarr

from dpdist.core.outputs import claim_folder, put_in_place, written_aside
from dpdist.core.stored import Stored
from dpdist.data.base import Partition, Source
from dpdist.execution import Backend
from dpdist.inference.prediction import Predictor
from dpdist.inference.topics.prediction import DocumentPredictor
from dpdist.storage import codec


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
    out : folder; arrays ``label`` (N,), positions as ``predict`` of the estimators gives them, and ``id`` (K,), so that
        ``id[label]`` are stable ids; with ``top > 1`` also ``top_label`` and ``top_probability`` (N, min(top, K)); with
        `density` also ``log_density`` (N,)
    overwrite : whether to replace what is there

    Raises
    ------
    OutputExistsError, InputError
        If `out` is taken, or the rows have another width than the model's.
    """
    predictor.preparation.check_source(source)
    kinds = _label_kinds(top, len(predictor.ids))
    if density:
        kinds["log_density"] = ((), "float64")
    _write(out, overwrite, source, backend, kinds, {"id": predictor.ids}, _label, predictor, top, density)


def write_proportions(
    predictor: DocumentPredictor,
    source: Source,
    backend: Backend,
    out: str | os.PathLike[str],
    *,
    top: int = 1,
    overwrite: bool = False,
) -> None:
    """Write a group with each document's proportions of topics and its largest topics.

    Parameters
    ----------
    predictor, source, backend : topic model, documents and where to run
    out : folder; arrays ``proportion`` (N, K), ``label`` (N,), the column of the largest, and ``id`` (K,), so that
        ``id[label]`` are stable ids; with ``top > 1`` also ``top_label`` and ``top_probability`` (N, min(top, K))
    overwrite : whether to replace what is there

    Raises
    ------
    OutputExistsError, InputError
        If `out` is taken, or the documents do not fit the model.
    """
    predictor.check_words(source.shape[1])
    kinds = {**_label_kinds(top, len(predictor.ids)), "proportion": ((len(predictor.ids),), "float64")}
    _write(out, overwrite, source, backend, kinds, {"id": predictor.ids}, _share, predictor, top)


_OUTPUTS = {
    "id": Stored(("component",), "stable identity of a component"),
    "label": Stored(("row",), "position of the most probable component; id[label] is its stable identity"),
    "top_label": Stored(("row", "rank"), "positions of the most probable components, best first"),
    "top_probability": Stored(("row", "rank"), "their probabilities"),
    "log_density": Stored(("row",), "log predictive density in raw columns", "nat"),
    "proportion": Stored(("row", "component"), "expected proportion of a topic in a document"),
}
#: Partitions under way at once; bounds the coordinator's memory.
_TOGETHER = 32
#: Bounds on a chunk: rows, and numbers.
_CHUNK_ROWS, _CHUNK_NUMBERS = 2**16, 2**22

_Kinds = dict[str, tuple[tuple[int, ...], str]]


def _write(
    out: str | os.PathLike[str],
    overwrite: bool,
    source: Source,
    backend: Backend,
    kinds: _Kinds,
    fixed: dict[str, np.ndarray],
    find: Callable[..., dict[str, np.ndarray]],
    predictor: Predictor | DocumentPredictor,
    *given: Any,
) -> None:
    """Write what `find`, called with each partition, the predictor and what is `given`, says of its rows.

    Parameters
    ----------
    kinds : what `find` gives: name -> shape of a row's, dtype
    fixed : what does not go by rows: name -> values
    """
    target, partitions = claim_folder(out, overwrite), source.partitions
    aside = target.with_name(f".{target.name}.partial-{os.getpid()}")
    with written_aside(aside):
        _create(str(aside), source.shape[0], kinds, fixed)
        shared = backend.share(predictor)
        # Chunks of the outputs may span partitions, so blocks come back here and are written in order.
        for start in range(0, len(partitions), _TOGETHER):
            group = partitions[start : start + _TOGETHER]
            columns = ([value] * len(group) for value in (shared, *given))
            refs = backend.map(find, backend.share_each(group), *columns)
            for partition, found in zip(group, backend.fetch(refs), strict=True):
                _store(str(aside), partition, found)
        put_in_place(aside, target)


def _label_kinds(top: int, components: int) -> _Kinds:
    kinds: _Kinds = {"label": ((), "int64")}
    if top > 1:
        width = min(top, components)
        kinds |= {"top_label": ((width,), "int64"), "top_probability": ((width,), "float64")}
    return kinds


def _create(path: str, rows: int, kinds: _Kinds, fixed: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    for name, values in fixed.items():
        codec.put(group, name, values, _OUTPUTS[name])
    for name, (shape, dtype) in kinds.items():
        stored, width = _OUTPUTS[name], math.prod(shape)
        group.create_array(
            name,
            shape=(rows, *shape),
            dtype=dtype,
            chunks=(max(1, min(rows, _CHUNK_ROWS, _CHUNK_NUMBERS // width)), *shape),
            dimension_names=list(stored.dims),
            attributes={"units": stored.units, "long_name": stored.doc},
        )


def _label(partition: Partition, predictor: Predictor, top: int, density: bool) -> dict[str, np.ndarray]:
    found = _ranked(*predictor.top(partition, top), top)
    if density:
        found["log_density"] = predictor.log_density(partition)
    return found


def _share(partition: Partition, predictor: DocumentPredictor, top: int) -> dict[str, np.ndarray]:
    shares = predictor.proportions(partition)
    order = np.argsort(-shares, axis=1, kind="stable")[:, :top]
    return {"proportion": shares, **_ranked(order, np.take_along_axis(shares, order, axis=1), top)}


def _ranked(places: np.ndarray, shares: np.ndarray, top: int) -> dict[str, np.ndarray]:
    """Label, and on request the best components (n, L) and their probabilities, of rows."""
    found = {"label": places[:, 0]}
    if top > 1:
        found |= {"top_label": places, "top_probability": shares}
    return found


def _store(path: str, partition: Partition, found: dict[str, np.ndarray]) -> None:
    group = zarr.open_group(path, mode="r+")
    for name, values in found.items():
        group[name][partition.start : partition.stop] = values
