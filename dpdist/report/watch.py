"""Writing of the report of a stored run, once or after each of its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from dpdist.core.errors import CheckpointError
from dpdist.report.page import claim_page, write_page
from dpdist.report.reading import figures_of
from dpdist.runs.events import count_of
from dpdist.runs.opening import open_run

#: Seconds between two checks of a run, and after which a browser reloads the page.
LOOK = 5


def write_report(
    run: str, out: str | Path, data: str | None, image_shape: str | None, largest: int, rows: int, watch: bool
) -> Iterator[str]:
    """Write the page and yield a sentence about it; with `watch`, repeatedly until the run has ended.

    Parameters
    ----------
    run : a path or URL
    out : HTML file
    data, image_shape, largest, rows : as for :func:`dpdist.report.reading.figures_of`
    watch : whether to continue until the run has ended
    """
    claim_page(out)
    while True:
        number = open_run(run).number
        try:
            figures = figures_of(run, data, image_shape=image_shape, largest=largest, rows=rows)
        except CheckpointError:
            if not watch or open_run(run).number == number:
                raise
            continue  # the run went on while it was read
        write_page(figures, out, again=LOOK if watch else 0)
        laps = count_of(len(figures.laps), figures.laps_are)
        parts = count_of(figures.n_components or 0, figures.parts.removesuffix("s"))
        yield f"{out}: {laps}, {parts}; {figures.state}."
        if not watch or figures.ended:
            return
        while open_run(run).number == number:
            time.sleep(LOOK)
