"""Peak memory of a whole run in one process, with moves, as the number of components grows.

16,000 rows in 16 columns around 50 means; Gaussians with a common variance from a k-means++ start with the given number
of components; two laps with all moves, including the gains of all pairs. Each size runs in its own process.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from common import options, print_table
from memory import COLUMNS, draw_blocks, in_own_process, megabytes


class Size(NamedTuple):
    """How large the benchmark is."""

    rows: int
    components: tuple[int, ...]


FULL, SMALL = Size(16_000, (128, 441, 857)), Size(2_000, (200,))
#: MB that a run may come to.
MOST = 1000.0


def fit_measured(components: int, size: Size) -> dict[str, Any]:
    """Two laps from a start of so many components; memory in MB before and at its peak."""
    from dpdist import DPMixture
    from dpdist.execution import SerialBackend
    from dpdist.models.families import IsotropicGaussian

    rows = np.concatenate(list(draw_blocks(size.rows))).astype(np.float64)
    model = DPMixture(
        IsotropicGaussian(),
        initial="k-means++",
        initial_components=components,
        tolerance=0.0,
        max_laps=2,
        random_state=0,
    )
    before = megabytes("VmRSS")
    left = [info.n_components for _, info in model.iter_fit(rows, backend=SerialBackend())]
    return {"before": before, "peak": megabytes("VmHWM"), "left": left[-1]}


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--measure", metavar="K", help="measure one fit in this process (the benchmark calls itself)")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    if given.measure:
        print(json.dumps(fit_measured(int(given.measure), size)))
        return
    found = [in_own_process(__file__, str(components), given) for components in size.components]
    print(f"{size.rows} rows, D={COLUMNS}, 2 laps, one process")
    lines = [
        [components, one["left"], f"{one['before']:.0f}", f"{one['peak']:.0f}"]
        for components, one in zip(size.components, found, strict=True)
    ]
    print_table(["K at first", "at last", "MB before", "MB at the peak"], lines)
    highest = max(one["peak"] for one in found)
    assert highest < MOST, f"the run came to {highest:.0f} MB"


if __name__ == "__main__":
    main()
