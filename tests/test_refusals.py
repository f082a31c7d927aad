"""What is refused of a stored run, or fails, leaves it free: another process may write to it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dpdist
from dpdist.core.errors import DpdistError
from dpdist.core.lease import latest_lease
from dpdist.core.places import LocalPlace, place_of
from dpdist.models.families import IsotropicGaussian
from dpdist.storage.generations import GenerationStore
from tests.runs import clusters

ROWS = clusters(2, rows=120)


def fit(path: Path) -> None:
    """Make a run that is not over."""
    laps = dpdist.DPMixture(max_laps=9, tolerance=0.0, random_state=0).iter_fit(ROWS, checkpoint_path=path)
    next(laps)
    laps.close()


def pass_over(path: Path) -> None:
    """Make a finished pass."""
    for _ in dpdist.SVA(IsotropicGaussian(), random_state=0).iter_fit(ROWS, checkpoint_path=path):
        pass


def save(path: Path) -> None:
    """Save a model."""
    dpdist.DPMixture(max_laps=1, random_state=0).fit(ROWS).save(path)


def fail(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


#: By name: what is there before, and what is refused.
REFUSED: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "other rows than it began with": (fit, lambda path: dpdist.resume(path, ROWS + 1)),
    "a saved model is no run": (save, lambda path: dpdist.resume(path, ROWS)),
    "new rows of other columns": (pass_over, lambda path: dpdist.extend(path, np.zeros((9, 5)))),
    "rows it was made from": (pass_over, lambda path: dpdist.extend(path, ROWS)),
}


@pytest.fixture(autouse=True)
def no_lease_lives_on() -> Iterator[None]:
    """What shows that a writer lives ends with the test."""
    before = set(threading.enumerate())
    yield
    assert not [each for each in threading.enumerate() if each.name == "dpdist-lease" and each not in before]


def test_a_run_and_a_model_are_no_rows(tmp_path: Path) -> None:
    for make, name in ((pass_over, "run.zarr"), (save, "model.zarr")):
        make(tmp_path / name)
        with pytest.raises(dpdist.InputError, match=f"{name} should hold rows; it is a run or model of dpdist"):
            dpdist.DPMixture().fit(tmp_path / name)


def check_free(path: Path) -> None:
    """Nobody holds the right to write."""
    _, found = latest_lease(place_of(path))
    assert found is None or found["released"]


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:the fit stopped")
def test_a_refusal_leaves_the_run_free(tmp_path: Path, name: str) -> None:
    make, refused = REFUSED[name]
    make(tmp_path / "run.zarr")
    with pytest.raises(DpdistError):
        refused(tmp_path / "run.zarr")
    check_free(tmp_path / "run.zarr")


@pytest.mark.parametrize("place", [(LocalPlace, "fill"), (GenerationStore, "add_generation")], ids=["problem", "model"])
@pytest.mark.filterwarnings("ignore:the fit stopped")
def test_what_cannot_be_written_leaves_its_place_free(tmp_path: Path, place: tuple[type, str], monkeypatch) -> None:
    model = dpdist.DPMixture(max_laps=1, random_state=0).fit(ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(*place, fail)
        with pytest.raises((DpdistError, OSError)):
            model.save(tmp_path / "model.zarr")
    check_free(tmp_path / "model.zarr")
    model.save(tmp_path / "model.zarr")
    assert dpdist.load(tmp_path / "model.zarr").elbo_ == model.elbo_


BEGUN: dict[str, Callable[[Path, Path], object]] = {
    "run": lambda _, path: fit(path),
    "extension": lambda passed, _: dpdist.extend(passed, ROWS + 1),
    "extension elsewhere": lambda passed, path: dpdist.extend(passed, ROWS + 1, out=path),
}


@pytest.mark.parametrize("begun", BEGUN)
def test_a_run_whose_first_checkpoint_fails_leaves_its_place_free(tmp_path: Path, begun: str, monkeypatch) -> None:
    pass_over(tmp_path / "passed.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, "add_generation", fail)
        with pytest.raises((DpdistError, OSError)):
            BEGUN[begun](tmp_path / "passed.zarr", tmp_path / "run.zarr")
    for name in ("passed.zarr", "run.zarr"):
        check_free(tmp_path / name)
