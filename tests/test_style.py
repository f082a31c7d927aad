"""Lint, format, types and how the rooms hang together: what a reader should not have to check."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from shutil import which

import pytest

import dpdist.testing

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dpdist"

HOUSE = runpy.run_path(str(ROOT / "workflows" / "house" / "measure.py"))
#: Files and folders that are kept at the top, hidden ones left out.
AT_THE_TOP = {
    *("dpdist", "workflows", "cluster_configs", "tests", "docs"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE"),
    *("pyproject.toml", "environment.yml", "Dockerfile"),
}
#: What stands beside the rooms: the public names, the command, and the suites for parts of one's own.
BESIDE = {"__init__", "__main__", "testing"}
#: Only these may import the library named.
OWNERS = {
    "dask": {
        "data/dask.py",
        "execution/connecting.py",
        "execution/dask.py",
        "execution/local.py",
        "cluster/kinds/base.py",
    },
    "distributed": {
        "execution/connecting.py",
        "execution/dask.py",
        "execution/local.py",
        "execution/tasks.py",
        "execution/watch.py",
        "cli/doctor.py",
        "cluster/kinds/base.py",
        "cluster/kinds/kubernetes.py",
        "cluster/kinds/security.py",
        "cluster/kinds/ssh.py",
        "cluster/metrics.py",
        "data/dask.py",
    },
    "numba": {"kernels/jit.py"},
    "sklearn": {
        "estimators/base.py",
        "cli/demo.py",
        "estimators/fitted.py",
        "estimators/topic_base.py",
    },
}
#: Zarr and xarray stay out of the mathematics.
WITHOUT_STORES = {"kernels", "models", "execution", "inference"}


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], pytest.param(["mypy"], marks=pytest.mark.slow)],
    ids=["lint", "format", "types"],
)
def test_the_tree_is_clean(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_the_package_has_these_rooms_and_no_others() -> None:
    assert {room_of(path) for path in modules()} == BESIDE | HOUSE["FLOOR_OF"].keys()


@pytest.mark.skipif(not ((ROOT / ".git").exists() and which("git")), reason="needs git and a clone")
def test_nothing_is_kept_at_the_top_but_what_is_named_here() -> None:
    command = ["git", "-c", "safe.directory=*", "ls-files"]
    kept = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {name.split("/")[0] for name in kept if not name.startswith(".")} == AT_THE_TOP


def test_the_rooms_hang_together_as_they_should() -> None:
    assert not [str(figure) for figure in HOUSE["layout"]() if not figure.kept]


@pytest.mark.parametrize("room", sorted(HOUSE["FLOOR_OF"]))
def test_folders_and_files_of_a_room_do_not_import_in_a_circle(room: str) -> None:
    needed: dict[str, set[str]] = {}
    for path in modules():
        first, *rest = path.relative_to(PACKAGE).parts
        if first == room and rest != ["__init__.py"]:
            named = {name.split(".")[2] for name in imports(path) if name.startswith(f"dpdist.{room}.")}
            needed.setdefault(rest[0].removesuffix(".py"), set()).update(named)
    for part, others in needed.items():
        others.discard(part)
    assert list(TopologicalSorter(needed).static_order())


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_libraries_stay_where_they_belong(path: Path) -> None:
    place, used = str(path.relative_to(PACKAGE)), {name.split(".")[0] for name in imports(path)}
    for library, owners in OWNERS.items():
        assert (library in used) == (place in owners), library
    assert room_of(path) not in WITHOUT_STORES or not {"zarr", "xarray"} & used
    assert room_of(path) == "cli" or "typer" not in used


def test_every_public_thing_is_documented() -> None:
    for path in modules():
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        excused = set(_excused(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node) or node in excused, f"{path}: {node.name}"


def _excused(tree: ast.Module) -> Iterator[ast.AST]:
    """What is within functions, and methods of a class with bases, which may leave their documentation to these."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.FunctionDef):
            yield from (node for node in ast.walk(owner) if node is not owner)
        elif isinstance(owner, ast.ClassDef) and owner.bases:
            yield from owner.body


def test_the_page_about_the_layout_names_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert len(page.splitlines()) <= 120
    named = [name for name in re.findall(r"`([\w./]+/[\w./]*)", page) if not name.startswith(("workflows/", "tests/"))]
    assert len(named) > 40
    assert not [name for name in named if not (PACKAGE / name).exists()]
    assert not [name for name in re.findall(r"`((?:workflows|tests)/[\w./]+)", page) if not (ROOT / name).exists()]
    for call in re.findall(r"`dpdist\.testing\.(\w+)`", page):
        assert callable(getattr(dpdist.testing, call))
