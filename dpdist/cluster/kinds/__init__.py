"""Kinds of clusters, by the ``type`` in a configuration."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from dpdist.cluster.kinds.base import ClusterConfig, validated
from dpdist.cluster.kinds.kubernetes import KubernetesConfig
from dpdist.cluster.kinds.local import LocalConfig
from dpdist.cluster.kinds.scheduler import SchedulerConfig
from dpdist.cluster.kinds.security import SecurityConfig, refuse_secrets
from dpdist.cluster.kinds.slurm import SlurmConfig
from dpdist.cluster.kinds.ssh import SSHConfig
from dpdist.core.errors import InputError

__all__ = ["CLUSTERS", "ClusterConfig", "SecurityConfig", "parse_cluster", "read_cluster"]

#: Kinds by type; a new kind is added here.
CLUSTERS: dict[str, type[ClusterConfig]] = {
    "kubernetes": KubernetesConfig,
    "local": LocalConfig,
    "scheduler": SchedulerConfig,
    "slurm": SlurmConfig,
    "ssh": SSHConfig,
}


def read_cluster(path: str | os.PathLike[str]) -> ClusterConfig:
    """The cluster that a TOML file describes; paths in it are relative to the file. Raises :class:`InputError` if the
    file cannot be read or an entry is wrong; the message names the entry, what is expected, and its value."""
    file = Path(path)
    try:
        return parse_cluster(tomllib.loads(file.read_text()), file.parent)
    except OSError as error:
        raise InputError(f"the cluster configuration {file} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the cluster configuration {file} is not TOML ({error}).") from error
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def parse_cluster(values: Mapping[str, object], folder: str | os.PathLike[str] = ".") -> ClusterConfig:
    """The cluster in plain values, such as from ``model_dump(mode="json")``, with paths of files relative to `folder`;
    raises as :func:`read_cluster`."""
    kind, known = values.get("type"), ", ".join(sorted(CLUSTERS))
    if kind is None:
        raise InputError(f"a cluster configuration needs a type; known types are {known}.")
    if not isinstance(kind, str) or kind not in CLUSTERS:
        raise InputError(f"cluster type {kind!r} is not known; known types are {known}.")
    refuse_secrets(dict(values))
    return validated(CLUSTERS[kind], values, Path(folder))
