"""Whatever is killed, a submitted run ends with the bits of an undisturbed serial run, and leaves no process behind.

A short form of ``workflows/chaos/run.py``, whose parts it uses.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "workflows" / "chaos" / "run.py"


def _script() -> ModuleType:
    """The workflow as a module; its dataclasses look it up among the loaded ones."""
    spec = importlib.util.spec_from_file_location("dpdist_chaos", SCRIPT)
    assert spec is not None and spec.loader is not None, "the workflow is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


chaos = _script()


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rows, settings and the undisturbed run."""
    prepared = chaos.Campaign(tmp_path_factory.mktemp("chaos"), chaos.Size(12_000, 4, 6, 3.0), seed=1)
    prepared.prepare(variants=(1,))
    return prepared


@pytest.mark.parametrize(
    "name",
    [
        "a worker every 1.5 s",
        "all workers",
        "coordinator, two resume",
        "scheduler, coordinator",
        "everything",
        "worker stopped",
        "told to end",
    ],
)
def test_a_disturbed_run_ends_with_the_bits_of_an_undisturbed_serial_one(campaign: Any, name: str) -> None:
    outcome = campaign.disturb(list(chaos.KINDS).index(name), name, chaos.KINDS[name])
    assert not outcome.fault
    assert outcome.kills > 0, "nothing was disturbed"
