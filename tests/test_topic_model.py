"""The topic model's estimator and commands: conventions, proportions and scores, bad input, kill and resume."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse
from scipy.special import psi
from sklearn.base import clone

import dpdist
from dpdist.backends import SerialBackend
from dpdist.backends.dask import local_backend
from dpdist.corpora import write_corpus
from dpdist.errors import CheckpointError, InputError
from dpdist.schedules import Memoized, Stochastic
from dpdist.sources import ArraySource, CorpusSource
from dpdist.topic_fitting import START_DOCUMENTS, take_census
from dpdist.topic_prediction import split_tokens
from dpdist.topics.evaluation import completion_score

WORDS = 12
VOCABULARY = [f"word{w}" for w in range(WORDS)]


def blocks(documents: int = 600, seed: int = 0) -> sparse.csr_array:
    """Documents of three topics of four words each; the sixth is empty."""
    topics, rng = np.kron(np.eye(3), np.full(4, 0.25)), np.random.default_rng(seed)
    x = np.array([rng.multinomial(40, rng.dirichlet(np.full(3, 0.5)) @ topics) for _ in range(documents)])
    x[5:6] = 0
    return sparse.csr_array(x)


def model_of(**parameters) -> dpdist.HDPTopicModel:
    """A topic model with small moves."""
    plan = dpdist.TopicPlan(topics=2, sample=200, iterations=5, tries=2)
    given = {"initial_topics": 2, "moves": plan, "schedule": Memoized(waves=3), "max_laps": 12, "random_state": 0}
    return dpdist.HDPTopicModel(**{**given, **parameters})


def bits(model: dpdist.HDPTopicModel) -> tuple:
    arrays = (model.components_, model.topic_ids_, model.topic_sizes_, model.topic_weights_)
    return model.elbo_, model.n_iter_, *(array.tobytes() for array in arrays)


@pytest.fixture(scope="module")
def fitted() -> dpdist.HDPTopicModel:
    return model_of(max_laps=60).fit(blocks())


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
    model = clone(fitted).set_params(effort=dpdist.Effort(1e-8, 2000), max_laps=4).fit(blocks())
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
    expected = bits(model_of(max_laps=4).fit(x))
    kinds = [x.tocsc(), x.tocoo(), sparse.csr_matrix(x), x.toarray(), x.toarray().tolist(), x.astype(np.float64)]
    for kind in kinds:
        assert bits(model_of(max_laps=4).fit(kind)) == expected
    cut = CorpusSource.open(str(tmp_path / "corpus.zarr")).cut
    expected = bits(model_of(max_laps=4).fit(ArraySource(x, cut=cut)))
    assert bits(model_of(max_laps=4).fit(tmp_path / "corpus.zarr")) == expected
    backend = local_backend(2)
    try:
        assert bits(model_of(max_laps=4).fit(tmp_path / "corpus.zarr", backend=backend)) == expected
    finally:
        backend.close()


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
    own = {name: value for name, value in fitted.get_params().items() if name not in ("initial_topics", "max_laps")}
    own["effort"] = dpdist.Effort()
    assert own.items() <= loaded.get_params().items()
    with pytest.raises(CheckpointError, match="it can predict but not resume"):
        dpdist.resume(tmp_path / "model.zarr", blocks())


def test_a_run_broken_off_goes_on_to_the_same_bits(tmp_path) -> None:
    path = tmp_path / "run.zarr"
    for _, info in model_of(max_laps=5).iter_fit(blocks(), checkpoint_path=path):
        if info.lap == 3:
            break
    assert bits(dpdist.resume(path, blocks())) == bits(model_of(max_laps=5).fit(blocks()))
    assert dpdist.resume(path, blocks(), max_laps=6).n_iter_ == 6
    with pytest.raises(CheckpointError, match="the data changed"):
        dpdist.resume(path, blocks(seed=9))


def _with(value: float) -> np.ndarray:
    x = blocks().toarray().astype(np.float64)
    x[300, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (_with(-1.0), "document 300 of the corpus should hold counts, .* got -1.0 of word 2"),
        (sparse.csr_array(_with(0.5)), "document 300 .* got 0.5 of word 2"),
        (_with(np.nan), "document 300 .* got nan"),
        (_with(np.inf), "document 300 .* got inf"),
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


def test_documents_have_no_weights() -> None:
    with pytest.raises(InputError, match="no weights"):
        model_of().fit(ArraySource(blocks(), np.ones(600)))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"initial_topics": 0}, "initial_topics should be a whole number from 1 on; got 0"),
        ({"initial_topics": 2.5}, "initial_topics"),
        ({"concentration": 0.0}, "concentration should be finite and above zero"),
        ({"document_concentration": -1.0}, "document_concentration"),
        ({"pseudocount": np.nan}, "pseudocount"),
        ({"tolerance": -1e-3}, "tolerance should be zero or more nats a token"),
        ({"schedule": Stochastic()}, "Memoized"),
        ({"max_laps": 0}, "max_laps"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        model_of(**parameters).fit(blocks(30))


def test_another_vocabulary_is_refused(fitted) -> None:
    wide, narrow = sparse.csr_array((3, WORDS + 2), dtype=np.int64), sparse.csr_array((3, WORDS - 1), dtype=np.int64)
    for call in (fitted.transform, fitted.score, fitted.coherence):
        with pytest.raises(InputError, match=r"12 columns, .* got 14; words from 12 on were not there when it was"):
            call(wide)
        with pytest.raises(InputError, match=r"12 columns, .* got 11\. Count the words"):
            call(narrow)
    with pytest.raises(InputError, match="the vocabulary should have 12 columns"):
        fitted.top_words(VOCABULARY[:-1])
    with pytest.raises(InputError, match="documents by 12 words"):
        fitted.score(blocks(5), observed=blocks(6))


def test_scores_of_nothing_are_refused(fitted) -> None:
    with pytest.raises(InputError, match="no token is held out"):
        fitted.score(np.zeros((3, WORDS)))
    with pytest.raises(InputError, match="share should be between 0 and 1"):
        fitted.score(blocks(5), share=1.0)
