"""Fits and passes made ready to run: data surveyed, a place to keep them claimed, the first checkpoint written.

The command line and the estimators both begin here, from a recipe of checked values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dpdist import storage
from dpdist.backends.base import Backend
from dpdist.fitting import Fit, Limits, Recipe, begin
from dpdist.history import History
from dpdist.passing import PassFit, PassRecipe, begin_pass, check_new_rows
from dpdist.runs import store_of
from dpdist.sources.base import Source
from dpdist.stored_sequence import SequentialStore
from dpdist.topic_recipe import TopicRecipe
from dpdist.vocabularies import words_of


@dataclass(frozen=True)
class Keeping:
    """Where a run is kept, and what with it.

    Parameters
    ----------
    path : folder or URL
    settings : plain values by which the command line resumes
    overwrite : whether to replace what is there
    """

    path: str | os.PathLike[str]
    settings: dict[str, Any] = field(default_factory=dict)
    overwrite: bool = False


def prepare_fit(recipe: Recipe, source: Source, limits: Limits, backend: Backend, keeping: Keeping | None) -> Fit:
    """The fit of a mixture before its first lap.

    Raises
    ------
    InputError
        If the data are not such as the family takes.
    OutputExistsError
        If something is where it should be kept, and is not to be replaced.
    """

    def begun(backend: Backend) -> Fit:
        problem, state = begin(recipe, source, backend)
        return Fit(problem, source, backend, state, limits, History())

    return _kept(begun, backend, keeping)


def prepare_topics(
    recipe: TopicRecipe, source: Source, limits: Limits, backend: Backend, keeping: Keeping | None
) -> Fit:
    """The fit of a topic model before its first lap; raises as :func:`prepare_fit` does."""
    begin_topics = recipe.begin(source, limits)

    def begun(backend: Backend) -> Fit:
        fit = begin_topics(backend)
        fit.problem = replace(fit.problem, words=words_of(source))
        return fit

    return _kept(begun, backend, keeping)


def _kept(begun: Callable[[Backend], Fit], backend: Backend, keeping: Keeping | None) -> Fit:
    """A fit that is kept where it should be; nothing is begun that could not be."""
    if keeping is None:
        return begun(backend)
    storage.claim(keeping.path, keeping.overwrite)
    fit = begun(backend)
    fingerprint, create = fit.source.fingerprint(), store_of(fit.problem).create
    fit.store = create(keeping.path, fit.problem, keeping.settings, fingerprint, keeping.overwrite)
    fit.save()
    fit.settle()
    return fit


def prepare_pass(
    recipe: PassRecipe, source: Source, holdout: Source | None, backend: Backend, keeping: Keeping | None
) -> PassFit:
    """A pass before its first round; raises as :func:`prepare_fit` does.

    Parameters
    ----------
    holdout : rows whose score is followed, or None
    """
    if keeping is not None:
        storage.claim(keeping.path, keeping.overwrite)
    problem, state = begin_pass(recipe, source, backend)
    if holdout is not None:
        check_new_rows(problem, holdout, backend, "the held-out score")
    fit = PassFit(problem, source, backend, state, holdout)
    if keeping is not None:
        fingerprint = source.fingerprint()
        fit.store = SequentialStore.create(keeping.path, problem, keeping.settings, fingerprint, keeping.overwrite)
        fit.save()
    return fit
