"""The one store: a run of any method, or a model saved from one, as generations at a place.

run.zarr/problems/4f21c0/problem               the model's priors and everything fixed for the run
run.zarr/problems/4f21c0/asked                 what a person asked for
run.zarr/generations/000007-9ae310/components  the model after some step, as people read it too
run.zarr/generations/000007-9ae310/history     steps and proposals
run.zarr/generations/000007-9ae310/tree        what was found of that model since, each under a name of :data:`FINDINGS`
run.zarr/generations/000007-9ae310/state       what the next batch needs, but for batch summaries; where a run has these
run.zarr/objects/000003-77d2aa/                what visiting batches gave; shared by generations

All of it goes through :mod:`dpdist.storage.codec`: what is stored says itself how.
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

#: What may be found of a model once it is there: a tree of its clusters, and how stable they are.
FINDINGS = ("tree", "stability")
#: What a model is made from, by the method that fits it.
Total = TypeVar("Total")
_WEIGHT = Stored(("component",), "posterior mean weight of a component")


class ProblemLike(Protocol):
    """What is fixed for a run: a part that names the method which fits it."""

    @property
    def method(self) -> str:
        """What fits it."""

    @property
    def seed(self) -> int:
        """Key of every draw."""

    @property
    def names(self) -> Names | None:
        """Of the columns of its data, if they have any."""


class PredictorLike(Protocol):
    """A model as people see it; predictors are such."""

    def weights(self) -> tuple[np.ndarray, float]:
        """Weights (K,), and what is left to components not yet seen."""

    def exported(self) -> Description:
        """Arrays that describe the components, in people's coordinates."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a person asked for: an estimator by its import path, and its parameters."""

    estimator: str
    parameters: dict[str, Any]

    def but(self, parameters: Mapping[str, object]) -> Asked:
        """The same, but for some parameters."""
        return replace(self, parameters={**self.parameters, **parameters})


class Fitted(NamedTuple, Generic[Total]):
    """A model at the end of some step.

    Parameters
    ----------
    ids : (K,) stable ids
    total : what the model is made from: the summary of the whole data, or the state of a method without summaries
    elbo : exact ELBO, nats; NaN where the method has none
    rows : number of rows
    units : rows or tokens that the ELBO is of
    next_id : first id that no component had yet
    stop : why the run ended; None while it goes on
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
        """The ELBO a row or token; NaN where the method has none."""
        return self.elbo / self.units


#: A model whatever it is made from.
AnyFitted = Fitted[Any]


@dataclass(frozen=True, eq=False)
class StoredState:
    """A state without its batch summaries, and where these are."""

    state: State
    manifest: Manifest

    @classmethod
    def of(cls, state: State, manifest: Manifest) -> Self:
        """Of a state, whose batch summaries the manifest tells the places of."""
        return cls(replace(state, batch_summaries=(), start=None, queue=(), running=None), manifest)


class Generation(NamedTuple):
    """What a generation holds.

    Parameters
    ----------
    fitted, predictor : the model of the last lap, and what it says of rows; None before the first
    history : up to it
    stored : to go on from; None for a model that is saved
    findings : what was found of the model, by a name of :data:`FINDINGS`
    """

    fitted: AnyFitted | None
    predictor: PredictorLike | None
    history: History
    stored: StoredState | None = None
    findings: Mapping[str, object] = MappingProxyType({})

    def write(self, group: zarr.Group) -> None:
        """Write it to its group."""
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
        asked : what a person asked for
        request : identity of the request that it is begun by, if it was submitted

        Raises
        ------
        OutputExistsError
            If something is there and `overwrite` is false.
        InputError
            If a part of what is to be stored cannot be.
        """

        def write(group: zarr.Group) -> None:
            codec.write(group.create_group("problem"), problem)
            if asked is not None:
                codec.write(group.create_group("asked"), asked)

        return cls.begin(path, problem.method, write, settings, fingerprint, overwrite, request)

    @property
    def chosen(self) -> dict[str, object]:
        """Which columns of files it is made from, and which were left out, as far as that was asked for."""
        return {name: self.settings[name] for name in ("columns", "drop") if self.settings.get(name) is not None}

    def problem(self) -> Any:
        """What is fixed for the run."""
        return codec.read(subgroup(self.problem_group(), "problem"))

    def asked(self) -> Asked:
        """What a person asked for, with the limits that were asked for last."""
        found: Asked = codec.read(subgroup(self.problem_group(), "asked"), Asked)
        return found.but(self.attributes.get("limits", {}))

    def limit(self, limits: Mapping[str, object]) -> None:
        """Take new limits, parameters by name, as those asked for; the next generation keeps them."""
        self.attributes = {**self.attributes, "limits": limits}

    def fitted(self) -> AnyFitted | None:
        """The model of the current generation, or None before the first lap."""
        return codec.read(self.generation("components"), Fitted) if self.holds("components") else None

    def model(self) -> AnyFitted:
        """As :meth:`fitted`; :class:`InputError` before the first lap."""
        fitted = self.fitted()
        if fitted is None:
            way_on = f"wait for one, or go on with: dpdist resume {self.path}"
            raise InputError(f"{self.path} holds no finished lap yet; {way_on}")
        return fitted

    def history(self) -> History:
        """The history up to the current generation."""
        return History.read(self.generation("history"))

    def state(self) -> tuple[State, Manifest]:
        """The state to go on from, and the objects its batch summaries are stored in."""
        if not self.holds("state"):
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")
        stored: StoredState = codec.read(self.generation("state"), StoredState)
        manifest = stored.manifest
        packs: dict[str, list[object]] = {name: codec.read(self.group(name)) for name in manifest.packs}

        def batch_summary(kept: Kept) -> object:
            found = packs[kept.pack][kept.index]
            if not kept.turned:
                return found
            assert manifest.component_map is not None, "a batch summary is stored with what is to be applied to it"
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
        """What was found of the model of the current generation, by a name of :data:`FINDINGS`; None if nothing was."""
        return codec.read(self.generation(name)) if self.holds(name) else None

    def put_batch_summaries(self, name: str, batch_summaries: Sequence[object]) -> None:
        """Store batch summaries of one shape; raises :class:`CheckpointError` if they cannot be written."""
        self._check()
        self.add_object(name, lambda group: codec.write(group, list(batch_summaries)))

    def _check(self) -> None:
        """Raise :class:`CheckpointError` if the run is gone or another's by now: no part of it is to come back."""
        if self._lease is not None:
            with writable(self.place):
                self._lease.check()

    def commit(self, content: Generation, superseded: Sequence[str] = ()) -> None:
        """Write the next generation and make it current; the objects of its manifest were put before.

        Parameters
        ----------
        superseded : folders of files that only generations before may need

        Raises
        ------
        CheckpointError
            If it cannot be written; the current generation is left as it was.
        """
        self._check()
        stored, last = content.stored, content.fitted is not None and content.fitted.stop is not None
        packs, files = ([], {}) if stored is None else (stored.manifest.packs, stored.manifest.files)
        self.add_generation(content.write, packs, files, last)
        self.forget(superseded)

    def add_finding(self, name: str, finding: object, predictor: PredictorLike) -> None:
        """Write the current generation once more, with what was found of its model, of which `predictor` tells.

        Raises
        ------
        CheckpointError
            If it cannot be written, or another coordinator holds the run.
        """
        self.lock()
        stored: StoredState | None = codec.read(self.generation("state"), StoredState) if self.holds("state") else None
        others = {other: self.finding(other) for other in FINDINGS if other != name and self.holds(other)}
        self.commit(Generation(self.model(), predictor, self.history(), stored, {**others, name: finding}))


def _write_components(group: zarr.Group, fitted: AnyFitted, predictor: PredictorLike) -> None:
    """A model, and beside it what people want to see of it."""
    codec.write(group, fitted)
    weights, rest = predictor.weights()
    put(group, "weight", weights, _WEIGHT)
    told = {"rows": fitted.rows, "n_components": len(fitted.ids), "stop": fitted.stop, "converged": fitted.converged}
    elbo = {} if math.isnan(fitted.elbo) else {"elbo": fitted.elbo}
    group.attrs.update({**told, **elbo, "rest_weight": rest})
    if fitted.stop is not None:
        write_description(group, predictor.exported())
