"""A history is read as it was written: every lap, and every proposal with all that it would have replaced."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
import zarr

from dpdist.inference.moves.accept import Reason
from dpdist.inference.state import Record
from dpdist.storage.history import UNTIMED, History, LapRow, ProposalRow
from tests.runs import clusters, mixture

RECORDS = (
    Record("split", (3,), 1.5, Reason.ACCEPTED),
    Record("a move of my own", (5, 6, 7, 8), math.nan, Reason.NO_GAIN),
    Record("merge", (2, 9), -0.5, Reason.NO_GAIN),
)


def history() -> History:
    """Of two laps, the second with proposals."""
    laps = [LapRow(lap, 10.0, 40.0, -5.0, -6.0, 3, 0.1, math.nan) for lap in (1, 2)]
    return History(laps, [ProposalRow.of(2, record) for record in RECORDS], [UNTIMED, UNTIMED])


def test_what_is_written_is_read(tmp_path) -> None:
    for name, each in (("some", history()), ("none", History())):
        each.write(zarr.create_group(str(tmp_path / name)))
        read = History.read(zarr.open_group(str(tmp_path / name), mode="r"))
        assert (repr(read.laps), repr(read.proposals)) == (repr(each.laps), repr(each.proposals))  # NaN is NaN
        assert read.times == each.times


def test_what_moves_gained_is_of_those_that_were_taken() -> None:
    assert history().gained() == {1: 0.0, 2: 1.5}


def test_other_programs_read_every_component_of_a_proposal(tmp_path) -> None:
    history().write(zarr.create_group(str(tmp_path / "history")))
    stored = xr.open_zarr(tmp_path / "history", consolidated=False)
    for found in (stored, history().dataset()):
        members = np.split(found["proposal_members"].values, np.cumsum(found["proposal_size"].values)[:-1])
        assert [tuple(each) for each in members] == [record.components for record in RECORDS]
        np.testing.assert_array_equal(found["proposal_component"].values, [3, 5, 2])
    assert history().dataset()["proposal_kind"].values.tolist() == [record.kind for record in RECORDS]
    meanings = stored["proposal_kind"].attrs["flag_meanings"].split()
    assert [meanings[code] for code in stored["proposal_kind"].values] == ["split", "a_move_of_my_own", "merge"]


def test_of_a_fit_every_proposal_is_told_as_it_was_judged() -> None:
    model, judged = mixture(initial="k-means++", initial_components=9, max_laps=12), []
    for _, info in model.iter_fit(clusters(0, rows=500, columns=5, groups=12)):
        judged += [(info.lap, record.kind, record.components) for record in info.records]
    assert any(len(components) > 2 for *_, components in judged)
    assert [(row.lap, row.kind, row.members) for row in model._history.proposals] == judged
