"""Random numbers: each generator is seeded by the run's seed and its purpose, never by the time or place of use."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator for `purpose` and `keys` (lap, partition, component id, ...). Each purpose must use a fixed number
    of keys, because trailing zeros give the same numbers as fewer keys."""
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, word, *keys])))
