"""The topic model's estimator online: passes, mini-batches, saved and loaded, after memoized inference, bad input."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import sparse
from sklearn.base import clone
from typer.testing import CliRunner

import dpdist
from dpdist.cli import root as cli
from dpdist.core.errors import CheckpointError, InputError
from dpdist.core.randomness import generator
from dpdist.data import ArraySource
from dpdist.data.corpora import write_corpus
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.inference.topics.kept import DocumentFiles
from dpdist.inference.topics.online_engine import batch_steps
from dpdist.inference.topics.problem import OnlinePlan
from dpdist.report.reading import course_of
from dpdist.runs.limits import Limits
from dpdist.runs.opening import open_run, resumed
from dpdist.runs.run import Run
from tests.cases import online_bits
from tests.test_cli import started
from tests.test_topic_model import WORDS, blocks
from tests.waiting import wait_until

STILL = OnlinePlan(split=False, merge=False, delete=False)


def model_of(**parameters) -> dpdist.HDPTopicModel:
    given = {
        "initial_topics": 2,
        "weights": "point",
        "schedule": Stochastic(batches=4, forgetting=0.5),
        "moves": OnlinePlan(splits=3, merges=5, iterations=5),
        "max_laps": 3,
        "random_state": 0,
    }
    return dpdist.HDPTopicModel(**{**given, **parameters})


def batch_of(**parameters) -> dpdist.HDPTopicModel:
    return model_of(**{"schedule": Batch(), "moves": None, "max_laps": 100, "tolerance": 1e-3, **parameters})


def cut(x: sparse.csr_array) -> ArraySource:
    return ArraySource(x, partition_rows=50)


def bits(model: dpdist.HDPTopicModel) -> tuple:
    """Everything a model goes on from, and what it tells."""
    state = online_bits(model._fitted.total)
    told = (model.components_, model.topic_ids_, model.topic_sizes_, model.topic_weights_)
    columns = model._history.columns()
    columns.pop("seconds")
    history = {name: values.tobytes() for name, values in columns.items()}
    return state, history, model.elbo_, model.rest_weight_, *(array.tobytes() for array in told)


def unigram(train: sparse.csr_array, held: sparse.csr_array) -> float:
    """Mean log probability of held-out tokens under the words' frequencies."""
    counts = np.asarray(train.sum(axis=0)).ravel() + 1.0
    return float(np.asarray(held.sum(axis=0)).ravel() @ np.log(counts / counts.sum()) / held.sum())


@pytest.fixture(scope="module")
def fitted() -> dpdist.HDPTopicModel:
    return model_of().fit(cut(blocks()))


@pytest.fixture(scope="module")
def settled() -> dpdist.HDPTopicModel:
    return batch_of(initial_topics=3).fit(cut(blocks()))


def test_passes_find_the_topics_and_are_told(fitted) -> None:
    sizes = np.sort(fitted.topic_sizes_ / fitted.topic_sizes_.sum())[::-1]
    assert fitted.n_topics_ >= 3 and sizes[:3].sum() > 0.98
    vocabulary = [f"word{w}" for w in range(WORDS)]
    found = {frozenset(words) for words in fitted.top_words(vocabulary, 4)}
    assert {frozenset(vocabulary[k : k + 4]) for k in (0, 4, 8)} <= found
    np.testing.assert_allclose(fitted.components_.sum(axis=1), 1)
    assert fitted.topic_weights_.sum() + fitted.rest_weight_ == pytest.approx(1)
    assert not fitted.converged_ and fitted.stop_reason_ == "stopped: max_laps reached"
    assert fitted.n_iter_ == 3 == fitted.history_.sizes["lap"]
    assert fitted.history_["elbo"].values[-1] == fitted.elbo_ and fitted.n_features_in_ == WORDS
    assert "split" in fitted.history_["proposal_kind"].values
    assert fitted.coherence(blocks(), 3).shape == (fitted.n_topics_,)


def test_proportions_and_scores_are_those_of_the_point_estimate(fitted) -> None:
    x = blocks(40, seed=1)
    shares = fitted.transform(x)
    assert shares.shape == (40, fitted.n_topics_) and next(iter(fitted.get_feature_names_out())) == "hdptopicmodel0"
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(shares[5], fitted.topic_weights_ / fitted.topic_weights_.sum())
    explained = shares @ fitted.components_
    seen = x.toarray() / np.maximum(x.sum(axis=1)[:, None], 1)
    assert np.abs(explained - seen)[np.arange(40) != 5].sum(axis=1).mean() < 0.4
    assert fitted.score(x) > unigram(blocks(), x) + 0.2
    assert pickle.loads(pickle.dumps(fitted)).score(x) == fitted.score(x)


def test_fits_are_repeated_to_the_same_bits(fitted) -> None:
    again = clone(fitted)
    steps = list(again.iter_fit(cut(blocks()), backend=SerialBackend()))
    assert bits(again) == bits(fitted)
    assert [info.lap for _, info in steps] == [1, 2, 3] and online_bits(steps[-1][0].running) == online_bits(
        again._fitted.total
    )
    assert all(info.n_components == len(info.ids) == len(info.counts) and info.rows == 600 for _, info in steps)


def test_without_moves_the_number_of_topics_stays() -> None:
    model = model_of(moves=STILL).fit(cut(blocks()))
    assert model.n_topics_ == 2 and model.history_.sizes["proposal"] == 0


def test_mini_batches_of_passes_are_partial_fits_but_for_the_start() -> None:
    x = blocks()
    model = model_of(max_laps=1).fit(cut(x))
    passed = clone(model).set_params(max_laps=2).fit(cut(x))
    order = np.array_split(generator(0, "partition order", 2).permutation(12), 4)
    for batch in order:
        rows = np.concatenate([np.arange(50 * p, 50 * p + 50) for p in batch])
        model.partial_fit(x[rows], documents=600)
    np.testing.assert_allclose(model.components_, passed.components_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.topic_weights_, passed.topic_weights_, rtol=1e-6)
    assert model.topic_ids_.tolist() == passed.topic_ids_.tolist()


@pytest.mark.parametrize("documents", [None, 600])
def test_mini_batches_alone_find_topics(documents: int | None) -> None:
    x, model = blocks(), model_of()
    for start in [*range(0, 600, 75)] * 2:
        assert model.partial_fit(x[start : start + 75], documents=documents) is model
    corpus = 1200 if documents is None else documents
    assert model.topic_sizes_.sum() == pytest.approx(corpus * 40, rel=0.3)
    test = blocks(100, seed=2)
    assert model.score(test) > unigram(x, test) + 0.2
    assert model.n_iter_ == 16 and "continues" in model.stop_reason_
    assert model.history_["lap"].values.tolist() == [*range(1, 17)]


@pytest.mark.parametrize("documents", [None, 600])
def test_the_bound_of_mini_batches_is_told_per_token_that_it_is_of(documents: int | None) -> None:
    """Mini-batches grow, and the corpus with them unless it is told."""
    x, model, seen, expected = blocks(), model_of(), 0, []
    for start, stop in ((0, 50), (50, 150), (150, 400)):
        model.partial_fit(x[start:stop], documents=documents)
        seen += stop - start
        expected.append(model.elbo_ / (x[start:stop].sum() * (documents or seen) / (stop - start)))
    assert [lap.per_unit for lap in course_of(model).laps] == pytest.approx(expected)
    assert model.view().fitted.per_unit == pytest.approx(expected[-1])


def test_a_mini_batch_without_words_changes_nothing_but_rates_and_never_breaks_the_model(fitted) -> None:
    model = pickle.loads(pickle.dumps(fitted)).partial_fit(np.zeros((3, WORDS), dtype=int), documents=600)
    assert np.isfinite(model.elbo_) and np.isfinite(model.components_).all()
    assert np.isfinite(model.transform(blocks(10))).all()


@pytest.mark.parametrize("how", ["passes", "mini-batches", "both"])
def test_saved_and_loaded_models_go_on_to_the_same_bits(tmp_path: Path, fitted, how: str) -> None:
    x, more = blocks(), blocks(80, seed=3)
    model = model_of() if how == "mini-batches" else pickle.loads(pickle.dumps(fitted))
    if how != "passes":
        model.partial_fit(x[:100]).partial_fit(x[100:200])
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    assert bits(loaded) == bits(model) and loaded.stop_reason_ == model.stop_reason_
    assert loaded.transform(more).tobytes() == model.transform(more).tobytes()
    for _ in range(2):
        model.partial_fit(more)
        loaded.partial_fit(more)
        assert bits(loaded) == bits(model)


def test_memoized_models_loaded_or_not_go_on_online(tmp_path: Path) -> None:
    x, plan = blocks(), dpdist.TopicPlan(births=2, sample=200, iterations=5, tries=2)
    model = model_of(
        weights="posterior", schedule=Memoized(batches=3), moves=plan, max_laps=12, learn=["concentration"]
    ).fit(x)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    topics, weights = model.components_, model.topic_weights_
    for each in (model, loaded):
        each.partial_fit(blocks(200, seed=4), documents=2000)
    assert bits(loaded) == bits(model) and model.concentration_ == loaded.concentration_
    assert model.topic_sizes_.sum() == pytest.approx(2000 * 40, rel=0.5)
    np.testing.assert_allclose(model.components_[: len(topics)], topics, atol=0.05)
    np.testing.assert_allclose(model.topic_weights_[: len(weights)], weights, atol=0.2)
    assert not model.converged_


def test_mini_batches_heed_parameters_set_since(fitted) -> None:
    x, model = blocks(200, seed=4), pickle.loads(pickle.dumps(fitted))
    still = clone(model).set_params(moves=STILL).get_params()
    model.set_params(**still).partial_fit(x)
    assert model.n_topics_ == fitted.n_topics_ and not model.history_["proposal_lap"].isin([model.n_iter_]).any()
    model.set_params(learn=["pseudocount"]).partial_fit(x)
    learned = model.pseudocount_
    assert learned != 0.5
    assert model.set_params(learn=[]).partial_fit(x).pseudocount_ == learned
    model.set_params(schedule=Stochastic(delay=1e9, forgetting=1.0))
    before = model.components_
    np.testing.assert_allclose(model.partial_fit(x).components_, before, atol=1e-6)
    for wrong in ({"schedule": "often"}, {"moves": "none"}, {"learn": "pseudocount"}, {"pseudocount": -1.0}):
        with pytest.raises(InputError, match="should"):
            pickle.loads(pickle.dumps(model)).set_params(**wrong).partial_fit(x)


@pytest.mark.parametrize("delay", [-1.0, np.inf, np.nan])
def test_rates_that_would_not_move_are_refused(delay: float) -> None:
    with pytest.raises(InputError, match="delay should be finite and at least zero"):
        Stochastic(delay=delay)


def followed(fit: Run) -> dpdist.HDPTopicModel:
    """The model of a fit at its end."""
    model = model_of()
    for _ in model.follow(fit):
        pass
    return model


def test_a_stored_state_goes_on_from_every_mini_batch_to_the_same_bits(tmp_path: Path) -> None:
    run, source, copies = tmp_path / "run.zarr", cut(blocks()), []
    fit = model_of(max_laps=2).prepare(source, run)
    for step in fit:
        if step.state.lap == 2:
            fit.save()
            fit.settle()
            copies.append(tmp_path / f"copy{len(copies)}.zarr")
            shutil.copytree(run, copies[-1], ignore=shutil.ignore_patterns("leases"))  # this writer is alive
    fitted = dpdist.load(run)
    assert len(copies) == 4 and bits(fitted) == bits(model_of(max_laps=2).fit(source))
    for path in copies:
        again = resumed(open_run(path), source, SerialBackend(), Limits(2))
        assert (again.state.lap, again.state.visited) == (2, copies.index(path))
        assert bits(followed(again)) == bits(fitted)


def test_a_run_broken_off_goes_on_to_the_same_bits_and_beyond_its_end(tmp_path: Path, fitted) -> None:
    run, source = tmp_path / "run.zarr", cut(blocks())
    for _, info in model_of().iter_fit(source, checkpoint_path=run):
        if info.lap == 2:
            break
    early = dpdist.load(run)
    assert early.n_iter_ == 2 and early.stop_reason_ is None
    resumed = dpdist.resume(run, source)
    assert bits(resumed) == bits(fitted) and resumed.stop_reason_ == fitted.stop_reason_
    more = dpdist.resume(run, source, max_laps=4)
    assert bits(more) == bits(clone(fitted).set_params(max_laps=4).fit(source))
    assert bits(more.partial_fit(blocks(60))) == bits(dpdist.load(run).partial_fit(blocks(60)))
    with pytest.raises(CheckpointError, match="the data changed"):
        dpdist.resume(run, cut(blocks(seed=9)))


@pytest.mark.parametrize("online", [True, False])
def test_a_fit_begun_again_in_the_middle_goes_on(fitted, settled, online: bool) -> None:
    fit = (model_of() if online else batch_of(initial_topics=3)).prepare(cut(blocks()))
    for step in fit:
        if step.state.lap == 2 and step.state.visited == 2 * online:
            break
    assert bits(followed(fit)) == bits(fitted if online else settled)


def test_an_interruption_leaves_the_last_mini_batch(tmp_path: Path, fitted) -> None:
    run, source = tmp_path / "run.zarr", cut(blocks())
    steps = iter(model_of().prepare(source, run))
    for step in steps:
        if (step.state.lap, step.state.visited) == (2, 3):
            break
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    state, _ = open_run(run).state()
    assert (state.lap, state.visited) == (2, 3) and bits(dpdist.resume(run, source)) == bits(fitted)


def test_a_saved_online_model_is_no_run(tmp_path: Path, fitted) -> None:
    path = str(tmp_path / "model.zarr")
    fitted.save(path)
    with pytest.raises(CheckpointError, match="it can predict but not resume"):
        dpdist.resume(path, blocks())


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"moves": dpdist.TopicPlan()}, "the moves of weights='point' should be of type OnlinePlan; got TopicPlan"),
        (
            {"schedule": Memoized()},
            "weights='point' should have a Batch or Stochastic schedule; got Memoized",
        ),
        ({"schedule": Stochastic(lookahead=1)}, "set lookahead"),
        ({"max_laps": None}, "max_laps or max_time"),
        ({"max_laps": 0}, "max_laps should be a whole number of at least 1"),
        ({"initial_topics": 0}, "initial_topics should be a whole number"),
        ({"pseudocount": -1.0}, "pseudocount"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(parameters: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        model_of(**parameters).fit(blocks(30))


def test_mini_batches_that_do_not_fit_are_refused_and_leave_the_model_as_it_was(fitted) -> None:
    x, model = blocks(30), pickle.loads(pickle.dumps(fitted))
    before = bits(model)
    with pytest.raises(InputError, match=r"12 columns, .* got 11"):
        model.partial_fit(x[:, :11])
    for corpus in (29, 0, -1, np.nan, np.inf, "many", True):
        with pytest.raises(InputError, match="at least the 30 of this mini-batch"):
            model.partial_fit(x, documents=corpus)
    for wrong in (-1.0, np.inf, np.nan):
        counts = x.toarray().astype(float)
        counts[3, 2] = wrong
        for each in (model, model_of()):
            with pytest.raises(InputError, match="document 3 of the corpus should hold counts"):
                each.partial_fit(counts)
    for each in (model, model_of()):
        with pytest.raises(InputError, match="have no weights"):
            each.partial_fit(ArraySource(x, np.ones(30)))
    assert bits(model) == before
    with pytest.raises(InputError, match="needs documents with words; all 4 documents are empty"):
        model_of().partial_fit(np.zeros((4, WORDS), dtype=int))


def test_a_limit_of_time_ends_a_fit() -> None:
    model = model_of(max_laps=None, max_time=1e-9).fit(cut(blocks(100)))
    assert model.n_iter_ == 1 and model.stop_reason_ == "stopped: max_time reached"


# Batch inference with a point estimate


def test_batch_updates_never_lower_the_bound_and_settle(settled) -> None:
    bounds, tokens = settled.history_["elbo"].values, blocks().sum()
    assert settled.converged_ and 3 < settled.n_iter_ < 100 and settled.stop_reason_.startswith("converged")
    changes = np.diff(bounds)
    assert (changes > -1e-9 * np.abs(bounds[1:])).all() and abs(changes[-1]) < 1e-3 * tokens
    assert (np.abs(changes[:-1]) >= 1e-3 * tokens).all() and settled.elbo_ == bounds[-1]
    assert settled.topic_ids_.tolist() == [0, 1, 2] and settled.history_.sizes["proposal"] == 0
    assert settled.topic_sizes_.sum() == pytest.approx(tokens)
    assert settled.score(blocks(100, seed=1)) > unigram(blocks(), blocks(100, seed=1)) + 0.2


def test_batch_laps_are_the_updates_of_the_engine(settled) -> None:
    source, fit = cut(blocks()), batch_of(initial_topics=3).prepare(cut(blocks()))
    updates = batch_steps(fit.problem, source, fit.state.running, SerialBackend())
    for step, update in zip(fit, itertools.islice(updates, 3), strict=False):
        assert online_bits(step.state.running) == online_bits(update.state)
        assert step.info is not None and step.info.elbo == update.elbo


def test_a_batch_run_goes_on_from_any_update_to_the_same_bits(tmp_path: Path, settled) -> None:
    run, source = tmp_path / "run.zarr", cut(blocks())
    for _, info in batch_of(initial_topics=3).iter_fit(source, checkpoint_path=run):
        if info.lap == 4:
            break
    state, _ = open_run(run).state()
    assert len(state.running.known.starts()) == 12
    assert all(kept.here is None for kept in state.running.known.partitions)
    files = DocumentFiles(str(run))
    assert sum(len(start.read(files)[0]) for start in state.running.known.starts()) == 600
    resumed = dpdist.resume(run, source)
    assert bits(resumed) == bits(settled) and resumed.converged_


def test_a_batch_model_saved_or_not_goes_on_online(tmp_path: Path, settled) -> None:
    settled.save(tmp_path / "model.zarr")
    loaded, model = dpdist.load(tmp_path / "model.zarr"), pickle.loads(pickle.dumps(settled))
    assert bits(loaded) == bits(model) and loaded.get_params()["schedule"] == Batch() and loaded.tolerance == 1e-3
    for each in (loaded, model):
        each.partial_fit(blocks(100, seed=4), documents=600)
    assert bits(loaded) == bits(model) and not model.converged_ and model._problem.plan == OnlinePlan()
    np.testing.assert_allclose(model.components_[:3], settled.components_, atol=0.05)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"moves": OnlinePlan()}, "weights='point' makes no moves under a Batch schedule"),
        ({"tolerance": -1.0}, "tolerance should be finite and at least zero"),
    ],
)
def test_batch_parameters_that_do_not_fit_are_refused(parameters: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        batch_of(**parameters).fit(blocks(30))


def test_batch_mixtures_are_memoized_in_one_batch() -> None:
    rows = blocks(200).toarray().astype(float)
    one, two = (
        dpdist.DPMixture(schedule=schedule, max_laps=4, random_state=0).fit(rows) for schedule in (Batch(), Memoized(1))
    )
    assert one.elbo_ == two.elbo_ and one.weights_.tobytes() == two.weights_.tobytes()


# On the command line

SETTINGS = """
initial_topics = 2
max_laps = 3

weights = "point"

[schedule]
name = "stochastic"
batches = 3

[moves]
name = "point"
splits = 3
merges = 5
iterations = 5
"""
VOCABULARY = [f"word{w}" for w in range(WORDS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpora of three partitions or more, and settings."""
    folder = tmp_path_factory.mktemp("online")
    write_corpus(folder / "corpus.zarr", [blocks(1200)], VOCABULARY)
    write_corpus(folder / "test.zarr", [blocks(300, seed=1)], VOCABULARY)
    (folder / "online.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def typed(folder: Path) -> dpdist.HDPTopicModel:
    """In Python what the settings ask for."""
    return model_of(schedule=Stochastic(batches=3, forgetting=0.5)).fit(folder / "corpus.zarr")


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The command line in this process: what it printed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> str:
        done = CliRunner().invoke(cli.app, [*map(str, arguments)])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    return run


@pytest.mark.slow
def test_killed_at_any_moment_a_run_goes_on_to_the_same_bits(command, folder: Path, typed) -> None:
    given = ["--config", "online.toml", "--out", "killed.zarr", "--checkpoint-seconds", 0, "--serial"]
    process = started(folder, "topics", "corpus.zarr", *given)
    commits, output = folder / "killed.zarr" / "commits", folder / "output.txt"
    wait_until(lambda: list(commits.glob("00000[4-8].json")), output.read_text, process, pause=0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert " topics, ELBO" in command("resume", "killed.zarr", "--serial")
    assert bits(dpdist.load(folder / "killed.zarr")) == bits(typed)
    assert "has ended (stopped: max_laps reached)" in command("resume", "killed.zarr", "--serial")
    command("resume", "killed.zarr", "--max-laps", 4, "--serial")
    assert dpdist.load(folder / "killed.zarr").n_iter_ == 4


@pytest.fixture
def run(command, folder: Path, typed) -> str:
    """The name of a finished run, made once."""
    if not (folder / "online.zarr").exists():
        text = command("topics", "corpus.zarr", "--config", "online.toml", "--out", "online.zarr", "--serial")
        assert f"{typed.n_topics_} topics, ELBO" in text and "stopped: max_laps reached" in text
        assert bits(dpdist.load(folder / "online.zarr")) == bits(typed)
    return "online.zarr"


def test_options_are_those_of_the_file(command, run: str, folder: Path) -> None:
    options = [
        "--weights",
        "point",
        "--schedule",
        "stochastic",
        "--batches",
        2,
        "--delay",
        3,
        "--forgetting",
        0.7,
        "--max-laps",
        1,
    ]
    command("topics", "corpus.zarr", "--config", "online.toml", "--out", "given.zarr", "--serial", *options)
    python = model_of(schedule=Stochastic(batches=2, delay=3.0, forgetting=0.7), max_laps=1)
    assert bits(dpdist.load(folder / "given.zarr")) == bits(python.fit(folder / "corpus.zarr"))


def test_show_score_and_predict_are_those_of_the_model(command, run: str, folder: Path, typed) -> None:
    values = json.loads(command("show", run, "--json"))
    assert values["n_components"] == typed.n_topics_ and values["elbo"] == typed.elbo_ and values["laps"] == 3
    assert values["rows"] == 1200 and values["words"] == WORDS
    assert values["tokens"] == pytest.approx(typed.topic_sizes_.sum())
    assert values["counts"] == typed.topic_sizes_.tolist() and values["rest_weight"] == typed.rest_weight_
    assert values["top_words"] == typed.top_words(VOCABULARY) and "split" in values["moves"]
    text = command("show", run)
    assert "last mini-batch" in text and values["top_words"][0][0] in text
    scored = json.loads(command("score", run, "test.zarr", "--json", "--serial"))
    assert scored["per_token"] == typed.score(folder / "test.zarr")
    command("predict", run, "test.zarr", "--out", "shares.zarr", "--serial")
    found = xr.open_zarr(folder / "shares.zarr", consolidated=False)
    np.testing.assert_array_equal(found["proportion"].values, typed.transform(folder / "test.zarr"))
    np.testing.assert_array_equal(found["id"].values, typed.topic_ids_)
    assert json.loads(command("status", run, "--json"))["n_components"] == typed.n_topics_


def test_batch_inference_is_typed_and_resumed(command, folder: Path) -> None:
    given = ["--initial-topics", 3, "--weights", "point", "--schedule", "batch", "--out", "batch.zarr", "--serial"]
    command("topics", "corpus.zarr", *given, "--max-laps", 2)
    command("resume", "batch.zarr", "--max-laps", 4, "--serial")
    python = batch_of(initial_topics=3, max_laps=4, tolerance=1e-5).fit(folder / "corpus.zarr")
    assert bits(dpdist.load(folder / "batch.zarr")) == bits(python)
    assert json.loads(command("show", "batch.zarr", "--json"))["elbo_of"] == "the corpus"


def test_online_topics_are_submitted_like_any_run_to_the_same_bits_by_two_workers(command, folder: Path, typed) -> None:
    (folder / "submitted.toml").write_text(f"data = '{folder}/corpus.zarr'\n{SETTINGS}")
    (folder / "local.toml").write_text("type = 'local'\nn_workers = 2\n")
    command("submit", "submitted.toml", "--cluster", "local.toml", "--out", "sub.zarr", "--command", "topics")
    assert " topics, ELBO" in command("attach", "sub.zarr")
    assert bits(dpdist.load(folder / "sub.zarr")) == bits(typed)
    assert json.loads(command("status", "sub.zarr", "--json"))["command"] == "topics"
