"""Lines of numbers, compressed with gzip or not, read in blocks; errors name the line."""

from __future__ import annotations

import contextlib
import gzip
import re
from collections import Counter
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import NoReturn

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.files import reading

#: Bytes of text read at a time.
_READ_BYTES = 2**22
#: First bytes of UTF-8 files of some editors, and of gzip files.
_BYTE_ORDER_MARK, _GZIP = "\ufeff", b"\x1f\x8b"


@contextlib.contextmanager
def opened(path: Path, kind: str) -> Iterator[BufferedIOBase]:
    """A file opened for reading lines, decompressed if its content is gzip; a byte order mark is skipped."""
    with reading(path, kind), path.open("rb") as raw:
        packed = path.suffix.lower() == ".gz" or raw.peek(2)[:2] == _GZIP
        with gzip.GzipFile(fileobj=raw) if packed else contextlib.nullcontext(raw) as stream:
            if stream.peek(3)[:3] == _BYTE_ORDER_MARK.encode():
                stream.read(3)
            yield stream


def read_lines(stream: BufferedIOBase, first: int) -> Iterator[tuple[int, list[bytes]]]:
    """Lines in blocks, each with the number of its first line; empty lines at the end are left out."""
    lines = stream.readlines(_READ_BYTES)
    while lines:
        following = stream.readlines(_READ_BYTES)
        while not following and lines and not lines[-1].strip():
            lines.pop()
        if lines:
            yield first, lines
        first, lines = first + len(lines), following


def numbers_of(lines: list[bytes], first: int, pattern: re.Pattern[bytes], path: Path, form: str) -> np.ndarray:
    """The numbers of lines that all match `pattern`."""
    text = b"".join(lines)
    if pattern.fullmatch(text) is None:
        place = next(i for i, line in enumerate(lines) if not line.strip() or pattern.fullmatch(line) is None)
        refuse(path, first + place, f"be '{form}' with whole numbers of 0 or more", f"'{shown(lines[place])}'")
    return np.fromstring(text.replace(b":", b" "), dtype=np.int64, sep=" ")


def shown(line: bytes) -> str:
    """The beginning of a line, for messages."""
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse(path: Path, line: int, expected: str, got: str) -> NoReturn:
    """Raise :class:`InputError` about a line."""
    raise InputError(f"line {line} of {path} should {expected}; got {got}. Correct it, or download the file again.")


def read_vocabulary(path: str) -> list[str]:
    """The words of a UTF-8 file with one word a line; raises :class:`InputError` if there is no such file, it is not
    text, a line is empty, or two are equal."""
    if not Path(path).is_file():
        raise InputError(f"there is no vocabulary at {path}. Check the path of this file with one word per line.")
    with opened(Path(path), "UTF-8 text with one word per line") as stream:
        words = [line.decode().strip() for line in stream]
    words[:1] = [word.removeprefix(_BYTE_ORDER_MARK) for word in words[:1]]
    if "" in words:
        raise InputError(
            f"line {words.index('') + 1} of {path} should be a word; it is empty. "
            "Remove the line, or write a word on it: each column of the documents needs one."
        )
    twice = [word for word, times in Counter(words).items() if times > 1]
    if twice:
        raise InputError(
            f"the words of {path} should differ; '{twice[0]}' is on two lines. Check that this is the vocabulary of "
            "the documents, and write another word on one of these lines."
        )
    return words
