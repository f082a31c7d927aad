"""What can be chosen of a cluster on Kubernetes: image, pods, resources, volumes and who may do what."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dpdist.cluster.kinds.base import ClusterConfig, Count, Positive
from dpdist.cluster.kinds.security import SecurityConfig
from dpdist.core.errors import InputError

Manifest = dict[str, Any]

#: Where pods find their certificates.
CERTIFICATES = "/etc/dpdist/certificates"
#: Kept free of a worker pod's memory, for the nanny beside the worker.
NANNY_BYTES = 256 * 2**20
#: Kubernetes' suffixes of quantities.
SUFFIXES = {"": 1, "k": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|)")


def in_bytes(quantity: str) -> int:
    """Bytes in a Kubernetes quantity such as ``4Gi``; raises :class:`InputError` for anything else."""
    found = QUANTITY.fullmatch(quantity)
    if found is None:
        raise InputError(f"a quantity of memory such as 4Gi or 500M was expected, got {quantity!r}")
    return int(Decimal(found[1]) * SUFFIXES[found[2]])


SECRET_WORDS = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)


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


class PodSettings(ClusterConfig):
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
    submitted_as: ClassVar[str] = "kubernetes"

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

    def check_run_path(self, out: str) -> None:
        """Raise :class:`InputError` unless every pod, wherever it runs, finds the run at `out` and may write there."""
        if out.startswith("s3://"):
            return
        above = [
            mount for mount in self.volume_mounts if PurePosixPath(out).is_relative_to(str(mount.get("mountPath")))
        ]
        if not above:
            raise InputError(
                f"pods share no folder for {out}: give an out such as s3://BUCKET/NAME, or an absolute path below a "
                "mountPath of volume_mounts in the cluster configuration."
            )
        deepest = max(above, key=lambda mount: len(str(mount["mountPath"])))
        lost = {volume.get("name") for volume in self.volumes if "emptyDir" in volume}
        if deepest.get("readOnly") or deepest.get("name") in lost:
            why = "is read-only" if deepest.get("readOnly") else "is an emptyDir, which ends with its pod"
            raise InputError(
                f"the volume {deepest.get('name')} at {deepest['mountPath']} {why}, so that {out} cannot hold the run; "
                "give a volume that all pods can write to, or an out such as s3://BUCKET/NAME."
            )
