"""The backend that runs every call at once in this process; it defines the meaning of all backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from dpdist.execution.base import Backend, Ref, Value, add_results


class SerialBackend(Backend):
    """Runs each call at once; a ref is the value itself."""

    def share(self, value: Value, label: str | None = None) -> Ref[Value]:
        return value

    def map(self, function: Callable[..., Value], *columns: Sequence[object]) -> list[Ref[Value]]:
        return [function(*row) for row in zip(*columns, strict=True)]

    def total(self, function: Callable[..., Value], *columns: Sequence[object]) -> Ref[Value]:
        return add_results(function, *columns)

    def fetch(self, refs: Sequence[Ref[Value]]) -> list[Value]:
        return cast(list[Value], list(refs))
