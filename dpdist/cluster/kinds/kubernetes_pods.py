"""Pods on Kubernetes: their configuration, and the manifests of pods and of the DaskCluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import ClusterConfig, Count, Positive, as_variables, in_bytes
from dpdist.cluster.kinds.kubernetes_api import Manifest
from dpdist.cluster.kinds.security import SecurityConfig
from dpdist.core.errors import InputError

#: Folder of the certificates in pods.
CERTIFICATES = "/etc/dpdist/certificates"
#: Memory of a worker pod that is reserved for the nanny.
NANNY_BYTES = 256 * 2**20
#: Folder for spilled values and compiled kernels.
SCRATCH = "/scratch"
SCHEDULER_PORT, HTTP_PORT = 8786, 8787
#: Routes of the HTTP port, without the pages that show tasks and workers and the calls that end workers.
HTTP_ROUTES = ["distributed.http.health", "distributed.http.scheduler.prometheus"]
SECRET_WORDS = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)


def _not_a_secret(name: str) -> str:
    """The name of an environment variable, checked; only the name is looked at, so that errors never show a value."""
    if SECRET_WORDS.search(name):
        raise ValueError(
            f"{name} looks like a secret, and everyone could read its value in manifests; "
            "put it into a Kubernetes Secret and name that Secret under envFrom in [container]"
        )
    return name


def _quantity(value: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?([KMGT]i|[kMG])?", value) or in_bytes(value) < 2 * NANNY_BYTES:
        raise ValueError("should be a quantity of memory such as 4Gi, at least 512Mi")
    return value


class Resources(BaseModel):
    """Resources of a container. The request equals the limit of memory, so that no node overcommits it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    memory: Annotated[str, AfterValidator(_quantity)] = "4Gi"
    cpu: str = "1"

    def manifest(self) -> Manifest:
        """The resources as a Kubernetes manifest."""
        return {"limits": {"memory": self.memory}, "requests": {"memory": self.memory, "cpu": self.cpu}}


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=53)]
SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_not_a_secret)]


class PodSettings(ClusterConfig):
    """The configuration of pods.

    Parameters
    ----------
    name : of the DaskCluster, unless named after the coordinator's Job
    image : container image of all pods, with dpdist, and ``dask`` on its PATH
    python : interpreter in the image
    n_workers : number of pods, each with one single-threaded worker
    resources, scheduler_resources, coordinator_resources : of the containers
    env : environment of all pods; no secrets
    pod, container : further entries of all pods and their containers, in Kubernetes' notation, such as ``nodeSelector``
        and ``volumes``, ``envFrom`` and ``volumeMounts``
    certificates_secret : Kubernetes Secret with the files of ``dpdist certificates``, without ``ca.key``
    service_account : of all pods; only the coordinator uses the Kubernetes API
    run_as_user : user and group id of all processes
    resource_timeout : seconds to wait for the operator, the pods and the scheduler
    termination_grace_period : seconds the coordinator has for a last checkpoint
    backoff_limit : number of failures of the coordinator, without evictions, after which its Job fails
    ttl_seconds_after_finished : seconds for which a finished Job is kept
    """

    library: ClassVar[tuple[str, str] | None] = ("dask_kubernetes", "kubernetes")
    submitted_as: ClassVar[str] = "kubernetes"
    private_keys: ClassVar[bool] = False  # keys of a Secret have mode 0440, for a group that only the process has

    type: Literal["kubernetes"] = "kubernetes"
    security: SecurityConfig = SecurityConfig(certificates=CERTIFICATES)
    name: Name = "dpdist"
    namespace: Name = "default"
    image: Annotated[str, Field(min_length=1)]
    python: Annotated[str, Field(min_length=1)] = "python"
    n_workers: Count = 2
    resources: Resources = Resources()
    scheduler_resources: Resources = Resources()
    coordinator_resources: Resources = Resources(memory="8Gi")
    env: dict[Variable, str] = Field(default_factory=dict)
    pod: Manifest = Field(default_factory=dict)
    container: Manifest = Field(default_factory=dict)
    certificates_secret: SecretName | None = None
    service_account: Name = "dpdist"
    run_as_user: Count = 1000
    resource_timeout: Positive = 600.0
    termination_grace_period: Annotated[int, Field(ge=30)] = 300
    backoff_limit: Annotated[int, Field(ge=0)] = 6
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] = 86_400

    @model_validator(mode="after")
    def _certificates_are_in_a_secret(self) -> Self:
        if self.security.tls and self.security.certificates != CERTIFICATES:
            raise ValueError(
                "pods get certificates from certificates_secret, not from files: remove certificates from [security]"
            )
        if self.security.tls and self.certificates_secret is None:
            raise ValueError(
                "certificates_secret is required: make certificates with `dpdist certificates FOLDER`, move ca.key out "
                "of it, run `kubectl create secret generic NAME --from-file=FOLDER` and give NAME; or set tls = false "
                "under [security] to run without TLS"
            )
        return self

    @property
    def expected(self) -> int | None:
        return self.n_workers

    def check_run_path(self, out: str) -> None:
        """Raise :class:`InputError` unless every pod, on any node, can write a run at `out`."""
        lost = {volume.get("name") for volume in self.pod.get("volumes", ()) if "emptyDir" in volume}
        shared = [
            mount["mountPath"]
            for mount in self.container.get("volumeMounts", ())
            if not mount.get("readOnly") and mount.get("name") not in lost
        ]
        if not out.startswith("s3://") and not any(PurePosixPath(out).is_relative_to(place) for place in shared):
            raise InputError(
                f"{out} should be storage that all pods can write to and that outlives them; give an out such as "
                "s3://BUCKET/NAME, or an absolute path below a mountPath under volumeMounts in [container]."
            )


def cluster_manifest(config: PodSettings) -> Manifest:
    """The manifest of the DaskCluster; ports, probes and service of the scheduler are those of dask-kubernetes."""
    from dask_kubernetes.operator import make_scheduler_spec

    template = make_scheduler_spec(config.name)
    (given,) = template["spec"]["containers"]
    scheduler = {**{name: given[name] for name in ("ports", "readinessProbe", "livenessProbe")}, **_scheduler(config)}
    # A busy scheduler may answer slowly: it is ended only after ten minutes of silence.
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
    """The address of the scheduler for pods of the same Kubernetes cluster."""
    protocol = "tls" if config.encrypted else "tcp"
    return f"{protocol}://{config.name}-scheduler.{config.namespace}.svc:{SCHEDULER_PORT}"


def pod_spec(config: PodSettings, role: Role, container: Manifest) -> Manifest:
    """The pod around one container, with the environment, volumes and certificates of the configuration.

    Only the coordinator (`role` ``client``) may use the Kubernetes API; no process is root or can become root.
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
    """Environment variables in Kubernetes' notation."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def pod_variables(config: PodSettings) -> dict[str, str]:
    """Environment of every pod; the user's entries take precedence. Compiled kernels are stored where any user may
    write."""
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
    """The container of a worker, without probes: the nanny restarts a worker that dies, the scheduler drops a silent
    one.

    The scheduler's address is set here because the operator would set one without TLS.
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
    """The volume with the key of this role only, readable only by the group of its user (octal 0440)."""
    files = ["ca.pem", f"{role}.pem", f"{role}.key"]
    secret = {"secretName": config.certificates_secret, "defaultMode": 0o440}
    return {"name": "certificates", "secret": secret | {"items": [{"key": name, "path": name} for name in files]}}
