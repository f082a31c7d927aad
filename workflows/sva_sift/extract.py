"""Dense SIFT vectors of the BSDS pictures, written to Zarr.

A vector describes 32x32 pixels: an upright keypoint of size 32/6 in OpenCV, whose support is six times that. Keypoints
lie on a grid, 16 px from the border and `--step` px apart: about 6.5 million vectors at step 2. Pictures come in a
seeded random order, so that neighbouring rows are not all alike.

Needs ``pip install opencv-python-headless``. Written to --out, one picture in memory at a time: sift_train.zarr, and
sift_test.zarr with 500 vectors drawn from each held-out picture. Each is a group of ``rows`` (N, 128) uint8, ``image``,
the number in the picture's file name, and ``y`` and ``x``, the centre. One that is complete is used again.

Source: Lowe (2004), Distinctive image features from scale-invariant keypoints; Martin et al. (2001) for the pictures.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import zarr

#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
OUT = Path("build") / "workflows" / "sva_sift"
#: Width of the patch that a vector describes, and distance of its centre from the border, in pixels.
SIDE, MARGIN = 32, 16
#: OpenCV looks at six keypoint sizes.
KEYPOINT_SIZE = SIDE / 6
COLUMNS = 128
CHUNK = 16_384
#: Grid step of the held-out pictures, and vectors drawn from each.
TEST_STEP, TEST_EACH = 4, 500


class Vectors(NamedTuple):
    """``rows`` (n, 128) uint8, ``image`` (n,) int32, and the centres ``y`` and ``x`` (n,) uint16 in pixels."""

    rows: np.ndarray
    image: np.ndarray
    y: np.ndarray
    x: np.ndarray


class Plan(NamedTuple):
    """Which vectors to take: grid step in pixels; pictures, and vectors of each (None: all); seed of the order."""

    step: int
    pictures: int | None = None
    each: int | None = None
    seed: int = 0


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


@functools.lru_cache(maxsize=256)
def read_picture(path: Path) -> np.ndarray:
    """A picture in gray, (height, width) uint8."""
    cv2 = opencv()
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if picture is None:
        raise SystemExit(f"{path} is not a picture that OpenCV can read; fetch it again.")
    return picture


@functools.cache
def grid(height: int, width: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres of the patches in a picture, row by row: y and x, each (n,) uint16."""
    y, x = np.mgrid[MARGIN : height - MARGIN + 1 : step, MARGIN : width - MARGIN + 1 : step]
    return y.ravel().astype(np.uint16), x.ravel().astype(np.uint16)


def describe(picture: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Upright SIFT vectors of the patches with the given centres, (n, 128) uint8."""
    cv2 = opencv()
    points = [cv2.KeyPoint(float(a), float(b), KEYPOINT_SIZE, 0.0) for b, a in zip(y, x, strict=True)]
    _, found = cv2.SIFT_create().compute(picture, points)
    if found is None or found.shape != (len(y), COLUMNS):
        raise RuntimeError(f"OpenCV left out some of {len(y)} keypoints; use version 4.5 or later")
    return found.astype(np.uint8)


def picture_order(folder: Path, plan: Plan) -> list[int]:
    """Numbers of the pictures in a folder, in the plan's random order."""
    numbers = sorted(int(path.stem) for path in folder.glob("*.jpg"))
    return np.random.default_rng(plan.seed).permutation(numbers)[: plan.pictures].tolist()


def picture_vectors(folder: Path, number: int, plan: Plan) -> Vectors:
    """The vectors of one picture, or those drawn from it."""
    picture = read_picture(folder / f"{number}.jpg")
    y, x = grid(*picture.shape, plan.step)
    if plan.each is not None and plan.each < len(y):
        rng = np.random.default_rng([plan.seed, number])
        drawn = np.sort(rng.choice(len(y), plan.each, replace=False))
        y, x = y[drawn], x[drawn]
    return Vectors(describe(picture, y, x), np.full(len(y), number, np.int32), y, x)


def in_chunks(blocks: Iterable[Vectors], size: int = CHUNK) -> Iterator[Vectors]:
    """The same vectors in blocks of `size`, the last one shorter, so that no chunk is written twice."""
    held: Vectors | None = None
    for block in blocks:
        held = block if held is None else Vectors(*map(np.concatenate, zip(held, block, strict=True)))
        while len(held.rows) >= size:
            yield Vectors(*(array[:size] for array in held))
            held = Vectors(*(array[size:] for array in held))
    if held is not None and len(held.rows):
        yield held


def store(path: Path, mark: dict[str, Any], blocks: Iterable[Vectors]) -> int:
    """Write vectors to a Zarr group, unless a complete one with the same mark is there; the number of vectors.

    The group is written aside, marked, and renamed into place.
    """
    if path.exists() and (stored := zarr.open_group(path, mode="r")).attrs.get("finished") == mark:
        return stored["rows"].shape[0]
    aside = path.with_name(f".{path.name}.partial")
    group = zarr.create_group(aside, overwrite=True)
    for chunk in in_chunks(blocks):
        _append(group, chunk)
    group.attrs["finished"] = mark
    shutil.rmtree(path, ignore_errors=True)
    aside.rename(path)
    return zarr.open_group(path, mode="r")["rows"].shape[0]


def _append(group: zarr.Group, chunk: Vectors) -> None:
    for name, array in chunk._asdict().items():
        if name not in group:
            tail = array.shape[1:]
            group.create_array(name, shape=(0, *tail), chunks=(CHUNK, *tail), dtype=array.dtype)
        group[name].append(array)


def extract(folder: Path, path: Path, plan: Plan) -> int:
    """Write the vectors of the pictures in a folder to `path`; the number of them."""
    order = picture_order(folder, plan)
    mark = {**plan._asdict(), "order": order}
    return store(path, mark, (picture_vectors(folder, number, plan) for number in order))


def first_rows(source: Path, path: Path, count: int) -> int:
    """Copy the first vectors of a stored group to another one; the number of them."""
    group = zarr.open_group(source, mode="r")
    ranges = ((start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))
    blocks = (Vectors(*(group[name][start:stop] for name in Vectors._fields)) for start, stop in ranges)
    return store(path, {"first": count, "of": group.attrs["finished"]}, blocks)


def sample(path: Path, count: int, seed: int) -> Vectors:
    """Vectors drawn from a stored group without replacement, in the order of their rows."""
    group = zarr.open_group(path, mode="r")
    rows = group["rows"].shape[0]
    drawn = np.sort(np.random.default_rng(seed).choice(rows, min(count, rows), replace=False))
    return Vectors(*(group[name].oindex[drawn] for name in Vectors._fields))


def options(about: str | None) -> argparse.ArgumentParser:
    """The options of the extraction, which the experiment takes too."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("DPDIST_SHARED", SHARED))
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for vectors and results")
    parser.add_argument("--step", type=int, default=2, help="distance of training keypoints in pixels")
    return parser


def main() -> None:
    """Extract the training and the held-out vectors."""
    given = options(__doc__).parse_args()
    folder = given.data / "bsds"
    if not has_pictures(folder):
        raise SystemExit(f"there are no BSDS pictures in {folder}; name their parent folder with --data.")
    given.out.mkdir(parents=True, exist_ok=True)
    for part, plan in (("train", Plan(given.step)), ("test", Plan(TEST_STEP, each=TEST_EACH))):
        began, path = time.perf_counter(), given.out / f"sift_{part}.zarr"
        count = extract(folder / part, path, plan)
        seconds = time.perf_counter() - began
        print(f"{path}: {count} vectors, {seconds:.1f} s, {count / seconds:.0f} a second", flush=True)


if __name__ == "__main__":
    main()
