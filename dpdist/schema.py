"""Each variable stored on disk: its dimensions, units and meaning. What is not here is not written.

Files are Zarr v3 groups that ``xarray.open_zarr(path, group=..., consolidated=False)`` reads without dpdist:
every array carries its dimension names, units and a description.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import zarr

from dpdist.errors import CheckpointError

#: Version of the layout below; a reader refuses newer ones.
FORMAT = 1


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
    "mean_variance": Variable(("component",), "posterior variance of a component's mean"),
    "probability": Variable(("component", "column"), "posterior mean of a component's probabilities"),
    "rate": Variable(("component", "column"), "posterior mean of a component's rates"),
    # preparation
    "shift": Variable(("raw_column",), "subtracted from every row first"),
    "factor": Variable(("raw_column",), "multiplies every row"),
    "matrix": Variable(("raw_column", "column"), "right factor of every row (principal axes)"),
    "origin": Variable(("column",), "subtracted last; the model's own origin"),
    # memo: one leaf a wave
    "memo_stats": Variable(("wave", "component", "feature"), "statistics at the wave's last visit"),
    "memo_entropy": Variable(("wave", "component"), "entropies at the wave's last visit", "nat"),
    "memo_base": Variable(("wave",), "log base measure of the wave's rows", "nat"),
    "trial_stats": Variable(("wave", "trial_row", "feature"), "what proposals of one kind measured, statistics"),
    "trial_entropy": Variable(("wave", "trial_entry"), "what proposals of one kind measured, entropies", "nat"),
    # state
    "order": Variable(("wave",), "waves in the order of the lap"),
    "sampling_chance": Variable(("component",), "chance with which a row joins the sample of its component"),
    "split_target": Variable(("split",), "component that a pending split divides"),
    "split_age": Variable(("split",), "laps the split has been refined"),
    "split_gain": Variable(("split",), "its exact gain at the end of the last lap", "nat"),
    "merge_pair": Variable(("merge", "pair"), "components that may become one"),
    "delete_target": Variable(("delete",), "component that may go"),
    "delete_absorbers": Variable(("delete", "absorber"), "components that would share its rows"),
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
    # predictions
    "label": Variable(("row",), "id of the most probable component"),
    "top_id": Variable(("row", "rank"), "ids of the most probable components, best first; -1 for none"),
    "top_probability": Variable(("row", "rank"), "their probabilities"),
    "log_density": Variable(("row",), "log predictive density", "nat"),
}


def write(
    group: zarr.Group, name: str, values: np.ndarray, *, key: str | None = None, chunk: int | None = None
) -> None:
    """Store `values` in `group` under `name` (or `key`), with the schema's dimensions and description.

    Parameters
    ----------
    chunk : entries of the first dimension per chunk; default: all
    """
    variable, array = VARIABLES[name], np.ascontiguousarray(values)
    first = array.shape[0] if array.ndim else 1
    chunks = (max(1, chunk or first), *(max(1, size) for size in array.shape[1:]))
    stored = group.create_array(
        key or name,
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks[: array.ndim],
        compressors=None,
        fill_value=0,
        dimension_names=list(variable.dims),
        attributes={"units": variable.units, "long_name": variable.doc},
    )
    if array.size:
        stored[...] = array


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
