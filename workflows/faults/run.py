"""Faults planted one at a time: does a test meant for the place fail?

Each list beside this file names small faults (TOML): ``file``, the text to ``find`` there, exactly once, what to
``put`` instead, the ``law`` that it breaks and the ``tests`` that are meant to see it (by default the list's own).
Every fault is planted in a copy of the tree, where those tests run; they have to pass in a copy without any fault.
Prints a row a fault and the share that was caught; ends with an error if less than nine tenths were, or a fault could
not be planted. ``--small`` plants the first fault of each list.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).resolve().parent
#: Share of the faults that have to be caught.
WANTED = 0.9
#: What a copy holds.
COPIED = ("dpdist", "tests", "workflows", "cluster_configs", "pyproject.toml", "README.md")
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


def run_tests(tree: Path, tests: Sequence[str]) -> bool:
    """Whether tests pass in a tree."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):  # 2: a fault that keeps a module from being imported
        raise RuntimeError(f"{' '.join(tests)} could not be run:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


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


def passes(fault: Fault | None, tests: Sequence[str]) -> bool:
    """Whether tests pass in a fresh copy of the tree with a fault planted in it, or with none."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        copy_tree(tree)
        if fault is not None:
            fault.plant(tree)
        return run_tests(tree, tests)


def main() -> None:
    """Plant the faults asked for and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", help="names of the lists; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults tried side by side")
    parser.add_argument("--small", action="store_true", help="the first fault of each list")
    parser.add_argument("--out", help="taken as by the other workflows; nothing is written")
    arguments = parser.parse_args()
    faults = read_faults(arguments.lists)
    if arguments.small:
        faults = [next(f for f in faults if f.source == name) for name in dict.fromkeys(f.source for f in faults)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        clean = sorted({test for fault in faults for test in fault.tests})
        if not passes(None, clean):
            sys.exit("the tests fail without any fault")
        caught = 0
        for fault, survived in zip(faults, pool.map(lambda f: passes(f, f.tests), faults), strict=True):
            caught += not survived
            print(
                f"{'SURVIVED' if survived else 'caught':8}  {fault.source:12} {fault.file:36} {fault.law}", flush=True
            )
    print(f"{caught} of {len(faults)} caught")
    if caught < WANTED * len(faults):
        sys.exit(f"fewer than {WANTED:.0%} were caught")


if __name__ == "__main__":
    main()
