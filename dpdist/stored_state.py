"""A state as a Zarr group and back, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from scipy import sparse

from dpdist import schema
from dpdist.moves.base import Trial
from dpdist.moves.delete import Deletes
from dpdist.moves.merge import Merges
from dpdist.moves.split import Splits
from dpdist.state import Rest, State
from dpdist.stored_problem import subgroup
from dpdist.summary import Summary
from dpdist.visit import Leaf, Sample


def write_state(group: zarr.Group, state: State) -> None:
    """Store `state` in an empty group."""
    group.attrs.update(
        {
            "lap": state.lap,
            "visit": state.visit,
            "next_id": state.next_id,
            "elbo": state.elbo,
            "quiet": state.quiet,
            "has_trials": bool(state.trials),
            "queue": len(state.queue),
        }
    )
    schema.write(group, "id", state.ids)
    schema.write(group, "sampling_chance", state.chances)
    schema.write(group, "order", np.array(state.order, dtype=np.int64))
    _write_rests(group.create_group("rests"), state.rests)
    if state.trials:
        _write_trials(group.create_group("trials"), state.trials)
    if state.sample is not None:
        _write_sample(group.create_group("sample"), state.sample)
    _write_leaves(group.create_group("memo"), state.leaves)
    single = {"start": state.start, "running": state.running}
    single |= {f"queue_{i}": leaf for i, leaf in enumerate(state.queue)}
    for name, leaf in single.items():
        if leaf is not None:
            _write_leaves(group.create_group(name), [leaf])


def read_state(group: zarr.Group) -> State:
    """The state stored in `group`."""
    attrs: dict[str, Any] = dict(group.attrs)

    def one(name: str) -> Leaf | None:
        return _read_leaves(subgroup(group, name))[0] if name in group else None

    queue = [_read_leaves(subgroup(group, f"queue_{i}"))[0] for i in range(attrs["queue"])]
    return State(
        lap=attrs["lap"],
        order=tuple(int(wave) for wave in schema.read(group, "order")),
        visit=attrs["visit"],
        ids=schema.read(group, "id"),
        next_id=attrs["next_id"],
        leaves=tuple(_read_leaves(subgroup(group, "memo"))),
        start=one("start"),
        trials=_read_trials(subgroup(group, "trials")) if attrs["has_trials"] else (),
        chances=schema.read(group, "sampling_chance"),
        sample=_read_sample(subgroup(group, "sample")) if "sample" in group else None,
        queue=tuple(queue),
        running=one("running"),
        elbo=attrs["elbo"],
        rests=_read_rests(subgroup(group, "rests")),
        quiet=attrs["quiet"],
    )


def _write_leaves(group: zarr.Group, leaves: Sequence[Leaf]) -> None:
    _write_summaries(group, [leaf.summary for leaf in leaves], "memo_stats", "memo_entropy")
    group.attrs["trials"] = len(leaves[0].trials)
    for i in range(len(leaves[0].trials)):
        part = group.create_group(f"trial_{i}")
        _write_summaries(part, [leaf.trials[i] for leaf in leaves], "trial_stats", "trial_entropy")


def _write_summaries(group: zarr.Group, summaries: Sequence[Summary], stats: str, entropy: str) -> None:
    schema.write(group, stats, np.stack([summary.stats for summary in summaries]), chunk=1)
    schema.write(group, entropy, np.stack([summary.entropy for summary in summaries]))
    schema.write(group, "memo_base", np.array([summary.base for summary in summaries]))


def _read_leaves(group: zarr.Group) -> list[Leaf]:
    count = int(group.attrs["trials"])  # type: ignore[arg-type]
    summaries = _read_summaries(group, "memo_stats", "memo_entropy")
    trials = [_read_summaries(subgroup(group, f"trial_{i}"), "trial_stats", "trial_entropy") for i in range(count)]
    return [Leaf(summary, tuple(trial[w] for trial in trials)) for w, summary in enumerate(summaries)]


def _read_summaries(group: zarr.Group, stats: str, entropy: str) -> list[Summary]:
    parts = schema.read(group, stats), schema.read(group, entropy), schema.read(group, "memo_base")
    return [Summary(s, e, float(b)) for s, e, b in zip(*parts, strict=True)]


def _write_trials(group: zarr.Group, trials: Sequence[Trial]) -> None:
    splits, merges, deletes = trials
    assert isinstance(splits, Splits) and isinstance(merges, Merges) and isinstance(deletes, Deletes)
    group.attrs["children"] = splits.children
    schema.write(group, "split_target", splits.targets)
    schema.write(group, "split_age", splits.ages)
    schema.write(group, "split_gain", splits.gains)
    schema.write(group, "merge_pair", merges.pairs)
    schema.write(group, "delete_target", deletes.targets)
    schema.write(group, "delete_absorbers", deletes.absorbers)


def _read_trials(group: zarr.Group) -> tuple[Trial, ...]:
    def index(name: str) -> np.ndarray:
        return schema.read(group, name).astype(np.intp)

    children = int(group.attrs["children"])  # type: ignore[arg-type]
    splits = Splits(index("split_target"), children, index("split_age"), schema.read(group, "split_gain"))
    return splits, Merges(index("merge_pair")), Deletes(index("delete_target"), index("delete_absorbers"))


def _write_rests(group: zarr.Group, rests: dict[int, Rest]) -> None:
    schema.write(group, "rest_id", np.array(list(rests), dtype=np.int64))
    schema.write(group, "rest_refusals", np.array([rest.refusals for rest in rests.values()], dtype=np.int64))
    schema.write(group, "rest_until", np.array([rest.until for rest in rests.values()], dtype=np.int64))
    schema.write(group, "rest_count", np.array([rest.rows for rest in rests.values()], dtype=np.float64))


def _read_rests(group: zarr.Group) -> dict[int, Rest]:
    columns = [schema.read(group, f"rest_{name}") for name in ("id", "refusals", "until", "count")]
    return {int(i): Rest(int(r), int(u), float(c)) for i, r, u, c in zip(*columns, strict=True)}


def _write_sample(group: zarr.Group, sample: Sample) -> None:
    schema.write(group, "sample_key", sample.keys)
    schema.write(group, "sample_owner", sample.owners)
    schema.write(group, "sample_weight", sample.weights)
    if sparse.issparse(sample.rows):
        group.attrs["columns"] = int(sample.rows.shape[1])
        schema.write(group, "sample_data", sample.rows.data)
        schema.write(group, "sample_indices", sample.rows.indices)
        schema.write(group, "sample_indptr", sample.rows.indptr)
    else:
        schema.write(group, "sample_rows", sample.rows)


def _read_sample(group: zarr.Group) -> Sample:
    keys, owners = schema.read(group, "sample_key"), schema.read(group, "sample_owner")
    weights = schema.read(group, "sample_weight")
    if "sample_rows" in group:
        return Sample(keys, owners, weights, schema.read(group, "sample_rows"))
    parts = [schema.read(group, f"sample_{name}") for name in ("data", "indices", "indptr")]
    shape = (len(keys), int(group.attrs["columns"]))  # type: ignore[arg-type]
    return Sample(keys, owners, weights, sparse.csr_array(tuple(parts), shape=shape))
