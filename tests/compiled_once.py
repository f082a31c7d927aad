"""Processes that run tests side by side compile each kernel once: the others wait for it, and load it then."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Any

from dpdist.kernels import jit

#: Seconds after which a process compiles a kernel itself.
PATIENCE = 60.0


class WaitingCache(jit._Cache):
    """Holds a lock from not finding a kernel until it is stored."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._locks: dict[Any, Any] = {}

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None and self._lock(sig):
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._locks.pop(sig).close()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        super().save_overload(sig, data)
        if sig in self._locks:
            self._locks.pop(sig).close()

    def _lock(self, sig: Any) -> bool:
        """Whether the lock is held; its file is closed, and the lock given up, when the kernel is stored."""
        folder = Path(self._cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        held = (folder / f"{self._cache_file._index_name}.lock").open("w")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            else:
                self._locks[sig] = held
                return True
        held.close()
        return False


# For kernels defined from now on, in this process and its copies.
jit._Cache = WaitingCache  # type: ignore[misc]
