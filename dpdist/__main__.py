"""``dpdist`` and ``python -m dpdist``: the command line.

Local workers of Dask import the main module of the process that starts them. This one imports nothing until it runs, so
they import what their tasks need, and not the whole command line.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from dpdist.cli import root

        root.main()
    except KeyboardInterrupt:  # nothing was begun yet
        sys.exit(130)


if __name__ == "__main__":
    main()
