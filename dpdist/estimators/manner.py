"""Estimator parameters that do not belong to a spec: how a fit is started and displayed."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.checks import COUNT, FLAG
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Manner:
    """Parameters that control how a fit is displayed."""

    verbose: bool = setting(
        False,
        FLAG,
        "Whether a fit shows a progress bar with the remaining time and a line per lap, in terminals and notebooks.",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Starts(Manner):
    """Parameters that control how many fits are made and from which model each starts."""

    n_init: int = setting(
        1, COUNT, "Number of fits by ``fit``, each with another random seed; the one with the highest ELBO is kept."
    )
    warm_start: bool = setting(False, FLAG, "Whether a new fit of a fitted estimator starts from its clusters.")

    def seeds(self, seed: int) -> list[int]:
        """Seeds of the `n_init` fits; the first is `seed`."""
        return [seed, *(int(generator(seed, "n_init", fit).integers(2**31 - 1)) for fit in range(1, self.n_init))]
