"""Where each batch summary of a state is stored, so that generations share them instead of writing them again.

A checkpoint stores the batch summaries that changed since the one before, several small ones together in a pack. What a
lap's end makes of every batch summary is a small component map, stored with the generation: applied to a batch summary
that was stored before, it gives the same bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dpdist.inference.loop import Step
from dpdist.inference.state import State
from dpdist.storage.codec import shape_of
from dpdist.storage.commits import token

#: Bytes beyond which no more batch summaries go to a pack: what is copied at once, and freed when it is written.
PACK_BYTES = 2**25


class ComponentMap(Protocol):
    """What a lap's end makes of every batch summary."""

    def batch_summary(self, found: Any, /) -> Any:
        """The same batch summary after it."""


@dataclass(frozen=True)
class Kept:
    """Where a batch summary is stored.

    Parameters
    ----------
    pack, index : the stored object, and the batch summary's place in it
    turned : whether the last lap's end has yet to be applied to it
    """

    pack: str
    index: int
    turned: bool = False


@dataclass(frozen=True, eq=False)
class Manifest:
    """The stored batch summaries a state is made of.

    Parameters
    ----------
    batches : one a batch
    start, running : of those batch summaries, if there are any
    queue : of the totals of batches under way
    component_map : what the last lap's end made of the batch summaries stored before it
    files : digests of the files that go with the batch summaries, by folder
    """

    batches: tuple[Kept, ...]
    start: Kept | None
    running: Kept | None
    queue: tuple[Kept, ...]
    component_map: ComponentMap | None
    files: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def batch_summaries(self) -> list[Kept]:
        """Every batch summary named, in the order of :func:`batch_summaries_of`."""
        return [*self.batches, *(kept for kept in (self.start, self.running) if kept is not None), *self.queue]

    @property
    def packs(self) -> list[str]:
        """Every stored object named."""
        return sorted({kept.pack for kept in self.batch_summaries})


def files_of(state: State) -> dict[str, dict[str, str]]:
    """Digests of the files that go with a state, by folder."""
    found: dict[str, dict[str, str]] = {}
    others = [each for each in (state.start, state.running) if each is not None]
    for batch_summary in (*state.batch_summaries, *others):
        for folder, digests in batch_summary.files.items():
            found.setdefault(folder, {}).update(digests)
    return found


def batch_summaries_of(state: State) -> list[object]:
    """Every batch summary of a state, and every total: those of its batches first."""
    return [
        *state.batch_summaries,
        *(batch_summary for batch_summary in (state.start, state.running) if batch_summary is not None),
        *state.queue,
    ]


class Memo:
    """Follows a run and knows which batch summaries of its state are stored.

    A run may be interrupted at any moment, so the state before the last step is remembered beside the one after it.

    Parameters
    ----------
    state : where the run begins or goes on
    manifest : of the checkpoint it goes on from; None for a new run
    """

    def __init__(self, state: State, manifest: Manifest | None = None) -> None:
        self._before = self._now = _Moment(state, {}, None) if manifest is None else _stored(state, manifest)
        self._folders = set[str]()

    def follow(self, step: Step) -> None:
        """Go on to the state after a step."""
        kept, component_map = self._now.kept, self._now.component_map
        if step.component_map is not None:
            component_map = step.component_map
            kept = kept | _turned(self._now, step)
        there = {id(batch_summary) for batch_summary in batch_summaries_of(step.state)}
        kept = {key: value for key, value in kept.items() if key in there}
        self._before, self._now = self._now, _Moment(step.state, kept, component_map)
        self._folders |= files_of(step.state).keys()

    def manifest(self, state: State) -> tuple[Manifest, dict[str, list[object]]]:
        """Where the batch summaries of `state`, the present one or the one before, are stored or to be stored.

        Returns
        -------
        manifest : of all batch summaries
        packs : batch summaries still to be stored, by the object to be made of them
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
        """Folders of files that go with no state any more, those told before apart; `over` if none follows this one."""
        used = files_of(self._now.state).keys() | (set() if over else files_of(self._before.state).keys())
        found = sorted(self._folders - used)
        self._folders -= set(found)
        return found

    def stored(self, state: State, manifest: Manifest) -> None:
        """Take note that what `state` consists of is stored as a manifest says, or sure to be before the next is."""
        if state is self._now.state:
            self._now = _stored(state, manifest)


def packed(batch_summaries: Iterable[object], lap: int) -> dict[str, list[object]]:
    """Batch summaries in packs of one shape each, by name; of at most ``PACK_BYTES`` where there are several."""
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
    """A state, its stored batch summaries by their identity, and the map of those that are stored unturned."""

    state: State
    kept: dict[int, tuple[object, Kept]]
    component_map: ComponentMap | None


def _stored(state: State, manifest: Manifest) -> _Moment:
    pairs = zip(batch_summaries_of(state), manifest.batch_summaries, strict=True)
    return _Moment(
        state, {id(batch_summary): (batch_summary, kept) for batch_summary, kept in pairs}, manifest.component_map
    )


def _turned(before: _Moment, step: Step) -> dict[int, tuple[object, Kept]]:
    """The batch summaries that a lap's end made of stored ones; that of the batch just visited is of none."""
    pairs = zip(before.state.batch_summaries, step.state.batch_summaries, strict=True)
    found = [(new, before.kept.get(id(old))) for batch, (old, new) in enumerate(pairs) if batch != step.batch]
    return {id(new): (new, replace(kept[1], turned=True)) for new, kept in found if kept is not None}
