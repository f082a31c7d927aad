"""Hyperparameters of topic models learned online and by batch updates, from the estimator: used and stored."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import dpdist
from dpdist.core.errors import InputError
from dpdist.inference.schedules import Memoized
from dpdist.inference.topics.hyperparameters import LEARNABLE
from tests.test_online_topic_model import batch_of, bits, blocks, cut, model_of

FORMS = {"online": model_of, "batch": batch_of}


def fitted(form: str, **parameters) -> dpdist.HDPTopicModel:
    return FORMS[form](initial_topics=3, learn=LEARNABLE, **parameters).fit(cut(blocks()))


def values_of(model: dpdist.HDPTopicModel) -> tuple[float, float, float]:
    return model.concentration_, model.document_concentration_, model.pseudocount_


@pytest.mark.parametrize("form", FORMS)
def test_learned_values_are_told_and_used(form: str) -> None:
    model, plain = fitted(form), FORMS[form](initial_topics=3, learn=()).fit(cut(blocks()))
    assert all(a != b for a, b in zip(values_of(model), values_of(plain), strict=True))
    assert values_of(plain) == (10.0, 1.0, 0.5)
    assert model.document_concentration_ == pytest.approx(1.5, rel=0.25)  # as the documents were drawn
    words = model.pseudocount_ + model._fitted.total.words
    np.testing.assert_allclose(model.components_, (words / words.sum(axis=0)).T, rtol=1e-12)
    empty = model.transform(np.zeros((1, words.shape[0])))
    np.testing.assert_allclose(empty[0], model.topic_weights_ / model.topic_weights_.sum(), rtol=1e-9)
    given = FORMS[form](**dict(zip(LEARNABLE, values_of(model), strict=True)), initial_topics=3, learn=(), max_laps=1)
    given.fit(cut(blocks()))
    assert values_of(given) == values_of(model)


def test_batch_updates_that_learn_never_lower_the_bound() -> None:
    bounds = fitted("batch").history_["elbo"].values
    for before, after in itertools.pairwise(bounds):
        assert after >= before - 1e-9 * abs(before)
    assert bounds[-1] > batch_of(initial_topics=3, learn=()).fit(cut(blocks())).elbo_


@pytest.mark.parametrize("form", FORMS)
def test_a_run_broken_off_goes_on_to_the_same_values(tmp_path: Path, form: str) -> None:
    whole, run = fitted(form), tmp_path / "run.zarr"
    model = FORMS[form](initial_topics=3, learn=LEARNABLE)
    for _, info in model.iter_fit(cut(blocks()), checkpoint_path=run):
        if info.lap == 2:
            break
    resumed = dpdist.resume(run, cut(blocks()))
    assert bits(resumed) == bits(whole) and values_of(resumed) == values_of(whole)


@pytest.mark.parametrize("form", FORMS)
def test_saved_models_go_on_learning(tmp_path: Path, form: str) -> None:
    model, more = fitted(form), blocks(80, seed=3)
    model.save(tmp_path / "model.zarr")
    loaded = dpdist.load(tmp_path / "model.zarr")
    assert values_of(loaded) == values_of(model) and loaded.learn == LEARNABLE
    assert loaded.transform(more).tobytes() == model.transform(more).tobytes()
    before = values_of(model)
    for each in (model, loaded):
        each.partial_fit(more, documents=600)
    assert bits(loaded) == bits(model) and values_of(loaded) == values_of(model)
    assert all(a != b for a, b in zip(values_of(model), before, strict=True))


def test_mini_batches_teach_a_model_that_memoized_inference_began() -> None:
    plan = dpdist.TopicPlan(births=2, sample=200, iterations=5, tries=2)
    posterior = {"weights": "posterior", "schedule": Memoized(batches=3), "moves": plan}
    model = model_of(**posterior, max_laps=3, learn=["concentration"]).fit(blocks())
    before = values_of(model)
    model.partial_fit(blocks(200, seed=4), documents=800)
    assert model.concentration_ != before[0] and values_of(model)[1:] == before[1:]


@pytest.mark.parametrize("form", FORMS)
def test_names_that_cannot_be_learned_are_refused(form: str) -> None:
    with pytest.raises(InputError, match=r"among concentration, .*; got \['alpha'\]"):
        FORMS[form](learn=["alpha"]).fit(blocks(30))
