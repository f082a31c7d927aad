"""The coordinator as a SLURM batch job that is requeued when its walltime is over or its node fails.

The batch shell forwards signals. SLURM sends SIGUSR1 some time before the walltime ends. If the coordinator then exits
with 75, the shell requeues its own job, with the same number and log. A cancelled or failed job stays ended; after a
node failure or a preemption, SLURM itself requeues the job. SLURM waits two minutes before a requeued job starts,
unless the site set ``cred_expire``.

The script contains paths and the command, but no secrets. Credentials of an object store reach the job through SLURM's
copy of the submitter's environment (``--export=ALL``), or through the user's files, such as ``~/.aws/credentials``.

submitit is not used: it requeues jobs too, but runs a pickled function, and cancels by a plain scancel, which kills the
job before a long checkpoint is written.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dpdist.cluster.kinds.slurm import NOT_FOUND, JobConfig, SlurmConfig, walltime_seconds
from dpdist.cluster.running import AGAIN, CANCELLED
from dpdist.cluster.submission.base import Job, JobState, Submitter, checked_name, made_folder, open_private
from dpdist.core.errors import InputError
from dpdist.core.waiting import wait_until

#: Seconds before the end of the walltime at which the coordinator is signalled, and by how many SLURM may be early.
LEAD, EARLY = 90, 60
#: Seconds to wait for an ending job when it is cancelled, because it may be requeued.
SETTLING = 60

#: SLURM's states of jobs; all others are reported as unknown.
STATES = {
    JobState.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD SPECIAL_EXIT SUSPENDED",
    JobState.RUNNING: "RUNNING COMPLETING SIGNALING STAGE_OUT RESIZING",
    JobState.ENDED: "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY REVOKED",
}
_STATE = {word: state for state, words in STATES.items() for word in words.split()}
_FORGOTTEN = "Invalid job id"

SCRIPT = """\
#!/bin/bash
{directives}

{prologue}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {restarts} ]; then
  echo "The run was restarted {restarts} times and is not restarted again; continue it with dpdist resume." >&2
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
  scontrol requeue "$SLURM_JOB_ID" || echo "SLURM did not requeue the job; continue the run with dpdist resume." >&2
fi
exit "$status"
"""


def job_script(
    job: JobConfig, name: str, log: Path, command: Sequence[str], lead: int = LEAD, restarts: int = 1000
) -> str:
    """The batch script.

    Parameters
    ----------
    job : resources to request; its directives override the others
    log : file of the output, appended to by every start
    lead : seconds before the end of the walltime at which the coordinator is signalled
    restarts : largest number of restarts

    Raises
    ------
    InputError
        If the walltime is too short for a last checkpoint.
    """
    if walltime_seconds(job.walltime) <= lead + EARLY:
        raise InputError(
            f"the coordinator's walltime is {job.walltime}, but its last checkpoint is written {lead} to "
            f"{lead + EARLY} s before the end; request a walltime of more than {lead + EARLY} s."
        )
    from dask_jobqueue.slurm import SLURMJob

    own = [
        # SLURM expands per cent signs, for example to the job number.
        f'--output="{str(log).replace("%", "%%")}"',
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{lead}",
        "--export=ALL",
        "--nodes=1",
    ]
    asked = {name: getattr(job, name) for name in ("cores", "memory", "walltime", "queue", "account")}
    options: dict[str, object] = {"job_name": name, "job_extra_directives": [*own, *job.job_extra_directives]}
    return SCRIPT.format(
        directives=SLURMJob("no scheduler", name, processes=1, **asked, **options).job_header,
        prologue="\n".join(job.job_script_prologue),
        restarts=restarts,
        command=shlex.join(job.python if part == sys.executable else part for part in command),
        again=AGAIN,
        cancelled=CANCELLED,
    )


class SlurmSubmitter(Submitter[SlurmConfig]):
    """Submits batch jobs through ``sbatch``."""

    kind: ClassVar[str] = "slurm"

    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        if self.cluster is None:
            raise InputError("a SLURM job needs a cluster configuration of type slurm; give it with --cluster.")
        job = self.cluster.coordinator
        folder = made_folder(folder)
        log = made_folder(Path(job.log_directory or folder)) / f"{checked_name(name)}.log"
        script = folder / f"{name}.sh"
        with os.fdopen(open_private(script, os.O_TRUNC), "w") as file:
            file.write(job_script(job, name, log, command))
        # The job appends to a log that is already private.
        os.close(open_private(log, os.O_APPEND))
        number = _slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
        return Job(self.kind, number, str(log))

    def state(self, job: Job) -> tuple[JobState, str]:
        try:
            told = dict(re.findall(r"(\S+?)=(\S*)", _slurm("scontrol", "--oneliner", "show", "job", job.identity)))
        except InputError as error:
            if _FORGOTTEN in str(error):
                return JobState.ENDED, "so long ago that SLURM no longer lists it"
            return JobState.UNKNOWN, str(error)
        return _STATE.get(told["JobState"], JobState.UNKNOWN), _words(told)

    def cancel(self, job: Job) -> None:
        """As :meth:`Submitter.cancel`; a coordinator that hangs can be ended by ``scancel`` with the job number."""
        if self._settled(job) is JobState.WAITING:
            # Has no effect if the job starts at this moment.
            self._signal(job, "--state=PENDING")
        if self._settled(job) in (JobState.RUNNING, JobState.UNKNOWN):
            # A plain scancel would kill after the site's KillWait, even while the checkpoint is being written.
            self._signal(job, "--signal=TERM", "--batch")

    def _signal(self, job: Job, *options: str) -> None:
        """Make SLURM signal a job, unless it has just ended."""
        try:
            _slurm("scancel", *options, job.identity)
        except InputError:
            if self._settled(job) is not JobState.ENDED:
                raise

    def _settled(self, job: Job) -> JobState:
        """The state, once it is known whether an ending job is requeued."""

        def settled() -> JobState | None:
            state, words = self.state(job)
            return None if words.startswith("COMPLETING") else state

        state = wait_until(settled, time.monotonic() + SETTLING)
        if state is None:
            raise InputError(f"job {job.identity} has been ending for {SETTLING} s; try again in a minute.")
        return state


def _words(told: dict[str, str]) -> str:
    """SLURM's state, with its reason or the exit status."""
    word, (status, number) = told["JobState"], told["ExitCode"].split(":")
    if _STATE.get(word) is JobState.ENDED:
        return f"{word}, signal {number}" if number != "0" else f"{word}, exit {status}"
    return word if told["Reason"] == "None" else f"{word} ({told['Reason']})"


def _slurm(*command: str) -> str:
    """The output of a SLURM command; raises :class:`InputError` with SLURM's message if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as error:
        raise InputError(NOT_FOUND.format(command[0])) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{command[0]} gave no answer within {error.timeout:g} s; try again later.") from error
    if done.returncode:
        words = re.sub(r"^\w+: (error: )?", "", done.stderr.strip(), flags=re.MULTILINE)
        raise InputError(f"{command[0]} was refused by SLURM: {'; '.join(words.splitlines())}.")
    return done.stdout
