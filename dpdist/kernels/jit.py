"""The one place where Numba's options are chosen.

Numba keeps what it compiled beside a kernel's file until that file changes, not until a file does that it calls. Here
all is forgotten that is older than any of these files; not so in the folder of ``NUMBA_CACHE_DIR``, if that is set.
"""

from __future__ import annotations

from contextlib import suppress
from inspect import Signature, signature
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.core.types.containers import BaseNamedTuple
from numba.extending import overload_method

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


def jit_methods(*protocols: type) -> None:
    """Let compiled functions call the methods of these protocols that NamedTuples have, compiled as by :func:`jit`.

    LLVM puts them where they are called; Numba's own inlining would drop assignments to the elements of a field.
    """
    for name, asked in [pair for protocol in protocols for pair in vars(protocol).items()]:
        if isinstance(asked, FunctionType) and not name.startswith("_"):
            _jit_method(name, signature(asked))


def _jit_method(name: str, asked: Signature) -> None:
    def method(self: Any, *others: Any) -> object:
        return getattr(self.instance_class, name)

    method.__signature__ = asked  # type: ignore[attr-defined]  # which is what Numba takes for the method's
    options = {"nogil": True, "error_model": "numpy", "forceinline": True}
    overload_method(BaseNamedTuple, name, strict=False, jit_options=options)(method)
