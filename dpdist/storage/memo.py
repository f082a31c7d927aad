"""Locations of the stored batch summaries of a state, so that generations share them instead of writing them again.

A checkpoint stores the batch summaries that changed since the previous one, several small ones together in a pack. The
end of a lap changes every batch summary by a small component map, which is stored with the generation: applied to a
stored batch summary, it gives the same bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dpdist.inference.loop import Step
from dpdist.inference.state import State
from dpdist.storage.codec import shape_of
from dpdist.storage.commits import token

#: Largest bytes of a pack of several batch summaries, which are copied together, and freed when written.
PACK_BYTES = 2**25


class ComponentMap(Protocol):
    """The change of all batch summaries at the end of a lap."""

    def batch_summary(self, found: Any, /) -> Any:
        """The changed batch summary."""


@dataclass(frozen=True)
class Kept:
    """The location of a stored batch summary.

    Parameters
    ----------
    pack, index : the stored object, and the position in it
    turned : whether the component map of the last lap must still be applied
    """

    pack: str
    index: int
    turned: bool = False


@dataclass(frozen=True, eq=False)
class Manifest:
    """The stored batch summaries of a state.

    Parameters
    ----------
    batches : of each batch
    start, running : of the initial and the running summary, if any
    queue : of the totals of batches in progress
    component_map : change at the end of the last lap, for the batch summaries stored before it
    files : digests of the files that belong to the batch summaries, by folder
    """

    batches: tuple[Kept, ...]
    start: Kept | None
    running: Kept | None
    queue: tuple[Kept, ...]
    component_map: ComponentMap | None
    files: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def batch_summaries(self) -> list[Kept]:
        """All named batch summaries, in the order of :func:`batch_summaries_of`."""
        return [*self.batches, *(kept for kept in (self.start, self.running) if kept is not None), *self.queue]

    @property
    def packs(self) -> list[str]:
        """All named stored objects."""
        return sorted({kept.pack for kept in self.batch_summaries})


def files_of(state: State) -> dict[str, dict[str, str]]:
    """Digests of the files that belong to a state, by folder."""
    found: dict[str, dict[str, str]] = {}
    others = [each for each in (state.start, state.running) if each is not None]
    for batch_summary in (*state.batch_summaries, *others):
        for folder, digests in batch_summary.files.items():
            found.setdefault(folder, {}).update(digests)
    return found


def batch_summaries_of(state: State) -> list[object]:
    """All batch summaries and totals of a state, those of its batches first."""
    return [
        *state.batch_summaries,
        *(batch_summary for batch_summary in (state.start, state.running) if batch_summary is not None),
        *state.queue,
    ]


class Memo:
    """Follows a run, and records which batch summaries of its state are stored.

    A run may be interrupted at any moment, so the state before the last step is remembered beside the one after it.

    Parameters
    ----------
    state : at the start of the run, or when it is resumed
    manifest : of the checkpoint that the run is resumed from; None for a new run
    """

    def __init__(self, state: State, manifest: Manifest | None = None) -> None:
        self._before = self._now = _Moment(state, {}, None) if manifest is None else _stored(state, manifest)
        self._folders = set[str]()

    def follow(self, step: Step) -> None:
        """Update to the state after a step."""
        kept, component_map = self._now.kept, self._now.component_map
        if step.component_map is not None:
            component_map = step.component_map
            kept = kept | _turned(self._now, step)
        there = {id(batch_summary) for batch_summary in batch_summaries_of(step.state)}
        kept = {key: value for key, value in kept.items() if key in there}
        self._before, self._now = self._now, _Moment(step.state, kept, component_map)
        self._folders |= files_of(step.state).keys()

    def manifest(self, state: State) -> tuple[Manifest, dict[str, list[object]]]:
        """The locations of the batch summaries of `state`, which is the current or the previous one.

        Returns
        -------
        manifest : locations of all batch summaries
        packs : batch summaries that are not stored yet, by the name of their object
        """
        moment = next(moment for moment in (self._now, self._before) if moment.state is state)
        there = {id(batch_summary): batch_summary for batch_summary in batch_summaries_of(state)}
        packs = packed([batch_summary for key, batch_summary in there.items() if key not in moment.kept], state.lap)
        new = {
            id(batch_summary): Kept(name, index)
            for name, pack in packs.items()
            for index, batch_summary in enumerate(pack)
        }
        places = {key: kept for key, (_, kept) in moment.kept.items()} | new
        batches = tuple(places[id(batch_summary)] for batch_summary in state.batch_summaries)
        return Manifest(
            batches=batches,
            start=None if state.start is None else places[id(state.start)],
            running=None if state.running is None else places[id(state.running)],
            queue=tuple(places[id(total)] for total in state.queue),
            component_map=moment.component_map if any(kept.turned for kept in batches) else None,
            files=files_of(state),
        ), packs

    def superseded(self, over: bool = False) -> list[str]:
        """Folders of files that no state needs any more, without those returned before; `over` if this is the last
        state."""
        used = files_of(self._now.state).keys() | (set() if over else files_of(self._before.state).keys())
        found = sorted(self._folders - used)
        self._folders -= set(found)
        return found

    def stored(self, state: State, manifest: Manifest) -> None:
        """Record that the batch summaries of `state` are stored as in `manifest`, or will be before the next
        checkpoint."""
        if state is self._now.state:
            self._now = _stored(state, manifest)


def packed(batch_summaries: Iterable[object], lap: int) -> dict[str, list[object]]:
    """Batch summaries in packs of equal shape, by name; a pack of several has at most ``PACK_BYTES``."""
    packs: dict[str, list[object]] = {}
    filling: dict[Hashable, tuple[str, int]] = {}
    for batch_summary in batch_summaries:
        shape, own = shape_of(batch_summary)
        name, size = filling.get(shape, ("", 0))
        if not name or size + own > PACK_BYTES:
            name, size = f"objects/{lap:06d}-{token()}", 0
            packs[name] = []
        packs[name].append(batch_summary)
        filling[shape] = name, size + own
    return packs


@dataclass(frozen=True, eq=False)
class _Moment:
    """A state, its stored batch summaries by object identity, and the map for those stored before it."""

    state: State
    kept: dict[int, tuple[object, Kept]]
    component_map: ComponentMap | None


def _stored(state: State, manifest: Manifest) -> _Moment:
    pairs = zip(batch_summaries_of(state), manifest.batch_summaries, strict=True)
    return _Moment(
        state, {id(batch_summary): (batch_summary, kept) for batch_summary, kept in pairs}, manifest.component_map
    )


def _turned(before: _Moment, step: Step) -> dict[int, tuple[object, Kept]]:
    """The stored batch summaries after the end of a lap; the one of the batch just visited is new and not among
    them."""
    pairs = zip(before.state.batch_summaries, step.state.batch_summaries, strict=True)
    found = [(new, before.kept.get(id(old))) for batch, (old, new) in enumerate(pairs) if batch != step.batch]
    return {id(new): (new, replace(kept[1], turned=True)) for new, kept in found if kept is not None}
