"""Text with one row a line, plain or compressed. The first line decides whether cells are separated by commas,
semicolons, tabs, bars or blanks; with other separators than the comma, numbers may have a decimal comma. Lines before
it that begin with # are comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import fsspec
import numpy as np
import pandas as pd

from dpdist.core.errors import InputError
from dpdist.data.files import reading
from dpdist.data.soundness import EXACT, require_exact, require_exact_column
from dpdist.data.tables.base import Choice, Table, not_numbers

#: Separators of cells; the first one is the default.
_SEPARATORS = ",;\t|"
#: Pattern for one or more blanks as separator.
_BLANKS = r"\s+"
#: Cells of the first line that stand for a missing number.
_MISSING = {"", "NA", "N/A", "NULL", "null", "None"}
#: A number with a decimal comma.
_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")
#: A number below a million with a point between thousands, or with three digits after a decimal point.
_THOUSANDS = r"\s*[-+]?[1-9]\d{0,2}\.\d{3}\s*"
#: A whole number.
_INTEGER = re.compile(r"\s*[-+]?\d+\s*")
#: Least number of columns at which a line 0, 1, 2 and so on is unlikely to be a row of integers by chance.
_TELLING = 4
#: The same for a line of whole numbers in other even steps.
_STEADY = 6
#: Number of lines from which the format of a file is detected.
_LOOKED_AT = 50
#: Options of pandas to read the nearest float64 of each number, which is the default from 3.1 on; before, one in three
#: differed in its last bit.
_NEAREST: dict[str, Any] = (
    {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}
)
#: Options of pandas to leave cells as they are written.
_AS_WRITTEN: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True}
#: Bytes read at a time to count lines.
_READ_BYTES = 2**20


@dataclass(frozen=True)
class _Dialect:
    """The format of a file: number of lines of comments at its start, separator, decimal mark, and whether the first
    line after them names the columns."""

    comments: int
    separator: str
    decimal: str
    header: bool

    @property
    def parting(self) -> dict[str, Any]:
        """Options of pandas to separate rows and cells."""
        return _parting(self.comments, self.separator)

    def frames(self, path: Path, size: int, places: list[int] | None) -> Iterator[pd.DataFrame]:
        """Frames of `size` rows, whose columns are named by their positions in the file."""
        # low_memory=True would infer dtypes piece by piece, which mixes them within a column
        with pd.read_csv(
            path,
            decimal=self.decimal,
            header=0 if self.header else None,
            chunksize=size,  # no usecols, with which pandas accepts lines with too many cells
            low_memory=False,
            skipinitialspace=True,
            **self.parting,
            **_NEAREST,
        ) as frames:
            for frame in frames:
                frame.columns = range(frame.shape[1])
                yield frame if places is None else frame[places]


def open_text(path: Path, choice: Choice) -> Table:
    """The columns of numbers in text; the number of rows is an estimate."""
    with reading(path, "text of numbers"):
        dialect, names, looked_at = _looked_at(path)
        if len(names) == 1:
            _require_no_gaps(path, dialect.comments)
    # pandas writes its index as a first column without a name
    chosen = choice.of(names, path, [""] if names[0] == "" else [])
    place = {name: i for i, name in enumerate(names)}
    places = [place[name] for name in chosen]
    rows = max(1, _count_lines(path) - dialect.comments - dialect.header) if looked_at else 0

    def blocks(size: int) -> Iterator[np.ndarray]:
        with reading(path, "text of numbers"):
            for frame in dialect.frames(path, size, None if len(chosen) == len(names) else sorted(set(places))):
                if dialect.decimal == ",":
                    _require_no_thousands(frame, names, places, path)
                yield _numbers(frame, names, places, path)

    told = dialect.header or choice != Choice()
    return Table((rows, len(chosen)), np.dtype(np.float64), tuple(chosen) if told else None, stream=blocks)


def _require_no_gaps(path: Path, comments: int) -> None:
    """Raise :class:`InputError` for an empty line between others, after those of `comments`. In a file of one column
    this is a row whose number is missing, which pandas would skip."""
    empty, begun = 0, False
    with _opened(path) as stream:
        for number, line in enumerate(islice(stream, comments, None), comments + 1):
            if not line.strip():
                empty = empty or number * begun
            elif empty:
                raise InputError(f"line {empty} of {path} should be a number; it is empty. Fill it or remove it.")
            else:
                begun = True


def text_cells(path: Path, name: str, size: int) -> Iterator[list[object]]:
    """The cells of a column as they are written, in blocks of rows."""
    with reading(path, f"text with a column '{name}'"):
        dialect, names, _ = _looked_at(path)
        Choice([name]).of(names, path)
        written = {"header": 0 if dialect.header else None, "usecols": [names.index(name)], "chunksize": size}
        with pd.read_csv(path, **dialect.parting, **written, **_AS_WRITTEN) as frames:
            for frame in frames:
                yield frame.iloc[:, 0].tolist()


def _looked_at(path: Path) -> tuple[_Dialect, list[str], int]:
    """The format of a file and the names of its columns, from its first lines, and the number of rows in these."""
    comments, separator = _beginning(path)
    head = pd.read_csv(path, **_parting(comments, separator), header=None, nrows=_LOOKED_AT, **_AS_WRITTEN)
    cells = [[str(cell) for cell in row] for row in head.to_numpy()]
    commas = any(_COMMA.fullmatch(cell) for line in cells[1:] or cells for cell in line)
    decimal = "," if separator != "," and commas else "."  # pandas also accepts points
    dialect = _Dialect(comments, separator, decimal, _names_columns(cells, decimal, path))
    names = cells[0] if dialect.header else [str(i) for i in range(len(cells[0]))]
    return dialect, names, len(head) - dialect.header


def _parting(comments: int, separator: str) -> dict[str, Any]:
    """Options of pandas for a separator; with blanks, # begins a comment anywhere, as in files of NumPy."""
    return {"skiprows": comments, "sep": separator, "comment": "#" if separator == _BLANKS else None}


def _beginning(path: Path) -> tuple[int, str]:
    """The number of lines of comments at the start, and the separator of cells.

    The last of these lines is none, but names the columns, if it has as many separators as the next one, which is
    numbers.
    """
    before, lines = list[str](), list[str]()
    with _opened(path) as stream:
        for line in (line for each in stream for line in each.decode("utf-8-sig", errors="replace").splitlines()):
            row = bool(line.strip()) and not line.lstrip().startswith("#")
            if row or not lines:
                (lines if row else before).append(line)
            if len(lines) == 2:
                break
    found = _separator(lines)
    if found == _BLANKS or not any(map(str.strip, before)):
        return 0, found
    cells = lines[0].split(found) if lines else []
    names = before[-1].count(found) + 1 == len(cells) > 1 and all(_is_number(cell.strip(), ",") for cell in cells)
    return len(before) - names, found


def _separator(lines: list[str]) -> str:
    """The separator of cells in the first of two lines: the one that leaves numbers with decimal commas, or else the
    most frequent one outside of quotes, among those that are as many in the next line, if there are such; blanks, if
    the next line is numbers between blanks."""
    bare, after = (re.sub(r'"[^"]*"', "", line) for line in [*lines, "", ""][:2])
    commas = (each for each in _SEPARATORS[1:] if each in bare and all(map(_COMMA.fullmatch, bare.split(each))))
    steady = [each for each in _SEPARATORS if 0 < bare.count(each) == after.count(each)]  # names may have commas
    found = next(commas, None) or max(steady or _SEPARATORS, key=bare.count)
    return _BLANKS if found == _SEPARATORS[0] and lines and _are_numbers(lines[-1].split()) else found


def _are_numbers(cells: list[str]) -> bool:
    """Whether cells are two or more numbers, with points or decimal commas; a comma at the start parts cells."""
    return len(cells) > 1 and all(_is_number(c, ".") or (_COMMA.fullmatch(c) and c[0] != ",") for c in cells)


def _opened(path: Path) -> IO[Any]:
    """The bytes of the text, decompressed."""
    opened: IO[Any] = fsspec.open(str(path), "rb", compression="infer").open()
    return opened


def _numbers(frame: pd.DataFrame, names: list[str], places: list[int], path: Path) -> np.ndarray:
    """Columns as a float64 array; raises :class:`InputError` naming the columns with other contents."""
    columns = {i: frame[i] for i in places}
    mixed = [i for i in places if columns[i].dtype.kind not in "iuf"]  # pandas read the others as numbers
    found = {i: pd.to_numeric(columns[i], errors="coerce") for i in mixed}
    wrong = {i: columns[i][found[i].isna() & columns[i].notna()] for i in mixed}
    lost = [i for i in mixed if len(wrong[i])]
    if lost:
        raise not_numbers([names[i] for i in lost], path, f"'{wrong[lost[0]].iloc[0]}'", ", or correct it")
    return np.column_stack([_exact(columns[i], found.get(i, columns[i]), names[i], path) for i in places])


def _require_no_thousands(frame: pd.DataFrame, names: list[str], places: list[int], path: Path) -> None:
    """Raise :class:`InputError` for a column of a file with decimal commas in which every point may be one between
    thousands, as in 1.234."""
    for i in places:
        if frame[i].dtype.kind not in "biuf":
            cells = frame[i].astype(str)
            pointed = cells[cells.str.contains(".", regex=False)]
            if len(pointed) and pointed.str.fullmatch(_THOUSANDS).all():
                raise InputError(
                    f"numbers of {path}, which has decimal commas, should have no points between thousands; got "
                    f"'{pointed.iloc[0].strip()}' in column '{names[i]}'. Write the file without them."
                )


def _exact(column: pd.Series, numbers: pd.Series, name: str, path: Path) -> np.ndarray:
    """The numbers of a column as float64; raises :class:`InputError` for integers that it rounds."""
    where = f"in column '{name}' of {path}"
    require_exact_column(np.asarray(numbers), where)
    if numbers.dtype.kind == "f" and column.dtype.kind not in "iuf":  # text may have more digits than 64 bits hold
        for each in column[numbers.abs() > EXACT].astype(str).str.strip():
            if _INTEGER.fullmatch(each):
                require_exact(int(each), where)
    return np.asarray(numbers, dtype=np.float64)


def _names_columns(cells: list[list[str]], decimal: str, path: Path) -> bool:
    """Whether the first of some lines names the columns.

    It does if a cell is not a number, or if the cells are pandas' names of unnamed columns: 0, 1, 2 and so on; or if
    enough cells count on in other even steps, as years and wavelengths do.

    Raises
    ------
    InputError
        If they are such whole numbers, but so are the cells of the next line.
    """
    first = cells[0]
    if not all(_is_number(cell, decimal) for cell in first):
        return True
    index = first[:1] == [""]  # pandas writes it without a name
    names = first[index:]
    counted = len(first) > 1 and names == [str(i) for i in range(len(names))]
    if not (counted or _count_on(names)) or len(cells) == 1:
        return False
    if index or not all(map(_INTEGER.fullmatch, cells[1])):
        return True
    if len(first) < _TELLING:
        return False
    raise InputError(
        f"the first line of {path} should be either a row or column names; got {', '.join(names[:3])} to {names[-1]}, "
        "which may be either. Write other names, for example with header=['a', 'b'] in pandas' to_csv, or no header, "
        "with header=False."
    )


def _count_on(cells: list[str]) -> bool:
    """Whether cells are so many whole numbers in even steps that they are unlikely to be a row by chance."""
    if len(cells) < _STEADY or not all(map(_INTEGER.fullmatch, cells)):
        return False
    steps = {int(after) - int(before) for before, after in pairwise(cells)}
    return len(steps) == 1 and steps != {0}


def _is_number(cell: str, decimal: str) -> bool:
    """Whether a cell of the first line is data: a number, or missing."""
    try:
        float(cell.replace(decimal, "."))
    except ValueError:
        return cell in _MISSING
    return True


def _count_lines(path: Path) -> int:
    """Number of line ends of either kind, including those of blank lines and inside quotes."""
    feeds = returns = 0
    with _opened(path) as stream:
        while piece := stream.read(_READ_BYTES):
            feeds, returns = feeds + piece.count(b"\n"), returns + piece.count(b"\r")
    return max(feeds, returns)
