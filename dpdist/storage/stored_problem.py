"""A problem as a Zarr group and back: plain values in attributes, arrays as arrays, nothing pickled."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.base import Move
from dpdist.inference.moves.sampling import Sampling
from dpdist.inference.schedules import Schedule
from dpdist.inference.transform import Preparation, Transform
from dpdist.models.allocations import Allocation
from dpdist.models.families.base import Family
from dpdist.models.mixture import Model, Precision
from dpdist.storage import schema
from dpdist.storage.stored_parts import read_part, read_parts, write_part, write_parts


def write_problem(group: zarr.Group, problem: Problem) -> None:
    """Store `problem` in an empty group; raises :class:`InputError` if a part of it cannot be stored."""
    group.attrs.update(
        {
            "precision": {"dtype": np.dtype(problem.precision.dtype).name, "floor": problem.precision.floor},
            "seed": problem.seed,
            "tolerance": problem.tolerance,
            "columns": problem.preparation.columns,
        }
    )
    write_part(group, "family", problem.model.family)
    write_part(group, "allocation", problem.model.allocation)
    write_part(group, "schedule", problem.schedule)
    write_parts(group, "moves", problem.moves)
    write_part(group, "sampling", problem.sampling)
    write_preparation(group.create_group("preparation"), problem.preparation)


def read_problem(group: zarr.Group) -> Problem:
    """The problem stored in `group`."""
    attrs: dict[str, Any] = dict(group.attrs)
    precision = attrs["precision"]
    return Problem(
        model=Model(read_part(group, "family", Family), read_part(group, "allocation", Allocation)),
        preparation=read_preparation(schema.subgroup(group, "preparation"), attrs["columns"]),
        schedule=read_part(group, "schedule", Schedule),
        moves=tuple(read_parts(group, "moves", Move)),
        sampling=read_part(group, "sampling", Sampling),
        precision=Precision(np.dtype(precision["dtype"]).type, precision["floor"]),
        seed=attrs["seed"],
        tolerance=attrs["tolerance"],
    )


def write_preparation(group: zarr.Group, preparation: Preparation) -> None:
    """Store a preparation in an empty group; its number of columns is for the caller to keep."""
    transform = preparation.transform
    group.attrs["names"] = preparation.names
    arrays = {
        "shift": transform.shift,
        "factor": transform.scale,
        "matrix": transform.matrix,
        "origin": preparation.origin,
    }
    for name, array in arrays.items():
        if array is not None:
            schema.write(group, name, array)


def read_preparation(group: zarr.Group, columns: int) -> Preparation:
    """The preparation stored in `group`."""

    def optional(name: str) -> np.ndarray | None:
        return schema.read(group, name) if name in group else None

    transform = Transform(optional("shift"), optional("factor"), optional("matrix"))
    names: Any = group.attrs["names"]
    return Preparation(transform, optional("origin"), columns, None if names is None else tuple(names))
