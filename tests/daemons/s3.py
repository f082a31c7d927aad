"""S3 servers: moto's, quick to start, and Ceph's RADOS gateway, a real one; and a line to them that can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import answers, free_port, wait_until

#: The bucket that every server holds from the start.
BUCKET = "dpdist"
_KEY, _SECRET = "testing", "testing12345"
_CEPH = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")


def settings_for(port: int) -> dict[str, str]:
    """The environment in which a server on `port` is the object store."""
    return {
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[dict[str, str]]:
    """The process's environment with `settings` and no other setting of AWS; as before in the end."""
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    try:
        _exchange(settings)
        yield settings
    finally:
        _exchange(before)


def _exchange(settings: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(settings)


@contextlib.contextmanager
def moto_server() -> Iterator[dict[str, str]]:
    """A moto server with an empty bucket; yields the environment that leads to it."""
    port = free_port()
    program = Path(__file__).with_name("moto_program.py")
    process = subprocess.Popen(
        [sys.executable, str(program), "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: answers(port), lambda: "moto's server did not start", process)
        _make_bucket(port)
        yield settings_for(port)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def rgw_server() -> Iterator[dict[str, str]]:
    """Ceph's S3 gateway with an empty bucket, its data in memory; yields the environment that leads to it."""
    missing = [program for program in _CEPH if shutil.which(program) is None]
    if missing:
        reason = f"needs {', '.join(missing)}: apt-get install ceph-mon ceph-osd ceph-mgr radosgw"
        (pytest.fail if os.environ.get("DPDIST_REQUIRE_SHARED") else pytest.skip)(reason)
    folder, port = Path(tempfile.mkdtemp(prefix="rgw-")), free_port()
    try:
        _start_ceph(folder, port)
        _make_bucket(port)
        yield settings_for(port)
    finally:
        _stop_ceph(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _make_bucket(port: int) -> None:
    import boto3

    named = settings_for(port)
    client = boto3.client(
        "s3",
        endpoint_url=named["AWS_ENDPOINT_URL"],
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
        region_name=named["AWS_REGION"],
    )
    with contextlib.closing(client):
        client.create_bucket(Bucket=BUCKET)


# Ceph: a monitor, one store in memory, the gateway


_CONFIGURATION = """
[global]
fsid = {cluster}
mon_host = v1:127.0.0.1:{monitor}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr2 = false
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = {folder}/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
admin_socket = {folder}/$name.asok
pid_file = {folder}/$name.pid
log_file = {folder}/$name.log
run_dir = {folder}
crash_dir = {folder}
setuser = root
[mon]
mon_data = {folder}/monitor
mon_data_avail_warn = 1
mon_data_avail_crit = 1
[osd]
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_data = {folder}/store
osd_max_object_size = 134217728
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_thread_pool_size = 32
"""
_KEYRINGS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *", "mgr": "allow *"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *", "mgr": "allow profile osd"},
    "client.rgw": {"mon": "allow rw", "osd": "allow rwx", "mgr": "allow rw"},
}


def _start_ceph(folder: Path, port: int) -> None:
    cluster, store, monitor = str(uuid.uuid4()), str(uuid.uuid4()), free_port()
    (folder / "monitor").mkdir()
    (folder / "store").mkdir()
    (folder / "ceph.conf").write_text(_CONFIGURATION.format(cluster=cluster, monitor=monitor, folder=folder, port=port))

    def run(*command: str) -> str:
        environment = {**os.environ, "CEPH_ARGS": f"-c {folder}/ceph.conf"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout

    keyring, monitors = str(folder / "keyring"), str(folder / "monitors")
    for place, (name, allowed) in enumerate(_KEYRINGS.items()):
        caps = [word for kind, rights in allowed.items() for word in ("--cap", kind, rights)]
        run("ceph-authtool", *(["--create-keyring"] if place == 0 else []), keyring, "--gen-key", "-n", name, *caps)
    run("monmaptool", "--create", "--fsid", cluster, "--addv", "a", f"[v1:127.0.0.1:{monitor}]", monitors)
    run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors, "--mon-data", f"{folder}/monitor", "--keyring", keyring)
    run("ceph-mon", "-i", "a")
    run("ceph", "osd", "new", store)
    run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", store)
    run("ceph", "osd", "crush", "add-bucket", "here", "host")
    run("ceph", "osd", "crush", "move", "here", "root=default")
    run("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=here")
    run("ceph-osd", "-i", "0")
    wait_until(lambda: "1 up" in run("ceph", "osd", "stat"), lambda: "ceph-osd did not start")
    run("radosgw", "-n", "client.rgw")
    wait_until(lambda: answers(port), lambda: "radosgw did not start")
    names = [f"--access-key={_KEY}", f"--secret={_SECRET}"]
    run("radosgw-admin", "user", "create", "--uid=testing", "--display-name=testing", *names)


def _stop_ceph(folder: Path) -> None:
    """Stop the daemons by the process ids that they wrote down, the gateway first."""
    for name in ("client.rgw", "osd.0", "mon.a"):
        file = folder / f"{name}.pid"
        if not file.exists() or not file.read_text().strip():
            continue
        number = int(file.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


class Line:
    """A line to a server on the loopback interface that can be cut, and that can lose an answer.

    Parameters
    ----------
    target : the server's port
    """

    def __init__(self, target: int) -> None:
        self.target, self.port = target, free_port()
        #: Whether connections are refused and those that are open are broken.
        self.cut = False
        #: How many answers are still to be lost: the server does what it is asked, nobody hears of it.
        self.answers_to_lose = 0
        #: How many answers are still to be held back, the connection staying open.
        self.answers_to_hold = 0
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Break all connections and listen no more."""
        self.cut = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            for ends in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        """Pass bytes on until either end or the line closes."""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.cut or (answers and self._loses()):
                    break
                if not (answers and self._holds()):
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _loses(self) -> bool:
        self.answers_to_lose -= 1
        return self.answers_to_lose >= 0

    def _holds(self) -> bool:
        self.answers_to_hold -= 1
        return self.answers_to_hold >= 0


@contextlib.contextmanager
def line_to(settings: dict[str, str]) -> Iterator[tuple[Line, dict[str, str]]]:
    """A line to the server of `settings`, and the settings that lead over it."""
    line = Line(int(settings["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    try:
        yield line, {**settings, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}"}
    finally:
        line.close()
