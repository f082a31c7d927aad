"""Estimators from disk: loaded, gone on with, or extended by new rows."""

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
from dpdist.runs.opening import gone_on, open_run, rows_for, run_at
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import FINDINGS, RunStore
from dpdist.storage.importing import imported_class, made
from dpdist.storage.preparing import PreparationStore

Fit = TypeVar("Fit", Mixture, SVA, HDPTopicModel)
#: What comes back from disk.
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
    """Continue the run or pass in a checkpoint; the result is, to the bit, that of an undisturbed run.

    Parameters
    ----------
    path : folder that a fit wrote its checkpoint to
    x, sample_weight : the data it began with
    max_laps, max_time : when to stop; default: as the run was told
    holdout : rows whose score is followed; default: those at the path that the run was told. Rows in memory are not
        kept, and not scored from here on unless they are given again
    backend : where to run; default: the active Dask client, else this process

    Returns
    -------
    model : the estimator that began the run, with its parameters, `max_laps` and `max_time` apart where given; fitted

    Raises
    ------
    CheckpointError
        If there is no run at `path`, the data are not those it began with, or a class of your own that it needs cannot
        be imported.
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
    """Let new rows refine and grow a model by a sequential pass, without the rows it was made from.

    Parameters
    ----------
    path : model of a sequential pass, or a run or model fitted otherwise
    x, sample_weight : the new rows
    out : folder for the result; default: the model itself gets a new generation, which needs a sequential model
    overwrite : whether to replace what is at `out`
    again : whether to take rows that the model was made from already, which then count twice. They are recognised by
        digests of their partitions, which a model written by ``save`` does not have
    give_up : whether to abandon an unfinished extension of `path`: the model goes back to what it was before, and is
        extended from there
    backend : where to run; default: the active Dask client, else this process

    Returns
    -------
    model : fitted to old and new rows

    Raises
    ------
    InputError, CheckpointError
        If there is no finished model at `path`, the rows do not fit it, or it was made from them already.
    """
    store = open_run(path)
    source = rows_for(store, x, sample_weight)
    run = prepare_extension(path, source, chosen_backend(backend), out, overwrite, {"data": path_of(x)}, again, give_up)
    assert run.store is not None, "an extension is kept"
    return _at_its_end(_estimator_of(run.store), run)


def _at_its_end(model: Fit, run: Run) -> Fit:
    """The estimator fitted by a run, which is followed to its end; it may be there already."""
    if run.fitted is not None:
        model.adopt(run.problem, run.fitted, run.history, run.chosen)
    for _ in model.follow(run):
        pass
    model._rows = run.source  # also where no lap was left to make
    return model


def load(path: str | os.PathLike[str]) -> Mixture | SVA | HDPTopicModel:
    """The fitted model in a saved model or a run's checkpoint.

    Parameters
    ----------
    path : folder written by an estimator's ``save``, or by ``dpdist fit``, ``sva`` or ``topics``

    Returns
    -------
    model : DPMixture, FiniteMixture, SVA or HDPTopicModel, whichever it was, with its parameters

    Raises
    ------
    CheckpointError
        If there is no fitted model there, or a class of your own that it needs cannot be imported.
    """
    store = open_run(path)
    model = _estimator_of(store)
    model.adopt(store.problem(), store.model(), store.history(), store.chosen)
    model.__dict__.update({f"{name}_": store.finding(name) for name in FINDINGS if store.holds(name)})
    return model


def _estimator_of(store: RunStore | PreparationStore) -> Mixture | SVA | HDPTopicModel:
    """The estimator that was asked for what is stored, not fitted."""
    asked = store.asked()
    found: Mixture | SVA | HDPTopicModel = made(imported_class(asked.estimator, _ESTIMATORS), asked.parameters)
    return found
