"""Rows that belong to no cluster: those that a background takes, or whose density is below a threshold.

The threshold is the model's own: the log density below which a share of the rows lies that the model itself draws, by
its posterior predictive. Rows of a component that came about for scattered rows lie lowest, so where these are one in a
hundred, so is the share that finds them. With a background there is nothing to choose: an outlier is a row that it is
likelier to have brought about than any one cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdist.core.checks import FLAG, number
from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.data import ArraySource
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Backend
from dpdist.inference.prediction import Outputs, Predictor, predict_partition

#: Share of a model's own rows that are outliers, unless told otherwise.
RATE = 0.01
#: Of so many draws that fall below it a threshold is made; bounds on the draws in all, and how many a task scores.
_BELOW, _FEWEST, _MOST, _TOGETHER = 500, 10_000, 500_000, 4096
_RATE = number(above=0, below=1)


def outlier_threshold(predictor: Predictor, backend: Backend, seed: int, rate: float = RATE) -> float:
    """The log density, nats, raw columns, below which a share `rate` of the rows lies that its components draw.

    Parameters
    ----------
    predictor : the model
    backend : where draws are scored
    seed : key of the draws
    rate : the share, above 0 and below 1
    """
    rate = _RATE.take("rate", rate)
    rng, count = generator(seed, "outliers"), int(np.clip(_BELOW / rate, _FEWEST, _MOST))
    shares, _ = predictor.weights()  # components that no row has shown lie far out, and would be all that is below
    components = rng.choice(len(shares), size=count, p=shares / shares.sum())
    drawn = ArraySource(predictor.draw(components, rng), partition_rows=_TOGETHER).partitions
    given = backend.share(predictor)
    columns = [given] * len(drawn), ["log_density"] * len(drawn)
    scores = backend.fetch(backend.map(predict_partition, backend.share_each(drawn), *columns))
    return float(np.quantile(np.concatenate(scores), rate))


def flagged(predictor: Predictor, backend: Backend, seed: int, outliers: bool | float) -> Flagged:
    """The model with outliers told.

    Parameters
    ----------
    outliers : True for what a background takes, or where there is none for those at :data:`RATE`; or a rate

    Raises
    ------
    InputError
        If it is neither.
    """
    if FLAG.holds(outliers):
        if predictor.background() is not None:
            return Flagged(predictor, None)
        outliers = RATE
    elif not _RATE.holds(outliers):
        raise InputError(f"outliers should be true or false, or a rate above zero and below 1; got {outliers!r}.")
    return Flagged(predictor, outlier_threshold(predictor, backend, seed, float(outliers)))


@dataclass(frozen=True, eq=False)
class Flagged:
    """A model that gives outliers the label -1.

    Parameters
    ----------
    whole : the model
    threshold : log density below which a row is an outlier; None for the rows that the background takes
    """

    whole: Predictor
    threshold: float | None

    @property
    def ids(self) -> np.ndarray:
        """(K,) stable ids of the components."""
        return self.whole.ids

    def check_source(self, source: Source, model: str = "the model") -> None:
        """As :meth:`Predictor.check_source`."""
        self.whole.check_source(source, model)

    def outputs(self, top: int, density: bool) -> Outputs:
        """As :meth:`Predictor.outputs`."""
        return self.whole.outputs(top, density)

    def predictions(self, partition: Partition, top: int, density: bool) -> dict[str, np.ndarray]:
        """As :meth:`Predictor.predictions`, the label -1 for outliers; `top` components as ever."""
        found = self.whole.predictions(partition, top, density)
        return {**found, "label": np.where(self.outlying(partition), -1, found["label"])}

    def labels(self, partition: Partition) -> np.ndarray:
        """Position of the most probable component, -1 for outliers, (n,) int64."""
        return np.where(self.outlying(partition), -1, self.whole.labels(partition))

    def outlying(self, partition: Partition) -> np.ndarray:
        """Which rows are outliers, (n,) bool."""
        if self.threshold is None:
            return self.whole.in_background(partition)
        return np.asarray(self.whole.log_density(partition) < self.threshold)
