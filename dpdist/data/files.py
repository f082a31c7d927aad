"""Paths of files: their endings, whether they exist, and error messages for damaged ones."""

from __future__ import annotations

import contextlib
import glob
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from dpdist.core.errors import DpdistError, InputError
from dpdist.core.places import absolute

#: Endings of text, and of compressed text.
TEXT, COMPRESSED = (".csv", ".tsv", ".dat", ".data"), (".gz", ".bz2", ".xz", ".zst")
#: Endings of files within which a path may name a data set, as in FILE.h5/NAME.
NESTED = (".h5", ".hdf5")
#: Endings of files of rows; :data:`dpdist.data.tables.READERS` has a reader for each.
ENDINGS = (*TEXT, *NESTED, ".npy", ".parquet", ".fvecs", ".bvecs")


def ending_of(path: str) -> str:
    """The ending that selects a reader, without that of a compression; '' if there is none."""
    suffixes = [suffix.lower() for suffix in parted(Path(path))[0].suffixes]
    compressed = len(suffixes) > 1 and suffixes[-1] in COMPRESSED and suffixes[-2] in TEXT
    return suffixes[-2 if compressed else -1] if suffixes else ""


def parted(path: Path) -> tuple[Path, str]:
    """A file, and the name of a data set within it."""
    for place in path.parents:
        if place.suffix.lower() in NESTED:
            return place, path.relative_to(place).as_posix()
    return path, ""


def located(path: str | os.PathLike[str]) -> str:
    """The absolute path or URL of rows; in a pattern, special characters of the working directory are escaped."""
    where = os.fspath(path)
    if "://" in where or not glob.has_magic(where) or Path(where).exists() or Path(where).is_absolute():
        return absolute(where)
    return str(Path(glob.escape(str(Path.cwd()))) / where)


def holds_files(path: str) -> bool:
    """Whether a path names files of rows: by its ending, or as a folder of Parquet files that is not Zarr."""
    if "://" in path:
        return False
    folder = Path(path)
    if not folder.is_dir():
        return ending_of(path) in ENDINGS
    zarr = any((folder / mark).is_file() for mark in ("zarr.json", ".zarray", ".zgroup"))
    return not zarr and ending_of(path) != ".zarr" and next(parquet_in(folder), None) is not None


def parquet_in(folder: Path) -> Iterator[Path]:
    """The Parquet files in a folder and its subfolders, without hidden ones and remains of failed jobs."""
    for each in folder.rglob("*.parquet"):
        if each.is_file() and not any(part.startswith((".", "_")) for part in each.relative_to(folder).parts):
            yield each


def refuse_other_folder(path: str) -> None:
    """Raise :class:`InputError` if a path is a folder that is neither Zarr nor holds Parquet."""
    if "://" in path or ending_of(path) or not Path(path).is_dir() or (Path(path) / "zarr.json").is_file():
        return
    ending = next(
        (ending_of(each.name) for each in sorted(Path(path).iterdir()) if ending_of(each.name) in ENDINGS), ".csv"
    )
    raise InputError(f"the folder {path} has neither Zarr nor Parquet. Give its files, such as '{path}/*{ending}'.")


def refuse_url(path: str) -> None:
    """Raise :class:`InputError` if a path is a URL."""
    if "://" in path:
        raise InputError(f"{path} is a URL, but files of rows or documents are read only from local disk. Download it.")


def require_file(path: Path) -> None:
    """Raise :class:`InputError` unless the file exists."""
    if not path.is_file():
        raise InputError(f"there is no file at {path}; check the path. It should be a file on local disk.")


def stamp_of(path: str) -> tuple[str, int, int]:
    """Path, size and modification time, in ns, of a file, which change if it is changed."""
    status = parted(Path(path))[0].stat()
    return str(Path(path).absolute()), status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Convert errors of reading a damaged file to :class:`InputError`."""
    try:
        yield
    except DpdistError:
        raise
    except ImportError as error:
        raise InputError(f"{path} cannot be read without a package that is not installed: {error}") from error
    except (ValueError, OSError, EOFError, KeyError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        told, remedy = str(error).strip().rstrip("."), "Correct it, download it again or save it again"
        if isinstance(error, UnicodeDecodeError):
            remedy = "Save it as UTF-8"
        raise InputError(f"{path} should be {kind}, but reading it failed: {told}. {remedy}.") from error
