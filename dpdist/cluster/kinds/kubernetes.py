"""Workers on Kubernetes: a DaskCluster, which the Dask operator turns into a scheduler and one pod a worker.

The scheduler is reached at its service, a name that only pods of the same Kubernetes cluster can resolve:
:meth:`KubernetesConfig.launch` is for the coordinator's own pod, which :mod:`dpdist.cluster.submission.kubernetes`
makes. ``dask_kubernetes.KubeCluster`` is not used, since it speaks to schedulers over plain tcp only; the resource that
it would create is made here, and Dask's client connects with mutual TLS. For the same reason the operator can neither
ask the scheduler how many workers it wants nor retire one: their number is fixed, and Kubernetes replaces those that
end.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from distributed import Client, Security
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dpdist.cluster.certificates import Role
from dpdist.cluster.kinds.base import ClusterConfig, Count, Positive
from dpdist.cluster.kinds.kubernetes_api import (
    delete,
    kubernetes,
    kubernetes_object,
    named,
    pods_of,
    troubles,
)
from dpdist.cluster.kinds.kubernetes_pods import (
    CERTIFICATES,
    NANNY_BYTES,
    Manifest,
    check_shared,
    cluster_manifest,
    in_bytes,
    scheduler_address,
)
from dpdist.cluster.kinds.security import SecurityConfig
from dpdist.core.errors import InputError
from dpdist.execution.dask import DaskBackend, Limits

SECRET_WORDS = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)
#: The coordinator's pod is told by these which Job it belongs to.
JOB_NAME, JOB_UID = "DPDIST_JOB_NAME", "DPDIST_JOB_UID"
POLL_SECONDS = 0.5


def not_a_secret(name: str) -> str:
    """The name of an environment variable, if it does not look like that of a secret.

    Only the name is looked at, so that no error can show the value.
    """
    if SECRET_WORDS.search(name):
        raise ValueError(
            f"{name} looks like a secret, and its value would stand in manifests for all to read; "
            "put it into a Kubernetes Secret and name that in env_from_secret"
        )
    return name


class Resources(BaseModel):
    """Requests and limits of one container; memory is requested in full, so that no node promises it twice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limits: dict[str, str]
    requests: dict[str, str] = {}

    @model_validator(mode="after")
    def _memory_is_promised(self) -> Resources:
        if "memory" not in self.limits:
            raise ValueError('a limit of memory was expected, such as limits = { memory = "4Gi" }')
        if in_bytes(self.limits["memory"]) < 2 * NANNY_BYTES:
            raise ValueError(f"limits.memory must be 512Mi or more, got {self.limits['memory']}")
        if self.requests.get("memory", self.limits["memory"]) != self.limits["memory"]:
            raise ValueError("requests.memory must equal limits.memory, or be left out")
        return self

    def manifest(self) -> Manifest:
        """As Kubernetes takes them: what is not requested is requested up to its limit."""
        return {"limits": self.limits, "requests": self.limits | self.requests}


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=53)]
SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(not_a_secret)]
ONE_CPU = {"cpu": "1"}


class KubernetesConfig(ClusterConfig):
    """Where and how pods run. Keys that ``dask_kubernetes.KubeCluster`` has mean here what they mean there.

    Parameters
    ----------
    name : of the DaskCluster, where no Job of a coordinator gives another
    image : container image with dpdist, ``dask`` on its PATH, for all pods
    python : interpreter in the image
    n_workers : pods with one worker of one thread each
    resources, scheduler_resources, coordinator_resources : of the containers
    env : environment of all pods; no secrets
    env_from_secret : Kubernetes Secrets whose keys become environment variables of all pods
    certificates_secret : Kubernetes Secret with the files that ``dpdist certificates`` writes, without ``ca.key``
    service_account : of all pods; only the coordinator's speaks to the Kubernetes API
    run_as_user : number of the user and the group of all processes
    volumes, volume_mounts : of all pods, as Kubernetes takes them
    resource_timeout : seconds to wait for the operator, the pods and the scheduler
    termination_grace_period : seconds the coordinator has for a last checkpoint
    backoff_limit : failures of the coordinator, evictions not counted, before its Job is given up
    ttl_seconds_after_finished : how long a finished Job is kept
    """

    library: ClassVar[tuple[str, str] | None] = ("dask_kubernetes", "kubernetes")

    type: Literal["kubernetes"] = "kubernetes"
    security: SecurityConfig = SecurityConfig(certificates=CERTIFICATES)
    name: Name = "dpdist"
    namespace: Name = "default"
    image: Annotated[str, Field(min_length=1)]
    python: Annotated[str, Field(min_length=1)] = "python"
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[SecretName, ...] = ()
    n_workers: Count = 2
    resources: Resources = Resources(limits={"memory": "4Gi"}, requests=ONE_CPU)
    scheduler_resources: Resources = Resources(limits={"memory": "4Gi"}, requests=ONE_CPU)
    coordinator_resources: Resources = Resources(limits={"memory": "8Gi"}, requests=ONE_CPU)
    env: dict[Variable, str] = Field(default_factory=dict)
    env_from_secret: tuple[SecretName, ...] = ()
    scheduler_service_type: Literal["ClusterIP"] = "ClusterIP"
    certificates_secret: SecretName | None = None
    service_account: Name = "dpdist"
    run_as_user: Annotated[int, Field(ge=1)] = 1000
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    volumes: tuple[Manifest, ...] = ()
    volume_mounts: tuple[Manifest, ...] = ()
    resource_timeout: Positive = 600.0
    termination_grace_period: Annotated[int, Field(ge=30)] = 300
    backoff_limit: Annotated[int, Field(ge=0)] = 6
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] = 86_400

    @model_validator(mode="after")
    def _certificates_are_in_a_secret(self) -> Self:
        if not self.security.tls:
            return self
        if self.security.certificates != CERTIFICATES:
            raise ValueError(
                "certificates reach pods by certificates_secret, not by files: leave them out of [security]"
            )
        if self.certificates_secret is None:
            raise ValueError(
                "certificates_secret is needed: make certificates with `dpdist certificates FOLDER`, move ca.key out "
                "of it, run `kubectl create secret generic NAME --from-file=FOLDER` and give NAME; or say tls = false "
                "under [security] to go without"
            )
        return self

    @property
    def expected(self) -> int | None:
        return self.n_workers

    def launch(self) -> DaskBackend:
        """Create the DaskCluster and connect to it; to be called in a pod of the same Kubernetes cluster.

        A DaskCluster that an earlier pod of the same Job left behind is replaced; anyone else's is left alone.

        Raises
        ------
        InputError
            If there is no worker within ``resource_timeout``: what is missing, in Kubernetes' words.
        """
        self.require()
        config = self.model_copy(update={"name": os.environ.get(JOB_NAME) or self.name})
        security, until = self.tls(("client",)), time.monotonic() + self.resource_timeout
        with kubernetes(config.namespace) as api, contextlib.ExitStack() as undo:
            created = _created(api, owned(cluster_manifest(config), os.environ), until)
            undo.callback(delete, created)
            _wait_for_operator(created, config, until)
            client = undo.enter_context(_connected(api, config, security, until))
            backend = KubernetesBackend(client, created, self.limits())
            undo.pop_all()
        return backend

    def certificate_faults(self) -> list[str]:
        """None is known of here: the files are in a Secret, which only pods see."""
        return []

    def check_run_path(self, out: str) -> None:
        check_shared(out, self.volumes, self.volume_mounts)

    def tls(self, roles: Sequence[Role] = ("client",)) -> Security | None:
        """Mutual TLS with the certificates mounted into this pod.

        Kubernetes gives their keys to a group (mode 0440) that is the process's own alone, so that the mode asked of
        key files elsewhere cannot be asked here.
        """
        if not self.encrypted:
            return super().tls(roles)
        try:
            security = Security(**{key: path for role in roles for key, path in self.security.options(role).items()})
            for role in roles:
                security.get_connection_args(role)
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"the certificates in {CERTIFICATES} do not load ({error}); schedulers of clusters of type kubernetes "
                f"are reached from a pod, as dpdist submit makes, with the Secret {self.certificates_secret} mounted "
                "there."
            ) from error
        return security


class KubernetesBackend(DaskBackend):
    """Tasks on a DaskCluster, which is deleted when the backend is closed."""

    def __init__(self, client: Client, created: Any, limits: Limits) -> None:
        super().__init__(client, owned=True, limits=limits)
        self._created = created

    def close(self) -> None:
        super().close()
        try:
            with kubernetes(self._created.namespace):
                delete(self._created)
        except InputError as error:
            warnings.warn(f"the DaskCluster {self._created.name} was not deleted: {error}", UserWarning, stacklevel=2)


def owned(manifest: Manifest, variables: Mapping[str, str]) -> Manifest:
    """The resource as property of the coordinator's Job, if `variables` name one: deleted with it at the latest."""
    if not variables.get(JOB_UID):
        return manifest
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": variables[JOB_NAME], "uid": variables[JOB_UID]}
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


def _created(api: Any, manifest: Manifest, until: float) -> Any:
    """The new DaskCluster, in place of one that has the same owner."""
    metadata = manifest["metadata"]
    name, namespace, owners = metadata["name"], metadata["namespace"], metadata.get("ownerReferences")
    before = named(api, "DaskCluster", name, namespace)
    if before is not None:
        found = before.raw["metadata"]
        if not found.get("deletionTimestamp") and (owners is None or found.get("ownerReferences") != owners):
            raise InputError(
                f"there is a DaskCluster {name} in namespace {namespace} already; choose another name, "
                f"or delete it with: kubectl delete daskcluster {name} -n {namespace}"
            )
        delete(before)
        while named(api, "DaskCluster", name, namespace) is not None:
            _pause(until, f"the DaskCluster {name} of an earlier attempt is not gone")
    created = kubernetes_object(api, "DaskCluster", manifest)
    created.create()
    return created


def _wait_for_operator(created: Any, config: KubernetesConfig, until: float) -> None:
    """Until the operator has taken up the DaskCluster."""
    while created.raw.get("status", {}).get("phase") != "Running":
        _pause(until, f"the Dask operator has not taken up the DaskCluster {config.name}; is it installed and running?")
        created.refresh()


def _connected(api: Any, config: KubernetesConfig, security: Security | None, until: float) -> Client:
    """A client of the scheduler, once it has a worker."""
    address, client = scheduler_address(config), None
    try:
        client = Client(address, timeout=_left(until), security=security, set_as_default=False)
        client.wait_for_workers(1, timeout=_left(until))
    except (OSError, TimeoutError) as error:
        if client is not None:
            client.close()
        pods = pods_of(api, config.namespace, f"dask.org/cluster-name={config.name}")
        reasons = "; ".join(troubles(pods)) or "pods report no trouble; does this process run in the same cluster?"
        raise InputError(
            f"no worker of the DaskCluster {config.name} was there at {address} within {config.resource_timeout:g} s "
            f"({reasons})."
        ) from error
    return client


def _left(until: float) -> float:
    """Seconds left; raises TimeoutError if there are none."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _pause(until: float, complaint: str) -> None:
    """Wait a little, or give up with a sentence."""
    if time.monotonic() > until:
        raise InputError(f"{complaint} (waited as long as resource_timeout says).")
    time.sleep(POLL_SECONDS)
