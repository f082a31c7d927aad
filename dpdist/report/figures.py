"""What is shown of a run, model or estimator, as plain figures, from which pages and plots are made alike.

Everything here is a number, a word, or a tuple of such, and goes into JSON as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpdist.runs.methods import METHODS


@dataclass(frozen=True)
class LapFigures:
    """One lap or round; times in seconds, bounds in nats, what there is none of is None.

    Parameters
    ----------
    elapsed : since the run began, with this lap
    gained : by its moves
    spent : by phase, as :class:`dpdist.storage.history.LapTimes` has them
    use : share of the time of workers' threads that they were busy
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
    """One judged proposal: its gain in nats, and what it would have replaced, by id."""

    lap: int
    kind: str
    accepted: bool
    reason: str
    gain: float
    components: tuple[int, ...]


@dataclass(frozen=True)
class RowFigures:
    """One row that a cluster is shown by: where it stands in the data, and its values in the columns that are shown,
    all of them where rows are pictures."""

    place: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class ColumnFigures:
    """How a cluster's centre differs from the whole in one column, in units of the whole's spread."""

    name: str
    centre: float
    whole: float
    standard: float


@dataclass(frozen=True)
class ComponentFigures:
    """One cluster or topic.

    Parameters
    ----------
    id : stable identity
    size : rows or tokens
    weight : posterior mean weight
    columns : those that tell it from the rest, the most telling first
    picture : its centre, where rows are pictures
    nearest : rows of the data
    words, coherence : a topic's most probable words, and their NPMI
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
    ids, x, y, sizes : of each
    links : pairs of positions here, and their overlap, the larger of both directions
    stress : root mean square relative error of the plane's distances
    """

    ids: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    sizes: tuple[float, ...]
    links: tuple[tuple[int, int, float], ...]
    stress: float


@dataclass(frozen=True)
class TreeFigures:
    """A tree of clusters, drawn.

    Parameters
    ----------
    ids : of the clusters, from left to right
    x, y : (K - 1) lines of four points each, one a merge; y is the ELBO given up, nats; leaves stand at 0, 1, ...
    elbo : of K clusters, K - 1, ..., 1
    """

    ids: tuple[int, ...]
    x: tuple[tuple[float, ...], ...]
    y: tuple[tuple[float, ...], ...]
    elbo: tuple[float, ...]


@dataclass(frozen=True)
class RunFigures:
    """Everything that is shown of a run.

    Parameters
    ----------
    label : as a person calls it
    method, parts, unit : what fits it, and what its components and the units of its bound are called
    state : where it stands
    ended : whether it is at its end
    n_components, rows, elbo, per_unit, holdout, seconds : after the last lap; None where there is none
    ids, sizes, weights : of all components, the largest first
    rest_weight : what is left to components not yet seen
    components : the largest
    image_shape : of rows, where they are pictures
    directions : whether pictures and columns are directions of spread rather than centres
    seen : which rows or documents were looked at
    map : of the largest
    tree : of all, where one was grown
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
        """What a lap is called."""
        return METHODS[self.method].lap
