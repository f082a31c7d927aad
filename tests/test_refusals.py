"""What is refused of a stored run, or fails, leaves it free: another process may write to it at once."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("made", ["run", "extension"])
def test_a_run_whose_first_checkpoint_fails_leaves_its_place_free(tmp_path: Path, made: str, monkeypatch) -> None:
    path = tmp_path / "run.zarr"
    if made == "extension":
        pass_over(path)
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, "add_generation", fail)
        with pytest.raises((DpdistError, OSError)):
            dpdist.extend(path, ROWS + 1) if made == "extension" else fit(path)
    check_free(path)
