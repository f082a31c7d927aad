"""A plan is what a queue with these numbers is: identities of the model, and what the command says of a run."""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from typer.testing import CliRunner

from dpdist import SVA, DPMixture, FiniteMixture
from dpdist.cli import plan_command
from dpdist.cli import root as cli
from dpdist.core.errors import InputError
from dpdist.data import ArraySource
from dpdist.data.corpora import write_corpus
from dpdist.execution import SerialBackend
from dpdist.execution.base import FAN_IN
from dpdist.execution.grouping import LONG_ENOUGH
from dpdist.inference.mixture.batches import WORK_SECONDS, rows_of_work
from dpdist.inference.mixture.candidates import Candidates
from dpdist.inference.schedules import Memoized
from dpdist.inference.sva.sequence import Rounds
from dpdist.models.families import FAMILIES, DiagonalGaussian, Gaussian
from dpdist.report.forecast import plan_tables
from dpdist.report.units import duration, size
from dpdist.runs.events import count_of, plan_note
from dpdist.runs.methods.base import workers_of_batches
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.planning.costs import DOCS, UnitCosts, read_costs
from dpdist.runs.planning.forecast import CAUSES, RATES, Shape, forecast, lap_cost, mean_lap, row_seconds
from dpdist.runs.planning.plan import plan
from dpdist.runs.planning.unwritten import UnwrittenSource
from tests.runs import clusters, mixture, source_of

#: Everything costs nothing but rows.
FREE = UnitCosts(
    row=1e-6,
    row_component=1e-7,
    summary_rows=3.0,
    add=0.0,
    global_step=0.0,
    lap_end=0.0,
    search=0.0,
    task=0.0,
    round_trip=0.0,
    submit=0.0,
    transfer=None,
    read_seconds=0.0,
    read_rate=None,
    write_seconds=0.0,
    write_rate=None,
    process=2e8,
)
REAL = replace(
    FREE,
    candidate_row=2e-5,
    add=5e-10,
    global_step=1e-5,
    lap_end=1e-3,
    search=1e-3,
    task=1e-3,
    round_trip=5e-3,
    submit=3e-4,
    transfer=4e8,
    read_seconds=1e-3,
    read_rate=5e8,
    write_seconds=0.02,
    write_rate=1e8,
)
LARGE = Shape(rows=240_000_000, row_bytes=128, columns=257, components=1000, batches=40, partitions=9_600)

shapes = st.builds(
    Shape,
    rows=st.integers(10**5, 10**9),
    row_bytes=st.sampled_from([8.0, 128.0, 512.0]),
    columns=st.integers(2, 3000),
    components=st.integers(1, 2000),
    batches=st.integers(1, 20),
    partitions=st.integers(20, 400),
    lookahead=st.integers(0, 4),
    dense_every=st.sampled_from([1, 10]),
)


# Identities of the queue


@given(shapes, st.integers(1, 300))
def test_where_nothing_but_rows_costs_a_lap_is_the_work_that_the_busiest_worker_does(shape, workers) -> None:
    shape = shape.but(rows=shape.partitions * max(10**6, shape.rows // shape.partitions), dense_every=1)
    lap = lap_cost(shape, FREE, workers, dense=True)
    work = shape.rows * row_seconds(shape, FREE, dense=True)
    assert lap.busy == pytest.approx(work)
    assert lap.seconds >= work / workers * (1 - 1e-9)
    if shape.lookahead == 0:
        rounds = sum(math.ceil(count / workers) for count in shape.batch_partitions)
        assert lap.seconds == pytest.approx(rounds * work / shape.partitions)
    if workers == 1:
        assert lap.seconds == pytest.approx(work)


@given(shapes, st.integers(1, 200))
def test_twice_the_rows_in_partitions_of_twice_the_rows_are_twice_the_work(shape, workers) -> None:
    shape = shape.but(rows=10**7 * shape.partitions)
    one, two = (lap_cost(shape.but(rows=rows), FREE, workers, True) for rows in (shape.rows, 2 * shape.rows))
    assert two.busy == pytest.approx(2 * one.busy) and two.seconds == pytest.approx(2 * one.seconds)


@given(shapes, st.integers(1, 200))
def test_more_workers_or_more_look_ahead_never_make_a_lap_longer(shape, workers) -> None:
    shape = shape.but(rows=10**7 * shape.partitions)  # so much work a partition that none are taken together
    seconds = [lap_cost(shape, REAL, count, True).seconds for count in (workers, workers + 1, 2 * workers)]
    assert seconds[0] * (1 + 1e-9) >= seconds[1] and seconds[1] * (1 + 1e-9) >= seconds[2]
    ahead = [lap_cost(shape.but(lookahead=count), REAL, workers, True).seconds for count in range(4)]
    assert all(a * (1 + 1e-9) >= b for a, b in pairwise(ahead))


@given(shapes)
def test_workers_beyond_the_useful_ones_change_nothing(shape) -> None:
    shape, costs = shape.but(rows=10**7 * shape.partitions), replace(REAL, search=0.0)
    useful = shape.useful_workers
    enough, more = (lap_cost(shape, costs, count, True) for count in (useful, 3 * useful))
    assert more.seconds == pytest.approx(enough.seconds)
    found = forecast(shape, costs, 3 * useful)
    assert found.useful_workers == useful and found.bound.startswith("too few partitions")
    assert found.share <= 1 / 3 * (1 + 1e-9)


@given(shapes, st.integers(1, 100), st.sampled_from([each.name for each in fields(UnitCosts)]))
def test_nothing_gets_cheaper_by_what_costs_more(shape, workers, name) -> None:
    shape, value = shape.but(rows=10**7 * shape.partitions), getattr(REAL, name)
    if value is None:
        return
    rates = {rate for some in RATES.values() for rate in some} | {"write_rate"}
    dearer = replace(REAL, **{name: value / 2 if name in rates else 2 * value})
    before, after = forecast(shape, REAL, workers), forecast(shape, dearer, workers)
    assert after.lap >= before.lap * (1 - 1e-9) or name == "candidate_row"
    assert after.checkpoint_seconds >= before.checkpoint_seconds
    assert (after.coordinator, after.worker) >= (before.coordinator, before.worker)


@given(shapes, st.integers(1, 100), st.integers(1, 500))
def test_memory_and_checkpoints_grow_with_components_and_statistics(shape, workers, more) -> None:
    one = forecast(shape, REAL, workers)
    for other in (shape.but(components=shape.components + more), shape.but(columns=shape.columns + more)):
        two = forecast(other, REAL, workers)
        assert two.coordinator > one.coordinator and two.worker > one.worker
        assert two.checkpoint_bytes > one.checkpoint_bytes
        assert two.dense_lap >= one.dense_lap


@given(shapes, st.integers(1, 300))
def test_workers_are_at_tasks_a_share_of_their_time_and_checkpoints_take_theirs(shape, workers) -> None:
    found = forecast(shape, REAL, workers)
    assert 0 < found.share <= 1 + 1e-9
    assert 0 < found.checkpoint_share <= 0.03 + 1e-9 or found.checkpoint_seconds > 0.03 * 600
    assert found.run(10) == 10 * found.lap
    assert found.bound in CAUSES or found.bound.startswith("too few")
    assert all(change.seconds < found.lap for change in found.changes)


def test_laps_are_dense_ones_and_others_in_the_proportion_asked_for() -> None:
    shape = LARGE.but(dense_every=10)
    dense, few = (lap_cost(shape, REAL, 64, each).seconds for each in (True, False))
    assert mean_lap(shape, REAL, 64).seconds == pytest.approx(0.1 * dense + 0.9 * few)
    assert mean_lap(LARGE, REAL, 64).seconds == pytest.approx(dense) and few < dense


def test_the_sums_of_a_batch_come_in_by_as_many_steps_as_their_tree_has() -> None:
    costs, shape = replace(FREE, add=1e-9), LARGE.but(batches=1, partitions=FAN_IN**2, rows=10**8)
    size_of_one = costs.summary_rows * 8 * shape.columns * shape.components
    plain = lap_cost(shape, FREE, FAN_IN**2, True).seconds
    step = (FAN_IN - 1) * size_of_one * costs.add
    assert lap_cost(shape, costs, FAN_IN**2, True).seconds == pytest.approx(plain + (2 + 1 / FAN_IN) * step)


@pytest.mark.parametrize(
    ("costs", "cause"),
    [
        (FREE, "the local step of the rows"),
        (replace(FREE, add=1e-6), "sending sums to the coordinator"),
        (replace(FREE, transfer=1e3), "sending sums to the coordinator"),
        (replace(FREE, lap_end=100.0), "the coordinator, which computes posteriors and moves"),
        (replace(FREE, search=100.0), "the search for moves"),
        (replace(FREE, task=10.0), "the scheduler, which assigns tasks one by one"),
        (replace(FREE, read_rate=1e3), "reading the rows"),
        (replace(FREE, store_rate=1e5), "reading the rows"),
    ],
)
def test_a_lap_is_bound_by_what_takes_most_of_it(costs, cause) -> None:
    assert forecast(LARGE, costs, 200).bound == cause


def test_what_would_help_is_told_with_what_it_comes_to() -> None:
    changes = {change.what: change.seconds for change in forecast(LARGE, REAL, 256).changes}
    assert changes["lookahead = 1"] == mean_lap(LARGE.but(lookahead=1), REAL, 256).seconds
    assert changes["candidates in nine of ten laps"] == mean_lap(LARGE.but(dense_every=10), REAL, 256).seconds


# Work and workers


@given(st.sampled_from(list(FAMILIES)), st.integers(1, 64), st.integers(1, 2000), st.integers(1, 500))
def test_a_partition_is_fewer_rows_the_more_a_row_costs(name, width, components, more) -> None:
    family, dense = FAMILIES[name](), Candidates(every=1)
    rows = rows_of_work(family, width, components, None, dense)
    assert rows >= rows_of_work(family, width + more, components, None, dense)
    assert rows >= rows_of_work(family, width, components + more, None, dense)
    assert rows_of_work(family, width, components, None, Candidates()) >= rows
    assert rows <= rows_of_work(family, width, components, max(1, components // 2), dense)


def test_hundreds_of_millions_of_rows_have_hundreds_of_partitions_a_batch_and_few_rows_have_what_they_had() -> None:
    spec = DPMixture(DiagonalGaussian()).spec()
    cut = MemoizedMixture().cut(spec, UnwrittenSource(240_000_000, 128, "uint8"))
    assert 200 <= workers_of_batches(Memoized(40), len(cut.partitions)) <= 600
    assert max(part.rows for part in cut.partitions) * 128 <= 64 * 2**20
    wide = MemoizedMixture().cut(DPMixture(Gaussian()).spec(), UnwrittenSource(2_000_000, 64, "float32"))
    assert len(wide.partitions) > 3 * 80
    few = ArraySource(clusters(0, rows=20_000))
    assert MemoizedMixture().cut(spec, few).cut == few.cut
    assert 0.2 < WORK_SECONDS <= 2 and WORK_SECONDS >= LONG_ENOUGH


def test_a_fit_that_may_have_few_components_has_larger_partitions() -> None:
    source = UnwrittenSource(240_000_000, 128, "uint8")
    many, few = (
        MemoizedMixture().cut(FiniteMixture(DiagonalGaussian(), n_components=k).spec(), source) for k in (100, 5)
    )
    assert len(many.partitions) > len(few.partitions)


@given(st.integers(1, 40), st.integers(1, 2000), st.integers(0, 8))
def test_as_many_workers_are_useful_as_partitions_are_under_way(batches, partitions, ahead) -> None:
    useful = workers_of_batches(Memoized(batches, ahead), partitions)
    held = [len(range(batch, partitions, min(batches, partitions))) for batch in range(min(batches, partitions))]
    assert useful == max(held) * min(ahead + 1, len(held))


@given(st.integers(1, 500), st.integers(1, 100), st.booleans())
def test_the_rounds_of_a_pass_take_every_partition_once(partitions, most, parallel) -> None:
    sizes = Rounds(parallel, most).sizes(partitions)
    assert sum(sizes) == partitions and max(sizes) <= (most if parallel else 1)
    assert all(size <= max(1, sum(sizes[:i])) for i, size in enumerate(sizes))


def test_a_run_says_how_many_workers_have_something_to_do_and_that_there_are_more() -> None:
    rows = clusters(0)
    run = mixture(schedule=Memoized(4, 1)).prepare(source_of(rows), backend=SerialBackend())
    assert plan_note(run).sentence == "900 rows in 9 partitions: at most 6 workers can work at a time."
    run.backend = _Wide()
    told = plan_note(run).sentence
    assert told.startswith("900 rows in 9 partitions: at most 6 workers can work at a time; 7 are available. Use")


@pytest.mark.parametrize(
    ("estimator", "useful"),
    [(mixture(schedule=Memoized(1)), 3), (SVA(parallel=False), 1)],
    ids=["no more partitions", "no batches"],
)
def test_a_run_gives_no_advice_that_would_not_keep_more_workers_busy(estimator, useful) -> None:
    run = estimator.prepare(source_of(clusters(0)[:300]), backend=SerialBackend())
    run.backend = _Wide()
    assert len(run.source.partitions) == 3
    told = f"at most {count_of(useful, 'worker')} can work at a time; 7 are available."
    assert plan_note(run).sentence.endswith(told)


class _Wide(SerialBackend):
    threads = 7  # type: ignore[assignment]


# The command


def test_costs_come_back_from_a_file_and_a_file_that_holds_none_is_told_of(tmp_path) -> None:
    REAL.write(tmp_path / "costs.json")
    assert read_costs(tmp_path / "costs.json") == REAL
    told = json.loads((tmp_path / "costs.json").read_text())
    assert {name: each["of"] for name, each in told.items()} == DOCS
    for text in ("{", "[]", "3", '{"row": {}}', '{"row": {"value": 1}}'):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(InputError, match=r"wrong\.json (holds no|should hold the) unit costs"):
            read_costs(tmp_path / "wrong.json")
    with pytest.raises(InputError, match="row of the unit costs should be finite and at least zero"):
        replace(REAL, row=-1.0)
    with pytest.raises(InputError, match="cannot be read"):
        read_costs(tmp_path / "none.json")


def planned(tmp_path, *given: str) -> dict:
    """What the command tells a script."""
    REAL.write(tmp_path / "costs.json")
    called = ["plan", "--costs", str(tmp_path / "costs.json"), "--json", *given]
    result = CliRunner().invoke(cli.app, called, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_says_what_the_model_says_of_rows_that_are_not_there(tmp_path) -> None:
    (tmp_path / "run.toml").write_text('family = "diagonal_gaussian"\n[schedule]\nlookahead = 2\n')
    asked = ["--rows", "240000000", "--columns", "128", "--dtype", "uint8", "--components", "300", "--workers", "64"]
    told = planned(tmp_path, str(tmp_path / "run.toml"), *asked)
    shape = Shape(**{each.name: told[each.name] for each in fields(Shape)})
    assert (shape.rows, shape.row_bytes, shape.columns, shape.lookahead) == (240_000_000, 128, 257, 2)
    assert (shape.components, shape.dense_every, shape.batches) == (300, 10, 40)
    found = forecast(shape, REAL, 64)
    assert told["lap"] == found.lap and told["run"] == found.run(40) and told["bound"] == found.bound
    assert told["useful_workers"] == found.useful_workers > 256


def test_the_command_plans_the_cut_that_a_fit_has(tmp_path) -> None:
    np.save(tmp_path / "rows.npy", clusters(0, rows=3000))
    told = planned(tmp_path, "--data", str(tmp_path / "rows.npy"), "--components", "5", "--batches", "3")
    run = mixture(schedule=Memoized(3)).prepare(tmp_path / "rows.npy", backend=SerialBackend())
    assert (told["partitions"], told["batches"]) == (len(run.source.partitions), 3)
    assert told["useful_workers"] == run.method.useful_workers(run.problem, told["partitions"])


def test_the_command_says_that_it_measures_and_takes_what_it_measured_for_like_rows_only(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(plan_command, "backend_of", lambda *given, **told: nullcontext(SerialBackend()))
    costs = tmp_path / "costs.json"

    def asked(*given: object) -> Result:
        called = ["plan", "--rows", "2000", "--components", "3", "--json", *map(str, given)]
        return CliRunner().invoke(cli.app, called)

    measured = asked("--columns", "2", "--save-costs", costs)
    assert measured.stderr == "measuring unit costs with 3 components\n"
    assert json.loads(measured.stdout)["components"] == 3
    assert json.loads(asked("--columns", "2", "--costs", costs).stdout)["costs"]["row"] == read_costs(costs).row
    for other in (["--columns", "3"], ["--columns", "2", "--family", "diagonal_gaussian"]):
        refused = asked(*other, "--costs", costs)
        assert "those of a fit with" in str(refused.exception) and not refused.stdout


def test_workers_that_nobody_asked_for_share_the_cores_of_this_machine(tmp_path) -> None:
    cores = len(os.sched_getaffinity(0))
    asked = ["--rows", "100000", "--columns", "4", "--components", "20", "--family", "diagonal_gaussian"]
    here, there = planned(tmp_path, *asked), planned(tmp_path, *asked, "--workers", str(cores))
    assert here["workers"] == there["workers"] == here["costs"]["cores"] == cores and there["costs"]["cores"] is None
    assert here["lap"] >= there["lap"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "plan needs data"),
        (["--rows", "1000"], "--columns should be the number of columns"),
        (["--rows", "1000", "--columns", "a,b"], "--columns should be the number of columns"),
        (["--rows", "10", "--columns", "2", "--drop", "a"], "--drop leaves out columns of data"),
        (["--rows", "10", "--columns", "2", "--dtype", "text"], "dtype should be"),
        (["--rows", "10", "--columns", "2", "--max-components", "3", "--components", "4"], "should be at most 3"),
        (["--rows", "10", "--columns", "2", "--components", "11"], "should be at most 10, like the number of rows"),
        (["--rows", "10", "--columns", "2", "--flor", "4"], "No such option"),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_sentence(tmp_path, given, sentence) -> None:
    REAL.write(tmp_path / "costs.json")
    result = CliRunner().invoke(cli.app, ["plan", "--costs", str(tmp_path / "costs.json"), *given])
    assert result.exit_code != 0
    assert sentence in f"{result.output} {result.exception}"


def test_a_start_and_held_out_rows_that_a_fit_refuses_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    REAL.write(tmp_path / "costs.json")
    rows = clusters(0)
    np.save("rows.npy", rows)
    np.save("wide.npy", np.hstack([rows, rows]))
    model = mixture(max_laps=6).fit(rows)
    assert model.n_components_ > 2
    model.save("model.zarr")
    (tmp_path / "held.toml").write_text('data = "rows.npy"\nholdout = "gone.npy"\n')
    start = ["--initial", "model.zarr"]
    for asked, sentence in (
        (["--data", "rows.npy", "--schedule", "stochastic"], "would keep one cluster"),
        (["--data", "wide.npy", *start], f"rows should have {rows.shape[1]} columns"),
        (["--data", "rows.npy", *start, "--max-components", "2"], "initial should give at most 2 components"),
        (["held.toml"], "held-out rows: there is no file"),
    ):
        result = CliRunner().invoke(cli.app, ["plan", "--costs", "costs.json", *asked])
        assert sentence in str(result.exception)


def test_topics_and_documents_are_not_planned_as_rows(tmp_path) -> None:
    REAL.write(tmp_path / "costs.json")
    write_corpus(tmp_path / "corpus.zarr", [sparse.csr_array(np.eye(9, dtype=np.int64))])
    (tmp_path / "topics.toml").write_text("document_concentration = 0.5\n")
    (tmp_path / "wrong.toml").write_text("document_concentratoin = 0.5\n")
    for options, sentence in (
        (
            (tmp_path / "topics.toml",),
            "plan forecasts dpdist fit only; .*topics.toml has the settings of dpdist topics",
        ),
        ((tmp_path / "wrong.toml",), "no setting document_concentratoin"),
        (("--data", tmp_path / "corpus.zarr"), "the family gaussian does not accept sparse input"),
    ):
        result = CliRunner().invoke(cli.app, ["plan", *map(str, options), "--costs", str(tmp_path / "costs.json")])
        assert re.search(sentence, str(result.exception)), result.exception


@pytest.mark.parametrize("family", ["gaussian", "diagonal_gaussian", "multinomial", "bernoulli"])
def test_unit_costs_are_measured_of_rows_that_the_family_takes(family) -> None:
    spec = DPMixture(FAMILIES[family]()).spec()
    found = plan(spec, UnwrittenSource(100_000, 4, "float32"), 6, 2, 10, SerialBackend())
    costs = found.costs
    assert costs.row + 6 * costs.row_component > 0 and costs.global_step > 0 and costs.lap_end > 0
    assert costs.summary_rows > 1 and costs.read_rate > 0 and costs.write_rate > 0 and costs.process > 1e7
    assert found.forecast.lap > 0 and plan_tables(found).renderables


def test_unit_costs_of_candidates_are_measured_where_there_are_any() -> None:
    spec = DPMixture(DiagonalGaussian(), candidates=Candidates(every=5, components=8), moves=[]).spec()
    found = plan(spec, ArraySource(clusters(0, rows=4000, groups=12)), 12, 2, 10, SerialBackend())
    assert found.costs.candidate_row is not None and found.shape.dense_every == 5
    assert found.costs.summary_rows == pytest.approx(1.0)


def test_times_and_sizes_are_told_as_people_say_them() -> None:
    assert [duration(each) for each in (0.002, 3, 90, 7200)] == ["2 ms", "3 s", "1.5 min", "2 h"]
    assert [size(each) for each in (12, 3e3, 2.5e6, 1e9, 3e12)] == ["12 bytes", "3 kB", "2.5 MB", "1 GB", "3 TB"]
