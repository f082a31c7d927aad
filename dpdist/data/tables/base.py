"""The table that readers of files return, whose rows are not read yet, and the choice of its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.columns import Names, listed


@dataclass(frozen=True)
class Table:
    """Rows of a file, not read yet.

    Parameters
    ----------
    shape : (rows, columns); for CSV, the number of rows is an estimate
    dtype : of the rows when stored
    names : of the columns, if the file has them
    part : returns the rows from a start to a stop; None if the file can only be read from its beginning
    stream : for such a file, yields all rows in order, in arrays of about the given number of rows
    chunk : number of rows that are best read together, if known
    """

    shape: tuple[int, int]
    dtype: np.dtype
    names: Names | None = None
    part: Callable[[int, int], np.ndarray] | None = None
    stream: Callable[[int], Iterator[np.ndarray]] | None = None
    chunk: int | None = None

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """All rows in order, as (n, columns) arrays of about `rows` rows."""
        if self.stream is not None:
            yield from self.stream(rows)
        elif self.part is not None:
            for start in range(0, self.shape[0], rows):
                yield self.part(start, min(start + rows, self.shape[0]))


def stored_dtype(dtype: np.dtype, what: str) -> np.dtype:
    """The dtype in which `what` is stored; raises :class:`InputError` if it does not hold real numbers."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise InputError(f"{what} should hold real numbers; got dtype {dtype}. Convert it to float64 or leave it out.")
    return dtype.newbyteorder("=")


class NoColumnError(InputError):
    """A column chosen by name does not exist."""


@dataclass(frozen=True)
class Choice:
    """A choice of columns by name.

    Parameters
    ----------
    take : columns to take, in this order; None for all
    drop : columns to leave out
    """

    take: Sequence[str] | None = None
    drop: Sequence[str] = ()

    def of(self, names: Sequence[str], path: Path, index: Sequence[str] = ()) -> list[str]:
        """The chosen columns among `names`, without an `index` that was not asked for. Raises :class:`NoColumnError` if
        a chosen column does not exist, and :class:`InputError` if one exists or is chosen twice, or none is left."""
        there = Counter(names)
        missing = [name for name in (*(self.take or ()), *self.drop) if not there[name]]
        if missing:
            raise NoColumnError(f"{path} has no column '{missing[0]}'. Choose among: {listed(tuple(names))}.")
        taken = [name for name in names if name not in index] if self.take is None else self.take
        chosen = [name for name in taken if name not in self.drop]
        if not chosen:
            raise InputError(f"no column of {path} is left; choose at least one of: {listed(tuple(names))}.")
        twice = [name for name, times in Counter(chosen).items() if times > 1 or there[name] > 1]
        if twice:
            raise InputError(
                f"column '{twice[0]}' of {path} exists twice or was chosen twice. Give each column a different name, "
                "and choose it once."
            )
        return chosen

    def refuse(self, path: Path) -> None:
        """Raise :class:`NoColumnError` if columns are chosen from a file without names of columns."""
        if self.take is not None or self.drop:
            raise NoColumnError(f"columns are chosen by name, but {path} has no column names. Do not choose columns.")


def not_numbers(names: Sequence[str], path: Path, got: str, way_on: str) -> InputError:
    """The error that some columns, of which the first holds `got`, should hold numbers; `way_on` ends the advice."""
    told = ", ".join(f"'{name}'" for name in names)
    columns, them = ("columns", "them") if len(names) > 1 else ("column", "it")
    return InputError(
        f"{columns} {told} of {path} should hold numbers; got {got}. Leave {them} out with drop=[{told}], or choose "
        f"others with columns=['A', 'B'], in dpdist fit or dpdist convert{way_on}."
    )
