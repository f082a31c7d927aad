"""Fits and passes made ready to run: data prepared, a place to keep them claimed, the first checkpoint written.

The command line and the estimators both begin here, from a spec.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from dpdist.core.checks import FLAG, PATH, check_fields
from dpdist.core.errors import InputError, PrecisionError
from dpdist.core.lease import released_on_error
from dpdist.core.places import place_of
from dpdist.data.base import Source, cut_as_before
from dpdist.data.checked import CheckedSource
from dpdist.execution.base import Backend
from dpdist.runs.limits import Limits
from dpdist.runs.methods.base import AnyMethod, Method, Predictor, Problem, Spec
from dpdist.runs.passes import KeptPasses, digests_kept
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import Asked, RunStore, Total
from dpdist.storage.commits import claim
from dpdist.storage.fingerprints import require_same_identity, warn_of_versions
from dpdist.storage.preparing import PreparationStore

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
    request : identity of the request that it is begun by, if it was submitted
    """

    path: str | os.PathLike[str] | None
    settings: Mapping[str, object]
    overwrite: bool
    asked: Asked | None
    request: str = ""

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
    """A run before its first lap; one that is to be kept keeps what passes give from the first moment on.

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
    if output.path is None:
        problem, state = method.begin(spec, source, backend)
        return Run(method, problem, source, backend, state, limits)
    place = place_of(output.path)
    store = PreparationStore.begin(place, spec, output.asked, output.settings, source.identity(), output.request)
    return _kept(method, spec, source, limits, backend, output, store, new=True)


def prepare_again(method: AnyMethod, source: Source, limits: Limits, backend: Backend, store: PreparationStore) -> Run:
    """A run before its first lap that was being made ready when its process ended.

    Raises
    ------
    CheckpointError
        If the data are not those it began with, or another coordinator makes it ready.
    """
    store.lock()
    with released_on_error(store):
        source = _same_data(source, store)
        store.limit(limits.parameters if method.endless else {})
        output = Output(store.place.label, store.told["settings"], True, store.asked(), store.request)
        spec = store.spec()
    return _kept(method, spec, source, limits, backend, output, store, new=False)


def _kept(
    method: Method[Spec, Problem, Total, Predictor],
    spec: Spec,
    source: Source,
    limits: Limits,
    backend: Backend,
    output: Output,
    store: PreparationStore,
    new: bool,
) -> Run:
    """A run made ready, its first checkpoint in the place of what was kept until then; of one that is refused nothing
    stays if it is `new`."""
    assert output.path is not None, "it is kept somewhere"
    with released_on_error(store):
        try:
            problem, state = method.begin(spec, source, KeptPasses(backend, store))
        except (InputError, PrecisionError) as error:
            if new and not isinstance(error, OSError):
                store.remove()  # it would end like this again; what else fails is gone on with
            raise
        run = Run(method, problem, source, backend, state, limits)
        store.release()
        kept = (output.settings, source.fingerprint(), True, output.asked, output.request)
        run.keep_in(RunStore.create(output.path, problem, *kept))
    store.remove()
    return run


def _same_data(source: Source, store: PreparationStore) -> CheckedSource:
    """The data the run began with, those partitions checked that were seen; warns of other versions.

    Raises
    ------
    CheckpointError
        If it can be seen at once that the data are others.
    """
    path = store.place.label
    source = cut_as_before(source, store.told["identity"])
    require_same_identity(store.told["identity"], source, path)
    warn_of_versions(store.told["versions"])
    return CheckedSource(source, digests_kept(store), path)


def _tell_if_wide(source: Source, parts: str) -> None:
    """Warn of rows that look like columns: fewer than there are columns, and dense."""
    rows, columns = source.shape
    if columns >= WIDE and columns > rows and not source.sparse and parts != "topics":
        warnings.warn(
            f"{source.label} has {rows} rows of {columns} columns; a row should be an observation. If they are the "
            "other way round, transpose them; if not, fewer columns (row_transform=TransformPlan(pca=50)) tell more.",
            stacklevel=4,
        )
