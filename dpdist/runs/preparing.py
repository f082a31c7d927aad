"""Fits and passes made ready to run: data prepared, a place to keep them claimed, the first checkpoint written.

The command line and the estimators both begin here, from a spec.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from dpdist.core.checks import FLAG, PATH, check_fields
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.runs.limits import Limits
from dpdist.runs.methods.base import Method, Predictor, Problem, Spec
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import Asked, RunStore, Total
from dpdist.storage.commits import claim

#: Columns from which on a table that is wider than long is told.
WIDE = 100


@dataclass(frozen=True)
class Output:
    """Where a run is kept, and what with it.

    Parameters
    ----------
    path : folder or URL; None for nowhere
    settings : plain values that are told of the run, and the places of its data
    overwrite : whether to replace what is there
    asked : what a person asked for; :func:`dpdist.load` gives it back
    """

    path: str | os.PathLike[str] | None
    settings: Mapping[str, object]
    overwrite: bool
    asked: Asked | None

    def __post_init__(self) -> None:
        check_fields(self, path=PATH.or_none("nowhere").called("checkpoint_path"), overwrite=FLAG)

    def claim(self) -> None:
        """Before anything is begun: raise unless the run can be kept where it should be."""
        if self.path is not None:
            claim(self.path, self.overwrite)


#: A run that is kept nowhere.
NOWHERE = Output(None, {}, overwrite=False, asked=None)


def prepare(
    method: Method[Spec, Problem, Total, Predictor],
    spec: Spec,
    source: Source,
    limits: Limits,
    backend: Backend,
    output: Output,
) -> Run:
    """A run before its first lap.

    Raises
    ------
    InputError
        If the data are not such as the method takes.
    OutputExistsError
        If something is where it should be kept, and is not to be replaced.
    """
    method.check(spec, source, limits)
    _tell_if_wide(source, method.parts)
    output.claim()
    source = method.cut(spec, source)
    problem, state = method.begin(spec, source, backend)
    run = Run(method, problem, source, backend, state, limits)
    if output.path is not None:
        kept = (output.settings, source.fingerprint(), output.overwrite, output.asked)
        run.store = RunStore.create(output.path, problem, *kept)
        run.save()
        run.settle()
    return run


def _tell_if_wide(source: Source, parts: str) -> None:
    """Warn of rows that look like columns: fewer than there are columns, and dense."""
    rows, columns = source.shape
    if columns >= WIDE and columns > rows and not source.sparse and parts != "topics":
        warnings.warn(
            f"{source.label} has {rows} rows of {columns} columns; a row should be an observation. If they are the "
            "other way round, transpose them; if not, fewer columns (row_transform=TransformPlan(pca=50)) tell more.",
            stacklevel=4,
        )
