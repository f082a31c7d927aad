"""Whatever is killed, a submitted run ends with the bits of an undisturbed serial run, and leaves no process behind.

A short form of ``workflows/chaos/run.py``, whose parts it uses.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = str(Path(__file__).resolve().parents[1] / "workflows" / "chaos")
sys.path.insert(0, SCRIPTS)
chaos, disturbances = (importlib.import_module(name) for name in ("run", "disturbances"))
sys.path.remove(SCRIPTS)
KINDS = disturbances.KINDS


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows, settings and the undisturbed run."""
    prepared = chaos.Campaign(tmp_path_factory.mktemp("chaos"), chaos.Size(12_000, 4, 6, 3.0), seed=1)
    prepared.prepare(variants=(1,))
    return prepared


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a worker every 1.5 s", marks=pytest.mark.slow),
        "coordinator, two resume",
        pytest.param("coordinator at once", marks=pytest.mark.slow),
        pytest.param("scheduler, coordinator", marks=pytest.mark.slow),
        pytest.param("told to end", marks=pytest.mark.slow),
    ],
)
def test_a_disturbed_run_ends_with_the_bits_of_an_undisturbed_serial_one(campaign: Any, name: str) -> None:
    outcome = campaign.disturb(list(KINDS).index(name), name, KINDS[name])
    assert not outcome.fault
    assert outcome.kills > 0, "nothing was disturbed"
