"""Damage of any file of a run: is it reported in a sentence, or without effect?

Small runs of every kind are interrupted within a lap. Each of their files in turn is damaged: a bit or digit flipped,
truncated, lengthened, or removed. Then the files that commands read are read, the model is loaded, and the run is
resumed to its end. The outcome must be a message of dpdist, or the result of the undamaged run to the bit; any other
error or result is a failure. Prints a row per kind of run and of damage; ends with an error if anything failed.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import dpdist
from dpdist.cluster.submission import Job
from dpdist.cluster.submitted import Address, End, Request, add_request, latest_request, record, recorded
from dpdist.core.errors import DpdistError
from dpdist.core.lease import latest_lease
from dpdist.core.places import place_of
from dpdist.data import ArraySource
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.models.families import IsotropicGaussian
from dpdist.runs.methods import METHODS
from dpdist.runs.opening import run_at
from dpdist.runs.run import Run
from dpdist.storage.checkpoint import RunStore

#: Laps of a run that is resumed.
LAPS = 3
TOLD, SAME, RAW, OTHER = "told in a sentence", "the same result", "an error of another kind", "OTHER NUMBERS"


# Damage


def flip_bit(data: bytes, draw: random.Random) -> bytes:
    """One bit is another."""
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def flip_digit(data: bytes, draw: random.Random) -> bytes:
    """One digit is another; one bit, where there are none."""
    digits = [place for place, byte in enumerate(data) if byte in b"0123456789"]
    if not digits:
        return flip_bit(data, draw)
    place = draw.choice(digits)
    other = draw.choice([digit for digit in b"0123456789" if digit != data[place]])
    return data[:place] + bytes([other]) + data[place + 1 :]


def truncate(data: bytes, draw: random.Random) -> bytes:
    """The end is missing."""
    return data[: draw.randrange(len(data))]


def lengthen(data: bytes, draw: random.Random) -> bytes:
    """There is more at the end."""
    return data + draw.randbytes(1 + draw.randrange(20))


def remove(data: bytes, draw: random.Random) -> None:
    """The file is gone."""


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    each.__name__: each for each in (flip_bit, flip_digit, truncate, lengthen, remove)
}


# Runs


class Kind(NamedTuple):
    """A kind of run: its data, and what begins a run of them at a path and breaks it off."""

    data: Any
    begin: Callable[[Any, Path], None]


def rows() -> ArraySource:
    """Rows of three groups in six partitions."""
    rng = np.random.default_rng(0)
    means = 6 * rng.normal(size=(3, 2))
    return ArraySource(means[rng.integers(3, size=180)] + rng.normal(size=(180, 2)), partition_rows=30)


def documents() -> ArraySource:
    """Documents over two topics in four partitions."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(8, 0.2), size=2)
    counts = [rng.multinomial(20, rng.dirichlet(np.full(2, 0.3)) @ topics) for _ in range(60)]
    return ArraySource(sparse.csr_array(np.array(counts)), partition_rows=15)


def break_off(work: Any, steps: int) -> None:
    """Go so many steps, with a checkpoint after each."""
    work.checkpoint_seconds = 0.0
    for count, _ in enumerate(work, 1):
        if count == steps:
            break
    close(work)


def close(work: Run[Any]) -> None:
    """Finish writing."""
    work.close()


def begin_mixture(data: Any, path: Path) -> None:
    """Within the second of three laps, with what submission leaves."""
    model = dpdist.DPMixture(IsotropicGaussian(), schedule=Memoized(batches=2), tolerance=0.0, random_state=0)
    break_off(model.prepare(data, path), 3)
    place = place_of(path)
    request = Request("20010101-000000-abcdef", "fit", {"data": "rows.zarr", "seed": 3}, {"type": "local"}, after=12)
    record(place, add_request(place, request, 0), Job("process", "node7 1234 5678", "run.logs/1.log"))
    record(place, 1, End(75, "stopped, since its time is nearly over."))
    record(place, 1, Address("tcp://127.0.0.1:8786"))


def begin_pass(data: Any, path: Path) -> None:
    """After three of six rounds."""
    model = dpdist.SVA(IsotropicGaussian(), parallel=False, random_state=0)
    break_off(model.prepare(data, checkpoint_path=path), 3)


def begin_topics(data: Any, path: Path) -> None:
    """Within the second of three laps."""
    model = dpdist.HDPTopicModel(initial_topics=2, schedule=Memoized(batches=2), random_state=0)
    break_off(model.prepare(data, path), 3)


def begin_online(data: Any, path: Path) -> None:
    """Within the first of three passes."""
    model = dpdist.HDPTopicModel(initial_topics=2, weights="point", schedule=Stochastic(batches=2), random_state=0)
    break_off(model.prepare(data, path), 1)


KINDS = {
    "mixture": Kind(rows(), begin_mixture),
    "pass": Kind(rows(), begin_pass),
    "topics": Kind(documents(), begin_topics),
    "online topics": Kind(documents(), begin_online),
}


# What is read


def outcome(path: Path, data: Any) -> list[Any]:
    """All that a run at a path says and comes to at its end, as plain values that compare to the bit."""
    place = place_of(path)
    said: list[Any] = [latest_lease(place)[1]["released"]]
    if place.names("requests"):
        said += [latest_request(place), recorded(place, 1, Job), recorded(place, 1, End), recorded(place, 1, Address)]
    before = stored(path)
    limits = {"max_laps": LAPS} if METHODS[run_at(path).method].endless else {}
    dpdist.resume(path, data, **limits)
    return [plain(said), before, stored(path)]


def stored(path: Path) -> Any:
    """What is stored of a run, seconds apart."""
    store: Any = RunStore.open(path)
    history = store.history()
    laps = [(row.rows, row.elbo, row.n_components) for row in history.laps]
    found = (store.state()[0], store.fitted(), laps, history.proposals)
    return plain((store.settings, store.problem(), *found))


def plain(value: Any) -> Any:
    """A value as plain ones, with the bytes of arrays; what a session calls its files is set apart from any other's."""
    if isinstance(value, str):
        return re.sub(r"^(objects/\d{6}-documents)-[0-9a-f]{6}$", r"\1", value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return repr(value)
    if sparse.issparse(value):
        return [plain(part) for part in (value.indptr, value.indices, value.data)]
    if is_dataclass(value):
        return type(value).__name__, [plain(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, dict):
        return [(key, plain(each)) for key, each in value.items()]
    return [plain(each) for each in value] if isinstance(value, list | tuple) else repr(value)


def try_damage(run: Path, file: str, damaged: bytes | None, data: Any, whole: list[Any]) -> str:
    """What comes of a copy of a run whose file holds other bytes, or is gone."""
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        copy = Path(shutil.copytree(run, Path(folder) / "run.zarr"))
        if damaged is None:
            (copy / file).unlink()
        else:
            (copy / file).write_bytes(damaged)
        try:
            found = outcome(copy, data)
        except DpdistError:
            return TOLD
        except Exception as error:
            return f"{RAW}: {type(error).__name__} of {file}"
        return SAME if found == whole else f"{OTHER}: {file}"


def whole_run(kind: str, folder: Path) -> tuple[Path, list[Any]]:
    """A run of a kind, broken off, and what comes of it."""
    run = folder / "run.zarr"
    KINDS[kind].begin(KINDS[kind].data, run)
    again = Path(shutil.copytree(run, folder / "again.zarr"))
    return run, outcome(again, KINDS[kind].data)


def trials(run: Path, times: int, draw: random.Random) -> Iterator[tuple[str, str, bytes | None]]:
    """Damage, the file, and what it then holds: each way to damage each file, so many times."""
    for path in sorted(each for each in run.rglob("*") if each.is_file()):
        data = path.read_bytes()
        for name, damage in DAMAGE.items():
            for _ in range(times if damage is not remove else 1):
                yield name, path.relative_to(run).as_posix(), damage(data, draw)


def removed_by_hand(damage: str, file: str) -> bool:
    """Whether a run without a file is another run: the commit before, or one that was never submitted so."""
    return damage == remove.__name__ and not file.startswith(("problems", "generations", "objects"))


def main() -> None:
    """Damage every file of every kind of run, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="how often each file is damaged in each way")
    parser.add_argument("--small", action="store_true", help="each way once")
    parser.add_argument("--out", help="taken as by the other workflows; nothing is written")
    arguments = parser.parse_args()
    draw, failed, total = random.Random(0), 0, 0
    for kind in KINDS:
        found: dict[str, Counter[str]] = {name: Counter() for name in DAMAGE}
        with tempfile.TemporaryDirectory() as folder:
            run, whole = whole_run(kind, Path(folder))
            for damage, file, damaged in trials(run, 1 if arguments.small else arguments.times, draw):
                if not removed_by_hand(damage, file):
                    found[damage][try_damage(run, file, damaged, KINDS[kind].data, whole)] += 1
        for damage, counts in found.items():
            told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            print(f"{kind:14} {damage:11} {told}", flush=True)
            total += counts.total()
            failed += counts.total() - counts[TOLD] - counts[SAME]
    print(f"{total - failed} of {total} told or of no consequence")
    if failed:
        sys.exit("damage was not told")


if __name__ == "__main__":
    main()
