"""Fits and passes made ready to run: data fitted_transform, a place to keep them claimed, the first checkpoint written.

The command line and the estimators both begin here, from a recipe of checked values.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from dpdist.core.checks import FLAG, PATH, check_fields
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.runs.limits import Limits
from dpdist.runs.method import Method, Problem, Spec
from dpdist.runs.passing import PassFit, PassRecipe, begin_pass, check_new_rows
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import Asked, RunStore
from dpdist.storage.commits import claim


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


def prepare(
    method: Method[Spec, Problem], spec: Spec, source: Source, limits: Limits, backend: Backend, keeping: Keeping
) -> Run[Problem]:
    """A run before its first lap.

    Raises
    ------
    InputError
        If the data are not such as the method takes.
    OutputExistsError
        If something is where it should be kept, and is not to be replaced.
    """
    method.check(spec, source, limits)
    _claim(keeping)
    problem, state = method.begin(spec, source, backend)
    run = Run(method, problem, source, backend, state, limits)
    if keeping.path is not None:
        kept = (keeping.settings, source.fingerprint(), keeping.overwrite, keeping.asked)
        run.store = RunStore.create(keeping.path, problem, *kept)
        run.save()
        run.settle()
    return run


def prepare_pass(
    recipe: PassRecipe, source: Source, holdout: Source | None, backend: Backend, keeping: Keeping
) -> PassFit:
    """A pass before its first round; raises as :func:`prepare` does.

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
        fit.store = RunStore.create(keeping.path, problem, *kept)
        fit.save()
    return fit


def _claim(keeping: Keeping) -> None:
    """Before anything is begun: raise unless the run can be kept where it should be."""
    if keeping.path is not None:
        claim(keeping.path, keeping.overwrite)
