"""The calls to the Kubernetes API that dpdist uses, with messages for their errors."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dpdist.core.errors import InputError

if TYPE_CHECKING:
    from kr8s import Api, ServerError
    from kr8s.objects import APIObject

Manifest = dict[str, Any]
DASK_VERSION = "kubernetes.dask.org/v1"
#: API versions of the kinds that are used here.
VERSIONS = {"DaskCluster": DASK_VERSION, "Job": "batch/v1", "Pod": "v1"}


@contextlib.contextmanager
def kubernetes(namespace: str) -> Iterator[Api]:
    """The API of the cluster named by the kubeconfig, or else by the pod's service account; raises :class:`InputError`
    if no API answers, or it refuses the request."""
    import httpx
    import kr8s

    try:
        yield _connection(namespace, os.environ.get("KUBECONFIG"))
    except kr8s.ServerError as error:
        raise InputError(f"Kubernetes refused: {error}.{_remedy(error)}") from error
    except (httpx.TransportError, kr8s.APITimeoutError) as error:
        raise InputError(
            f"the Kubernetes API does not answer ({error}); check with: kubectl get pods -n {namespace}"
        ) from error
    except ValueError as error:
        if isinstance(error, InputError) or "credentials" not in str(error):
            raise
        raise InputError(
            "no kubeconfig and no service account was found; set KUBECONFIG, or run in a pod of the cluster."
        ) from error


@functools.cache
def _connection(namespace: str, kubeconfig: str | None) -> Api:
    """One connection per process and cluster, as the client cannot close one."""
    import kr8s

    return kr8s.api(namespace=namespace, kubeconfig=kubeconfig)


def _remedy(error: ServerError) -> str:
    """What to do about a refusal, by its HTTP status."""
    status = None if error.response is None else error.response.status_code
    if status in (401, 403):
        return (
            " The service account lacks a role; apply it, as an administrator, with: "
            "kubectl apply -f cluster_configs/kubernetes-role.yaml"
        )
    if status == 404:
        return " The namespace or the Dask operator's resources are missing; see kubernetes.dask.org to install these."
    return ""


def kubernetes_object(api: Api, kind: str, manifest: Manifest) -> APIObject:
    """A handle on a resource with ``create``, ``refresh``, ``patch`` and ``delete``."""
    from kr8s.objects import new_class

    return new_class(kind, VERSIONS[kind], asyncio=False)(manifest, api=api)


def named(api: Api, kind: str, name: str, namespace: str) -> APIObject | None:
    """The current resource of that name, or None."""
    from kr8s import NotFoundError

    found = kubernetes_object(api, kind, {"metadata": {"name": name, "namespace": namespace}})
    try:
        found.refresh()
    except NotFoundError:
        return None
    return found


def delete(found: APIObject) -> None:
    """Delete a resource after what it owns; its pods get SIGTERM and their own grace. A missing one is ignored."""
    from kr8s import NotFoundError

    with contextlib.suppress(NotFoundError):
        found.delete(propagation_policy="Foreground")


def pods_of(api: Api, namespace: str, label: str) -> list[Manifest]:
    """The pods with a label, as plain values."""
    from kr8s.objects import Pod

    return [pod.raw.to_dict() for pod in api.get(Pod, namespace=namespace, label_selector=label)]


def troubles(pods: Iterable[Manifest]) -> list[str]:
    """Reasons why pods do not run: not scheduled, image not found, killed for memory, crashing, evicted."""
    return [f"{pod['metadata']['name']}: {words}" for pod in pods for words in _pod_troubles(pod.get("status", {}))]


def _pod_troubles(status: Manifest) -> Iterator[str]:
    unscheduled = {"type": "PodScheduled", "status": "False"}
    told = [each for each in status.get("conditions") or () if unscheduled.items() <= each.items()]
    for container in status.get("containerStatuses") or ():
        for phase in (container.get("state", {}), container.get("lastState", {})):
            told.append(phase.get("waiting") or {})
            if (ended := phase.get("terminated")) and ended.get("exitCode"):
                told.append({"reason": f"ended with exit code {ended['exitCode']} ({ended.get('reason', 'Error')})"})
    for each in [status] * (status.get("phase") == "Failed") + told:
        if each.get("reason") not in ("ContainerCreating", "PodInitializing", None):
            yield ", ".join(str(each[key]) for key in ("reason", "message") if each.get(key))
