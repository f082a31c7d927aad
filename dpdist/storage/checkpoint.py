"""The store of runs of all methods, and of saved models, as generations at a path or URL.

run.zarr/problems/4f21c0/problem               priors and everything else that is fixed during the run
run.zarr/problems/4f21c0/asked                 the estimator and its parameters
run.zarr/generations/000007-9ae310/components  the model after a step, with arrays for other readers
run.zarr/generations/000007-9ae310/history     laps and proposals
run.zarr/generations/000007-9ae310/tree        a result computed from the model, under a name of :data:`FINDINGS`
run.zarr/generations/000007-9ae310/state       what the next batch needs except batch summaries; only of runs
run.zarr/objects/000003-77d2aa/                batch summaries, shared by generations

Everything is encoded by :mod:`dpdist.storage.codec`, and each stored class declares its own dimensions and units.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import zarr

from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.stored import BESIDE, Stored
from dpdist.data.columns import Names
from dpdist.inference.state import State
from dpdist.inference.transform import Description
from dpdist.storage import codec
from dpdist.storage.arrays import put, subgroup
from dpdist.storage.commits import writable
from dpdist.storage.descriptions import write_description
from dpdist.storage.generations import GenerationStore
from dpdist.storage.history import History
from dpdist.storage.memo import Kept, Manifest

#: Results that may be computed from a finished model: the merge tree of its clusters, and their stability.
FINDINGS = ("tree", "stability")
#: The statistics of a model, whose type depends on the method.
Total = TypeVar("Total")
_WEIGHT = Stored(("component",), "posterior mean weight of a component")


class ProblemLike(Protocol):
    """Everything that is fixed during a run, including the name of its method."""

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def seed(self) -> int:
        """Seed of all draws."""

    @property
    def names(self) -> Names | None:
        """Names of the columns of the data, if they have any."""


class PredictorLike(Protocol):
    """The part of a predictor that is stored."""

    def weights(self) -> tuple[np.ndarray, float]:
        """Weights (K,), and the weight of components not yet seen."""

    def exported(self) -> Description:
        """Arrays that describe the components in raw columns."""


@dataclass(frozen=True, eq=False)
class Asked:
    """An estimator, by its import path, and its parameters."""

    estimator: str
    parameters: dict[str, Any]

    def but(self, parameters: Mapping[str, object]) -> Asked:
        """A copy with some parameters changed."""
        return replace(self, parameters={**self.parameters, **parameters})


class Fitted(NamedTuple, Generic[Total]):
    """A model at the end of a step.

    Parameters
    ----------
    ids : (K,) stable ids
    total : the statistics of the model: the summary of the whole data, or the state of a method without summaries
    elbo : exact ELBO, nats; NaN if the method has none
    rows : number of rows
    units : number of rows or tokens that the ELBO refers to
    next_id : the smallest id that no component has had
    stop : the stop reason; None while the run continues
    converged : whether it ended by convergence
    """

    ids: Annotated[np.ndarray, Stored(("component",), "stable identity of a component", name="id")]
    total: Annotated[Total, BESIDE]
    elbo: float
    rows: float
    units: float
    next_id: int
    stop: str | None = None
    converged: bool = False

    @property
    def per_unit(self) -> float:
        """The ELBO per row or token; NaN if the method has none."""
        return self.elbo / self.units


#: A model of any method.
AnyFitted = Fitted[Any]


@dataclass(frozen=True, eq=False)
class StoredState:
    """A state without its batch summaries, and the manifest of where they are stored."""

    state: State
    manifest: Manifest

    @classmethod
    def of(cls, state: State, manifest: Manifest) -> Self:
        """The stored form of a state whose batch summaries the manifest locates."""
        return cls(replace(state, batch_summaries=(), start=None, queue=(), running=None), manifest)


class Generation(NamedTuple):
    """The contents of a generation.

    Parameters
    ----------
    fitted, predictor : the model of the last lap, and its predictor; None before the first lap
    history : up to the generation
    stored : the state to resume from; None for a saved model
    findings : results computed from the model, by a name of :data:`FINDINGS`
    """

    fitted: AnyFitted | None
    predictor: PredictorLike | None
    history: History
    stored: StoredState | None = None
    findings: Mapping[str, object] = MappingProxyType({})

    def write(self, group: zarr.Group) -> None:
        """Write the generation to its group."""
        if self.fitted is not None and self.predictor is not None:
            _write_components(group.create_group("components"), self.fitted, self.predictor)
        self.history.write(group.create_group("history"))
        if self.stored is not None:
            codec.write(group.create_group("state"), self.stored)
        for name, finding in self.findings.items():
            codec.write(group.create_group(name), finding)


class RunStore(GenerationStore):
    """A run of any method, or a model saved from one."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        problem: ProblemLike,
        settings: Mapping[str, object],
        fingerprint: Mapping[str, object],
        overwrite: bool = False,
        asked: Asked | None = None,
        request: str = "",
    ) -> Self:
        """A new store at `path`, without a generation.

        Parameters
        ----------
        asked : the estimator and its parameters
        request : identity of the submission that starts the run, if any

        Raises
        ------
        OutputExistsError
            If something exists there and `overwrite` is false.
        InputError
            If something cannot be stored.
        """

        def write(group: zarr.Group) -> None:
            codec.write(group.create_group("problem"), problem)
            if asked is not None:
                codec.write(group.create_group("asked"), asked)

        return cls.begin(path, problem.method, write, settings, fingerprint, overwrite, request)

    @property
    def chosen(self) -> dict[str, object]:
        """The choice of columns for the run's data, as entries ``columns`` and ``drop``; empty if none was made."""
        return {name: self.settings[name] for name in ("columns", "drop") if self.settings.get(name) is not None}

    def problem(self) -> Any:
        """Everything that is fixed during the run."""
        return codec.read(subgroup(self.problem_group(), "problem"))

    def asked(self) -> Asked:
        """The estimator and its parameters, with the most recent limits."""
        found: Asked = codec.read(subgroup(self.problem_group(), "asked"), Asked)
        return found.but(self.attributes.get("limits", {}))

    def change(self, limits: Mapping[str, object], places: Mapping[str, str]) -> None:
        """Replace the limits, parameters by name, and some paths of the settings; the next generation stores them."""
        self.attributes = {**self.attributes, "limits": limits, "settings": {**self.settings, **places}}

    def fitted(self) -> AnyFitted | None:
        """The model of the current generation, or None before the first lap."""
        return codec.read(self.generation("components"), Fitted) if self.holds("components") else None

    def model(self) -> AnyFitted:
        """As :meth:`fitted`, but raises :class:`InputError` before the first lap."""
        fitted = self.fitted()
        if fitted is None:
            way_on = f"wait for one, or continue with: dpdist resume {self.path}"
            raise InputError(f"{self.path} has no finished lap yet; {way_on}")
        return fitted

    def history(self) -> History:
        """The history up to the current generation."""
        return History.read(self.generation("history"))

    def state(self) -> tuple[State, Manifest]:
        """The state to resume from, and the manifest of its batch summaries."""
        if not self.holds("state"):
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")
        stored: StoredState = codec.read(self.generation("state"), StoredState)
        manifest = stored.manifest
        packs: dict[str, list[object]] = {name: codec.read(self.group(name)) for name in manifest.packs}

        def batch_summary(kept: Kept) -> object:
            found = packs[kept.pack][kept.index]
            if not kept.turned:
                return found
            assert manifest.component_map is not None, "a batch summary is stored with its component map"
            return manifest.component_map.batch_summary(found)

        state = replace(
            stored.state,
            batch_summaries=tuple(batch_summary(kept) for kept in manifest.batches),
            start=None if manifest.start is None else batch_summary(manifest.start),
            queue=tuple(batch_summary(kept) for kept in manifest.queue),
            running=None if manifest.running is None else batch_summary(manifest.running),
        )
        return state, manifest

    def finding(self, name: str) -> Any:
        """The result `name` of :data:`FINDINGS`, computed from the current model; None if there is none."""
        return codec.read(self.generation(name)) if self.holds(name) else None

    def put_batch_summaries(self, name: str, batch_summaries: Sequence[object]) -> None:
        """Store batch summaries of one shape; raises :class:`CheckpointError` if they cannot be written."""
        with writable(self.place):
            self._check()
        self.add_object(name, lambda group: codec.write(group, list(batch_summaries)))

    def commit(self, content: Generation, superseded: Sequence[str] = ()) -> None:
        """Write the next generation and make it current; the objects in its manifest must have been written.

        Parameters
        ----------
        superseded : folders of files that only earlier generations may need

        Raises
        ------
        CheckpointError
            If it cannot be written; the current generation is then unchanged.
        """
        with writable(self.place):
            self._check()
        stored, last = content.stored, content.fitted is not None and content.fitted.stop is not None
        packs, files = ([], {}) if stored is None else (stored.manifest.packs, stored.manifest.files)
        self.add_generation(content.write, packs, files, last)
        self.forget(superseded)

    def add_finding(self, name: str, finding: object, predictor: PredictorLike) -> None:
        """Write the current generation again, with a result computed from its model; `predictor` is of this model.
        Raises :class:`CheckpointError` if it cannot be written, or another coordinator holds the run."""
        self.lock()
        stored: StoredState | None = codec.read(self.generation("state"), StoredState) if self.holds("state") else None
        others = {other: self.finding(other) for other in FINDINGS if other != name and self.holds(other)}
        self.commit(Generation(self.model(), predictor, self.history(), stored, {**others, name: finding}))


def _write_components(group: zarr.Group, fitted: AnyFitted, predictor: PredictorLike) -> None:
    """A model, and arrays for other readers beside it."""
    codec.write(group, fitted)
    weights, rest = predictor.weights()
    put(group, "weight", weights, _WEIGHT)
    told = {"rows": fitted.rows, "n_components": len(fitted.ids), "stop": fitted.stop, "converged": fitted.converged}
    elbo = {} if math.isnan(fitted.elbo) else {"elbo": fitted.elbo}
    group.attrs.update({**told, **elbo, "rest_weight": rest})
    if fitted.stop is not None:
        write_description(group, predictor.exported())
