"""What can be chosen of a cluster on Kubernetes: image, pods, resources, volumes and who may do what."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dpdist.cluster.kinds.base import ClusterConfig, Count, Positive, in_bytes
from dpdist.cluster.kinds.security import SecurityConfig
from dpdist.core.errors import InputError

Manifest = dict[str, Any]

#: Where pods find their certificates.
CERTIFICATES = "/etc/dpdist/certificates"
#: Kept free of a worker pod's memory, for the nanny beside the worker.
NANNY_BYTES = 256 * 2**20
SECRET_WORDS = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE)


def _not_a_secret(name: str) -> str:
    """The name of an environment variable; only that is looked at, so that no error can show the value."""
    if SECRET_WORDS.search(name):
        raise ValueError(
            f"{name} looks like a secret, and its value would stand in manifests for all to read; "
            "put it into a Kubernetes Secret and name that under envFrom in [container]"
        )
    return name


def _quantity(value: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?([KMGT]i|[kMG])?", value) or in_bytes(value) < 2 * NANNY_BYTES:
        raise ValueError("should be a quantity of memory such as 4Gi, 512Mi or more")
    return value


class Resources(BaseModel):
    """What a container gets. Its memory is requested in full, so that no node promises it twice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory: Annotated[str, AfterValidator(_quantity)] = "4Gi"
    cpu: str = "1"

    def manifest(self) -> Manifest:
        """As Kubernetes takes it."""
        return {"limits": {"memory": self.memory}, "requests": {"memory": self.memory, "cpu": self.cpu}}


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=53)]
SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_not_a_secret)]


class PodSettings(ClusterConfig):
    """Where and how pods run.

    Parameters
    ----------
    name : of the DaskCluster, where no Job of a coordinator gives another
    image : container image with dpdist, ``dask`` on its PATH, for all pods
    python : interpreter in the image
    n_workers : pods with one worker of one thread each
    resources, scheduler_resources, coordinator_resources : of the containers
    env : environment of all pods; no secrets
    pod, container : what else all pods and their containers have, as Kubernetes takes it, such as ``nodeSelector`` and
        ``volumes``, ``envFrom`` and ``volumeMounts``
    certificates_secret : Kubernetes Secret with the files that ``dpdist certificates`` writes, without ``ca.key``
    service_account : of all pods; only the coordinator's speaks to the Kubernetes API
    run_as_user : number of the user and the group of all processes
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
                "certificates reach pods by certificates_secret, not by files: leave them out of [security]"
            )
        if self.security.tls and self.certificates_secret is None:
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
        lost = {volume.get("name") for volume in self.pod.get("volumes", ()) if "emptyDir" in volume}
        shared = [
            mount["mountPath"]
            for mount in self.container.get("volumeMounts", ())
            if not mount.get("readOnly") and mount.get("name") not in lost
        ]
        if not out.startswith("s3://") and not any(PurePosixPath(out).is_relative_to(place) for place in shared):
            raise InputError(
                f"pods share no folder for {out} that outlives them and can be written: give an out such as "
                "s3://BUCKET/NAME, or an absolute path below a mountPath under volumeMounts in [container]."
            )
