"""Clusters: what may be asked for, what really runs, who is let in, and the same bits whatever dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

from dpdist.cluster.certificates import ROLES, make_certificates
from dpdist.cluster.kinds import CLUSTERS, parse_cluster, read_cluster
from dpdist.cluster.kinds.base import ClusterConfig, as_variables
from dpdist.cluster.kinds.security import SecurityConfig
from dpdist.cluster.kinds.slurm import SlurmConfig, lifetime, walltime_seconds
from dpdist.core.errors import InputError
from dpdist.data import as_source
from dpdist.execution import SerialBackend
from dpdist.execution.dask import DaskBackend
from dpdist.execution.settings import WORKER_SETTINGS, worker_environment
from dpdist.inference.mixture.engine import steps
from dpdist.inference.schedules import Memoized
from tests.daemons.ssh import SSHDaemon, ssh_daemon
from tests.runs import begun, digest, mixture, stored_clusters
from tests.waiting import scheduler_address

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "cluster_configs").glob("*.toml"))
JOB = {"cores": 2, "memory": "1GB", "walltime": "00:05:00"}
SECURITY = {"certificates": "/certificates"}
SLURM = {"type": "slurm", "jobs": 2, "job": JOB, "security": SECURITY}
SSH = {"type": "ssh", "hosts": ["node1", "node2"], "security": SECURITY}
SCHEDULER = {"type": "scheduler", "address": "tls://node1:8786", "security": SECURITY}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """A folder of certificates."""
    return make_certificates(tmp_path_factory.mktemp("ours") / "certificates")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    """Certificates that another authority signed."""
    return make_certificates(tmp_path_factory.mktemp("foreign") / "certificates")


# What may be asked for


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_read_and_survives_being_stored(path) -> None:
    config = read_cluster(path)
    assert config.type == path.stem
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    assert parse_cluster(stored) == config


def test_every_kind_has_an_example() -> None:
    assert {path.stem for path in EXAMPLES} == set(CLUSTERS)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('type = "scheduler"\naddress = "tls://node1:8786"\n[security]\ncertificates = "certs"\n')
    monkeypatch.chdir("/")
    assert read_cluster(file).security == SecurityConfig(certificates=str(tmp_path / "certs"))


def changed(values: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A configuration with one setting changed; None takes it away."""
    name, _, rest = place.partition(".")
    if rest:
        return {**values, name: changed(values.get(name, {}), rest, value)}
    return {key: held for key, held in {**values, name: value}.items() if held is not None}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "needs a type; known types are .*local, scheduler, slurm, ssh"),
        ({"type": "pbs"}, "cluster type 'pbs' is not known; known types are"),
        ({"type": ["ssh"]}, r"cluster type \['ssh'\] is not known"),
        ({"type": "local", "workers": 3}, "setting workers: there is no such setting; known settings are .*n_workers"),
        ({"type": "local", "n_workers": "3"}, "setting n_workers: .*got '3'"),
        ({"type": "local", "n_workers": True}, "setting n_workers: .*got True"),
        (changed(SSH, "security", {"tls": "no"}), "setting security.tls: .*got 'no'"),
        (changed(SLURM, "job.cores", "2"), "setting job.cores: .*got '2'"),
        ({"type": "local", "n_workers": 0}, "setting n_workers: .*greater than or equal to 1; got 0"),
        ({"type": "local", "memory_limit": "10"}, "should be a size such as '4GB', at least 500MB"),
        ({"type": "local", "memory_limit": "much"}, "setting memory_limit: should be a size such as '4GB'; got 'much'"),
        ({"type": "local", "security": SECURITY}, "uses only loopback and takes no"),
        ({"type": "local", "stuck_after": -1}, "setting stuck_after: .*greater than 0; got -1"),
        ({"type": "local", "patience": "long"}, "setting patience: .*got 'long'"),
        (changed(SSH, "security", None), "ssh needs mutual TLS: .*dpdist certificates FOLDER"),
        (changed(SLURM, "security", None), "slurm needs mutual TLS"),
        (changed(SCHEDULER, "security", None), "scheduler needs mutual TLS"),
        (changed(SSH, "security", {}), "setting security: certificates .*are required, unless tls = false"),
        (changed(SSH, "security.tls", False), "tls = false uses no certificates"),
        (changed(SSH, "security.ca_file", "/ca.pem"), "setting security.ca_file: there is no such setting"),
        (changed(SSH, "security.certificates", "-----BEGIN\n"), "the path of a file or folder, not its contents"),
        (changed(SSH, "hosts", None), "setting hosts: it is required, but missing"),
        (changed(SSH, "hosts", ["node1"]), "setting hosts: .*at least 2"),
        (changed(SSH, "remote_python", ["python"]), "remote_python has 1 entries, but there are 2 hosts"),
        (changed(SSH, "connect_options", [{}] * 3), "connect_options has 3 entries, but there are 2 hosts"),
        (changed(SSH, "connect_options.known_hosts", ""), "host keys are always checked"),
        (changed(SSH, "worker_options.protocol", "tcp"), r"worker_options.protocol is decided by \[security\]"),
        (changed(SSH, "scheduler_options.security", {}), r"scheduler_options.security is decided by \[security\]"),
        (changed(SSH, "worker_options.n_worker", 3), r"worker_options.n_worker is not an option of Dask; .*n_workers"),
        (changed(SSH, "worker_options.n_workers", "3"), "n_workers should be a whole number from 1 on; got '3'"),
        (changed(SSH, "scheduler_options.nthreads", 1), "scheduler_options.nthreads is not an option of Dask"),
        (changed(SSH, "worker_options.local_directory", "it's"), "cannot hold a single quote"),
        (
            changed(SSH, "worker_options.memory_limit", "lots"),
            "memory_limit should be a size such as '4GB'; got 'lots'",
        ),
        (changed(SSH, "worker_options.memory_limit", "1MB"), "memory_limit should be a size .*, at least 500MB"),
        (changed(SSH, "remote_certificates", "~/certificates"), "remote_certificates should be a path without ~"),
        (changed(SCHEDULER, "address", "tls://node1"), r"missing port number in address 'node1'\)\.$"),
        (
            changed(SCHEDULER, "address", "node1:8786"),
            "address should start with tls://; got 'node1:8786'",
        ),
        (changed(SCHEDULER, "address", "tcp://node1:8786"), "has certificates, so address should start with tls"),
        (changed(SCHEDULER, "security", {"tls": False}), "sets tls = false, so address should start with tcp"),
        (changed(SLURM, "jobs", 0), "setting jobs: .*got 0"),
        (changed(SLURM, "job.cores", None), "setting job.cores: it is required"),
        (changed(SLURM, "job.core", 3), "setting job.core: there is no such setting"),
        (changed(SLURM, "job.processes", 3), "processes is 3, but a job has only 2 cores"),
        (changed(SLURM, "job.walltime", "soon"), "setting job.walltime: should be a SLURM walltime .*got 'soon'"),
        (changed(SLURM, "job.walltime", "0:30"), "a walltime of a minute or more, .*got '0:30'"),
        (changed(SLURM, "job.worker_extra_args", ["--protocol", "tcp"]), "--protocol is decided by"),
        (changed(SLURM, "scheduler_options.protocol", "tcp"), "scheduler_options.protocol is decided by"),
        (changed(SLURM, "coordinator", {"memory": "4 apples"}), "setting coordinator.memory: should be a size"),
        (changed(SLURM, "security.certificates", "/my certs"), "a path with spaces"),
    ],
)
def test_a_bad_configuration_gets_one_sentence(values, sentence) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        parse_cluster(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        changed(SSH, "connect_options.password", "hunter2"),
        changed(SSH, "connect_options", [{"passphrase": "hunter2"}, {}]),
        changed(SSH, "connect_options.client_keys", ["-----BEGIN PRIVATE KEY-----\nhunter2"]),
        changed(SLURM, "job.job_script_prologue", ["export AWS_SECRET_ACCESS_KEY=hunter2"]),
        changed(SLURM, "job.job_script_prologue", ["export API_TOKEN='hunter2'"]),
        changed(SLURM, "passwd", "hunter2"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(values) -> None:
    with pytest.raises(InputError, match=r"key files \(client_keys\), an ssh agent") as caught:
        parse_cluster(values)
    assert "hunter2" not in str(caught.value)


def test_a_variable_that_is_only_handed_on_is_no_secret() -> None:
    prologue = ['export AWS_SECRET_ACCESS_KEY="$FROM_THE_SITE"', "module load token-ring"]
    assert parse_cluster(changed(SLURM, "job.job_script_prologue", prologue))


@pytest.mark.parametrize(("text", "named"), [(None, "cannot be read"), ("type = ", "not TOML"), ("x = 1", "a type")])
def test_a_bad_file_gets_a_sentence(tmp_path, text, named) -> None:
    file = tmp_path / "cluster.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=named) as caught:
        read_cluster(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("values", "module"), [(SSH, "asyncssh"), (SLURM, "dask_jobqueue")])
def test_a_missing_library_is_named_with_its_command(monkeypatch, values, module) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"{module}, .*pip install 'dpdist\[{values['type']}\]'"):
        parse_cluster(values).launch()


# Certificates


@pytest.mark.parametrize("role", ROLES)
def test_keys_that_others_can_read_are_refused(tmp_path, certificates, role) -> None:
    folder = shutil.copytree(certificates, tmp_path / "copy")
    (folder / f"{role}.key").chmod(0o640)
    with pytest.raises(InputError, match=rf"{role}.key has mode 0640, .*chmod 600"):
        SecurityConfig(certificates=str(folder)).security()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("worker.pem", None, "worker.pem is missing"),
        ("ca.pem", "nonsense", "ca.pem do not fit together"),
        (
            "client.key",
            "-----BEGIN ENCRYPTED PRIVATE KEY-----",
            "client.pem, its key .* keys without a passphrase",
        ),
    ],
)
def test_files_that_do_not_serve_get_a_sentence(tmp_path, certificates, name, text, sentence) -> None:
    folder = shutil.copytree(certificates, tmp_path / "copy")
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    with pytest.raises(InputError, match=sentence):
        SecurityConfig(certificates=str(folder)).security()


# A running scheduler, and who is let in


@pytest.fixture(scope="module")
def address(tmp_path_factory, certificates) -> Iterator[str]:
    """Where a real scheduler listens with mutual TLS."""
    file = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--protocol", "tls", "--host", "127.0.0.1"]
    command += ["--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)]
    command += ["--tls-ca-file", str(certificates / "ca.pem")]
    command += ["--tls-cert", str(certificates / "scheduler.pem"), "--tls-key", str(certificates / "scheduler.key")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield scheduler_address(file, process)
    finally:
        process.kill()
        process.wait()


def scheduler(address: str, security: dict[str, Any], **settings: Any) -> ClusterConfig:
    """The configuration of a running scheduler."""
    return parse_cluster({"type": "scheduler", "address": address, "security": security, **settings})


def test_a_client_with_our_certificate_is_let_in(address, certificates) -> None:
    backend = scheduler(address, {"certificates": str(certificates)}).launch()
    try:
        assert backend.client.status == "running"
    finally:
        backend.close()


def worker_ttl(backend: DaskBackend) -> float:
    """As the scheduler has it."""
    return backend.client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.worker_ttl)


def _answer(address: str, context: ssl.SSLContext) -> bytes:
    """What the scheduler says to a raw TLS socket; in TLS 1.3 a refusal comes with the first read."""
    host, port = address.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as plain, context.wrap_socket(plain) as secured:
        return secured.recv(100)


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_a_raw_socket_with_our_certificate_is_answered(address, certificates) -> None:
    context = _trusting()
    context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    assert _answer(address, context)


def test_a_raw_socket_without_a_certificate_is_refused(address) -> None:
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        _answer(address, _trusting())


def test_a_certificate_of_a_foreign_authority_is_refused_by_the_scheduler(address, foreign) -> None:
    context = _trusting()
    context.load_cert_chain(foreign / "client.pem", foreign / "client.key")
    with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        _answer(address, context)


def test_a_client_of_a_foreign_authority_gets_a_sentence(address, foreign) -> None:
    with pytest.raises(InputError, match=r"certificate verify failed.*signed by the same authority"):
        scheduler(address, {"certificates": str(foreign)}, timeout=3).launch()


def test_a_plain_client_is_refused(address) -> None:
    config = scheduler(address.replace("tls:", "tcp:"), {"tls": False}, timeout=3)
    with pytest.warns(UserWarning, match="without TLS"), pytest.raises(InputError, match="no Dask scheduler answers"):
        config.launch()


# What reaches schedulers and workers


def facts_for(names: Iterable[str]) -> Callable[[], tuple[dict[str, Any], dict[str, str]]]:
    """What tells a process's settings and environment: made here, so that it is sent as it is and imports nothing."""

    def facts() -> tuple[dict[str, Any], dict[str, str]]:
        return {name: dask.config.get(name) for name in wanted}, dict(os.environ)

    wanted = list(names)
    return facts


def check_process(facts: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """A process has the settings and the environment that dpdist ships."""
    settings, environment = facts
    assert settings == WORKER_SETTINGS
    shipped = worker_environment()
    assert {name: environment.get(name) for name in shipped} == shipped


def test_settings_as_variables_mean_the_same() -> None:
    with dask.config.set(dask.config.collect_env(as_variables(WORKER_SETTINGS))):
        assert {name: dask.config.get(name) for name in WORKER_SETTINGS} == WORKER_SETTINGS


@pytest.mark.usefixtures("new_processes")
def test_a_local_cluster_has_the_settings_and_stays_on_loopback() -> None:
    backend = parse_cluster({"type": "local", "n_workers": 1, "memory_limit": "1GB", "stuck_after": 340}).launch()
    try:
        for facts in backend.client.run(facts_for(WORKER_SETTINGS)).values():
            check_process(facts)
        assert worker_ttl(backend) == 170
        assert backend.client.scheduler.address.startswith("tcp://127.0.0.1:")
    finally:
        backend.close()


# SLURM, as far as it goes without one


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("2:30", 150), ("04:00:00", 14400), ("2-12", 216000), ("1-2:03", 93780), ("1-2:03:04", 93784)],
)
def test_walltimes_are_read_as_slurm_reads_them(text, seconds) -> None:
    assert walltime_seconds(text) == seconds


@pytest.mark.parametrize("walltime", [60, 120, 300, 3600, 14400, 86400, 7 * 86400])
def test_workers_leave_before_the_walltime_and_not_together(walltime) -> None:
    life, stagger = lifetime(walltime)
    assert life - stagger >= walltime / 3
    assert life + stagger <= walltime - 10
    assert stagger >= 10


@pytest.fixture
def slurm_config(tmp_path, certificates) -> SlurmConfig:
    """Settings for SLURM on loopback."""
    job = {**JOB, "interface": "lo", "queue": "debug", "log_directory": str(tmp_path / "logs"), "python": "/py"}
    job |= {"job_script_prologue": ["module load python"], "job_extra_directives": ["--exclude=n9"]}
    values = {"type": "slurm", "jobs": 2, "job": job, "security": {"certificates": str(certificates)}}
    config = parse_cluster({**values, "stuck_after": 340, "scheduler_options": {"host": "127.0.0.1"}})
    assert isinstance(config, SlurmConfig)
    return config


def test_a_job_script_has_settings_and_paths_but_no_secret(slurm_config, certificates, tmp_path) -> None:
    cluster = slurm_config.cluster()
    try:
        script = cluster.job_script()
        assert cluster.scheduler.worker_ttl == 170
        assert cluster.scheduler.address.startswith("tls://127.0.0.1:")
        assert cluster.scheduler.http_server.address == "127.0.0.1"
    finally:
        cluster.close()
    for line in ("#SBATCH -p debug", "#SBATCH --mem=954M", "#SBATCH -t 00:05:00", "#SBATCH --exclude=n9"):
        assert line in script
    for part in ("/py -m distributed.cli.dask_worker tls://", "--lifetime 255s --lifetime-stagger 30s", "--nworkers 2"):
        assert part in script
    assert f"--tls-key {certificates / 'worker.key'}" in script
    assert "--nthreads 1" in script and "--no-dashboard --dashboard-address 127.0.0.1:0" in script
    for file in certificates.iterdir():
        assert all(line not in script for line in file.read_text().splitlines())


def test_going_without_tls_must_be_said_and_warns(slurm_config) -> None:
    config = parse_cluster({**slurm_config.model_dump(), "security": {"tls": False}})
    with pytest.warns(UserWarning, match="slurm runs without TLS, .* run programs as you"):
        cluster = config.cluster()
    try:
        assert cluster.scheduler.address.startswith("tcp://127.0.0.1:")
        assert "--tls" not in cluster.job_script()
    finally:
        cluster.close()


def test_a_job_script_sets_what_it_says(slurm_config, tmp_path) -> None:
    """The exports, run by a shell after a module that sets threads of its own."""
    lines = slurm_config.job_options()["job_script_prologue"]
    assert lines[0] == "module load python"
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    script = "\n".join(["export OMP_NUM_THREADS=64", *lines[1:], f"{sys.executable} -c '{program}'"])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    environment = json.loads(done.stdout)
    with dask.config.set(dask.config.collect_env(environment)):
        settings = {name: dask.config.get(name) for name in WORKER_SETTINGS}
    check_process((settings, environment))
    assert environment["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] == "170s"


def test_a_lifetime_that_is_given_stays(slurm_config) -> None:
    given = ["--lifetime", "2m", "--no-dashboard"]
    config = parse_cluster(changed(slurm_config.model_dump(), "job.worker_extra_args", given))
    assert config.job_options()["worker_extra_args"] == given


def test_a_cluster_that_cannot_start_gets_a_sentence(slurm_config) -> None:
    config = parse_cluster(changed(slurm_config.model_dump(), "scheduler_options", {"interface": "none0"}))
    with pytest.raises(InputError, match=r"the SLURM cluster did not start .*check interface"):
        config.launch()


# SSH


@pytest.fixture(scope="module")
def sshd(tmp_path_factory) -> Iterator[SSHDaemon]:
    """A real sshd on loopback."""
    with ssh_daemon(tmp_path_factory.mktemp("sshd")) as daemon:
        yield daemon


def ssh_values(sshd: SSHDaemon, certificates: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    """Three hosts, which are three connections to this one."""
    return {
        "type": "ssh",
        "hosts": ["127.0.0.1"] * 3,
        "connect_options": sshd.connect_options(),
        "worker_options": {"memory_limit": "1GB", "local_directory": str(folder)},
        "security": {"certificates": str(certificates)},
        "stuck_after": 340,
        **settings,
    }


@pytest.fixture(scope="module")
def ssh_backend(sshd, certificates, tmp_path_factory) -> Iterator[DaskBackend]:
    """A cluster over SSH; all its processes are gone when it is closed."""
    backend = parse_cluster(ssh_values(sshd, certificates, tmp_path_factory.mktemp("spill"))).launch()
    backend.client.wait_for_workers(2, timeout=300)
    children = psutil.Process(sshd.process).children(recursive=True)
    started = [process for process in children if "python" in process.name()]
    try:
        yield backend
    finally:
        backend.close()
    assert len(started) >= 5
    _, alive = psutil.wait_procs(started, timeout=300)
    assert not alive


@pytest.fixture(scope="module")
def rows_path(tmp_path_factory) -> str:
    return stored_clusters(tmp_path_factory.mktemp("rows"))


def run(path: str, backend: Any, meanwhile=lambda step: None) -> str:
    """The digest of the state after some laps."""
    source = as_source(path)
    problem, state = begun(mixture(schedule=Memoized(5)), source)
    for count, step in enumerate(steps(problem, source, state, backend)):
        state = step.state
        meanwhile(count)
        if state.lap > 5:
            break
    return digest(state)


@pytest.fixture(scope="module")
def expected(rows_path) -> str:
    """What the serial backend gives."""
    return run(rows_path, SerialBackend())


def test_settings_reach_every_process_over_ssh(ssh_backend) -> None:
    client = ssh_backend.client
    ask = facts_for(WORKER_SETTINGS)
    processes = [*client.run(ask).values(), *client.run(ask, nanny=True).values()]
    assert len(processes) == 4
    for facts in [*processes, client.run_on_scheduler(ask)]:
        check_process(facts)
    assert worker_ttl(ssh_backend) == 170


def test_processes_over_ssh_end_by_themselves_when_left_alone(ssh_backend) -> None:
    client = ssh_backend.client
    for nanny in (False, True):
        assert set(client.run(lambda dask_worker: dask_worker.death_timeout, nanny=nanny).values()) == {300}
    assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.idle_timeout) == 1800


def test_a_cluster_over_ssh_speaks_tls_and_shows_nothing_beyond_loopback(ssh_backend) -> None:
    client = ssh_backend.client
    workers = client.scheduler_info(n_workers=-1)["workers"]
    assert all(address.startswith("tls://127.0.0.1:") for address in (client.scheduler.address, *workers))
    pids = {*client.run(os.getpid).values(), *client.run(os.getpid, nanny=True).values()}
    pids.add(client.run_on_scheduler(os.getpid))
    listening = [link for pid in pids for link in psutil.Process(pid).net_connections() if link.status == "LISTEN"]
    assert {link.laddr.ip for link in listening} == {"127.0.0.1"}


def test_ssh_gives_the_bits_of_serial(ssh_backend, rows_path, expected) -> None:
    assert run(rows_path, ssh_backend) == expected


def test_a_host_that_is_gone_changes_nothing(ssh_backend, rows_path, expected) -> None:
    client = ssh_backend.client
    nannies, workers = client.run(os.getpid, nanny=True), client.run(os.getpid)
    victim = next(iter(workers))

    def kill(count: int) -> None:
        if count == 7:
            os.kill(nannies[victim], signal.SIGKILL)
            os.kill(workers[victim], signal.SIGKILL)

    assert run(rows_path, ssh_backend, kill) == expected
    assert victim not in client.scheduler_info(n_workers=-1)["workers"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"remote_python": "/nowhere/python"}, "did not start .*has dpdist in remote_python"),
        ({"remote_certificates": "/nowhere"}, "did not start .*its certificates"),
        ({"connect_options": {"port": 1, "known_hosts": "/dev/null"}}, "did not start .*can be reached with ssh"),
    ],
)
def test_hosts_that_do_not_serve_get_a_sentence(sshd, certificates, tmp_path, settings, sentence) -> None:
    config = parse_cluster(ssh_values(sshd, certificates, tmp_path, **settings))
    with pytest.raises(InputError, match=sentence):
        config.launch()


def test_a_host_with_another_key_is_not_trusted(sshd, certificates, tmp_path) -> None:
    known = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    known.write_text(f"[127.0.0.1]:{sshd.port} {(tmp_path / 'other.pub').read_text()}")
    values = changed(ssh_values(sshd, certificates, tmp_path), "connect_options.known_hosts", str(known))
    with pytest.raises(InputError, match=re.compile("not trusted|host key", re.IGNORECASE)):
        parse_cluster(values).launch()
