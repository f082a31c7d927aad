"""Sequential passes that extend a finished model with new rows, without reading the old rows."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dpdist.core.checks import FLAG, PATH
from dpdist.core.errors import InputError
from dpdist.core.lease import released_on_error
from dpdist.core.outputs import check_apart
from dpdist.data.base import Source, cut_as_before
from dpdist.execution.base import Backend
from dpdist.inference.loop import running_state
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.sva.base import SVAState, rule_of
from dpdist.inference.sva.sequence import SVAProblem
from dpdist.runs.limits import Limits
from dpdist.runs.methods import METHODS
from dpdist.runs.methods.rows import check_new_rows
from dpdist.runs.methods.sva import SequentialPass, passed, prepared_extension
from dpdist.runs.run import Run
from dpdist.runs.specs.sva import SVASpec
from dpdist.storage.checkpoint import Asked, RunStore
from dpdist.storage.commits import claim
from dpdist.storage.fingerprints import digest_of_data
from dpdist.storage.history import History


def prepare_extension(
    path: str | os.PathLike[str],
    source: Source,
    backend: Backend,
    out: str | os.PathLike[str] | None,
    overwrite: bool,
    settings: Mapping[str, object],
    again: bool = False,
    give_up: bool = False,
) -> Run:
    """A sequential pass over new rows, ready to iterate, with its first checkpoint written.

    Parameters
    ----------
    path, source, backend, out, overwrite, again, give_up : as for :func:`dpdist.extend`
    settings : plain values stored in the checkpoint, with which the command line resumes; the choice of columns of the
        model is added

    Raises
    ------
    InputError, CheckpointError
        As :func:`dpdist.extend`.
    """
    path, again, give_up = PATH.take("path", path), FLAG.take("again", again), FLAG.take("give_up", give_up)
    out = PATH.or_none("the model itself").take("out", out)
    if out is not None:
        check_apart(out, path)
        claim(out, FLAG.take("overwrite", overwrite))  # before any row is read
    store = RunStore.open(path, *METHODS)
    if store.method not in (SVAProblem.method, Problem.method):
        raise InputError(
            f"only models of rows can be extended; {path} is a topic model. Add documents with partial_fit of "
            "HDPTopicModel, in Python."
        )
    by_pass = store.method == SVAProblem.method
    if not by_pass and out is None:
        raise InputError(
            f"{path} was not made by a sequential pass, so it is not changed; store the result with out=PATH."
        )
    if out is None:
        store.lock()
    with released_on_error(store):
        if give_up and store.going_on:
            store.go_back()
        problem, running, history, asked = _finished_pass(store) if by_pass else _as_finished_pass(store)
        source, fingerprint = _new_rows(store, problem, source, backend, again)
        settings = {**store.chosen, **settings}
        state, fitted = running_state(running, len(history.laps) + 1), passed(running, None)
        run = Run(SequentialPass(), problem, source, backend, state, Limits(None), history, fitted=fitted)
        if out is None:
            store.restart(settings, fingerprint)
            run.keep_in(store)
        else:
            other = RunStore.create(out, problem, settings, fingerprint, overwrite, asked)
            other.attributes["taken"] = store.taken
            run.keep_in(other)
    return run


def _new_rows(
    store: RunStore, problem: SVAProblem, source: Source, backend: Backend, again: bool
) -> tuple[Source, Mapping[str, object]]:
    """The new rows, cut as the model's, and their fingerprint; raises :class:`InputError` if the model does not accept
    such rows, or includes them already and `again` is false."""
    source = cut_as_before(source, store.attributes["fingerprint"])  # to recognise rows included
    check_new_rows(problem.preparation, problem.learner, source, backend, "SVA")
    fingerprint = source.fingerprint()
    if digest_of_data(fingerprint) in store.taken and not again:
        raise InputError(
            f"{store.path} already includes the rows of {source.label}, which would count twice; give other rows, or "
            "force this with again=True."
        )
    return source, fingerprint


_Held = tuple[SVAProblem, SVAState, History, Asked]


def _finished_pass(store: RunStore) -> _Held:
    """The contents of the store of a finished sequential pass."""
    fitted = store.fitted()
    if fitted is None or fitted.stop is None:
        or_else = ", or discard its last rows with give_up=True" if store.going_on else ""
        raise InputError(
            f"the pass of {store.path} has not finished. Finish it with: dpdist resume {store.path}{or_else}."
        )
    return store.problem(), fitted.total, store.history(), store.asked()


def _as_finished_pass(store: RunStore) -> _Held:
    """A model of another method, converted to a finished sequential pass with the same likelihood and transform. A
    learned concentration is replaced by its posterior mean."""
    base, fitted, asked = store.problem(), store.model(), store.asked().parameters
    rule = rule_of(base.model.allocation, fitted.total.counts)
    spec = SVASpec(
        family=asked["family"],
        row_transform=asked["row_transform"],
        concentration=rule.concentration,
        max_components=rule.max_components,
        compute_dtype=asked["compute_dtype"],
        random_state=base.seed,
    )
    problem, running = prepared_extension(base, fitted, spec)
    return problem, running, History(), Asked(spec.estimator, spec.parameters)
