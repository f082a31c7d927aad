"""Planted faults, one at a time: does a test fail for each?

Each list beside this file names small faults (TOML): ``file``, the text to ``find`` there, which must occur exactly
once, the text to ``put`` instead, the ``law`` that it breaks and the ``tests`` that should detect it (by default those
of the list). Every fault is planted in a copy of the tree, where these tests run; they must pass in a copy without a
fault. Prints a row per fault and the share detected; ends with an error if less than nine tenths were, or if a fault
could not be planted. ``--small`` plants the first fault of each list.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).resolve().parent
#: Share of the faults that have to be caught.
WANTED = 0.9
#: What a copy holds.
COPIED = ("dpdist", "tests", "workflows", "cluster_configs", "pyproject.toml", "README.md")
#: What tests import of others' work, most of the time they would take otherwise.
LIBRARIES = (
    "distributed",
    "hypothesis",
    "numba",
    "pandas",
    "pydantic",
    "scipy.stats",
    "sklearn.mixture",
    "typer",
    "xarray",
)
#: Of pytest; it would warn that it came too late to rewrite what was imported.
OPTIONS = (
    "-x",
    "-q",
    "-n",
    "0",
    "-m",
    "not rgw",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
#: Seconds after which tests that a fault keeps from ending count as failed.
PATIENCE = 600


@dataclass(frozen=True)
class Fault:
    """One small change that breaks a law, and the tests meant to see it."""

    source: str
    file: str
    law: str
    find: str
    put: str
    tests: tuple[str, ...]

    def plant(self, tree: Path) -> None:
        """Change the file in a copy of the tree; raises ValueError if the text is not there exactly once."""
        path = tree / self.file
        text = path.read_text()
        if text.count(self.find) != 1:
            raise ValueError(
                f"{self.file} holds {text.count(self.find)} times, not once, what should be changed: {self.find!r}"
            )
        path.write_text(text.replace(self.find, self.put))


def read_faults(names: Sequence[str] = ()) -> list[Fault]:
    """The faults of the lists of some names, of all lists without any."""
    faults = []
    for path in sorted(LISTS.glob("*.toml")):
        if not names or path.stem in names:
            listed = tomllib.loads(path.read_text())
            faults += [
                Fault(
                    path.stem, f["file"], f["law"], f["find"], f["put"], tuple(f.get("tests", listed.get("tests", ())))
                )
                for f in listed["fault"]
            ]
    return faults


def copy_tree(tree: Path) -> None:
    """A copy of what tests need, compiled kernels too; real data stay beside it."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, copy_function=shutil.copy2)
        else:
            shutil.copy2(source, tree / name)
    beside = ROOT.parent / "shared"
    if beside.exists() and not (tree.parent / "shared").exists():
        (tree.parent / "shared").symlink_to(beside)


def load_libraries() -> None:
    """Import what tests import anyway, once for all processes that are forked off."""
    for name in LIBRARIES:
        importlib.import_module(name)


def start(folder: Path, fault: Fault | None, tests: Sequence[str]) -> int:
    """Run tests in a copy of the tree with a fault planted in it, or with none; the number of the process."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    copy_tree(tree)
    if fault is not None:
        fault.plant(tree)
    process = os.fork()
    if process == 0:
        _be_pytest(tree, tests)
    return process


def _be_pytest(tree: Path, tests: Sequence[str]) -> NoReturn:
    """In a process of its own: run tests, and end with pytest's status."""
    signal.alarm(PATIENCE)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(place for place in sys.path if place not in ("", str(ROOT), str(LISTS)))]
    log = os.open(tree.parent / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 70
    try:
        status = int(pytest.main([*OPTIONS, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def survived(faults: Sequence[Fault | None], tests: Sequence[Sequence[str]], jobs: int) -> Iterator[tuple[int, bool]]:
    """Place of each fault, as its tests end, and whether they passed."""
    with tempfile.TemporaryDirectory() as base:
        waiting, running = deque(range(len(faults))), dict[int, int]()
        while waiting or running:
            while waiting and len(running) < jobs:
                place = waiting.popleft()
                running[start(Path(base) / str(place), faults[place], tests[place])] = place
            process, status = os.wait()
            place, code = running.pop(process), os.waitstatus_to_exitcode(status)
            if code not in (0, 1, 2, -signal.SIGALRM):  # 2: a fault that keeps a module from being imported
                raise RuntimeError((Path(base) / str(place) / "log").read_text())
            shutil.rmtree(Path(base) / str(place))
            yield place, code == 0


def main() -> None:
    """Plant the faults asked for and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", help="names of the lists; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults tried side by side")
    parser.add_argument("--small", action="store_true", help="the first fault of each list")
    parser.add_argument("--out", help="taken as by the other workflows; nothing is written")
    arguments = parser.parse_args()
    known = [path.stem for path in sorted(LISTS.glob("*.toml"))]
    for name in set(arguments.lists) - set(known):
        parser.error(f"lists should be some of {', '.join(known)}; got {name!r}")
    faults = read_faults(arguments.lists)
    if arguments.small:
        faults = [next(f for f in faults if f.source == name) for name in dict.fromkeys(f.source for f in faults)]
    load_libraries()
    clean = sorted({test for fault in faults for test in fault.tests})
    if not all(passed for _, passed in survived([None], [clean], 1)):
        sys.exit("the tests fail without any fault")
    caught = 0
    for place, passed in survived(faults, [fault.tests for fault in faults], arguments.jobs):
        caught += not passed
        fault = faults[place]
        print(f"{'SURVIVED' if passed else 'caught':8}  {fault.source:12} {fault.file:36} {fault.law}", flush=True)
    print(f"{caught} of {len(faults)} caught")
    if caught < WANTED * len(faults):
        sys.exit(f"fewer than {WANTED:.0%} were caught")


if __name__ == "__main__":
    main()
