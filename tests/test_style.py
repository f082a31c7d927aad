"""Lint, format, types and how the rooms hang together: what a reader should not have to check."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dpdist.testing

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dpdist"

HOUSE = runpy.run_path(str(ROOT / "workflows" / "house" / "measure.py"))
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
        "cluster/doctor.py",
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


@pytest.mark.parametrize("figure", HOUSE["layout"](), ids=lambda figure: figure.name)
def test_the_rooms_hang_together_as_they_should(figure) -> None:
    assert figure.kept, figure


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_libraries_stay_where_they_belong(path: Path) -> None:
    place, used = str(path.relative_to(PACKAGE)), {name.split(".")[0] for name in imports(path)}
    for library, owners in OWNERS.items():
        assert (library in used) == (place in owners), library
    assert room_of(path) not in WITHOUT_STORES or not {"zarr", "xarray"} & used


def test_every_public_thing_is_documented() -> None:
    for path in modules():
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                inherited = any(isinstance(base, ast.ClassDef) for base in ast.walk(tree)) and _is_override(tree, node)
                assert ast.get_docstring(node) or inherited or _is_nested(tree, node), f"{path}: {node.name}"


def _is_override(tree: ast.Module, node: ast.AST) -> bool:
    """A method of a class with bases may leave its documentation to them."""
    return any(isinstance(owner, ast.ClassDef) and owner.bases and node in owner.body for owner in ast.walk(tree))


def _is_nested(tree: ast.Module, node: ast.AST) -> bool:
    return any(
        isinstance(owner, ast.FunctionDef) and node in ast.walk(owner) and node is not owner for owner in ast.walk(tree)
    )


def test_the_page_about_the_layout_names_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert len(page.splitlines()) <= 120
    named = [name for name in re.findall(r"`([\w./]+/[\w./]*)", page) if not name.startswith(("workflows/", "tests/"))]
    assert len(named) > 40
    assert not [name for name in named if not (PACKAGE / name).exists()]
    assert not [name for name in re.findall(r"`((?:workflows|tests)/[\w./]+)", page) if not (ROOT / name).exists()]
    for call in re.findall(r"`dpdist\.testing\.(\w+)`", page):
        assert callable(getattr(dpdist.testing, call))
