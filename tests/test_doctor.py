"""The doctor: each fault that is seeded is found, a cluster that is well is called well, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client, Security
from typer.testing import CliRunner

from dpdist.cli.doctor import Finding, Level, check_certificates, check_data_on, check_run, examine, try_place
from dpdist.cli.root import app
from dpdist.cluster.certificates import make_certificates
from dpdist.cluster.kinds import parse_cluster
from dpdist.core.errors import InputError
from dpdist.core.places import LocalPlace, place_of
from dpdist.execution.settings import WORKER_ENVIRONMENT
from tests.daemons.s3 import BUCKET, environment, moto_server
from tests.runs import clusters
from tests.waiting import scheduler_address

LOCAL = {"type": "local", "n_workers": 1, "memory_limit": "1GB"}
OTHER_NUMPY = "1.0.1"


def told(findings: list[Finding], level: Level) -> str:
    """Subject and found of the findings of one level, a line each."""
    return "\n".join(f"{each.subject}: {each.found}" for each in findings if each.level is level)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """A Zarr array as ``dpdist convert`` writes it."""
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "rows.npy", clusters(0))
    done = CliRunner().invoke(app, ["convert", str(folder / "rows.npy"), "--out", str(folder / "rows.zarr")])
    assert done.exit_code == 0, done.output
    return folder / "rows.zarr"


# All is well


def test_a_local_cluster_is_well_and_nothing_is_left(tmp_path, rows) -> None:
    file = tmp_path / "local.toml"
    file.write_text('type = "local"\nn_workers = 1\nmemory_limit = "1GB"\n')
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    command = ["doctor", "--cluster", str(file), "--run", str(tmp_path / "new" / "run.zarr"), "--data", str(rows)]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    findings = json.loads(done.stdout)
    assert {each["level"] for each in findings} == {"ok"}, findings
    subjects = {each["subject"] for each in findings}
    assert subjects == {"configuration", "run", "data", "workers"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local.toml"]
    ended = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not [child for child in ended if "spawn_main" in " ".join(child.cmdline())]


# A scheduler with mutual TLS, and a worker in which what can be wrong is


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """A folder of certificates, without the key that signed them."""
    folder = make_certificates(tmp_path_factory.mktemp("certificates") / "folder")
    (folder / "ca.key").unlink()
    return folder


@contextlib.contextmanager
def _running(command: list[str], folder: Path, variables: dict[str, str]) -> Iterator[None]:
    inherited = {name: value for name, value in os.environ.items() if name not in WORKER_ENVIRONMENT}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=inherited | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _tls(certificates: Path, role: str) -> list[str]:
    files = ["--tls-cert", str(certificates / f"{role}.pem"), "--tls-key", str(certificates / f"{role}.key")]
    where = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--host", "127.0.0.1"]
    return ["--protocol", "tls", "--tls-ca-file", str(certificates / "ca.pem"), *files, *where]


@pytest.fixture(scope="module")
def address(tmp_path_factory, certificates) -> Iterator[str]:
    """Where a scheduler listens whose one worker has another numpy and a folder of its own."""
    folder = tmp_path_factory.mktemp("worker")
    pretended = folder / "packages" / f"numpy-{OTHER_NUMPY}.dist-info"
    pretended.mkdir(parents=True)
    (pretended / "METADATA").write_text(f"Metadata-Version: 2.1\nName: numpy\nVersion: {OTHER_NUMPY}\n")
    file = folder / "scheduler.json"
    scheduler = ["distributed.cli.dask_scheduler", "--port", "0", "--scheduler-file", str(file)]
    worker = ["distributed.cli.dask_worker", "--scheduler-file", str(file), "--no-nanny", "--memory-limit", "1GB"]
    wrong = {"PYTHONPATH": str(folder / "packages")}
    with (
        _running([*scheduler, *_tls(certificates, "scheduler")], folder, {}),
        _running([*worker, "--nthreads", "1", *_tls(certificates, "worker")], folder, wrong),
    ):
        yield scheduler_address(file)


@pytest.fixture(scope="module")
def examined(tmp_path_factory, address, certificates, rows) -> list[Finding]:
    """What the doctor finds there."""
    file = tmp_path_factory.mktemp("file") / "scheduler.toml"
    text = f'type = "scheduler"\naddress = "{address}"\n[security]\ncertificates = "{certificates}"\n'
    file.write_text(text)
    return examine(file, None, str(rows), 120.0)


def test_another_numpy_in_a_worker_is_a_fault(examined) -> None:
    sentence = f"has numpy {OTHER_NUMPY} instead of {np.__version__}; install the coordinator's version there"
    assert sentence in told(examined, Level.FAULT)


def test_nothing_else_is_called_a_fault(examined) -> None:
    assert {each.subject for each in examined if each.level is Level.FAULT} == {"cluster"}


class Workers:
    """A client whose workers see what is given."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self.seen = seen

    def run(self, function: Any, data: str, on_error: str) -> dict[str, Any]:
        return self.seen


def test_data_that_a_worker_does_not_see_alike_are_a_fault() -> None:
    same, other = {"tcp://a:1": "rows"}, {"tcp://b:1": "others", "tcp://c:1": OSError("nothing there")}
    assert [each.level for each in check_data_on(Workers(same), "rows.zarr", "rows")] == [Level.OK]
    found = told(check_data_on(Workers(same | other), "rows.zarr", "rows"), Level.FAULT)
    assert "tcp://b:1 read other rows (others)" in found and "tcp://c:1 read other rows (nothing there)" in found


@pytest.mark.filterwarnings("ignore:Mismatched versions found")
def test_a_running_scheduler_is_left_as_it_is(examined, address, certificates) -> None:
    files = {"tls_client_cert": str(certificates / "client.pem"), "tls_client_key": str(certificates / "client.key")}
    security = Security(tls_ca_file=str(certificates / "ca.pem"), require_encryption=True, **files)
    with Client(address, security=security, set_as_default=False) as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 1
        assert not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


# Configuration, programs, and a cluster that does not answer


def test_a_configuration_that_cannot_be_read_ends_the_examination(tmp_path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('type = "pbs"\n')
    done = CliRunner().invoke(app, ["doctor", "--cluster", str(file), "--json"])
    (only,) = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (only["level"], only["subject"]) == ("fault", "configuration")
    assert "cluster type 'pbs' is not known" in only["found"]
    shown = CliRunner().invoke(app, ["doctor", "--cluster", str(file)])
    assert shown.exit_code == 1 and "fault" in shown.stdout


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_advice_about_arguments_is_told_in_options(form, monkeypatch) -> None:
    found = [Finding(Level.FAULT, "data", "Leave it out with drop=['a'].")]
    monkeypatch.setattr("dpdist.cli.doctor.examine", lambda *asked: found)
    done = CliRunner().invoke(app, ["doctor", "--cluster", "x.toml", *form])
    assert done.exit_code == 1 and "--drop a." in done.stdout and "drop=" not in done.stdout


def test_a_scheduler_that_does_not_answer_is_a_fault(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = tmp_path / "scheduler.toml"
    file.write_text(f'type = "scheduler"\naddress = "tcp://127.0.0.1:{port}"\ntimeout = 1\n[security]\ntls = false\n')
    findings = examine(file, None, None, 1.0)
    assert f"no Dask scheduler answers at tcp://127.0.0.1:{port}" in told(findings, Level.FAULT)


def test_a_missing_library_is_a_fault_with_its_command(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    file = tmp_path / "ssh.toml"
    file.write_text('type = "ssh"\nhosts = ["a", "b"]\n[security]\ntls = false\n')
    (only,) = examine(file, None, None, 1.0)
    assert only.level is Level.FAULT and only.found.endswith("pip install 'dpdist[ssh]'.")


JOB = {"cores": 4, "memory": "1GB", "walltime": "1:00:00", "processes": 2}


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (LOCAL, 1),
        ({"type": "ssh", "hosts": ["a", "b", "c"], "worker_options": {"n_workers": 4}}, 8),
        ({"type": "slurm", "jobs": 3, "job": JOB}, 6),
        ({"type": "kubernetes", "image": "dpdist", "n_workers": 5}, 5),
        ({"type": "scheduler", "address": "tcp://a:1"}, None),
    ],
)
def test_the_workers_that_are_waited_for_are_those_asked_for(values, count) -> None:
    without = {} if values["type"] == "local" else {"security": {"tls": False}}
    assert parse_cluster({**values, **without}).expected == count


# Certificates and TLS


def _ssh(folder: Path) -> Any:
    return parse_cluster({"type": "ssh", "hosts": ["a", "b"], "security": {"certificates": str(folder)}})


@pytest.mark.parametrize("days", [365, 3])
def test_certificates_near_their_end_are_warnings(tmp_path, days) -> None:
    found = check_certificates(_ssh(make_certificates(tmp_path / "folder", days=days)))
    assert all("within 7 days" in told(found, Level.WARNING) for _ in found) and bool(found) == (days == 3)


# A run's place


@pytest.fixture
def local() -> Any:
    """The configuration of a local cluster."""
    return parse_cluster(LOCAL)


def test_an_existing_place_is_left_as_it_was(tmp_path, local) -> None:
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "zarr.json").write_text("{}")
    assert {each.level for each in check_run(local, str(tmp_path / "run.zarr"))} == {Level.OK}
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "run.zarr",
        "run.zarr/zarr.json",
    ]


def test_a_place_that_cannot_be_written_is_a_fault(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "local.toml").write_text('type = "pbs"\n')
    with pytest.raises(OSError, match="file"):
        check_run(parse_cluster(LOCAL), str(tmp_path / "file" / "run.zarr"))


def test_an_object_store_is_tried_and_left_as_it_was(local) -> None:
    with moto_server() as settings, environment(settings):
        (only,) = check_run(local, f"s3://{BUCKET}/run.zarr")
        assert only.level is Level.OK, only
        assert not place_of(f"s3://{BUCKET}/run.zarr").exists()
        with pytest.raises(InputError, match="there is no bucket"):
            check_run(local, "s3://no-such-bucket/run.zarr")


@pytest.mark.parametrize("url", ["hdfs://host/run.zarr", "https://host/run.zarr"])
def test_a_url_that_no_run_is_kept_at_is_refused(local, tmp_path, monkeypatch, url) -> None:
    monkeypatch.chdir(tmp_path)  # which could be written
    with pytest.raises(InputError, match=url):
        check_run(local, url)


class _Forgetful(LocalPlace):
    """A store that heeds no If-None-Match, and keeps what it should remove."""

    def create(self, name: str, data: bytes) -> bool:
        self.replace(name, data)
        return True

    def remove(self, *names: str) -> None:
        """Leave it."""


def test_a_place_is_judged_by_what_it_keeps(tmp_path) -> None:
    assert try_place(LocalPlace(tmp_path)) == []
    first, second, third = try_place(_Forgetful(tmp_path))
    assert "does not return" in first and "create the same file" in second and "still lists files" in third
