"""Models on disk, by whatever they were made: what they hold, and what they say of rows and documents."""

from __future__ import annotations

import os

from dpdist.core.errors import InputError
from dpdist.inference.prediction import MixturePredictor, Predictor, predictor_of
from dpdist.inference.sva.sequence import SequentialState
from dpdist.inference.topics.prediction import DocumentPredictor, predictor_of_topics
from dpdist.runs.opening import open_topics
from dpdist.storage.checkpoint import Fitted, RunStore, Store
from dpdist.storage.stored_sequence import SequentialStore, is_pass


def stored_predictor(path: str | os.PathLike[str]) -> Predictor:
    """What the model at `path`, however it was made, says of rows; raises as :func:`dpdist.load` does."""
    if is_pass(path):
        passed = SequentialStore.open(path)
        return predictor_of(passed.problem(), begun_state(passed).growth)
    store = Store.open(path)
    problem, fitted = store.problem(), fitted_of(store)
    return MixturePredictor(problem.model, problem.preparation, fitted.total, fitted.ids)


def stored_topics(path: str | os.PathLike[str]) -> DocumentPredictor:
    """What the topic model at `path` says of documents; raises as :func:`dpdist.load` does."""
    store = open_topics(path)
    fitted = fitted_of(store)
    return predictor_of_topics(store.problem(), fitted.total, fitted.ids)


def fitted_of(store: RunStore) -> Fitted:
    """The model of the last lap; :class:`InputError` before the first."""
    fitted = store.fitted()
    if fitted is None:
        raise InputError(f"{store.path} holds no finished lap yet; go on with: dpdist resume {store.path}")
    return fitted


def begun_state(store: SequentialStore) -> SequentialState:
    """The state of a pass after its last round; :class:`InputError` before the first."""
    state = store.state()
    if not len(state.growth.table):
        raise InputError(f"{store.path} holds no finished round yet; go on with: dpdist resume {store.path}")
    return state
