"""What scikit-learn asks of estimators, and what its users bring along."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import dpdist
from dpdist.models.families import IsotropicGaussian

ESTIMATORS = [
    dpdist.DPMixture(max_laps=6, random_state=0),
    dpdist.FiniteMixture(n_components=2, max_laps=4, random_state=0),
    dpdist.SVA(IsotropicGaussian(), random_state=0),
    dpdist.HDPTopicModel(initial_topics=5, max_laps=3, random_state=0),
]
#: Checks that do not hold, and why, by estimator; three at most.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "SVA": {
        "check_sample_weight_equivalence_on_dense_data": "the order of rows decides what a pass finds, and repeated "
        "rows are other rows; a row's weight counts (test_a_row_of_weight_w_counts_w)",
    },
}
#: Of all estimators: it needs an environment variable that SciPy reads at its import.
NOT_RUN = "check_array_api_input"


def exceptions(estimator: BaseEstimator) -> dict[str, str]:
    return EXCEPTIONS.get(type(estimator).__name__, {})


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=exceptions)
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Callable[[BaseEstimator], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_checks_are_many_and_exceptions_are_few_and_among_them(estimator: BaseEstimator) -> None:
    names = {check.func.__name__ for _, check in estimator_checks_generator(estimator)}
    assert len(names) > 35 and {*exceptions(estimator), NOT_RUN} <= names
    assert len({*exceptions(estimator), NOT_RUN}) <= 3


def test_tags_say_what_estimators_take() -> None:
    topics = dpdist.HDPTopicModel().__sklearn_tags__()
    assert topics.input_tags.sparse and topics.input_tags.positive_only and topics.estimator_type is None
    mixture = dpdist.DPMixture().__sklearn_tags__()
    assert not mixture.input_tags.sparse and not mixture.input_tags.positive_only
