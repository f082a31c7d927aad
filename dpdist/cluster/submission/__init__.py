"""Submission of a run's coordinator as a job, which survives the end of a login shell."""

from __future__ import annotations

from typing import Any

from dpdist.cluster.kinds.base import ClusterConfig
from dpdist.cluster.submission.base import Job, JobState, Submitter
from dpdist.cluster.submission.kubernetes import KubernetesSubmitter
from dpdist.cluster.submission.process import ProcessSubmitter
from dpdist.cluster.submission.slurm import SlurmSubmitter
from dpdist.core.errors import InputError

__all__ = ["SUBMITTERS", "Job", "JobState", "Submitter", "submitter_for", "submitter_of"]

#: Submitters by kind of job; a new one is added here.
SUBMITTERS: dict[str, type[Submitter[Any]]] = {
    each.kind: each for each in (KubernetesSubmitter, ProcessSubmitter, SlurmSubmitter)
}


def submitter_for(cluster: ClusterConfig) -> Submitter[Any]:
    """The submitter that starts coordinators of a cluster."""
    return SUBMITTERS[cluster.submitted_as](cluster)


def submitter_of(job: Job) -> Submitter[Any]:
    """The submitter of a job's kind; raises :class:`InputError` if there is none."""
    if job.kind not in SUBMITTERS:
        raise InputError(f"a job of kind {job.kind!r} is not known; known kinds are {', '.join(sorted(SUBMITTERS))}.")
    return SUBMITTERS[job.kind]()
