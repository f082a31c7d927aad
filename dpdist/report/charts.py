"""Empty Bokeh charts, their colours, and the style of axes, legends and numbers.

Colours of text and grids are CSS variables of the page, so one drawing serves light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import AdaptiveTicker, CustomJSTickFormatter, DataRange1d, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

#: Colours that are distinct on light and dark backgrounds, also for colour-blind readers.
COLOURS = {
    "split": "#1f9e77",
    "birth": "#1f9e77",
    "merge": "#3b82d6",
    "delete": "#d9534f",
    "regroup": "#9061d6",
}
OTHER, LINE, STEP = "#d9962b", "#4f6df5", "#0ea5a4"
#: Font, and a text colour that is readable on light and dark backgrounds.
FONT, NEUTRAL = "Inter, system-ui, sans-serif", "#808893"


def plain(height: int, label: str, across: str = "", **given: Any) -> Any:
    """An empty figure, with the common style."""
    given = {"tools": "pan,box_zoom,reset,save", "toolbar_location": "above", "toolbar_inner": True, **given}
    plot = figure(height=height, sizing_mode="stretch_width", **given)
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.toolbar.logo, plot.toolbar.autohide = None, True
    plot.min_border_left, plot.min_border_right = 76, 12
    plot.yaxis.axis_label, plot.xaxis.axis_label = label, across
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.minor_tick_line_color, axis.axis_line_color, axis.axis_line_alpha = None, NEUTRAL, 0.5
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font = axis.major_label_text_font = FONT
    plot.xgrid.visible = False
    return plot


def whole(plot: Any, *axes: Any) -> Any:
    """The chart, with ticks only at integers, on its x axis and on further axes."""
    for axis in (*plot.xaxis, *axes):
        axis.ticker = AdaptiveTicker(min_interval=1, mantissas=[1, 2, 5])
    return plot


def hover(plot: Any, told: Sequence[tuple[str, str]], *renderers: Any, **given: Any) -> None:
    """Show pairs of a name and a value in a tooltip over some renderers."""
    plot.add_tools(HoverTool(tooltips=list(told), renderers=list(renderers), **given))


def colour_of(kind: str) -> str:
    """The colour of a kind of move."""
    return COLOURS.get(kind, OTHER)


def late_range(values: Sequence[float | None]) -> Range1d | DataRange1d:
    """The range of the values after the first twentieth, because early values would dominate it."""
    known = [value for value in values if value is not None]
    if not known:
        return DataRange1d()
    late = known[len(known) // 20 if len(known) >= 20 else 0 :]
    late = late[1:] if len(late) > 10 else late
    low, high = min(late), max(late)
    pad = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return Range1d(low - pad, high + pad)


def legend_of(plot: Any, above: bool = False) -> None:
    """Style the legend without a frame; a click hides an entry. With `above`, it is placed above the chart."""
    for legend in plot.legend:
        legend.orientation, legend.click_policy, legend.location = "horizontal", "hide", "bottom_right"
        legend.background_fill_alpha = 0.0
        legend.border_line_color = None
        legend.label_text_font, legend.label_text_color = FONT, NEUTRAL
        if above:
            legend.location, legend.ncols, legend.label_text_font_size = "top_left", 3, "11px"
            plot.add_layout(legend, "above")


def in_powers(plot: Any, values: Sequence[float], below: float = -1.0) -> None:
    """Set an axis of :func:`signed_log` to contain all values, with ticks in nats, including zero and ten; its lower
    end, on the transformed axis, is at most `below`."""
    places = [below, 1.0, *map(signed_log, values)]
    low, high = min(places), max(places)
    pad = 0.05 * (high - low)
    plot.y_range = Range1d(low - pad if low < 0 else low, high + pad)
    plot.yaxis.ticker = FixedTicker(ticks=[-6, -4, -2, *range(-1 if low > -2 else 0, 13)])
    plot.yaxis.formatter = CustomJSTickFormatter(
        code="return tick == 0 ? '0' : (tick < 0 ? '-' : '') + Math.pow(10, Math.abs(tick)).toLocaleString()"
    )


def signed_log(value: float) -> float:
    """A logarithmic scale on both sides of zero, for values of very different size."""
    return math.copysign(math.log10(1 + abs(value)), value) if math.isfinite(value) else math.nan


def drawn(value: float | None) -> float:
    """NaN for None, because Bokeh does not draw NaN."""
    return math.nan if value is None else value
