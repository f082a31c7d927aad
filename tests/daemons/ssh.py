"""A real sshd on loopback, which lets in whoever has the key made for it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.waiting import answers, free_port, wait_until

_SETTINGS = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
MaxStartups 100
"""


@dataclass(frozen=True)
class SSHDaemon:
    """A running sshd.

    Parameters
    ----------
    port : on 127.0.0.1
    process : its process id
    key, known_hosts : files of the client's side
    """

    port: int
    process: int
    key: Path
    known_hosts: Path

    def connect_options(self) -> dict[str, object]:
        """What ``asyncssh.connect`` needs."""
        return {
            "port": self.port,
            "username": getpass.getuser(),
            "client_keys": [str(self.key)],
            "known_hosts": str(self.known_hosts),
        }


@contextlib.contextmanager
def ssh_daemon(folder: Path) -> Iterator[SSHDaemon]:
    """An sshd with keys of its own in `folder`; it is gone in the end, with all that it started."""
    program = _program("sshd")
    port = free_port()
    public = _make_keys(folder, port)
    (folder / "authorized_keys").write_text(public)
    (folder / "sshd_config").write_text(_SETTINGS.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with open(folder / "sshd.log", "wb") as log:
        daemon = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        wait_until(lambda: answers(port), (folder / "sshd.log").read_text, daemon)
        yield SSHDaemon(port, daemon.pid, folder / "id", folder / "known_hosts")
    finally:
        _end(daemon)


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        reason = f"needs {name} (on Debian: apt-get install openssh-server)"
        if os.environ.get("DPDIST_REQUIRE_SHARED"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def _make_keys(folder: Path, port: int) -> str:
    """Host key, client key and the client's list of known hosts; returns the client's public key."""
    for name in ("host", "id"):
        command = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    return (folder / "id.pub").read_text()


def _end(daemon: subprocess.Popen) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(daemon.pid).children(recursive=True)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=10)
    daemon.terminate()
    daemon.wait(timeout=10)
