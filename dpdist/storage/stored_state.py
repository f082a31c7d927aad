"""A state as a Zarr group and back, to the bit; its batch summaries are objects of their own, named by a manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import zarr
from scipy import sparse

from dpdist.inference.mixture.lap_moves import ComponentMap
from dpdist.inference.mixture.local_step import BatchSummary, Sample
from dpdist.inference.moves.base import Proposals
from dpdist.inference.moves.change import Change
from dpdist.inference.moves.cooldown import Cooldown
from dpdist.inference.state import State
from dpdist.models.sufficient_statistics import Summary
from dpdist.storage import schema
from dpdist.storage.memo import Kept, Manifest
from dpdist.storage.stored_parts import read_parts, write_parts


class StateKind(NamedTuple):
    """How what differs between kinds of models is stored: summaries, what a lap tries, and its end's map.

    Each writer takes an empty group and the value, each reader the group; a component map is read with the
    proposals after it.
    """

    write_batch_summaries: Callable[[zarr.Group, Sequence[Any]], None]
    read_batch_summaries: Callable[[zarr.Group], list[Any]]
    write_proposals: Callable[[zarr.Group, Any], None]
    read_proposals: Callable[[zarr.Group], tuple[Any, ...]]
    write_turning: Callable[[zarr.Group, Any], None]
    read_turning: Callable[[zarr.Group, tuple[Any, ...]], Any]


def write_state(group: zarr.Group, state: State, manifest: Manifest, kind: StateKind) -> None:
    """Store `state` in an empty group; its batch summaries are the objects of `manifest`."""
    group.attrs.update(
        {
            "lap": state.lap,
            "visit": state.visit,
            "next_id": state.next_id,
            "elbo": state.elbo,
            "quiet": state.quiet,
            "has_proposals": bool(state.proposals),
            "batches": [astuple(kept) for kept in manifest.batches],
            "start": None if manifest.start is None else astuple(manifest.start),
            "running": None if manifest.running is None else astuple(manifest.running),
            "queue": [astuple(kept) for kept in manifest.queue],
        }
    )
    schema.write(group, "id", state.ids)
    schema.write(group, "sampling_chance", state.sampling_probabilities)
    schema.write(group, "order", np.array(state.order, dtype=np.int64))
    _write_rests(group.create_group("rests"), state.cooldowns)
    if state.proposals:
        kind.write_proposals(group.create_group("proposals"), state.proposals)
    if state.sample is not None:
        _write_sample(group.create_group("sample"), state.sample)
    if manifest.component_map is not None:
        kind.write_turning(group.create_group("component map"), manifest.component_map)


def read_state(group: zarr.Group, read: Callable[[str], list[Any]], kind: StateKind) -> tuple[State, Manifest]:
    """The state stored in `group` and its manifest; `read` reads the batch summaries of an object."""
    attrs: dict[str, Any] = dict(group.attrs)
    proposals = kind.read_proposals(schema.subgroup(group, "proposals")) if attrs["has_proposals"] else ()
    manifest = Manifest(
        batches=tuple(Kept(*kept) for kept in attrs["batches"]),
        start=None if attrs["start"] is None else Kept(*attrs["start"]),
        running=None if attrs["running"] is None else Kept(*attrs["running"]),
        queue=tuple(Kept(*kept) for kept in attrs["queue"]),
        component_map=kind.read_turning(schema.subgroup(group, "component map"), proposals)
        if "component map" in group
        else None,
    )
    packs = {name: read(name) for name in manifest.packs}

    def batch_summary(kept: Kept) -> Any:
        stored = packs[kept.pack][kept.index]
        return manifest.component_map.batch_summary(stored) if kept.turned else stored

    state = State(
        lap=attrs["lap"],
        order=tuple(int(batch) for batch in schema.read(group, "order")),
        visit=attrs["visit"],
        ids=schema.read(group, "id"),
        next_id=attrs["next_id"],
        batch_summaries=tuple(batch_summary(kept) for kept in manifest.batches),
        start=None if manifest.start is None else batch_summary(manifest.start),
        proposals=proposals,
        sampling_probabilities=schema.read(group, "sampling_chance"),
        sample=_read_sample(schema.subgroup(group, "sample")) if "sample" in group else None,
        queue=tuple(batch_summary(kept) for kept in manifest.queue),
        running=None if manifest.running is None else batch_summary(manifest.running),
        elbo=attrs["elbo"],
        cooldowns=_read_rests(schema.subgroup(group, "rests")),
        quiet=attrs["quiet"],
    )
    return state, manifest


def write_batch_summaries(group: zarr.Group, batch_summaries: Sequence[BatchSummary]) -> None:
    """Store batch summaries of one layout in an empty group: components, then what proposals measured."""
    summaries, parts = (
        [batch_summary.summary for batch_summary in batch_summaries],
        [batch_summary.measured for batch_summary in batch_summaries],
    )
    group.attrs.update(
        {
            "bases": [summary.base for summary in summaries],
            "measured_rows": [len(part.stats) for part in parts[0]],
            "measured_entries": [len(part.entropy) for part in parts[0]],
            "measured_bases": [[part.base for part in each] for each in parts],
        }
    )
    schema.write(group, "batch_stats", np.stack([summary.stats for summary in summaries]))
    schema.write(group, "batch_entropy", np.stack([summary.entropy for summary in summaries]))
    if parts[0]:
        schema.write(
            group, "measured_stats", np.stack([np.concatenate([part.stats for part in each]) for each in parts])
        )
        entropies = [np.concatenate([part.entropy for part in each]) for each in parts]
        schema.write(group, "measured_entropy", np.stack(entropies))


def read_batch_summaries(group: zarr.Group) -> list[BatchSummary]:
    """The batch summaries stored in `group`."""
    attrs: dict[str, Any] = dict(group.attrs)
    stats, entropies = schema.read(group, "batch_stats"), schema.read(group, "batch_entropy")
    parts = zip(stats, entropies, attrs["bases"], _read_measurements(group, attrs), strict=True)
    return [
        BatchSummary(Summary(stat.copy(), entropy.copy(), base), measured) for stat, entropy, base, measured in parts
    ]


def _read_measurements(group: zarr.Group, attrs: dict[str, Any]) -> list[tuple[Summary, ...]]:
    """What proposals measured, batch by batch."""
    if not attrs["measured_rows"]:
        return [()] * len(attrs["bases"])
    stats = np.split(schema.read(group, "measured_stats"), np.cumsum(attrs["measured_rows"])[:-1], axis=1)
    entropies = np.split(schema.read(group, "measured_entropy"), np.cumsum(attrs["measured_entries"])[:-1], axis=1)
    pairs = list(zip(stats, entropies, strict=True))
    return [
        tuple(
            Summary(stat[i].copy(), entropy[i].copy(), base) for (stat, entropy), base in zip(pairs, bases, strict=True)
        )
        for i, bases in enumerate(attrs["measured_bases"])
    ]


def _write_turning(group: zarr.Group, component_map: ComponentMap) -> None:
    change = component_map.change
    schema.write(group, "change_kept", change.kept)
    schema.write(group, "change_accepted", np.array(change.accepted, dtype=np.int64).reshape(-1, 2))
    schema.write(group, "change_order", change.order)
    group.attrs["carried_rows"] = [len(rows) for rows in component_map.carried]
    schema.write(group, "carried", np.concatenate(component_map.carried))
    _write_proposals(group.create_group("before"), component_map.before)


def _read_turning(group: zarr.Group, after: tuple[Proposals, ...]) -> ComponentMap:
    accepted = tuple((int(move), int(proposal)) for move, proposal in schema.read(group, "change_accepted"))
    ends: Any = np.cumsum(group.attrs["carried_rows"])
    return ComponentMap(
        change=Change(_index(group, "change_kept"), accepted, _index(group, "change_order")),
        before=_read_proposals(schema.subgroup(group, "before")),
        after=after,
        carried=tuple(np.split(_index(group, "carried"), ends[:-1])),
    )


def _index(group: zarr.Group, name: str) -> np.ndarray:
    return schema.read(group, name).astype(np.intp)


def _write_proposals(group: zarr.Group, proposals: Sequence[Proposals]) -> None:
    write_parts(group, "moves", proposals)


def _read_proposals(group: zarr.Group) -> tuple[Proposals, ...]:
    return tuple(read_parts(group, "moves", Proposals))


def _write_rests(group: zarr.Group, cooldowns: dict[int, Cooldown]) -> None:
    schema.write(group, "rest_id", np.array(list(cooldowns), dtype=np.int64))
    schema.write(group, "rest_refusals", np.array([rest.refusals for rest in cooldowns.values()], dtype=np.int64))
    schema.write(group, "rest_until", np.array([rest.until for rest in cooldowns.values()], dtype=np.int64))
    schema.write(group, "rest_count", np.array([rest.size for rest in cooldowns.values()], dtype=np.float64))


def _read_rests(group: zarr.Group) -> dict[int, Cooldown]:
    columns = [schema.read(group, f"rest_{name}") for name in ("id", "refusals", "until", "count")]
    return {int(i): Cooldown(int(r), int(u), float(c)) for i, r, u, c in zip(*columns, strict=True)}


def _write_sample(group: zarr.Group, sample: Sample) -> None:
    schema.write(group, "sample_key", sample.keys)
    schema.write(group, "sample_owner", sample.owners)
    schema.write(group, "sample_weight", sample.weights)
    group.attrs["most"] = sample.most
    if sample.seen is not None:
        write_batch_summaries(group.create_group("seen"), [sample.seen])
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
    most: Any = group.attrs["most"]
    seen = read_batch_summaries(schema.subgroup(group, "seen"))[0] if "seen" in group else None
    if "sample_rows" in group:
        return Sample(keys, owners, weights, schema.read(group, "sample_rows"), most, seen)
    parts = [schema.read(group, f"sample_{name}") for name in ("data", "indices", "indptr")]
    shape = (len(keys), int(group.attrs["columns"]))  # type: ignore[arg-type]
    return Sample(keys, owners, weights, sparse.csr_array(tuple(parts), shape=shape), most, seen)


#: How the states of mixtures are stored.
MIXTURE = StateKind(
    write_batch_summaries, read_batch_summaries, _write_proposals, _read_proposals, _write_turning, _read_turning
)
