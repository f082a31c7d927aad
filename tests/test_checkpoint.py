"""Checkpoints: to the bit, atomic, readable without dpdist, and refused with a sentence where they do not fit."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
import zarr
from scipy import sparse

import dpdist
from dpdist import checkpoint, schema, storage
from dpdist.allocations import LearnedDirichletProcess
from dpdist.backends import SerialBackend
from dpdist.checkpoint import Store
from dpdist.families import FAMILIES
from dpdist.fitting import Limits, resumed
from dpdist.schedules import Memoized, Stochastic
from dpdist.sources import as_source
from dpdist.stored_problem import read_problem, write_problem
from dpdist.stored_state import read_state, write_state
from tests.runs import begun, clusters, digest, mixture, some_steps, source_of
from tests.test_moves import rows_for


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("schedule", [Memoized, Stochastic])
def test_a_stored_state_is_the_state_to_the_bit_at_every_wave(tmp_path, schedule, lookahead) -> None:
    source = source_of(clusters(2))
    problem, state = begun(mixture(schedule=schedule(4, lookahead), initial="k-means++", initial_components=3), source)
    states = [state] + [step.state for step in some_steps(problem, source, state, 13)]
    for place, each in enumerate(states):
        group = zarr.open_group(tmp_path / f"{place}", mode="w", zarr_format=3)
        write_state(group, each)
        assert digest(read_state(group)) == digest(each)


def test_sparse_samples_are_stored_too(tmp_path) -> None:
    rows = sparse.csr_array(np.random.default_rng(0).poisson(0.6, size=(400, 12)))
    source = source_of(rows)
    problem, state = begun(mixture(family=FAMILIES["multinomial"]()), source)
    whole = [step.state for step in some_steps(problem, source, state, 10)]
    group = zarr.open_group(tmp_path / "state", mode="w", zarr_format=3)
    write_state(group, whole[1])
    again = [step.state for step in some_steps(problem, source, read_state(group), 8)]
    assert whole[1].sample is not None and sparse.issparse(whole[1].sample.rows)
    assert digest_of_total(again[-1]) == digest_of_total(whole[-1])


def digest_of_total(state) -> bytes:
    return b"".join(leaf.summary.stats.tobytes() for leaf in state.leaves)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_stored_problem_gives_the_same_numbers(tmp_path, name) -> None:
    rows = rows_for(name, np.random.default_rng(0), 2.0)
    allocation = LearnedDirichletProcess(2.0, 0.5, max_components=9)
    problem, _ = begun(mixture(family=FAMILIES[name](), concentration=allocation), source_of(rows))
    group = zarr.open_group(tmp_path / "problem", mode="w", zarr_format=3)
    write_problem(group, problem)
    again = read_problem(group)
    stats = np.ones((2, 1)) * problem.model.family.features(problem.preparation.apply(rows)).sum(axis=0)
    np.testing.assert_array_equal(problem.model.family.log_evidence(stats), again.model.family.log_evidence(stats))
    assert again.model.allocation.log_evidence(np.array([3.0])) == allocation.log_evidence(np.array([3.0]))
    assert (again.schedule, again.plan, again.seed) == (problem.schedule, problem.plan, problem.seed)


@pytest.fixture
def data_path(tmp_path) -> str:
    path = tmp_path / "rows.zarr"
    rows = clusters(0, rows=2000)
    array = zarr.create_array(path, shape=rows.shape, dtype="float64", chunks=(128, 3))
    array[...] = rows
    return str(path)


def fitted_run(data: str, run, laps: int, **parameters) -> dpdist.DPMixture:
    model = mixture(max_laps=laps, tolerance=0.0, **parameters)
    for _ in model.iter_fit(data, checkpoint_path=run):
        pass
    return model


def gone_on(data: str, run, laps: int):
    fit = resumed(Store.open(run), as_source(data), SerialBackend(), Limits(laps))
    for _ in fit:
        pass
    return fit


def test_resume_equals_the_uninterrupted_run_to_the_bit(tmp_path, data_path) -> None:
    whole = fitted_run(data_path, tmp_path / "whole.zarr", 9)
    fitted_run(data_path, tmp_path / "part.zarr", 4)
    fit = gone_on(data_path, tmp_path / "part.zarr", 9)
    assert fit.fitted.elbo == whole.elbo_
    assert fit.fitted.total.stats.tobytes() == Store.open(tmp_path / "whole.zarr").fitted().total.stats.tobytes()
    assert fit.history.proposals == whole._history.proposals


def test_a_run_on_an_array_is_resumed_from_python(tmp_path) -> None:
    rows = clusters(0, rows=1500)
    whole = mixture(max_laps=6, tolerance=0.0).fit(rows)
    for _ in mixture(max_laps=3, tolerance=0.0).iter_fit(rows, checkpoint_path=tmp_path / "run.zarr"):
        pass
    again = dpdist.resume(tmp_path / "run.zarr", rows, max_laps=6)
    assert again.elbo_ == whole.elbo_ and again.n_iter_ == 6
    np.testing.assert_array_equal(again.predict(rows), whole.predict(rows))
    with pytest.raises(dpdist.CheckpointError, match="the data changed"):
        dpdist.resume(tmp_path / "run.zarr", rows + 1, max_laps=7)


def test_checkpoints_in_the_middle_of_a_lap_resume_to_the_same_bits(tmp_path, data_path) -> None:
    whole = fitted_run(data_path, tmp_path / "whole.zarr", 6)
    model = mixture(max_laps=6, tolerance=0.0)
    fit = model.prepare(data_path, tmp_path / "part.zarr")
    fit.checkpoint_seconds = 0.0
    for count, _ in enumerate(fit):
        if count == 13:
            break
    assert Store.open(tmp_path / "part.zarr").state().visit not in (0, 4)
    assert gone_on(data_path, tmp_path / "part.zarr", 6).fitted.elbo == whole.elbo_


def test_xarray_alone_reads_a_run(tmp_path, data_path) -> None:
    model = fitted_run(data_path, tmp_path / "run.zarr", 5)
    number = json.loads((tmp_path / "run.zarr" / "zarr.json").read_text())["attributes"]["dpdist"]["generation"]
    path = tmp_path / "run.zarr"
    components = xr.open_zarr(path, group=f"generations/{number:06d}/components", consolidated=False)
    assert components.attrs["elbo"] == model.elbo_
    np.testing.assert_array_equal(components["weight"].values, model.weights_)
    assert components["mean"].dims == ("component", "column")
    history = xr.open_zarr(path, group=f"generations/{number:06d}/history", consolidated=False)
    assert history["elbo"].values[-1] == model.elbo_ and history["elbo"].attrs["units"] == "nat"
    assert "accepted" in history["proposal_reason"].attrs["flag_meanings"]


def test_nothing_stored_is_pickled(tmp_path, data_path) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 3)
    kinds = {json.loads(file.read_text()).get("data_type") for file in (tmp_path / "run.zarr").rglob("zarr.json")}
    assert kinds <= {None, "float64", "int64", "int8"}


@pytest.mark.parametrize("when", ["generation", "rename", "pointer"])
def test_a_failed_write_leaves_the_last_good_generation(tmp_path, data_path, monkeypatch, when) -> None:
    run = tmp_path / "run.zarr"
    fitted_run(data_path, run, 3)
    before = Store.open(run).fitted()

    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    broken = {"generation": (checkpoint, "write_state"), "rename": (storage, "put_in_place")}
    monkeypatch.setattr(*broken.get(when, (storage, "_replace_attributes")), full)
    with pytest.raises(dpdist.CheckpointError, match=r"No space left.*the one before is intact.*dpdist resume"):
        gone_on(data_path, run, 6)
    monkeypatch.undo()
    assert Store.open(run).fitted().elbo == before.elbo
    assert not list((run / "generations").glob(".partial-*"))
    assert gone_on(data_path, run, 6).fitted.elbo == fitted_run(data_path, tmp_path / "whole.zarr", 6).elbo_


def test_a_full_disk_is_named_and_costs_nothing(tmp_path, data_path) -> None:
    """A real full disk: a small file system of its own."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        with pytest.raises(dpdist.CheckpointError, match="No space left"):
            for _, info in mixture(max_laps=6, tolerance=0.0).iter_fit(data_path, checkpoint_path=small / "run.zarr"):
                if info.lap == 3:
                    fill(small / "ballast")
        assert len(Store.open(small / "run.zarr").history().laps) in (2, 3)
        (small / "ballast").unlink()
        again = gone_on(data_path, small / "run.zarr", 6).fitted.elbo
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert again == fitted_run(data_path, tmp_path / "whole.zarr", 6).elbo_


def fill(path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def test_leftovers_of_a_killed_writer_are_swept(tmp_path, data_path) -> None:
    run = tmp_path / "run.zarr"
    fitted_run(data_path, run, 3)
    (run / "generations" / ".partial-000099").mkdir()
    gone_on(data_path, run, 4)
    names = sorted(entry.name for entry in (run / "generations").iterdir() if entry.is_dir())
    assert len(names) == 2 and not names[0].startswith(".")


def test_changed_data_are_refused(tmp_path, data_path) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 2)
    zarr.open_array(data_path, mode="r+")[0, 0] = 1e3
    with pytest.raises(dpdist.CheckpointError, match=r"the data changed since the checkpoint.*sha256"):
        gone_on(data_path, tmp_path / "run.zarr", 4)


def test_other_versions_are_warned_of(tmp_path, data_path, monkeypatch) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 2)
    monkeypatch.setattr(storage, "versions", lambda: {"numpy": "0.0"})
    with pytest.warns(UserWarning, match=r"numpy .* -> 0\.0.*not to the same bits"):
        resumed(Store.open(tmp_path / "run.zarr"), as_source(data_path), SerialBackend(), Limits(3))


def test_a_newer_format_is_refused(tmp_path, data_path, monkeypatch) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 2)
    monkeypatch.setattr(schema, "FORMAT", schema.FORMAT - 1)
    with pytest.raises(dpdist.CheckpointError, match="newer than this dpdist reads"):
        Store.open(tmp_path / "run.zarr")


def test_what_is_no_run_is_refused(tmp_path, data_path) -> None:
    for path in (tmp_path / "nothing", data_path, tmp_path):
        with pytest.raises(dpdist.CheckpointError, match="no dpdist run or model"):
            Store.open(path)


def test_an_existing_output_is_refused_and_kept(tmp_path, data_path) -> None:
    out = tmp_path / "run.zarr"
    first = fitted_run(data_path, out, 2)
    with pytest.raises(dpdist.OutputExistsError, match="--overwrite"):
        fitted_run(data_path, out, 2)
    assert dpdist.load(out).elbo_ == first.elbo_


def test_a_saved_model_predicts_alike_and_does_not_resume(tmp_path, data_path) -> None:
    rows = clusters(0, rows=2000)
    model = mixture(row_transform=dpdist.TransformPlan(pca=2), max_laps=5).fit(rows)
    model.save(tmp_path / "model.zarr")
    again = dpdist.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(model.predict_proba(rows), again.predict_proba(rows))
    np.testing.assert_array_equal(model.score_samples(rows), again.score_samples(rows))
    assert (model.component_ids_ == again.component_ids_).all() and model.elbo_ == again.elbo_
    with pytest.raises(dpdist.CheckpointError, match="it can predict but not resume"):
        Store.open(tmp_path / "model.zarr").state()


def test_a_model_is_read_in_another_process(tmp_path) -> None:
    rows = clusters(0)
    model = mixture(max_laps=4).fit(rows)
    model.save(tmp_path / "model.zarr")
    code = f"import dpdist; print(repr(dpdist.load({str(tmp_path / 'model.zarr')!r}).elbo_))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) == model.elbo_
