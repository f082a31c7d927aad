"""Runs and models fitted by variational inference, as generations on disk: what is alike, and mixtures.

run.zarr/problems/4f21c0/                      the model's priors and everything fixed for the run
run.zarr/generations/000007-9ae310/components  the model after some lap
run.zarr/generations/000007-9ae310/history     laps and proposals
run.zarr/generations/000007-9ae310/state       what the next batch needs, but for batch summaries; absent in a saved
model run.zarr/objects/000003-77d2aa/                what visiting batches gave; shared by generations
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import zarr

from dpdist.core.errors import CheckpointError
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.prediction import MixturePredictor
from dpdist.inference.state import State
from dpdist.models.sufficient_statistics import Summary
from dpdist.storage import schema
from dpdist.storage.descriptions import write_description
from dpdist.storage.generations import GenerationStore
from dpdist.storage.history import History
from dpdist.storage.memo import Manifest
from dpdist.storage.stored_parts import Asked, read_asked, write_asked
from dpdist.storage.stored_problem import read_problem, write_problem
from dpdist.storage.stored_state import MIXTURE, StateKind, read_state, write_state


class Fitted(NamedTuple):
    """A model at the end of some lap.

    Parameters
    ----------
    ids : (K,) stable ids
    total : summary of the whole data
    elbo : exact ELBO, nats
    rows : number of rows
    stop : why the run ended; None while it goes on
    converged : whether it ended by convergence
    """

    ids: np.ndarray
    total: Any
    elbo: float
    rows: float
    stop: str | None = None
    converged: bool = False


class RunStore(GenerationStore, ABC):
    """A run, or a model saved from one; subclasses say how what differs between kinds of models is stored."""

    kind: StateKind

    @staticmethod
    @abstractmethod
    def write_problem(group: zarr.Group, problem: Any) -> None:
        """Store what is fixed for the run in an empty group."""

    @staticmethod
    @abstractmethod
    def read_problem(group: zarr.Group) -> Any:
        """What is fixed for the run."""

    @staticmethod
    @abstractmethod
    def write_fitted(group: zarr.Group, problem: Any, fitted: Fitted) -> None:
        """Store a model in an empty group."""

    @staticmethod
    @abstractmethod
    def read_total(group: zarr.Group) -> Any:
        """The summary of the whole data of a stored model."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        problem: Any,
        settings: dict[str, Any],
        fingerprint: dict[str, Any],
        overwrite: bool = False,
        asked: Asked | None = None,
    ) -> Self:
        """A new store at `path`, without a generation; `asked` is what a person asked for.

        Raises
        ------
        OutputExistsError
            If something is there and `overwrite` is false.
        """

        def write(group: zarr.Group) -> None:
            cls.write_problem(group, problem)
            if asked is not None:
                write_asked(group, asked)

        return cls.begin(path, write, settings, fingerprint, overwrite)

    def problem(self) -> Any:
        """The problem fixed for the run."""
        return self.read_problem(self.problem_group())

    def asked(self) -> Asked:
        """What a person asked for."""
        return read_asked(self.problem_group())

    def state(self) -> tuple[State, Manifest]:
        """The state to go on from, and the objects its batch summaries are stored in."""
        if not self.holds("state"):
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")
        return read_state(
            self.generation("state"), lambda name: self.kind.read_batch_summaries(self.group(name)), self.kind
        )

    def put_batch_summaries(self, name: str, batch_summaries: Sequence[Any]) -> None:
        """Store batch summaries of one layout; raises :class:`CheckpointError` if they cannot be written."""
        self.add_object(name, lambda group: self.kind.write_batch_summaries(group, batch_summaries))

    def fitted(self) -> Fitted | None:
        """The model of the current generation, or None before the first lap."""
        return self._fitted(self.generation("components")) if self.holds("components") else None

    def history(self) -> History:
        """The history up to the current generation."""
        return History.read(self.generation("history"))

    def commit(
        self,
        problem: Any,
        fitted: Fitted | None,
        history: History,
        state: State | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        """Write the next generation and make it current; the objects of `manifest` were put before.

        Raises
        ------
        CheckpointError
            If it cannot be written; the current generation is left as it was.
        """

        def write(group: zarr.Group) -> None:
            if fitted is not None:
                components = group.create_group("components")
                components.attrs.update(_attributes(fitted))
                self.write_fitted(components, problem, fitted)
            history.write(group.create_group("history"))
            if state is not None and manifest is not None:
                write_state(group.create_group("state"), state, manifest, self.kind)

        self.add_generation(write, manifest.packs if manifest is not None else [])

    def _fitted(self, group: zarr.Group) -> Fitted:
        attrs: dict[str, Any] = dict(group.attrs)
        kept = {name: attrs[name] for name in ("elbo", "rows", "stop", "converged")}
        return Fitted(ids=schema.read(group, "id"), total=self.read_total(group), **kept)


def _attributes(fitted: Fitted) -> dict[str, Any]:
    return {
        "elbo": fitted.elbo,
        "rows": fitted.rows,
        "n_components": len(fitted.ids),
        "stop": fitted.stop,
        "converged": fitted.converged,
    }


class Store(RunStore):
    """A run of a mixture, or a mixture saved from one."""

    method = "memoized"
    kind = MIXTURE

    @staticmethod
    def write_problem(group: zarr.Group, problem: Problem) -> None:
        write_problem(group, problem)

    @staticmethod
    def read_problem(group: zarr.Group) -> Problem:
        return read_problem(group)

    @staticmethod
    def write_fitted(group: zarr.Group, problem: Problem, fitted: Fitted) -> None:
        total = fitted.total
        weights, rest = problem.model.allocation.weights(total.counts)
        group.attrs.update({"base": total.base, "rest_weight": rest})
        columns = {"id": fitted.ids, "weight": weights, "stats": total.stats, "entropy": total.entropy}
        for name, values in columns.items():
            schema.write(group, name, values)
        if fitted.stop is not None:
            predictor = MixturePredictor(problem.model, problem.preparation, total, fitted.ids)
            write_description(group, predictor.exported())

    @staticmethod
    def read_total(group: zarr.Group) -> Summary:
        base: Any = group.attrs["base"]
        return Summary(schema.read(group, "stats"), schema.read(group, "entropy"), base)
