"""A state as a Zarr group and back, to the bit; its leaves are objects of their own, named by a manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import zarr
from scipy import sparse

from dpdist.inference.mixture.lap_moves import Turning
from dpdist.inference.mixture.local_step import Leaf, Sample
from dpdist.inference.moves.base import Change, Trial
from dpdist.inference.moves.delete import Deletes
from dpdist.inference.moves.merge import Merges
from dpdist.inference.moves.split import Splits
from dpdist.inference.state import Rest, State
from dpdist.models.sufficient_statistics import Summary
from dpdist.storage import schema
from dpdist.storage.memo import Kept, Manifest


class StateKind(NamedTuple):
    """How what differs between kinds of models is stored: leaves, what is tried in a lap, and its end's turning.

    Each writer takes an empty group and the value, each reader the group; a turning is read with the trials after it.
    """

    write_leaves: Callable[[zarr.Group, Sequence[Any]], None]
    read_leaves: Callable[[zarr.Group], list[Any]]
    write_trials: Callable[[zarr.Group, Any], None]
    read_trials: Callable[[zarr.Group], tuple[Any, ...]]
    write_turning: Callable[[zarr.Group, Any], None]
    read_turning: Callable[[zarr.Group, tuple[Any, ...]], Any]


def write_state(group: zarr.Group, state: State, manifest: Manifest, kind: StateKind) -> None:
    """Store `state` in an empty group; its leaves are the objects of `manifest`."""
    group.attrs.update(
        {
            "lap": state.lap,
            "visit": state.visit,
            "next_id": state.next_id,
            "elbo": state.elbo,
            "quiet": state.quiet,
            "has_trials": bool(state.trials),
            "waves": [astuple(kept) for kept in manifest.waves],
            "start": None if manifest.start is None else astuple(manifest.start),
            "running": None if manifest.running is None else astuple(manifest.running),
            "queue": [astuple(kept) for kept in manifest.queue],
        }
    )
    schema.write(group, "id", state.ids)
    schema.write(group, "sampling_chance", state.chances)
    schema.write(group, "order", np.array(state.order, dtype=np.int64))
    _write_rests(group.create_group("rests"), state.rests)
    if state.trials:
        kind.write_trials(group.create_group("trials"), state.trials)
    if state.sample is not None:
        _write_sample(group.create_group("sample"), state.sample)
    if manifest.turning is not None:
        kind.write_turning(group.create_group("turning"), manifest.turning)


def read_state(group: zarr.Group, read: Callable[[str], list[Any]], kind: StateKind) -> tuple[State, Manifest]:
    """The state stored in `group` and its manifest; `read` reads the leaves of an object."""
    attrs: dict[str, Any] = dict(group.attrs)
    trials = kind.read_trials(schema.subgroup(group, "trials")) if attrs["has_trials"] else ()
    manifest = Manifest(
        waves=tuple(Kept(*kept) for kept in attrs["waves"]),
        start=None if attrs["start"] is None else Kept(*attrs["start"]),
        running=None if attrs["running"] is None else Kept(*attrs["running"]),
        queue=tuple(Kept(*kept) for kept in attrs["queue"]),
        turning=kind.read_turning(schema.subgroup(group, "turning"), trials) if "turning" in group else None,
    )
    packs = {name: read(name) for name in manifest.packs}

    def leaf(kept: Kept) -> Any:
        stored = packs[kept.pack][kept.index]
        return manifest.turning.leaf(stored) if kept.turned else stored

    state = State(
        lap=attrs["lap"],
        order=tuple(int(wave) for wave in schema.read(group, "order")),
        visit=attrs["visit"],
        ids=schema.read(group, "id"),
        next_id=attrs["next_id"],
        leaves=tuple(leaf(kept) for kept in manifest.waves),
        start=None if manifest.start is None else leaf(manifest.start),
        trials=trials,
        chances=schema.read(group, "sampling_chance"),
        sample=_read_sample(schema.subgroup(group, "sample")) if "sample" in group else None,
        queue=tuple(leaf(kept) for kept in manifest.queue),
        running=None if manifest.running is None else leaf(manifest.running),
        elbo=attrs["elbo"],
        rests=_read_rests(schema.subgroup(group, "rests")),
        quiet=attrs["quiet"],
    )
    return state, manifest


def write_leaves(group: zarr.Group, leaves: Sequence[Leaf]) -> None:
    """Store leaves of one layout in an empty group: components, and the trials' measurements one below the other."""
    summaries, parts = [leaf.summary for leaf in leaves], [leaf.trials for leaf in leaves]
    group.attrs.update(
        {
            "bases": [summary.base for summary in summaries],
            "trial_rows": [len(part.stats) for part in parts[0]],
            "trial_entries": [len(part.entropy) for part in parts[0]],
            "trial_bases": [[part.base for part in each] for each in parts],
        }
    )
    schema.write(group, "leaf_stats", np.stack([summary.stats for summary in summaries]))
    schema.write(group, "leaf_entropy", np.stack([summary.entropy for summary in summaries]))
    if parts[0]:
        schema.write(group, "trial_stats", np.stack([np.concatenate([part.stats for part in each]) for each in parts]))
        entropies = [np.concatenate([part.entropy for part in each]) for each in parts]
        schema.write(group, "trial_entropy", np.stack(entropies))


def read_leaves(group: zarr.Group) -> list[Leaf]:
    """The leaves stored in `group`."""
    attrs: dict[str, Any] = dict(group.attrs)
    stats, entropies = schema.read(group, "leaf_stats"), schema.read(group, "leaf_entropy")
    parts = zip(stats, entropies, attrs["bases"], _read_measurements(group, attrs), strict=True)
    return [Leaf(Summary(stat.copy(), entropy.copy(), base), trials) for stat, entropy, base, trials in parts]


def _read_measurements(group: zarr.Group, attrs: dict[str, Any]) -> list[tuple[Summary, ...]]:
    """What the trials measured, leaf by leaf."""
    if not attrs["trial_rows"]:
        return [()] * len(attrs["bases"])
    stats = np.split(schema.read(group, "trial_stats"), np.cumsum(attrs["trial_rows"])[:-1], axis=1)
    entropies = np.split(schema.read(group, "trial_entropy"), np.cumsum(attrs["trial_entries"])[:-1], axis=1)
    pairs = list(zip(stats, entropies, strict=True))
    return [
        tuple(
            Summary(stat[i].copy(), entropy[i].copy(), base) for (stat, entropy), base in zip(pairs, bases, strict=True)
        )
        for i, bases in enumerate(attrs["trial_bases"])
    ]


def _write_turning(group: zarr.Group, turning: Turning) -> None:
    group.attrs["fresh"] = turning.fresh
    schema.write(group, "change_kept", turning.change.kept)
    schema.write(group, "change_accepted", np.array(turning.change.accepted, dtype=np.int64).reshape(-1, 2))
    schema.write(group, "change_order", turning.change.order)
    schema.write(group, "leaf_rows", turning.leaf_rows)
    _write_trials(group.create_group("before"), turning.before)


def _read_turning(group: zarr.Group, after: tuple[Trial, ...]) -> Turning:
    accepted = tuple((int(t), int(j)) for t, j in schema.read(group, "change_accepted"))
    return Turning(
        change=Change(_index(group, "change_kept"), accepted, _index(group, "change_order")),
        before=_read_trials(schema.subgroup(group, "before")),
        after=after,
        leaf_rows=_index(group, "leaf_rows"),
        fresh=int(group.attrs["fresh"]),  # type: ignore[arg-type]
    )


def _index(group: zarr.Group, name: str) -> np.ndarray:
    return schema.read(group, name).astype(np.intp)


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
    children = int(group.attrs["children"])  # type: ignore[arg-type]
    targets, ages = _index(group, "split_target"), _index(group, "split_age")
    splits = Splits(targets, children, ages, schema.read(group, "split_gain"))
    deletes = Deletes(_index(group, "delete_target"), _index(group, "delete_absorbers"))
    return splits, Merges(_index(group, "merge_pair")), deletes


def _write_rests(group: zarr.Group, rests: dict[int, Rest]) -> None:
    schema.write(group, "rest_id", np.array(list(rests), dtype=np.int64))
    schema.write(group, "rest_refusals", np.array([rest.refusals for rest in rests.values()], dtype=np.int64))
    schema.write(group, "rest_until", np.array([rest.until for rest in rests.values()], dtype=np.int64))
    schema.write(group, "rest_count", np.array([rest.size for rest in rests.values()], dtype=np.float64))


def _read_rests(group: zarr.Group) -> dict[int, Rest]:
    columns = [schema.read(group, f"rest_{name}") for name in ("id", "refusals", "until", "count")]
    return {int(i): Rest(int(r), int(u), float(c)) for i, r, u, c in zip(*columns, strict=True)}


def _write_sample(group: zarr.Group, sample: Sample) -> None:
    schema.write(group, "sample_key", sample.keys)
    schema.write(group, "sample_owner", sample.owners)
    schema.write(group, "sample_weight", sample.weights)
    group.attrs["most"] = sample.most
    if sample.seen is not None:
        write_leaves(group.create_group("seen"), [sample.seen])
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
    seen = read_leaves(schema.subgroup(group, "seen"))[0] if "seen" in group else None
    if "sample_rows" in group:
        return Sample(keys, owners, weights, schema.read(group, "sample_rows"), most, seen)
    parts = [schema.read(group, f"sample_{name}") for name in ("data", "indices", "indptr")]
    shape = (len(keys), int(group.attrs["columns"]))  # type: ignore[arg-type]
    return Sample(keys, owners, weights, sparse.csr_array(tuple(parts), shape=shape), most, seen)


#: How the states of mixtures are stored.
MIXTURE = StateKind(write_leaves, read_leaves, _write_trials, _read_trials, _write_turning, _read_turning)
