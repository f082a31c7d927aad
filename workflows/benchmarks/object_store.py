"""obstore compared with s3fs on two S3 servers, and the cost of a checksum on each chunk.

Puts and gets of 32 MB and of 200 bytes, and a Zarr group of seven objects, on moto's server and, with ``--ceph``, on
Ceph's S3 gateway (which must be installed), both on the loopback interface. Then 64k x 128 float32 chunks are read from
local disk with and without crc32c. Needs ``dpdist[s3]``, moto and a current s3fs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import zarr
from common import alternate, options, print_table, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dpdist.core.places import place_of
from tests.daemons.s3 import BUCKET, environment, moto_server, rgw_server

#: Arrays of the group; with its own metadata and one chunk each, seven objects.
ARRAYS = 3


def fill(group: zarr.Group) -> None:
    """Three arrays: with the group seven objects."""
    for index in range(ARRAYS):
        group.create_array(f"part{index}", data=np.arange(1000.0) + index)


def through_obstore(base: str, large: bytes) -> dict[str, Callable[[], object]]:
    """Actions of a place in an object store."""
    place, numbers = place_of(base), counted()
    place.replace("large", large)
    place.replace("small", large[:200])
    return {
        "put 32 MB": lambda: place.replace("large", large),
        "get 32 MB": lambda: place.read("large"),
        "put 200 B": lambda: place.replace("small", large[:200]),
        "create 200 B": lambda: place.create(f"new/{next(numbers)}", large[:200]),
        "get 200 B": lambda: place.read("small"),
        "group": lambda: place.fill(f"group{next(numbers)}", fill),
    }


def through_s3fs(base: str, large: bytes) -> dict[str, Callable[[], object]]:
    """The same actions through fsspec."""
    files, numbers, name = fsspec.filesystem("s3", use_listings_cache=False), counted(), base.removeprefix("s3://")
    files.pipe_file(f"{name}/large", large)
    files.pipe_file(f"{name}/small", large[:200])
    return {
        "put 32 MB": lambda: files.pipe_file(f"{name}/large", large),
        "get 32 MB": lambda: files.cat_file(f"{name}/large"),
        "put 200 B": lambda: files.pipe_file(f"{name}/small", large[:200]),
        "create 200 B": lambda: files.pipe_file(f"{name}/new/{next(numbers)}", large[:200], mode="create"),
        "get 200 B": lambda: files.cat_file(f"{name}/small"),
        "group": lambda: fill(zarr.open_group(f"{base}/group{next(numbers)}", mode="w", zarr_format=3)),
    }


def counted() -> Iterator[int]:
    """Numbers from one on."""
    number = 0
    while True:
        number += 1
        yield number


def compare(server: str, rounds: int, size: int) -> Iterator[list[str]]:
    """Rows of the table for the server that the environment leads to."""
    large = np.random.default_rng(0).bytes(size)
    ways = {
        "obstore": through_obstore(f"s3://{BUCKET}/{uuid.uuid4().hex}", large),
        "s3fs": through_s3fs(f"s3://{BUCKET}/{uuid.uuid4().hex}", large),
    }
    for action in ways["obstore"]:
        seconds = alternate({way: actions[action] for way, actions in ways.items()}, rounds)
        in_bulk = "MB" in action
        told = {way: size / 1e6 / times if in_bulk else 1000 * times for way, times in seconds.items()}
        unit = "MB/s" if in_bulk else "ms"
        yield [server, action, unit, *(spread(values, 1) for values in told.values())]


def checksums(folder: Path, rounds: int, chunks: int) -> Iterator[list[str]]:
    """Rows of the table of chunks read with and without a checksum."""
    rows = np.random.default_rng(0).normal(size=(65_536, 128)).astype(np.float32)
    arrays = {}
    for name, codecs in {"plain": None, "crc32c": [zarr.codecs.Crc32cCodec()]}.items():
        shape = (chunks * len(rows), rows.shape[1])
        array = zarr.create_array(folder / name, shape=shape, chunks=rows.shape, dtype=rows.dtype, compressors=codecs)
        for start in range(0, shape[0], len(rows)):
            array[start : start + len(rows)] = rows
        arrays[name] = zarr.open_array(folder / name, mode="r")
    turns = {name: lambda array=array: read_all(array, len(rows)) for name, array in arrays.items()}
    for name, times in alternate(turns, rounds).items():
        yield [name, spread(chunks * rows.nbytes / 1e6 / times, 0)]


def read_all(array: zarr.Array, size: int) -> None:
    """Read an array chunk by chunk."""
    for start in range(0, array.shape[0], size):
        array[start : start + size]


def main() -> None:
    """Print both tables."""
    parser = options(__doc__)
    parser.add_argument("--ceph", action="store_true", help="Ceph's gateway too; it takes half a minute to start")
    given = parser.parse_args()
    rounds, size, chunks = (2, 2**20, 1) if given.small else (5, 32 * 2**20, 8)
    table = []
    for name, server in {"moto": moto_server, **({"ceph": rgw_server} if given.ceph else {})}.items():
        with server() as settings, environment(settings):
            table += compare(name, rounds, size)
            fsspec.filesystem("s3").clear_instance_cache()
    print_table(["server", "action", "unit", "obstore", "s3fs"], table)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder, zarr.config.set({"async.concurrency": 1}):
        print_table(["chunks of 32 MB", "MB/s"], checksums(Path(folder), rounds, chunks))


if __name__ == "__main__":
    main()
