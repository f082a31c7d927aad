"""Priors that clusters of a sample suggest, and sequential passes with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln
from sklearn.datasets import load_digits

import dpdist
from dpdist.inference.empirical import _clustered, suggested
from tests.cases import FAMILIES, FamilyCase
from tests.runs import clusters

SPREADING = pytest.mark.parametrize(
    "case", [case for case in FAMILIES if case.make().spreads], ids=lambda case: case.name
)


def groups_of_one_variance(rows: int, columns: int) -> np.ndarray:
    """Groups of unit covariance, far apart."""
    return clusters(0, rows, columns, 4, 40.0)


def filled(family: dpdist.families.Family, rows: np.ndarray) -> dpdist.families.Family:
    """Hyperparameters from the moments of rows."""
    variance = rows.var(axis=0)
    moments = dpdist.families.Moments(len(rows), rows.mean(axis=0), variance, rows.min(axis=0), rows.max(axis=0), False)
    return family.with_defaults(moments)


@SPREADING
def test_an_empirical_prior_is_more_evident_and_changes_what_is_free_alone(case: FamilyCase) -> None:
    rng = np.random.default_rng(0)
    rows = case.rows(rng, 400, 3)
    family = filled(case.make(), rows)
    free = set(family.hyperparameters()) - {"mean"}
    stats = np.eye(5)[rng.integers(5, size=400)].T @ family.features(rows)
    found = family.empirical(stats, free)
    assert found.log_evidence(stats).sum() > family.log_evidence(stats).sum()
    for name in free:
        alone = family.empirical(stats, {name})
        for other, value in family.hyperparameters().items():
            if other != name:
                np.testing.assert_array_equal(getattr(alone, other), value)
        assert alone.log_evidence(stats).sum() >= family.log_evidence(stats).sum()


@SPREADING
def test_rows_of_some_weight_suggest_what_as_many_rows_do(case: FamilyCase) -> None:
    rng = np.random.default_rng(1)
    rows, weights = groups_of_one_variance(300, 2), rng.integers(1, 4, 300)
    repeated = np.repeat(rows, weights, axis=0)
    family = filled(case.make(), repeated)
    free = list(family.hyperparameters())
    one = suggested(family, free, rows, weights.astype(float), 0).hyperparameters()
    two = suggested(family, free, repeated, np.ones(len(repeated)), 0).hyperparameters()
    for name, value in one.items():
        np.testing.assert_allclose(value, two[name], rtol=1e-9, err_msg=name)


def test_a_suggested_component_is_as_wide_as_a_cluster() -> None:
    rows = groups_of_one_variance(4000, 3)
    for family in (dpdist.families.Gaussian(), dpdist.families.DiagonalGaussian()):
        family = filled(family, rows)
        found = suggested(family, list(family.hyperparameters()), rows, np.ones(len(rows)), 0)
        stats = found.features(rows[:1])
        stats[:] = 0
        described = found.describe(stats)
        spread = described["covariance"][1][0].diagonal() if "covariance" in described else described["variance"][1][0]
        assert spread == pytest.approx(np.ones(3), rel=0.6)  # beside columns 40 wide
        assert found.mean_precision < 0.01


@SPREADING
def test_steps_from_random_owners_end_in_clusters_more_probable_with_the_sample(case: FamilyCase) -> None:
    rows, owners = groups_of_one_variance(300, 2), np.random.default_rng(0).integers(4, size=300)
    family = filled(case.make(), rows)
    free = list(family.hyperparameters())

    def level(prior: dpdist.families.Family, stats: np.ndarray) -> float:
        return float((prior.log_evidence(stats) + gammaln(stats[:, -1])).sum())

    seeds = np.eye(4)[owners].T @ family.features(rows)
    stepped = level(*_clustered(family, free, rows, np.ones(300), owners))
    assert stepped > level(family.empirical(seeds, free), seeds) + 300  # a nat a row


def test_a_pass_over_real_rows_scores_as_a_fit_does() -> None:
    rows = load_digits().data
    centred = rows - rows.mean(axis=0)
    rows = centred @ np.linalg.eigh(centred.T @ centred)[1][:, :-21:-1]
    seen = np.random.default_rng(0).permutation(len(rows)) < 1000
    passed = dpdist.SVA(random_state=0).fit(rows[seen])
    fitted = dpdist.DPMixture(random_state=0, max_laps=5).fit(rows[seen])
    clustered = dpdist.DPMixture(prior="clusters", random_state=0, max_laps=5).fit(rows[seen])
    assert clustered.score(rows[~seen]) > fitted.score(rows[~seen]) + 1  # nats a row
    assert passed.n_components_ >= fitted.n_components_
    assert passed.score(rows[~seen]) > fitted.score(rows[~seen]) - 1


def test_a_pass_predicts_with_the_prior_that_is_stored_and_leaves_alone_what_was_given(tmp_path) -> None:
    rows = groups_of_one_variance(600, 2)
    given = dpdist.families.Gaussian(degrees_of_freedom=7.0)
    model = dpdist.SVA(given, random_state=0)
    for _ in model.iter_fit(rows, checkpoint_path=tmp_path / "run"):
        pass
    assert model.n_components_ == 4
    loaded = dpdist.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.score_samples(rows), model.score_samples(rows))
    prior = loaded._problem.learner.family
    assert prior.degrees_of_freedom == 7.0
    assert np.linalg.eigvalsh(prior.scale)[-1] < 0.1 * np.linalg.eigvalsh(np.cov(rows.T))[-1]


@SPREADING
def test_a_fit_may_have_the_prior_of_a_pass_but_for_what_was_given(case: FamilyCase) -> None:
    rows = groups_of_one_variance(400, 2)

    def fitted(family: dpdist.families.Family) -> dict[str, object]:
        model = dpdist.DPMixture(family, prior="clusters", max_laps=1, random_state=0).fit(rows)
        return model._problem.model.family.hyperparameters()

    passed = dpdist.SVA(case.make(), random_state=0).fit(rows)
    found, other = fitted(case.make()), passed._problem.learner.family.hyperparameters()
    for name, value in found.items():
        np.testing.assert_array_equal(value, other[name])
    name = "shape" if "shape" in found else "degrees_of_freedom"
    assert fitted(type(case.make())(**{name: 7.5}))[name] == 7.5 != found[name]


def test_a_family_without_a_learned_covariance_has_no_prior_from_clusters() -> None:
    with pytest.raises(dpdist.InputError, match="prior='clusters' needs a family whose covariance is learned"):
        dpdist.DPMixture(dpdist.families.IsotropicGaussian(), prior="clusters").fit(groups_of_one_variance(60, 2))
    with pytest.raises(dpdist.InputError, match="prior should be"):
        dpdist.DPMixture(prior="nothing").fit(groups_of_one_variance(60, 2))
