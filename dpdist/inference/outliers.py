"""Outliers: rows that a background explains, or where the clusters have almost no density.

The threshold comes from the model. Its clusters are all components except those of scattered rows
(:mod:`dpdist.inference.scattered`). A row is an outlier if the density of the clusters alone is below the q-quantile of
the densities of rows drawn from the clusters. By default q follows from the share e of rows that the components of
scattered rows hold: one in twenty of the rows called outliers may belong to a cluster, that is

    q (1 - e) / (q (1 - e) + e) = 0.05    (the false discovery rate; Benjamini & Hochberg 1995, Efron et al. 2001)

If no component is of scattered rows, e is one of the fitted rows, so one false outlier is expected in twenty fits. Such
a small share of draws is too far in the tail to be counted: the densities of the lowest half per cent of draws are
modelled by a generalised Pareto distribution (Pickands 1975), fitted by probability-weighted moments (Hosking & Wallis
1987). With a background no threshold is needed: an outlier is a row that the background explains better than any single
cluster.
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

#: Smallest share of scattered rows that is assumed.
_SMALLEST = 1e-5
#: Wanted number of draws below a threshold, smallest and largest number of draws, and number of draws below the
#: threshold under which the tail is fitted instead.
_BELOW, _FEWEST, _MOST, _COUNTED = 500, 10_000, 100_000, 100
#: Share of the lowest draws that form the tail.
_TAIL = 0.005
_RATE = number(above=0, below=1)


@dataclass(frozen=True, eq=False)
class Threshold:
    """The outlier threshold of a model.

    Parameters
    ----------
    value : log density of the clusters alone, in nats and raw columns, below which a row is an outlier
    scattered : (K,) bool, components of scattered rows, which are not clusters
    """

    value: float
    scattered: np.ndarray = field(repr=False)


#: Thresholds of models in use, by seed and rate; the draws are the same each time.
_KNOWN: WeakKeyDictionary[Predictor, dict[tuple[int, float | None], Threshold]] = WeakKeyDictionary()


def outlier_threshold(predictor: Predictor, backend: Backend, seed: int, rate: float | None = None) -> Threshold:
    """The log density of the clusters below which a share of their own draws lies; computed once per model.

    Parameters
    ----------
    predictor : the model
    backend : scores the draws
    seed : key of the draws
    rate : this share, above 0 and below 1; by default such that one in twenty outliers belongs to a cluster

    Raises
    ------
    InputError
        If the family's densities condition on the rows' totals, so that those of long and short rows are not
        comparable.
    """
    if predictor.family is not None and not predictor.family.whole_rows:
        raise InputError(
            f"outliers by density need a family that models whole rows; {type(predictor.family).__name__} does not "
            "model their totals, so rows with large totals have lower densities. Fit with background=0.01, which finds "
            "rows that belong to no cluster."
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
    """The quantile of scores at `share`; extrapolated from a fitted tail if too few scores lie below it.

    Parameters
    ----------
    scores : (M,), enough that half a per cent of them form a tail
    share : above 0
    """
    if share * len(scores) >= _COUNTED:
        return float(np.quantile(scores, share))
    lowest = np.sort(scores)[: max(2, round(_TAIL * len(scores)))]
    edge, beyond = lowest[-1], lowest[-1] - lowest[:-1][::-1]  # ascending excesses
    mean, weighed = beyond.mean(), (beyond * (1 - (np.arange(len(beyond)) + 0.65) / len(beyond))).mean()
    if not 0 < 2 * weighed < mean:  # no spread, as with few distinct rows
        return float(lowest[0])
    shape = 2 - mean / (mean - 2 * weighed)
    scale = 2 * mean * weighed / (mean - 2 * weighed)
    farther = len(lowest) / (share * len(scores))
    reach = np.log(farther) if abs(shape) < 1e-9 else np.expm1(shape * np.log(farther)) / shape
    return float(edge - scale * reach)


def flagged(predictor: Predictor, backend: Backend, seed: int, outliers: bool | float) -> Flagged:
    """The model with outliers flagged.

    Parameters
    ----------
    outliers : True for rows that the background explains or, without a background, rows below the model's own
        threshold; or a rate for :func:`outlier_threshold`

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
    """The given rate, or None; raises :class:`InputError` unless it is above 0 and below 1."""
    return None if rate is None else _RATE.take("rate", rate)


@dataclass(frozen=True, eq=False)
class Flagged:
    """A model that labels outliers -1.

    Parameters
    ----------
    whole : the model
    threshold : of outliers; None if outliers are the rows that the background explains
    """

    whole: Predictor
    threshold: Threshold | None

    @property
    def ids(self) -> np.ndarray:
        """(K,) stable ids of the components."""
        return self.whole.ids

    def check_source(self, source: Source, model: str = "the model") -> None:
        """See :meth:`Predictor.check_source`."""
        self.whole.check_source(source, model)

    def outputs(self, top: int, density: bool) -> Outputs:
        """See :meth:`Predictor.outputs`."""
        return self.whole.outputs(top, density)

    def predictions(self, partition: Partition, top: int, density: bool) -> dict[str, np.ndarray]:
        """:meth:`Predictor.predictions` with the labels of :meth:`labels`; the `top` components are unchanged."""
        return {**self.whole.predictions(partition, top, density), "label": self.labels(partition)}

    def labels(self, partition: Partition) -> np.ndarray:
        """Position of the most probable cluster, -1 for outliers, (n,) int64."""
        return np.where(self.margins(partition) < 0, -1, self.whole.labels(partition, ~self.clusters()))

    def margins(self, partition: Partition) -> np.ndarray:
        """Nats by which rows are above the threshold or the background, (n,); negative for outliers."""
        if self.threshold is None:
            return self.whole.background_margins(partition)
        clusters = np.flatnonzero(~self.threshold.scattered)
        return self.whole.uncut.log_density_among(partition, clusters) - self.threshold.value

    def clusters(self) -> np.ndarray:
        """Components of the model, or groups of its cut, that do not consist of scattered rows only, (K,) bool."""
        if self.threshold is None:
            return np.ones(len(self.whole.ids), dtype=bool)
        return self.whole.any_of_groups(~self.threshold.scattered)
