"""Dense SIFT vectors of pictures at several scales and rotations, where every row is determined by its number.

A vector describes 32x32 pixels: a keypoint of size 32/6 in OpenCV, whose support is six times that, 16 px or more from
the border. A *view* is a picture at one scale with keypoints of one rotation, one at every pixel. The points of a view
are cut, in random order, into *pieces* of equal size; the pieces of all views, in random order, are the rows. So any
number of first rows represents all pictures, a larger number extends a smaller one, and a row's number determines its
picture and place.

Needs ``pip install opencv-python-headless``.

Source: Lowe (2004), Distinctive image features from scale-invariant keypoints; Martin et al. (2001) for the pictures.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

#: Width of the patch that a vector describes, and distance of its centre from the border, in pixels.
SIDE, MARGIN = 32, 16
#: OpenCV looks at six keypoint sizes.
KEYPOINT_SIZE = SIDE / 6
COLUMNS = 128
#: Sides of a view as shares of the picture's, and rotations of its keypoints in degrees.
SCALES = (1.0, 0.5**0.5, 0.5)
ANGLES = (0.0, 60.0, 120.0, 180.0, 240.0, 300.0)


class Collection(NamedTuple):
    """Pictures by number in a folder, points of a piece, and the key of all random orders."""

    folder: str
    numbers: tuple[int, ...]
    piece: int = 4096
    seed: int = 0


class Places(NamedTuple):
    """Where vectors are: picture's number, scale, angle, and centre in pixels of the scaled picture, (n,) each."""

    picture: np.ndarray
    scale: np.ndarray
    angle: np.ndarray
    y: np.ndarray
    x: np.ndarray


def opencv() -> ModuleType:
    """The module cv2, on one thread; exits with a sentence if it is not installed."""
    try:
        import cv2
    except ImportError:
        raise SystemExit("this workflow needs OpenCV; install it with: pip install opencv-python-headless") from None
    cv2.setNumThreads(1)
    return cv2


def has_pictures(folder: Path) -> bool:
    """Whether training and held-out pictures are there."""
    return all(any((folder / part).glob("*.jpg")) for part in ("train", "test"))


def draw_pictures(folder: Path, each: int, shape: tuple[int, int]) -> Path:
    """Pictures of blurred noise in place of the real ones, as JPEG files in the same layout; their folder."""
    cv2, rng = opencv(), np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            noise = cv2.GaussianBlur(rng.standard_normal(shape), (0, 0), 2.0 + number)
            picture = np.clip(128 + 40 * noise / noise.std(), 0, 255).astype(np.uint8)
            cv2.imwrite(str(folder / part / f"{number}.jpg"), picture)
    return folder


def collect(folder: Path, first: int = 0, last: int | None = None, piece: int = 4096, seed: int = 0) -> Collection:
    """The pictures of a folder, or some of them in the order of their numbers."""
    numbers = sorted(int(path.stem) for path in folder.glob("*.jpg"))
    return Collection(str(folder), tuple(numbers[first:last]), piece, seed)


@functools.lru_cache(maxsize=512)
def read_picture(folder: str, number: int, scale: float) -> np.ndarray:
    """A picture in gray at a scale, (height, width) uint8."""
    cv2, path = opencv(), Path(folder) / f"{number}.jpg"
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise SystemExit(f"{path} is not a picture that OpenCV can read; fetch it again.")
    if scale == 1.0:
        return picture
    height, width = (round(scale * side) for side in picture.shape)
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


@functools.cache
def pieces(collection: Collection) -> np.ndarray:
    """All pieces in their random order, (P, 4) int: position of the picture, of the scale, of the angle, and which of
    the view's pieces it is. What is left of a view after its last whole piece is left out."""
    found = []
    for picture, number in enumerate(collection.numbers):
        for scale, share in enumerate(SCALES):
            height, width = read_picture(collection.folder, number, share).shape
            whole = max(0, height - SIDE + 1) * max(0, width - SIDE + 1) // collection.piece
            found += [(picture, scale, angle, part) for angle in range(len(ANGLES)) for part in range(whole)]
    order = np.random.default_rng([collection.seed, 0]).permutation(len(found))
    return np.array(found, dtype=np.int64).reshape(-1, 4)[order]


def rows_in(collection: Collection) -> int:
    """How many rows there are at most."""
    return len(pieces(collection)) * collection.piece


def places(collection: Collection, piece: int) -> Places:
    """Where the rows of a piece are."""
    picture, scale, angle, part = pieces(collection)[piece].tolist()
    number, size = collection.numbers[picture], collection.piece
    height, width = read_picture(collection.folder, number, SCALES[scale]).shape
    across = width - SIDE + 1
    order = np.random.default_rng([collection.seed, 1, number, scale, angle]).permutation((height - SIDE + 1) * across)
    y, x = np.divmod(np.sort(order[part * size : (part + 1) * size]), across)
    alike = (np.full(size, value) for value in (number, SCALES[scale], ANGLES[angle]))
    return Places(*alike, y + MARGIN, x + MARGIN)


def describe(picture: np.ndarray, y: np.ndarray, x: np.ndarray, angle: float) -> np.ndarray:
    """SIFT vectors of the patches with the given centres, (n, 128) uint8."""
    cv2 = opencv()
    points = [cv2.KeyPoint(float(a), float(b), KEYPOINT_SIZE, angle) for b, a in zip(y, x, strict=True)]
    _, found = cv2.SIFT_create().compute(picture, points)
    if found is None or found.shape != (len(y), COLUMNS):
        raise RuntimeError(f"OpenCV left out some of {len(y)} keypoints; use version 4.5 or later")
    return found.astype(np.uint8)


def vectors(collection: Collection, start: int, stop: int) -> np.ndarray:
    """Rows `start` to `stop`, (n, 128) uint8."""
    size = collection.piece
    first, parts = start // size, []
    for piece in range(first, -(-stop // size)):
        at = places(collection, piece)
        picture = read_picture(collection.folder, int(at.picture[0]), float(at.scale[0]))
        parts.append(describe(picture, at.y, at.x, float(at.angle[0])))
    return np.concatenate(parts)[start - first * size : stop - first * size]


def patch(collection: Collection, row: int) -> np.ndarray:
    """What the keypoint of a row looks at, turned as it sees it, (32, 32) uint8; black beyond the picture."""
    at = places(collection, row // collection.piece)
    i = row % collection.piece
    picture = read_picture(collection.folder, int(at.picture[i]), float(at.scale[i]))
    return turned(picture, int(at.y[i]), int(at.x[i]), float(at.angle[i]))


def turned(picture: np.ndarray, y: int, x: int, angle: float) -> np.ndarray:
    """The patch about a point, as a keypoint of an angle in degrees sees it, (32, 32) uint8."""
    cv2 = opencv()
    about = cv2.getRotationMatrix2D((float(x), float(y)), angle, 1.0)
    about[:, 2] += MARGIN - x, MARGIN - y
    return cv2.warpAffine(picture, about, (SIDE, SIDE))
