"""Everything in this process, one call after the other: the meaning of every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dpdist.execution.base import Backend, Ref, add_results


class SerialBackend(Backend):
    """Runs each call at once; a ref is the value itself."""

    def share(self, value: Any, label: str | None = None) -> Ref:
        return value

    def map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Ref]:
        return [function(*row) for row in zip(*columns, strict=True)]

    def total(self, function: Callable[..., Any], *columns: Sequence[Any]) -> Ref:
        return add_results(function, *columns)

    def fetch(self, refs: Sequence[Ref]) -> list[Any]:
        return list(refs)
