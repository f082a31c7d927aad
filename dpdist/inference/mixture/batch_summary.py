"""Sums over the rows of a batch under one posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dpdist.core.stored import Stored
from dpdist.inference.mixture.owners import AnyOwners, KeptOwners
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class BatchSummary:
    """Summary of the components, and the measurements of each move's proposals, over the same rows.

    Parameters
    ----------
    summary : of the components
    measured : of each move's proposals
    owners : (n,) the component that holds most of each row, or the files with these, if candidates use them; None in
        sums over batches
    """

    summary: Summary
    measured: tuple[Summary, ...] = ()
    owners: Annotated[AnyOwners, Stored(("row",), "component with the largest responsibility for a row")] = None

    def __add__(self, other: BatchSummary) -> BatchSummary:
        measured = tuple(a + b for a, b in zip(self.measured, other.measured, strict=True))
        return BatchSummary(self.summary + other.summary, measured)

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest, of the files that belong to it."""
        return self.owners.files if isinstance(self.owners, KeptOwners) else {}

    def scaled(self, factor: float) -> BatchSummary:
        """All entries multiplied by `factor`."""
        return BatchSummary(self.summary.scaled(factor), tuple(each.scaled(factor) for each in self.measured))
