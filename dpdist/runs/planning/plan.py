"""A plan: the shape of a run, unit costs, and the forecast for a number of workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.base import Source, TableSource, rows_with_weight
from dpdist.execution import Backend
from dpdist.inference.blocks import block_rows
from dpdist.inference.mixture.batches import batches_that_pay
from dpdist.inference.mixture.engine import feature_columns
from dpdist.inference.mixture.problem import Problem
from dpdist.runs.methods.mixture import MemoizedMixture, check_count, check_density, check_start, starting_model
from dpdist.runs.planning.calibration import calibrate, planned
from dpdist.runs.planning.costs import UnitCosts
from dpdist.runs.planning.forecast import Forecast, Shape, forecast
from dpdist.runs.specs.mixture import FitSpec


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of a run.

    Parameters
    ----------
    shape : of the run
    costs : unit costs
    workers, laps : as given
    forecast : from these
    """

    shape: Shape
    costs: UnitCosts
    workers: int
    laps: int
    forecast: Forecast

    @property
    def values(self) -> dict[str, Any]:
        """The plan as plain values, for ``--json``."""
        told = self.forecast._asdict()
        return {
            **asdict(self.shape),
            "workers": self.workers,
            "laps": self.laps,
            **told,
            "run": self.forecast.run(self.laps),
            "changes": {change.what: change.seconds for change in self.forecast.changes},
            "costs": asdict(self.costs),
        }


def plan(
    spec: FitSpec,
    source: Source,
    components: int,
    workers: int,
    laps: int,
    backend: Backend,
    costs: UnitCosts | None = None,
    cores: float | None = None,
) -> Plan:
    """The plan of a fit.

    Parameters
    ----------
    spec : settings of the fit
    source : the data, possibly unwritten
    components : expected number of components, assumed constant
    workers, laps : number of workers and laps
    backend : where the costs of tasks are measured
    costs : unit costs measured before; None to measure them now
    cores : shared by workers, scheduler and coordinator if they run on one machine; None: as in `costs`

    Raises
    ------
    InputError
        If the fit would refuse its start, the family does not accept the rows, or cannot have that many components; or
        if `costs` were measured for other statistics.
    """
    check_start(spec)
    check_density(spec.family, source)
    if (start := starting_model(spec, source)) is not None:
        check_count(spec, int(np.count_nonzero(start.mixture()[1].counts)))
    check_count(spec, components)
    cut = MemoizedMixture().cut(spec, source)
    problem = planned(spec, cut, components)
    shape = shape_of(spec, problem, cut, components)
    if costs is None:
        known = replace(calibrate(spec, cut, components, backend), columns=shape.columns)
    else:
        known = _of_alike(costs, shape)
    known = known if cores is None else replace(known, cores=cores)
    return Plan(shape, known, workers, laps, forecast(shape, known, workers))


def _of_alike(costs: UnitCosts, shape: Shape) -> UnitCosts:
    """The costs, which should be of a fit with as many columns of statistics, if they say of which."""
    if costs.columns not in (None, shape.columns):
        raise InputError(
            f"the unit costs should be those of a fit with {shape.columns} columns of statistics, as this one; got "
            f"those of one with {costs.columns}, of another family or other columns. Measure them on such rows, with: "
            "dpdist plan --save-costs FILE"
        )
    return costs


def shape_of(spec: FitSpec, problem: Problem, source: Source, components: int) -> Shape:
    """The shape of a fit.

    Parameters
    ----------
    problem : prepared from some of the rows
    source : cut as in the run
    """
    (rows, columns), partitions = source.shape, len(source.partitions)
    schedule = spec.schedule.in_batches(batches_that_pay(problem, rows_with_weight(source)))
    assert schedule.batches is not None, "the schedule has a number of batches"
    width, candidates = problem.preparation.width, problem.candidates
    moving = bool(problem.moves) and schedule.moves
    return Shape(
        rows=rows,
        row_bytes=columns * float(source.dtype.itemsize if isinstance(source, TableSource) else 8),
        columns=feature_columns(problem),
        components=components,
        batches=min(schedule.batches, partitions),
        partitions=partitions,
        lookahead=schedule.lookahead,
        dense_every=candidates.every if candidates.serve(components) else 1,
        block_rows=block_rows(feature_columns(problem)),
        sample_bytes=8.0 * width * components * problem.sampling.each(components, 8 * width) if moving else 0.0,
    )
