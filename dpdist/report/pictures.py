"""Pictures of clusters and rows, as PNG data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from matplotlib.image import imsave


def shade(values: Sequence[Sequence[float]], directions: bool) -> tuple[float, float]:
    """The values shown as black and white; for directions, zero is grey."""
    low, high = float(np.min(values)), float(np.max(values))
    return (-max(-low, high), max(-low, high)) if directions else (low, high)


def as_image(values: Sequence[float], shape: Sequence[int], shades: tuple[float, float]) -> np.ndarray:
    """Brightness (height, width) or (height, width, 3), from 0 to 1."""
    low, high = shades
    image = np.clip((np.reshape(values, tuple(shape)) - low) / ((high - low) or 1.0), 0.0, 1.0)
    return image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image


def address(image: np.ndarray) -> str:
    """The data URL of a picture."""
    told = io.BytesIO()
    imsave(told, image, cmap="gray", vmin=0.0, vmax=1.0, format="png")
    return "data:image/png;base64," + base64.b64encode(told.getvalue()).decode()
