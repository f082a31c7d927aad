"""Values that families of counts or bits accept, in fitted data and in rows to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpdist.core.errors import InputError


@dataclass(frozen=True)
class Support:
    """Whole numbers within bounds.

    Parameters
    ----------
    least, most : the bounds
    told : description of the values, for messages
    remedy : a sentence that advises what to do about other values
    """

    least: float
    most: float
    told: str
    remedy: str

    def check_range(self, minimum: np.ndarray, maximum: np.ndarray, integral: bool, family: str) -> None:
        """Raise :class:`InputError`, naming the `family`, if columns with this range (D,) hold other values."""
        if np.isinf(minimum).any() or np.isinf(maximum).any():
            self._refuse(family, "the row transform turns them into other numbers", "Leave the transform out.")
        lowest, highest = int(minimum.argmin()), int(maximum.argmax())
        if minimum[lowest] < self.least:
            self._refuse(family, f"column {lowest} has the minimum {minimum[lowest]:g}")
        if maximum[highest] > self.most:
            self._refuse(family, f"column {highest} has the maximum {maximum[highest]:g}")
        if not integral:
            self._refuse(family, "some entries are not whole numbers")

    def check_rows(self, rows: np.ndarray | sparse.csr_array, places: Sequence[int] | np.ndarray, family: str) -> None:
        """The same check for rows (n, D); `places` (n,) are their positions in the data."""
        held = np.asarray(rows.data if isinstance(rows, sparse.csr_array) else rows).ravel()
        others = np.flatnonzero((held < self.least) | (held > self.most) | (held != np.rint(held)))
        if len(others):
            place = int(others[0])
            if isinstance(rows, sparse.csr_array):
                row = int(np.searchsorted(rows.indptr, place, side="right")) - 1
            else:
                row = place // rows.shape[1]
            self._refuse(family, f"row {places[row]} has an entry of {held[place]:g}")

    def _refuse(self, family: str, found: str, remedy: str | None = None) -> None:
        raise InputError(f"{family} needs {self.told}; {found}. {remedy or self.remedy}")


#: Above the upper bound, gamma functions of sums of a few hundred counts have errors of thousandths of a nat and more.
COUNTS = Support(
    0.0,
    2.0**31 - 1,
    "whole-number counts from 0 to 2147483647",
    "Correct such entries, count in larger units, or choose a Gaussian family.",
)
BITS = Support(
    0.0,
    1.0,
    "entries of 0 or 1",
    "Binarise them (x > threshold), or choose Poisson or Multinomial for counts.",
)
