"""Estimators from disk: load a model, resume a run, or extend a model with new rows."""

from __future__ import annotations

import os
from typing import TypeVar

import numpy.typing as npt

from dpdist.estimators.fitted import chosen_backend, path_of
from dpdist.estimators.mixture import Mixture
from dpdist.estimators.sva import SVA
from dpdist.estimators.topic_model import HDPTopicModel
from dpdist.execution import Backend
from dpdist.runs.extending import prepare_extension
from dpdist.runs.limits import Limits
from dpdist.runs.methods.rows import are_rows_of_fit
from dpdist.runs.opening import gone_on, open_run, rows_for, run_at
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import FINDINGS, RunStore
from dpdist.storage.importing import imported_class, made
from dpdist.storage.preparing import PreparationStore

Fit = TypeVar("Fit", Mixture, SVA, HDPTopicModel)
#: The estimator classes that can be loaded.
_ESTIMATORS = (Mixture, SVA, HDPTopicModel)


def resume(
    path: str | os.PathLike[str],
    x: object,
    *,
    sample_weight: npt.ArrayLike | None = None,
    max_laps: int | None = None,
    max_time: float | None = None,
    holdout: object = None,
    backend: Backend | None = None,
) -> Mixture | SVA | HDPTopicModel:
    """Continue the run or sequential pass in a checkpoint; the result equals that of an undisturbed run to the bit.

    Parameters
    ----------
    path : checkpoint folder of a fit
    x, sample_weight : the data that the run was started with
    max_laps, max_time : when to stop; default: the limits of the run
    holdout : held-out rows to score; default: the holdout of the run, if it was given by a path. A path is stored for
        later calls. Held-out rows that were given in memory are not stored, so they are scored no further unless
        given again
    backend : where to run; default: the active Dask client, else this process

    Returns
    -------
    model : the fitted estimator, with the parameters of the run, and `max_laps` and `max_time` if given here

    Raises
    ------
    CheckpointError
        If there is no run at `path`, the data differ from those of the run, or a user-defined class that it needs
        cannot be imported.
    """
    stored = run_at(path)
    model, source = _estimator_of(stored), rows_for(stored, x, sample_weight)
    run = gone_on(path, source, chosen_backend(backend), max_laps, max_time, holdout)
    model.set_params(**Limits(max_laps, max_time).given)
    return _at_its_end(model, run)


def extend(
    path: str | os.PathLike[str],
    x: object,
    *,
    sample_weight: npt.ArrayLike | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    again: bool = False,
    give_up: bool = False,
    backend: Backend | None = None,
) -> SVA:
    """Refine and grow a model with new rows by a sequential pass, without reading the old rows.

    Parameters
    ----------
    path : a model of a sequential pass, or a run or model fitted by another method
    x, sample_weight : the new rows
    out : folder for the result; default: the model at `path` is updated in place, which needs a model of a
        sequential pass
    overwrite : whether to replace what is at `out`
    again : whether to accept rows that the model already includes, which then count twice. Such rows are recognised by
        a digest of the whole data given, so not if they are only a part of it, nor by a model written by ``save``
    give_up : whether to abandon an unfinished extension of `path`: the model is restored to its state before that
        extension, and extended from there
    backend : where to run; default: the active Dask client, else this process

    Returns
    -------
    model : fitted to old and new rows

    Raises
    ------
    InputError, CheckpointError
        If there is no finished model at `path`, the rows do not match it, or it already includes them.
    """
    store = open_run(path)
    source = rows_for(store, x, sample_weight)
    run = prepare_extension(path, source, chosen_backend(backend), out, overwrite, {"data": path_of(x)}, again, give_up)
    assert run.store is not None, "an extension is kept"
    return _at_its_end(_estimator_of(run.store), run)


def _at_its_end(model: Fit, run: Run) -> Fit:
    """The estimator with the model of a run, after following the run to its end; the run may have ended already."""
    if run.fitted is not None:
        model.adopt(run.problem, run.fitted, run.history, run.chosen)
    for _ in model.follow(run):
        pass
    if are_rows_of_fit(run.source, model._fitted):  # not those of an extension, which are a part
        model._rows = run.source  # also if no lap was left to run
    else:
        model.__dict__.pop("_rows", None)
    return model


def load(path: str | os.PathLike[str]) -> Mixture | SVA | HDPTopicModel:
    """Load the fitted model from a saved model or the checkpoint of a run.

    Parameters
    ----------
    path : folder written by an estimator's ``save``, or by ``dpdist fit``, ``sva`` or ``topics``

    Returns
    -------
    model : a DPMixture, FiniteMixture, SVA or HDPTopicModel, as was saved, with its parameters

    Raises
    ------
    CheckpointError
        If there is no fitted model at `path`, or a user-defined class that it needs cannot be imported.
    """
    store = open_run(path)
    model = _estimator_of(store)
    model.adopt(store.problem(), store.model(), store.history(), store.chosen)
    model.__dict__.update({f"{name}_": store.finding(name) for name in FINDINGS if store.holds(name)})
    return model


def _estimator_of(store: RunStore | PreparationStore) -> Mixture | SVA | HDPTopicModel:
    """An unfitted estimator of the stored class, with the stored parameters."""
    asked = store.asked()
    found: Mixture | SVA | HDPTopicModel = made(imported_class(asked.estimator, _ESTIMATORS), asked.parameters)
    return found
