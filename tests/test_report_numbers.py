"""What charts draw and tables tell, against what they are made of, counted and added up another way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.moves.accept import Reason
from dpdist.report import panels, reading
from dpdist.report.charts import signed_log
from dpdist.report.figures import RunFigures
from dpdist.storage.history import UNTIMED, History, LapRow, LapTimes, ProposalRow

KINDS = ("birth", "merge", "split")


def lap_row(lap: int, seconds: float = 2.0) -> LapRow:
    return LapRow(lap, 100.0, 50.0, -1e3 / lap, -2e3 / lap, 10 + lap, seconds, math.nan)


def course(history: History, **more: Any) -> RunFigures:
    """The figures of a run of such a history."""
    told = {"label": "run", "method": "memoized", "parts": "clusters", "unit": "row", "state": "", "ended": True}
    known = {"n_components": 11, "rows": 100.0, "elbo": -1e3, "per_unit": -20.0, "holdout": None, "seconds": 2.0}
    view = SimpleNamespace(history=history, per_unit=[row.per_unit for row in history.laps])
    return RunFigures(**told, **known, laps=reading._laps(view), proposals=reading._proposals(history), **more)


def drawn(plot: Any, *columns: str) -> list[tuple[Any, ...]]:
    """All that the marks of a chart have of these columns."""
    sources = [each.data_source.data for each in plot.renderers]
    return [row for data in sources for row in zip(*(data[name] for name in columns), strict=True)]


def names_of(plot: Any) -> dict[int, str]:
    """Names below a chart, by where they stand."""
    names: dict[int, str] = plot.xaxis.major_label_overrides
    assert plot.xaxis.ticker.ticks == list(names)
    return names


proposals = st.builds(
    lambda lap, kind, reason, gain: ProposalRow(lap, kind, reason, gain, 1, (1, 2)),
    st.integers(1, 3),
    st.sampled_from(KINDS),
    st.sampled_from([Reason.ACCEPTED, Reason.ALONG, Reason.NO_GAIN, Reason.REFINING]),
    st.integers(-99, 99).map(float),
)


@settings(max_examples=8, phases=[Phase.generate])  # charts are slow to shrink
@given(st.lists(proposals, min_size=15, max_size=30))
def test_counts_and_gains_of_moves_are_those_of_the_proposals_by_kind_reason_and_lap(rows: Sequence) -> None:
    figures = course(History([lap_row(lap) for lap in (1, 2, 3)], rows, [UNTIMED] * 3))
    table = pd.DataFrame(rows).assign(reason=[row.reason.value for row in rows])
    taken = table[[row.reason.taken for row in rows]]
    wanted = table.groupby(["kind", "reason"]).size().to_frame("count")
    wanted["gain"] = taken.groupby(["kind", "reason"])["gain"].sum().reindex(wanted.index, fill_value=0.0)
    assert panels.move_table(figures) == [(*key, *row) for key, row in zip(wanted.index, wanted.values, strict=True)]
    of_laps = taken.groupby(["kind", "lap"])["gain"].agg(["count", "sum"])
    for kind in KINDS:
        data = panels._events(figures.laps, panels._taken(figures), kind).data
        some = of_laps[of_laps.index.get_level_values("kind") == kind]
        assert data["lap"] == [lap for _, lap in some.index]
        assert (data["count"], data["gain"]) == (some["count"].tolist(), some["sum"].tolist())


@settings(max_examples=8, phases=[Phase.generate])  # charts are slow to shrink
@given(st.lists(proposals, min_size=1, max_size=30))
def test_of_too_many_proposals_those_taken_are_drawn_first_then_the_most_promising(rows: Sequence) -> None:
    figures = course(History([lap_row(lap) for lap in (1, 2, 3)], rows, [UNTIMED] * 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "DRAWN", 5)
        found = drawn(panels._moves(figures), "reason", "gain", "y")
    taken, others = ([row for row in rows if row.reason.taken is each] for each in (True, False))
    best = [row.gain for some in (taken, others) for row in sorted(some, key=lambda row: -row.gain)][:5]
    assert sorted(gain for _, gain, _ in found) == sorted(best)
    assert sum(reason.startswith("accepted") for reason, *_ in found) == min(5, len(taken))
    assert [y for *_, y in found] == [signed_log(gain) for _, gain, _ in found]


@pytest.mark.parametrize("gains", [[-40.0, -15.0], [-3.0], [2e9, -5.0], [0.5]])
def test_the_axis_of_gains_holds_them_and_has_numbers(gains: list[float]) -> None:
    rows = [ProposalRow(1, "split", Reason.NO_GAIN, gain, 1, (0,)) for gain in gains]
    plot = panels._moves(course(History([lap_row(1)], rows, [UNTIMED])))
    inside = [tick for tick in plot.yaxis[0].ticker.ticks if plot.y_range.start <= tick <= plot.y_range.end]
    assert len(inside) >= 3 and 0 in inside
    assert all(plot.y_range.start < signed_log(gain) < plot.y_range.end for gain in gains)


@given(st.floats(0.0, 1.0), st.integers(1, 64), st.floats(0.5, 100.0))
def test_workers_are_busy_a_share_of_the_time_that_all_their_threads_have(share, threads, seconds) -> None:
    busy = LapTimes(*[0.0] * 8, workers=share * threads * seconds, threads=threads)
    rows, times = [lap_row(1, seconds), lap_row(2, seconds)], [busy, busy._replace(threads=0)]
    first, second = course(History(rows, [], times)).laps
    assert first.use == pytest.approx(share) and 0 <= first.use <= 1 + 1e-9
    assert second.use is None and "workers" not in first.spent


def test_bars_of_sizes_stand_above_their_ids_and_are_as_high_as_told() -> None:
    figures = course(
        History([lap_row(1)], [], [UNTIMED]), ids=(7, 3, 5), sizes=(9.0, 4.0, 2.0), weights=(0.6, 0.3, 0.1)
    )
    plot = panels._sizes(figures)
    assert names_of(plot) == {1: "7", 2: "3", 3: "5"}
    assert drawn(plot, "rank", "id", "top", "weight") == [(1, 7, 9.0, 0.6), (2, 3, 4.0, 0.3), (3, 5, 2.0, 0.1)]


@settings(max_examples=8, phases=[Phase.generate])  # charts are slow to shrink
@given(st.permutations(range(6)), st.randoms(use_true_random=False))
def test_a_tree_joins_the_clusters_named_below_it_at_the_logarithms_of_what_merges_give_up(ids, random) -> None:
    nodes, merges, height = list(range(6)), [], [0.0] * 6
    for place in range(5):
        merges.append(tuple(nodes.pop(random.randrange(len(nodes))) for _ in range(2)))
        nodes.append(6 + place)
    elbo = -np.cumsum([0.0, *(random.uniform(1, 1e4) for _ in merges)])
    none = np.zeros(0)
    tree = Tree(np.array(ids) + 20, np.array(merges), elbo, none, none, none, none)
    plot = panels._tree(reading._tree(tree))
    at: list[float] = [{name: place for place, name in names_of(plot).items()}[str(id)] for id in tree.ids]
    wanted = []
    for pair, lost in zip(merges, tree.heights, strict=True):
        first, second = sorted(pair, key=lambda node: at[node])
        y = [signed_log(each) for each in (height[first], lost, lost, height[second])]
        wanted.append(([at[first], at[first], at[second], at[second]], y, lost))
        at.append((at[first] + at[second]) / 2)
        height.append(lost)
    assert sorted(at[:6]) == list(range(6))
    found = sorted((list(x), y, lost) for x, y, lost in drawn(plot, "xs", "ys", "lost"))
    for one, other in zip(found, sorted(wanted), strict=True):
        for values, others in zip(one, other, strict=True):
            assert values == pytest.approx(others)


def test_topics_are_hellingers_distance_apart_by_the_words_they_have_and_as_large_as_they_are() -> None:
    own = np.random.default_rng(0).dirichlet(np.full(12, 0.5), size=4)
    own[:, 0] = 0.0
    own /= own.sum(axis=1, keepdims=True)
    predictor, counts = SimpleNamespace(ids=np.arange(4) + 3, topics=0.7 * own + 0.3 / 12), np.array([5.0, 8, 2, 9])
    places = np.array([3, 1, 0])  # three things lie on a plane
    found = reading._map_of_topics(predictor, counts, places)
    assert (found.ids, found.sizes) == ((6, 4, 3), (9.0, 8.0, 5.0))
    roots = np.sqrt(own[places])
    wanted = np.sqrt(((roots[:, None] - roots[None]) ** 2).sum(axis=2) / 2)
    at = np.column_stack([found.x, found.y])
    np.testing.assert_allclose(np.linalg.norm(at[:, None] - at[None], axis=2), wanted, atol=1e-6)
