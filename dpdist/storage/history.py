"""The history of a run, lap by lap and proposal by proposal, as an xarray.Dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr

from dpdist.inference.moves.accept import Reason
from dpdist.inference.state import Info, Record
from dpdist.storage import schema

if TYPE_CHECKING:
    import xarray as xr

#: Codes of the reasons, in the CF convention's flag_values / flag_meanings.
REASONS = tuple(Reason)


class LapRow(NamedTuple):
    """One lap in the history."""

    lap: int
    elbo: float
    elbo_before_moves: float
    n_components: int
    seconds: float


class ProposalRow(NamedTuple):
    """One judged proposal in the history."""

    lap: int
    kind: str
    reason: int
    gain: float
    component: int
    partner: int

    @classmethod
    def of(cls, lap: int, record: Record) -> ProposalRow:
        """The row of what a lap said of a proposal."""
        partner = record.components[1] if len(record.components) > 1 else -1
        return cls(lap, record.kind, REASONS.index(record.reason), record.gain, record.components[0], partner)

    @property
    def record(self) -> Record:
        """What the lap said, of the first two components."""
        components = (self.component,) if self.partner < 0 else (self.component, self.partner)
        return Record(self.kind, components, self.gain, REASONS[self.reason])


class History:
    """Grows by one lap at a time.

    Parameters
    ----------
    laps, proposals : rows to start from
    """

    def __init__(self, laps: Iterable[LapRow] = (), proposals: Iterable[ProposalRow] = ()) -> None:
        self.laps, self.proposals = list(laps), list(proposals)

    def add(self, info: Info) -> None:
        """Append a finished lap."""
        self.laps.append(LapRow(info.lap, info.elbo, info.elbo_before_moves, info.n_components, info.seconds))
        self.proposals += [ProposalRow.of(info.lap, record) for record in info.records]

    def before(self, lap: int) -> History:
        """A copy of the laps before `lap`."""
        laps, proposals = self.laps, self.proposals
        return History([row for row in laps if row.lap < lap], [row for row in proposals if row.lap < lap])

    def accepted(self, lap: int) -> dict[str, int]:
        """Moves taken in a lap, by kind."""
        taken = REASONS.index(Reason.ACCEPTED)
        return dict(Counter(row.kind for row in self.proposals if row.lap == lap and row.reason == taken))

    @property
    def kinds(self) -> list[str]:
        """Every kind of proposal there was, by name; their places are their codes in a stored history."""
        return sorted({row.kind for row in self.proposals})

    def columns(self) -> dict[str, np.ndarray]:
        """Name -> values, for every variable of the history."""
        laps, proposals = self.laps, self.proposals
        codes = {kind: code for code, kind in enumerate(self.kinds)}
        return {
            "lap": np.array([row.lap for row in laps], dtype=np.int64),
            "elbo": np.array([row.elbo for row in laps], dtype=np.float64),
            "elbo_before_moves": np.array([row.elbo_before_moves for row in laps], dtype=np.float64),
            "n_components": np.array([row.n_components for row in laps], dtype=np.int64),
            "seconds": np.array([row.seconds for row in laps], dtype=np.float64),
            "proposal_lap": np.array([row.lap for row in proposals], dtype=np.int64),
            "proposal_kind": np.array([codes[row.kind] for row in proposals], dtype=np.int8),
            "proposal_reason": np.array([row.reason for row in proposals], dtype=np.int8),
            "proposal_gain": np.array([row.gain for row in proposals], dtype=np.float64),
            "proposal_component": np.array([row.component for row in proposals], dtype=np.int64),
            "proposal_partner": np.array([row.partner for row in proposals], dtype=np.int64),
        }

    def dataset(self) -> xr.Dataset:
        """The history with dimensions ``lap`` and ``proposal``; kinds and reasons as words."""
        import xarray as xr

        columns = self.columns()
        variables: dict[str, Any] = {}
        for name, values in columns.items():
            variable = schema.VARIABLES[name]
            variables[name] = (variable.dims, values, {"units": variable.units, "long_name": variable.doc})
        words = np.array([f"{reason.value}" for reason in REASONS])
        variables["proposal_kind"] = (("proposal",), np.array([row.kind for row in self.proposals], dtype=str))
        variables["proposal_reason"] = (("proposal",), words[columns["proposal_reason"]])
        return xr.Dataset(variables)

    def write(self, group: zarr.Group) -> None:
        """Store in an empty group."""
        for name, values in self.columns().items():
            schema.write(group, name, values)
        group["proposal_kind"].attrs.update(_flags(self.kinds))
        group["proposal_reason"].attrs.update(_flags([reason.value for reason in REASONS]))

    @classmethod
    def read(cls, group: zarr.Group) -> History:
        """The history stored in `group`."""
        laps = [schema.read(group, name).tolist() for name in ("lap", *LapRow._fields[1:])]
        names = [f"proposal_{name}" for name in ProposalRow._fields]
        proposals = [schema.read(group, name).tolist() for name in names]
        kinds = str(group["proposal_kind"].attrs["flag_meanings"]).split()
        proposals[1] = [kinds[code] for code in proposals[1]]
        return cls(
            [LapRow(*row) for row in zip(*laps, strict=True)],
            [ProposalRow(*row) for row in zip(*proposals, strict=True)],
        )


def _flags(meanings: Iterable[str]) -> dict[str, Any]:
    words = [meaning.replace(" ", "_") for meaning in meanings]
    return {"flag_values": list(range(len(words))), "flag_meanings": " ".join(words)}
