"""Workers as SLURM jobs, by ``SLURMCluster`` of dask-jobqueue, with its keywords."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dpdist.cluster.kinds.base import HIDDEN_DASHBOARD, ClusterConfig, Count, Memory, Positive
from dpdist.cluster.kinds.security import PathText
from dpdist.core.errors import InputError
from dpdist.execution.connecting import backend_on
from dpdist.execution.dask import DaskBackend

if TYPE_CHECKING:
    from dask_jobqueue import SLURMCluster

#: SLURM's walltimes: days-hours[:minutes[:seconds]], [hours:]minutes:seconds, or minutes.
_WALLTIME = re.compile(
    r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?|((?P<hh>\d+):)?(?P<mm>\d+):(?P<ss>\d+)|(?P<mmm>\d+)"
)
_UNITS = {"d": 86400, "h": 3600, "hh": 3600, "m": 60, "mm": 60, "mmm": 60, "s": 1, "ss": 1}
#: The message if a SLURM command is missing.
NOT_FOUND = "{} was not found: run this on a host of the SLURM cluster, where its commands are on the PATH."


def walltime_seconds(text: str) -> int:
    """Seconds of a walltime in SLURM's notation: ``30``, ``30:00``, ``1:30:00``, ``2-12``, ``2-12:30:00``."""
    match = _WALLTIME.fullmatch(text)
    if match is None:
        raise ValueError("should be a SLURM walltime such as 04:00:00 or 2-12:00:00")
    return sum(_UNITS[name] * int(given) for name, given in match.groupdict("0").items())


def lifetime(walltime: int) -> tuple[int, int]:
    """Lifetime of a worker in seconds, and the range in which it varies between workers.

    Workers end by themselves before SLURM kills them, so that their data are handed over; and not all at once: the
    stagger is longer than the start of a job. A worker lives at most lifetime + stagger, which leaves a margin to the
    walltime.
    """
    stagger = min(max(walltime // 10, 10), 600)
    margin = min(max(walltime // 20, 10), 300)
    return walltime - margin - stagger, stagger


def _is_walltime(value: str) -> str:
    if walltime_seconds(value) < 60:
        raise ValueError("should be a walltime of a minute or more, such as 04:00:00")
    return value


Walltime = Annotated[str, AfterValidator(_is_walltime)]


class JobConfig(BaseModel):
    """A job. Defaults are those of dask-jobqueue, except `processes`, one per core, and `python`, this interpreter.

    Parameters
    ----------
    options : further keywords of ``SLURMCluster``; the other fields have its names, too
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    cores: Count
    memory: Memory
    walltime: Walltime
    processes: Count | None = None
    queue: str | None = None
    account: str | None = None
    interface: str | None = None
    python: str = sys.executable
    job_name: str = "dpdist-worker"
    local_directory: PathText | None = None
    log_directory: PathText | None = None
    job_script_prologue: list[str] = []
    job_extra_directives: list[str] = []
    worker_extra_args: list[str] = []
    options: dict[str, object] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.processes is not None and self.processes > self.cores:
            raise ValueError(f"processes is {self.processes}, but a job has only {self.cores} cores")
        return self


#: Defaults of the coordinator's job; all other settings are by default those of ``[job]``.
COORDINATOR = {"cores": 1, "memory": "4GB", "processes": None, "log_directory": None, "job_extra_directives": []}


class SlurmConfig(ClusterConfig):
    """The configuration of a cluster of SLURM jobs.

    Parameters
    ----------
    jobs : number of worker jobs; jobs that end are replaced
    job : of the workers
    coordinator : settings of :class:`JobConfig` for the job in which ``dpdist submit`` runs coordinator and scheduler
    patience : longer than for other kinds, because jobs wait in queues
    scheduler_options : of Dask's scheduler, which runs in the coordinator's process
    """

    library: ClassVar[tuple[str, str] | None] = ("dask_jobqueue", "slurm")
    submitted_as: ClassVar[str] = "slurm"

    type: Literal["slurm"] = "slurm"
    jobs: Count
    job: JobConfig
    coordinator: JobConfig
    patience: Positive = 86400.0
    scheduler_options: dict[str, object] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_decided_once(self) -> Self:
        for key in ("protocol", "security"):
            if key in self.scheduler_options:
                raise ValueError(f"scheduler_options.{key} is decided by [security]: remove it")
        for argument in self.job.worker_extra_args:
            if argument.startswith(("--tls-", "--protocol")):
                raise ValueError(f"job.worker_extra_args: {argument} is decided by [security]: remove it")
        folder = self.security.certificates if self.security else None
        if folder is not None and re.search(r"\s", folder):
            raise ValueError(
                f"security.certificates: a path with spaces cannot be put into a job script; got {folder!r}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _completes_the_coordinator(cls, values: dict[str, object]) -> dict[str, object]:
        job, own = values.get("job"), values.get("coordinator", {})
        if isinstance(job, dict) and isinstance(own, dict):
            return {**values, "coordinator": {**job, **COORDINATOR, **own}}
        return values

    @property
    def expected(self) -> int | None:
        return self.jobs * (self.job.processes or self.job.cores)

    def launch(self) -> DaskBackend:
        if shutil.which("sbatch") is None:
            raise InputError(NOT_FOUND.format("sbatch"))
        cluster = self.cluster()
        # adapt, because scale() would not replace jobs that end.
        cluster.adapt(minimum_jobs=self.jobs, maximum_jobs=self.jobs)
        return backend_on(cluster, self.limits())

    def cluster(self) -> SLURMCluster:
        """The ``SLURMCluster``, with its scheduler running in this process, and no job submitted yet."""
        self.require()
        from dask_jobqueue import SLURMCluster

        security = self.tls()
        try:
            with self.in_force():
                return SLURMCluster(
                    **self.job_options(),
                    security=security,
                    scheduler_options={**HIDDEN_DASHBOARD, **self.scheduler_options},
                )
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            raise InputError(
                f"the SLURM cluster did not start ({error}); check interface, scheduler_options and directories."
            ) from error

    def job_options(self) -> dict[str, object]:
        """Keywords of ``SLURMCluster`` for a worker job."""
        given = self.job.model_dump(exclude_none=True, exclude={"options"}) | self.job.options
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.variables().items()]
        return {
            **given,
            "processes": self.job.processes or self.job.cores,
            # A job requeued after a node's failure may have no scheduler; a replacement is submitted anyway.
            "job_extra_directives": ["--no-requeue", *self.job.job_extra_directives],
            # Last, because an earlier `module load` may set numbers of threads.
            "job_script_prologue": [*self.job.job_script_prologue, *exports],
            "worker_extra_args": self._worker_arguments(),
        }

    def _worker_arguments(self) -> list[str]:
        given = self.job.worker_extra_args
        names = {argument.split("=")[0] for argument in given}
        age, stagger = lifetime(walltime_seconds(self.job.walltime))
        added = []
        if not names & {"--lifetime", "--lifetime-stagger"}:
            added += ["--lifetime", f"{age}s", "--lifetime-stagger", f"{stagger}s"]
        if not names & {"--dashboard", "--no-dashboard", "--dashboard-address"}:
            added += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        return [*given, *added]
