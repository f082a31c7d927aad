"""The Bokeh panels of a page: course of the run, moves, times, sizes, map and tree of its clusters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d

from dpdist.report.charts import (
    LINE,
    NEUTRAL,
    STEP,
    colour_of,
    drawn,
    hover,
    in_powers,
    late_range,
    legend_of,
    plain,
    signed_log,
    whole,
)
from dpdist.report.figures import LapFigures, ProposalFigures, RunFigures, TreeFigures

PHASES = {
    "load": "#94a3b8",
    "local_step": "#4f6df5",
    "sums": "#0ea5a4",
    "global_step": "#9061d6",
    "moves": "#1f9e77",
    "score": "#d9962b",
    "checkpoint": "#d9534f",
}
#: Colours of clusters on the map and of their names: opaque, and readable in light and dark mode.
BALL, ON_BALL = "#b4bdfc", "#1e1b4b"
#: Largest number of bars of sizes with names.
NAMED_BARS = 40
#: Largest number of drawn proposals; accepted ones have priority, then those with the largest gain.
DRAWN = 4000
#: Number of clusters on the map that are labelled with their id.
NAMED = 40
_FORMAT = "0[.]0a"


def panels_of(figures: RunFigures, pictures: Sequence[str]) -> dict[str, Any]:
    """Figures by the name of their panel; panels without data are left out. `pictures` are data URLs of pictures of the
    shown clusters; empty if rows are not pictures."""
    found: dict[str, Any] = {}
    if figures.laps:
        found["elbo"], found["components"] = _course(figures)
        found["time"] = _time(figures.laps, figures.laps_are)
    if any(lap.holdout is not None for lap in figures.laps):
        found["holdout"] = _holdout(figures)
    if any(lap.use is not None for lap in figures.laps):
        found["use"] = _use(figures.laps, figures.laps_are)
    if figures.proposals:
        found["moves"] = _moves(figures)
    if figures.sizes:
        found["sizes"] = _sizes(figures)
    if figures.map is not None and len(figures.map.ids) > 1:
        found["map"] = _map(figures, pictures)
    if figures.tree is not None:
        found["tree"] = _tree(figures.tree)
    if figures.laps and all(lap.elbo is None for lap in figures.laps):
        del found["elbo"]
    return found


def _course(figures: RunFigures) -> tuple[Any, Any]:
    """ELBO and K by lap, with the accepted moves."""
    laps, taken = figures.laps, _taken(figures)
    source = _by_lap(
        laps,
        elbo=[drawn(lap.per_unit) for lap in laps],
        total=[drawn(lap.elbo) for lap in laps],
        gained=[drawn(lap.gained) for lap in laps],
        k=[lap.n_components for lap in laps],
        rows=[lap.rows for lap in laps],
        moves=[", ".join(f"{count} {kind}" for kind, (count, _) in taken[lap.lap].items()) or "none" for lap in laps],
    )
    bound = whole(plain(280, f"ELBO, nats per {figures.unit}", y_range=late_range([lap.per_unit for lap in laps])))
    line = bound.line("x", "elbo", source=source, color=LINE, width=2.5)
    told = [("lap", "@lap"), ("after", "@elapsed{0.0} s"), (figures.parts, "@k"), ("accepted moves", "@moves")]
    more = [(f"nats per {figures.unit}", "@elbo{0.000000}"), ("nats", "@total{0.0000}"), ("by moves", "@gained{0.00}")]
    hover(bound, told + more, line, mode="vline")
    count = plain(200, figures.parts, figures.laps_are, x_range=bound.x_range)
    whole(count, *count.yaxis)
    steps = count.step("x", "k", source=source, color=STEP, width=2.5, mode="after")
    hover(count, [*told, ("rows", "@rows{0,0}")], count.scatter("x", "k", source=source, size=3, color=STEP))
    steps.level = "underlay"
    for kind in dict.fromkeys(kind for moves in taken.values() for kind in moves):
        events = _events(laps, taken, kind)
        marks = {"size": "size", "color": colour_of(kind), "alpha": 0.75, "line_color": None, "legend_label": kind}
        for plot, y in ((bound, "elbo"), (count, "k")):
            dots = plot.scatter("x", y, source=events, **marks)
            hover(plot, [("lap", "@lap"), (f"accepted {kind}s", "@count"), ("gain", "@gain{0,0.0} nats")], dots)
    for plot in (bound, count):
        legend_of(plot)
    return bound, count


def _by_lap(laps: Sequence[LapFigures], **columns: Sequence[object]) -> ColumnDataSource:
    """Data by lap, which the page draws against lap numbers or elapsed seconds."""
    numbers, elapsed = [lap.lap for lap in laps], [lap.elapsed for lap in laps]
    return ColumnDataSource({"x": numbers, "lap": [*numbers], "elapsed": elapsed, **columns}, name="course")


def _taken(figures: RunFigures) -> dict[int, dict[str, tuple[int, float]]]:
    """Lap -> kind -> number of accepted moves, and their total gain."""
    found: dict[int, dict[str, tuple[int, float]]] = defaultdict(dict)
    for each in figures.proposals:
        if each.accepted:
            count, gain = found[each.lap].get(each.kind, (0, 0.0))
            found[each.lap][each.kind] = count + 1, gain + each.gain
    return found


def _events(
    laps: Sequence[LapFigures], taken: Mapping[int, Mapping[str, tuple[int, float]]], kind: str
) -> ColumnDataSource:
    """The laps that accepted moves of a kind; marks are larger for more moves."""
    chosen = [lap for lap in laps if kind in taken.get(lap.lap, {})]
    moves = [taken[lap.lap][kind] for lap in chosen]
    return _by_lap(
        chosen,
        elbo=[drawn(lap.per_unit) for lap in chosen],
        k=[lap.n_components for lap in chosen],
        count=[count for count, _ in moves],
        gain=[gain for _, gain in moves],
        size=[min(18.0, 6 + 3 * math.sqrt(count)) for count, _ in moves],
    )


def _holdout(figures: RunFigures) -> Any:
    scored = [lap for lap in figures.laps if lap.holdout is not None]
    source = _by_lap(scored, score=[lap.holdout for lap in scored], rows=[lap.rows for lap in scored])
    plot = whole(plain(240, "held out, nats per row", y_range=late_range([lap.holdout for lap in scored])))
    plot.line("x", "score", source=source, color=LINE, width=2.5)
    told = [(figures.laps_are, "@lap"), ("rows", "@rows{0,0}"), ("nats per row", "@score{0.000000}")]
    hover(plot, told, plot.scatter("x", "score", source=source, color=LINE, size=6))
    return plot


def drawn_proposals(figures: RunFigures) -> list[ProposalFigures]:
    """Proposals with known gain, at most ``DRAWN``; accepted ones first, then those with the largest gain."""
    known = [each for each in figures.proposals if math.isfinite(each.gain)]
    return sorted(known, key=lambda each: (not each.accepted, -each.gain))[:DRAWN]


def _moves(figures: RunFigures) -> Any:
    """Proposals by gain, on a scale that is logarithmic on both sides of zero."""
    best = drawn_proposals(figures)
    plot = whole(plain(320, "gain, nats", "lap", x_range=Range1d(0, figures.laps[-1].lap + 1)))
    for kind in sorted({each.kind for each in best}):
        for accepted in (False, True):
            own = [each for each in best if each.kind == kind and each.accepted is accepted]
            if own:
                dots = plot.scatter(
                    "x",
                    "y",
                    source=ColumnDataSource(
                        {
                            "x": [each.lap for each in own],
                            "y": [signed_log(each.gain) for each in own],
                            "gain": [drawn(each.gain) for each in own],
                            "reason": [each.reason for each in own],
                            "ids": [" and ".join(map(str, each.components)) for each in own],
                        }
                    ),
                    size=9 if accepted else 5,
                    color=colour_of(kind),
                    alpha=0.9 if accepted else 0.35,
                    marker="circle" if accepted else "x",
                    line_width=1.5,
                    legend_label=kind,
                )
                told = [(kind, "@ids"), ("lap", "@x"), ("gain", "@gain{0,0.000} nats"), ("", "@reason")]
                hover(plot, told, dots)
    in_powers(plot, [each.gain for each in best])
    legend_of(plot, above=True)
    return plot


def _time(laps: Sequence[LapFigures], across: str) -> Any:
    """Seconds by phase, stacked."""
    used = [name for name in PHASES if any(lap.spent.get(name, 0.0) > 0 for lap in laps)]
    data: dict[str, Any] = {name: [lap.spent.get(name, 0.0) for lap in laps] for name in used}
    data |= {"lap": [lap.lap for lap in laps], "seconds": [lap.seconds for lap in laps]}
    data["waiting"] = [lap.spent.get("waiting", 0.0) for lap in laps]
    plot = whole(plain(260, "seconds", across))
    bars = plot.vbar_stack(
        used,
        x="lap",
        width=0.85,
        source=ColumnDataSource(data),
        color=[PHASES[name] for name in used],
        legend_label=[name.replace("_", " ") for name in used],
        line_color=None,
    )
    told = [(name.replace("_", " "), f"@{name}{{0.000}} s") for name in used]
    if any(data["waiting"]):
        told.append(("coordinator waiting or sending", "@waiting{0.000} s"))
    hover(plot, [(across, "@lap"), (f"duration of the {across}", "@seconds{0.000} s"), *told], *bars)
    plot.y_range.start = 0
    legend_of(plot, above=True)
    return plot


def _use(laps: Sequence[LapFigures], across: str) -> Any:
    known = [lap for lap in laps if lap.use is not None]
    plot = whole(plain(160, "workers busy", across, y_range=Range1d(0, 1.05)))
    source = ColumnDataSource({"lap": [lap.lap for lap in known], "use": [lap.use for lap in known]})
    line = plot.step("lap", "use", source=source, color=STEP, width=2.5, mode="center")
    hover(plot, [(across, "@lap"), ("busy", "@use{0 %}")], line, mode="vline")
    plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
    return plot


def _sizes(figures: RunFigures) -> Any:
    sizes = figures.sizes
    wide = max(sizes) > 100 * max(min(sizes), 1.0)
    floor = max(min(sizes) / 2, 0.5) if wide else 0.0
    label = "tokens" if figures.unit == "token" else "rows"
    named = len(sizes) <= NAMED_BARS
    plot = whole(plain(240, label, "id" if named else "rank", y_axis_type="log" if wide else "linear"))
    if named:
        _name_places(plot, figures.ids, 1)
    source = ColumnDataSource(
        {
            "rank": list(range(1, len(sizes) + 1)),
            "size": sizes,
            "top": [max(size, floor) for size in sizes],
            "id": figures.ids,
            "weight": figures.weights,
        }
    )
    width = 0.85 if len(sizes) < 200 else 1.0
    bars = plot.vbar(x="rank", top="top", bottom=floor, width=width, source=source, color=LINE, line_color=None)
    hover(plot, [("id", "@id"), ("size", "@size{0,0.0}"), ("weight", "@weight{0.00 %}")], bars)
    plot.yaxis.formatter = NumeralTickFormatter(format=_FORMAT)
    if not wide:
        plot.y_range.start = 0
    return plot


def _name_places(plot: Any, ids: Sequence[int], first: int) -> None:
    """Label the positions from `first` on with ids."""
    names = {place: str(id) for place, id in enumerate(ids, first)}
    plot.xaxis.ticker, plot.xaxis.major_label_overrides = FixedTicker(ticks=list(names)), names


def _map(figures: RunFigures, pictures: Sequence[str]) -> Any:
    """Clusters in a plane, with areas that increase with size from a minimum, and links between overlapping ones."""
    found = figures.map
    assert found is not None, "there is a map"
    shown = {each.id: (each, i) for i, each in enumerate(figures.components)}
    words = [" ".join(shown[id][0].words[:5]) if id in shown else "" for id in found.ids]
    images = [pictures[shown[id][1]] if pictures and id in shown else "" for id in found.ids]
    most = max(found.sizes)
    plot = plain(420, "", match_aspect=True)
    plot.axis.visible = plot.grid.visible = False
    plot.x_range.range_padding = plot.y_range.range_padding = 0.3
    plot.min_border_left = 12
    strongest = max((share for *_, share in found.links), default=1.0)
    ends = [(found.x[k], found.y[k], found.x[m], found.y[m], share) for k, m, share in found.links]
    plot.segment(
        "x0",
        "y0",
        "x1",
        "y1",
        source=ColumnDataSource(
            {
                **{name: [end[i] for end in ends] for i, name in enumerate(("x0", "y0", "x1", "y1"))},
                "alpha": [0.1 + 0.5 * end[4] / strongest for end in ends],
                "width": [1 + 3 * end[4] / strongest for end in ends],
            }
        ),
        color=NEUTRAL,
        alpha="alpha",
        line_width="width",
    )
    source = ColumnDataSource(
        {
            "x": found.x,
            "y": found.y,
            "id": found.ids,
            "name": [str(id) if rank < NAMED else "" for rank, id in enumerate(found.ids)],
            "rows": found.sizes,
            "size": [16 + 36 * math.sqrt(size / most) for size in found.sizes],
            "words": words,
            "picture": images,
        }
    )
    dots = plot.scatter("x", "y", source=source, size="size", color=BALL, line_color=LINE)
    plot.text("x", "y", text="name", source=source, text_align="center", text_baseline="middle", text_font_size="11px",
              text_color=ON_BALL, text_font_style="bold")  # fmt: skip
    picture = '<img src="@picture" style="width:64px;image-rendering:pixelated"><br>' if pictures else ""
    told = f"<div>{picture}<b>@id</b> · @rows{{0,0}}" + (" · @words" if any(words) else "") + "</div>"
    plot.add_tools(HoverTool(tooltips=told, renderers=[dots]))
    return plot


def _tree(found: TreeFigures) -> Any:
    """Merges from all clusters down to one, by loss of ELBO."""
    plot = plain(360, "ELBO lost, nats", "cluster id")
    source = ColumnDataSource(
        {
            "xs": found.x,
            "ys": [[signed_log(y) for y in line] for line in found.y],
            "lost": [max(line) for line in found.y],
        }
    )
    lines = plot.multi_line("xs", "ys", source=source, color=LINE, line_width=2)
    hover(plot, [("loses", "@lost{0,0.0} nats")], lines)
    in_powers(plot, [max(line) for line in found.y], below=0.0)
    _name_places(plot, found.ids, 0)
    plot.xaxis.major_label_orientation, plot.xaxis.major_label_text_font_size = math.pi / 2, "10px"
    plot.xaxis.visible = len(found.ids) <= 150
    return plot


def move_table(figures: RunFigures) -> list[tuple[str, str, int, float]]:
    """Kind, reason, number of proposals, and the total gain of accepted ones, nats."""
    counts = Counter((each.kind, each.reason, each.accepted) for each in figures.proposals)
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for each in figures.proposals:
        if each.accepted:
            gains[each.kind, each.reason] += each.gain
    return [(kind, reason, count, gains[kind, reason]) for (kind, reason, _), count in sorted(counts.items())]
