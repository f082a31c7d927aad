"""Views of runs, models and estimators."""

from __future__ import annotations

import os

from dpdist.core.errors import InputError
from dpdist.core.lease import worked_on
from dpdist.runs.opening import open_run
from dpdist.runs.view import View, Viewable


def view_of(run: object) -> View:
    """The view of a run, model or estimator.

    Parameters
    ----------
    run : a path or URL, a run under way, or a fitted estimator

    Raises
    ------
    CheckpointError
        If nothing readable is at a path.
    InputError
        If it is none of these.
    """
    if isinstance(run, View):
        return run
    if isinstance(run, Viewable):
        return run.view()
    if not isinstance(run, str | os.PathLike):
        kind = type(run).__name__
        raise InputError(f"run should be a path, a run, or a fitted estimator of dpdist; got {kind}. Give one of them.")
    store = open_run(run)
    settings, attributes = store.settings, store.attributes
    return View(
        label=store.path,
        problem=store.problem(),
        history=store.history(),
        fitted=store.fitted(),
        asked=store.asked().parameters,
        settings=settings,
        fingerprint=attributes["fingerprint"],
        versions=attributes["versions"],
        going_on=worked_on(store.place),
        tree=store.finding("tree"),
    )
