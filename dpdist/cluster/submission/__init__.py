"""A run's coordinator as a job of its own: what dies with a login shell is not the run."""

from __future__ import annotations

from typing import Any

from dpdist.cluster.kinds.base import ClusterConfig
from dpdist.cluster.submission.base import Job, JobState, Submitter
from dpdist.cluster.submission.kubernetes import KubernetesSubmitter
from dpdist.cluster.submission.process import ProcessSubmitter
from dpdist.cluster.submission.slurm import SlurmSubmitter
from dpdist.core.errors import InputError

__all__ = ["SUBMITTERS", "Job", "JobState", "Submitter", "submitter_for", "submitter_of"]

#: By the kind of their jobs; a new one is one more name here.
SUBMITTERS: dict[str, type[Submitter[Any]]] = {
    each.kind: each for each in (KubernetesSubmitter, ProcessSubmitter, SlurmSubmitter)
}


def submitter_for(cluster: ClusterConfig) -> Submitter[Any]:
    """The submitter that starts coordinators of a cluster."""
    return SUBMITTERS[cluster.submitted_as](cluster)


def submitter_of(job: Job) -> Submitter[Any]:
    """The submitter that finds a job again; :class:`InputError` if there is none."""
    if job.kind not in SUBMITTERS:
        raise InputError(f"a job of kind {job.kind!r} is not known; known are {', '.join(sorted(SUBMITTERS))}.")
    return SUBMITTERS[job.kind]()
