"""What each cost comes to in a forecast, one at a time, and where the costs come from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist import DPMixture
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.mixture.kept import MEMO_BYTES
from dpdist.models.families import DiagonalGaussian
from dpdist.runs.cadence import CHECKPOINT_SECONDS, SHARE
from dpdist.runs.planning import calibration
from dpdist.runs.planning.forecast import SENT, coordinator_bytes, forecast, lap_cost, summary_bytes, worker_bytes
from dpdist.runs.planning.plan import plan
from tests.runs import clusters
from tests.test_plan import FREE, LARGE, REAL, shapes


@given(shapes, st.integers(1, 300))
def test_a_cost_of_components_makes_a_lap_longer_by_as_much_as_there_is_of_it(shape, workers) -> None:
    shape = shape.but(lookahead=0)
    plain, count = lap_cost(shape, FREE, workers, True), shape.components
    wanted = {
        "global_step": shape.batches * count * 0.5,
        "lap_end": count * 0.5,
        "search": count * 0.5 / min(workers, count),
    }
    for name, more in wanted.items():
        found = lap_cost(shape, replace(FREE, **{name: 0.5}), workers, True)
        assert found.seconds - plain.seconds == pytest.approx(more)
        assert found.busy - plain.busy == pytest.approx(count * 0.5 if name == "search" else 0.0)


def test_sampled_rows_travel_at_the_end_of_every_lap() -> None:
    few, many = (lap_cost(replace(LARGE, sample_bytes=size), REAL, 64, True) for size in (0.0, 1e10))
    assert many.seconds - few.seconds == pytest.approx(SENT * 1e10 / REAL.transfer)
    assert many.busy == few.busy


@given(shapes, st.integers(1, 300))
def test_however_many_workers_there_are_the_store_gives_all_rows_no_faster(shape, workers) -> None:
    lap = lap_cost(shape, replace(FREE, store_rate=1e4), workers, True)
    assert lap.seconds >= shape.rows * shape.row_bytes / 1e4 * (1 - 1e-9)


@given(st.integers(0, 64), st.sampled_from([None, 1e6]))
def test_a_worker_that_joins_sums_adds_all_but_one_and_is_sent_every_one(values, transfer) -> None:
    costs = replace(FREE, add=1e-9, transfer=transfer)
    sent = 0.0 if transfer is None else values * 5e3 / transfer
    assert costs.joined(5e3, values) == pytest.approx(max(0, values - 1) * 5e3 * 1e-9 + sent)


@given(shapes, st.integers(1, 300), st.integers(1, 64))
def test_on_cores_of_one_machine_a_lap_takes_what_the_work_of_all_processes_takes_there(shape, workers, cores) -> None:
    own, shared = (lap_cost(shape, replace(REAL, cores=count), workers, True) for count in (None, cores))
    assert shared.busy == own.busy
    assert shared.seconds >= max(own.seconds, own.busy / cores) * (1 - 1e-9)
    if cores >= workers + 2:  # one more for the coordinator, and one for the scheduler
        assert shared.seconds == pytest.approx(own.seconds)
    dearer = lap_cost(shape, replace(REAL, cores=cores, global_step=1.0), workers, True).seconds
    posteriors = shape.batches * shape.components * 1.0  # these need cores as well
    assert dearer >= (own.busy + posteriors) / cores * (1 - 1e-6)


@given(shapes, st.integers(1, 300), st.integers(1, 64))
def test_workers_beyond_the_cores_of_one_machine_do_not_search_faster(shape, workers, cores) -> None:
    plain, searched = (lap_cost(shape, replace(FREE, cores=cores, search=each), workers, True) for each in (0.0, 0.5))
    found = searched.seconds - plain.seconds
    assert found == pytest.approx(shape.components * 0.5 / min(workers, cores, shape.components))


# Memory and checkpoints


@given(shapes, st.integers(1, 10**6))
def test_a_worker_holds_a_partition_twice(shape, more) -> None:
    wider = replace(shape, row_bytes=shape.row_bytes + more)
    held = worker_bytes(wider, REAL) - worker_bytes(shape, REAL)
    assert held == pytest.approx(2 * more * shape.rows / shape.partitions)


@given(shapes, st.integers(1, 200))
def test_sums_of_all_batches_stay_in_memory_three_times_over_unless_they_are_too_large(shape, batches) -> None:
    one, size = shape.but(batches=1), summary_bytes(shape, REAL)
    more = coordinator_bytes(shape.but(batches=batches), REAL) - coordinator_bytes(one, REAL)
    kept = batches * size if batches * size <= MEMO_BYTES else max(size, MEMO_BYTES)
    assert more == pytest.approx(3 * (kept - size))


@given(shapes)
def test_a_checkpoint_holds_the_sums_of_every_batch_and_is_written_at_its_rate(shape) -> None:
    statistics = 8.0 * shape.columns * shape.components
    found = forecast(shape, replace(FREE, write_rate=1e6), 8)
    assert found.checkpoint_bytes == pytest.approx((FREE.summary_rows * shape.batches + 4) * statistics)
    assert found.checkpoint_seconds == pytest.approx(found.checkpoint_bytes / 1e6)


def test_a_checkpoint_dearer_than_its_share_is_written_as_often_as_the_longest_time_asks() -> None:
    dear, cheap = (forecast(LARGE, replace(REAL, write_rate=rate), 10**4) for rate in (1e6, 1e9))
    assert max(dear.lap, cheap.lap) < CHECKPOINT_SECONDS < dear.checkpoint_seconds / SHARE
    assert dear.checkpoint_share == dear.checkpoint_seconds / CHECKPOINT_SECONDS > SHARE
    assert cheap.checkpoint_share <= SHARE * (1 + 1e-9)


@given(st.floats(0.0, 2.0))
def test_a_change_is_told_where_it_saves_a_twentieth_of_a_lap(fixed) -> None:
    shape = LARGE.but(batches=1, partitions=200, rows=2 * 10**6)  # at one worker all of it is halved by another
    work = lap_cost(shape, FREE, 1, True).seconds
    costs = replace(FREE, lap_end=fixed * 20 * work / shape.components)
    found = forecast(shape, costs, 1)
    told = {change.what: change.seconds for change in found.changes}
    halved = found.lap - work / 2
    assert ("2 workers" in told) == (halved < 0.95 * found.lap)
    assert told.get("2 workers", halved) == pytest.approx(halved)
    assert all(seconds <= 0.95 * found.lap for seconds in told.values())


# Where costs come from


def test_unit_costs_are_those_of_a_lap_over_what_there_was_of_each(monkeypatch) -> None:
    """Of a lap of known costs: 3 s of rows and 0.5 s more a component, 4 s of global steps a component, and so on."""
    spec = DPMixture(DiagonalGaussian()).spec()

    def lap(_problem, _state, _source, count, _candidates) -> calibration._LapCosts:
        return calibration._LapCosts(3 + 0.5 * count, 0.0, 4.0 * count, 5.0 * count, 6.0 * count, count, 7.0, 800)

    monkeypatch.setattr(calibration, "_lap", lap)
    monkeypatch.setattr(calibration, "_writing", lambda folder: (0.25, 1e6))
    found = calibration.calibrate(spec, ArraySource(clusters(0, rows=500)), 8, SerialBackend())
    assert (found.row, found.row_component, found.candidate_row) == pytest.approx((3 / 500, 0.5 / 500, None))
    assert (found.global_step, found.lap_end, found.search) == (4.0 / calibration.BATCHES, 5.0, 6.0)
    assert (found.summary_rows, found.write_seconds, found.write_rate, found.read_rate) == (7.0, 0.25, 1e6, None)


def test_rows_are_sampled_where_moves_are_made() -> None:
    source = ArraySource(clusters(0, rows=500))
    for moves, sampled in ((None, True), ([], False)):
        found = plan(DPMixture(DiagonalGaussian(), moves=moves).spec(), source, 5, 2, 10, SerialBackend(), REAL)
        assert (found.shape.sample_bytes > 0) is sampled
