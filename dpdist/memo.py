"""Which stored object holds each wave's leaf, so that generations share them instead of writing them again.

A leaf is stored once, as its wave's visit gave it. What the lap's end makes of every leaf is a small
turning, stored with the generation; applied to the stored leaf it gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpdist.loop import Step
from dpdist.state import State
from dpdist.storage import token


@dataclass(frozen=True)
class Kept:
    """The stored object of a wave's leaf, and whether the last lap's end has yet to be applied to it."""

    name: str
    turned: bool


@dataclass(frozen=True, eq=False)
class Manifest:
    """The stored objects a state is made of.

    Parameters
    ----------
    waves : one a wave
    start, running : of those leaves, if there are any
    queue : of the totals of waves under way
    turning : what the last lap's end made of the leaves stored before it
    """

    waves: tuple[Kept, ...]
    start: str | None
    running: str | None
    queue: tuple[str, ...]
    turning: Any

    @property
    def objects(self) -> list[str]:
        """Every object named."""
        single = [name for name in (self.start, self.running) if name is not None]
        return sorted({*(kept.name for kept in self.waves), *single, *self.queue})


class Memo:
    """Follows a run and stores every leaf once.

    A run may be interrupted at any moment, so the objects of the state before the last step are remembered beside
    those of the state after it.

    Parameters
    ----------
    put : stores a leaf under a name
    state : where the run begins or goes on
    manifest : of the checkpoint it goes on from; None for a new run
    """

    def __init__(self, put: Callable[[str, Any], None], state: State, manifest: Manifest | None = None) -> None:
        self._put, self._stored = put, dict[int, tuple[Any, str]]()
        if manifest is None:
            waves, turning = tuple(Kept(self._store(leaf), False) for leaf in state.leaves), None
        else:
            waves, turning = manifest.waves, manifest.turning
            named = [(state.start, manifest.start), (state.running, manifest.running)]
            named += list(zip(state.queue, manifest.queue, strict=True))
            self._stored = {id(leaf): (leaf, name) for leaf, name in named if leaf is not None and name is not None}
        self._before = self._now = _Moment(state, waves, turning)

    def follow(self, step: Step) -> None:
        """Store the leaf of the wave just visited, if its run keeps leaves."""
        waves, turning = list(self._now.waves), self._now.turning
        if step.leaf is not None:
            waves[step.wave] = Kept(self._store(step.leaf, step.state.lap, step.wave), False)
        if step.turning is not None:
            turning, waves = step.turning, [Kept(kept.name, True) for kept in waves]
        self._before, self._now = self._now, _Moment(step.state, tuple(waves), turning)

    def manifest(self, state: State) -> Manifest:
        """The objects that `state`, the present one or the one before, is made of; what has no object yet gets one."""
        moment = next(moment for moment in (self._now, self._before) if moment.state is state)
        single = {id(leaf): leaf for leaf in (state.start, state.running, *state.queue) if leaf is not None}
        self._stored = {key: value for key, value in self._stored.items() if key in single}
        return Manifest(
            waves=moment.waves,
            start=None if state.start is None else self._store(state.start),
            running=None if state.running is None else self._store(state.running),
            queue=tuple(self._store(total) for total in state.queue),
            turning=moment.turning if any(kept.turned for kept in moment.waves) else None,
        )

    def _store(self, leaf: Any, lap: int = 0, wave: int = 0) -> str:
        """The object of a leaf, the same for the same leaf."""
        known = self._stored.get(id(leaf))
        if known is not None:
            return known[1]
        name = f"objects/{lap:06d}-{wave:05d}-{token()}"
        self._put(name, leaf)
        self._stored[id(leaf)] = (leaf, name)
        return name


@dataclass(frozen=True, eq=False)
class _Moment:
    state: State
    waves: tuple[Kept, ...]
    turning: Any
