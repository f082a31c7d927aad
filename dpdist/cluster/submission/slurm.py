"""The coordinator as a SLURM batch job that goes on by itself when its walltime is over or its node fails.

The batch shell passes signals on. SLURM sends SIGUSR1 some time before the walltime ends; when the coordinator then
exits with 75, the shell puts its own job into the queue again, with the same number and log. A job that was cancelled
or failed stays ended; after a node's failure, or where SLURM takes nodes away, SLURM itself puts the job back. Until a
job that was put back starts, SLURM lets two minutes pass, unless the site set ``cred_expire``.

The script holds paths and the command, no secrets. Credentials of an object store reach the job as SLURM passes the
environment of whoever submits (``--export=ALL``), or lie in the user's own files, such as ``~/.aws/credentials``.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpdist.cluster.kinds.base import ClusterConfig
from dpdist.cluster.kinds.slurm import SlurmConfig, walltime_seconds
from dpdist.cluster.statuses import AGAIN, CANCELLED
from dpdist.cluster.submission.base import (
    Job,
    JobState,
    Submitter,
    checked_name,
    made_folder,
    open_private,
)
from dpdist.core.errors import InputError

#: Seconds that SLURM may send a signal earlier than asked for.
EARLY = 60
#: Seconds that an ending job is waited for when it is cancelled, since it may come back.
SETTLING = 60

#: SLURM's own words for a job; those left out are told as unknown.
STATES = {
    JobState.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT SUSPENDED",
    JobState.RUNNING: "RUNNING COMPLETING SIGNALING STAGE_OUT RESIZING",
    JobState.ENDED: "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY REVOKED",
}
_STATE = {word: state for state, words in STATES.items() for word in words.split()}
_FORGOTTEN = "Invalid job id"

_SIZE = re.compile(r"(?P<count>\d+(\.\d+)?)\s*(?P<unit>[kmgtp]?)(?P<binary>i?)b?", re.IGNORECASE)

SCRIPT = """\
#!/bin/bash
{directives}

{prologue}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {restarts} ]; then
  echo "The run was started again {restarts} times and is given up; dpdist resume goes on with it." >&2
  exit 1
fi

{command} &
coordinator=$!
cancelled=
# Each signal once: where the coordinator ends while bash takes a second one, bash may lose its exit status.
trap 'cancelled=yes; trap "" TERM USR1; kill -TERM "$coordinator" 2>/dev/null || true' TERM
trap 'trap "" USR1; kill -USR1 "$coordinator" 2>/dev/null || true' USR1
# A signal interrupts wait; the last one tells the exit status, also of a process that is gone.
while kill -0 "$coordinator" 2>/dev/null; do wait "$coordinator" || true; done
status=0
wait "$coordinator" || status=$?
if [ "$status" -eq {again} ]; then
  if [ -n "$cancelled" ]; then exit {cancelled}; fi
  trap '' TERM USR1
  scontrol requeue "$SLURM_JOB_ID" || echo "SLURM did not put the job back; dpdist resume goes on with the run." >&2
fi
exit "$status"
"""


@dataclass(frozen=True)
class JobRequest:
    """What a coordinator's job is told.

    Parameters
    ----------
    name : of the job
    log : file of its output, appended to by every start
    lead : seconds before the end of the walltime at which the coordinator is told
    walltime : as SLURM writes it; None leaves it to the partition
    memory : such as ``4GB``
    directives : further options of sbatch, each a line; they override the others
    prologue : lines of shell that come first
    restarts : after so many the job gives up
    """

    name: str
    log: Path
    lead: int = 90
    walltime: str | None = None
    queue: str | None = None
    account: str | None = None
    cores: int = 1
    memory: str = "4GB"
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    restarts: int = 1000


def job_script(request: JobRequest, command: Sequence[str]) -> str:
    """The batch script; raises :class:`InputError` where the walltime is too short for a last checkpoint."""
    if request.walltime is not None and walltime_seconds(request.walltime) <= request.lead + EARLY:
        raise InputError(
            f"the coordinator's walltime is {request.walltime}, but it is told to write its last checkpoint "
            f"{request.lead} to {request.lead + EARLY} s before the end; give it more than {request.lead + EARLY} s."
        )
    return SCRIPT.format(
        directives="\n".join(f"#SBATCH {option}" for option in _options(request)),
        prologue="\n".join(request.prologue),
        restarts=request.restarts,
        command=shlex.join(command),
        again=AGAIN,
        cancelled=CANCELLED,
    )


def _options(request: JobRequest) -> list[str]:
    given = {"partition": request.queue, "account": request.account, "time": request.walltime}
    return [
        f"--job-name={request.name}",
        # SLURM puts the job's number and the like where it finds a per cent sign.
        f'--output="{str(request.log).replace("%", "%%")}"',
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{request.lead}",
        "--export=ALL",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={request.cores}",
        f"--mem={mebibytes(request.memory)}M",
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        *request.directives,
    ]


def mebibytes(size: str) -> int:
    """A size such as ``4GB`` in SLURM's megabytes of 2²⁰ bytes, rounded up."""
    match = _SIZE.fullmatch(size)
    if match is None:
        raise InputError(f"a size such as 4GB was expected for memory; got {size!r}.")
    power = " kmgtp".index(match["unit"].lower() or " ")
    return math.ceil(float(match["count"]) * (1024 if match["binary"] else 1000) ** power / 2**20)


class SlurmSubmitter(Submitter):
    """Submits batch jobs through ``sbatch``.

    Parameters
    ----------
    cluster : whose ``[coordinator]`` shapes the jobs; none to ask for jobs there are
    lead : seconds before the end of the walltime at which the coordinator is told
    """

    kind: ClassVar[str] = "slurm"
    clusters: ClassVar[frozenset[str]] = frozenset({"slurm"})

    def __init__(self, cluster: SlurmConfig | None = None, lead: int = 90) -> None:
        self.cluster, self.lead = cluster, lead

    @classmethod
    def of_cluster(cls, cluster: ClusterConfig) -> SlurmSubmitter:
        if not isinstance(cluster, SlurmConfig):
            raise InputError(f"a cluster of type slurm was expected; got {cluster.type}.")
        return cls(cluster)

    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        folder = made_folder(folder)
        request = self.request(checked_name(name), folder)
        made_folder(request.log.parent)
        script = folder / f"{name}.sh"
        with os.fdopen(open_private(script, os.O_TRUNC), "w") as file:
            file.write(job_script(request, self._with_python(command)))
        # The job appends to a log that is private already.
        os.close(open_private(request.log, os.O_APPEND))
        number = _slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
        return Job(self.kind, number, str(request.log))

    def request(self, name: str, folder: Path) -> JobRequest:
        """What the cluster's settings ask for; what ``[coordinator]`` leaves out is as in ``[job]``."""
        if self.cluster is None:
            return JobRequest(name, folder / f"{name}.log", self.lead)
        own, worker = self.cluster.coordinator, self.cluster.job
        prologue = worker.job_script_prologue if own.job_script_prologue is None else own.job_script_prologue
        return JobRequest(
            name=name,
            log=Path(own.log_directory or folder).absolute() / f"{name}.log",
            lead=self.lead,
            walltime=own.walltime or worker.walltime,
            queue=own.queue or worker.queue,
            account=own.account or worker.account,
            cores=own.cores,
            memory=own.memory,
            directives=tuple(own.job_extra_directives),
            prologue=tuple(prologue),
        )

    def _with_python(self, command: Sequence[str]) -> list[str]:
        """The command with the interpreter of the cluster's hosts in place of this one."""
        python = self.cluster and (self.cluster.coordinator.python or self.cluster.job.python)
        return [python if python and part == sys.executable else part for part in command]

    def state(self, job: Job) -> tuple[JobState, str]:
        try:
            told = dict(re.findall(r"(\S+?)=(\S*)", _slurm("scontrol", "--oneliner", "show", "job", job.identity)))
        except InputError as error:
            if _FORGOTTEN in str(error):
                return JobState.ENDED, "so long ago that SLURM has forgotten it"
            return JobState.UNKNOWN, str(error)
        return _STATE.get(told["JobState"], JobState.UNKNOWN), _words(told)

    def cancel(self, job: Job) -> None:
        """As every submitter's; a coordinator that hangs is ended by ``scancel`` and the job's number."""
        if self._settled(job) is JobState.WAITING:
            # Leaves the job alone if it starts in this moment.
            self._signal(job, "--state=PENDING")
        if self._settled(job) in (JobState.RUNNING, JobState.UNKNOWN):
            # A plain scancel would kill after the site's KillWait, whether the checkpoint is written or not.
            self._signal(job, "--signal=TERM", "--batch")

    def _signal(self, job: Job, *options: str) -> None:
        """Have SLURM signal a job, unless it has just ended."""
        try:
            _slurm("scancel", *options, job.identity)
        except InputError:
            if self._settled(job) is not JobState.ENDED:
                raise

    def _settled(self, job: Job) -> JobState:
        """The state once it is known whether a job that is just ending is put back."""
        end = time.monotonic() + SETTLING
        while (told := self.state(job))[1].startswith("COMPLETING"):
            if time.monotonic() > end:
                raise InputError(f"job {job.identity} has been ending for {SETTLING} s; ask again in a minute.")
            time.sleep(0.2)
        return told[0]


def _words(told: dict[str, str]) -> str:
    """SLURM's word for the state, with its reason or the exit status."""
    word, (status, number) = told["JobState"], told["ExitCode"].split(":")
    if _STATE.get(word) is JobState.ENDED:
        return f"{word}, signal {number}" if number != "0" else f"{word}, exit {status}"
    return word if told["Reason"] == "None" else f"{word} ({told['Reason']})"


def _slurm(*command: str) -> str:
    """What a SLURM command prints; its own words in an :class:`InputError` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        raise InputError(
            f"{command[0]} was not found: run this on a host of the SLURM cluster, where its commands are on the PATH."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{command[0]} gave no answer within {error.timeout:g} s; try again later.") from error
    if done.returncode:
        words = re.sub(r"^\w+: (error: )?", "", done.stderr.strip(), flags=re.MULTILINE)
        raise InputError(f"{command[0]} was refused by SLURM: {'; '.join(words.splitlines())}.")
    return done.stdout
