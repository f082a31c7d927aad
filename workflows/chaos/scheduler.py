"""A manually started scheduler with workers and certificates, for clusters of type ``scheduler``."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from processes import Sessions, kill, until, workers_of

from dpdist.cluster.certificates import make_certificates
from dpdist.cluster.kinds import read_cluster

#: Seconds after which a worker that does not come forward is restarted.
STUCK_AFTER = 8.0


@dataclass
class Scheduler:
    """A scheduler and two workers as a person would start them, with certificates, at one address."""

    folder: Path
    sessions: Sessions
    scheduler: psutil.Popen | None = None
    workers: list[psutil.Popen] = field(default_factory=list)
    leaving: list[psutil.Popen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificates = make_certificates(self.folder / "certificates")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tls://127.0.0.1:{self.port}"
        self.config = self.folder / "scheduler.toml"
        self.config.write_text(
            f'type = "scheduler"\naddress = "{self.address}"\nstuck_after = {STUCK_AFTER}\npatience = 120\n'
            f'[security]\ncertificates = "{self.certificates}"\n'
        )

    def start(self) -> None:
        """Start what does not run."""
        if self.scheduler is None or not self.scheduler.is_running() or self.scheduler.poll() is not None:
            self.scheduler = self._process("scheduler", "scheduler", "--port", str(self.port))
        self.workers = [each for each in self.workers if each.poll() is None]
        while len(self.workers) < 2:
            given = [self.address, "--nthreads", "1", "--local-directory", str(self.folder)]
            self.workers.append(self._process("worker", "worker", *given))

    def _process(self, role: str, *arguments: str) -> psutil.Popen:
        keys = {"ca-file": "ca.pem", "cert": f"{role}.pem", "key": f"{role}.key"}
        tls = [part for key, name in keys.items() for part in (f"--tls-{key}", str(self.certificates / name))]
        given = ["--protocol", "tls", "--host", "127.0.0.1", "--no-dashboard", *tls]
        command = [sys.executable, "-m", "dask", *arguments, *given]
        return self.sessions.start(command, self.folder / f"{role}.log", **read_cluster(self.config).variables())

    def wait(self) -> None:
        """Wait until the scheduler listens, as whoever commands a resume does."""
        until(self._listens, 60.0, lambda: f"the scheduler does not start: {self.folder}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler; its workers leave by themselves."""
        if self.scheduler is not None:
            kill(self.scheduler)
            self.scheduler.wait()
            self.leaving, self.workers = [*self.leaving, *self.workers], []

    def kill_workers(self) -> int:
        """SIGKILL to workers and nannies at once; how many."""
        killed = sum(kill(each) for nanny in self.workers for each in (nanny, *workers_of(nanny)))
        for nanny in self.workers:
            nanny.wait()
        return killed

    def end(self) -> None:
        """End all."""
        for process in [self.scheduler, *self.workers, *self.leaving]:
            if process is not None:
                for each in (process, *workers_of(process)):
                    kill(each)
                process.wait()
