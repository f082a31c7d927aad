"""Worker processes on this machine: alike whenever they are started, and gone with the cluster they are of."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal

import dask
import psutil
import pytest
from distributed import Status, worker, worker_state_machine

from dpdist.core.errors import InputError
from dpdist.execution import connecting, local
from dpdist.execution.connecting import local_backend
from dpdist.execution.local import PersistentNanny
from dpdist.execution.preload import ENDINGS
from dpdist.execution.settings import WORKER_ENVIRONMENT
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("new_processes")


def environment_of() -> tuple[int, dict[str, str | None]]:
    return os.getpid(), {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}


def test_a_worker_that_is_started_again_has_the_environment_of_the_first() -> None:
    with contextlib.closing(local_backend(1)) as backend:
        [(first, given)] = backend.client.run(environment_of).values()
        os.kill(first, signal.SIGKILL)

        def followed() -> dict[str, str | None] | None:
            with contextlib.suppress(OSError):  # it was just killed
                for pid, variables in backend.client.run(environment_of, on_error="ignore").values():
                    if pid != first:
                        return variables
            return None

        assert wait_until(followed, lambda: "no worker followed") == given == WORKER_ENVIRONMENT


def logged() -> list[bool]:
    """Whether a worker logs what Dask says at its regular end, and anything else."""
    logged = []
    for name, ending in ENDINGS.items():
        for message in (f"{ending}.", "memory is short"):
            record = logging.LogRecord(name, logging.WARNING, "", 0, message, None, None)
            logged.append(bool(logging.getLogger(name).filter(record)))
    return logged


def test_a_worker_that_is_ended_regularly_logs_nothing_of_it() -> None:
    sources = map(inspect.getsource, (worker, worker_state_machine))
    assert all(ending in source for ending, source in zip(ENDINGS.values(), sources, strict=True))  # as Dask writes it
    with contextlib.closing(local_backend(1)) as backend:
        assert list(backend.client.run(logged).values()) == [[False, True, False, True]]


def test_workers_of_a_cluster_that_cannot_be_used_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **named: object) -> None:
        raise InputError("other versions")

    monkeypatch.setattr(connecting, "DaskBackend", refused)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(InputError, match="other versions") as caught:
        local_backend(1)
    stay = [each for each in psutil.Process().children(recursive=True) if each not in before and _works(each)]
    assert not stay, f"as long as somebody holds {caught.value!r}"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"distributed.comm.require-encryption": True}, "TLS expects"),
        ({"temporary-directory": "/proc/nowhere"}, "No such file or directory: '/proc/nowhere'"),
        ({"distributed.comm.timeouts.connect": "0ms"}, "Timed out trying to connect to tcp://127.0.0.1"),
        ({"distributed.nanny.preload": ["nowhere.at_all"]}, "No module named 'nowhere'"),
    ],
)
def test_settings_of_dask_that_prevent_a_start_are_told_in_a_sentence(setting: dict[str, object], told: str) -> None:
    with (
        dask.config.set(setting),
        pytest.raises(InputError, match=rf"^worker processes cannot be started .*\(.*{told}.*\); .* fit --serial\.$"),
    ):
        local_backend(1)


def signals_blocked() -> set[int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_ctrl_c_does_not_reach_workers_even_before_they_ignore_it() -> None:
    with contextlib.closing(local_backend(1)) as backend:
        assert all(signal.SIGINT in blocked for blocked in backend.client.run(signals_blocked).values())
    assert signal.SIGINT not in signals_blocked()


def test_the_nannies_of_an_interrupted_start_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PersistentNanny] = []

    class Interrupted(PersistentNanny):
        async def instantiate(self) -> Status:
            made.append(self)
            os.kill(os.getpid(), signal.SIGINT)
            return await super().instantiate()

    monkeypatch.setattr(local, "PersistentNanny", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            local_backend(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [nanny.status for nanny in made] == [Status.closed]


def _works(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "spawn_main" in " ".join(process.cmdline())
    return False
