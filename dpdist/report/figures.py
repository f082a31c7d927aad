"""The contents of reports and plots as plain values, from runs, models and estimators.

Everything here is a number, a text, or a tuple of these, and can be written as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpdist.runs.methods import METHODS


@dataclass(frozen=True)
class LapFigures:
    """A lap or round; times in seconds, bounds in nats, None if not available.

    Parameters
    ----------
    elapsed : seconds since the run began, including this lap
    gained : ELBO gain of its moves
    spent : seconds by phase, as in :class:`dpdist.storage.history.LapTimes`
    use : share of the workers' time in which their threads were busy
    """

    lap: int
    rows: float
    n_components: int
    seconds: float
    elapsed: float
    elbo: float | None
    per_unit: float | None
    gained: float | None
    holdout: float | None
    spent: Mapping[str, float]
    use: float | None


@dataclass(frozen=True)
class ProposalFigures:
    """A judged proposal: its gain in nats, and the ids of the components that it would have replaced."""

    lap: int
    kind: str
    accepted: bool
    reason: str
    gain: float
    components: tuple[int, ...]


@dataclass(frozen=True)
class RowFigures:
    """A row shown for a cluster: its position in the data, and its values in the shown columns, or in all if rows are
    pictures."""

    place: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class ColumnFigures:
    """The difference of a cluster's centre from the whole data in one column, in units of the whole's spread."""

    name: str
    centre: float
    whole: float
    standard: float


@dataclass(frozen=True)
class ComponentFigures:
    """A cluster or topic.

    Parameters
    ----------
    id : stable identity
    size : expected rows or tokens
    weight : posterior mean weight
    columns : columns with the largest differences from the whole, the largest first
    picture : its centre, if rows are pictures
    nearest : rows of the data
    words, coherence : most probable words of a topic, and their NPMI
    """

    id: int
    size: float
    weight: float
    columns: tuple[ColumnFigures, ...] = ()
    picture: tuple[float, ...] | None = None
    nearest: tuple[RowFigures, ...] = ()
    words: tuple[str, ...] = ()
    coherence: float | None = None


@dataclass(frozen=True)
class MapFigures:
    """Clusters on a plane.

    Parameters
    ----------
    ids, x, y, sizes : of the clusters
    links : pairs of positions in these, and the larger of their two overlaps
    stress : root mean square relative error of the distances in the plane
    """

    ids: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    sizes: tuple[float, ...]
    links: tuple[tuple[int, int, float], ...]
    stress: float


@dataclass(frozen=True)
class TreeFigures:
    """The drawing of a merge tree.

    Parameters
    ----------
    ids : of the clusters, from left to right
    x, y : (K - 1) lines of four points, one per merge; y is the loss of ELBO, nats; leaves are at 0, 1, ...
    elbo : with K, K - 1, ..., 1 clusters
    """

    ids: tuple[int, ...]
    x: tuple[tuple[float, ...], ...]
    y: tuple[tuple[float, ...], ...]
    elbo: tuple[float, ...]


@dataclass(frozen=True)
class RunFigures:
    """All contents of a report of a run.

    Parameters
    ----------
    label : name of the run
    method, parts, unit : name of the method, and nouns for its components and for the unit of its ELBO
    state : current state, in words
    ended : whether the run has ended
    n_components, rows, elbo, per_unit, holdout, seconds : after the last lap; None if not available
    ids, sizes, weights : of all components, the largest first
    rest_weight : weight of components not yet seen
    components : the largest ones
    image_shape : of rows that are pictures
    directions : whether pictures and columns are directions of largest variance rather than centres
    seen : description of the rows or documents that were read
    map : of the largest components
    tree : of all components, if one was grown
    specification, data, versions : names and values
    """

    label: str
    method: str
    parts: str
    unit: str
    state: str
    ended: bool
    n_components: int | None
    rows: float | None
    elbo: float | None
    per_unit: float | None
    holdout: float | None
    seconds: float
    laps: tuple[LapFigures, ...]
    proposals: tuple[ProposalFigures, ...]
    ids: tuple[int, ...] = ()
    sizes: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    rest_weight: float | None = None
    components: tuple[ComponentFigures, ...] = ()
    image_shape: tuple[int, ...] | None = None
    directions: bool = False
    seen: str = ""
    map: MapFigures | None = None
    tree: TreeFigures | None = None
    specification: tuple[tuple[str, str], ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def laps_are(self) -> str:
        """The noun for a lap."""
        return METHODS[self.method].lap
