"""What every kind of cluster has: settings as plain values, checked with sentences, and one way to start it."""

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
#: Other users of a host do not see its dashboard unless the configuration says so.
HIDDEN_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


#: Bytes that a worker has at least.
LEAST_MEMORY = 500_000_000


def is_size(value: str) -> str:
    """The amount of memory itself, if it is one; else :class:`ValueError`."""
    try:
        if in_bytes(value) > 0 and value[:1].isdigit():
            return value
    except ValueError:
        pass
    raise ValueError("should be a size such as '4GB'")


def is_worker_memory(value: str) -> str:
    """The memory of a process itself, if it is an amount that one can live with; else :class:`ValueError`."""
    if in_bytes(is_size(value)) < LEAST_MEMORY:
        raise ValueError("should be a size such as '4GB', 500MB at least, most of which libraries take")
    return value


def in_bytes(size: str) -> int:
    """Bytes in a size such as ``4GB`` or ``4Gi``."""
    return int(dask.utils.parse_bytes(size))


#: An amount of memory as Dask takes it, such as ``4GB``.
Memory = Annotated[str, AfterValidator(is_size)]


class ClusterConfig(BaseModel, ABC):
    """Where a run is computed, as a file of ``cluster_configs/`` says it.

    Parameters
    ----------
    type : the kind of cluster
    security : mutual TLS; needed by every kind with `roles`
    stuck_after : seconds after which a worker that does not come forward is restarted
    patience : seconds to wait for a cluster without workers, or a scheduler that does not answer

    Attributes
    ----------
    library : module and the extra that installs it, if the kind needs more than dpdist itself
    roles : parts of the cluster that need certificates; none if it never leaves loopback
    submitted_as : kind of the job that ``dpdist submit`` makes of a run's coordinator
    private_keys : whether files of keys have to be their owner's alone
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
        """Start what is needed and connect; closing the backend closes what was started.

        Raises
        ------
        InputError
            If a library or certificate is missing, or the cluster cannot be reached or started: what to do.
        """

    @property
    def expected(self) -> int | None:
        """Workers that the configuration asks for; None if others start them."""
        return None

    @property
    def certificates(self) -> Path | None:
        """Folder of certificates that can be looked at from here; None if there is none."""
        return self.security.folder if self.security is not None and self.security.tls else None

    def require(self) -> None:
        """Raise :class:`InputError`, naming the command that installs it, if a library is missing."""
        if self.library is not None and importlib.util.find_spec(self.library[0]) is None:
            module, extra = self.library
            raise InputError(
                f"cluster type {self.type} needs {module}, which is not installed: pip install 'dpdist[{extra}]'."
            )

    def check_run_path(self, out: str) -> None:
        """Raise :class:`InputError` unless the coordinator, wherever it runs, can write a run at `out`."""

    def watch(self, address: str, timeout: float = 5.0) -> Client:
        """A client of a run's scheduler, to look on; raises :class:`InputError` if it cannot be reached."""
        return client_of(address, timeout, self.tls(("client",)))

    def settings(self) -> dict[str, object]:
        """Dask's settings for scheduler and workers of this cluster."""
        return worker_settings(self.stuck_after)

    def in_force(self) -> contextlib.AbstractContextManager[object]:
        """Dask's settings in this process, for a scheduler that starts here."""
        settings: contextlib.AbstractContextManager[object] = dask.config.set(self.settings())
        return settings

    def limits(self) -> TaskLimits:
        """How long to wait and how often to try."""
        return TaskLimits(stuck_after=self.stuck_after, patience=self.patience)

    def variables(self) -> dict[str, str]:
        """Environment variables that bring the settings to processes on other hosts."""
        return {**worker_environment(), **as_variables(self.settings())}

    def tls(self, roles: Sequence[Role] = ROLES) -> Security | None:
        """Mutual TLS for these roles in this process; None, with a warning, where the configuration switched it off."""
        if self.security is None:
            return None
        if self.security.tls:
            return self.security.security(roles, self.private_keys)
        warnings.warn(
            f"cluster type {self.type} runs without TLS, as its configuration says: whoever reaches its ports can "
            "read the data and run programs as you.",
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
                raise ValueError(f"cluster type {self.type} stays on loopback and takes no [security]: remove it")
            return self
        if self.security is None:
            raise ValueError(
                f"cluster type {self.type} needs mutual TLS: make certificates with `dpdist certificates FOLDER` and "
                'put certificates = "FOLDER" under [security], or tls = false there to go without'
            )
        return self


def as_variables(settings: Mapping[str, object]) -> dict[str, str]:
    """Dask's settings as the environment variables that Dask reads."""
    return {
        "DASK_" + name.upper().replace(".", "__").replace("-", "_"): value if isinstance(value, str) else repr(value)
        for name, value in settings.items()
    }


Config = TypeVar("Config", bound=ClusterConfig)


def validated(kind: type[Config], values: Mapping[str, object], folder: str | Path = ".") -> Config:
    """The configuration in plain values, where paths start at `folder`; :class:`InputError` tells the first fault."""
    try:
        return kind.model_validate(dict(values), context={"folder": str(folder)})
    except ValidationError as error:
        raise InputError(_sentence(kind, error)) from None


def _sentence(kind: type[ClusterConfig], error: ValidationError) -> str:
    """Of the first fault. Tables are not repeated: what a person put there by mistake may be a secret."""
    first = error.errors(include_url=False)[0]
    # Pydantic adds the kinds that a value was tried as.
    place = ".".join(str(part) for part in first["loc"] if not re.search(r"[\[(]|^str$", str(part)))
    start = f"cluster configuration, setting {place}" if place else "cluster configuration"
    if first["type"] == "missing":
        return f"{start}: it is needed and not there."
    if first["type"] == "extra_forbidden":
        top = f"; known are {', '.join(kind.model_fields)}" if len(first["loc"]) == 1 else ""
        return f"{start}: there is no such setting{top}."
    given, what = first["input"], first["msg"].removeprefix("Value error, ").rstrip(".")
    came = f"; got {given!r}" if place and isinstance(given, str | int | float | bool) else ""
    return f"{start}: {what}{came}."
