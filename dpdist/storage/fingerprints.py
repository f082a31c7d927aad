"""The fingerprint of a run's data and the package versions, and checks whether they are unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from dpdist.core.digests import digest_of
from dpdist.core.errors import CheckpointError
from dpdist.core.versions import versions
from dpdist.data.base import DIGESTS, Source


def require_same_identity(before: Mapping[str, object], source: Source, path: str) -> None:
    """Raise :class:`CheckpointError` unless the data have the identity stored when the run at `path` began."""
    now = source.identity()
    changed = [name for name in before if before[name] != now.get(name)]
    if changed:
        told = "; ".join(f"{name} was {before[name]}, is {now.get(name)}" for name in changed)
        raise CheckpointError(
            f"the data changed since the checkpoint in {path} ({told}); give the original data, or start a new run."
        )


def warn_of_versions(then: Mapping[str, str]) -> None:
    """Warn if package versions differ from those of the run."""
    now = versions()
    other = [f"{name} {then.get(name)} -> {now[name]}" for name in now if now[name] != then.get(name)]
    if other:
        warnings.warn(
            f"package versions changed since the start of the run ({', '.join(other)}): "
            "results are correct, but not bit-identical.",
            stacklevel=4,
        )


def digest_of_data(fingerprint: Mapping[str, object]) -> str:
    """A single digest of data with this fingerprint."""
    return digest_of(" ".join(digests_in(fingerprint)).encode())


def digests_in(fingerprint: Mapping[str, object]) -> list[str]:
    """Digests of the partitions of data with this fingerprint."""
    digests = fingerprint[DIGESTS]
    assert isinstance(digests, list), "a digest of each partition"
    return digests
