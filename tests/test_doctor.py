"""The doctor: each fault that is seeded is found, a cluster that is well is called well, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zarr
from distributed import Client, Security
from typer.testing import CliRunner

from dpdist.cli.root import app
from dpdist.cluster.certificates import make_certificates
from dpdist.cluster.doctor import Finding, Level, examine, judgements
from dpdist.cluster.doctor.command import (
    check_installed,
    check_tool,
    compare_versions,
    expected_workers,
    silent,
)
from dpdist.cluster.doctor.facts import (
    Listening,
    Member,
    Process,
    SchedulerFacts,
    clock_difference,
)
from dpdist.cluster.doctor.findings import as_table, as_values, has_fault, of_sentence
from dpdist.cluster.doctor.security import (
    Answer,
    check_certificates,
    connect_without_certificate,
    judge_tls,
)
from dpdist.cluster.doctor.store import (
    LARGE,
    Rows,
    Trial,
    check_data,
    check_run,
    judge_rows,
    judge_trial,
    look_at,
)
from dpdist.cluster.kinds import parse_cluster
from dpdist.core.places import place_of
from dpdist.core.records import sealed
from dpdist.data import as_source
from dpdist.execution.settings import WORKER_ENVIRONMENT
from dpdist.storage.lease import Owner, process_began, this_process
from tests.daemons.s3 import BUCKET, environment, moto_server
from tests.runs import clusters
from tests.waiting import scheduler_address

LOCAL = {"type": "local", "n_workers": 1, "memory_limit": "1GB"}
OTHER_NUMPY = "1.0.1"


def told(findings: list[Finding], level: Level) -> str:
    """Subject, found and advice of the findings of one level, a line each."""
    return "\n".join(f"{each.subject}: {each.found} -> {each.advice}" for each in findings if each.level is level)


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
    values = json.loads(done.stdout)
    assert (values["faults"], values["warnings"]) == (0, 0), values
    subjects = {each["subject"] for each in values["findings"]}
    assert subjects >= {"configuration", "run", "data", "cluster", "workers", "versions", "tasks", "threads", "TLS"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local.toml"]
    ended = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not [child for child in ended if "spawn_main" in " ".join(child.cmdline())]


# A scheduler with mutual TLS, and a worker in which everything is wrong that can be


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
    """Where a scheduler listens whose one worker has another numpy, two BLAS threads and a folder of its own."""
    folder = tmp_path_factory.mktemp("worker")
    pretended = folder / "packages" / f"numpy-{OTHER_NUMPY}.dist-info"
    pretended.mkdir(parents=True)
    (pretended / "METADATA").write_text(f"Metadata-Version: 2.1\nName: numpy\nVersion: {OTHER_NUMPY}\n")
    file = folder / "scheduler.json"
    scheduler = ["distributed.cli.dask_scheduler", "--port", "0", "--scheduler-file", str(file)]
    worker = ["distributed.cli.dask_worker", "--scheduler-file", str(file), "--no-nanny", "--memory-limit", "1GB"]
    wrong = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": str(folder / "packages")}
    with (
        _running([*scheduler, *_tls(certificates, "scheduler")], folder, {}),
        _running([*worker, "--nthreads", "1", *_tls(certificates, "worker")], folder, wrong),
    ):
        yield scheduler_address(file)


@pytest.fixture(scope="module")
def examined(tmp_path_factory, address, certificates, rows) -> list[Finding]:
    """What the doctor finds there, with data at a path that means another folder to the worker."""
    file = tmp_path_factory.mktemp("file") / "scheduler.toml"
    text = f'type = "scheduler"\naddress = "{address}"\n[security]\n'
    for name, path in (("ca_file", "ca.pem"), ("client_cert", "client.pem"), ("client_key", "client.key")):
        text += f'{name} = "{certificates / path}"\n'
    file.write_text(text)
    here = Path.cwd()
    os.chdir(rows.parent)
    try:
        return examine(file, None, "/proc/self/cwd/rows.zarr", 120.0)
    finally:
        os.chdir(here)


def test_another_numpy_in_a_worker_is_a_fault(examined) -> None:
    sentence = f"has numpy {OTHER_NUMPY} instead of {np.__version__} -> install the coordinator's version there"
    assert sentence in told(examined, Level.FAULT)


def test_two_blas_threads_are_a_fault(examined) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores, for BLAS takes no more threads")
    assert "BLAS takes 2 threads" in told(examined, Level.FAULT)


def test_data_that_only_the_coordinator_sees_are_a_fault(examined) -> None:
    assert "there is no Zarr array at /proc/self/cwd/rows.zarr" in told(examined, Level.FAULT)


def test_settings_that_slow_workers_are_warnings(examined) -> None:
    text = told(examined, Level.WARNING)
    for part in ("MALLOC_TRIM_THRESHOLD_ is not set", "Numba takes all threads", "worker-saturation is 1.1", "Zarr"):
        assert part in text


def test_certificates_in_single_files_and_mutual_tls_are_found_well(examined) -> None:
    text = told(examined, Level.OK)
    assert "certificates: private, in time and of one authority" in text
    assert "TLS: in force; a connection without a certificate is refused" in text
    assert "tasks: carried out by 1 worker" in text


def test_nothing_else_is_called_a_fault(examined) -> None:
    assert {each.subject for each in examined if each.level is Level.FAULT} <= {"versions", "threads", "data"}


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
    (only,) = json.loads(done.stdout)["findings"]
    assert done.exit_code == 1
    assert (only["level"], only["subject"]) == ("fault", "configuration")
    assert "cluster type 'pbs' is not known" in only["found"]
    shown = CliRunner().invoke(app, ["doctor", "--cluster", str(file)])
    assert shown.exit_code == 1 and "fault" in shown.stdout


def test_a_scheduler_that_does_not_answer_is_a_fault(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = tmp_path / "scheduler.toml"
    file.write_text(f'type = "scheduler"\naddress = "tcp://127.0.0.1:{port}"\ntimeout = 1\n[security]\ntls = false\n')
    findings = examine(file, None, None, 1.0)
    assert f"at tcp://127.0.0.1:{port} cannot be reached" in told(findings, Level.FAULT)


def test_a_missing_library_is_a_fault_with_its_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    ssh = parse_cluster({"type": "ssh", "hosts": ["a", "b"], "security": {"tls": False}})
    (only,) = check_installed(ssh)
    assert (only.level, only.advice) == (Level.FAULT, "pip install 'dpdist[ssh]'")


@pytest.mark.parametrize(
    ("script", "sentence"),
    [(None, "there is no squeue on the PATH"), ("#!/bin/sh\necho no controller >&2\nexit 1\n", "no controller")],
)
def test_a_program_that_is_missing_or_fails_is_a_fault(tmp_path, monkeypatch, script, sentence) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "squeue").write_text(script)
        (tmp_path / "squeue").chmod(0o755)
    found = check_tool("squeue", "--noheader")
    assert found is not None and sentence in found.found


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
    assert expected_workers(parse_cluster({**values, **without})) == count


# Certificates and TLS


def _ssh(folder: Path) -> Any:
    return parse_cluster({"type": "ssh", "hosts": ["a", "b"], "security": {"certificates": str(folder)}})


def test_a_key_that_others_can_read_is_a_fault_and_the_authoritys_key_a_warning(tmp_path) -> None:
    folder = make_certificates(tmp_path / "folder")
    (folder / "worker.key").chmod(0o644)
    findings = check_certificates(_ssh(folder))
    assert "worker.key has mode 0644" in told(findings, Level.FAULT) and "chmod 600" in told(findings, Level.FAULT)
    assert "ca.key is on this host" in told(findings, Level.WARNING)


@pytest.mark.parametrize(
    ("days", "level", "sentence"), [(400, Level.FAULT, "ended on"), (362, Level.WARNING, "within 7 days")]
)
def test_an_expired_certificate_is_a_fault_and_one_near_its_end_a_warning(
    tmp_path, monkeypatch, days, level, sentence
) -> None:
    class Clock(datetime):
        """A clock that is behind while certificates are made."""

        @classmethod
        def now(cls, zone=None):
            return super().now(zone) - timedelta(days=days)

    with monkeypatch.context() as earlier:
        earlier.setattr("dpdist.cluster.certificates.datetime", Clock)
        folder = make_certificates(tmp_path / "folder")
    (folder / "ca.key").unlink()
    findings = check_certificates(_ssh(folder))
    assert sentence in told(findings, level) and {each.level for each in findings} == {level}


def test_a_missing_and_a_foreign_certificate_are_faults(tmp_path, certificates) -> None:
    foreign = make_certificates(tmp_path / "foreign")
    (foreign / "ca.key").unlink()
    shutil.copy(certificates / "worker.pem", foreign)
    assert "worker.pem was not signed by" in told(check_certificates(_ssh(foreign)), Level.FAULT)
    (foreign / "worker.key").unlink()
    assert "worker.key is missing" in told(check_certificates(_ssh(foreign)), Level.FAULT)


def test_a_scheduler_without_tls_is_told_from_one_that_refuses(address) -> None:
    assert connect_without_certificate(address) is Answer.REFUSED
    with socket.create_server(("127.0.0.1", 0)) as plain:
        speaker = threading.Thread(target=_speak_plainly, args=(plain,))
        speaker.start()
        assert connect_without_certificate(f"tls://127.0.0.1:{plain.getsockname()[1]}") is Answer.PLAIN
        speaker.join()
    assert connect_without_certificate("tls://127.0.0.1:1") is Answer.ABSENT


def _speak_plainly(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"no TLS is spoken here, but something else\n" * 10)
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1000)


@pytest.mark.parametrize(
    ("encrypted", "addresses", "answer", "level"),
    [
        (True, ["tls://a:1"], Answer.REFUSED, Level.OK),
        (True, ["tls://a:1"], Answer.ADMITTED, Level.FAULT),
        (True, ["tls://a:1"], Answer.PLAIN, Level.FAULT),
        (True, ["tls://a:1", "tcp://b:1"], Answer.REFUSED, Level.FAULT),
        (False, ["tcp://127.0.0.1:1", "tcp://[::1]:1"], None, Level.OK),
        (False, ["tcp://127.0.0.1:1", "tcp://10.0.0.1:1"], None, Level.WARNING),
    ],
)
def test_tls_is_judged_by_what_the_scheduler_does(encrypted, addresses, answer, level) -> None:
    assert [each.level for each in judge_tls(encrypted, addresses, answer)] == [level]


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


def test_a_place_that_cannot_be_written_is_a_fault(tmp_path, local) -> None:
    (tmp_path / "file").write_text("")
    (only,) = check_run(local, str(tmp_path / "file" / "run.zarr"))
    assert only.level is Level.FAULT and "file" in only.found and "choose another path" in only.advice


def test_a_run_that_another_coordinator_writes_is_a_fault(tmp_path, local) -> None:
    leases = tmp_path / "run.zarr" / "leases"
    leases.mkdir(parents=True)
    parent = os.getppid()
    owner = Owner(this_process().host, this_process().machine, parent, process_began(parent))
    held = {"owner": owner._asdict(), "beats": 3, "released": False, "time": "2026-01-01T00:00:00+00:00"}
    (leases / "000001.json").write_bytes(sealed(held))
    text = told(check_run(local, str(tmp_path / "run.zarr")), Level.FAULT)
    assert f"written by another coordinator (process {parent}" in text and "dpdist cancel" in text


def test_an_object_store_is_tried_and_left_as_it_was(local) -> None:
    with moto_server() as settings, environment(settings):
        (only,) = check_run(local, f"s3://{BUCKET}/run.zarr")
        assert only.level is Level.OK, only
        assert not place_of(f"s3://{BUCKET}/run.zarr").exists()
        (only,) = check_run(local, "s3://no-such-bucket/run.zarr")
        assert only.level is Level.FAULT and "there is no bucket" in only.found


WELL = Trial(created=True, created_twice=False, same=True, small=0.01, large=0.2, left=False)


@pytest.mark.parametrize(
    ("change", "level", "sentence"),
    [
        ({}, Level.OK, f"one of {LARGE >> 20} MiB 0.20 s"),
        ({"created": False}, Level.FAULT, "does not give back"),
        ({"same": False}, Level.FAULT, "does not give back"),
        ({"created_twice": True}, Level.FAULT, "created twice"),
        ({"left": True}, Level.FAULT, "keeps files that were removed"),
        ({"large": 60.0}, Level.WARNING, "is slow"),
    ],
)
def test_a_place_is_judged_by_what_it_keeps(change, level, sentence) -> None:
    (only,) = judge_trial("s3://bucket/run.zarr", replace(WELL, **change))
    assert only.level is level and sentence in only.found


# Data


def test_rows_without_checksums_or_with_missing_chunks_are_warnings(tmp_path) -> None:
    array = zarr.create_array(tmp_path / "rows.zarr", shape=(900, 3), chunks=(300, 3), dtype="f8", compressors=None)
    array[:600] = clusters(0)[:600]
    findings, seen = check_data(str(tmp_path / "rows.zarr"))
    text = told(findings, Level.WARNING)
    assert seen is not None and not has_fault(findings)
    for part in ("1 of 3 chunks", "does not say that all of its chunks were written", "no checksums"):
        assert part in text


def test_shards_have_checksums_where_their_chunks_have(tmp_path) -> None:
    checksum = zarr.codecs.Crc32cCodec()
    for name, compressors in (("with", [checksum]), ("without", None)):
        place = {"store": tmp_path / name, "shape": (900, 3), "chunks": (100, 3), "shards": (900, 3), "dtype": "f8"}
        zarr.create_array(**place, compressors=compressors)[:] = clusters(0)
    assert "no checksums" not in told(check_data(str(tmp_path / "with"))[0], Level.WARNING)
    assert "no checksums" in told(check_data(str(tmp_path / "without"))[0], Level.WARNING)


def test_damaged_or_absent_rows_are_a_fault(tmp_path, rows) -> None:
    copy = shutil.copytree(rows, tmp_path / "rows.zarr")
    chunk = next(path for path in copy.rglob("*") if path.is_file() and path.name != "zarr.json")
    chunk.write_bytes(b"\0" + chunk.read_bytes()[1:])
    for path, sentence in ((copy, "is damaged"), (tmp_path / "none.zarr", "there is no Zarr array")):
        findings, seen = check_data(str(path))
        assert seen is None and sentence in told(findings, Level.FAULT)


def test_workers_must_read_the_same_rows(rows) -> None:
    ours = look_at(as_source(str(rows)))
    assert [each.level for each in judge_rows([("a", ours), ("b", replace(ours, glance=""))], ours)] == [Level.OK]
    for other in (replace(ours, glance="0"), Rows(((1, 3), (1, 3)), ""), OSError("no such file")):
        (only,) = judge_rows([("a", ours), ("b", other), ("b", other)], ours)
        assert only.level is Level.FAULT and "workers on b" in only.found


# Judgements on values


MEMBER = Member("tls://a:1", "a", 1, 2**30, "/tmp")
ENVIRONMENT = dict(WORKER_ENVIRONMENT)
PROCESS = Process("a", "x86_64 SkylakeX", 1, ENVIRONMENT, (1, 1), 2**34, 2**34)
OURS = {"dpdist": "1", "numpy": "2", "scipy": "3", "numba": "4", "dask": "5", "distributed": "5", "zarr": "6"}
OURS |= {"python": "3.11"}


@pytest.mark.parametrize(
    ("change", "levels"),
    [
        ({}, {Level.OK}),
        *(({name: "0"}, {Level.FAULT}) for name in ("dpdist", "numpy", "scipy", "numba", "python")),
        *(({name: "0"}, {Level.WARNING}) for name in ("dask", "distributed", "zarr")),
        ({"numba": None, "zarr": "0"}, {Level.FAULT, Level.WARNING}),
    ],
)
def test_versions_that_change_bits_are_faults_and_others_warnings(change, levels) -> None:
    findings = judgements.judge_worker_versions([("a", {**OURS, **change}), ("a", {**OURS, **change})], OURS)
    assert {each.level for each in findings} == levels and len(findings) == len(levels)


def test_of_the_scheduler_only_dask_and_python_matter() -> None:
    assert not judgements.judge_scheduler_versions({**OURS, "numpy": None, "dpdist": None}, OURS)
    (only,) = judgements.judge_scheduler_versions({**OURS, "dask": "4"}, OURS)
    assert only.level is Level.WARNING and "the scheduler has dask 4 instead of 5" in only.found


def test_two_kinds_of_processors_are_a_warning() -> None:
    other = replace(PROCESS, processor="x86_64 Haswell")
    (only,) = judgements.judge_processors([PROCESS, other, other])
    assert only.level is Level.WARNING and "2 workers on x86_64 Haswell; 1 worker on x86_64 SkylakeX" in only.found
    assert judgements.judge_processors([PROCESS, PROCESS])[0].level is Level.OK


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, Level.OK),
        ({"blas_threads": 2}, Level.FAULT),
        ({"environment": {**ENVIRONMENT, "NUMBA_NUM_THREADS": "2"}}, Level.WARNING),
        ({"zarr_threads": (10, 1)}, Level.WARNING),
    ],
)
def test_more_threads_than_one_are_told(change, level) -> None:
    (only,) = judgements.judge_threads([replace(PROCESS, **change)] * 2)
    assert only.level is level


def test_small_malloc_thresholds_are_a_warning() -> None:
    low = replace(PROCESS, environment={**ENVIRONMENT, "MALLOC_TRIM_THRESHOLD_": "65536"})
    (only,) = judgements.judge_malloc([PROCESS, low])
    assert only.level is Level.WARNING and "MALLOC_TRIM_THRESHOLD_=1073741824" in only.advice
    assert judgements.judge_malloc([PROCESS])[0].level is Level.OK


@pytest.mark.parametrize(
    ("member", "process", "sentence"),
    [
        ({"memory_limit": 0}, {}, "no memory limit"),
        ({"memory_limit": 2**33 + 1}, {}, "may take 16.0 GiB together"),
        ({}, {"disk_free": 2**29}, "0.5 GiB are free in /tmp"),
    ],
)
def test_memory_and_disk_that_do_not_suffice_are_warnings(member, process, sentence) -> None:
    workers = [replace(MEMBER, **member), replace(MEMBER, address="tls://a:2", **member)]
    findings = judgements.judge_memory(workers, {each.address: replace(PROCESS, **process) for each in workers})
    assert [each.level for each in findings] == [Level.WARNING] and sentence in findings[0].found
    assert judgements.judge_memory([MEMBER], {MEMBER.address: PROCESS})[0].level is Level.OK


HERE = Listening("127.0.0.1", 0.0)


@pytest.mark.parametrize(
    ("saturation", "failures", "chosen", "levels"),
    [
        (2.0, 10, None, [Level.OK]),
        (1.1, 3, None, [Level.WARNING, Level.WARNING]),
        (float("inf"), 10, None, [Level.WARNING]),
        (2.0, 3, 5, [Level.OK]),
    ],
)
def test_settings_of_the_scheduler_are_judged(saturation, failures, chosen, levels) -> None:
    findings = judgements.judge_scheduler(SchedulerFacts(saturation, failures, HERE), chosen)
    assert [each.level for each in findings] == levels


@pytest.mark.parametrize(
    ("pages", "level"), [("127.0.0.1", Level.OK), ("", Level.WARNING), ("10.0.0.1", Level.WARNING)]
)
def test_pages_beyond_loopback_are_a_warning(pages, level) -> None:
    assert judgements.judge_pages(HERE, {"tls://a:1": replace(HERE, pages=pages)})[0].level is level
    assert judgements.judge_pages(replace(HERE, pages=pages), {})[0].level is level


def test_clocks_are_compared_within_what_the_answer_took() -> None:
    assert clock_difference(10.0, 11.0, 12.0) == 0.0
    assert clock_difference(10.0, 7.0, 12.0) == 3.0
    assert clock_difference(10.0, 20.0, 12.0) == 8.0
    levels = [judgements.judge_clocks({"a": seconds})[0].level for seconds in (0.0, 4.9, 5.1)]
    assert levels == [Level.OK, Level.OK, Level.WARNING]


def test_workers_that_do_not_come_are_told() -> None:
    levels = [judgements.judge_arrival([MEMBER] * count, 2, 1.0).level for count in (0, 1, 2)]
    assert levels == [Level.FAULT, Level.WARNING, Level.OK]


def test_a_task_that_is_not_carried_out_is_a_fault() -> None:
    (only,) = judgements.judge_tasks({"tls://a:1": PROCESS, "tls://a:2": TimeoutError("no answer")})
    assert only.level is Level.FAULT and "tls://a:2" in only.found


def test_workers_that_do_not_answer_are_not_asked_again() -> None:
    told = {"tls://a:1": PROCESS, "tls://a:2": TimeoutError(), "tls://a:3": ValueError("no such module")}
    assert silent(told) == ["tls://a:2"]
    (only,) = compare_versions(None, [MEMBER] * 3, silent(told))
    assert only.level is Level.WARNING and "1 of 3 workers do not answer" in only.found


# What is shown


def test_advice_stands_behind_the_semicolon() -> None:
    found = of_sentence(Level.FAULT, "run", "it is held; wait for it.")
    assert (found.found, found.advice) == ("it is held", "wait for it")
    assert of_sentence(Level.FAULT, "run", "it is held.", "wait").advice == "wait"


def test_values_and_table_hold_every_finding() -> None:
    findings = [Finding(level, level.name, "[found]", "advice") for level in Level]
    values = as_values(findings)
    assert (values["warnings"], values["faults"]) == (1, 1)
    assert [each["level"] for each in values["findings"]] == ["ok", "warning", "fault"]
    assert as_table(findings).row_count == 3
