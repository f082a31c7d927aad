"""The suite itself: tests of a file share what they start, so they have to run in the same process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import os
import time
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    time.sleep(0.05)
    print("process", __name__, os.environ["PYTEST_XDIST_WORKER"])
"""


def test_tests_of_a_file_run_in_one_process_and_files_beside_each_other(tmp_path: Path) -> None:
    for name in ("test_first.py", "test_second.py"):
        (tmp_path / name).write_text(TESTS)
    options = ["-n", "2", "-rP", "-p", "tests.conftest", "-p", "no:kmock", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("process ")]
    assert len(told) == 8 and len({tuple(each) for each in told}) == len({worker for _, worker in told}) == 2
