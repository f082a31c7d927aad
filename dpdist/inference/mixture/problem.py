"""Settings that are fixed for a whole run, apart from the data and where it runs."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.data.columns import Names
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.moves.base import AnyMove
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.schedules.base import Schedule
from dpdist.inference.transform import Preparation
from dpdist.models.mixture import Model, Precision


@dataclass(frozen=True, eq=False)
class Problem:
    """The model and how to fit it.

    Parameters
    ----------
    model : Model
    preparation : of the rows
    schedule : how batch summaries are combined into the total
    moves : made at the end of every lap, in this order
    sampling : rows drawn for the moves
    candidates : when the local step uses only a few components per row
    precision : of the local step
    seed : key of every random draw
    tolerance : change of the ELBO in nats per row below which a lap counts as settled
    """

    model: Model
    preparation: Preparation
    schedule: Schedule
    moves: tuple[AnyMove, ...]
    sampling: Sampling
    candidates: Candidates
    precision: Precision
    seed: int
    tolerance: float

    method = "memoized"

    @property
    def names(self) -> Names | None:
        """Column names, if there are any."""
        return self.preparation.names
