"""Laws of damage: any file of a run that is not what was written is told in a sentence, or of no consequence."""

from __future__ import annotations

import json
import random
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import dpdist
from dpdist.core.errors import CheckpointError
from dpdist.core.places import place_of
from dpdist.core.records import unsealed
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.commits import commits, read_commit

DAMAGE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "workflows" / "faults" / "damage.py"))
KINDS: dict[str, Any] = DAMAGE["KINDS"]
#: Files damaged a kind of run here; the workflow damages all.
TRIALS = [4, pytest.param(14, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=KINDS)
def whole(request, tmp_path_factory) -> tuple[str, Path, Any]:
    """A kind of run, one of it broken off, and what comes of it undamaged."""
    return request.param, *DAMAGE["whole_run"](request.param, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """A mixture broken off within a lap."""
    run = tmp_path_factory.mktemp("mixture") / "run.zarr"
    KINDS["mixture"].begin(KINDS["mixture"].data, run)
    return run


def test_every_file_of_a_run_is_named_by_a_commit_or_carries_a_digest_of_itself(whole) -> None:
    _, run, _ = whole
    place = place_of(run)
    digests = [read_commit(place, number)["digests"] for number in commits(place)]
    named = {f"{folder}/{file}" for each in digests for folder, files in each.items() for file in files}
    files = {file.relative_to(run).as_posix() for file in run.rglob("*") if file.is_file()}
    assert named <= files
    for file in files - named - {"zarr.json"}:
        assert file.endswith(".json") and unsealed((run / file).read_bytes(), file, "")


@pytest.mark.parametrize("trials", TRIALS)
def test_damage_of_any_file_is_told_or_of_no_consequence(whole, trials: int) -> None:
    kind, run, expected = whole
    draw = random.Random(kind)
    every = [each for each in DAMAGE["trials"](run, 1, draw) if not DAMAGE["removed_by_hand"](*each[:2])]
    records = [each for each in every if each[1].count("/") < 2]  # few, and read by everything
    chosen = draw.sample(every, trials) + draw.sample(records, trials // 3)
    found = [DAMAGE["try_damage"](run, file, damaged, KINDS[kind].data, expected) for _, file, damaged in chosen]
    assert set(found) <= {DAMAGE["TOLD"], DAMAGE["SAME"]}
    assert DAMAGE["TOLD"] in found


@pytest.mark.parametrize("name", ["problem", "generation", "objects"])
def test_damage_names_the_file_and_what_to_do(mixture, tmp_path, name) -> None:
    run = Path(shutil.copytree(mixture, tmp_path / "run.zarr"))
    store = RunStore.open(run)
    folder = store.attributes[name][0] if name == "objects" else store.attributes[name]
    part = {"problem": "", "generation": "components/", "objects": ""}[name]
    file = run / folder / part / "zarr.json"
    file.write_bytes(file.read_bytes().replace(b"}", b"} ", 1))
    with pytest.raises(CheckpointError) as caught:
        dpdist.resume(run, KINDS["mixture"].data)
    way_back = (
        f" To return to the previous checkpoint, if it is not damaged, remove {run}/commits/{store.number:06d}.json"
    )
    expected = f"{run}/{folder}/{part}zarr.json is damaged; restore it from a copy."
    assert str(caught.value) == expected + ("" if name == "problem" else way_back)


def test_a_model_is_loaded_whatever_befell_what_only_a_resumption_needs(mixture, tmp_path) -> None:
    run = Path(shutil.copytree(mixture, tmp_path / "run.zarr"))
    store = RunStore.open(run)
    before = dpdist.load(run).elbo_
    shutil.rmtree(run / store.attributes["objects"][0])
    shutil.rmtree(run / store.attributes["generation"] / "state")
    assert dpdist.load(run).elbo_ == before
    with pytest.raises(CheckpointError, match=r"is missing; restore it from a copy"):
        dpdist.resume(run, KINDS["mixture"].data)


def test_a_run_that_went_on_while_it_was_read_is_not_damaged(mixture, tmp_path) -> None:
    run = Path(shutil.copytree(mixture, tmp_path / "run.zarr"))
    store = RunStore.open(run)
    for _ in range(2):
        dpdist.resume(run, KINDS["mixture"].data, max_laps=RunStore.open(run).history().laps[-1].lap + 1)
    with pytest.raises(
        CheckpointError, match=rf"run.zarr was continued or removed while checkpoint {store.number} was"
    ):
        store.history()


def test_a_commit_that_stands_for_another_is_told(mixture, tmp_path) -> None:
    run = Path(shutil.copytree(mixture, tmp_path / "run.zarr"))
    number = RunStore.open(run).number
    (run / f"commits/{number + 1:06d}.json").write_bytes((run / f"commits/{number:06d}.json").read_bytes())
    with pytest.raises(CheckpointError, match=rf"commits/{number + 1:06d}\.json is a copy of another"):
        RunStore.open(run)


def test_who_reads_a_run_without_dpdist_is_told_of_a_damaged_chunk(mixture, tmp_path) -> None:
    run = Path(shutil.copytree(mixture, tmp_path / "run.zarr"))
    group = f"{RunStore.open(run).attributes['generation']}/components"
    chunk = run / group / "weight/c/0"
    data = chunk.read_bytes()
    chunk.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(ValueError, match="checksum"):
        xr.open_zarr(run, group=group, consolidated=False)["weight"].load()


def test_a_commit_tells_its_digests_to_people_too(mixture) -> None:
    store = RunStore.open(mixture)
    commit = json.loads((mixture / f"commits/{store.number:06d}.json").read_text())
    assert set(commit["digests"]) == {commit["problem"], commit["generation"], *commit["objects"]}
    assert all(len(digest) == 32 for files in commit["digests"].values() for digest in files.values())
    assert list(commit)[-1] == "digest"
