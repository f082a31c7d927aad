"""Set-up shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from distributed import Client
from hypothesis import settings

settings.register_profile("dpdist", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("dpdist")

_SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared_path(*parts: str) -> Path:
    """A file of the shared data beside the repository; the test is skipped, saying so, where it is absent."""
    path = _SHARED.joinpath(*parts)
    if not path.exists():
        reason = f"needs {'/'.join(('shared', *parts))} beside the repository"
        if os.environ.get("DPDIST_REQUIRE_SHARED"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


#: Files that take longest, which begin first; tests of those that share nothing go to whichever process is free.
LONG = ("chaos", "workflows", "slurm", "cli", "runs_on_s3", "faults", "topic_model")
SPREAD = ("test_workflows.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests in one process, where they share what they started, and begin with the longest."""
    for item in items:
        if item.path.name not in SPREAD:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    places = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def nobody_pulls_the_plug() -> Iterator[None]:
    """Processes are killed here, machines are not: what waits for the disk only makes tests slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def no_closed_client_is_left() -> Iterator[None]:
    """A client of ours that stayed the default would take everything else this process asks of Dask down with it."""
    yield
    with suppress(ValueError):
        assert Client.current(allow_global=False).status == "running"
