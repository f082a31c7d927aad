"""``python -m dpdist``: the command line.

Local workers of Dask import the main module of the process that starts them, unless it is a package's ``__main__``:
begun like this, a command's workers import what their tasks need, and not the whole command line.
"""

from __future__ import annotations

from dpdist.cli import main

if __name__ == "__main__":
    main()
