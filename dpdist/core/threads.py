"""One BLAS thread inside the numerical steps: two thread counts give different bits."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """A context in which every BLAS of this process runs on one thread."""
    limits: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limits
