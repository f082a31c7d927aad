"""Limits that stop a run before the ELBO has converged."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dpdist.core.checks import COUNT, POSITIVE, check_fields

MAX_LAPS = "stopped: max_laps reached"
MAX_TIME = "stopped: max_time reached"


@dataclass(frozen=True)
class Limits:
    """Limits that stop a run before the ELBO has converged.

    Parameters
    ----------
    max_laps : largest number of laps in all, or None
    max_time : largest number of seconds of this session, or None
    """

    max_laps: int | None = 100
    max_time: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, max_laps=COUNT.or_none("no bound"), max_time=POSITIVE.or_none("no bound"))

    def warning(self, stop: str | None) -> str | None:
        """The warning about a fit that a limit ended before convergence; None if it ended otherwise."""
        told = {MAX_LAPS: f"max_laps={self.max_laps}", MAX_TIME: f"max_time={self.max_time}"}.get(stop or "")
        if told is None:
            return None
        return (
            f"the fit stopped at {told} before it converged: the ELBO still changes, or moves are pending. Raise the "
            "limit or the tolerance, or continue from a checkpoint with dpdist.resume."
        )

    def but(self, max_laps: int | None, max_time: float | None) -> Limits:
        """These limits, with the given ones replaced."""
        return Limits(self.max_laps if max_laps is None else max_laps, self.max_time if max_time is None else max_time)

    @property
    def parameters(self) -> dict[str, object]:
        """The limits as estimator parameters."""
        return {"max_laps": self.max_laps, "max_time": self.max_time}

    @property
    def given(self) -> dict[str, object]:
        """The limits that are not None."""
        return {name: limit for name, limit in self.parameters.items() if limit is not None}

    def reached(self, laps: int) -> bool:
        """Whether `laps` reaches the largest number of laps."""
        return self.max_laps is not None and laps >= self.max_laps

    def met(self, laps: int, began: float) -> str | None:
        """The limit that is met after `laps` laps of a session that began at `began`, or None."""
        if self.reached(laps):
            return MAX_LAPS
        if self.max_time is not None and time.monotonic() - began >= self.max_time:
            return MAX_TIME
        return None
