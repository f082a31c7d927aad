"""A folder on local disk, or on a network file system with atomic links."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dpdist.core.places.base import Place

#: Number of files that are written and synchronised at a time.
TOGETHER = 8
#: Errors of file systems without hard links, such as FAT, when one is made.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class LocalPlace(Place):
    """The folder at `path`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # absolute, so that a later change of the working directory has no effect
        self.path, self.label = Path(path).absolute(), os.fspath(path)

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def identity(self) -> str:
        return os.path.realpath(self.path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes | memoryview) -> bool:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _aside(target, data) as aside:
            try:
                os.link(aside, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                reason = "the file system has no hard links, which are needed"
                raise OSError(errno.EOPNOTSUPP, reason, str(target)) from error
        _synchronise(target.parent)
        return True

    def replace(self, name: str, data: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        self.renew(name, data)

    def renew(self, name: str, data: bytes) -> None:
        target = self.path / name
        with _aside(target, data) as aside:
            aside.replace(target)
        _synchronise(target.parent)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.path / folder).iterdir() if not entry.name.startswith("."))
        except FileNotFoundError:
            return []

    def remove(self, *names: str) -> None:
        targets = [self.path / name for name in names]
        branches = [branch for target in targets for branch in _branches(target)]
        # Each removal waits for the disk; many at once take a twentieth of the time.
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="dpdist-remove") as removing:
            list(removing.map(_remove, branches))
            list(removing.map(_remove, targets))

    def files(self, folder: str) -> dict[str, bytes]:
        top, found = self.path / folder, {}
        for parent, _, names in os.walk(top):
            for file in (Path(parent) / name for name in names if not name.startswith(".")):
                with contextlib.suppress(FileNotFoundError):
                    found[file.relative_to(top).as_posix()] = file.read_bytes()
        return found

    def _put(self, folder: str, parts: Mapping[str, memoryview]) -> None:
        top = self.path / folder
        files = [(top / name, data) for name, data in parts.items()]
        for parent in sorted({file.parent for file, _ in files}):
            parent.mkdir(parents=True, exist_ok=True)
        # Each synchronisation waits for the disk; several at once take a third of the time.
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="dpdist-synchronise") as waiting:
            list(waiting.map(_write_files, [files[place::TOGETHER] for place in range(TOGETHER)]))
            list(waiting.map(_synchronise, [Path(changed) for changed, _, _ in os.walk(top)]))
        _synchronise(top.parent)

    def sweep(self, folder: str) -> None:
        for left in (self.path / folder).glob(".*.partial-*"):
            left.unlink(missing_ok=True)

    def exists(self) -> bool:
        return self.path.exists()


@contextlib.contextmanager
def _aside(target: Path, data: bytes | memoryview) -> Iterator[Path]:
    """A temporary file beside `target` with its future content, durable on disk; removed in the end."""
    aside = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex}")
    try:
        _write(aside, data)
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _branches(folder: Path) -> list[Path]:
    """The entries of the subfolders of a folder, such as the arrays of nested groups; links are not followed."""
    inner = [] if folder.is_symlink() else _entries(folder)
    return [Path(below) for one in inner if one.is_dir(follow_symlinks=False) for below in _entries(one)]


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(target: Path) -> None:
    """Remove a file, a link, or a folder with its contents, if it exists."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target, ignore_errors=True)
    else:
        target.unlink(missing_ok=True)


def _write_files(files: Sequence[tuple[Path, memoryview]]) -> None:
    for file, data in files:
        _write(file, data)


def _write(file: Path, data: bytes | memoryview) -> None:
    """Write a file, durably."""
    with open(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def put_file(aside: Path, target: Path) -> None:
    """Replace the file `target` by `aside` in one step; the new content is durable by then."""
    _synchronise(aside)
    aside.replace(target)
    _synchronise(target.parent)


def _synchronise(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
