"""The base of all kinds of clusters: checked settings as plain values, and a common way to launch."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

import dask.utils
from distributed import Client, Security
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dpdist.cluster.certificates import ROLES, Role
from dpdist.cluster.kinds.security import SecurityConfig
from dpdist.core.errors import InputError
from dpdist.execution.connecting import client_of
from dpdist.execution.dask import DaskBackend
from dpdist.execution.faults import TaskLimits
from dpdist.execution.settings import worker_environment, worker_settings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
#: Options that hide the dashboard from other users of a host, unless the configuration says otherwise.
HIDDEN_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


#: Least memory of a worker, in bytes.
LEAST_MEMORY = 500_000_000


def is_size(value: str) -> str:
    """The amount of memory, if it is valid; else raises :class:`ValueError`."""
    try:
        if in_bytes(value) > 0 and value[:1].isdigit():
            return value
    except ValueError:
        pass
    raise ValueError("should be a size such as '4GB'")


def is_worker_memory(value: str) -> str:
    """The memory of a process, if it is valid and sufficient; else raises :class:`ValueError`."""
    if in_bytes(is_size(value)) < LEAST_MEMORY:
        raise ValueError("should be a size such as '4GB', at least 500MB, because libraries take most of that")
    return value


def in_bytes(size: str) -> int:
    """Bytes in a size such as ``4GB`` or ``4Gi``."""
    return int(dask.utils.parse_bytes(size))


#: An amount of memory in Dask's notation, such as ``4GB``.
Memory = Annotated[str, AfterValidator(is_size)]


class ClusterConfig(BaseModel, ABC):
    """The configuration of a cluster, as in the files of ``cluster_configs/``.

    Parameters
    ----------
    type : the kind of cluster
    security : mutual TLS; required by every kind with `roles`
    stuck_after : seconds after which an unresponsive worker is restarted
    patience : seconds to wait for a cluster without workers, or a scheduler that does not answer

    Attributes
    ----------
    library : module that the kind needs, and the extra that installs it
    roles : roles that need certificates; empty if the cluster never leaves loopback
    submitted_as : kind of job in which ``dpdist submit`` runs the coordinator
    private_keys : whether key files must be readable by their owner only
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    library: ClassVar[tuple[str, str] | None] = None
    roles: ClassVar[tuple[Role, ...]] = ROLES
    submitted_as: ClassVar[str] = "process"
    private_keys: ClassVar[bool] = True

    type: str
    security: SecurityConfig | None = None
    stuck_after: Positive = TaskLimits.stuck_after
    patience: Positive = TaskLimits.patience

    @abstractmethod
    def launch(self) -> DaskBackend:
        """Start the cluster and connect to it; closing the backend closes everything that was started. Raises
        :class:`InputError` if a library or certificate is missing, or the cluster cannot be reached or started."""

    @property
    def expected(self) -> int | None:
        """Number of workers in the configuration; None if they are started elsewhere."""
        return None

    @property
    def certificates(self) -> Path | None:
        """Folder of certificates on this machine; None if there is none."""
        return self.security.folder if self.security is not None and self.security.tls else None

    def require(self) -> None:
        """Raise :class:`InputError`, with the command to install it, if a library is missing."""
        if self.library is not None and importlib.util.find_spec(self.library[0]) is None:
            module, extra = self.library
            raise InputError(
                f"cluster type {self.type} needs {module}, which is not installed: pip install 'dpdist[{extra}]'."
            )

    def check_run_path(self, out: str) -> None:
        """Raise :class:`InputError` unless the coordinator, wherever it runs, can write a run at `out`."""

    def watch(self, address: str, timeout: float = 5.0) -> Client:
        """A client of a run's scheduler, for following the run; raises :class:`InputError` if it cannot be reached."""
        return client_of(address, timeout, self.tls(("client",)))

    def settings(self) -> dict[str, object]:
        """Dask's settings for the scheduler and workers of this cluster."""
        return worker_settings(self.stuck_after)

    def in_force(self) -> contextlib.AbstractContextManager[object]:
        """A context with Dask's settings in this process, for a scheduler that starts here."""
        settings: contextlib.AbstractContextManager[object] = dask.config.set(self.settings())
        return settings

    def limits(self) -> TaskLimits:
        """Limits of waiting times and tries."""
        return TaskLimits(stuck_after=self.stuck_after, patience=self.patience)

    def variables(self) -> dict[str, str]:
        """Environment variables that pass the settings to processes on other hosts."""
        return {**worker_environment(), **as_variables(self.settings())}

    def tls(self, roles: Sequence[Role] = ROLES) -> Security | None:
        """Mutual TLS for these roles in this process; None, with a warning, if the configuration switches it off."""
        if self.security is None:
            return None
        if self.security.tls:
            return self.security.security(roles, self.private_keys)
        warnings.warn(
            f"cluster type {self.type} runs without TLS, as configured: everyone who can reach its ports can read the "
            "data and run programs as you.",
            UserWarning,
            stacklevel=3,
        )
        return None

    @property
    def encrypted(self) -> bool:
        """Whether all connections use mutual TLS."""
        return self.security is not None and self.security.tls

    @model_validator(mode="after")
    def _is_secured(self) -> Self:
        if not self.roles:
            if self.security is not None:
                raise ValueError(f"cluster type {self.type} uses only loopback and takes no [security]: remove it")
            return self
        if self.security is None:
            raise ValueError(
                f"cluster type {self.type} needs mutual TLS: make certificates with `dpdist certificates FOLDER` and "
                'put certificates = "FOLDER" under [security], or tls = false there to run without TLS'
            )
        return self


def as_variables(settings: Mapping[str, object]) -> dict[str, str]:
    """Dask's settings as environment variables that Dask reads."""
    return {
        "DASK_" + name.upper().replace(".", "__").replace("-", "_"): value if isinstance(value, str) else repr(value)
        for name, value in settings.items()
    }


Config = TypeVar("Config", bound=ClusterConfig)


def validated(kind: type[Config], values: Mapping[str, object], folder: str | Path = ".") -> Config:
    """The configuration in plain values, with paths relative to `folder`; raises :class:`InputError` for the first
    fault."""
    try:
        return kind.model_validate(dict(values), context={"folder": str(folder)})
    except ValidationError as error:
        raise InputError(_sentence(kind, error)) from None


def _sentence(kind: type[ClusterConfig], error: ValidationError) -> str:
    """A message about the first fault. Tables are not shown, as they may contain a secret by mistake."""
    first = error.errors(include_url=False)[0]
    # Pydantic adds the types that it tried for a value.
    place = ".".join(str(part) for part in first["loc"] if not re.search(r"[\[(]|^str$", str(part)))
    start = f"cluster configuration, setting {place}" if place else "cluster configuration"
    if first["type"] == "missing":
        return f"{start}: it is required, but missing."
    if first["type"] == "extra_forbidden":
        top = f"; known settings are {', '.join(kind.model_fields)}" if len(first["loc"]) == 1 else ""
        return f"{start}: there is no such setting{top}."
    given, what = first["input"], first["msg"].removeprefix("Value error, ").rstrip(".")
    came = f"; got {given!r}" if place and isinstance(given, str | int | float | bool) else ""
    return f"{start}: {what}{came}."
