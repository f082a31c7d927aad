"""The history of a run, by lap and by proposal, as an xarray.Dataset.

A row is a NamedTuple of numbers; its fields declare dimensions, units and meaning.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
import zarr

from dpdist.core.phases import Phase, Spent
from dpdist.core.stored import Stored, declared
from dpdist.inference.moves.accept import Reason
from dpdist.inference.state import Info, Record
from dpdist.storage.arrays import Entry, arrays_of, put_all

if TYPE_CHECKING:
    import xarray as xr


class LapRow(NamedTuple):
    """A lap, or a round of a sequential pass."""

    lap: Annotated[int, Stored(("lap",), "number of a lap, or of a round of partitions")]
    rows: Annotated[float, Stored(("lap",), "sum of row weights; in a sequential pass, of the rows so far")]
    units: Annotated[float, Stored(("lap",), "number of rows or tokens that the ELBO covers")]
    elbo: Annotated[float, Stored(("lap",), "ELBO of the whole data after the lap's moves; NaN if undefined", "nat")]
    elbo_before_moves: Annotated[float, Stored(("lap",), "ELBO of the whole data before the lap's moves", "nat")]
    n_components: Annotated[int, Stored(("lap",), "number of components after the lap")]
    seconds: Annotated[float, Stored(("lap",), "wall time of the lap, without evaluation", "s")]
    holdout_score: Annotated[
        float, Stored(("lap",), "mean log predictive density of held-out rows; NaN where they were not scored", "nat")
    ]

    @classmethod
    def of(cls, info: Info) -> LapRow:
        """The row of a finished lap."""
        bounds = info.elbo, info.elbo_before_moves
        return cls(info.lap, float(info.rows), float(info.units), *bounds, info.n_components, info.seconds, info.score)

    @property
    def per_unit(self) -> float:
        """The ELBO per row or token; NaN if the method has none."""
        return self.elbo / self.units


class LapTimes(NamedTuple):
    """The seconds of a lap by phase, on workers and at the coordinator, and the number of threads of workers."""

    load: Annotated[float, Stored(("lap",), "seconds of reading partitions", "s", "load_seconds")]
    local_step: Annotated[float, Stored(("lap",), "seconds of local steps, without loading", "s", "local_step_seconds")]
    sums: Annotated[float, Stored(("lap",), "seconds of adding summaries", "s", "sum_seconds")]
    global_step: Annotated[float, Stored(("lap",), "seconds of computing posteriors", "s", "global_step_seconds")]
    moves: Annotated[float, Stored(("lap",), "seconds of proposing and judging moves", "s", "move_seconds")]
    score: Annotated[float, Stored(("lap",), "seconds of scoring held-out rows", "s", "score_seconds")]
    checkpoint: Annotated[
        float, Stored(("lap",), "seconds of writing checkpoints during the lap", "s", "checkpoint_seconds")
    ]
    waiting: Annotated[
        float,
        Stored(("lap",), "seconds of waiting for workers or sending to them", "s", "waiting_seconds"),
    ]
    workers: Annotated[
        float, Stored(("lap",), "busy seconds of worker threads, also counted above", "s", "worker_seconds")
    ]
    threads: Annotated[
        int, Stored(("lap",), "number of worker threads; 0 if one process did all work", name="worker_threads")
    ]

    @classmethod
    def of(cls, spent: Spent, checkpoint: float, threads: int) -> LapTimes:
        """The times of a lap, from the seconds spent by phase, the seconds of checkpoints, and the number of
        threads."""
        told = {name: float(spent.get(Phase(name), 0.0)) for name in cls._fields if name in set(Phase)}
        return cls(**told, checkpoint=checkpoint, threads=threads)


#: The times of a lap that was not timed.
UNTIMED = LapTimes.of({}, 0.0, 0)


class ProposalRow(NamedTuple):
    """A judged proposal."""

    lap: Annotated[int, Stored(("proposal",), "lap in which the proposal was judged", name="proposal_lap")]
    kind: Annotated[str, Stored(("proposal",), "kind of the proposal", name="proposal_kind")]
    reason: Annotated[Reason, Stored(("proposal",), "outcome of the proposal", name="proposal_reason")]
    gain: Annotated[
        float, Stored(("proposal",), "exact gain of the proposal; NaN if not computed", "nat", "proposal_gain")
    ]
    component: Annotated[
        int, Stored(("proposal",), "id of the first component to be replaced", name="proposal_component")
    ]
    members: Annotated[
        tuple[int, ...],
        Stored(
            ("member",),
            "ids of all components that proposals would replace, concatenated in the order of proposals",
            name="proposal_members",
        ),
    ]

    @classmethod
    def of(cls, lap: int, record: Record) -> ProposalRow:
        """The row of a proposal judged in a lap."""
        return cls(lap, record.kind, record.reason, record.gain, record.components[0], record.components)


Row = TypeVar("Row", LapRow, LapTimes, ProposalRow)


class History:
    """The laps and proposals of a run, which grows by one lap at a time.

    Parameters
    ----------
    laps, proposals, times : initial rows; as many times as laps
    """

    def __init__(
        self,
        laps: Iterable[LapRow] = (),
        proposals: Iterable[ProposalRow] = (),
        times: Iterable[LapTimes] = (),
    ) -> None:
        self.laps, self.proposals, self.times = list(laps), list(proposals), list(times)

    def __copy__(self) -> History:
        return History(self.laps, self.proposals, self.times)

    def add(self, info: Info, times: LapTimes = UNTIMED) -> None:
        """Append a finished lap, the proposals that it judged, and its times."""
        self.laps.append(LapRow.of(info))
        self.times.append(times)
        self.proposals += [ProposalRow.of(info.lap, record) for record in info.records]

    def before(self, lap: int) -> History:
        """A copy with only the laps before `lap`."""
        laps = [row for row in self.laps if row.lap < lap]
        return History(laps, [row for row in self.proposals if row.lap < lap], self.times[: len(laps)])

    @property
    def seconds(self) -> float:
        """Total seconds of the laps."""
        return float(sum(row.seconds for row in self.laps))

    def accepted(self, lap: int) -> dict[str, int]:
        """Number of accepted moves in a lap, by kind."""
        judged = (row for row in self.proposals if row.lap == lap)
        return dict(Counter(row.kind for row in judged if row.reason.taken))

    def gained(self) -> dict[int, float]:
        """Sum of the ELBO gains, in nats, of the moves accepted in each lap."""
        found = {row.lap: 0.0 for row in self.laps}
        for row in self.proposals:
            found[row.lap] += row.gain if row.reason is Reason.ACCEPTED else 0.0
        return found

    @property
    def kinds(self) -> list[str]:
        """All kinds of proposals that occurred, in alphabetical order."""
        return sorted({row.kind for row in self.proposals})

    def columns(self) -> dict[str, np.ndarray]:
        """Arrays of all variables of laps and proposals, but not of times, by name; words are given as codes."""
        found = _columns(LapRow, self.laps) + _columns(ProposalRow, self.proposals)
        return {column.name: column.values for column in found}

    def dataset(self) -> xr.Dataset:
        """The history with dimensions ``lap`` and ``proposal``; kinds and reasons are words."""
        import xarray as xr

        found: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]] = {}
        for name, values, told, words in self._columns():
            shown = values if words is None else np.array(words, dtype=str)[values]
            found[name] = (told.dims, shown, {"units": told.units, "long_name": told.doc})
        return xr.Dataset(found)

    def write(self, group: zarr.Group) -> None:
        """Store in an empty group; words are stored as codes with flag_values / flag_meanings of the CF conventions."""
        entries = (Entry(name, values, told, _codes_of(words)) for name, values, told, words in self._columns())
        put_all(group, list(entries))

    @classmethod
    def read(cls, group: zarr.Group) -> History:
        """The history stored in `group`."""
        stored = arrays_of(group)
        return cls(_rows(group, stored, LapRow), _rows(group, stored, ProposalRow), _rows(group, stored, LapTimes))

    def _columns(self) -> list[_Column]:
        kinds = (LapRow, self.laps), (LapTimes, self.times), (ProposalRow, self.proposals)
        return [column for kind, rows in kinds for column in _columns(kind, rows)]


def _codes_of(words: list[str] | None) -> dict[str, object]:
    """Attributes that give the words of codes."""
    if words is None:
        return {}
    meanings = " ".join(word.replace(" ", "_") for word in words)
    return {"flag_values": list(range(len(words))), "flag_meanings": meanings, "words": words}


def _names(kind: type) -> dict[str, str]:
    """The stored name of each field."""
    return {field: told.name or field for field, told in declared(kind).items()}


class _Column(NamedTuple):
    """A field of all rows: stored name, numbers, declaration, and the words if the numbers are codes."""

    name: str
    values: np.ndarray
    stored: Stored
    words: list[str] | None


def _columns(kind: type, rows: Sequence[tuple[Any, ...]]) -> list[_Column]:
    """All fields of some rows as columns."""
    hints, told = get_type_hints(kind), declared(kind)
    found = []
    for place, (field, name) in enumerate(_names(kind).items()):
        values, words = [row[place] for row in rows], None
        if hints[field] is Reason:
            values, words = [_REASONS.index(each) for each in values], [reason.value for reason in _REASONS]
        elif hints[field] is str:
            words = sorted(set(values))
            values = [words.index(each) for each in values]
        elif hints[field] == tuple[int, ...]:
            found.append(_Column(_SIZES, np.array([len(each) for each in values], dtype=np.int64), _SIZE, None))
            values = [one for each in values for one in each]
        dtype = np.float64 if hints[field] is float else np.int64
        found.append(_Column(name, np.array(values, dtype=dtype), told[field], words))
    return found


def _rows(group: zarr.Group, stored: Callable[[str], np.ndarray], kind: type[Row]) -> list[Row]:
    hints, columns = get_type_hints(kind), []
    for field, name in _names(kind).items():
        values = stored(name).tolist()
        if hints[field] is Reason:
            values = [_REASONS[code] for code in values]
        elif hints[field] is str:
            words = list(group[name].attrs["words"])
            values = [words[code] for code in values]
        elif hints[field] == tuple[int, ...]:
            ends = np.cumsum([0, *stored(_SIZES)])
            values = [tuple(values[begin:end]) for begin, end in pairwise(ends)]
        columns.append(values)
    # All NaN are one object, so that a history that was read equals the one that was written.
    return [kind._make(value if value == value else math.nan for value in row) for row in zip(*columns, strict=True)]


_REASONS = tuple(Reason)
#: The number of members of each proposal.
_SIZES, _SIZE = "proposal_size", Stored(("proposal",), "number of components that the proposal would replace")
