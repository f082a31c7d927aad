"""The lists of planted faults stay true: each fault can be planted, and names tests that are there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAULTS = runpy.run_path(str(ROOT / "workflows" / "faults" / "run.py"))["read_faults"]()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.source}: {f.law}")
def test_a_fault_can_be_planted_and_its_tests_are_there(fault) -> None:
    assert (ROOT / fault.file).read_text().count(fault.find) == 1
    assert fault.find != fault.put
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists()
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() or not name
