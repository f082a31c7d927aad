"""Size and structure of the package: lines, files, imports, types, comments, start-up time.

Prints one line per measure, with its limit if there is one. ``--check`` ends with an error if a limit is exceeded.
``--log FILE`` reads the output of ``.ci/run``, and prints the duration of its parts.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import resource
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dpdist"
#: The rooms of the house by floor: a module may import from its own room and from rooms on lower floors.
FLOORS = (
    ("core", "kernels"),
    ("models", "execution"),
    ("data",),
    ("inference",),
    ("storage",),
    ("runs",),
    ("estimators", "report", "cluster"),
    ("cli",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


@dataclass(frozen=True)
class Figure:
    """One line of the report: what was measured, and the most it may be, if there is a limit."""

    name: str
    value: float
    limit: float | None = None
    detail: str = ""

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"  (at most {self.limit:,g}{'' if self.kept else ': exceeded'})"
        return f"{self.name:<44}{round(self.value, 2):>10,}{limit}{'  ' if self.detail else ''}{self.detail}"


@cache
def files() -> tuple[Path, ...]:
    """The package's Python files that are kept under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "dpdist/*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return tuple(path for name in listed if (path := ROOT / name).exists())


def lines_of(path: Path) -> int:
    """Number of lines of a file."""
    return len(path.read_text().splitlines())


def module_of(path: Path) -> str:
    """Full name of the module in a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> frozenset[str]:
    """Full names of the package's modules."""
    return frozenset(map(module_of, files()))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Full names of the modules that a file imports, those in functions and for type checkers among them."""
    package, found, known = module_of(path), set(), modules()
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            full = {f"{base}.{alias.name}" for alias in node.names}
            # A name that is no module of ours was found in the module that it is imported from.
            found |= {name if name in known else base for name in full}
    return frozenset(found)


def room_of(module: str) -> str | None:
    """The room that a module of the package stands in, if it stands in one."""
    parts = module.split(".")
    return parts[1] if parts[0] == "dpdist" and len(parts) > 1 and parts[1] in FLOOR_OF else None


def arrows() -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second."""
    pairs = {(room_of(module_of(path)), room_of(name)) for path in files() for name in imports_of(path)}
    return {(above, below) for above, below in pairs if above and below and above != below}


def arrows_upward() -> set[tuple[str, str]]:
    """Those arrows that do not end on a lower floor."""
    return {(above, below) for above, below in arrows() if FLOOR_OF[below] >= FLOOR_OF[above]}


def root_entries() -> set[str]:
    """Files and folders at the package's root, dunder files and ``py.typed`` apart."""
    return {path.relative_to(PACKAGE).parts[0] for path in files()} - {"__init__.py", "__main__.py", "py.typed"}


def circles() -> list[set[str]]:
    """Groups of modules of which each imports, by way of others, every other."""
    modules = [module_of(path) for path in files()]
    graph = [[name in imports_of(path) for name in modules] for path in files()]
    _, groups = connected_components(csr_array(graph), connection="strong")
    found = [{modules[place] for place in np.flatnonzero(groups == group)} for group in np.unique(groups)]
    return [circle for circle in found if len(circle) > 1]


def tokens_of(path: Path) -> Iterator[tokenize.TokenInfo]:
    """Tokens of a file."""
    return tokenize.generate_tokens(io.StringIO(path.read_text()).readline)


def uses_of_any(path: Path) -> int:
    """How often a file says ``Any``, its import apart."""
    return sum(
        token.type == tokenize.NAME and token.string == "Any" and "import" not in token.line
        for token in tokens_of(path)
    )


def commented_lines(path: Path) -> int:
    """Lines of a file with a comment for a reader rather than for a tool."""
    comments = (token.string for token in tokens_of(path) if token.type == tokenize.COMMENT)
    return sum(not re.match(r"#\s*(noqa|type:|pragma:|!)", comment) for comment in comments)


def processor_time(command: Iterable[str]) -> float:
    """Seconds of processor time of a command, the least of five after one that fills the caches."""
    taken = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(list(command), cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken[1:])


def layout() -> list[Figure]:
    """How the rooms hang together."""
    upward, found = arrows_upward(), circles()
    return [
        Figure("entries at the package's root", len(root_entries()), 14),
        Figure("arrows between rooms", len(arrows()), 65),
        Figure("arrows upward", len(upward), 0, ", ".join(f"{above} -> {below}" for above, below in sorted(upward))),
        Figure("circles among files", len(found), 0, "; ".join(", ".join(sorted(circle)) for circle in found)),
    ]


def sizes() -> list[Figure]:
    """How long the files are, and what they say of types and reasons."""
    lengths = {str(path.relative_to(ROOT)): lines_of(path) for path in files()}
    total, longest = sum(lengths.values()), max(lengths, key=lengths.__getitem__)
    long = [name for name, length in lengths.items() if length > 400]
    return [
        Figure("lines of the package", total, 23_000),
        Figure("lines of the longest file", lengths[longest], 400, longest),
        Figure("files of more than 400 lines", len(long), 0, ", ".join(long)),
        Figure("uses of Any", sum(map(uses_of_any, files()))),
        Figure("percent of lines with a comment", 100 * sum(map(commented_lines, files())) / total),
    ]


def durations(log: Path) -> list[Figure]:
    """Minutes that the tests and all of ``.ci/run`` took, as pytest and the script told them."""
    text = log.read_text()
    tests = re.findall(r"^=+ .* in ([\d.]+)s\b.*=+$", text, re.MULTILINE)
    whole = re.findall(r"^\.ci/run took (\d+) s$", text, re.MULTILINE)
    parts = [("the tests", tests[:1], 8), ("the slow tests", tests[1:2], None), (".ci/run", whole, 15)]
    return [Figure(f"minutes of {name}", float(each) / 60, limit) for name, found, limit in parts for each in found]


def main() -> None:
    """Print the figures, and hold them to their limits if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="end with an error if a limit is exceeded")
    parser.add_argument("--log", type=Path, help="what .ci/run printed")
    given = parser.parse_args()
    help_time = processor_time([sys.executable, "-m", "dpdist", "--help"])
    figures = [*sizes(), *layout(), Figure("seconds of processor time, dpdist --help", help_time, 0.8)]
    if given.log is not None:
        figures += durations(given.log)
    print(*figures, sep="\n")
    if given.check and not all(figure.kept for figure in figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
