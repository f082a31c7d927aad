"""What estimators are asked for beside the settings of their specs: how a fit is begun and shown."""

from __future__ import annotations

from dataclasses import dataclass

from dpdist.core.checks import COUNT, FLAG
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a fit is shown."""

    verbose: bool = setting(
        False, FLAG, "Whether a fit draws a bar with the time left and a line a lap, in terminals and notebooks."
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Starts(Manner):
    """How often, and from where, a fit is begun."""

    n_init: int = setting(
        1, COUNT, "Fits by ``fit``, each with another key of its draws, of which that of the highest ELBO is kept."
    )
    warm_start: bool = setting(
        False, FLAG, "Whether a fitted estimator that is fitted again begins with the clusters it has."
    )

    def seeds(self, seed: int) -> list[int]:
        """Keys of the fits' draws; the first is `seed`."""
        return [seed, *(int(generator(seed, "n_init", fit).integers(2**31 - 1)) for fit in range(1, self.n_init))]
