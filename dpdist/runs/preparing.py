"""Preparation of runs from a spec: check and summarise the data, claim the output, write the first checkpoint.

Both the command line and the estimators start runs here.
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

#: Least number of columns at which a table with more columns than rows gives a warning.
WIDE = 100


@dataclass(frozen=True)
class Output:
    """Where and how a run is stored.

    Parameters
    ----------
    path : folder or URL; None if the run is not stored
    settings : plain values stored with the run, such as the paths of its data
    overwrite : whether to replace what is at `path`
    asked : the estimator and its parameters, which :func:`dpdist.load` restores
    request : identity of the submission that starts the run, if any
    """

    path: str | os.PathLike[str] | None
    settings: Mapping[str, object]
    overwrite: bool
    asked: Asked | None
    request: str = ""

    def __post_init__(self) -> None:
        check_fields(self, path=PATH.or_none("nowhere").called("checkpoint_path"), overwrite=FLAG)

    def claim(self) -> None:
        """Raise unless the run can be stored at `path`; called before any work."""
        if self.path is not None:
            claim(self.path, self.overwrite)


#: The output of a run that is not stored.
NOWHERE = Output(None, {}, overwrite=False, asked=None)


def prepare(
    method: Method[Spec, Problem, Total, Predictor],
    spec: Spec,
    source: Source,
    limits: Limits,
    backend: Backend,
    output: Output,
) -> Run:
    """A run before its first lap; if it is stored, the results of its passes are stored from the beginning. Raises
    :class:`InputError` if the method does not accept the data, and :class:`OutputExistsError` if something exists at
    the output path and `overwrite` is false."""
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


def prepare_again(
    method: AnyMethod,
    source: Source,
    limits: Limits,
    backend: Backend,
    store: PreparationStore,
    places: Mapping[str, str],
) -> Run:
    """A run before its first lap, continued after the process that prepared it ended, with changed paths of its
    settings; raises :class:`CheckpointError` if the data differ from those of the run, or another coordinator is
    preparing it."""
    store.lock()
    with released_on_error(store):
        source = _same_data(source, store)
        store.change(limits.parameters if method.endless else {}, places)
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
    """A prepared run, whose first checkpoint replaces the stored preparation. If the method refuses the data and the
    run is `new`, nothing stays stored."""
    assert output.path is not None, "the run is stored"
    with released_on_error(store):
        try:
            problem, state = method.begin(spec, source, KeptPasses(backend, store))
        except (InputError, PrecisionError) as error:
            if new and not isinstance(error, OSError):
                store.remove()  # it would be refused again; after other errors it can be continued
            raise
        run = Run(method, problem, source, backend, state, limits)
        store.release()
        kept = (output.settings, source.fingerprint(), True, output.asked, output.request)
        run.keep_in(RunStore.create(output.path, problem, *kept))
    store.remove()
    return run


def _same_data(source: Source, store: PreparationStore) -> CheckedSource:
    """The data of the run, whose partitions are verified if the first pass had included them; warns if package versions
    differ. Raises :class:`CheckpointError` if the data differ in a way that is visible without reading them."""
    path = store.place.label
    source = cut_as_before(source, store.told["identity"])
    require_same_identity(store.told["identity"], source, path)
    warn_of_versions(store.told["versions"])
    return CheckedSource(source, digests_kept(store), f"the checkpoint in {path}")


def _tell_if_wide(source: Source, parts: str) -> None:
    """Warn if a dense table has fewer rows than columns, as if it were transposed."""
    rows, columns = source.shape
    if columns >= WIDE and columns > rows and not source.sparse and parts != "topics":
        warnings.warn(
            f"{source.label} has fewer rows ({rows}) than columns ({columns}). Each row should be an observation; "
            "transpose the table if columns are. If not, reduce the columns: row_transform=TransformPlan(pca=50).",
            stacklevel=4,
        )
