"""Passes on the command line: fit, look, predict, extend, resume after a kill, and one line for every refusal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import dpdist
from dpdist.cli import root as cli
from dpdist.models.families import IsotropicGaussian
from dpdist.report.reading import course_of
from dpdist.runs.events import Event, LapEvent
from dpdist.runs.progress import LiveProgress
from dpdist.storage.checkpoint import RunStore
from tests.runs import clusters, is_finished, mixture
from tests.test_cli import Command, command_line, dpdist_command, started, succeeded
from tests.test_sva import bits, rounds_of
from tests.waiting import wait_until


def stored(path: Path, rows: np.ndarray) -> None:
    """Rows on disk, in partitions of 256."""
    array = zarr.create_array(path, shape=rows.shape, dtype="float64", chunks=(256, rows.shape[1]))
    array[...] = rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, more of them, and rows held out."""
    folder = tmp_path_factory.mktemp("sva")
    rows = clusters(0, rows=3500, columns=4, groups=6)
    for name, part in (("rows", rows[:2500]), ("more", rows[2500:3000]), ("held", rows[3000:])):
        stored(folder / f"{name}.zarr", part)
    stored(folder / "narrow.zarr", np.ones((5, 3)))
    bad = rows[:600].copy()
    bad[[7, 300], 1] = np.nan
    stored(folder / "nan.zarr", bad)
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in a folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.rmtree(folder / "x.zarr", ignore_errors=True)
    return command_line(monkeypatch, capsys)


@pytest.fixture
def model(run: Command, folder: Path) -> str:
    """The name of a finished pass, made once."""
    if not (folder / "model.zarr").exists():
        run("sva", "rows.zarr", "--out", "model.zarr", "--holdout", "held.zarr", "--serial")
    return "model.zarr"


def test_a_pass_typed_is_the_pass_in_python(folder: Path) -> None:
    given = ("--family", "isotropic_gaussian", "--holdout", "held.zarr", "--serial")
    text = succeeded(dpdist_command("sva", "rows.zarr", "--out", "way.zarr", *given, folder=folder))
    assert "of 2500 rows;" in text and "dpdist show way.zarr" in text
    python = dpdist.SVA(IsotropicGaussian(), random_state=0).fit(folder / "rows.zarr", holdout=folder / "held.zarr")
    loaded = dpdist.load(folder / "way.zarr")
    assert bits(loaded) == bits(python)
    xr.testing.assert_identical(rounds_of(loaded), rounds_of(python))


def test_show_tells_what_a_pass_reached(run: Command, folder: Path, model: str) -> None:
    values = json.loads(run("show", model, "--json"))
    loaded = dpdist.load(folder / model)
    assert values["method"] == "sequential" and values["stop_reason"] == "all rows were passed"
    assert values["n_components"] == loaded.n_components_ == len(values["weights"])
    assert values["component_ids"] == loaded.component_ids_.tolist() and values["rows"] == 2500
    assert sum(values["weights"]) + values["rest_weight"] == pytest.approx(1)
    assert values["holdout_score"] == loaded.history_["holdout_score"].values[-1]
    assert values["holdout_score"] == pytest.approx(loaded.score(folder / "held.zarr"), rel=1e-12)
    assert values["laps"] == loaded.history_.sizes["lap"] == 5
    assert values["settings"]["holdout"] == str(folder / "held.zarr")
    text = run("show", model)
    for words in ("clusters", "holdout score", f"{values['holdout_score']:.6f}", "5 in", "all rows were passed"):
        assert words in text
    rounds = text[text.index("last rounds") :]
    assert "held out" in rounds and f"{values['holdout_score']:.6f}" in rounds and "ELBO" not in rounds


def test_predict_labels_rows_as_the_estimator_does(run: Command, folder: Path, model: str) -> None:
    run("extend", model, "more.zarr", "--out", "grown.zarr", "--serial")
    loaded = dpdist.load(folder / "grown.zarr")
    options = ("--top", 2, "--density", "--serial")
    assert "500 rows labelled" in run("predict", "grown.zarr", "held.zarr", "--out", "labels.zarr", *options)
    labels = xr.open_zarr(folder / "labels.zarr", consolidated=False)
    held = folder / "held.zarr"
    np.testing.assert_array_equal(labels["label"].values, loaded.predict(held))
    np.testing.assert_array_equal(labels["id"].values, loaded.component_ids_)
    np.testing.assert_array_equal(labels["top_label"].values, loaded.predict_top(held, 2)[0])
    np.testing.assert_allclose(labels["top_probability"].values, loaded.predict_top(held, 2)[1])
    np.testing.assert_array_equal(labels["log_density"].values, loaded.score_samples(held))


def test_extend_grows_a_model_in_place_or_elsewhere(run: Command, folder: Path, model: str) -> None:
    before = dpdist.load(folder / model)
    assert "of 3000 rows;" in run("extend", model, "more.zarr", "--out", "longer.zarr", "--serial")
    assert json.loads(run("show", "longer.zarr", "--json"))["holdout_score"] is None  # that was of the model before
    assert course_of(folder / "longer.zarr").holdout is None
    longer = dpdist.load(folder / "longer.zarr")
    assert set(before.component_ids_) <= set(longer.component_ids_) and longer.rows_seen_ == 3000
    assert bits(dpdist.load(folder / model)) == bits(before)
    run("extend", model, "more.zarr", "--out", "twice.zarr", "--serial")
    run("extend", "twice.zarr", "held.zarr", "--serial")
    run("extend", "longer.zarr", "held.zarr", "--serial")
    assert bits(dpdist.load(folder / "twice.zarr")) == bits(dpdist.load(folder / "longer.zarr"))
    assert dpdist.load(folder / "twice.zarr").rows_seen_ == 3500
    settings = json.loads(run("show", "twice.zarr", "--json"))["settings"]
    assert settings["data"] == str(folder / "held.zarr")


def test_extend_grows_a_fitted_run(run: Command, folder: Path) -> None:
    fitted = mixture(max_laps=10).fit(folder / "rows.zarr")
    fitted.save(folder / "fit.zarr")
    assert "store the result with --out" in run("extend", "fit.zarr", "more.zarr", "--serial", refused=True)
    run("extend", "fit.zarr", "more.zarr", "--out", "fit-grown.zarr", "--serial")
    grown = dpdist.load(folder / "fit-grown.zarr")
    assert set(fitted.component_ids_) <= set(grown.component_ids_) and grown.rows_seen_ == 3000
    assert json.loads(run("show", "fit-grown.zarr", "--json"))["stop_reason"] == "all rows were passed"


def test_of_an_extended_fit_rows_seen_holds_the_weight_of_its_rows(tmp_path: Path) -> None:
    rows, weights = np.random.default_rng(0).normal(size=(80, 2)), np.repeat([0.0, 3.0], 20)
    mixture(max_laps=2, moves=[]).fit(rows[:40], sample_weight=weights).save(tmp_path / "fit.zarr")
    grown = dpdist.extend(tmp_path / "fit.zarr", rows[40:], sample_weight=weights, out=tmp_path / "grown.zarr")
    assert grown.rows_seen_ == 60 + 20


def test_a_finished_pass_has_nothing_to_resume(run: Command, folder: Path, model: str) -> None:
    before = bits(dpdist.load(folder / model))
    assert "has ended (all rows were passed); add more data with: dpdist extend" in run("resume", model)
    assert bits(dpdist.load(folder / model)) == before


# the same pass, asked for in other ways


OPTIONS = [
    *("--family", "isotropic_gaussian", "--concentration", 2.0, "--threshold", 0.02, "--merge", "distance"),
    *("--merge-threshold", 0.4, "--prune", 0.002, "--max-components", 40, "--pca", 3, "--scale", "--random-state", 5),
    *("--holdout", "held.zarr", "--compute-dtype", "float32"),
]
TOML = """
data = "rows.zarr"
holdout = "held.zarr"
random_state = 5
concentration = 2.0
threshold = 0.02
merge = "distance"
merge_threshold = 0.4
prune = 0.002
max_components = 40
compute_dtype = "float32"
family = { name = "isotropic_gaussian" }
row_transform = { pca = 3, scale = true }
"""


def test_a_configuration_says_the_same_as_options(run: Command, folder: Path) -> None:
    (folder / "pass.toml").write_text(TOML)
    run("sva", "rows.zarr", "--out", "options.zarr", *OPTIONS, "--serial")
    run("sva", "--config", "pass.toml", "--out", "toml.zarr", "--serial")
    options, toml = (dpdist.load(folder / f"{name}.zarr") for name in ("options", "toml"))
    assert bits(options) == bits(toml)
    xr.testing.assert_identical(rounds_of(options), rounds_of(toml))
    assert options.get_params()["merge"] == toml.get_params()["merge"] and toml.compute_dtype == "float32"
    stores = [RunStore.open(folder / f"{name}.zarr").settings for name in ("options", "toml")]
    assert stores[0] == stores[1] and toml._problem.preparation.width == 3
    run("sva", "--config", "pass.toml", "--out", "other.zarr", "--random-state", 6, "--merge", "none", "--serial")
    assert (dpdist.load(folder / "other.zarr").random_state, dpdist.load(folder / "other.zarr").merge) == (6, None)


def test_hyperparameters_and_likelihoods_come_from_the_configuration(run: Command, folder: Path) -> None:
    shares = np.random.default_rng(0).dirichlet([1.0, 2.0, 3.0], 600)
    stored(folder / "shares.zarr", shares)
    (folder / "shares.toml").write_text(
        'own_clock = false\nforgetting = 0.7\n[family]\nname = "dirichlet"\nprecision = 12.0\n'
    )
    run("sva", "shares.zarr", "--config", "shares.toml", "--out", "shares-model.zarr", "--serial")
    loaded = dpdist.load(folder / "shares-model.zarr")
    assert loaded.family.precision == 12.0 and (loaded.forgetting, loaded.own_clock) == (0.7, False)
    python = dpdist.SVA(dpdist.likelihoods.Dirichlet(12.0), forgetting=0.7, own_clock=False, random_state=0)
    assert bits(python.fit(folder / "shares.zarr")) == bits(loaded)
    assert json.loads(run("show", "shares-model.zarr", "--json"))["n_components"] == loaded.n_components_


def test_a_strictly_sequential_pass_in_order_can_be_asked_for(run: Command, folder: Path) -> None:
    run("sva", "rows.zarr", "--out", "strict.zarr", "--no-parallel", "--no-shuffle", "--serial")
    strict = dpdist.SVA(parallel=False, shuffle=False, random_state=0).fit(folder / "rows.zarr")
    assert bits(dpdist.load(folder / "strict.zarr")) == bits(strict) and strict.history_.sizes["lap"] == 10


def test_help_lists_the_options_of_a_pass(run: Command) -> None:
    text = run("sva", "--help")
    names = "out config holdout random-state family concentration threshold merge merge-threshold prune max-components"
    more = "parallel shuffle pca center scale compute-dtype checkpoint-seconds workers scheduler serial overwrite"
    for name in f"{names} {more}".split():
        assert f"--{name}" in text
    assert "sva" in run("--help") and "extend" in run("--help")


# interrupted


@pytest.mark.slow
def test_kill_9_of_everything_then_resume_gives_the_same_bits(run: Command, folder: Path) -> None:
    given = ("--holdout", "held.zarr", "--no-parallel")
    stored(folder / "many.zarr", clusters(1, rows=7000, columns=4))
    arguments = ("many.zarr", "--out", "killed.zarr", *given, "--workers", 2, "--checkpoint-seconds", 0)
    process = started(folder, "sva", *arguments)
    output = folder / "output.txt"
    wait_until(lambda: generation(folder / "killed.zarr") >= 4, output.read_text, process, pause=0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    killed = RunStore.open(folder / "killed.zarr")
    assert not is_finished(folder / "killed.zarr") and 3 <= killed.state()[0].visited < 28
    assert "clusters of 7000 rows" in run("resume", "killed.zarr", "--serial")
    python = dpdist.SVA(parallel=False, random_state=0).fit(folder / "many.zarr", holdout=folder / "held.zarr")
    loaded = dpdist.load(folder / "killed.zarr")
    assert bits(loaded) == bits(python)
    xr.testing.assert_identical(rounds_of(loaded), rounds_of(python))


def generation(run: Path) -> int:
    """Checkpoints that a pass has written; -1 before the first."""
    try:
        return RunStore.open(run).number
    except dpdist.CheckpointError:
        return -1


def broken_off(folder: Path, name: str, rounds: int) -> dpdist.SVA:
    """What the whole pass would have given; one that stopped after some rounds is at `name`."""
    model = dpdist.SVA(IsotropicGaussian(), random_state=0)
    data, held = folder / "rows.zarr", folder / "held.zarr"
    for _, info in model.iter_fit(data, holdout=held, checkpoint_path=folder / name, checkpoint_seconds=0.0):
        if info.lap == rounds:
            break
    return model.fit(data, holdout=held)


@pytest.mark.parametrize("rounds", [1, 3, 4])
def test_resume_goes_on_scoring_the_held_out_rows(run: Command, folder: Path, rounds: int) -> None:
    name = f"broken{rounds}.zarr"
    whole = broken_off(folder, name, rounds)
    assert json.loads(run("show", name, "--json"))["stop_reason"] is None
    assert "not yet: continue with dpdist resume" in run("show", name)
    assert f"has not finished. Finish it with: dpdist resume {name}" in run(
        "extend", name, "more.zarr", "--serial", refused=True
    )
    run("resume", name, "--serial")
    loaded = dpdist.load(folder / name)
    assert bits(loaded) == bits(whole)
    xr.testing.assert_identical(rounds_of(loaded), rounds_of(whole))
    assert not np.isnan(loaded.history_["holdout_score"].values).any()


def test_data_that_moved_are_named_at_resume_and_others_refused(run: Command, folder: Path) -> None:
    whole = broken_off(folder, "moved.zarr", 2)
    (folder / "rows.zarr").rename(folder / "elsewhere.zarr")
    try:
        assert "there is no Zarr array and no corpus at" in run("resume", "moved.zarr", "--serial", refused=True)
        text = run("resume", "moved.zarr", "--data", "more.zarr", "--serial", refused=True)
        assert "the data changed since the checkpoint" in text
        run("resume", "moved.zarr", "--data", "elsewhere.zarr", "--serial")
    finally:
        (folder / "elsewhere.zarr").rename(folder / "rows.zarr")
    assert bits(dpdist.load(folder / "moved.zarr")) == bits(whole)


def test_ctrl_c_keeps_everything_and_says_how_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(_bar: LiveProgress, event: Event) -> None:
        if isinstance(event, LapEvent) and event.lap == 2:
            raise KeyboardInterrupt

    monkeypatch.chdir(folder)
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(LiveProgress, "tell", pressed)
        patched.setattr(sys, "argv", ["dpdist", "sva", "rows.zarr", "--out", "stopped.zarr", "--serial"])
        cli.main()
    assert ended.value.code == 130
    assert "nothing is lost. Continue with: dpdist resume stopped.zarr" in capsys.readouterr().err
    store = RunStore.open(folder / "stopped.zarr")
    assert not is_finished(folder / "stopped.zarr") and store.state()[0].visited == 2
    again = dpdist.resume(folder / "stopped.zarr", folder / "rows.zarr")
    assert bits(again) == bits(dpdist.SVA(random_state=0).fit(folder / "rows.zarr"))


# refusals


def asked(*arguments: object) -> list[object]:
    """A pass over the rows, with more arguments."""
    return ["sva", "rows.zarr", "--out", "x.zarr", "--serial", *arguments]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sva"], "sva needs data: give their path, as in dpdist sva"),
        (["sva", "nothing.zarr", "--out", "x.zarr"], "there is no Zarr array and no corpus at"),
        (["sva", "rows.npy", "--out", "x.zarr"], "there is no file at"),
        (["sva", "nan.zarr", "--out", "x.zarr", "--serial"], "NaN or infinity in 2 of 600 rows (rows 7, 300)"),
        (["sva", "rows.zarr", "--out", "rows.zarr"], "exists and is not a dpdist run"),
        (["sva", "rows.zarr", "--out", "no/such/x.zarr"], "does not exist; create it first"),
        (asked("--concentration", 0), "concentration should be finite and above zero, from 1e-100 to 1e+09; got 0."),
        (asked("--merge", "closest"), "merge should be one of 'auto', 'evidence'"),
        (asked("--family", "cauchy"), "setting family: name should be 'gaussian'"),
        (asked("--family", "poisson"), "counts"),
        (asked("--family", "dirichlet"), "Dirichlet needs rows of two or more proportions that sum to 1"),
        (
            asked("--family", "dirichlet", "--merge", "evidence"),
            "merge='evidence' needs a conjugate prior",
        ),
        (asked("--pca", 9), "pca should be from 1 to the number of columns, 4"),
        (asked("--holdout", "nothing.zarr"), "there is no Zarr array and no corpus at"),
        (asked("--holdout", "narrow.zarr"), "rows should have 4 columns"),
        (asked("--holdout", "nan.zarr"), "NaN or infinity"),
        (asked("--config", "none.toml"), "cannot be read"),
        (asked("--workers", 2), "--serial runs in this process"),
        (["extend", "nothing.zarr", "more.zarr", "--serial"], "no dpdist run or model"),
        (["extend", "rows.zarr", "more.zarr", "--serial"], "no dpdist run or model"),
    ],
)
def test_bad_input_gets_one_line_and_writes_nothing(
    run: Command, folder: Path, arguments: list[object], sentence: str
) -> None:
    assert sentence in run(*arguments, refused=True)
    assert not (folder / "x.zarr").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["narrow.zarr"], "rows should have 4 columns"),
        (["narrow.zarr", "--out", "x.zarr"], "rows should have 4 columns"),
        (["nan.zarr"], "NaN or infinity in 2 of 600 rows"),
        (["nan.zarr", "--out", "x.zarr"], "NaN or infinity in 2 of 600 rows"),
        (["nothing.zarr"], "there is no Zarr array and no corpus at"),
        (["more.zarr", "--out", "rows.zarr"], "exists and is not a dpdist run"),
        (["more.zarr", "--out", "no/such/x.zarr"], "does not exist; create it first"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_refused_extension_leaves_everything_as_it_was(
    run: Command, folder: Path, model: str, arguments: list[object], sentence: str
) -> None:
    before = bits(dpdist.load(folder / model))
    assert sentence in run("extend", model, *arguments, "--serial", refused=True)
    assert bits(dpdist.load(folder / model)) == before and is_finished(folder / model)
    assert not (folder / "x.zarr").exists()


def test_wrong_rows_at_predict_are_refused(run: Command, folder: Path, model: str) -> None:
    assert "rows should have 4 columns" in run("predict", model, "narrow.zarr", "--out", "x.zarr", refused=True)
    text = run("predict", model, "nan.zarr", "--out", "x.zarr", "--serial", refused=True)
    assert "NaN or infinity, first in row" in text and not (folder / "x.zarr").exists()


def test_unknown_settings_and_hyperparameters_are_named(run: Command, folder: Path) -> None:
    (folder / "wrong.toml").write_text("treshold = 0.5\n")
    assert "there is no setting treshold; did you mean threshold?" in run(
        *asked("--config", "wrong.toml"), refused=True
    )
    (folder / "wrong.toml").write_text('[family]\nname = "poisson"\nscale = 1.0\n')
    text = run(*asked("--config", "wrong.toml"), refused=True)
    assert "there is no setting family.scale if family is 'poisson'; leave it out, or choose 'gaussian'" in text


def test_a_fit_starts_from_a_stored_pass(run: Command) -> None:
    run("sva", "rows.zarr", "--out", "start.zarr", "--family", "isotropic_gaussian")
    run("fit", "rows.zarr", "--out", "x.zarr", "--initial", "start.zarr", "--max-laps", 1)
    model = dpdist.load("x.zarr")
    assert model.initial == str(Path("start.zarr").absolute())
    assert model.history_.n_components.values[0] == dpdist.load("start.zarr").n_components_
    assert "initial should be" in run("fit", "rows.zarr", "--out", "y.zarr", "--initial", "stat.zarr", refused=True)
