"""What the rows of a batch add up to under one posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dpdist.core.stored import Stored
from dpdist.inference.mixture.owners import AnyOwners, KeptOwners
from dpdist.models.sufficient_statistics import Summary


@dataclass(frozen=True, eq=False)
class BatchSummary:
    """Components' summary, and what each move's proposals measured, over the same rows.

    Parameters
    ----------
    summary : of components
    measured : of each move's proposals
    owners : (n,) the component that holds most of each row, or in which files they are, where candidates go by it; None
        in sums over batches
    """

    summary: Summary
    measured: tuple[Summary, ...] = ()
    owners: Annotated[AnyOwners, Stored(("row",), "component that holds most of a row")] = None

    def __add__(self, other: BatchSummary) -> BatchSummary:
        measured = tuple(a + b for a, b in zip(self.measured, other.measured, strict=True))
        return BatchSummary(self.summary + other.summary, measured)

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Digests of the files that go with it, by folder."""
        return self.owners.files if isinstance(self.owners, KeptOwners) else {}

    def scaled(self, factor: float) -> BatchSummary:
        """Every entry times `factor`."""
        return BatchSummary(self.summary.scaled(factor), tuple(each.scaled(factor) for each in self.measured))
