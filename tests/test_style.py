"""Lint, format, types and the floors of the layout: what a reader should not have to check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dpdist"

#: Imports go down only: a module may import from lower floors and from its own folder.
FLOORS = [
    ["digests", "errors", "strings", "summary", "randomness", "threads", "trees", "versions"],
    ["outputs", "checks", "columns", "cadence", "records"],
    ["kernels"],
    ["families", "allocations"],
    ["likelihoods"],
    ["model"],
    ["moves", "sequential"],
    ["places", "certificates"],
    ["lease"],
    ["backends"],
    ["sources"],
    ["clusters"],
    ["submission"],
    ["readers", "documents", "vocabularies"],
    ["survey"],
    ["preparation"],
    ["visit"],
    ["state"],
    ["schedules"],
    ["problem", "sequence"],
    ["turn", "prediction", "loop"],
    ["starts", "engine", "topics"],
    ["units", "footprint"],
    ["events", "topic_prediction"],
    ["metrics"],
    ["schema"],
    ["history", "stored_parts", "descriptions"],
    ["stored_problem"],
    ["storage"],
    ["memo"],
    ["stored_state"],
    ["checkpoint", "stored_sequence"],
    ["stored_topics"],
    ["stored_online_topics"],
    ["fitting", "labelling", "convert", "corpora"],
    ["passing", "runs", "topic_fitting"],
    ["online_topic_fitting", "stored_models"],
    ["topic_recipe"],
    ["extending", "preparing"],
    ["config", "clustering"],
    ["topic_estimator"],
    ["mixture", "sva", "topic_model", "testing"],
    ["estimators"],
    ["progress", "show", "pictures"],
    ["demo", "following", "submitted"],
    ["running"],
    ["coordinator", "job_commands", "doctor", "foreground"],
    ["topic_commands"],
    ["cli"],
    ["__main__"],
]
#: Only these may import the library named.
OWNERS = {
    "dask": {"sources/dask.py", "sources/__init__.py", "backends/dask.py", "backends/local.py", "clusters/base.py"},
    "distributed": {
        "backends/dask.py",
        "backends/faults.py",
        "backends/local.py",
        "backends/tasks.py",
        "backends/watch.py",
        "clusters/base.py",
        "clusters/kubernetes.py",
        "clusters/local.py",
        "clusters/scheduler.py",
        "clusters/security.py",
        "clusters/slurm.py",
        "clusters/ssh.py",
        "metrics.py",
        "sources/dask.py",
    },
    "numba": {"kernels/jit.py"},
    "sklearn": {"clustering.py", "demo.py", "mixture.py", "sva.py", "topic_estimator.py", "topic_model.py"},
}
#: Zarr and xarray stay out of the mathematics: floors below these names.
STORES = {"zarr": "places", "xarray": "history"}


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
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


def floor_of(name: str) -> int:
    """The floor of a module or folder right below the package."""
    return next(floor for floor, names in enumerate(FLOORS) if name in names)


def own_name(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    if own_name(path) == "__init__":
        return
    here = floor_of(own_name(path))
    for name in imports(path):
        parts = name.split(".")
        if (
            parts[0] == "dpdist"
            and len(parts) > 1
            and (PACKAGE / parts[1]).exists() | (PACKAGE / f"{parts[1]}.py").exists()
        ):
            same = parts[1] == own_name(path)
            assert same or floor_of(parts[1]) < here, f"{own_name(path)} imports {parts[1]}, which is not below it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_libraries_stay_where_they_belong(path: Path) -> None:
    place, used = str(path.relative_to(PACKAGE)), {name.split(".")[0] for name in imports(path)}
    for library, owners in OWNERS.items():
        assert library not in used or place in owners
    for library, lowest in STORES.items():
        assert library not in used or floor_of(own_name(path)) >= floor_of(lowest)


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
