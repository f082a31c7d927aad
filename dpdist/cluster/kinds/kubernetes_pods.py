"""Pods and the DaskCluster as plain values: what Kubernetes and the Dask operator are asked for."""

from __future__ import annotations

from collections.abc import Mapping

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import as_variables, in_bytes
from dpdist.cluster.kinds.kubernetes_settings import CERTIFICATES, NANNY_BYTES, Manifest, PodSettings

#: Room for spilled values and compiled kernels.
SCRATCH = "/scratch"
SCHEDULER_PORT, HTTP_PORT = 8786, 8787
#: All that the HTTP port answers: the pages that show tasks and workers, and the calls that end workers, stay off.
HTTP_ROUTES = ["distributed.http.health", "distributed.http.scheduler.prometheus"]


def cluster_manifest(config: PodSettings) -> Manifest:
    """The DaskCluster of a configuration; the scheduler's ports, probes and service are as dask-kubernetes has them."""
    from dask_kubernetes.operator import make_scheduler_spec

    template = make_scheduler_spec(config.name)
    (given,) = template["spec"]["containers"]
    scheduler = {**{name: given[name] for name in ("ports", "readinessProbe", "livenessProbe")}, **_scheduler(config)}
    # A busy scheduler may be slow to answer: it is ended only after ten minutes of silence.
    scheduler["livenessProbe"] = {
        **given["livenessProbe"],
        "periodSeconds": 60,
        "timeoutSeconds": 30,
        "failureThreshold": 10,
    }
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": config.name, "namespace": config.namespace, "labels": {"app": "dpdist"}},
        "spec": {
            "scheduler": {"spec": pod_spec(config, "scheduler", scheduler), "service": template["service"]},
            "worker": {"replicas": config.n_workers, "spec": pod_spec(config, "worker", _worker(config))},
        },
    }


def scheduler_address(config: PodSettings) -> str:
    """Where pods of the same Kubernetes cluster reach the scheduler."""
    protocol = "tls" if config.encrypted else "tcp"
    return f"{protocol}://{config.name}-scheduler.{config.namespace}.svc:{SCHEDULER_PORT}"


def pod_spec(config: PodSettings, role: Role, container: Manifest) -> Manifest:
    """The pod around one container, which gets the configuration's environment, volumes and certificates.

    Nobody but the coordinator (`role` ``client``) may speak to the Kubernetes API; no process is root or becomes it.
    """
    volumes: list[Manifest] = [{"name": "scratch", "emptyDir": {}}, *config.pod.get("volumes", ())]
    mounts: list[Manifest] = [{"name": "scratch", "mountPath": SCRATCH}, *config.container.get("volumeMounts", ())]
    if config.encrypted:
        volumes.append(_certificates(config, role))
        mounts.append({"name": "certificates", "mountPath": CERTIFICATES, "readOnly": True})
    own = {
        "image": config.image,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    return {
        **config.pod,
        "serviceAccountName": config.service_account,
        "automountServiceAccountToken": role == "client",
        "securityContext": {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), config.run_as_user),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{**config.container, **own, **container}],
        "volumes": volumes,
    }


def environment(variables: Mapping[str, str]) -> list[Manifest]:
    """Environment variables as Kubernetes takes them."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def pod_variables(config: PodSettings) -> dict[str, str]:
    """Environment of every pod; the user's own entries last. Compiled kernels go where any user may write."""
    own = {"NUMBA_CACHE_DIR": f"{SCRATCH}/numba"}
    return (
        config.variables() | as_variables({"distributed.comm.require-encryption": config.encrypted}) | own | config.env
    )


def _scheduler(config: PodSettings) -> Manifest:
    command = ["dask", "scheduler", *_comm_flags(config, "scheduler"), "--port", str(SCHEDULER_PORT)]
    return {
        "name": "scheduler",
        "command": [*command, "--no-dashboard", "--dashboard-address", f":{HTTP_PORT}"],
        "env": environment(pod_variables(config) | as_variables({"distributed.scheduler.http.routes": HTTP_ROUTES})),
        "resources": config.scheduler_resources.manifest(),
    }


def _worker(config: PodSettings) -> Manifest:
    """Workers have no probes: the nanny replaces one that dies, the scheduler drops one that falls silent.

    The operator would set the scheduler's address without TLS, were it not set here.
    """
    command = ["dask", "worker", scheduler_address(config), *_comm_flags(config, "worker")]
    command += ["--name", "$(DASK_WORKER_NAME)", "--nworkers", "1", "--nthreads", "1", "--no-dashboard"]
    limit = in_bytes(config.resources.memory) - NANNY_BYTES
    return {
        "name": "worker",
        "command": [*command, "--memory-limit", str(limit), "--local-directory", SCRATCH],
        "env": environment(pod_variables(config) | {"DASK_SCHEDULER_ADDRESS": scheduler_address(config)}),
        "resources": config.resources.manifest(),
    }


def _comm_flags(config: PodSettings, role: Role) -> list[str]:
    if not config.encrypted:
        return ["--protocol", "tcp"]
    files = {"--tls-ca-file": "ca.pem", "--tls-cert": f"{role}.pem", "--tls-key": f"{role}.key"}
    return ["--protocol", "tls", *(word for flag, name in files.items() for word in (flag, f"{CERTIFICATES}/{name}"))]


def _certificates(config: PodSettings, role: Role) -> Manifest:
    """The role's own key and no other's, readable by its user's group alone (octal 0440)."""
    files = ["ca.pem", f"{role}.pem", f"{role}.key"]
    secret = {"secretName": config.certificates_secret, "defaultMode": 0o440}
    return {"name": "certificates", "secret": secret | {"items": [{"key": name, "path": name} for name in files]}}
