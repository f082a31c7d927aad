"""Where each leaf of a state is stored, so that generations share leaves instead of writing them again.

A checkpoint stores the leaves that changed since the one before, several small ones together in a pack. What a lap's
end makes of every leaf is a small turning, stored with the generation: applied to a leaf that was stored before, it
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dpdist.inference.loop import Step
from dpdist.inference.state import State
from dpdist.storage.generations import token

#: Bytes beyond which no more leaves go to a pack: what is copied at once, and freed when it is written.
PACK_BYTES = 2**25


class Storable(Protocol):
    """A leaf of any kind, or a total."""

    @property
    def layout(self) -> Hashable:
        """The same for leaves that can be stored in one pack."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


@dataclass(frozen=True)
class Kept:
    """Where a leaf is stored.

    Parameters
    ----------
    pack, index : the stored object, and the leaf's place in it
    turned : whether the last lap's end has yet to be applied to it
    """

    pack: str
    index: int
    turned: bool = False


@dataclass(frozen=True, eq=False)
class Manifest:
    """The stored leaves a state is made of.

    Parameters
    ----------
    waves : one a wave
    start, running : of those leaves, if there are any
    queue : of the totals of waves under way
    turning : what the last lap's end made of the leaves stored before it
    """

    waves: tuple[Kept, ...]
    start: Kept | None
    running: Kept | None
    queue: tuple[Kept, ...]
    turning: Any

    @property
    def leaves(self) -> list[Kept]:
        """Every leaf named, in the order of :func:`leaves_of`."""
        return [*self.waves, *(kept for kept in (self.start, self.running) if kept is not None), *self.queue]

    @property
    def packs(self) -> list[str]:
        """Every stored object named."""
        return sorted({kept.pack for kept in self.leaves})


def leaves_of(state: State) -> list[Any]:
    """Every leaf of a state, and every total: those of its waves first."""
    return [*state.leaves, *(leaf for leaf in (state.start, state.running) if leaf is not None), *state.queue]


class Memo:
    """Follows a run and knows which leaves of its state are stored.

    A run may be interrupted at any moment, so the state before the last step is remembered beside the one after it.

    Parameters
    ----------
    state : where the run begins or goes on
    manifest : of the checkpoint it goes on from; None for a new run
    """

    def __init__(self, state: State, manifest: Manifest | None = None) -> None:
        self._before = self._now = _Moment(state, {}, None) if manifest is None else _stored(state, manifest)

    def follow(self, step: Step) -> None:
        """Go on to the state after a step."""
        kept, turning = self._now.kept, self._now.turning
        if step.turning is not None:
            turning = step.turning
            kept = kept | _turned(self._now, step)
        there = {id(leaf) for leaf in leaves_of(step.state)}
        kept = {key: value for key, value in kept.items() if key in there}
        self._before, self._now = self._now, _Moment(step.state, kept, turning)

    def manifest(self, state: State) -> tuple[Manifest, dict[str, list[Any]]]:
        """Where the leaves of `state`, the present one or the one before, are stored or to be stored.

        Returns
        -------
        manifest : of all leaves
        packs : leaves still to be stored, by the object to be made of them
        """
        moment = next(moment for moment in (self._now, self._before) if moment.state is state)
        there = {id(leaf): leaf for leaf in leaves_of(state)}
        packs = packed([leaf for key, leaf in there.items() if key not in moment.kept], state.lap)
        new = {id(leaf): Kept(name, index) for name, pack in packs.items() for index, leaf in enumerate(pack)}
        places = {key: kept for key, (_, kept) in moment.kept.items()} | new
        waves = tuple(places[id(leaf)] for leaf in state.leaves)
        return Manifest(
            waves=waves,
            start=None if state.start is None else places[id(state.start)],
            running=None if state.running is None else places[id(state.running)],
            queue=tuple(places[id(total)] for total in state.queue),
            turning=moment.turning if any(kept.turned for kept in waves) else None,
        ), packs

    def stored(self, state: State, manifest: Manifest) -> None:
        """Take note that the leaves of `state` are stored as a manifest says, or sure to be before the next are."""
        if state is self._now.state:
            self._now = _stored(state, manifest)


def packed(leaves: Iterable[Storable], lap: int) -> dict[str, list[Any]]:
    """Leaves in packs of one layout each: name -> leaves, together of at most ``PACK_BYTES`` if there are several."""
    packs: dict[str, list[Any]] = {}
    filling: dict[Hashable, tuple[str, int]] = {}
    for leaf in leaves:
        name, size = filling.get(leaf.layout, ("", 0))
        if not name or size + leaf.nbytes > PACK_BYTES:
            name, size = f"objects/{lap:06d}-{token()}", 0
            packs[name] = []
        packs[name].append(leaf)
        filling[leaf.layout] = name, size + leaf.nbytes
    return packs


@dataclass(frozen=True, eq=False)
class _Moment:
    """A state, its stored leaves by their identity, and the turning of those that are stored unturned."""

    state: State
    kept: dict[int, tuple[Any, Kept]]
    turning: Any


def _stored(state: State, manifest: Manifest) -> _Moment:
    pairs = zip(leaves_of(state), manifest.leaves, strict=True)
    return _Moment(state, {id(leaf): (leaf, kept) for leaf, kept in pairs}, manifest.turning)


def _turned(before: _Moment, step: Step) -> dict[int, tuple[Any, Kept]]:
    """The leaves that a lap's end made of stored ones; that of the wave just visited is of none."""
    pairs = zip(before.state.leaves, step.state.leaves, strict=True)
    found = [(new, before.kept.get(id(old))) for wave, (old, new) in enumerate(pairs) if wave != step.wave]
    return {id(new): (new, replace(kept[1], turned=True)) for new, kept in found if kept is not None}
