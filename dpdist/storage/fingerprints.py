"""What a run keeps of the data and versions that it began with, and whether they are the same now."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from dpdist.core.digests import digest_of
from dpdist.core.errors import CheckpointError
from dpdist.core.versions import versions
from dpdist.data.base import DIGESTS, Source


def require_same_identity(before: Mapping[str, object], source: Source, path: str) -> None:
    """Raise :class:`CheckpointError` unless data have the identity that they had when the run at `path` began."""
    now = source.identity()
    changed = [name for name in before if before[name] != now.get(name)]
    if changed:
        told = "; ".join(f"{name} was {before[name]}, is {now.get(name)}" for name in changed)
        raise CheckpointError(
            f"the data changed since the checkpoint in {path} ({told}); "
            "give the data it began with, or start a new run."
        )


def warn_of_versions(then: Mapping[str, str]) -> None:
    """Warn if a run began with other versions than there are now."""
    now = versions()
    other = [f"{name} {then.get(name)} -> {now[name]}" for name in now if now[name] != then.get(name)]
    if other:
        warnings.warn(
            f"resuming with other versions than the run began with ({', '.join(other)}): "
            "results are right, but not to the same bits.",
            stacklevel=4,
        )


def digest_of_data(fingerprint: Mapping[str, object]) -> str:
    """One digest of data that have a fingerprint."""
    return digest_of(" ".join(digests_in(fingerprint)).encode())


def digests_in(fingerprint: Mapping[str, object]) -> list[str]:
    """Digests of the partitions of data that have a fingerprint."""
    digests = fingerprint[DIGESTS]
    assert isinstance(digests, list), "a digest of each partition"
    return digests
