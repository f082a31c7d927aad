"""Runs and models fitted by variational inference, as generations on disk.

run.zarr/problems/4f21c0/                      the model's priors and everything fixed for the run
run.zarr/generations/000007-9ae310/components  the model after some lap
run.zarr/generations/000007-9ae310/history     laps and proposals
run.zarr/generations/000007-9ae310/state       what the next wave needs, but for leaves; absent in a saved model
run.zarr/objects/000003-00017-77d2aa/          a leaf: what visiting a wave gave; shared by generations
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import zarr

from dpdist import schema
from dpdist.errors import CheckpointError
from dpdist.families.base import Family
from dpdist.history import History
from dpdist.memo import Manifest
from dpdist.prediction import MixturePredictor
from dpdist.problem import Problem
from dpdist.state import State
from dpdist.storage import GenerationStore
from dpdist.stored_problem import read_problem, subgroup, write_problem
from dpdist.stored_state import read_leaf, read_state, write_leaf, write_state
from dpdist.summary import Summary
from dpdist.visit import Leaf


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
    total: Summary
    elbo: float
    rows: float
    stop: str | None = None
    converged: bool = False


class Store(GenerationStore):
    """A run, or a model saved from one."""

    method = "memoized"

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        problem: Problem,
        settings: dict[str, Any],
        fingerprint: dict[str, Any],
        overwrite: bool = False,
    ) -> Self:
        """A new store at `path`, without a generation.

        Raises
        ------
        OutputExistsError
            If something is there and `overwrite` is false.
        """
        return cls.begin(path, partial(write_problem, problem=problem), settings, fingerprint, overwrite)

    def problem(self, families: dict[str, type[Family]] | None = None) -> Problem:
        """The problem fixed for the run."""
        with self.reading(way_back=False):
            return read_problem(self.problem_group(), families)

    def state(self) -> tuple[State, Manifest]:
        """The state to go on from, and the objects its leaves are stored in."""
        generation = self.generation()
        with self.reading():
            resumable = "state" in generation
        if not resumable:
            raise CheckpointError(f"{self.path} is a saved model, not a run; it can predict but not resume.")
        with self.reading():
            return read_state(subgroup(generation, "state"), lambda name: read_leaf(self.group(name)))

    def put_leaf(self, name: str, leaf: Leaf) -> None:
        """Store a leaf; raises :class:`CheckpointError` if it cannot be written."""
        self.add_object(name, partial(write_leaf, leaf=leaf))

    def fitted(self) -> Fitted | None:
        """The model of the current generation, or None before the first lap."""
        generation = self.generation()
        with self.reading():
            return _read_fitted(subgroup(generation, "components")) if "components" in generation else None

    def history(self) -> History:
        """The history up to the current generation."""
        with self.reading():
            return History.read(subgroup(self.generation(), "history"))

    def commit(
        self,
        problem: Problem,
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
                _write_fitted(group.create_group("components"), problem, fitted)
            history.write(group.create_group("history"))
            if state is not None and manifest is not None:
                write_state(group.create_group("state"), state, manifest)

        self.add_generation(write, manifest.objects if manifest is not None else [])


def _read_fitted(group: zarr.Group) -> Fitted:
    attrs: dict[str, Any] = dict(group.attrs)
    total = Summary(schema.read(group, "stats"), schema.read(group, "entropy"), attrs["base"])
    return Fitted(schema.read(group, "id"), total, attrs["elbo"], attrs["rows"], attrs["stop"], attrs["converged"])


def _write_fitted(group: zarr.Group, problem: Problem, fitted: Fitted) -> None:
    total = fitted.total
    weights, rest = problem.model.allocation.weights(total.counts)
    group.attrs.update(
        {
            "elbo": fitted.elbo,
            "rows": fitted.rows,
            "base": total.base,
            "n_components": len(fitted.ids),
            "rest_weight": rest,
            "stop": fitted.stop,
            "converged": fitted.converged,
        }
    )
    for name, values in {"id": fitted.ids, "weight": weights, "stats": total.stats, "entropy": total.entropy}.items():
        schema.write(group, name, values)
    if fitted.stop is not None:
        predictor = MixturePredictor(problem.model, problem.preparation, total, fitted.ids)
        for name, (_, values) in predictor.described().items():
            schema.write(group, name, values)
