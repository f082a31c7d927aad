"""The baseline that documents are compared with: means of clusters, and what a mini-batch leaves of rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.special import psi

FOLDER = Path(__file__).resolve().parents[1] / "workflows" / "sva_documents"
COLUMNS = 6


@pytest.fixture(scope="module")
def baseline() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        import truncation_free

        yield truncation_free
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("truncation_free", None)


def logs_of(rows: int) -> np.ndarray:
    """Logs of rows of two kinds on the simplex."""
    rng = np.random.default_rng(0)
    means = np.array([[6.0, 6.0, 1.0, 0.5, 0.5, 0.2], [0.3, 0.2, 1.0, 6.0, 6.0, 0.5]])
    return np.log(np.array([rng.dirichlet(means[n % 2]) for n in range(rows)]))


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_no_direction_on_the_simplex_raises_what_a_mean_maximises(baseline: ModuleType, rows: int) -> None:
    model, total = baseline.Model(15.0, 1.5, 1.0), logs_of(rows).sum(axis=0)
    logits = baseline.log_mean(float(rows), total, model)
    theta = np.exp(logits)
    assert theta.sum() == pytest.approx(1)
    slope = theta * model.precision * (total - rows * psi(model.precision * theta))
    slope = slope - theta * slope.sum() + model.eta * (1 - COLUMNS * theta)
    np.testing.assert_allclose(slope, 0, atol=1e-4 * rows)


def test_a_step_of_rate_one_holds_all_rows_and_their_sums_are_those_of_the_batch(baseline: ModuleType) -> None:
    logs = logs_of(60)
    rows = baseline.Rows(logs, np.full(60, 1.0))
    settings = baseline.Settings(batch=60, draws=3, delay=1.0)
    first = next(baseline.truncation_free(rows, baseline.Model(15.0, 1.0, 1.0), 0, settings))
    assert first.counts.sum() == pytest.approx(60)
    np.testing.assert_allclose(first.sums.sum(axis=0), logs.sum(axis=0))


def test_two_kinds_of_rows_become_two_large_clusters(baseline: ModuleType) -> None:
    logs = logs_of(400)
    rows = baseline.Rows(logs, np.full(400, -2.0))
    found = list(islice(baseline.truncation_free(rows, baseline.Model(15.0, 1.0, 1.0), 0), 40))[-1]
    assert (found.counts > 40).sum() == 2
    assert found.counts.sum() == pytest.approx(400, rel=0.02)
