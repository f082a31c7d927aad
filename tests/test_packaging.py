"""What surrounds the package: skeletons that people copy, the image, the environment, the wheel."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

import dpdist
from dpdist.data.arrays import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Gaussian
from dpdist.models.mixture import Model
from dpdist.testing import check_family, check_move, check_source
from tests.runs import clusters, mixture

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SKELETONS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL))


@pytest.fixture
def skeleton(request, tmp_path: Path, monkeypatch) -> ModuleType:
    """A module with the text of a skeleton, as a person would have copied it."""
    (tmp_path / f"{request.param}.py").write_text(SKELETONS[request.param])
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(request.param)
    del sys.modules[request.param]


@pytest.mark.parametrize("skeleton", ["geometric"], indirect=True)
def test_the_skeleton_of_a_family_keeps_the_laws(skeleton: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    check_family(skeleton.Geometric(), rng.geometric(0.3, size=(40, 3)) - 1.0)
    rows = np.concatenate([rng.geometric(chance, size=(300, 4)) - 1.0 for chance in (0.05, 0.8)])
    model = mixture(family=skeleton.Geometric(), max_laps=20).fit(rows)
    assert model.n_components_ == 2
    model.save(tmp_path / "model.zarr")
    assert np.array_equal(dpdist.load(tmp_path / "model.zarr").predict(rows), model.predict(rows))


@pytest.mark.parametrize("skeleton", ["cutting"], indirect=True)
def test_the_skeleton_of_a_move_keeps_the_laws(skeleton: ModuleType) -> None:
    rows, rng = clusters(1)[:200], np.random.default_rng(7)
    family = Gaussian().with_defaults(summarise_source(ArraySource(rows), SerialBackend()).moments())
    model, resp = Model(family, DirichletProcess(1.0)), rng.dirichlet(np.ones(3), size=len(rows))
    check_move(skeleton.Cut(), model, rows, resp, seed=7)  # one that gains alone is refused after another
    model = mixture(moves=[skeleton.Cut()], max_laps=4).fit(rng.normal(np.repeat([-9, 9], 200)[:, None], size=(400, 2)))
    assert model.n_components_ == 2


@pytest.mark.parametrize("skeleton", ["plain"], indirect=True)
def test_the_skeleton_of_a_source_keeps_the_laws(skeleton: ModuleType, tmp_path: Path) -> None:
    rows = clusters(1)
    rows.tofile(tmp_path / "rows.bin")
    source = skeleton.PlainSource(str(tmp_path / "rows.bin"), rows.shape[1])
    check_source(source)
    assert mixture(max_laps=2).fit(source).elbo_ == mixture(max_laps=2).fit(rows).elbo_


def test_skeletons_are_formatted_and_there_are_three(tmp_path: Path) -> None:
    assert set(SKELETONS) == {"geometric", "cutting", "plain"}
    for name, text in SKELETONS.items():
        (tmp_path / f"{name}.py").write_text(text)
    how = ["--config", str(ROOT / "pyproject.toml"), "--config", 'lint.isort.known-first-party=["dpdist"]']
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, *how, str(tmp_path)]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_version_is_one_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    kubernetes = tomllib.loads((ROOT / "cluster_configs" / "kubernetes.toml").read_text())
    assert dpdist.__version__ == PROJECT["version"] == citation["version"] == kubernetes["image"].rpartition(":")[2]
    assert citation["license"] == PROJECT["license"] and citation["cff-version"] == "1.2.0"
    assert all(each["title"] and each["authors"] and each["year"] for each in citation["references"])
    assert kubernetes["image"] in (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, without comments and with lines that go on joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_image_is_made_of_what_is_there_and_runs_as_nobody_special() -> None:
    told = instructions()
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "CMD"}
    assert {name for name, _ in told} <= known and told[0][0] == "FROM"
    for base in (rest.split()[0] for name, rest in told if name == "FROM"):
        version = re.fullmatch(r"python:(3\.\d+)-slim", base)  # never latest
        assert version and f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for *sources, _ in (shlex.split(rest) for name, rest in told if name == "COPY" and "--from=" not in rest):
        assert all((ROOT / source).exists() and f"!{source}" in ignored for source in sources)
    installed = next(rest for name, rest in told if "pip install" in rest)
    extras = re.search(r'"\.\[([\w,]+)\]"', installed)
    assert extras and {"kubernetes", "s3"} <= set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    assert "--no-cache-dir" in installed
    last_stage = told[max(i for i, (name, _) in enumerate(told) if name == "FROM") :]
    assert dict(last_stage)["USER"] not in ("0", "root") and "/opt/dpdist/bin:$PATH" in dict(last_stage)["ENV"]


def test_the_environment_asks_for_what_the_package_asks_for() -> None:
    renamed = {"matplotlib-base": "matplotlib", "dask-core": "dask"}
    *asked, _ = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    extras = [each for extra in ("parquet", "s3", "hdf5") for each in PROJECT["optional-dependencies"][extra]]
    wanted = {f"python{PROJECT['requires-python']}", "pip", *PROJECT["dependencies"], *extras}
    assert {re.sub(r"^[\w-]+", lambda name: renamed.get(name[0], name[0]), each) for each in asked} == wanted


@pytest.mark.slow
def test_a_wheel_is_built_and_runs_where_the_sources_are_not(tmp_path: Path) -> None:
    def run(*command: object, **how: object) -> str:
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, **how)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("dpdist-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    assert "dpdist/py.typed" in held and any(name.endswith("licenses/LICENSE") for name in held)
    assert {name.partition("/")[0] for name in held} == {"dpdist", f"dpdist-{dpdist.__version__}.dist-info"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "dpdist").rglob("*.py")}
    assert sources <= set(held)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--quiet", wheel)
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(own) / "libraries.pth").write_text(libraries)  # what it depends on, after itself
    np.savetxt(tmp_path / "rows.csv", clusters(1), delimiter=",")
    where = run(python, "-c", "import dpdist; print(dpdist.__file__)", env={"PATH": "/usr/bin:/bin"})
    assert str(tmp_path) in where
    command = tmp_path / "venv" / "bin" / "dpdist"
    run(command, "fit", "rows.csv", "--serial", "--max-laps", "2", env={"PATH": "/usr/bin:/bin"})
    run(command, "predict", "run.zarr", "rows.csv", "--serial", "--out", "labels.csv", env={"PATH": "/usr/bin:/bin"})
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == len(clusters(1)) + 1
