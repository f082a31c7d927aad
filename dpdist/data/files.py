"""Files that people give to be converted: that they are there, and what is said of those that are damaged."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from dpdist.core.errors import DpdistError, InputError


def require_file(path: Path) -> None:
    """Raise :class:`InputError` unless there is a file."""
    if not path.is_file():
        raise InputError(f"there is no file at {path}; check the path. It should be a file on local disk.")


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Tell of a damaged file in a sentence."""
    try:
        yield
    except DpdistError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        told = str(error).strip().rstrip(".")
        raise InputError(
            f"{path} should be {kind}, but cannot be read as such: {told}. Mend it, fetch it again or save it anew."
        ) from error
