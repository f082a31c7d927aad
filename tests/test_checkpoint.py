"""Checkpoints: to the bit, atomic, readable without dpdist, and refused with a sentence where they do not fit."""

from __future__ import annotations

import contextlib
import errno
import inspect
import itertools
import json
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr
import zarr
from scipy import sparse

import dpdist
from dpdist.core.places import LocalPlace
from dpdist.data import as_source
from dpdist.execution import SerialBackend
from dpdist.models.allocations import LearnedDirichletProcess
from dpdist.models.families import FAMILIES
from dpdist.runs.limits import Limits
from dpdist.runs.opening import resumed
from dpdist.runs.run import Run
from dpdist.storage import checkpoint, codec, fingerprints
from dpdist.storage.checkpoint import RunStore
from dpdist.storage.memo import Memo
from tests.runs import ALL_MOVES, begun, clusters, mixture, some_steps, source_of
from tests.test_moves import rows_for


def test_a_batch_summary_is_written_once_and_kept_as_long_as_a_generation_needs_it(tmp_path, data_path) -> None:
    run = tmp_path / "run.zarr"
    model = mixture(max_laps=4, tolerance=0.0)
    fit = model.prepare(data_path, run)
    fit.checkpoint_seconds = 0.0
    seen: dict[str, int] = {}
    stored: dict[str, int] = {}
    starts = {id(fit.state.start): fit.state.start}
    for step in fit:
        fit.settle()
        starts[id(step.state.start)] = step.state.start
        entries = list((run / "objects").iterdir())
        there = {entry.name: (entry / "summary/stats/c/0/0/0").stat().st_mtime_ns for entry in entries}
        assert all(seen.get(name, time) == time for name, time in there.items())
        stored |= {entry.name: zarr.open_array(entry / "summary/stats", mode="r").shape[0] for entry in entries}
        seen |= there
        commits = [json.loads(file.read_text()) for file in sorted((run / "commits").iterdir())]
        assert len(commits) <= 2
        assert {f"objects/{name}" for name in there} == {name for commit in commits for name in commit["objects"]}
    blank, visits = 1, 4 * 4  # laps times batches: nothing was written twice
    assert sum(stored.values()) == blank + visits + sum(start is not None for start in starts.values())


def test_sparse_samples_are_stored_too(tmp_path) -> None:
    rows = sparse.csr_array(np.random.default_rng(0).poisson(0.6, size=(400, 12)))
    model = mixture(family=FAMILIES["multinomial"](), max_laps=3, tolerance=0.0)
    fit = model.prepare(source_of(rows), tmp_path / "run.zarr")
    fit.checkpoint_seconds = 0.0
    whole = list(zip(range(10), fit, strict=False))
    fit = model.prepare(source_of(rows), tmp_path / "again.zarr")
    fit.checkpoint_seconds = 0.0
    for count, _ in enumerate(fit):
        if count == 1:
            break
    fit.close()
    stored = RunStore.open(tmp_path / "again.zarr").state()[0]
    assert stored.sample is not None and sparse.issparse(stored.sample.rows)
    again = list(some_steps(fit.problem, fit.source, stored, 8))
    assert digest_of_total(again[-1].state) == digest_of_total(whole[-1][1].state)


def digest_of_total(state) -> bytes:
    return b"".join(batch_summary.summary.stats.tobytes() for batch_summary in state.batch_summaries)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_stored_problem_gives_the_same_numbers(tmp_path, name) -> None:
    rows = rows_for(name, np.random.default_rng(0), 2.0)
    allocation = LearnedDirichletProcess(2.0, 0.5, max_components=9)
    problem, _ = begun(mixture(family=FAMILIES[name](), concentration=allocation), source_of(rows))
    group = zarr.open_group(tmp_path / "problem", mode="w", zarr_format=3)
    codec.write(group, problem)
    again = codec.read(group)
    stats = np.ones((2, 1)) * problem.model.family.features(problem.preparation.apply(rows)).sum(axis=0)
    np.testing.assert_array_equal(problem.model.family.log_evidence(stats), again.model.family.log_evidence(stats))
    assert again.model.allocation.log_evidence(np.array([3.0])) == allocation.log_evidence(np.array([3.0]))
    assert (again.schedule, again.moves, again.seed) == (problem.schedule, problem.moves, problem.seed)


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
    fit = resumed(RunStore.open(run), as_source(data), SerialBackend(), Limits(laps))
    for _ in fit:
        pass
    return fit


def test_resume_equals_the_uninterrupted_run_to_the_bit(tmp_path, data_path) -> None:
    whole = fitted_run(data_path, tmp_path / "whole.zarr", 9, moves=ALL_MOVES)
    fitted_run(data_path, tmp_path / "part.zarr", 4, moves=ALL_MOVES)
    fit = gone_on(data_path, tmp_path / "part.zarr", 9)
    assert fit.fitted.elbo == whole.elbo_
    assert fit.fitted.total.stats.tobytes() == RunStore.open(tmp_path / "whole.zarr").fitted().total.stats.tobytes()
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
    with pytest.raises(dpdist.InputError, match="max_laps should be a whole number of at least 1"):
        dpdist.resume(tmp_path / "run.zarr", rows, max_laps=0)


def test_a_process_that_goes_elsewhere_writes_where_it_began(tmp_path, monkeypatch) -> None:
    """Also the beats of the lease, which go on in a thread."""
    rows, elsewhere = clusters(1), tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpdist.core.lease.BEAT", 0.01)
    for _ in mixture(max_laps=3, tolerance=0.0).iter_fit(rows, checkpoint_path="run.zarr", checkpoint_seconds=0.0):
        monkeypatch.chdir(elsewhere)
        time.sleep(0.05)
    assert not any(elsewhere.iterdir())
    assert dpdist.load(tmp_path / "run.zarr").n_iter_ == 3


@pytest.mark.parametrize("seed", range(6))
def test_an_interruption_at_any_line_leaves_a_checkpoint_that_is_whole(tmp_path, data_path, seed) -> None:
    fit = mixture(max_laps=2, tolerance=0.0).prepare(data_path, tmp_path / "part.zarr")
    fit.checkpoint_seconds = 0.0
    lines, place = {inspect.getfile(Run), inspect.getfile(Memo)}, random.Random(seed).randrange(450)
    put, counted = fit.store.put_batch_summaries, itertools.count()
    fit.store.put_batch_summaries = lambda name, batch_summaries: (time.sleep(0.003), put(name, batch_summaries))

    def watch(frame, event, _argument):
        if frame.f_code.co_filename not in lines:
            return None
        if event == "line" and next(counted) == place:
            raise KeyboardInterrupt
        return watch

    reached = 0
    sys.settrace(watch)
    try:
        for step in fit:
            reached = step.state.visited + 4 * step.state.lap
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    assert next(counted) > place, "no interruption came"
    stored = RunStore.open(tmp_path / "part.zarr").state()[0]
    assert stored.visited + 4 * stored.lap >= reached
    whole = mixture(max_laps=2, tolerance=0.0).fit(data_path)
    assert gone_on(data_path, tmp_path / "part.zarr", 2).fitted.elbo == whole.elbo_


def test_a_fit_goes_on_after_it_lost_its_cluster(tmp_path, data_path, monkeypatch) -> None:
    whole = fitted_run(data_path, tmp_path / "whole.zarr", 6)
    fit = mixture(max_laps=6, tolerance=0.0).prepare(data_path, tmp_path / "part.zarr")
    share, calls = SerialBackend.share, iter(range(1000))

    def lost(self, value, label=None):
        if next(calls) in (15, 29):
            raise dpdist.core.errors.ClusterLostError("the cluster is gone.")
        return share(self, value, label)

    monkeypatch.setattr(SerialBackend, "share", lost)
    for _ in range(2):
        with pytest.raises(dpdist.core.errors.ClusterLostError):
            for _ in fit:
                pass
    for _ in fit:
        pass
    assert fit.fitted.elbo == whole.elbo_ and dpdist.load(tmp_path / "part.zarr").elbo_ == whole.elbo_


def test_a_run_with_all_its_laps_is_not_given_another(tmp_path, data_path) -> None:
    first = fitted_run(data_path, tmp_path / "run.zarr", 3)
    for laps in (3, 2):
        again = dpdist.resume(tmp_path / "run.zarr", data_path, max_laps=laps)
        assert again.elbo_ == first.elbo_ and again.n_iter_ == 3 and again.stop_reason_ == first.stop_reason_
    assert dpdist.resume(tmp_path / "run.zarr", data_path, max_laps=4).n_iter_ == 4


def test_xarray_alone_reads_a_run(tmp_path, data_path) -> None:
    model = fitted_run(data_path, tmp_path / "run.zarr", 5)
    path = tmp_path / "run.zarr"
    current = json.loads(sorted((path / "commits").iterdir())[-1].read_text())["generation"]
    components = xr.open_zarr(path, group=f"{current}/components", consolidated=False)
    assert components.attrs["elbo"] == model.elbo_
    np.testing.assert_array_equal(components["weight"].values, model.weights_)
    assert components["mean"].dims == ("component", "column")
    history = xr.open_zarr(path, group=f"{current}/history", consolidated=False)
    assert history["elbo"].values[-1] == model.elbo_ and history["elbo"].attrs["units"] == "nat"
    assert "accepted" in history["proposal_reason"].attrs["flag_meanings"]


def test_nothing_stored_is_pickled(tmp_path, data_path) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 3)
    kinds = {json.loads(file.read_text()).get("data_type") for file in (tmp_path / "run.zarr").rglob("zarr.json")}
    assert kinds <= {None, "float64", "int64", "int8"}


@pytest.mark.parametrize("when", ["batch summary", "generation", "commit"])
def test_a_failed_write_leaves_the_last_good_generation(tmp_path, data_path, monkeypatch, when) -> None:
    run = tmp_path / "run.zarr"
    fitted_run(data_path, run, 3)
    before = RunStore.open(run).fitted()

    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    broken = {
        "batch summary": (codec, "write", full),
        "generation": (checkpoint, "_write_components", full),
        "commit": (LocalPlace, "create", full),
    }
    store = RunStore.open(run)
    store.lock()
    monkeypatch.setattr(*broken[when])
    with pytest.raises(
        dpdist.CheckpointError,
        match=r"No space left.*the previous one is intact.*repeat the command; a fit.*dpdist resume",
    ):
        for _ in resumed(store, as_source(data_path), SerialBackend(), Limits(6)):
            pass
    monkeypatch.undo()
    assert RunStore.open(run).fitted().elbo == before.elbo
    assert len(list((run / "generations").iterdir())) == 2
    assert gone_on(data_path, run, 6).fitted.elbo == fitted_run(data_path, tmp_path / "whole.zarr", 6).elbo_


def test_a_full_disk_is_named_and_costs_nothing(tmp_path, data_path) -> None:
    """A real full disk: a small file system of its own."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        with pytest.raises(dpdist.CheckpointError, match="No space left"):
            model, kept = mixture(max_laps=6, tolerance=0.0), small / "run.zarr"
            for _, info in model.iter_fit(data_path, checkpoint_path=kept, checkpoint_seconds=0.0):
                if info.lap == 3:
                    fill(small / "ballast")
        assert len(RunStore.open(small / "run.zarr").history().laps) in (2, 3)
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
    leftovers = [run / name for name in ("generations/000099-aa", "objects/000009-00001-bb", "problems/cc")]
    for folder in leftovers:
        folder.mkdir()
    leftovers.append(run / "commits" / ".000009.json.partial-dd")
    leftovers[-1].touch()
    gone_on(data_path, run, 4)
    assert not any(each.exists() for each in leftovers) and len(list((run / "generations").iterdir())) == 2


def test_changed_data_are_refused(tmp_path, data_path) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 2)
    zarr.open_array(data_path, mode="r+")[0, 0] = 1e3
    with pytest.raises(
        dpdist.CheckpointError, match=r"the data changed since the checkpoint.*rows 0 to 256.*Restore the data"
    ):
        gone_on(data_path, tmp_path / "run.zarr", 4)


def test_other_versions_are_warned_of(tmp_path, data_path, monkeypatch) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 2)
    monkeypatch.setattr(fingerprints, "versions", lambda: {"numpy": "0.0"})
    with pytest.warns(UserWarning, match=r"numpy .* -> 0\.0.*not bit-identical"):
        resumed(RunStore.open(tmp_path / "run.zarr"), as_source(data_path), SerialBackend(), Limits(3))


def test_another_format_is_refused(tmp_path, data_path, monkeypatch) -> None:
    fitted_run(data_path, tmp_path / "run.zarr", 2)
    for reads, age in ((codec.FORMAT - 1, "newer"), (codec.FORMAT + 1, "older")):
        with monkeypatch.context() as patch, pytest.raises(dpdist.CheckpointError, match=f"{age} than this dpdist"):
            patch.setattr(codec, "FORMAT", reads)
            RunStore.open(tmp_path / "run.zarr")


def test_what_is_no_run_is_refused(tmp_path, data_path) -> None:
    for path in (tmp_path / "nothing", data_path, tmp_path):
        with pytest.raises(dpdist.CheckpointError, match="no dpdist run or model"):
            RunStore.open(path)


def test_an_existing_output_is_refused_and_kept(tmp_path, data_path) -> None:
    out = tmp_path / "run.zarr"
    first = fitted_run(data_path, out, 2)
    with pytest.raises(dpdist.OutputExistsError, match="overwrite=True"):
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
        RunStore.open(tmp_path / "model.zarr").state()


def test_where_nothing_could_be_kept_nobody_is_told_to_go_on(tmp_path, monkeypatch) -> None:
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model = mixture(max_laps=1).fit(clusters(0))
    monkeypatch.setattr(LocalPlace, "fill", full)
    with pytest.raises(dpdist.CheckpointError, match=r"No space left.*nothing was stored there before.*start again\."):
        model.save(tmp_path / "model.zarr")
