"""Which numbers a family of counts or bits takes: in data that are fitted, and in rows that a model is asked of."""

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
    told : what they are called
    remedy : what to do about others, a sentence
    """

    least: float
    most: float
    told: str
    remedy: str

    def check_range(self, minimum: np.ndarray, maximum: np.ndarray, integral: bool, family: str) -> None:
        """Raise :class:`InputError`, which names the `family`, if columns of this range (D,) hold other numbers."""
        if np.isinf(minimum).any() or np.isinf(maximum).any():
            self._refuse(family, "centred, scaled or rotated columns hold any numbers", "Leave the transform out.")
        lowest, highest = int(minimum.argmin()), int(maximum.argmax())
        if minimum[lowest] < self.least:
            self._refuse(family, f"column {lowest} goes down to {minimum[lowest]:g}")
        if maximum[highest] > self.most:
            self._refuse(family, f"column {highest} goes up to {maximum[highest]:g}")
        if not integral:
            self._refuse(family, "some entries have a fraction")

    def check_rows(self, rows: np.ndarray | sparse.csr_array, places: Sequence[int] | np.ndarray, family: str) -> None:
        """The same of rows (n, D), which have some `places` (n,) in the data."""
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


#: Above the last, gamma functions of a few hundred such counts are off by thousandths of a nat and more.
COUNTS = Support(
    0.0,
    2.0**31 - 1,
    "whole-number counts from 0 to 2147483647",
    "Mend such entries, count in larger units, or choose a Gaussian family.",
)
BITS = Support(
    0.0,
    1.0,
    "entries of 0 or 1",
    "Binarise them (x > threshold), or choose Poisson or Multinomial for counts.",
)
