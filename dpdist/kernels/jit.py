"""The one place where Numba's options are chosen.

What is compiled is kept beside a kernel's file until that file changes, not until a file does that it calls: who edits
one should remove ``dpdist/kernels/__pycache__``. Installing a new version replaces all files.
"""

from __future__ import annotations

from typing import TypeVar

import numba

Function = TypeVar("Function")


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
