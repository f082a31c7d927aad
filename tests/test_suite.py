"""The suite itself: tests of a file share what they start, so they have to run in the same process."""

from __future__ import annotations

import pytest

from tests.conftest import SPREAD, ByFile


@pytest.mark.parametrize(("file", "together"), [("tests/test_engine.py", True), *((file, False) for file in SPREAD)])
def test_tests_of_a_file_go_to_one_process_but_for_files_whose_tests_share_nothing(file: str, together: bool) -> None:
    scopes = {ByFile._split_scope(None, f"{file}::test_it[{number}]") for number in range(3)}
    assert scopes == {file} if together else len(scopes) == 3
