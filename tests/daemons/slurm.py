"""A real Slurm cluster of several nodes on this machine, bound to loopback, without systemd and without cgroups.

Debian's slurmd may run several times on one host, so nodes can go down and come back: jobs are requeued as on a
cluster. munge has a key and a socket of its own, ports are free ones, and everything lies in the folder given.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
#: Debian keeps the daemons where a user's PATH may not reach.
SEARCH = (os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")

CONFIGURATION = """
ClusterName=dpdist
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired: two minutes unless told.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ReturnToService=2
# Lets a node have more cores than this machine.
SlurmdParameters=config_overrides
KillWait=10
MinJobAge=600
"""


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster.

    Attributes
    ----------
    folder : configuration, logs and state
    nodes : names of the nodes
    environment : what a process needs to speak to this cluster, SLURM_CONF
    """

    folder: Path
    nodes: tuple[str, ...]
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *command: str) -> str:
        """What a Slurm command prints."""
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """State by job number, of all jobs that Slurm remembers."""
        return dict(line.split() for line in self.run("squeue", "-h", "-a", "-t", "all", "-o", "%i %T").splitlines())

    def job(self, number: str) -> dict[str, str]:
        """What ``scontrol show job`` tells of one job."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "--oneliner", "show", "job", number)))

    def node_down(self, name: str) -> None:
        """A node dies with everything on it, and the controller notices."""
        _stop(self.daemons.pop(name), signal.SIGKILL)
        self._kill_jobs(name)

        def noticed() -> bool:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=dead")
            time.sleep(0.5)  # what the node said last may be on its way still, and returns it to service
            return name in self.run("sinfo", "-h", "-N", "-t", "down", "-o", "%N").split()

        _wait(noticed, (name,))

    def node_up(self, name: str) -> None:
        """A node that was down comes back, empty."""
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self._own_configuration(name)))
        self.wait_for_nodes(name)

    def _own_configuration(self, name: str) -> Path:
        """A node's name for the one configuration: the keepers of its jobs are told apart by it."""
        return self.folder / f"slurm.{name}.conf"

    def wait_for_nodes(self, *names: str) -> None:
        """Return when all these nodes take jobs."""
        wanted = set(names)
        _wait(lambda: wanted <= set(self.run("sinfo", "-h", "-N", "-t", "idle,mix,alloc", "-o", "%N").split()), names)

    def _start(self, key: str, program: str, *options: str) -> None:
        path, home = os.pathsep.join(SEARCH), os.environ.get("HOME", "/")
        with (self.folder / f"{key}.out").open("ab") as out:
            self.daemons[key] = subprocess.Popen(
                [_found(program), *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PATH": path, "HOME": home},
            )

    def start(self) -> None:
        """Start all daemons; returns when all nodes are idle."""
        self._start(
            "munged",
            "munged",
            "--foreground",
            "--force",
            *(f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "pid", "log", "seed")),
            f"--socket={self.folder}/munge.socket",
        )
        _wait((self.folder / "munge.socket").exists, ("munged",))
        self._start("slurmctld", "slurmctld", "-D", "-c", "-f", self.environment["SLURM_CONF"])
        for name in self.nodes:
            self._own_configuration(name).symlink_to("slurm.conf")
            self._start(name, "slurmd", "-D", "-N", name, "-f", str(self._own_configuration(name)))
        self.wait_for_nodes(*self.nodes)

    def stop(self) -> None:
        """End all daemons, then whatever their jobs left."""
        for name in reversed(list(self.daemons)):
            _stop(self.daemons.pop(name), signal.SIGTERM if name == "munged" else signal.SIGKILL)
            self._kill_jobs(name)

    def _kill_jobs(self, node: str) -> None:
        """Kill what runs on a node, keepers first, so that none is left to tell how its job ended."""
        found = _started_with(f"SLURM_CONF={self._own_configuration(node)}")
        for process in sorted(found, key=lambda process: not _is_keeper(process)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


@contextlib.contextmanager
def slurm_cluster(folder: Path, nodes: int = 2) -> Iterator[SlurmCluster]:
    """A cluster in a new folder of `folder`, ended with everything in it; the test is skipped where Slurm is missing.

    Parameters
    ----------
    folder : a private folder; its path must be short enough for sockets (about 70 characters)
    nodes : of four cores and 8 GB each, in name only
    """
    _require_programs()
    cluster = _configured(folder / "slurm", tuple(f"n{i + 1}" for i in range(nodes)))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _require_programs() -> None:
    missing = [name for name in PROGRAMS if shutil.which(name, path=os.pathsep.join(SEARCH)) is None]
    if missing:
        reason = f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge"
        if os.environ.get("DPDIST_REQUIRE_SHARED"):
            pytest.fail(reason)
        pytest.skip(reason)


def _configured(folder: Path, nodes: tuple[str, ...]) -> SlurmCluster:
    folder.mkdir(mode=0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    host, (port, *ports) = socket.gethostname().split(".")[0], _free_ports(len(nodes) + 1)
    lines = [CONFIGURATION.format(host=host, port=port, user=getpass.getuser(), folder=folder)]
    lines += [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} CPUs=4 RealMemory=8000 State=UNKNOWN"
        for name, own in zip(nodes, ports, strict=True)
    ]
    lines += ["PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP", ""]
    (folder / "slurm.conf").write_text("\n".join(lines))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    return SlurmCluster(folder, nodes, {"SLURM_CONF": str(folder / "slurm.conf")})


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _found(program: str) -> str:
    path = shutil.which(program, path=os.pathsep.join(SEARCH))
    assert path is not None, program
    return path


def _wait(ready: Callable[[], bool], what: tuple[str, ...]) -> None:
    """Until `ready` says so, which may fail while the daemons come up."""

    def is_ready() -> bool:
        with contextlib.suppress(RuntimeError):
            return ready()
        return False

    wait_until(is_ready, lambda: f"{', '.join(what)} did not start")


def _stop(daemon: subprocess.Popen[bytes], number: signal.Signals) -> None:
    daemon.send_signal(number)
    daemon.wait()


def _started_with(variable: str) -> list[Path]:
    """Processes that have a variable in the environment they were started with."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def _is_keeper(process: Path) -> bool:
    try:
        return (process / "cmdline").read_bytes().startswith(b"slurmstepd")
    except OSError:
        return False
