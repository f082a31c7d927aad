"""The one place where Numba's options are chosen.

Numba keeps what it compiled beside a kernel's file until that file changes, not until a file does that it calls. Here
all is forgotten that is older than any of these files; not so in the folder of ``NUMBA_CACHE_DIR``, if that is set.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numba

Function = TypeVar("Function")


def forget_older(folder: Path) -> None:
    """Remove what was compiled of the kernels in a folder before one of them was edited last."""
    edited = max(file.stat().st_mtime for file in folder.glob("*.py"))
    for kept in (folder / "__pycache__").glob("*.nb[ci]"):
        with suppress(OSError):  # another process removed it, or this one may not
            if kept.stat().st_mtime < edited:
                kept.unlink()


forget_older(Path(__file__).parent)


def jit(function: Function) -> Function:
    """Compile `function` once for all processes, single-threaded, without the GIL.

    Reassociation is not allowed (no ``fastmath``), so a kernel's sums have one order and one result.
    """
    compiled: Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def jit_reassociated(function: Function) -> Function:
    """As :func:`jit`, for dot products: the compiler may reorder their sums, once and for all, to vectorise them."""
    compiled: Function = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})(
        function
    )
    return compiled
