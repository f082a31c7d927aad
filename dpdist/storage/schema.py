"""Each variable stored on disk: its dimensions, units and meaning. What is not here is a person's own.

Files are Zarr v3 groups that ``xarray.open_zarr(path, group=..., consolidated=False)`` reads without dpdist:
every array carries its dimension names, units and a description. Who reads a run with dpdist is told of any damage by
the digests in its commit; every chunk is written and ends with a checksum for who does not, and for outputs that no
commit names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from dpdist.core.errors import CheckpointError

#: Version of the layout below; a reader refuses others.
FORMAT = 3


@dataclass(frozen=True)
class Variable:
    """One stored array."""

    dims: tuple[str, ...]
    doc: str
    units: str = "1"


VARIABLES: dict[str, Variable] = {
    # model: the components
    "id": Variable(("component",), "stable identity of a component"),
    "weight": Variable(("component",), "posterior mean mixture weight"),
    "stats": Variable(("component", "feature"), "expected sufficient statistics, whole data; the last is the count"),
    "entropy": Variable(("component",), "entropy of the responsibilities, whole data", "nat"),
    "mean": Variable(("component", "column"), "posterior mean of a component's mean"),
    "covariance": Variable(("component", "column", "column_2"), "posterior mean of a component's covariance"),
    "variance": Variable(("component", "column"), "posterior mean of a component's variances"),
    "mean_variance": Variable(("component", "column"), "posterior variance of a component's mean"),
    "probability": Variable(("component", "column"), "posterior mean of a component's probabilities"),
    "rate": Variable(("component", "column"), "posterior mean of a component's rates"),
    # preparation
    "shift": Variable(("raw_column",), "subtracted from every row first"),
    "factor": Variable(("raw_column",), "multiplies every row"),
    "matrix": Variable(("raw_column", "column"), "right factor of every row (principal axes)"),
    "origin": Variable(("column",), "subtracted last; the model's own origin"),
    # memo: batch summaries, of which there is one a batch
    "batch_stats": Variable(("batch", "component", "feature"), "statistics of a batch's rows at its last visit"),
    "batch_entropy": Variable(("batch", "component"), "entropies of a batch's rows at its last visit", "nat"),
    "measured_stats": Variable(
        ("batch", "measured_row", "feature"), "what proposals measured at that visit, statistics"
    ),
    "measured_entropy": Variable(
        ("batch", "measured_entry"), "what proposals measured at that visit, entropies", "nat"
    ),
    "change_kept": Variable(("kept",), "components that the last lap's end left alone"),
    "change_accepted": Variable(("accepted", "pair"), "accepted proposals: place of the move in the list, number"),
    "change_order": Variable(("component",), "order of the kept components followed by all replacements"),
    "carried": Variable(("carried_row",), "rows of the measurements that went on, move by move"),
    # state
    "order": Variable(("batch",), "batches in the order of the lap"),
    "sampling_chance": Variable(("component",), "chance with which a row joins the sample of its component"),
    "rest_id": Variable(("rest",), "component whose splits were refused"),
    "rest_refusals": Variable(("rest",), "how often"),
    "rest_until": Variable(("rest",), "lap from which it may be tried again"),
    "rest_count": Variable(("rest",), "its expected count at the last refusal"),
    "sample_key": Variable(("draw",), "random key of a sampled row"),
    "sample_owner": Variable(("draw",), "component a sampled row was drawn for"),
    "sample_weight": Variable(("draw",), "row weight of a sampled row"),
    "sample_rows": Variable(("draw", "column"), "sampled rows, prepared"),
    "sample_data": Variable(("entry",), "sampled sparse rows: values"),
    "sample_indices": Variable(("entry",), "sampled sparse rows: columns"),
    "sample_indptr": Variable(("boundary",), "sampled sparse rows: row boundaries"),
    # history
    "lap": Variable(("lap",), "number of a lap"),
    "elbo": Variable(("lap",), "exact ELBO after the lap's moves, whole data", "nat"),
    "elbo_before_moves": Variable(("lap",), "exact ELBO before the lap's moves, whole data", "nat"),
    "n_components": Variable(("lap",), "components after the lap"),
    "seconds": Variable(("lap",), "wall time of the lap", "s"),
    "proposal_lap": Variable(("proposal",), "lap that judged a proposal"),
    "proposal_kind": Variable(("proposal",), "kind of the proposal"),
    "proposal_reason": Variable(("proposal",), "what became of the proposal"),
    "proposal_gain": Variable(("proposal",), "its exact gain", "nat"),
    "proposal_component": Variable(("proposal",), "id of the first component it would replace"),
    "proposal_partner": Variable(("proposal",), "id of the second component it would replace; -1 for none"),
    # sequential passes
    "table": Variable(("component", "feature"), "components as the pass keeps them; the last column is their weight"),
    "overlap": Variable(("component", "component_2"), "sum of the smaller of two components' responsibilities"),
    "round": Variable(("round",), "number of a round of partitions"),
    "rows_passed": Variable(("round",), "rows passed at the end of the round"),
    "components_found": Variable(("round",), "components at the end of the round"),
    "seconds_passed": Variable(("round",), "time spent passing so far, evaluation apart", "s"),
    "holdout_score": Variable(
        ("round",), "mean log predictive density of held-out rows; NaN where they were not scored", "nat"
    ),
    # topic models
    "word_count": Variable(("word", "topic"), "expected tokens of a word in a topic"),
    "topic_entropy": Variable(("topic",), "entropy of a topic's responsibilities", "nat"),
    "topic_group": Variable(
        ("topic_or_rest", "group_sum"),
        "sums over documents of E log pi, log Gamma(theta), (n - theta) E log pi, theta - n; last: topics not in use",
    ),
    "document_total": Variable(
        ("total",), "sums over documents of log Gamma(sum theta), psi(sum theta), 1 and their tokens"
    ),
    "batch_word_count": Variable(("batch", "word", "topic"), "as of the corpus, for documents of a batch"),
    "batch_topic_entropy": Variable(("batch", "topic"), "as of the corpus, for documents of a batch", "nat"),
    "batch_topic_group": Variable(
        ("batch", "topic_or_rest", "group_sum"), "as of the corpus, for documents of a batch"
    ),
    "batch_document_total": Variable(("batch", "total"), "as of the corpus, for documents of a batch"),
    "pair_entropy": Variable(("batch", "pair_index"), "change of entropy if a pair of topics is one", "nat"),
    "pair_group": Variable(("batch", "pair_index", "group_sum"), "as of topics, for unions of two"),
    "document_indptr": Variable(("document_boundary",), "boundaries of documents in their topics"),
    "document_topic": Variable(("use",), "topic that a document uses"),
    "document_count": Variable(("use",), "expected tokens of that topic in the document"),
    "topic_pair": Variable(("pair_index", "pair"), "topics whose union is measured"),
    "other_pair": Variable(("other_pair_index", "pair"), "topics among those tried whose union is measured"),
    "other_id": Variable(("other",), "stable ids of the topics tried"),
    "topic_gone": Variable(("gone",), "topics tried to do without"),
    "turned_pair": Variable(("turned_pair_index", "pair"), "pairs measured in the lap that ended"),
    "turned_chosen": Variable(("chosen",), "those of them that became one"),
    "turned_order": Variable(("topic",), "order of the topics left"),
    "topic_weight": Variable(("topic",), "expected global weight of a topic"),
    "vocabulary_text": Variable(("byte",), "the words of all columns in their order, UTF-8, one after the other"),
    "vocabulary_offset": Variable(("word_boundary",), "where each word begins in that, and the last one ends"),
    # predictions
    "label": Variable(("row",), "position of the most probable component; id[label] is its stable identity"),
    "top_label": Variable(("row", "rank"), "positions of the most probable components, best first"),
    "top_probability": Variable(("row", "rank"), "their probabilities"),
    "log_density": Variable(("row",), "log predictive density in raw columns", "nat"),
    "proportion": Variable(("row", "component"), "expected proportion of a topic in a document"),
}


def write(group: zarr.Group, name: str, values: np.ndarray, *, key: str | None = None) -> None:
    """Store `values` in `group` under `name` (or `key`), with the schema's dimensions and description."""
    write_as(group, key or name, VARIABLES[name], np.ascontiguousarray(values))


def create(
    group: zarr.Group, name: str, shape: tuple[int, ...], dtype: Any, chunks: tuple[int, ...], *, key: str | None = None
) -> zarr.Array:
    """An array of `group` to be filled, with the schema's dimensions and description."""
    return create_as(group, key or name, VARIABLES[name], shape, dtype, chunks)


def write_as(group: zarr.Group, key: str, variable: Variable, values: np.ndarray) -> None:
    """Store `values` in `group` under `key` as what `variable` says."""
    stored = create_as(group, key, variable, values.shape, values.dtype, values.shape)
    if values.size:
        stored[...] = values


def create_as(
    group: zarr.Group, key: str, variable: Variable, shape: tuple[int, ...], dtype: Any, chunks: tuple[int, ...]
) -> zarr.Array:
    """An array of `group` to be filled with what `variable` says."""
    return group.create_array(
        key,
        shape=shape,
        dtype=dtype,
        chunks=tuple(max(1, size) for size in chunks),
        compressors=[Crc32cCodec()],
        fill_value=0,
        dimension_names=list(variable.dims),
        attributes={"units": variable.units, "long_name": variable.doc},
        config={"write_empty_chunks": True},
    )


def read(group: zarr.Group, name: str) -> np.ndarray:
    """The array `name` of `group`.

    Raises
    ------
    CheckpointError
        If it is not there.
    """
    node = group.get(name)
    if not isinstance(node, zarr.Array):
        raise CheckpointError(f"{group.store_path} holds no array '{name}'; the file is damaged or not dpdist's.")
    return np.asarray(node[...])


def subgroup(group: zarr.Group, name: str) -> zarr.Group:
    """The group `name` inside `group`, or a sentence if it is missing."""
    node = group.get(name)
    if not isinstance(node, zarr.Group):
        raise CheckpointError(f"{group.store_path} holds no group '{name}'; the file is damaged or not dpdist's.")
    return node
