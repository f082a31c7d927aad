"""Models of sequential passes, finished or under way, as generations on disk.

model.zarr/problems/4f21c0/                      the likelihood and everything fixed for the pass
model.zarr/generations/000003-9ae310/components  the components after some round
model.zarr/generations/000003-9ae310/history     rows, components, seconds and held-out score by round
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import zarr

from dpdist.inference.prediction import predictor_of
from dpdist.inference.sva.base import Learner, OpeningRule
from dpdist.inference.sva.opening import SVAState
from dpdist.inference.sva.prune_merge import PruneMerge
from dpdist.inference.sva.sequence import Rounds, SequentialInfo, SequentialProblem, SequentialState
from dpdist.storage import schema
from dpdist.storage.descriptions import write_description
from dpdist.storage.generations import GenerationStore, read_attributes
from dpdist.storage.stored_parts import Asked, read_asked, read_part, write_asked, write_part
from dpdist.storage.stored_problem import read_preparation, write_preparation

if TYPE_CHECKING:
    import xarray as xr


class RoundRow(NamedTuple):
    """One round in the history of a pass."""

    round: int
    rows_passed: int
    components_found: int
    seconds_passed: float
    holdout_score: float


class PassHistory:
    """Grows by one round at a time.

    Parameters
    ----------
    rounds : rows to start from
    """

    def __init__(self, rounds: Iterable[RoundRow] = ()) -> None:
        self.rounds = list(rounds)

    def add(self, info: SequentialInfo) -> None:
        """Append a finished round."""
        self.rounds.append(RoundRow(info.round, info.rows, info.n_components, info.seconds, info.holdout))

    @property
    def seconds(self) -> float:
        """Time spent passing so far."""
        return self.rounds[-1].seconds_passed if self.rounds else 0.0

    @property
    def scored(self) -> int:
        """Rows passed when held-out rows were last scored."""
        return max((row.rows_passed for row in self.rounds if not np.isnan(row.holdout_score)), default=0)

    def columns(self) -> dict[str, np.ndarray]:
        """Name -> values, for every variable of the history."""
        kinds = RoundRow.__annotations__
        return {
            name: np.array([getattr(row, name) for row in self.rounds], dtype=np.int64 if kind == "int" else np.float64)
            for name, kind in kinds.items()
        }

    def dataset(self) -> xr.Dataset:
        """The history with dimension ``round``."""
        import xarray as xr

        variables: dict[str, Any] = {}
        for name, values in self.columns().items():
            variable = schema.VARIABLES[name]
            variables[name] = (variable.dims, values, {"units": variable.units, "long_name": variable.doc})
        return xr.Dataset(variables)


class SequentialStore(GenerationStore):
    """A model of a sequential pass."""

    method = "sequential"

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        problem: SequentialProblem,
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
        write = partial(_write_problem, problem=problem, asked=asked)
        return cls.begin(path, write, settings, fingerprint, overwrite)

    def problem(self) -> SequentialProblem:
        """The problem fixed for the pass."""
        return _read_problem(self.problem_group())

    def asked(self) -> Asked:
        """What a person asked for."""
        return read_asked(self.problem_group())

    def state(self) -> SequentialState:
        """The state to go on from."""
        return _read_state(self.generation("components"))

    @property
    def finished(self) -> bool:
        """Whether the pass reached the end of its rows."""
        return bool(self.generation("components").attrs["finished"])

    def history(self) -> PassHistory:
        """The history up to the current generation."""
        group = self.generation("history")
        columns = [schema.read(group, name).tolist() for name in RoundRow._fields]
        return PassHistory(RoundRow(*row) for row in zip(*columns, strict=True))

    def commit(self, problem: SequentialProblem, state: SequentialState, history: PassHistory, finished: bool) -> None:
        """Write the next generation and make it current.

        Raises
        ------
        CheckpointError
            If it cannot be written; the current generation is left as it was.
        """

        def write(group: zarr.Group) -> None:
            _write_components(group.create_group("components"), problem, state, finished)
            rounds = group.create_group("history")
            for name, values in history.columns().items():
                schema.write(rounds, name, values)

        self.add_generation(write)


def is_pass(path: str | os.PathLike[str]) -> bool:
    """Whether a sequential pass made what is stored at `path`; :class:`CheckpointError` if nothing readable is."""
    return bool(read_attributes(path)["method"] == SequentialStore.method)


def _read_state(group: zarr.Group) -> SequentialState:
    attrs: dict[str, Any] = dict(group.attrs)
    growth = SVAState(
        table=schema.read(group, "table"),
        ids=schema.read(group, "id"),
        rows=attrs["rows"],
        seen=attrs["seen"],
        look=attrs["look"],
        pruned=attrs["pruned"],
        overlap=schema.read(group, "overlap") if "overlap" in group else np.zeros((0, 0)),
    )
    return SequentialState(growth, attrs["round"], attrs["next_id"])


def _write_components(group: zarr.Group, problem: SequentialProblem, state: SequentialState, finished: bool) -> None:
    growth = state.growth
    predictor = predictor_of(problem, growth)
    weights, rest = predictor.weights()
    group.attrs.update(
        {
            "rows": growth.rows,
            "seen": growth.seen,
            "look": growth.look,
            "pruned": growth.pruned,
            "round": state.round,
            "next_id": state.next_id,
            "n_components": len(growth.ids),
            "rest_weight": rest,
            "finished": finished,
        }
    )
    arrays = {"id": growth.ids, "weight": weights, "table": growth.table}
    if len(growth.overlap):
        arrays["overlap"] = growth.overlap
    for name, values in arrays.items():
        schema.write(group, name, values)
    if finished:
        write_description(group, predictor.exported())


def _write_problem(group: zarr.Group, problem: SequentialProblem, asked: Asked | None) -> None:
    group.attrs.update(
        {
            "dtype": np.dtype(problem.dtype).name,
            "seed": problem.seed,
            "columns": problem.preparation.columns,
        }
    )
    for name in ("learner", "rule", "tidy", "rounds"):
        write_part(group, name, getattr(problem, name))
    write_preparation(group.create_group("preparation"), problem.preparation)
    if asked is not None:
        write_asked(group, asked)


def _read_problem(group: zarr.Group) -> SequentialProblem:
    attrs: dict[str, Any] = dict(group.attrs)
    return SequentialProblem(
        learner=read_part(group, "learner", Learner),
        preparation=read_preparation(schema.subgroup(group, "preparation"), attrs["columns"]),
        rule=read_part(group, "rule", OpeningRule),
        tidy=read_part(group, "tidy", PruneMerge),
        rounds=read_part(group, "rounds", Rounds),
        dtype=np.dtype(attrs["dtype"]).type,
        seed=attrs["seed"],
    )
