"""Set-up shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dask
import pytest
from distributed import Client
from distributed.utils import get_mp_context
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

import tests.compiled_once  # noqa: F401  # before any kernel is defined

# Workers that tests start in their own process are copies of a process that imported everything once; those that
# commands start are new processes. Several processes run tests side by side, so each has one thread for its products.
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
os.environ.setdefault("OMP_NUM_THREADS", "1")

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


#: Files that take longest, which begin first.
LONG = (
    *("site", "chaos", "workflows", "slurm", "kept_batches", "checkpoint", "faults", "backends", "engine", "cli"),
    *("runs_on_s3", "cadence", "topic_model", "conventions", "estimators", "online_topic_model", "sva"),
)
#: What processes need that tests copy; files of functions that run in them.
PRELOADED = (
    *("tests.compiled_once", "distributed.nanny", "distributed.worker", "numba", "sklearn", "xarray", "zarr"),
    "dpdist.estimators",
)
COPIED = ("test_places", "test_lease", "test_runs_on_s3")
#: Files whose tests share nothing, and go one by one to whichever process is free.
SPREAD = ("tests/test_workflows.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files."""
    places = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Name what that process imports; test files are among it, since functions of theirs run in others' processes."""
    files = {item.path.stem for item in session.items if item.path.stem in COPIED}
    # Dask names what it wants there when it is first asked for its context.
    get_mp_context().set_forkserver_preload([*PRELOADED, *(f"tests.{name}" for name in sorted(files)), "tests.frozen"])


class ByFile(LoadScopeScheduling):
    """Keeps a file's tests in one process, where they share what they started."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if file in SPREAD else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return ByFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def nobody_pulls_the_plug() -> Iterator[None]:
    """Processes are killed here, machines are not: what waits for the disk only makes tests slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def new_processes() -> Iterator[None]:
    """Workers are new processes, as people start them: copies have the environment of what they are copies of."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}):
        yield


@pytest.fixture(autouse=True)
def no_closed_client_is_left() -> Iterator[None]:
    """A client of ours that stayed the default would take everything else this process asks of Dask down with it."""
    yield
    with suppress(ValueError):
        assert Client.current(allow_global=False).status == "running"
