"""Rows that belong to no cluster: those that a background takes, or where clusters have next to no density.

The threshold is the model's own. Its clusters are all components but those that came about for scattered rows
(:mod:`dpdist.inference.scattered`); a row is an outlier where the density of the clusters alone is below what all but a
share q of the rows that they draw themselves have. By default q follows from the share e of rows that the components of
scattered rows hold: of the rows said to be outliers one in twenty may be of a cluster, that is

    q (1 - e) / (q (1 - e) + e) = 0.05    (the false discovery rate; Benjamini & Hochberg 1995, Efron et al. 2001)

Where no component is of scattered rows e is one row of those fitted, so that among them an outlier too many is expected
once in twenty fits. So small a share of draws lies too far out to be counted: the tail of the draws' densities
beyond their lowest half per cent is a generalised Pareto distribution (Pickands 1975), fitted by probability-weighted
moments (Hosking & Wallis 1987). With a background there is nothing to choose: an outlier is a row that it is likelier
to have brought about than any one cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from dpdist.core.checks import number
from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.data.base import Partition, Source
from dpdist.execution.base import Backend
from dpdist.inference.prediction import Outputs, Predictor
from dpdist.inference.scattered import LARGEST, scattered_components, scores_of, tail_share

#: The smallest share of scattered rows that is looked for.
_SMALLEST = 1e-5
#: Draws that should lie below a threshold, bounds on the draws in all, and the draws below which a tail is fitted.
_BELOW, _FEWEST, _MOST, _COUNTED = 500, 10_000, 100_000, 100
#: The lowest share of draws, of which a tail is made.
_TAIL = 0.005
_RATE = number(above=0, below=1)


@dataclass(frozen=True, eq=False)
class Threshold:
    """What tells outliers of a model.

    Parameters
    ----------
    value : log density, nats, raw columns, of the clusters alone, below which a row is an outlier
    scattered : (K,) bool, which components are of scattered rows and no clusters
    """

    value: float
    scattered: np.ndarray = field(repr=False)


#: Of models that are in use, by seed and rate: the draws are the same each time.
_KNOWN: WeakKeyDictionary[Predictor, dict[tuple[int, float | None], Threshold]] = WeakKeyDictionary()


def outlier_threshold(predictor: Predictor, backend: Backend, seed: int, rate: float | None = None) -> Threshold:
    """The log density of the clusters below which a share of the rows lies that they draw; found once a model.

    Parameters
    ----------
    predictor : the model
    backend : where draws are scored
    seed : key of the draws
    rate : the share, above 0 and below 1; default: what keeps outliers that are of clusters to one in twenty

    Raises
    ------
    InputError
        If the family's densities are of rows given their totals, and so of long and short rows not to be compared.
    """
    if predictor.family is not None and not predictor.family.whole_rows:
        raise InputError(
            f"outliers by density need a family that describes whole rows; {type(predictor.family).__name__} does "
            "not describe their totals, and long rows have lower densities. Fit with background=0.01, which tells rows "
            "of no cluster."
        )
    known = _KNOWN.setdefault(predictor.uncut, {})
    if (seed, rate) not in known:
        known[seed, rate] = _threshold(predictor.uncut, backend, seed, rate)
    return known[seed, rate]


def _threshold(model: Predictor, backend: Backend, seed: int, rate: float | None) -> Threshold:
    scattered = scattered_components(model, backend, seed)
    shares = np.where(scattered, 0.0, model.shares())
    if rate is None:
        held = max(1 - shares.sum(), 1 / max(model.rows, 1.0), _SMALLEST)
        rate = tail_share(min(held, LARGEST))
    rng, count = generator(seed, "outliers"), int(np.clip(_BELOW / rate, _FEWEST, _MOST))
    drawn = model.draw(rng.choice(len(shares), size=count, p=shares / shares.sum()), rng)
    scores = scores_of(drawn, model, backend, "log_density_among", np.flatnonzero(~scattered))
    return Threshold(low_quantile(scores, rate), scattered)


def low_quantile(scores: np.ndarray, share: float) -> float:
    """What a share of scores lies below; where too few of these do to be counted, by the tail of the lowest.

    Parameters
    ----------
    scores : (M,), so many that half a per cent of them make a tail
    share : above 0
    """
    if share * len(scores) >= _COUNTED:
        return float(np.quantile(scores, share))
    lowest = np.sort(scores)[: max(2, round(_TAIL * len(scores)))]
    edge, beyond = lowest[-1], lowest[-1] - lowest[:-1][::-1]  # ascending excesses
    mean, weighed = beyond.mean(), (beyond * (1 - (np.arange(len(beyond)) + 0.65) / len(beyond))).mean()
    if not 0 < 2 * weighed < mean:  # no spread, as of few kinds of rows
        return float(lowest[0])
    shape = 2 - mean / (mean - 2 * weighed)
    scale = 2 * mean * weighed / (mean - 2 * weighed)
    farther = len(lowest) / (share * len(scores))
    reach = np.log(farther) if abs(shape) < 1e-9 else np.expm1(shape * np.log(farther)) / shape
    return float(edge - scale * reach)


def flagged(predictor: Predictor, backend: Backend, seed: int, outliers: bool | float) -> Flagged:
    """The model with outliers told.

    Parameters
    ----------
    outliers : True for what a background takes, or where there is none what the model's own threshold tells; or a rate
        for :func:`outlier_threshold`

    Raises
    ------
    InputError
        If it is neither.
    """
    if outliers is not True and not _RATE.holds(outliers):
        raise InputError(f"outliers should be true or false, or a rate above zero and below 1; got {outliers!r}.")
    if outliers is True and predictor.background() is not None:
        return Flagged(predictor, None)
    rate = None if outliers is True else float(outliers)
    return Flagged(predictor, outlier_threshold(predictor, backend, seed, rate))


def checked_rate(rate: float | None) -> float | None:
    """A rate that was given, or none; raises :class:`InputError` where it is not above 0 and below 1."""
    return None if rate is None else _RATE.take("rate", rate)


@dataclass(frozen=True, eq=False)
class Flagged:
    """A model that gives outliers the label -1.

    Parameters
    ----------
    whole : the model
    threshold : what tells outliers; None for the rows that the background takes
    """

    whole: Predictor
    threshold: Threshold | None

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
        """As :meth:`Predictor.predictions`, labels those of :meth:`labels`; `top` components as ever."""
        return {**self.whole.predictions(partition, top, density), "label": self.labels(partition)}

    def labels(self, partition: Partition) -> np.ndarray:
        """Position of the most probable cluster, -1 for outliers, (n,) int64."""
        return np.where(self.margins(partition) < 0, -1, self.whole.labels(partition, ~self.clusters()))

    def margins(self, partition: Partition) -> np.ndarray:
        """Nats by which rows are above what makes outliers, (n,): the threshold, or the background."""
        if self.threshold is None:
            return self.whole.background_margins(partition)
        clusters = np.flatnonzero(~self.threshold.scattered)
        return self.whole.uncut.log_density_among(partition, clusters) - self.threshold.value

    def clusters(self) -> np.ndarray:
        """Which components of the model, or groups of its cut, are not of scattered rows alone, (K,) bool."""
        if self.threshold is None:
            return np.ones(len(self.whole.ids), dtype=bool)
        return self.whole.any_of_groups(~self.threshold.scattered)
