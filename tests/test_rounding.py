"""What is rounding is not taken for the data's, and what float64 cannot hold ends nothing that has another way."""

from __future__ import annotations

import numpy as np
import pytest

import dpdist
from dpdist.data import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.stability import refit
from dpdist.inference.topics.problem import TopicPlan
from dpdist.kernels.softmax import share_rows
from dpdist.models.allocations import FiniteDirichlet, LearnedDirichletProcess
from dpdist.models.families import DiagonalGaussian, Gaussian, IsotropicGaussian, Multinomial, Poisson
from dpdist.report.components import profiles_of
from dpdist.report.rows import SomeRows
from dpdist.testing import check_allocation, check_family
from tests.runs import mixture


def beside_a_constant(value: float) -> np.ndarray:
    """Two clusters in one column, and a column of one value."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-9, 1, 200), rng.normal(9, 1, 300)])
    return np.column_stack([rows, np.full(500, value)])


@pytest.mark.parametrize("family", [Gaussian(), DiagonalGaussian()], ids=lambda family: family.name)
@pytest.mark.parametrize("scale", [False, True])
def test_a_constant_column_is_one_whatever_its_value_is(family, scale) -> None:
    elbos = []
    for value in (0.0, 0.1, 1e6 / 3):
        x = beside_a_constant(value)
        model = mixture(family=family, row_transform=dpdist.TransformPlan(scale=scale), max_laps=10).fit(x)
        assert np.array_equal(model.predict(x + np.eye(2)[1]), model.predict(x)) and model.n_components_ == 2
        elbos.append(model.elbo_)
    np.testing.assert_allclose(elbos, elbos[0], rtol=1e-6)


def test_axes_beyond_the_rank_of_rows_are_not_taken_for_narrow() -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(-5, 1, (150, 2)), rng.normal(5, 1, (150, 2))])
    x = z @ rng.normal(size=(2, 5))
    model = mixture(family=DiagonalGaussian(), row_transform=dpdist.TransformPlan(pca=5), max_laps=10).fit(x)
    np.testing.assert_allclose(model.score_samples(x + 1e-9), model.score_samples(x), atol=1e-6)


def test_a_report_does_not_tell_clusters_apart_by_constant_columns() -> None:
    x = beside_a_constant(0.1)
    model = mixture(family=Gaussian(), max_laps=5).fit(x)
    found = profiles_of(model._predictor, SomeRows(x, None, None, "drawn", ()))
    assert found is not None and (np.abs(found.standard[:, 1]) < 1e-6).all()


def apart(topics: int, documents: int, seed: int) -> np.ndarray:
    """Documents of three topics each, that have no words in common."""
    rng, words = np.random.default_rng(seed), np.kron(np.eye(topics), np.full(4, 0.25))
    shares = [words[rng.choice(topics, 3, replace=False)].mean(axis=0) for _ in range(documents)]
    return np.array([rng.multinomial(40, share) for share in shares])


@pytest.mark.parametrize("eta", [1e-3, 1e-5])
def test_topics_may_have_next_to_nothing_of_a_word(eta) -> None:
    x = apart(20, 80, seed=0)
    given = {"pseudocount": eta, "learn": (), "random_state": 0}
    model = dpdist.HDPTopicModel(moves=TopicPlan(births=30), max_laps=8, **given).fit(x)
    assert np.isfinite(model.elbo_)


@pytest.mark.parametrize("seed", [0, 5])
def test_online_topics_may_have_next_to_nothing_of_a_word(seed) -> None:
    schedule = dpdist.schedules.Stochastic(batches=4)
    given = {"learn": (), "weights": "point", "schedule": schedule, "initial_topics": 20, "max_laps": 25}
    dpdist.HDPTopicModel(10.0, 1.0, 1e-3, random_state=seed, **given).fit(apart(8, 80, seed))


def test_a_floor_above_an_equal_share_leaves_the_largest() -> None:
    logits = np.log(np.arange(1.0, 151.0))[None].copy()
    assert share_rows(logits, np.ones(1), np.ones(1), 0.009, np.zeros(150), np.zeros(150)) > 0
    assert logits.sum() == pytest.approx(1.0) and logits.argmax() == 149


@pytest.mark.parametrize("rows", [1e3, 1e9, 1e14])
def test_weights_under_a_learned_concentration_sum_to_one_however_many_rows_there_are(rows) -> None:
    weights, rest = LearnedDirichletProcess(1.0, 0.1).weights(rows * np.array([0.5, 0.3, 0.2]))
    assert weights.sum() + rest == pytest.approx(1.0, rel=1e-12)


def test_rows_that_weigh_nothing_may_be_whatever_they_are() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.poisson([[2, 9, 4]] * 100 + [[9, 1, 4]] * 100), [[-1.0, 0.0, 0.5]]])
    weights = np.append(np.ones(200), 0.0)
    source = ArraySource(rows, weights)
    model = mixture(family=Poisson(), max_laps=3).fit(rows, sample_weight=weights)
    assert len(refit(model._problem, model._predictor, source, SerialBackend(), 1, 1)) == 1
    shares = np.concatenate([rng.dirichlet([1.0, 2.0, 3.0], size=50), np.zeros((1, 3))])
    learner = dpdist.SVA(dpdist.likelihoods.Dirichlet(), random_state=0)
    assert learner.fit(shares, sample_weight=np.append(np.ones(50), 0.0)).n_components_ >= 1


def test_sound_parts_are_not_accused() -> None:
    for count in (1, 3):
        check_allocation(FiniteDirichlet(count))
    check_family(Multinomial(), np.random.default_rng(0).poisson(5.0, size=(50, 1)))


def test_what_cannot_be_is_refused_with_what_would_help() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(dpdist.InputError, match="background as broad as all rows needs a family whose covariance is"):
        mixture(family=IsotropicGaussian(variance=1.0), background=0.1).fit(rows)
    with pytest.raises(dpdist.PrecisionError, match="give the family a larger variance"):
        dpdist.SVA(IsotropicGaussian(variance=1e-4)).fit(np.sign(rows) * 1e6)
