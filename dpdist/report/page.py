"""The HTML report of a run: one self-contained file, which includes all its figures as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import dpdist
from dpdist.core.errors import OutputExistsError
from dpdist.core.outputs import check_parent, require_path
from dpdist.core.places import LocalPlace
from dpdist.report.charts import colour_of
from dpdist.report.figures import RunFigures
from dpdist.report.panels import drawn_proposals, move_table, panels_of
from dpdist.report.pictures import address, as_image, shade
from dpdist.report.reading import LINKED
from dpdist.report.units import duration

_HERE = Path(__file__).parent
#: The tag by which such a page is recognised.
MARK = b'<meta name="generator" content="dpdist">'


def page_of(figures: RunFigures, again: int = 0) -> str:
    """The page.

    Parameters
    ----------
    figures : contents
    again : seconds after which a browser reloads the page; 0 for never
    """
    pictures, rows = _pictures(figures)
    charts = panels_of(figures, pictures)
    script, divs = components(charts) if charts else ("", {})
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        f=figures,
        name=PurePosixPath(figures.label.rstrip("/")).name,
        again=0 if figures.ended else again,
        tiles=_tiles(figures),
        charts={name: Markup(div) for name, div in divs.items()},
        moves=move_table(figures),
        moves_told=_moves_told(figures),
        pictures=pictures,
        rows=rows,
        clusters_told=_clusters_told(figures),
        map_told=_map_told(figures),
        sizes_told=_sizes_told(figures),
        colour=colour_of,
        width=_width,
        held=math.fsum(figures.sizes) or 1.0,
        version=dpdist.__version__,
        style=Markup((_HERE / "page.css").read_text()),
        behaviour=Markup((_HERE / "page.js").read_text()),
        library=Markup(_library()),
        script=Markup(script),
        json=Markup(json_of(figures)),
    )


def json_of(figures: RunFigures) -> str:
    """The figures as JSON, escaped for a page; numbers that are not finite become null."""
    return json.dumps(_finite(asdict(figures)), allow_nan=False).replace("<", "\\u003c")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _library() -> str:
    """Bokeh's script, without widgets and tables."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def _pictures(figures: RunFigures) -> tuple[list[str], list[list[str]]]:
    """Data URLs of the pictures of clusters, and of the rows nearest to each."""
    shape, shown = figures.image_shape, figures.components
    if shape is None:
        return [], []
    shades = shade([each.picture or (0.0,) for each in shown], figures.directions)
    nearest = [row.values for each in shown for row in each.nearest]
    plain = shade(nearest, False) if nearest else shades
    return (
        [address(as_image(each.picture or (), shape, shades)) for each in shown],
        [[address(as_image(row.values, shape, plain)) for row in each.nearest] for each in shown],
    )


def _tiles(figures: RunFigures) -> list[tuple[str, str, str]]:
    """Name, value and remark of the headline numbers."""
    if figures.n_components is None or figures.rows is None:
        return []
    found = [(figures.parts, f"{figures.n_components:,}", "found")]
    if figures.per_unit is not None:
        found.append((f"ELBO per {figures.unit}", f"{figures.per_unit:.4f}", f"{figures.elbo:,.1f} nats in total"))
    if figures.holdout is not None:
        found.append(("held out", f"{figures.holdout:.4f}", "nats per row"))
    what = "documents" if figures.unit == "token" else "rows"
    found.append((what, f"{figures.rows:,.0f}", ""))
    found.append((f"{figures.laps_are}s", f"{len(figures.laps):,}", ""))
    found.append(("time", duration(figures.seconds), f"{duration(figures.seconds / max(len(figures.laps), 1))} each"))
    return found


def _clusters_told(figures: RunFigures) -> str:
    shown = len(figures.components)
    many = f"The largest {shown} of {figures.n_components:,}" if shown < (figures.n_components or 0) else f"All {shown}"
    many = "The only one" if figures.n_components == 1 else many
    if figures.unit == "token":
        seen = f" NPMI is the coherence of these words in {figures.seen}." if figures.seen else ""
        return f"{many}, with their most probable words.{seen}"
    if figures.image_shape is not None:
        centre = "the direction of largest variance" if figures.directions else "the centre"
        return f"{many}: {centre} and the nearest rows. Based on {figures.seen}."
    return f"{many}: the columns that differ most from all rows, in standard deviations. Based on {figures.seen}."


def _moves_told(figures: RunFigures) -> str:
    shown, many = len(drawn_proposals(figures)), len(figures.proposals)
    which = "All proposals, by gain" if shown == many else f"{shown:,} of {many:,} proposals, by gain"
    rest = "" if shown == many else " The gain of the others is unknown or smaller."
    return f"{which}: dots were accepted, crosses were not.{rest}"


def _map_told(figures: RunFigures) -> str:
    found = figures.map
    if found is None:
        return ""
    joined = f"clusters that take at least {LINKED:.0%} of each other's rows"
    if figures.unit == "token":
        joined = "each topic and the topic with the most similar words"
    part = len(found.ids) < (figures.n_components or 0)
    which = f"The largest {len(found.ids)} of {figures.n_components:,}. " if part else ""
    return (
        f"{which}Near circles are similar {figures.parts}, large circles are large {figures.parts}, and lines join "
        f"{joined}. Distances on the map are off by {found.stress:.0%} (root mean square)."
    )


def _sizes_told(figures: RunFigures) -> str:
    half, total = 0.0, sum(figures.sizes)
    if len(figures.sizes) == 1:
        return ""
    for count, size in enumerate(figures.sizes, 1):
        half += size
        if half >= total / 2:
            largest = "largest" if count == 1 else f"largest {count:,}"
            return f"Half of the total size is in the {largest} of {len(figures.sizes):,} {figures.parts}."
    return ""


def _width(standard: float) -> float:
    """Width of a bar, in percent of its line, at most half."""
    return min(50.0, 12.5 * abs(standard))


def claim_page(path: str | Path) -> Path:
    """`path`, checked as a page to write. Raises :class:`OutputExistsError` if something other than a report exists
    there, and :class:`InputError` if its folder does not exist or it is a URL."""
    require_path(path, "a report", "report.html")
    target = Path(path)
    check_parent(target)
    if target.exists() and not (target.is_file() and _is_page(target)):
        kind = "report" if target.is_file() else "file"
        raise OutputExistsError(f"{target} exists and is not a {kind}, so it is not replaced; choose another name.")
    return target


def _is_page(path: Path) -> bool:
    """Whether a file is a report, or empty."""
    with path.open("rb") as file:
        begin = file.read(1024)
    return not begin or MARK in begin


def write_page(figures: RunFigures, path: str | Path, again: int = 0) -> None:
    """Write the page in one atomic step, so that readers get the old page or the new one."""
    target = claim_page(path)
    page = page_of(figures, again).encode(errors="backslashreplace")  # names of files can be any bytes
    LocalPlace(target.parent).replace(target.name, page)
