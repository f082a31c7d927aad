"""Fits and passes made ready to run: data fitted_transform, a place to keep them claimed, the first checkpoint written.

The command line and the estimators both begin here, from a recipe of checked values.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from dpdist.core.checks import FLAG, PATH, check_fields
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.runs.fitting import Fit, Limits, Recipe, begin
from dpdist.runs.opening import store_of
from dpdist.runs.passing import PassFit, PassRecipe, begin_pass, check_new_rows
from dpdist.runs.topic_recipe import TopicRecipe
from dpdist.storage import generations as storage
from dpdist.storage.history import History
from dpdist.storage.stored_parts import Asked
from dpdist.storage.stored_sequence import SequentialStore


@dataclass(frozen=True)
class Keeping:
    """Where a run is kept, and what with it.

    Parameters
    ----------
    path : folder or URL; None for nowhere
    settings : plain values by which the command line resumes
    overwrite : whether to replace what is there
    asked : what a person asked for; :func:`dpdist.load` gives it back
    """

    path: str | os.PathLike[str] | None
    settings: dict[str, Any]
    overwrite: bool
    asked: Asked | None

    def __post_init__(self) -> None:
        check_fields(self, path=PATH.or_none("nowhere").called("checkpoint_path"), overwrite=FLAG)


def prepare_fit(recipe: Recipe, source: Source, limits: Limits, backend: Backend, keeping: Keeping) -> Fit:
    """The fit of a mixture before its first lap.

    Raises
    ------
    InputError
        If the data are not such as the family takes.
    OutputExistsError
        If something is where it should be kept, and is not to be replaced.
    """
    _claim(keeping)
    problem, state = begin(recipe, source, backend)
    return _kept(Fit(problem, source, backend, state, limits, History()), keeping)


def prepare_topics(recipe: TopicRecipe, source: Source, limits: Limits, backend: Backend, keeping: Keeping) -> Fit:
    """The fit of a topic model before its first lap; raises as :func:`prepare_fit` does."""
    begin_topics = recipe.begin(source, limits)
    _claim(keeping)
    fit = begin_topics(backend)
    fit.problem = replace(fit.problem, words=source.names)
    return _kept(fit, keeping)


def prepare_pass(
    recipe: PassRecipe, source: Source, holdout: Source | None, backend: Backend, keeping: Keeping
) -> PassFit:
    """A pass before its first round; raises as :func:`prepare_fit` does.

    Parameters
    ----------
    holdout : rows whose score is followed, or None
    """
    _claim(keeping)
    problem, state = begin_pass(recipe, source, backend)
    if holdout is not None:
        check_new_rows(problem, holdout, backend, "the held-out score")
    fit = PassFit(problem, source, backend, state, holdout)
    if keeping.path is not None:
        fingerprint = source.fingerprint()
        kept = (keeping.settings, fingerprint, keeping.overwrite, keeping.asked)
        fit.store = SequentialStore.create(keeping.path, problem, *kept)
        fit.save()
    return fit


def _claim(keeping: Keeping) -> None:
    """Before anything is begun: raise unless the run can be kept where it should be."""
    if keeping.path is not None:
        storage.claim(keeping.path, keeping.overwrite)


def _kept(fit: Fit, keeping: Keeping) -> Fit:
    """The fit with its store, the first checkpoint written."""
    if keeping.path is not None:
        fingerprint, create = fit.source.fingerprint(), store_of(fit.problem).create
        kept = (keeping.settings, fingerprint, keeping.overwrite, keeping.asked)
        fit.store = create(keeping.path, fit.problem, *kept)
        fit.save()
        fit.settle()
    return fit
