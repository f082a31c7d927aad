"""The estimate of a lap's memory is near what is measured, and large laps are told of."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from dpdist import DPMixture
from dpdist.data import ArraySource
from dpdist.inference.mixture import footprint as footprint_module
from dpdist.inference.mixture.footprint import footprint, machine_memory, warn_if_large
from dpdist.inference.schedules import Memoized
from dpdist.models.families import DiagonalGaussian, Gaussian
from tests.runs import begun, some_steps


def wide(rows: int, columns: int, components: int, family=None, batches: int = 8) -> tuple:
    """Problem, source and first state of a few groups of wide rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)) + 2 * rng.normal(size=(4, columns))[rng.integers(4, size=rows)]
    start = {"initial": "one"} if components == 1 else {"initial": np.arange(rows) % components}
    source = ArraySource(x, partition_rows=100)
    return (
        *begun(DPMixture(family or Gaussian(), schedule=Memoized(batches), random_state=0, **start), source),
        source,
    )


@pytest.mark.parametrize(("rows", "columns", "components"), [(400, 80, 1), (500, 60, 6)])
def test_a_lap_takes_what_was_estimated_within_a_factor_of_two(rows, columns, components) -> None:
    problem, state, source = wide(rows, columns, components)
    estimated = footprint(problem, source, components).total
    tracemalloc.start()
    for step in some_steps(problem, source, state, 100):
        if step.info is not None and step.info.lap == 6:
            break
    measured = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert measured / 2 < estimated < 2 * measured


@pytest.mark.parametrize("start", ["labels", "responsibilities", "model", "k-means++"])
def test_a_start_holds_a_few_summaries_whatever_the_number_of_rows(start) -> None:
    rows, columns, components = 12_000, 40, 300
    x, labels = np.random.default_rng(0).normal(size=(rows, columns)), np.arange(rows) % components
    initial, told = labels, {}
    if start == "responsibilities":
        initial = np.eye(components)[labels]
    elif start == "model":  # of another family, so that rows are shared out
        initial = DPMixture(DiagonalGaussian(), moves=[], max_laps=1, tolerance=0, initial=labels).fit(x)
    elif start == "k-means++":
        initial, told = start, {"initial_components": components}
    model, source = DPMixture(Gaussian(), schedule=Memoized(1), initial=initial, **told), ArraySource(x, rows)
    begun(DPMixture(initial=np.arange(40) % 2), ArraySource(x[:40]))  # what is compiled or imported once
    tracemalloc.start()
    begun(model, source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    summary = 8 * components * (columns * (columns + 3) // 2 + 1)
    assert peak < 6 * summary + 3 * x.nbytes


def test_every_component_adds_its_part() -> None:
    problem, _, source = wide(400, 30, 1)
    one, two, three = (footprint(problem, source, k) for k in (10, 11, 12))
    assert one.component == two.component
    assert three.total - two.total == pytest.approx(one.component, rel=0.02)


def test_a_lap_beyond_half_the_memory_is_told_of_in_a_sentence() -> None:
    problem, _, source = wide(400, 30, 1)
    needed = footprint(problem, source, 3).total
    sentence = (
        r"^a lap of Gaussian over 30 columns needs about [\d.]+ MB of memory with 3 components, and [\d.]+ MB more for "
        r"each further component; this process may use [\d.]+ MB\. Choose DiagonalGaussian, or fewer columns with "
        r"row_transform=TransformPlan\(pca=50\)\.$"
    )
    with pytest.warns(UserWarning, match=sentence):
        warn_if_large(problem, source, 3, memory=1.9 * needed)
    problem, _, source = wide(400, 30, 1, DiagonalGaussian())
    with pytest.warns(
        UserWarning, match=r"with 1 component, and .*\. Choose fewer components or batches, or fewer columns"
    ):
        warn_if_large(problem, source, 1, memory=1.0)


def test_ordinary_laps_are_not_told_of() -> None:
    problem, _, source = wide(400, 30, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_large(problem, source, 3, memory=2.1 * footprint(problem, source, 3).total)
        warn_if_large(problem, source, 3)
    assert machine_memory() > 2**28


@pytest.mark.parametrize(("told", "expected"), [("1073741824\n", 2**30), ("max\n", None), ("", None)])
def test_the_memory_of_a_container_is_what_it_may_have(tmp_path, monkeypatch, told: str, expected: int | None) -> None:
    monkeypatch.setattr(footprint_module, "LIMITS", ())
    whole = machine_memory()
    (tmp_path / "memory.max").write_text(told)
    monkeypatch.setattr(footprint_module, "LIMITS", (tmp_path / "memory.max", tmp_path / "absent"))
    assert machine_memory() == (whole if expected is None else min(expected, whole))


def test_wide_rows_under_full_covariance_are_told_of_on_any_machine() -> None:
    problem, _, source = wide(100, 800, 1)
    with pytest.warns(UserWarning, match="a lap of Gaussian over 800 columns"):
        warn_if_large(problem, source, 100, memory=1e15)
    x = np.random.default_rng(0).normal(size=(12, 900))
    with pytest.warns(UserWarning, match="over 900 columns needs about"):
        begun(DPMixture(initial=np.arange(12), schedule=Memoized(40)), ArraySource(x, partition_rows=1))
