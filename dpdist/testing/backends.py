"""The law of backends: results equal to those of the serial backend."""

from __future__ import annotations

import numpy as np

from dpdist.execution import Backend, SerialBackend


def check_backend(backend: Backend) -> None:
    """Check that a backend gives the bits of the serial backend."""
    serial, values = SerialBackend(), [10.0**k for k in range(-6, 7)] * 2
    results = []
    for each in (serial, backend):
        shared = each.share(np.arange(4.0))
        refs = each.map(_scaled, [shared] * len(values), values)
        labelled = each.share(values, label="the values")
        totals = [each.total(_scaled, [shared] * len(values), values) for _ in range(3)]
        results.append(each.fetch([each.sum(refs), *totals, *refs, each.map(np.asarray, [labelled])[0]]))
    for mine, meant in zip(results[1], results[0], strict=True):
        assert mine.tobytes() == meant.tobytes(), "a backend gives the same bits as the serial backend"


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return factor * array
