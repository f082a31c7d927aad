"""Stored runs and models of all methods: open, resume, grow a tree, refit, and get the predictor."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.lease import released_on_error
from dpdist.core.places import place_of
from dpdist.data import Source, source_like
from dpdist.data.base import Weights
from dpdist.data.columns import Names
from dpdist.data.files import located
from dpdist.execution.base import Backend
from dpdist.inference.hierarchy.growing import grow_tree
from dpdist.inference.hierarchy.tree import Tree
from dpdist.inference.mixture.prediction import MixturePredictor
from dpdist.inference.prediction import Predictor
from dpdist.inference.stability import Stability, Tell, refit
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.events import LapEvent, event_of_lap
from dpdist.runs.limits import MAX_LAPS, Limits
from dpdist.runs.methods import METHODS, method_named
from dpdist.runs.methods.rows import require_rows_of_fit
from dpdist.runs.preparing import prepare_again
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.preparing import PreparationStore


def open_run(path: str | os.PathLike[str]) -> RunStore:
    """The store of a run, or of a model saved from one; raises :class:`CheckpointError` if there is none."""
    return RunStore.open(path, *METHODS)


def run_at(path: str | os.PathLike[str]) -> RunStore | PreparationStore:
    """The run at `path`, possibly without a checkpoint yet; raises :class:`CheckpointError` if there is none."""
    return being_prepared(path) or open_run(path)


def run_to_resume(path: str | os.PathLike[str]) -> RunStore | PreparationStore:
    """As :func:`run_at`, but raises :class:`CheckpointError` for a saved model, too."""
    found = run_at(path)
    if isinstance(found, RunStore):
        found.require_run()
    return found


def end_of(run: RunStore | PreparationStore) -> str | None:
    """The reason why a run has ended; None if it has not."""
    fitted = run.fitted() if isinstance(run, RunStore) else None
    return None if fitted is None else fitted.stop


def after_stop(path: str) -> str:
    """A sentence on what is stored at `path` after a command was stopped, and what to do."""
    named = shlex.quote(path)
    try:
        ended = end_of(run_at(path))
    except CheckpointError:
        return "nothing had started yet. Run the command again."
    if ended is None:
        return f"nothing is lost. Continue with: dpdist resume {named}"
    return (
        f"{path} had already ended ({ended}), and nothing was started after that. Inspect it with: dpdist show {named}"
    )


def source_of(run: RunStore | PreparationStore, moved: str | None = None) -> Source:
    """The data of a run at their recorded path, or at `moved`; raises :class:`InputError` if they cannot be opened."""
    if (path := moved or run.settings.get("data")) is None:
        raise InputError(
            "the run stores no path of its data, which were not given as one path; continue from Python with the same "
            "data, or give a path: dpdist resume, tree and stability take --data PATH"
        )
    try:
        return rows_for(run, path)
    except InputError as error:
        if moved is not None:
            raise
        way_on = "If the run's data have moved, give their new path: dpdist resume, tree and stability take --data PATH"
        raise InputError(f"{str(error).rstrip('.')}. {way_on}") from error


def rows_for(
    run: RunStore | PreparationStore, data: object, weights: Weights = None, *, ids: str | None = None
) -> Source:
    """Rows with the columns that a stored run or model needs: matched by name, or, if its columns have no names, by the
    stored choice of columns. In the latter case the column `ids`, which holds row ids, is dropped."""
    names: Names | None = run.problem().names if isinstance(run, RunStore) else None
    settings: Mapping[str, Any] = run.settings
    if names is None and ids is not None and settings.get("columns") is None:
        settings = {**settings, "drop": [*(settings.get("drop") or ()), ids]}
    return source_like(data, names, settings, weights)


def check_limits(command: str, label: object, max_laps: int | None, max_time: float | None) -> None:
    """Raise :class:`InputError` if limits are given for the run `label` of a command whose runs end by themselves."""
    given = Limits(max_laps, max_time).given
    if given and not any(method.endless for method in METHODS.values() if method.command == command):
        raise InputError(
            f"{label} is a sequential pass, which ends after its last row; leave out {' and '.join(given)}."
        )


def gone_on(
    path: str | os.PathLike[str],
    source: Source,
    backend: Backend,
    max_laps: int | None = None,
    max_time: float | None = None,
    holdout: object = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Run:
    """The run at `path`, ready to continue from its checkpoint, or from its preparation if it has none yet.

    Parameters
    ----------
    max_laps, max_time : new limits; None for the stored ones
    holdout : held-out rows to score, or their path, which is stored; None for those at the stored path
    checkpoint_seconds : longest time between checkpoints

    Raises
    ------
    InputError
        If a limit is given for a sequential pass, which ends by itself.
    CheckpointError
        If there is no run, the data differ from those of the run, or another coordinator holds it.
    """
    found = run_to_resume(path)
    check_limits(METHODS[found.method].command, path, max_laps, max_time)
    limits = _limits_of(found).but(max_laps, max_time)
    holdout = found.settings.get("holdout") if holdout is None else holdout
    if isinstance(found, PreparationStore):
        method = method_named(found.method, holdout, source.names, found.settings)
        run = prepare_again(method, source, limits, backend, found, _changed_places(holdout, found))
    else:
        run = resumed(found, source, backend, limits, holdout)
    run.checkpoint_seconds = checkpoint_seconds
    return run


def resumed(store: RunStore, source: Source, backend: Backend, limits: Limits, holdout: object = None) -> Run:
    """The run in `store`, ready to continue from its checkpoint, which scores the rows held out, if any are given; what
    is changed is stored at once. Raises :class:`CheckpointError` if the data differ from those of the run, or another
    coordinator holds it."""
    method = method_named(store.method, holdout, store.problem().names, store.settings)
    store.lock()
    with released_on_error(store):
        source = store.same_data(source)
        fitted, history = store.fitted(), store.history()
        if fitted is not None and method.endless:
            nothing_new = fitted.converged and limits == _limits_of(store)
            over = nothing_new or limits.reached(len(history.laps))
            stop = (fitted.stop or MAX_LAPS) if over else None
            fitted = fitted._replace(stop=stop, converged=over and fitted.converged)
        state, manifest = store.state()
        state, problem = replace(state, quiet=False), store.problem()
        run = Run(method, problem, source, backend, state, limits, history, store, fitted=fitted, manifest=manifest)
        places = _changed_places(holdout, store)
        if places or limits != _limits_of(store):
            store.change(limits.parameters if method.endless else {}, places)
            run.save()
        return run


def being_prepared(path: str | os.PathLike[str]) -> PreparationStore | None:
    """The run at `path` that has no checkpoint yet, even if it replaces another; None if there is none."""
    return PreparationStore.found(place_of(path))


def _changed_places(holdout: object, run: RunStore | PreparationStore) -> dict[str, str]:
    """The path of held-out rows, by the name of its setting, unless `run` has it already."""
    if not isinstance(holdout, str | os.PathLike) or run.settings.get("holdout") == (path := located(holdout)):
        return {}
    return {"holdout": path}


def _limits_of(run: RunStore | PreparationStore) -> Limits:
    """The stored limits of a run."""
    parameters = run.asked().parameters
    return Limits(parameters.get("max_laps"), parameters.get("max_time"))


def stored_laps(store: RunStore) -> list[LapEvent]:
    """The events of the finished laps of a run."""
    history, method = store.history(), METHODS[store.method]
    return [event_of_lap(method, row, history.accepted(row.lap)) for row in history.laps]


def model_in(store: RunStore) -> Any:
    """The predictor of the model in a store, of any method; raises :class:`InputError` before the first lap ended."""
    fitted = store.model()
    return METHODS[store.method].predictor(store.problem(), fitted.total, fitted.ids)


def rows_model(found: object, path: str | os.PathLike[str]) -> Predictor:
    """`found` as a predictor of rows; raises :class:`CheckpointError` if the model at `path` is a topic model."""
    if not isinstance(found, Predictor):
        raise CheckpointError(f"{path} is a topic model of documents, not a model of rows; give another path.")
    return found


def refittable(found: object, path: str | os.PathLike[str]) -> MixturePredictor:
    """`found` as a predictor of a fit; raises as :func:`rows_model`, and :class:`InputError` if the model at `path` is
    from a sequential pass."""
    predictor = rows_model(found, path)
    if not isinstance(predictor, MixturePredictor):
        raise InputError(
            f"{path} is a sequential pass, which cannot be refitted; start a fit from it with: dpdist fit --initial"
        )
    return predictor


def grow_stored_tree(path: str | os.PathLike[str], source: Source, backend: Backend) -> Tree:
    """Grow the merge tree of the run or model at `path` and store it there. Raises as :func:`rows_model`, if the rows
    are not those of the run, and if the run is being written."""
    with _alone_with(path) as (store, predictor):
        tree = grow_tree(predictor, _rows_of(store, source), backend, store.problem().seed)
        store.add_finding("tree", tree, predictor)
    return tree


def refit_stored(
    path: str | os.PathLike[str],
    source: Source,
    backend: Backend,
    refits: int,
    max_laps: int,
    tell: Tell,
) -> Stability:
    """Refit the fit at `path` to measure the stability of its clusters. The result is stored after every refit, so that
    a later call continues. Other arguments are as for :func:`dpdist.inference.stability.refit`."""
    with _alone_with(path) as (store, predictor):
        known, keep = store.finding("stability"), partial(store.add_finding, "stability", predictor=predictor)
        fitted, rows = refittable(predictor, path), _rows_of(store, source)
        return refit(store.problem(), fitted, rows, backend, refits, max_laps, tell, known, keep)


@contextlib.contextmanager
def _alone_with(path: str | os.PathLike[str]) -> Iterator[tuple[RunStore, Predictor]]:
    """The store and the row predictor of a run or model, locked against other writers."""
    store = open_run(path)
    store.lock()
    try:
        yield store, rows_model(model_in(store), path)
    finally:
        store.release()


def _rows_of(store: RunStore, source: Source) -> Source:
    """The rows of a run, verified as they are read. For a model that was saved or extended, any rows of the same total
    weight are accepted. Raises :class:`InputError` or :class:`CheckpointError` if the rows differ in a way that is
    visible without reading them."""
    require_rows_of_fit(source, store.model())
    known = store.attributes["fingerprint"] and not store.attributes.get("taken")
    return store.same_data(source) if known else source
