"""Vectors written to Zarr by workers, chunk by chunk: the same bytes for any number of workers and after any kill.

A chunk is a function of its number, so workers need no other information, and an interrupted writing continues with the
missing chunks.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import zarr
from views import COLUMNS, Collection, rows_in, vectors
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore

from dpdist.data.filling import Filling
from dpdist.data.zarr import COMPLETE
from dpdist.execution import Backend

CHUNK = 65_536
#: Chunks under way at once.
_TOGETHER = 64
#: Bytes of a row on disk at most: the vector, its label, and room for the checkpoints of runs.
_ROW_BYTES = COLUMNS + 8 + 8


def rows_that_fit(wanted: int, most: int, out: Path, left: int) -> int:
    """Rows to write: as many as wanted, as there are, and as the disk holds where `left` bytes stay free; told.

    What `out` holds already, of a sitting before, takes no more room.
    """
    here = sum(each.stat().st_size for each in out.rglob("*") if each.is_file())
    room = max(0, shutil.disk_usage(out).free + here - left) // _ROW_BYTES
    rows = min(wanted, most, room)
    if rows < wanted:
        reason = f"the disk has room for {room}" if room < most else f"the pictures give {most}"
        print(f"{rows} rows rather than {wanted}: {reason}", flush=True)
    if rows < 1:
        raise SystemExit(f"no row fits where {left / 1e9:.0f} GB are to stay free; give --out FOLDER or --leave GB.")
    return rows


def write_rows(collection: Collection, rows: int, path: Path, backend: Backend) -> None:
    """Write the first rows of a collection, (rows, 128) uint8 with a checksum a chunk, if they are not there."""
    rows = min(rows, rows_in(collection))
    plan = hashlib.sha256(json.dumps([collection, rows]).encode()).hexdigest()[:16]
    if path.exists() and zarr.open_array(path, mode="r").attrs.get("plan") == plan:
        return
    filling, about = Filling(str(path), plan), _metadata(rows, plan)
    with filling.begun(overwrite=True) as lease:
        lacking = sorted(set(range(-(-rows // CHUNK))) - filling.chunks())
        for first in range(0, len(lacking), _TOGETHER):
            some = lacking[first : first + _TOGETHER]
            alike = ([value] * len(some) for value in (collection, rows, filling, about))
            backend.fetch(backend.map(write_chunk, some, *alike))
        lease.check()
        filling.end(about, -(-rows // CHUNK))


def write_chunk(chunk: int, collection: Collection, rows: int, filling: Filling, about: Mapping[str, object]) -> None:
    """Write one chunk; on a worker."""
    start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, rows)
    filling.array(about)[start:stop] = vectors(collection, start, stop)


def _metadata(rows: int, plan: str) -> dict[str, object]:
    parts: dict[str, Buffer] = {}
    zarr.create_array(
        MemoryStore(parts),
        shape=(rows, COLUMNS),
        chunks=(min(rows, CHUNK), COLUMNS),
        dtype="uint8",
        compressors=[ZstdCodec(), Crc32cCodec()],
        dimension_names=("row", "column"),
        attributes={COMPLETE: True, "plan": plan},
        zarr_format=3,
    )
    found: dict[str, object] = json.loads(parts["zarr.json"].to_bytes())
    return found
