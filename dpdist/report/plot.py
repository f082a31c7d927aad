"""The contents of a report on matplotlib axes: ``dpdist.plot.trace(run)``, ``components``, ``sizes``, ``clusters``,
``map``, ``tree``.

Each function takes a path, a run, a fitted estimator, or figures that were already read, and optionally axes to draw
on; by default it creates a figure. Each returns the axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from dpdist.core.errors import InputError
from dpdist.report.charts import colour_of
from dpdist.report.dendrogram import draw_dendrogram
from dpdist.report.figures import RunFigures
from dpdist.report.pictures import as_image, shade
from dpdist.report.reading import course_of, figures_of
from dpdist.report.views import view_of
from dpdist.runs.opening import rows_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["clusters", "components", "map", "sizes", "trace", "tree"]

#: Largest number of pictures in a line, of clusters with profiles, and of columns in these.
ACROSS, PROFILES, COLUMNS = 8, 12, 30
#: Number of clusters on a map that are labelled with their id.
NAMED = 40


def trace(run: object, axes: Axes | None = None, *, seconds: bool = False) -> Axes:
    """The ELBO per row or token by lap or time, with the accepted moves; for a sequential pass the held-out score, else
    K.

    Parameters
    ----------
    run : a path or URL, a run, a fitted estimator, or figures
    axes : to draw on; default: of a new figure
    seconds : whether x is time rather than laps
    """
    figures, axes = _course(run), axes or _new((7, 3.5))
    across = [lap.elapsed if seconds else float(lap.lap) for lap in figures.laps]
    course, name = [lap.per_unit for lap in figures.laps], f"ELBO, nats per {figures.unit}"
    if all(value is None for value in course):
        course, name = [lap.holdout for lap in figures.laps], "held out, nats per row"
    if all(value is None for value in course):
        course, name = [float(lap.n_components) for lap in figures.laps], figures.parts
    known = {lap.lap: (x, y) for lap, x, y in zip(figures.laps, across, course, strict=True) if y is not None}
    axes.plot(*zip(*known.values(), strict=True), color="0.35", zorder=1)
    taken = [each for each in figures.proposals if each.accepted and each.lap in known]
    for kind in dict.fromkeys(each.kind for each in taken):
        points = [known[lap] for lap in sorted({each.lap for each in taken if each.kind == kind})]
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=18, color=colour_of(kind), label=kind)
    axes.set(xlabel="seconds" if seconds else "lap", ylabel=name)
    if taken:
        axes.legend(frameon=False)
    return axes


def components(run: object, axes: Axes | None = None, *, seconds: bool = False) -> Axes:
    """K by lap or time; parameters as for :func:`trace`."""
    figures, axes = _course(run), axes or _new((7, 3.5))
    across = [lap.elapsed if seconds else float(lap.lap) for lap in figures.laps]
    axes.plot(across, [lap.n_components for lap in figures.laps], color="0.35", drawstyle="steps-post")
    axes.set(xlabel="seconds" if seconds else "lap", ylabel=figures.parts)
    return axes


def sizes(run: object, axes: Axes | None = None) -> Axes:
    """Sizes of all clusters, the largest first; parameters as for :func:`trace`."""
    figures, axes = _read(run), axes or _new((7, 3))
    axes.bar(np.arange(1, len(figures.sizes) + 1), figures.sizes, width=0.85, color="tab:blue")
    axes.set(xlabel="rank", ylabel="tokens" if figures.unit == "token" else "rows")
    if max(figures.sizes) > 100 * max(min(figures.sizes), 1.0):
        axes.set_yscale("log")
    return axes


def clusters(run: object, axes: Axes | None = None, *, image_shape: str | None = None, data: object = None) -> Axes:
    """The largest clusters: as pictures if rows are pictures, topics by their words, else the differences of their
    columns from the whole, in units of its spread.

    Parameters
    ----------
    run, axes : as for :func:`trace`
    image_shape, data : as for :func:`dpdist.report.reading.figures_of`
    """
    figures = _read(run, data, image_shape)
    if figures.image_shape is not None:
        return _pictures(figures, axes)
    return _words(figures, axes) if figures.unit == "token" else _profiles(figures, axes)


def map(run: object, axes: Axes | None = None) -> Axes:
    """Clusters in a plane, similar ones close together, with areas by size; lines are overlaps; parameters as for
    :func:`trace`."""
    figures, axes = _read(run), axes or _new((6, 6))
    found = figures.map
    assert found is not None, "a model has a map"
    strongest = max((share for *_, share in found.links), default=1.0)
    for k, m, share in found.links:
        ends = [found.x[k], found.x[m]], [found.y[k], found.y[m]]
        axes.plot(*ends, color="0.5", alpha=0.1 + 0.5 * share / strongest, zorder=0)
    areas = 900 * np.array(found.sizes) / max(found.sizes)
    axes.scatter(found.x, found.y, s=areas + 20, color="tab:blue", alpha=0.5)
    for x, y, name in zip(found.x[:NAMED], found.y, found.ids, strict=False):
        axes.annotate(str(name), (x, y), ha="center", va="center", fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)
    axes.set_axis_off()
    return axes


def tree(run: object, axes: Axes | None = None, *, n_clusters: int | None = None) -> Axes:
    """The dendrogram of a run's clusters, after a tree was grown (``dpdist tree``, ``model.tree()``).

    Parameters
    ----------
    run, axes : as for :func:`trace`, but no figures
    n_clusters : a cut to mark
    """
    view = view_of(run)
    if view.tree is None:
        if view.fitted is not None:
            rows_model(view.predictor, view.label)
        raise InputError(f"{view.label} has no tree yet; grow one with model.tree(x), or with: dpdist tree RUN")
    axes = axes or _new((8, 4))
    draw_dendrogram(view.tree, axes, n_clusters)
    return axes


def _pictures(figures: RunFigures, axes: Axes | None) -> Axes:
    """All pictures in one image, separated by lines."""
    assert figures.image_shape is not None, "rows are pictures"
    values = [each.picture or () for each in figures.components]
    shades = shade(values, figures.directions)
    images = [as_image(each, figures.image_shape, shades) for each in values]
    across = min(ACROSS, len(images))
    lines, (height, width) = -(-len(images) // across), images[0].shape[:2]
    sheet = np.ones((lines * (height + 1) - 1, across * (width + 1) - 1, *images[0].shape[2:]))
    axes = axes or _new((1.1 * across, 1.1 * lines * height / width + 0.3))
    for i, image in enumerate(images):
        top, left = (i // across) * (height + 1), (i % across) * (width + 1)
        sheet[top : top + height, left : left + width] = image
        each = figures.components[i]
        place = (left + 0.02 * width, top + 0.02 * height)
        axes.annotate(f"{each.size:,.0f}", place, va="top", fontsize=7, color="tab:orange")
    axes.imshow(sheet, cmap="gray", vmin=0.0, vmax=1.0)
    axes.set_axis_off()
    return axes


def _profiles(figures: RunFigures, axes: Axes | None) -> Axes:
    """A heat map of clusters by columns, with the columns that differ most from the whole."""
    shown = figures.components[:PROFILES]
    best = {column.name: abs(column.standard) for each in reversed(shown) for column in reversed(each.columns)}
    names = sorted(best, key=lambda name: -best[name])[:COLUMNS]
    found = np.full((len(shown), len(names)), np.nan)
    for k, each in enumerate(shown):
        for column in each.columns:
            if column.name in names:
                found[k, names.index(column.name)] = column.standard
    axes = axes or _new((1.5 + 0.35 * max(len(names), 6), 1.2 + 0.35 * len(shown)))
    most = float(np.nanmax(np.abs(found), initial=1.0))
    image = axes.imshow(found, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes.set_xticks(range(len(names)), [_literal(name) for name in names], rotation=60, ha="right")
    axes.set_yticks(range(len(shown)), [f"{each.id} ({each.size:,.0f})" for each in shown])
    axes.figure.colorbar(image, ax=axes, label="difference from all rows, in standard deviations")
    return axes


def _words(figures: RunFigures, axes: Axes | None) -> Axes:
    shown = figures.components[:PROFILES]
    axes = axes or _new((8, 0.4 + 0.4 * len(shown)))
    places = np.arange(len(shown))[::-1]
    axes.barh(places, [each.weight for each in shown], color="tab:blue", alpha=0.35)
    for place, each in zip(places, shown, strict=True):
        axes.annotate("  " + _literal(" ".join(each.words[:8])), (0, place), va="center", fontsize=8)
    axes.set(xlabel="share")
    axes.set_yticks(places, [str(each.id) for each in shown])
    return axes


def _literal(text: str) -> str:
    """Text escaped for Matplotlib, which reads text between dollar signs as mathematics."""
    return text.replace("$", r"\$")


def _course(run: object) -> RunFigures:
    """Figures of the course only, which need no data."""
    figures = run if isinstance(run, RunFigures) else course_of(run)
    if figures.ended and not figures.laps:
        raise InputError(
            f"{figures.label} has no laps to draw, as its rows came block by block. Draw its clusters, for example "
            "with clusters or map."
        )
    return _require(figures, bool(figures.laps))


def _read(run: object, data: object = None, image_shape: str | None = None) -> RunFigures:
    figures = run if isinstance(run, RunFigures) else figures_of(run, data, image_shape=image_shape)
    return _require(figures, bool(figures.sizes))


def _require(figures: RunFigures, there: bool) -> RunFigures:
    if not there:
        raise InputError(
            f"{figures.label} should have a finished lap to be drawn; it has none yet. Continue the run first."
        )
    return figures


def _new(size: tuple[float, float]) -> Any:
    """Axes of a new figure, of pyplot if that is imported, so that notebooks show it."""
    import sys

    if "matplotlib.pyplot" in sys.modules:
        return sys.modules["matplotlib.pyplot"].subplots(figsize=size, layout="constrained")[1]
    return Figure(figsize=size, layout="constrained").subplots()
