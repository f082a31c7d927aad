"""Models of sequential passes, finished or under way, as generations on disk.

model.zarr/problems/4f21c0/                      the likelihood and everything fixed for the pass
model.zarr/generations/000003-9ae310/components  the components after some round
model.zarr/generations/000003-9ae310/history     rows, components, seconds and held-out score by round
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import zarr

from dpdist import schema
from dpdist.errors import InputError
from dpdist.families import FAMILIES
from dpdist.likelihoods import LIKELIHOODS
from dpdist.prediction import predictor_of
from dpdist.sequence import Rounds, SequentialInfo, SequentialProblem, SequentialState
from dpdist.sequential.base import Learner, Rule
from dpdist.sequential.conjugate import Conjugate
from dpdist.sequential.growth import Growth
from dpdist.sequential.nonconjugate import NonConjugate
from dpdist.sequential.tidy import DistanceTest, EvidenceTest, MergeTest, Tidy
from dpdist.storage import GenerationStore, read_attributes
from dpdist.stored_problem import read_family, read_preparation, subgroup, write_family, write_preparation

_MERGE_TESTS: dict[str, type[MergeTest]] = {"evidence": EvidenceTest, "distance": DistanceTest}

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
    ) -> Self:
        """A new store at `path`, without a generation.

        Raises
        ------
        OutputExistsError
            If something is there and `overwrite` is false.
        """
        return cls.begin(path, partial(_write_problem, problem=problem), settings, fingerprint, overwrite)

    def problem(self, families: dict[str, Any] | None = None) -> SequentialProblem:
        """The problem fixed for the pass; `families` are users' own families and likelihoods by name."""
        with self.reading(way_back=False):
            return _read_problem(self.problem_group(), {**FAMILIES, **LIKELIHOODS, **(families or {})})

    def state(self) -> SequentialState:
        """The state to go on from."""
        with self.reading():
            return _read_state(subgroup(self.generation(), "components"))

    @property
    def finished(self) -> bool:
        """Whether the pass reached the end of its rows."""
        with self.reading():
            return bool(subgroup(self.generation(), "components").attrs["finished"])

    def history(self) -> PassHistory:
        """The history up to the current generation."""
        with self.reading():
            group = subgroup(self.generation(), "history")
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
    growth = Growth(
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
        for name, (_, values) in predictor.described().items():
            schema.write(group, name, values)


def _write_problem(group: zarr.Group, problem: SequentialProblem) -> None:
    tidy = asdict(problem.tidy)
    if problem.tidy.merge is not None:
        kind = type(problem.tidy.merge)
        name = next((name for name, known in _MERGE_TESTS.items() if kind is known), None)
        if name is None:
            raise InputError(f"a pass merging by {kind.__name__} cannot be stored; use EvidenceTest or DistanceTest.")
        tidy["merge"] = {"name": name, **asdict(problem.tidy.merge)}  # type: ignore[call-overload]
    group.attrs.update(
        {
            "rule": asdict(problem.rule),
            "tidy": tidy,
            "rounds": asdict(problem.rounds),
            "dtype": np.dtype(problem.dtype).name,
            "seed": problem.seed,
            "columns": problem.preparation.columns,
        }
    )
    _write_learner(group.create_group("learner"), problem.learner)
    write_preparation(group.create_group("preparation"), problem.preparation)


def _read_problem(group: zarr.Group, families: dict[str, Any]) -> SequentialProblem:
    attrs: dict[str, Any] = dict(group.attrs)
    tidy, preparation = dict(attrs["tidy"]), read_preparation(subgroup(group, "preparation"), attrs["columns"])
    if tidy["merge"] is not None:
        merge = dict(tidy["merge"])
        tidy["merge"] = _MERGE_TESTS[merge.pop("name")](**merge)
    return SequentialProblem(
        learner=_read_learner(subgroup(group, "learner"), preparation.width, families),
        preparation=preparation,
        rule=Rule(**attrs["rule"]),
        tidy=Tidy(**tidy),
        rounds=Rounds(**attrs["rounds"]),
        dtype=np.dtype(attrs["dtype"]).type,
        seed=attrs["seed"],
    )


def _write_learner(group: zarr.Group, learner: Learner) -> None:
    if isinstance(learner, Conjugate):
        write_family(group, learner.family)
        return
    assert isinstance(learner, NonConjugate), "learners are conjugate or not"
    write_family(group.create_group("likelihood"), learner.likelihood)
    group.attrs.update(
        {
            "seed": learner.seed,
            "forgetting": learner.forgetting,
            "rows": learner.rows,
            "own_clock": learner.own_clock,
        }
    )


def _read_learner(group: zarr.Group, width: int, kinds: dict[str, Any]) -> Learner:
    if "likelihood" not in group:
        return Conjugate(read_family(group, kinds), width)
    attrs: dict[str, Any] = dict(group.attrs)
    return NonConjugate(read_family(subgroup(group, "likelihood"), kinds), width, **attrs)
