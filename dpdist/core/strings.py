"""Strings as two arrays that any reader of arrays can use: concatenated UTF-8, and the offset of each string."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def join_strings(strings: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The UTF-8 of n strings (bytes,) uint8, and the offset of each and of the end (n + 1,) int64."""
    encoded = [each.encode() for each in strings]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)], dtype=np.int64)


def part_strings(text: np.ndarray, offsets: np.ndarray) -> list[str]:
    """The strings that :func:`join_strings` joined."""
    whole = text.tobytes()
    return [whole[start:stop].decode() for start, stop in itertools.pairwise(offsets.tolist())]
