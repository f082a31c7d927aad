"""The coordinator as a Kubernetes Job, which is restarted and resumes after an eviction, but not after a final failure.

The operator's own DaskJob does not restart evicted pods. All that the coordinator reads and writes must be accessible
on every node: in an object store, or on a volume that all pods share.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dpdist.cluster.kinds.kubernetes import JOB_NAME, JOB_UID, KubernetesConfig
from dpdist.cluster.kinds.kubernetes_api import (
    Manifest,
    delete,
    kubernetes,
    kubernetes_object,
    named,
    pods_of,
    troubles,
)
from dpdist.cluster.kinds.kubernetes_pods import environment, pod_spec, pod_variables
from dpdist.cluster.running import AGAIN, CANCELLED
from dpdist.cluster.submission.base import Job, JobState, Submitter, checked_name, made_folder, open_private
from dpdist.core.errors import InputError

CONTAINER = "coordinator"
#: Exit statuses after which a restart is useless: an error for the user, a wrong option, a cancellation.
FINAL = [1, 2, CANCELLED]


def coordinator_manifest(config: KubernetesConfig, command: Sequence[str], name: str) -> Manifest:
    """The Job that runs `command` in a pod with the coordinator's certificates and permission to create the
    DaskCluster.

    A pod that is evicted, preempted or lost with its node is always replaced, and so is one that exits with the status
    for a restart. A pod that is killed is replaced ``backoff_limit`` times; one that ended with an error message is
    not. On SIGTERM the command has ``termination_grace_period`` seconds.
    """
    ended = {"containerName": CONTAINER, "operator": "In"}
    labels = {JOB_NAME: "batch.kubernetes.io/job-name", JOB_UID: "batch.kubernetes.io/controller-uid"}
    container = {
        "name": CONTAINER,
        "command": list(command),
        # Name and uid of the Job, which will own the DaskCluster, come from the pod's labels.
        "env": environment(pod_variables(config))
        + [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
            for name, label in labels.items()
        ],
        "resources": config.coordinator_resources.manifest(),
    }
    # The Job replaces pods; podFailurePolicy requires Never.
    ending = {"restartPolicy": "Never", "terminationGracePeriodSeconds": config.termination_grace_period}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": config.namespace, "labels": {"app": "dpdist"}},
        "spec": {
            "backoffLimit": config.backoff_limit,
            "ttlSecondsAfterFinished": config.ttl_seconds_after_finished,
            # An ending pod may still be writing its last checkpoint, so no second one is started beside it.
            "podReplacementPolicy": "Failed",
            # The first matching rule applies; an end that matches none counts as a failure.
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "Ignore", "onExitCodes": {**ended, "values": [AGAIN]}},
                    {"action": "FailJob", "onExitCodes": {**ended, "values": FINAL}},
                ]
            },
            "template": {
                "metadata": {"labels": {"app": "dpdist"}},
                "spec": pod_spec(config, "client", container) | ending,
            },
        },
    }


class KubernetesSubmitter(Submitter[KubernetesConfig]):
    """Creates Jobs through the Kubernetes API."""

    kind: ClassVar[str] = "kubernetes"

    def submit(self, command: Sequence[str], name: str, folder: Path) -> Job:
        if self.cluster is None:
            raise InputError("a Job needs a cluster configuration of type kubernetes; give it with --cluster.")
        self.cluster.require()
        job = unique_name(checked_name(name))
        # The image has another interpreter than this host.
        command = [self.cluster.python if part == sys.executable else part for part in command]
        manifest = coordinator_manifest(self.cluster, command, job)
        with os.fdopen(open_private(made_folder(folder) / f"{job}.json", os.O_TRUNC), "w") as file:
            json.dump(manifest, file, indent=2)
        with kubernetes(self.cluster.namespace) as api:
            kubernetes_object(api, "Job", manifest).create()
        return Job(self.kind, f"{self.cluster.namespace}/{job}")

    def state(self, job: Job) -> tuple[JobState, str]:
        namespace, name = job.identity.split("/")
        try:
            with kubernetes(namespace) as api:
                found = named(api, "Job", name, namespace)
                if found is None:
                    return JobState.ENDED, "the Job no longer exists: it was deleted, or finished long ago"
                pods = pods_of(api, namespace, f"batch.kubernetes.io/job-name={name}")
                return job_state(found.raw.to_dict(), pods)
        except InputError as error:
            return JobState.UNKNOWN, str(error)

    def cancel(self, job: Job) -> None:
        namespace, name = job.identity.split("/")
        with kubernetes(namespace) as api:
            found = named(api, "Job", name, namespace)
            if found is not None and _verdict(found.raw.to_dict()) is None:
                delete(found)


def unique_name(name: str) -> str:
    """A unique name for a Job and its DaskCluster, valid in Kubernetes, made from a run's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:44].rstrip("-")
    return f"{plain or 'run'}-{uuid.uuid4().hex[:8]}"


def job_state(job: Manifest, pods: Sequence[Manifest]) -> tuple[JobState, str]:
    """The state of an existing Job and its pods, in Kubernetes' words."""
    verdict, reasons = _verdict(job), "; ".join(troubles(pods))
    if verdict is not None:
        return JobState.ENDED, f"{verdict} ({reasons})" if reasons else verdict
    if job["metadata"].get("deletionTimestamp"):
        return JobState.RUNNING, "is being cancelled"
    for pod in pods:
        if pod.get("status", {}).get("phase") == "Running":
            return JobState.RUNNING, f"pod {pod['metadata']['name']} on {pod.get('spec', {}).get('nodeName', 'a node')}"
    return JobState.WAITING, reasons or "its pod has not started yet"


def _verdict(job: Manifest) -> str | None:
    """How a Job ended, or None."""
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            words = [condition["type"], *(str(condition[key]) for key in ("reason", "message") if condition.get(key))]
            return ", ".join(words)
    return None
