"""What is told in units, and the costs that are kept in files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.core.errors import InputError, OutputExistsError
from dpdist.report import units
from dpdist.report.units import duration, size
from dpdist.runs.planning.costs import read_costs
from tests.test_plan import REAL


@given(st.floats(1e-3, 1e12))
def test_what_is_told_of_a_time_or_size_is_what_it_is(value: float) -> None:
    for tell, known in ((duration, units._TIMES), (size, units._SIZES)):
        number, unit = tell(value).split()
        least = {name: each for each, name in known}[unit]
        found = float(number.replace(",", "")) * least
        assert "e" not in number and found == pytest.approx(value, rel=5.1e-3, abs=1e-3)
        assert unit in (known[0][1], known[-1][1]) or 1 <= float(number) < 1000


def test_what_is_rounded_to_one_is_told_in_the_larger_unit() -> None:
    assert (duration(4.5e6), duration(0.9996), size(999_700), size(2.5e15)) == ("52.1 days", "1 s", "1 MB", "2.5 PB")


def test_costs_are_kept_over_costs_and_over_nothing_else(tmp_path) -> None:
    REAL.write(tmp_path / "costs.json")
    before = (tmp_path / "costs.json").read_bytes()
    REAL.write(tmp_path / "costs.json")
    assert (tmp_path / "costs.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    (tmp_path / "rows.csv").write_text("1,2")
    with pytest.raises(OutputExistsError, match="holds no unit costs, so it is not replaced"):
        REAL.write(tmp_path / "rows.csv")
    with pytest.raises(InputError, match="does not exist; create it first"):
        REAL.write(tmp_path / "nowhere" / "costs.json")


def test_what_holds_no_costs_is_refused_with_a_remedy_that_works(tmp_path) -> None:
    (tmp_path / "rows.csv").write_text("1,2")
    with pytest.raises(InputError, match="write some elsewhere with: dpdist plan --save-costs FILE"):
        read_costs(tmp_path / "rows.csv")
    (tmp_path / "costs.json").write_text('{"row": {"value": 1.0}}')
    with pytest.raises(InputError, match=r"should hold the unit costs row, .*; add is missing or unknown\."):
        read_costs(tmp_path / "costs.json")
