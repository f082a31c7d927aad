"""Reading of a run, model or estimator into the plain figures of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import dendrogram

from dpdist.core.errors import InputError
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.prediction import Predictor
from dpdist.inference.topics.evaluation import coherence, top_words
from dpdist.inference.topics.prediction import DocumentPredictor
from dpdist.models.families.base import fill_zeros
from dpdist.report.components import MEASURED, Profiles, apart, nearest_rows, picture_shape, profiles_of
from dpdist.report.figures import (
    ColumnFigures,
    ComponentFigures,
    LapFigures,
    MapFigures,
    ProposalFigures,
    RowFigures,
    RunFigures,
    TreeFigures,
)
from dpdist.report.layout import plane, stress
from dpdist.report.rows import SomeRows, rows_of
from dpdist.report.views import view_of
from dpdist.runs.view import ROWS, SHOWN, View
from dpdist.storage.history import History

#: Number of nearest rows and of columns shown for a cluster, of words of a topic, and of links of a cluster in the map.
NEAREST, TELLING, WORDS, LINKS = 6, 8, 12, 3
#: Approximate largest number of multiplications for scoring rows.
PRODUCTS = 1e11
NONE = np.zeros(0, dtype=np.int64)
#: Least overlap at which two clusters are linked in the map.
LINKED = 0.01


def course_of(run: object) -> RunFigures:
    """The figures of a run's course only: laps, proposals and parameters; no data are read."""
    view = view_of(run)
    history, fitted = view.history, view.fitted
    laps = _laps(view)
    fingerprint = {name: _brief(value) for name, value in view.fingerprint.items()}
    return RunFigures(
        label=view.label,
        method=view.problem.method,
        parts=view.method.parts,
        unit=view.method.unit,
        state=view.state,
        ended=fitted is not None and fitted.stop is not None,
        n_components=None if fitted is None else len(fitted.ids),
        rows=None if fitted is None else float(fitted.rows),
        elbo=None if fitted is None else _number(fitted.elbo),
        per_unit=laps[-1].per_unit if laps else None,
        holdout=laps[-1].holdout if laps else None,
        seconds=history.seconds,
        laps=laps,
        proposals=_proposals(history),
        specification=tuple((name, repr(value)) for name, value in view.asked.items()),
        data=tuple({**_places(view.settings), **fingerprint}.items()),
        versions=tuple(view.versions.items()),
    )


#: Least rows or tokens of a component that is shown on the map, as an almost empty one is like the prior.
HELD = 0.5


def figures_of(
    run: object,
    data: object = None,
    *,
    image_shape: str | None = None,
    largest: int = SHOWN,
    rows: int = ROWS,
) -> RunFigures:
    """All figures of a run.

    Parameters
    ----------
    run : a path or URL, a run under way, or a fitted estimator
    data : the fitted rows, or their path; default: the path stored with the run
    image_shape : as 28x28 or 32x32x3, if rows are pictures
    largest : largest number of shown clusters
    rows : largest number of rows or documents to read; if they cannot be read, rows drawn from the model are used

    Raises
    ------
    CheckpointError, InputError
        If nothing readable is at a path, `data` do not fit the model, or rows do not have the shape of such pictures.
    """
    view = view_of(run)
    course = course_of(view)
    if view.fitted is None:
        return course
    predictor, counts = view.predictor, _counts(view)
    order = np.argsort(-counts, kind="stable")
    held = order[: max(1, (counts >= HELD).sum())][:MEASURED]
    weights, rest = predictor.weights()
    if isinstance(predictor, DocumentPredictor):
        found = _topics(view, predictor, data, order[:largest], rows)
        near = _map_of_topics(predictor, counts, held)
    else:
        most = max(1, min(rows, int(PRODUCTS / (predictor.columns * len(counts)))))
        found = _clusters(view, predictor, data, order[:largest], most, image_shape)
        gaps = apart(predictor, held)
        near = _map(predictor.ids, counts, held, gaps.distances, gaps.overlaps, LINKS)
    return replace(
        course,
        ids=tuple(predictor.ids[order].tolist()),
        sizes=tuple(counts[order].tolist()),
        weights=tuple(weights[order].tolist()),
        rest_weight=float(rest),
        map=near,
        tree=None if view.tree is None or len(view.tree) < 2 else _tree(view.tree),
        **found,
    )


def _laps(view: View) -> tuple[LapFigures, ...]:
    elapsed, found, gained = 0.0, [], view.history.gained()
    for row, times, per_unit in zip(view.history.laps, view.history.times, view.per_unit, strict=True):
        elapsed += row.seconds
        spent = {name: value for name, value in times._asdict().items() if name not in ("workers", "threads")}
        offered = times.threads * row.seconds
        found.append(
            LapFigures(
                lap=row.lap,
                rows=float(row.rows),
                n_components=row.n_components,
                seconds=float(row.seconds),
                elapsed=elapsed,
                elbo=_number(row.elbo),
                per_unit=_number(per_unit),
                gained=None if _number(row.elbo) is None else gained[row.lap],
                holdout=_number(row.holdout_score),
                spent=spent,
                use=times.workers / offered if offered else None,
            )
        )
    return tuple(found)


def _proposals(history: History) -> tuple[ProposalFigures, ...]:
    return tuple(
        ProposalFigures(
            lap=row.lap,
            kind=row.kind,
            accepted=row.reason.taken,
            reason=row.reason.value,
            gain=float(row.gain),
            components=row.members,
        )
        for row in history.proposals
    )


def _counts(view: View) -> np.ndarray:
    assert view.fitted is not None, "a lap was finished"
    return np.array(view.method.values(view.problem, view.fitted, view.predictor)["counts"], dtype=np.float64)


def _clusters(
    view: View, predictor: Predictor, data: object, places: np.ndarray, most: int, shape: str | None
) -> dict[str, Any]:
    some = rows_of(view, data, most)
    assert some is not None, "rows can be drawn"
    profiles, counts, weights = profiles_of(predictor, some), _counts(view), predictor.weights()[0]
    sizes = None if shape is None else picture_shape(shape, predictor.preparation.columns)
    if sizes is not None and profiles is None:
        raise InputError(
            "these clusters have no mean, share, rate or covariance to draw as an image; leave out image_shape."
        )
    nearest = {} if some.places is None else nearest_rows(predictor, some, places, NEAREST)
    told = {k: NONE if profiles is None or sizes is not None else _telling(profiles, k) for k in places.tolist()}
    components = tuple(
        ComponentFigures(
            id=int(predictor.ids[k]),
            size=float(counts[k]),
            weight=float(weights[k]),
            columns=() if profiles is None else _columns(profiles, k, told[k], some.names),
            picture=None if profiles is None or sizes is None else _values(profiles.centre[k]),
            nearest=_nearest(some, nearest.get(k, NONE), slice(None) if sizes is not None else told[k]),
        )
        for k in places.tolist()
    )
    directions = profiles is not None and profiles.directions
    return {"components": components, "image_shape": sizes, "directions": directions, "seen": some.origin}


def _telling(profiles: Profiles, k: int) -> np.ndarray:
    return np.argsort(-np.abs(profiles.standard[k]), kind="stable")[:TELLING]


def _columns(profiles: Profiles, k: int, chosen: np.ndarray, names: Sequence[str] | None) -> tuple[ColumnFigures, ...]:
    return tuple(
        ColumnFigures(
            name=f"column {d}" if names is None else names[d],
            centre=float(profiles.centre[k, d]),
            whole=float(profiles.whole[d]),
            standard=float(profiles.standard[k, d]),
        )
        for d in chosen.tolist()
    )


def _nearest(some: SomeRows, found: np.ndarray, columns: np.ndarray | slice) -> tuple[RowFigures, ...]:
    if some.places is None:
        return ()
    return tuple(RowFigures(int(some.places[i]), _values(some.rows[i, columns])) for i in found)


def _map_of_topics(predictor: DocumentPredictor, counts: np.ndarray, places: np.ndarray) -> MapFigures:
    """Hellinger distances, with Bhattacharyya coefficients as overlaps.

    The probability that the prior gives to every word is subtracted, because otherwise topics with few tokens, which
    are like the prior, would be close to all others.
    """
    own = predictor.topics[places] - predictor.topics[places].min(axis=1, keepdims=True)
    roots = np.sqrt(own / fill_zeros(own.sum(axis=1, keepdims=True)))
    alike = np.minimum(roots @ roots.T, 1.0)
    np.fill_diagonal(alike, 1.0)
    return _map(predictor.ids, counts, places, np.sqrt(1 - alike), alike, 1)


def _map(
    ids: np.ndarray, counts: np.ndarray, places: np.ndarray, distances: np.ndarray, overlaps: np.ndarray, most: int
) -> MapFigures:
    at, both = plane(distances), np.maximum(overlaps, overlaps.T)
    links = {
        (min(k, m), max(k, m)): float(both[k, m])
        for k in range(len(places))
        for m in np.argsort(-both[k], kind="stable")[: most + 1].tolist()
        if m != k and both[k, m] >= LINKED
    }
    return MapFigures(
        ids=tuple(ids[places].tolist()),
        x=_values(at[:, 0]),
        y=_values(at[:, 1]),
        sizes=_values(counts[places]),
        links=tuple((*pair, share) for pair, share in sorted(links.items())),
        stress=stress(distances, at) if len(places) > 1 else 0.0,
    )


def _tree(tree: Tree) -> TreeFigures:
    drawn = dendrogram(tree.linkage, no_plot=True)
    return TreeFigures(
        ids=tuple(tree.ids[drawn["leaves"]].tolist()),
        x=tuple(_values((np.array(line) - 5) / 10) for line in drawn["icoord"]),
        y=tuple(map(_values, drawn["dcoord"])),
        elbo=_values(tree.elbo),
    )


def _topics(view: View, predictor: DocumentPredictor, data: object, places: np.ndarray, most: int) -> dict[str, Any]:
    some, topics = rows_of(view, data, most), predictor.topics[places]
    names = some.names if predictor.vocabulary is None and some is not None else predictor.vocabulary
    vocabulary = [f"word {w}" for w in range(topics.shape[1])] if names is None else list(names)
    npmi = None if some is None else coherence(topics, sparse.csr_array(some.rows))
    counts, weights = _counts(view), predictor.weights()[0]
    components = tuple(
        ComponentFigures(
            id=int(predictor.ids[k]),
            size=float(counts[k]),
            weight=float(weights[k]),
            words=tuple(words),
            coherence=None if npmi is None else float(npmi[i]),
        )
        for i, (k, words) in enumerate(zip(places.tolist(), top_words(topics, vocabulary, WORDS), strict=True))
    )
    return {"components": components, "seen": "" if some is None else some.origin}


def _places(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(settings[name]) for name in ("data", "holdout") if settings.get(name) is not None}


def _brief(value: object) -> str:
    """A value in a few words; for a long list its length and first entry."""
    if isinstance(value, list | tuple) and len(value) > 3:
        return f"{len(value)} values, the first is {value[0]}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _values(values: np.ndarray) -> tuple[float, ...]:
    return tuple(np.asarray(values, dtype=np.float64).ravel().tolist())


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
