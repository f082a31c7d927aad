"""Numba options, and the cache of compiled kernels.

The cache is beside the kernel's file or, if ``NUMBA_CACHE_DIR`` is set, in that folder, which any number of copies of
this package may share. A compiled kernel is reused while the contents of its file, of the files that define the
NamedTuples in its arguments, and of the files in the same folder that these import are unchanged; Numba alone would
check the kernel's own file only.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from inspect import Signature, signature
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import caching, config
from numba.core.types.containers import BaseNamedTuple, BaseTuple
from numba.extending import overload_method

Function = TypeVar("Function")

#: Shown once, because each kernel gives the same warning at the same line, and not by workers.
_NOT_STORED = (
    "compiled functions cannot be stored, so every process compiles them again, which takes up to a minute: neither "
    "the folder of dpdist nor the home folder can be written to. Set NUMBA_CACHE_DIR to a folder that can."
)
_IMPORT = re.compile(r"^(?:from|import) (?:[\w.]*\.)?(\w+)", re.MULTILINE)


@cache
def _imported(file: Path) -> frozenset[Path]:
    """Files in the same folder that a file imports."""
    beside = {file.with_name(f"{name}.py") for name in _IMPORT.findall(file.read_text())}
    return frozenset(path for path in beside if path.exists())


@cache
def stamp(file: Path) -> str:
    """Digest of the contents of a file and of the files in its folder that it imports, directly or indirectly."""
    found: set[Path] = set()
    fresh = {file}
    while fresh:
        found |= fresh
        fresh = {path for each in fresh for path in _imported(each)} - found
    digests = [path.name.encode() + hashlib.sha256(path.read_bytes()).digest() for path in sorted(found)]
    return hashlib.sha256(b"".join(digests)).hexdigest()


class _ByContents:
    """Treats a compiled kernel as valid while :func:`stamp` is unchanged."""

    _py_file: str

    def get_source_stamp(self) -> str:
        """The stamp to compare."""
        return stamp(Path(self._py_file))


class _Beside(_ByContents, caching.InTreeCacheLocator):
    """Stores compiled kernels beside the kernel's file."""


class _OfUser(_ByContents, caching.UserWideCacheLocator):
    """Stores compiled kernels in a folder of the user, if the kernel's own folder is not writable."""


class _Shared(_ByContents, caching.UserProvidedCacheLocator):
    """Stores compiled kernels in ``NUMBA_CACHE_DIR`` by contents, wherever the kernel's file is."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        path = Path(file)
        self._cache_path = str(Path(config.CACHE_DIR) / f"{path.stem}-{stamp(path)[:16]}")


class _Kept(caching.CompileResultCacheImpl):
    _locator_classes = (_Shared, _Beside, _OfUser)


class _Cache(caching.FunctionCache):
    """One entry per signature and version of the files that define its NamedTuples, whose methods may be called.

    Signatures are stored as text. Numba stores their classes, so an index that names a renamed or moved class could not
    be read.
    """

    _impl_class = _Kept

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._version += ", signatures in words"  # other indices are ignored

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The stored kernel, or None; if the files cannot be read, for example after a power failure, it is compiled
        again."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # damage can raise any error
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel, unless the folder is full or not writable: the cache only saves time."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        _, *others = super()._index_key(sig, codegen)
        classes = {each for kind in sig for each in _named_tuples(kind)}
        files = {sys.modules[each.__module__].__file__ for each in classes}
        names = sorted(f"{each.__module__}.{each.__qualname__}" for each in classes)
        return (str(sig), *names, *others, *sorted(stamp(Path(file)) for file in files if file))


def _named_tuples(kind: Any) -> Iterator[type]:
    """Classes of the NamedTuples in the type of an argument."""
    if isinstance(kind, BaseNamedTuple):
        yield kind.instance_class
    if isinstance(kind, BaseTuple):
        for inner in kind.types:
            yield from _named_tuples(inner)


def _kept(function: Any, **options: Any) -> Any:
    compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    if config.DISABLE_JIT:
        return compiled
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # a package that others installed, for a user without a home
        if multiprocessing.parent_process() is None:
            warnings.warn(_NOT_STORED, stacklevel=1)
    return compiled


def jit(function: Function) -> Function:
    """Compile `function` once for all processes, single-threaded, without the GIL.

    Reassociation is not allowed (no ``fastmath``), so a kernel's sums have one order and one result.
    """
    compiled: Function = _kept(function)
    return compiled


def jit_reassociated(function: Function) -> Function:
    """Like :func:`jit`, for dot products: the compiler may reorder their sums, in a fixed way, to vectorise them."""
    compiled: Function = _kept(function, fastmath={"reassoc", "contract"})
    return compiled


def jit_inlined(function: Function) -> Function:
    """Like :func:`jit`, for functions called once per row: LLVM inlines them, because passing many arrays is slow."""
    compiled: Function = _kept(function, forceinline=True)
    return compiled


def jit_methods(*protocols: type) -> None:
    """Let compiled functions call the methods of these protocols on NamedTuples, compiled as by :func:`jit`.

    LLVM inlines them; Numba's own inlining would drop assignments to elements of a field.
    """
    for name, asked in [pair for protocol in protocols for pair in vars(protocol).items()]:
        if isinstance(asked, FunctionType) and not name.startswith("_"):
            _jit_method(name, signature(asked))


def _jit_method(name: str, asked: Signature) -> None:
    def method(self: Any, *others: Any) -> object:
        return getattr(self.instance_class, name)

    method.__signature__ = asked  # type: ignore[attr-defined]  # Numba uses it as the method's signature
    options = {"nogil": True, "error_model": "numpy", "forceinline": True}
    overload_method(BaseNamedTuple, name, strict=False, jit_options=options)(method)


def contiguous(array: np.ndarray) -> np.ndarray:
    """A copy that any kernel of float64 arrays takes: a kernel would be compiled anew for memory in another order, or
    that may not be written."""
    return np.array(array, dtype=np.float64, order="C")
