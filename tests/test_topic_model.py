"""The topic model's estimator and commands: conventions, proportions and scores, bad input, kill and resume."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import sparse
from scipy.special import psi
from sklearn.base import clone

import dpdist
from dpdist.core.errors import CheckpointError, InputError
from dpdist.data import ArraySource, CorpusSource
from dpdist.data.corpora import write_corpus
from dpdist.execution import SerialBackend
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.inference.topics.evaluation import coherence, completion_score
from dpdist.inference.topics.prediction import split_tokens
from dpdist.runs import run as running
from dpdist.runs.methods.topics import START_DOCUMENTS, take_census
from tests.test_cli import Command, command_line, started
from tests.waiting import wait_until

WORDS = 12
VOCABULARY = [f"word{w}" for w in range(WORDS)]
SCALES = ("concentration", "document_concentration", "pseudocount")
NO_SCALES = (-1.0, np.nan, np.inf, 1e300, "a", None, True, [1.0], 1j)


def blocks(documents: int = 600, seed: int = 0) -> sparse.csr_array:
    """Documents of three topics of four words each; the sixth is empty."""
    topics, rng = np.kron(np.eye(3), np.full(4, 0.25)), np.random.default_rng(seed)
    x = np.array([rng.multinomial(40, rng.dirichlet(np.full(3, 0.5)) @ topics) for _ in range(documents)])
    x[5:6] = 0
    return sparse.csr_array(x)


#: Every combination of global weights and schedule that there is.
CHOICES = [
    {"weights": "posterior", "schedule": Memoized(batches=3)},
    {"weights": "posterior", "schedule": Batch()},
    {"weights": "point", "schedule": Stochastic(batches=3)},
    {"weights": "point", "schedule": Batch()},
]


def model_of(**parameters) -> dpdist.HDPTopicModel:
    """A topic model with small moves."""
    plan = dpdist.TopicPlan(births=2, sample=200, iterations=5, tries=2)
    given = {"pseudocount": 0.1, "learn": (), "initial_topics": 2, "moves": plan, "schedule": Memoized(batches=3)}
    return dpdist.HDPTopicModel(**{**given, "max_laps": 12, "random_state": 0, **parameters})


def bits(model: dpdist.HDPTopicModel) -> tuple:
    arrays = (model.components_, model.topic_ids_, model.topic_sizes_, model.topic_weights_)
    return model.elbo_, model.n_iter_, *(array.tobytes() for array in arrays)


@pytest.fixture(scope="module")
def fitted() -> dpdist.HDPTopicModel:
    return model_of(max_laps=60).fit(blocks())


def test_documents_of_next_to_no_weight_are_fitted_though_no_topic_explains_a_token() -> None:
    counts = np.random.default_rng(1).poisson(1.0, size=(120, 30)).astype(float)
    assert np.isfinite(dpdist.HDPTopicModel(max_laps=5, initial_topics=10, random_state=0).fit(1e-7 * counts).elbo_)


@pytest.mark.parametrize("schedule", [Memoized(batches=3), Batch()])
def test_documents_without_words_are_as_if_they_were_not_there(schedule) -> None:
    still = dpdist.TopicPlan(birth=False, merge=False, delete=False)  # fewer documents would be drawn for moves
    model, x = model_of(schedule=schedule, moves=still, learn=SCALES, max_laps=4), blocks(90)[6:]
    none = sparse.csr_array((500, WORDS), dtype=x.dtype)
    among = sparse.csr_array(sparse.vstack([x[:28], none, x[28:56], none, x[56:], none], format="csr"))
    model.fit(ArraySource(x, partition_rows=28))
    other = clone(model).fit(ArraySource(among, partition_rows=528))
    assert bits(other) == bits(model)
    assert [getattr(other, f"{name}_") for name in SCALES] == [getattr(model, f"{name}_") for name in SCALES]


def test_the_topics_are_found_and_described(fitted) -> None:
    assert fitted.n_topics_ == 3 == len(fitted.topic_ids_)
    assert {frozenset(words) for words in fitted.top_words(VOCABULARY, 4)} == {
        frozenset(VOCABULARY[k : k + 4]) for k in (0, 4, 8)
    }
    np.testing.assert_allclose(fitted.components_.sum(axis=1), 1)
    assert fitted.topic_weights_.sum() + fitted.rest_weight_ == pytest.approx(1)
    assert fitted.topic_sizes_.sum() == pytest.approx(blocks().sum()) and (np.diff(fitted.topic_sizes_) <= 0).all()
    assert fitted.converged_ and fitted.stop_reason_.startswith("converged")
    assert fitted.history_.sizes["lap"] == fitted.n_iter_ and fitted.history_["elbo"].values[-1] == fitted.elbo_
    assert fitted.n_features_in_ == WORDS and fitted.components_.shape == (3, WORDS)
    np.testing.assert_allclose(fitted.coherence(blocks(), 2), fitted.coherence(blocks().toarray(), 2))


def test_proportions_are_those_of_a_document_settled_and_of_the_model_where_it_is_empty(fitted) -> None:
    x = blocks(seed=1)[:20]
    model = clone(fitted).set_params(max_laps=4).fit(blocks())
    shares = model.transform(x)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(shares[5], model.topic_weights_ / model.topic_weights_.sum(), rtol=1e-12)
    lam = model.components_ * (model.pseudocount * WORDS + model.topic_sizes_)[:, None]
    e = np.exp(psi(lam) - psi(lam.sum(axis=1, keepdims=True)))
    prior = model.document_concentration * model.topic_weights_
    for row, share in zip(x.toarray(), shares, strict=True):
        # n_k = sum_w c_w r_wk, where r is made of the very theta that it makes.
        theta = share * (prior.sum() + row.sum())
        r = e * np.exp(psi(theta))[:, None]
        np.testing.assert_allclose(prior + (r / r.sum(axis=0)) @ row, theta, atol=1e-4)


def test_every_kind_of_documents_gives_the_same_bits(tmp_path) -> None:
    x = blocks()
    write_corpus(tmp_path / "corpus.zarr", [x], VOCABULARY)
    expected = bits(model_of(max_laps=2).fit(x))
    kinds = [x.tocsc(), x.tocoo(), sparse.csr_matrix(x), x.toarray(), x.toarray().tolist(), x.astype(np.float64)]
    for kind in kinds:
        assert bits(model_of(max_laps=2).fit(kind)) == expected
    cut = CorpusSource.open(str(tmp_path / "corpus.zarr")).cut
    expected = bits(model_of(max_laps=2).fit(ArraySource(x, cut=cut)))
    assert bits(model_of(max_laps=2).fit(tmp_path / "corpus.zarr")) == expected


def test_the_first_topics_are_looked_for_in_a_bounded_sample_of_documents_with_words() -> None:
    x = sparse.csr_array(sparse.vstack([blocks(1500), sparse.csr_array((500, WORDS), dtype=np.int64)]))
    census = take_census(ArraySource(x), SerialBackend(), 0)
    assert census.documents == 1499 and census.tokens == x.sum()
    assert census.drawn.rows.shape == (START_DOCUMENTS, WORDS) and census.drawn.rows.sum(axis=1).min() > 0
    assert (np.sort(census.drawn.keys) < 0.75).all()
    other = take_census(ArraySource(x), SerialBackend(), 1)
    assert other.drawn.keys.tobytes() != census.drawn.keys.tobytes()


def test_fewer_documents_than_topics_wanted_are_enough() -> None:
    model = model_of(initial_topics=50, max_laps=2).fit(blocks(4))
    assert 1 <= model.n_topics_ <= 4


def test_tokens_are_divided_and_none_is_lost() -> None:
    x = blocks(50)
    observed, held = split_tokens(x, 0.8, seed=3)
    assert np.array_equal((observed + held).toarray(), x.toarray()) and held.data.min() > 0
    assert set(observed.sum(axis=1).tolist()) == {0, 32}
    later, _ = split_tokens(x[20:], 0.8, seed=3, first=20)
    assert np.array_equal(later.toarray(), observed.toarray()[20:])
    assert not np.array_equal(split_tokens(x, 0.8, seed=4)[0].toarray(), observed.toarray())


def test_the_score_is_document_completion_however_the_documents_come(fitted, tmp_path) -> None:
    x = blocks(700, seed=2)
    observed, held = split_tokens(x, 0.7, seed=5)
    prior = fitted.document_concentration * fitted.topic_weights_
    expected = completion_score(fitted.components_, prior, observed, held)
    assert fitted.score(held, observed=observed) == expected.per_token
    given = {"share": 0.7, "random_state": 5}
    assert fitted.score(x, **given) == pytest.approx(expected.per_token, rel=1e-12)
    write_corpus(tmp_path / "test.zarr", [x])
    assert fitted.score(tmp_path / "test.zarr", **given) == pytest.approx(expected.per_token, rel=1e-12)
    assert fitted.completion(x, **given).tokens == held.sum()
    assert fitted.perplexity(x, **given) == pytest.approx(np.exp(-expected.per_token))


def test_hyperparameters_are_learned_and_used(fitted, tmp_path) -> None:
    given = (fitted.concentration_, fitted.document_concentration_, fitted.pseudocount_)
    assert given == (fitted.concentration, fitted.document_concentration, fitted.pseudocount)
    model = model_of(learn=["document_concentration", "pseudocount"], max_laps=60).fit(blocks())
    assert model.elbo_ > fitted.elbo_ and model.concentration_ == model.concentration
    assert model.pseudocount_ != 0.1 and model.document_concentration_ != 1.0
    counts = model.components_ * (model.pseudocount_ * WORDS + model.topic_sizes_)[:, None] - model.pseudocount_
    np.testing.assert_allclose(counts.sum(axis=0), blocks().sum(axis=0), rtol=1e-9)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    assert bits(loaded) == bits(model) and loaded.pseudocount_ == model.pseudocount_
    assert loaded.learn == model.learn


def test_scikit_learn_conventions(fitted) -> None:
    model = model_of(concentration=3.0)
    assert clone(model).get_params() == model.get_params()
    x = blocks()
    again = pickle.loads(pickle.dumps(fitted))
    assert bits(again) == bits(fitted) and np.array_equal(again.transform(x), fitted.transform(x))
    assert np.array_equal(model_of(max_laps=3).fit_transform(x), model_of(max_laps=3).fit(x).transform(x))
    assert list(fitted.get_feature_names_out()) == [f"hdptopicmodel{k}" for k in range(3)]
    with pytest.raises(ValueError, match="not fitted"):
        model.transform(x)


def test_a_caller_may_break_off_and_keep_the_model() -> None:
    model = model_of()
    for _, info in model.iter_fit(blocks()):
        if info.lap == 2:
            break
    assert model.n_iter_ == 2 and model.elbo_ == info.elbo and not model.converged_
    assert model_of(max_laps=None, max_time=1e-6).fit(blocks()).stop_reason_ == "stopped: max_time reached"


def test_saved_and_loaded_it_is_the_same_model(fitted, tmp_path) -> None:
    fitted.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    assert isinstance(loaded, dpdist.HDPTopicModel) and bits(loaded) == bits(fitted)
    assert np.array_equal(loaded.transform(blocks()), fitted.transform(blocks()))
    assert loaded.history_.identical(fitted.history_) and loaded.stop_reason_ == fitted.stop_reason_
    assert loaded.get_params() == fitted.get_params()
    with pytest.raises(CheckpointError, match="it can predict but not resume"):
        dpdist.resume(tmp_path / "model.zarr", blocks())


def test_a_run_broken_off_goes_on_to_the_same_bits(tmp_path) -> None:
    path = tmp_path / "run.zarr"
    for _, info in model_of(max_laps=3).iter_fit(blocks(), checkpoint_path=path):
        if info.lap == 2:
            break
    assert bits(dpdist.resume(path, blocks())) == bits(model_of(max_laps=3).fit(blocks()))
    assert dpdist.resume(path, blocks(), max_laps=4).n_iter_ == 4
    with pytest.raises(CheckpointError, match="the data changed"):
        dpdist.resume(path, blocks(seed=9))


def _with(value: float) -> np.ndarray:
    x = blocks().toarray().astype(np.float64)
    x[300, 2] = value
    return x


def _pointing(place: int, to: int) -> sparse.csr_array:
    """Documents that begin where there are none."""
    x = blocks()
    x.indptr[place] = to
    return x


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (_with(-1.0), "document 300 of the corpus should hold counts, .* got -1.0 of word 2"),
        (sparse.csr_array(_with(-0.5)), "document 300 .* got -0.5 of word 2"),
        (_with(np.nan), "document 300 .* got nan"),
        (_with(np.inf), "document 300 .* got inf"),
        (_with(1e12), "document 300 .* got 1000000000000.0"),
        (blocks().toarray().astype(">i4"), "a dtype that sparse arrays of SciPy support; got >i4"),
        (blocks().toarray().astype(np.float16), "a dtype that sparse arrays of SciPy support; got <f2"),
        (sparse.csr_array(blocks().astype(np.longdouble)), "a dtype that sparse arrays of SciPy support"),
        (_pointing(599, 10**6), "indptr should start at 0, never decrease, and end at or below"),
        (_pointing(0, 1), "indptr should start at 0, never decrease, and end at or below"),
        (_pointing(300, 10**6).T, "indptr should start at 0, never decrease, and end at or below"),
        (np.ma.masked_equal(blocks().toarray(), 3), "no masked entries"),
        (np.zeros((0, WORDS)), "0 sample"),
        (np.zeros((7, WORDS)), "all 7 documents are empty"),
        (np.zeros(WORDS), "2-D"),
        ("nowhere.zarr", "nowhere.zarr"),
    ],
)
def test_documents_that_are_none_are_refused(x, sentence: str, fitted) -> None:
    with pytest.raises(InputError, match=sentence):
        model_of().fit(x)
    if "empty" not in sentence:
        with pytest.raises(InputError, match=sentence):
            fitted.transform(x)


def test_weights_of_words_count_as_so_many_tokens(fitted) -> None:
    whole, half = blocks(), blocks() * 0.5
    model = model_of(max_laps=20).fit(half)
    assert model.n_topics_ == 3
    np.testing.assert_allclose(model.topic_sizes_.sum(), whole.sum() / 2, rtol=1e-9)
    order = [int(np.argmax(fitted.components_ @ topic)) for topic in model.components_]
    np.testing.assert_allclose(model.components_, fitted.components_[order], atol=0.01)
    assert fitted.score(half) == pytest.approx(fitted.score(whole), abs=0.2)


@pytest.mark.parametrize("choice", CHOICES)
def test_weights_of_words_are_fitted_however_weights_and_schedule_are_chosen(choice: dict) -> None:
    documents = blocks(120).multiply(np.random.default_rng(0).uniform(0.2, 2, WORDS)).tocsr()
    model = model_of(**choice, moves=None, max_laps=3).fit(documents)
    assert np.isfinite(model.elbo_) and model.topic_sizes_.sum() == pytest.approx(documents.sum(), rel=0.05)


@pytest.mark.parametrize("scale", [1, 0.3])
def test_tokens_observed_and_held_out_are_all_tokens_and_the_share_of_each_document(scale: float) -> None:
    documents = sparse.csr_array(blocks(50) * scale)
    observed, held = split_tokens(documents, 0.8, seed=1)
    np.testing.assert_allclose((observed + held).toarray(), documents.toarray())
    assert observed.data.min() > 0 and held.data.min() > 0
    totals = documents.sum(axis=1)
    np.testing.assert_allclose(observed.sum(axis=1), 0.8 * totals, atol=0.51 if scale == 1 else 1e-12)
    np.testing.assert_array_equal(split_tokens(documents[7:9], 0.8, 1, 7)[0].toarray(), observed[7:9].toarray())


def test_documents_have_no_weights() -> None:
    with pytest.raises(InputError, match="no weights"):
        model_of().fit(ArraySource(blocks(), np.ones(600)))


def test_batch_inference_with_posteriors_is_memoized_inference_of_one_batch() -> None:
    batch, memoized = (model_of(schedule=schedule, max_laps=4).fit(blocks(300)) for schedule in (Batch(), Memoized(1)))
    assert batch.history_["elbo"].values.tobytes() == memoized.history_["elbo"].values.tobytes()
    assert batch.components_.tobytes() == memoized.components_.tobytes()


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"learn": ["alpha"]}, "^learn should be a sequence of names among concentration, document_concentration,"),
        ({"schedule": "batches"}, "schedule: Memoized, Stochastic or Batch, its name"),
        ({"weights": "point", "schedule": Stochastic(), "moves": dpdist.TopicPlan()}, "OnlinePlan; got TopicPlan"),
        (
            {"weights": "posterior", "schedule": Stochastic()},
            "^weights='posterior' should have a Memoized or Batch",
        ),
        ({"weights": "point", "schedule": Memoized()}, "^weights='point' should have a Batch or Stochastic schedule"),
        ({"weights": "mean"}, "^weights should be 'posterior' or 'point'; got 'mean'"),
        *(({name: wrong}, f"^{name} should be") for name, wrong in itertools.product(SCALES, NO_SCALES)),
        *(({"initial_topics": wrong}, "^initial_topics should be") for wrong in (0, "3", 3.0)),
        *(({"learn": wrong}, "^learn should be a sequence of names") for wrong in ("pseudocount", 5, [1], [["a"]])),
        *(({"random_state": wrong}, "^random_state should be") for wrong in (-1, np.random.default_rng(0))),
        ({"tolerance": -1e-3}, "^tolerance should be finite and at least zero"),
        ({"max_time": 0.0}, "^max_time should be finite and above zero"),
    ],
)
@pytest.mark.parametrize("choice", CHOICES)
def test_parameters_out_of_range_are_refused(choice: dict, parameters: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        model_of(**{**choice, "moves": None, **parameters}).fit(blocks(30))


@pytest.mark.parametrize(
    ("kind", "names", "least"),
    [
        (dpdist.TopicPlan, ("births", "sample", "iterations"), 1),
        (dpdist.TopicPlan, ("tries", "refine", "cooldown", "partners"), 0),
        (dpdist.OnlinePlan, ("iterations", "max_topics"), 1),
        (dpdist.OnlinePlan, ("splits", "merges", "alike"), 0),
        (dpdist.Effort, ("most",), 1),
    ],
)
def test_plans_are_of_whole_numbers(kind: type, names: tuple[str, ...], least: int) -> None:
    for name, wrong in itertools.product(names, (least - 1, least + 0.5, np.nan, "many", True, None)):
        with pytest.raises(
            InputError, match=f"^{name} of {kind.__name__} should be a whole number of at least {least}"
        ):
            kind(**{name: wrong})


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "x",
    [
        np.full((40, WORDS), 100),
        np.full((2, 1), 7),
        np.eye(1, WORDS, dtype=int),
        np.full((1, WORDS), 2**31 - 1),
        np.eye(3, WORDS, dtype=bool),
    ],
    ids=["all alike", "one word", "one token", "largest counts", "boolean"],
)
def test_documents_that_leave_nothing_to_find_are_fitted(x: np.ndarray, choice: dict) -> None:
    model = model_of(**choice, moves=None, max_laps=3).fit(x)
    assert np.isfinite(model.elbo_) and np.isfinite(model.components_).all()
    np.testing.assert_allclose(model.transform(x).sum(axis=1), 1)


def test_another_vocabulary_is_refused(fitted) -> None:
    wide, narrow = sparse.csr_array((3, WORDS + 2), dtype=np.int64), sparse.csr_array((3, WORDS - 1), dtype=np.int64)
    for call in (fitted.transform, fitted.score, fitted.coherence):
        with pytest.raises(InputError, match=r"12 columns, .* got 14; columns from 12 on were not in the fitted data"):
            call(wide)
        with pytest.raises(InputError, match=r"12 columns, .* got 11\. Count the words"):
            call(narrow)
    with pytest.raises(InputError, match="the vocabulary should have a word for each of 12 columns; got 11"):
        fitted.top_words(VOCABULARY[:-1])
    with pytest.raises(InputError, match="the same number of documents and 12 words"):
        fitted.score(blocks(5), observed=blocks(6))


def test_scores_of_nothing_are_refused(fitted) -> None:
    with pytest.raises(InputError, match="no token is held out"):
        fitted.score(np.zeros((3, WORDS)))
    for share in (0, 1.0, -1, np.nan, "a", None):
        with pytest.raises(InputError, match="share should be finite and above zero and below 1"):
            fitted.score(blocks(5), share=share)
    for key in (-1, 1.5, "a", None):
        with pytest.raises(InputError, match="random_state should be a whole number of at least 0"):
            fitted.score(blocks(5), random_state=key)
    for words in (0, -1, 2.5, "a"):
        with pytest.raises(InputError, match="words should be a whole number of at least 1"):
            fitted.top_words(VOCABULARY, words)
        with pytest.raises(InputError, match="words should be a whole number of at least 2"):
            fitted.coherence(blocks(5), words)
    with pytest.raises(InputError, match="needs a vocabulary of two words or more"):
        coherence(np.ones((3, 1)), blocks(5)[:, :1])
    with pytest.raises(InputError, match="document 1 should have fewer than 1000000000 tokens to be divided"):
        fitted.score(np.array([[1], [10**8]]) * np.ones(WORDS))


def test_an_interruption_while_the_last_checkpoint_is_written_does_not_disturb_it(tmp_path, monkeypatch) -> None:
    fit, waits = model_of(max_laps=2).prepare(blocks(60), tmp_path / "run.zarr"), []

    def interrupted(futures: list[Future[None]]) -> None:
        waits.append(fit.store._lease is not None)
        if len(waits) == 1:
            raise KeyboardInterrupt
        futures[0].set_result(None)

    for _ in fit:
        pass
    fit.store.lock()
    fit._writing = Future()
    monkeypatch.setattr(running, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit.close()
    assert waits == [True, True] and fit.store._lease is None


# On the command line

SETTINGS = """
pseudocount = 0.1
learn = []
initial_topics = 2
max_laps = 4
schedule.batches = 3

[moves]
births = 2
sample = 200
tries = 2
"""
PLAN = dpdist.TopicPlan(births=2, sample=200, tries=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpora and settings."""
    folder = tmp_path_factory.mktemp("topics")
    write_corpus(folder / "corpus.zarr", [blocks()], VOCABULARY)
    write_corpus(folder / "test.zarr", [blocks(300, seed=1)], VOCABULARY)
    write_corpus(folder / "turned.zarr", [blocks(9)], VOCABULARY[::-1])
    write_corpus(folder / "wide.zarr", [sparse.csr_array(np.ones((9, WORDS + 1), dtype=np.int64))])
    (folder / "topics.toml").write_text(SETTINGS)
    (folder / "named.toml").write_text("schedule = 5")
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in a folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    return command_line(monkeypatch, capsys)


@pytest.fixture
def topics(run: Command, folder: Path) -> str:
    """The name of a finished run, made once."""
    if not (folder / "topics.zarr").exists():
        text = run("topics", "corpus.zarr", "--config", "topics.toml", "--out", "topics.zarr", "--serial")
        assert " topics, ELBO" in text and "per token), stopped: max_laps reached" in text
    return "topics.zarr"


def test_a_run_typed_is_the_run_in_python(topics: str, folder: Path) -> None:
    python = model_of(moves=PLAN, max_laps=4).fit(folder / "corpus.zarr")
    assert bits(dpdist.load(folder / topics)) == bits(python)


def test_show_tells_topics_and_their_words(run: Command, topics: str, folder: Path) -> None:
    model, values = dpdist.load(folder / topics), json.loads(run("show", topics, "--json"))
    assert values["n_components"] == model.n_topics_ and values["elbo"] == model.elbo_
    assert values["rows"] == 600 and values["words"] == WORDS and values["tokens"] == blocks().sum()
    assert values["elbo_per_token"] == pytest.approx(model.elbo_ / blocks().sum())
    assert values["component_ids"] == model.topic_ids_.tolist() and values["counts"] == model.topic_sizes_.tolist()
    assert sum(values["weights"]) + values["rest_weight"] == pytest.approx(1)
    assert values["top_words"] == model.top_words(VOCABULARY) and values["laps"] == 4
    assert values["pseudocount"] == model.pseudocount_ and values["concentration"] == model.concentration_
    assert set(values["moves"]) == {"birth", "merge"} and values["settings"]["initial_topics"] == 2
    text = run("show", topics)
    assert all(told in text for told in ("elbo per token", "topics", values["top_words"][0][0], "moves"))
    model.save(folder / "saved.zarr")
    assert json.loads(run("show", "saved.zarr", "--json"))["top_words"] == values["top_words"]
    status = json.loads(run("status", topics, "--json"))
    assert status["n_components"] == model.n_topics_ and status["elbo_per_token"] == values["elbo_per_token"]


def test_score_is_the_estimators(run: Command, topics: str, folder: Path) -> None:
    model = dpdist.load(folder / topics)
    values = json.loads(run("score", topics, "test.zarr", "--share", 0.7, "--random-state", 4, "--json", "--serial"))
    assert values["per_token"] == model.score(folder / "test.zarr", share=0.7, random_state=4)
    assert values["documents"] == 300 and values["share"] == 0.7 and values["random_state"] == 4
    found = model.completion(folder / "test.zarr")
    text = run("score", topics, "test.zarr", "--serial")
    assert f"{found.per_token:.6f} nats per token over {found.tokens:.0f} held-out tokens" in text


def test_predict_writes_proportions_and_the_largest_topics(run: Command, topics: str, folder: Path) -> None:
    model = dpdist.load(folder / topics)
    text = run("predict", topics, "test.zarr", "--out", "shares.zarr", "--top", 2, "--serial")
    assert f"300 documents labelled in shares.zarr with the {model.n_topics_} topics" in text
    found = xr.open_zarr(folder / "shares.zarr", consolidated=False)
    shares = model.transform(folder / "test.zarr")
    np.testing.assert_array_equal(found["proportion"].values, shares)
    np.testing.assert_array_equal(found["id"].values, model.topic_ids_)
    np.testing.assert_array_equal(found["label"].values, shares.argmax(axis=1))
    np.testing.assert_array_equal(found["top_label"].values, np.argsort(-shares, axis=1, kind="stable")[:, :2])
    np.testing.assert_array_equal(found["top_probability"].values, -np.sort(-shares, axis=1)[:, :2])


@pytest.mark.slow
def test_killed_at_any_moment_a_run_goes_on_to_the_same_bits(run: Command, topics: str, folder: Path) -> None:
    given = ["--config", "topics.toml", "--out", "killed.zarr", "--checkpoint-seconds", 0, "--serial"]
    process = started(folder, "topics", "corpus.zarr", *given)
    commits, output = folder / "killed.zarr" / "commits", folder / "output.txt"
    wait_until(lambda: list(commits.glob("00000[5-9].json")), output.read_text, process, pause=0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "ELBO/token" in (folder / "output.txt").read_text()
    run("resume", "killed.zarr", "--workers", 2)
    assert bits(dpdist.load(folder / "killed.zarr")) == bits(dpdist.load(folder / topics))
    assert "has ended (stopped: max_laps reached)" in run("resume", "killed.zarr", "--serial")
    run("resume", "killed.zarr", "--max-laps", 5, "--serial")
    assert dpdist.load(folder / "killed.zarr").n_iter_ == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["topics"], "topics needs data: give their path, as in dpdist topics"),
        (["topics", "nowhere.zarr", "--out", "x.zarr"], "nowhere.zarr"),
        (
            ["topics", "corpus.zarr", "--out", "x.zarr", "--initial-topics", "0"],
            "initial_topics should be a whole number",
        ),
        (
            ["topics", "corpus.zarr", "--out", "x.zarr", "--pseudocount", "-1"],
            "pseudocount should be finite and above zero",
        ),
        (["topics", "corpus.zarr", "--out", "x.zarr", "--learn", "alpha"], "learn should be a sequence of names"),
        (["topics", "corpus.zarr", "--out", "x.zarr", "--config", "named.toml"], "setting schedule should be a table"),
        (["topics", "corpus.zarr"], "topics.zarr exists"),
        (["resume", "topics.zarr", "--max-laps", "0", "--serial"], "max_laps should be a whole number of at least 1"),
        (["resume", "topics.zarr", "--max-time", "0", "--serial"], "max_time should be finite and above zero"),
        (["score", "topics.zarr", "wide.zarr"], "got 13; columns from 12 on were not in the fitted data"),
        (["score", "topics.zarr", "turned.zarr"], "column 0 is 'word11', but was 'word0' in the fit"),
        (
            ["score", "topics.zarr", "test.zarr", "--share", "1", "--serial"],
            "share should be finite and above zero and below 1",
        ),
        (["predict", "topics.zarr", "wide.zarr", "--out", "x.zarr"], "should have 12 columns"),
        (["predict", "topics.zarr", "test.zarr", "--out", "x.zarr", "--density"], "Leave out --density, and score"),
        (
            ["extend", "topics.zarr", "test.zarr", "--out", "x.zarr", "--serial"],
            "Add documents with partial_fit",
        ),
        (["score", "corpus.zarr", "test.zarr"], "no dpdist run or model"),
    ],
)
def test_bad_commands_get_a_sentence_and_write_nothing(
    run: Command, topics: str, folder: Path, arguments: list[str], sentence: str
) -> None:
    assert sentence in run(*arguments, refused=True)
    assert not (folder / "x.zarr").exists()


def test_a_mixture_is_scored_by_its_density_not_by_completion(run: Command, folder: Path) -> None:
    rows = blocks().toarray()
    model = dpdist.DPMixture(max_laps=2, random_state=0).fit(rows)
    model.save(folder / "mixture.zarr")
    np.save(folder / "rows.npy", rows[:90])
    values = json.loads(run("score", "mixture.zarr", "rows.npy", "--json", "--serial"))
    assert values == {"per_row": model.score(rows[:90]), "rows": 90, "n_components": model.n_components_}
    assert f"{values['per_row']:.6f} nats per row over 90 rows" in run("score", "mixture.zarr", "rows.npy", "--serial")
    refusal = run("score", "mixture.zarr", "rows.npy", "--share", 0.5, "--serial", refused=True)
    assert "all rows are scored; leave out --share and --random-state" in refusal
    np.save(folder / "narrow.npy", rows[:, :3])
    assert "got 3" in run("score", "mixture.zarr", "narrow.npy", "--serial", refused=True)
