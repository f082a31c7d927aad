"""One seed; every draw comes from a generator keyed by what it is for, never by when or where it is made."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator for `purpose` and `keys` (lap, partition, component id...), of which a purpose has a fixed number:
    zeros at their end draw what fewer keys do."""
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, word, *keys])))
