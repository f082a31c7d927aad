"""A problem as a Zarr group and back: plain values in attributes, arrays as arrays, nothing pickled."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from dpdist import schema
from dpdist.allocations import ALLOCATIONS
from dpdist.errors import CheckpointError
from dpdist.families import FAMILIES
from dpdist.families.base import Family
from dpdist.likelihoods import Likelihood
from dpdist.model import Model, Precision
from dpdist.moves.plan import MovePlan
from dpdist.preparation import Preparation, Transform
from dpdist.problem import Problem
from dpdist.schedules import SCHEDULES


def write_problem(group: zarr.Group, problem: Problem) -> None:
    """Store `problem` in an empty group."""
    allocation, schedule = problem.model.allocation, problem.schedule
    group.attrs.update(
        {
            "allocation": {"name": allocation.name, **allocation.hyperparameters()},
            "schedule": {"name": schedule.name, **plain_fields(schedule)},
            "plan": plain_fields(problem.plan),
            "precision": {"dtype": np.dtype(problem.precision.dtype).name, "floor": problem.precision.floor},
            "seed": problem.seed,
            "tolerance": problem.tolerance,
            "columns": problem.preparation.columns,
        }
    )
    write_family(group.create_group("family"), problem.model.family)
    write_preparation(group.create_group("preparation"), problem.preparation)


def read_problem(group: zarr.Group, families: dict[str, type[Family]] | None = None) -> Problem:
    """The problem stored in `group`.

    Parameters
    ----------
    families : further families by name, for users' own
    """
    attrs: dict[str, Any] = dict(group.attrs)
    allocation, schedule = dict(attrs["allocation"]), dict(attrs["schedule"])
    precision = attrs["precision"]
    return Problem(
        model=Model(
            read_family(subgroup(group, "family"), {**FAMILIES, **(families or {})}),
            ALLOCATIONS[allocation.pop("name")](**allocation),
        ),
        preparation=read_preparation(subgroup(group, "preparation"), attrs["columns"]),
        schedule=SCHEDULES[schedule.pop("name")](**schedule),
        plan=MovePlan(**attrs["plan"]),
        precision=Precision(np.dtype(precision["dtype"]).type, precision["floor"]),
        seed=attrs["seed"],
        tolerance=attrs["tolerance"],
    )


def subgroup(group: zarr.Group, name: str) -> zarr.Group:
    """The group `name` inside `group`, or a sentence if it is missing."""
    node = group.get(name)
    if not isinstance(node, zarr.Group):
        raise CheckpointError(f"{group.store_path} holds no group '{name}'; the file is damaged or not dpdist's.")
    return node


def plain_fields(value: Any) -> dict[str, Any]:
    """Field name -> value of a dataclass of plain values."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def write_family(group: zarr.Group, family: Family | Likelihood) -> None:
    """Numbers go to attributes; arrays to arrays of their own, whose names are the family's."""
    plain: dict[str, Any] = {"name": family.name}
    for name, value in family.hyperparameters().items():
        if isinstance(value, np.ndarray):
            group.create_array(
                name,
                data=value,
                compressors=[Crc32cCodec()],
                dimension_names=[f"{name}_{i}" for i in range(value.ndim)],
                config={"write_empty_chunks": True},
            )
        else:
            plain[name] = value
    group.attrs.update(plain)


def read_family(group: zarr.Group, families: dict[str, Any]) -> Any:
    """The family or likelihood stored in `group`; `families` are those known by name."""
    plain: dict[str, Any] = dict(group.attrs)
    name = plain.pop("name")
    if name not in families:
        known = ", ".join(sorted(families))
        raise CheckpointError(
            f"the model's family '{name}' is not known here (known: {known}); pass it as families={{'{name}': ...}}."
        )
    arrays = {key: schema.read(group, key) for key in group.array_keys()}
    return families[name](**plain, **arrays)


def write_preparation(group: zarr.Group, preparation: Preparation) -> None:
    """Store a preparation in an empty group; its number of columns is for the caller to keep."""
    transform = preparation.transform
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
    return Preparation(transform, optional("origin"), columns)
