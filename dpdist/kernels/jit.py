"""The one place where Numba's options are chosen, and where what it compiled is kept.

That is beside the kernel's file or, if ``NUMBA_CACHE_DIR`` is set, in that folder, which any number of copies of this
package may share. What was compiled is used as long as the kernel's file, those of the NamedTuples that it is called
with, and the files beside them that they import, have the same contents; Numba alone would look at the kernel's own.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from inspect import Signature, signature
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numba
from numba.core import caching, config
from numba.core.types.containers import BaseNamedTuple, BaseTuple
from numba.extending import overload_method

Function = TypeVar("Function")

_IMPORT = re.compile(r"^(?:from|import) (?:[\w.]*\.)?(\w+)", re.MULTILINE)


@cache
def _imported(file: Path) -> frozenset[Path]:
    """Files in the same folder that a file imports."""
    beside = {file.with_name(f"{name}.py") for name in _IMPORT.findall(file.read_text())}
    return frozenset(path for path in beside if path.exists())


@cache
def stamp(file: Path) -> str:
    """Digest of what a file and those beside it hold that it imports, be it by way of others."""
    found: set[Path] = set()
    fresh = {file}
    while fresh:
        found |= fresh
        fresh = {path for each in fresh for path in _imported(each)} - found
    digests = [path.name.encode() + hashlib.sha256(path.read_bytes()).digest() for path in sorted(found)]
    return hashlib.sha256(b"".join(digests)).hexdigest()


class _ByContents:
    """Takes what was compiled for fresh as long as :func:`stamp` stays."""

    _py_file: str

    def get_source_stamp(self) -> str:
        """What is compared."""
        return stamp(Path(self._py_file))


class _Beside(_ByContents, caching.InTreeCacheLocator):
    """Keeps it beside the kernel's file."""


class _OfUser(_ByContents, caching.UserWideCacheLocator):
    """Keeps it in a folder of the user, where the kernel's own cannot be written to."""


class _Shared(_ByContents, caching.UserProvidedCacheLocator):
    """Keeps it in ``NUMBA_CACHE_DIR`` by contents, wherever the kernel's file stands."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        path = Path(file)
        self._cache_path = str(Path(config.CACHE_DIR) / f"{path.stem}-{stamp(path)[:16]}")


class _Kept(caching.CompileResultCacheImpl):
    _locator_classes = (_Shared, _Beside, _OfUser)


class _Cache(caching.FunctionCache):
    """An entry a signature and a version of the files that define its NamedTuples, whose methods may be called.

    Signatures are kept in words: Numba keeps their classes, and an index that names one that was renamed or moved could
    not be read.
    """

    _impl_class = _Kept

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._version += ", signatures in words"  # any other index is left unread

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        _, *others = super()._index_key(sig, codegen)
        classes = {each for kind in sig for each in _named_tuples(kind)}
        files = {sys.modules[each.__module__].__file__ for each in classes}
        names = sorted(f"{each.__module__}.{each.__qualname__}" for each in classes)
        return (str(sig), *names, *others, *sorted(stamp(Path(file)) for file in files if file))


def _named_tuples(kind: Any) -> Iterator[type]:
    """Classes of the NamedTuples of which the type of an argument is made."""
    if isinstance(kind, BaseNamedTuple):
        yield kind.instance_class
    if isinstance(kind, BaseTuple):
        for inner in kind.types:
            yield from _named_tuples(inner)


def _kept(function: Any, **options: Any) -> Any:
    compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    if not config.DISABLE_JIT:
        compiled._cache = _Cache(function)
    return compiled


def jit(function: Function) -> Function:
    """Compile `function` once for all processes, single-threaded, without the GIL.

    Reassociation is not allowed (no ``fastmath``), so a kernel's sums have one order and one result.
    """
    compiled: Function = _kept(function)
    return compiled


def jit_reassociated(function: Function) -> Function:
    """As :func:`jit`, for dot products: the compiler may reorder their sums, once and for all, to vectorise them."""
    compiled: Function = _kept(function, fastmath={"reassoc", "contract"})
    return compiled


def jit_inlined(function: Function) -> Function:
    """As :func:`jit`, for what is called once a row: LLVM puts it there, as a call that passes many arrays is dear."""
    compiled: Function = _kept(function, forceinline=True)
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
