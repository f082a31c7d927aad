"""Unit costs in seconds and bytes: measured on one machine, stored as JSON, and usable on another."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dpdist.core.checks import POSITIVE, Wanted, check_fields, number, whole
from dpdist.core.errors import InputError, OutputExistsError
from dpdist.core.outputs import check_parent
from dpdist.core.places import LocalPlace

_ZERO_OR_MORE = number(least=0)
_RATE: Wanted[Any] = POSITIVE.or_none("no limit")


def _cost(doc: str, wanted: Wanted[Any] = _ZERO_OR_MORE, **given: Any) -> Any:
    return field(metadata={"doc": doc, "wanted": wanted}, **given)


@dataclass(frozen=True, kw_only=True)
class UnitCosts:
    """Unit costs: times in seconds, sizes in bytes, rates in bytes a second.

    Raises
    ------
    InputError
        If a cost is not a valid number.
    """

    row: float = _cost("local step of a row, independent of the number of components")
    row_component: float = _cost("local step of a row, added for each component that is evaluated")
    candidate_row: float | None = _cost(
        "local step of a row for which only candidates are evaluated",
        _ZERO_OR_MORE.or_none("not measured"),
        default=None,
    )
    summary_rows: float = _cost("rows of statistics per component in a batch summary, including those for moves")
    add: float = _cost("adding one byte of sums to another")
    global_step: float = _cost("global step, per component")
    lap_end: float = _cost("moves at the end of a lap, at the coordinator, per component")
    search: float = _cost("search for moves by workers at the end of a lap, per component")
    task: float = _cost("a task, at the scheduler, and the same again at its worker")
    round_trip: float = _cost(
        "from the end of a task to whatever waits for it, at the coordinator or on another worker"
    )
    submit: float = _cost("a task, at the coordinator")
    transfer: float | None = _cost("transfer rate between two processes", _RATE)
    read_seconds: float = _cost("reading a partition, independent of its size; given, not measured", default=0.0)
    read_rate: float | None = _cost("rate at which one worker reads", _RATE)
    store_rate: float | None = _cost("rate at which the store serves all workers together", _RATE, default=None)
    write_seconds: float = _cost("writing a file of a checkpoint, independent of its size")
    write_rate: float | None = _cost("rate at which a checkpoint is written", _RATE)
    process: float = _cost("memory of a process before it holds data")
    columns: int | None = _cost(
        "columns of the statistics of the fit that was measured, which depend on its family and its columns",
        whole(1).or_none("any number"),
        default=None,
    )
    cores: float | None = _cost("cores that all processes share; given, not measured", _RATE, default=None)

    def __post_init__(self) -> None:
        check_fields(self, " of the unit costs", **{each.name: each.metadata["wanted"] for each in fields(self)})

    def moved(self, size: float, rate: float | None) -> float:
        """Seconds to transfer `size` bytes at a rate."""
        return 0.0 if rate is None else size / rate

    def at_work(self, workers: int) -> int:
        """The number of `workers` that can compute at a time: one a core, if processes share the cores."""
        return workers if self.cores is None else max(1, min(workers, int(self.cores)))

    def on_cores(self, seconds: float) -> float:
        """Least wall time, in seconds, for `seconds` of work of all processes."""
        return 0.0 if self.cores is None else seconds / self.cores

    def joined(self, size: float, values: int) -> float:
        """Seconds for a worker to fetch and add `values` sums of `size` bytes each."""
        return max(0, values - 1) * size * self.add + values * self.moved(size, self.transfer)

    def write(self, path: Path) -> None:
        """Write the costs as JSON, each with its description; raises as :func:`claim_costs`."""
        claim_costs(path)
        told = {name: {"value": value, "of": DOCS[name]} for name, value in asdict(self).items()}
        LocalPlace(path.parent).replace(path.name, (json.dumps(told, indent=2) + "\n").encode())


def claim_costs(path: Path) -> None:
    """Check that unit costs may be written to a path. Raises :class:`OutputExistsError` if something other than unit
    costs is there, and :class:`InputError` if its folder does not exist."""
    check_parent(path)
    try:
        if path.exists():
            read_costs(path)
    except InputError as error:
        raise OutputExistsError(
            f"{path} exists and holds no unit costs, so it is not replaced; choose another name."
        ) from error


DOCS = {each.name: each.metadata["doc"] for each in fields(UnitCosts)}


def read_costs(path: Path) -> UnitCosts:
    """The unit costs stored at a path; raises :class:`InputError` if there are none."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        values = {name: each["value"] for name, each in told.items()}
    except OSError as error:
        raise InputError(f"the unit costs {path} cannot be read ({error.strerror}); check the path.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} holds no unit costs; write some elsewhere with: dpdist plan --save-costs FILE"
        ) from error
    wrong = values.keys() ^ DOCS.keys()
    if wrong:
        raise InputError(
            f"{path} should hold the unit costs {', '.join(DOCS)}; {sorted(wrong)[0]} is missing or unknown."
        )
    return UnitCosts(**values)
