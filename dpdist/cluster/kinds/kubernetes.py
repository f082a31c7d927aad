"""Workers on Kubernetes: a DaskCluster, for which the Dask operator starts a scheduler and one pod per worker.

The scheduler is reached at its service, a name that resolves only in pods of the same Kubernetes cluster. Therefore
:meth:`KubernetesConfig.launch` is for the coordinator's own pod, which :mod:`dpdist.cluster.submission.kubernetes`
creates. ``dask_kubernetes.KubeCluster`` is not used, because it connects to schedulers only without TLS; the resource
that it would create is created here, and Dask's client connects with mutual TLS. For the same reason the operator can
neither ask the scheduler for the desired number of workers nor retire one: the number is fixed, and Kubernetes replaces
workers that end.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from distributed import Client, Security

from dpdist.cluster.kinds.kubernetes_api import (
    Manifest,
    delete,
    kubernetes,
    kubernetes_object,
    named,
    pods_of,
    troubles,
)
from dpdist.cluster.kinds.kubernetes_pods import PodSettings, cluster_manifest, scheduler_address
from dpdist.core.errors import InputError
from dpdist.core.waiting import wait_until
from dpdist.execution.dask import DaskBackend

if TYPE_CHECKING:
    from kr8s import Api
    from kr8s.objects import APIObject

#: Environment variables that tell the coordinator's pod its Job.
JOB_NAME, JOB_UID = "DPDIST_JOB_NAME", "DPDIST_JOB_UID"


class KubernetesConfig(PodSettings):
    """The configuration of a DaskCluster, and its launch."""

    def launch(self) -> DaskBackend:
        """Create the DaskCluster and connect to it, from a pod of the same Kubernetes cluster.

        A DaskCluster that an earlier pod of the same Job left behind is replaced; anyone else's is left alone.

        Raises
        ------
        InputError
            If there is no worker within ``resource_timeout``; the message includes Kubernetes' reasons.
        """
        self.require()
        if self.encrypted and not self.security.folder.is_dir():
            raise InputError(
                f"there is no folder {self.security.folder}: a scheduler on Kubernetes can be reached only from a pod, "
                f"such as dpdist submit creates, with the Secret {self.certificates_secret} mounted there."
            )
        config = self.model_copy(update={"name": os.environ.get(JOB_NAME) or self.name})
        security, until = self.tls(("client",)), time.monotonic() + self.resource_timeout
        with kubernetes(config.namespace) as api, contextlib.ExitStack() as undo:
            created = _created(api, owned(cluster_manifest(config), os.environ), until)
            undo.callback(delete, created)
            client = undo.enter_context(_connected(api, config, security, until))
            backend = DaskBackend(client, owned=True, limits=self.limits(), ending=partial(_deleted, created))
            undo.pop_all()
        return backend


def _deleted(created: APIObject) -> None:
    try:
        with kubernetes(created.namespace):
            delete(created)
    except InputError as error:
        warnings.warn(f"the DaskCluster {created.name} was not deleted: {error}", UserWarning, stacklevel=2)


def owned(manifest: Manifest, variables: Mapping[str, str]) -> Manifest:
    """The resource with the coordinator's Job, if `variables` name one, as its owner, with which it is deleted."""
    if not variables.get(JOB_UID):
        return manifest
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": variables[JOB_NAME], "uid": variables[JOB_UID]}
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


def _created(api: Api, manifest: Manifest, until: float) -> APIObject:
    """The new DaskCluster, which replaces one with the same owner."""
    metadata = manifest["metadata"]
    name, namespace, owners = metadata["name"], metadata["namespace"], metadata.get("ownerReferences")
    before = named(api, "DaskCluster", name, namespace)
    if before is not None:
        found = before.raw["metadata"]
        if not found.get("deletionTimestamp") and (owners is None or found.get("ownerReferences") != owners):
            raise InputError(
                f"a DaskCluster {name} exists already in namespace {namespace}; choose another name, "
                f"or delete it with: kubectl delete daskcluster {name} -n {namespace}"
            )
        delete(before)
        if not wait_until(lambda: named(api, "DaskCluster", name, namespace) is None, until):
            raise InputError(f"the DaskCluster {name} of an earlier attempt still exists; see resource_timeout.")
    created = kubernetes_object(api, "DaskCluster", manifest)
    created.create()
    return created


def _connected(api: Api, config: KubernetesConfig, security: Security | None, until: float) -> Client:
    """A client of the scheduler, as soon as it has a worker."""
    address, client = scheduler_address(config), None
    try:
        client = Client(address, timeout=max(until - time.monotonic(), 0.01), security=security, set_as_default=False)
        client.wait_for_workers(1, timeout=max(until - time.monotonic(), 0.01))
    except (OSError, TimeoutError) as error:
        if client is not None:
            client.close()
        reasons = troubles(pods_of(api, config.namespace, f"dask.org/cluster-name={config.name}"))
        raise InputError(
            f"no worker of the DaskCluster {config.name} connected to {address} within {config.resource_timeout:g} s "
            f"({'; '.join(reasons) or 'pods report no problem: is the Dask operator installed, and is this a pod?'})."
        ) from error
    return client
