"""Settings say in TOML what parameters say in Python, and are refused alike, at the place where they stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpdist
from dpdist import allocations, families, likelihoods, schedules
from dpdist.core.errors import InputError
from dpdist.inference.schedules import SCHEDULES
from dpdist.inference.sva import DistanceTest
from dpdist.runs.config import (
    FitConfig,
    PassConfig,
    ScheduleConfig,
    TopicScheduleConfig,
    TopicsConfig,
    parse_config,
    read_config,
)


@pytest.mark.parametrize("kind", [ScheduleConfig, TopicScheduleConfig])
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_is_what_it_is_told_and_refuses_what_it_would_not_heed(kind, name: str) -> None:
    others = {"batches": 3, "lookahead": 1, "delay": 3.5, "forgetting": 0.75}
    assert kind(name=name).build().name == name
    for setting, value in others.items():
        told = {"name": name, setting: value}
        if setting in SCHEDULES[name].__dataclass_fields__:
            assert getattr(parse_config(kind, told).build(), setting) == value
        else:
            expected = f"the schedule {name} has no {setting}; leave it out, or choose the schedule "
            with pytest.raises(InputError, match=re.escape(expected)):
                parse_config(kind, told)


def test_settings_that_no_one_schedule_has_are_named() -> None:
    with pytest.raises(InputError, match="no keep_start and no delay; leave it out, or choose another schedule"):
        parse_config(ScheduleConfig, {"name": "batch", "keep_start": False, "delay": 3.0})


# one meaning


MIXTURE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        ({name: value}, {name: value})
        for name, value in [
            *(("concentration", 2.5), ("initial", "k-means++"), ("initial_components", 7), ("initial_rows", None)),
            *(("initial_rows", 300), ("max_components", 9), ("compute_dtype", "float32"), ("floor", 1e-3)),
            *(("tolerance", 0.25), ("max_laps", 7), ("max_laps", None), ("max_time", 2.5)),
        ]
    ),
    ({"seed": 7}, {"random_state": 7}),
    ({"family": {"name": "poisson", "hyperparameters": {"rate": 2.0}}}, {"family": families.Poisson(rate=2.0)}),
    (
        {"family": {"hyperparameters": {"mean": [1, 2], "scale": [[2, 0], [0, 1]]}}},
        {"family": families.Gaussian(mean=[1, 2], scale=[[2, 0], [0, 1]])},
    ),
    (
        {"concentration": {"shape": 2, "rate": 0.5}, "max_components": 9},
        {"concentration": allocations.LearnedDirichletProcess(2, 0.5, max_components=9)},
    ),
    (
        {"schedule": {"batches": 3, "lookahead": 1, "keep_start": False}},
        {"schedule": schedules.Memoized(3, 1, False)},
    ),
    (
        {"schedule": {"name": "stochastic", "batches": 3, "lookahead": 1, "delay": 2.0, "forgetting": 0.75}},
        {"schedule": schedules.Stochastic(3, 1, 2.0, 0.75)},
    ),
    ({"schedule": {"name": "batch"}}, {"schedule": schedules.Batch()}),
    *(
        ({"moves": {name: value}}, {"moves": [dpdist.Split(**{name: value}), dpdist.Merge(), dpdist.Delete()]})
        for name, value in {"children": 3, "refine": 2, "cooldown": 0, "tries": 4}.items()
    ),
    ({"moves": {"split": False}}, {"moves": [dpdist.Merge(), dpdist.Delete()]}),
    ({"moves": {"merge": False}}, {"moves": [dpdist.Split(), dpdist.Delete()]}),
    ({"moves": {"delete": False}}, {"moves": [dpdist.Split(), dpdist.Merge()]}),
    ({"moves": {"sample": 5}}, {"sampling": dpdist.Sampling(5)}),
    ({"transform": {"center": True}}, {"row_transform": dpdist.TransformPlan(center=True)}),
    ({"transform": {"scale": True}}, {"row_transform": dpdist.TransformPlan(scale=True)}),
    ({"transform": {"pca": 2}}, {"row_transform": dpdist.TransformPlan(pca=2)}),
]
PASS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        ({name: value}, {name: value})
        for name, value in [
            *(("concentration", 2.5), ("threshold", 0.5), ("prune", 0.25), ("max_components", 9), ("parallel", False)),
            *(("round_partitions", 3), ("shuffle", False), ("compute_dtype", "float32"), ("floor", 1e-3)),
            *(("forgetting", 0.75), ("own_clock", False), ("merge", "distance"), ("merge", "absolute distance")),
        ]
    ),
    ({"merge": "none"}, {"merge": None}),
    ({"merge": "distance", "merge_threshold": 0.125}, {"merge": DistanceTest(0.125)}),
    ({"seed": 7}, {"random_state": 7}),
    (
        {"family": {"name": "dirichlet", "hyperparameters": {"precision": 9.0, "natural": False}}},
        {"family": likelihoods.Dirichlet(9.0, natural=False)},
    ),
    ({"transform": {"pca": 2, "scale": True}}, {"row_transform": dpdist.TransformPlan(scale=True, pca=2)}),
]
TOPICS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        ({name: value}, {name: value})
        for name, value in [
            *(("concentration", 2.5), ("document_concentration", 0.75), ("pseudocount", 0.25), ("initial_topics", 7)),
            *(("learn", ["pseudocount"]), ("tolerance", 0.25), ("max_laps", 7), ("max_laps", None), ("max_time", 2.5)),
        ]
    ),
    ({"seed": 7}, {"random_state": 7}),
    ({"schedule": {"batches": 3, "lookahead": 1}}, {"schedule": schedules.Memoized(3, 1)}),
    (
        {
            "weights": "point",
            "schedule": {"name": "stochastic", "batches": 3, "delay": 2.0, "forgetting": 0.75},
            "online_moves": {"merges": 3, "lasting": False, "restricted": "free"},
        },
        {
            "weights": "point",
            "schedule": schedules.Stochastic(3, 0, 2.0, 0.75),
            "moves": dpdist.OnlinePlan(merges=3, lasting=False, restricted="free"),
        },
    ),
    ({"moves": {"birth": False, "partners": 7}}, {"moves": dpdist.TopicPlan(birth=False, partners=7)}),
    ({"effort": {"tolerance": 0.5, "most": 3}}, {"effort": dpdist.Effort(0.5, 3)}),
]
#: The settings of each command and the estimator of the same; what one leaves to a default the other has to name.
KINDS: dict[type[Any], tuple[Callable[..., Any], dict[str, Any], list[tuple[dict[str, Any], dict[str, Any]]]]] = {
    FitConfig: (dpdist.DPMixture, {"random_state": 0}, MIXTURE),
    PassConfig: (dpdist.SVA, {"random_state": 0}, PASS),
    TopicsConfig: (
        dpdist.HDPTopicModel,
        {"random_state": 0, "schedule": schedules.Memoized(20), "moves": dpdist.TopicPlan(), "effort": dpdist.Effort()},
        TOPICS,
    ),
}


def meaning(asked: Any) -> str:
    """Everything that settings or an estimator come to."""
    return f"{asked.recipe()!r}, {getattr(asked, 'max_laps', None)!r}, {getattr(asked, 'max_time', None)!r}"


def pairs() -> list[Any]:
    return [(kind, settings, parameters) for kind, (*_, table) in KINDS.items() for settings, parameters in table]


@pytest.mark.parametrize(("kind", "settings", "parameters"), pairs(), ids=lambda value: str(value)[:50])
def test_a_setting_means_what_the_parameter_means(
    kind: type[Any], settings: dict[str, Any], parameters: dict[str, Any]
) -> None:
    make, defaults, _ = KINDS[kind]
    told = parse_config(kind, settings)
    assert meaning(told) == meaning(make(**{**defaults, **parameters})) != meaning(make(**defaults))
    assert meaning(parse_config(kind, told.model_dump())) == meaning(told), "as a checkpoint keeps it"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_defaults_are_the_same_and_each_setting_has_its_row(kind: type[Any]) -> None:
    make, defaults, table = KINDS[kind]
    assert meaning(parse_config(kind, {})) == meaning(make(**defaults))
    assert {name for settings, _ in table for name in settings} == {*kind.model_fields} - {"data", "holdout"}


# refusals


REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (FitConfig, {"treshold": 0.5}, "there is no setting treshold; known are data, seed, family"),
    (FitConfig, {"schedule": {"batch": 3}}, "there is no setting schedule.batch; known are name, batches, lookahead"),
    (FitConfig, {"schedule": 5}, "setting schedule should be a table, as in [schedule]; got 5."),
    (FitConfig, {"schedule": {"batches": 0}}, "setting schedule: batches should be a whole number from 1 on; got 0."),
    (FitConfig, {"schedule": {"name": "x"}}, "setting schedule: name should be 'memoized', 'stochastic' or 'batch'"),
    (FitConfig, {"concentration": "a"}, "concentration should be finite and above zero"),
    (FitConfig, {"concentration": {"shape": 1}}, "concentration should be a number or, to be learned, the table of a"),
    (FitConfig, {"concentration": {"shape": -1, "rate": 1}}, "shape should be finite and above zero; got -1."),
    (FitConfig, {"max_laps": True}, "max_laps should be a whole number from 1 on, or None for no bound; got True."),
    (FitConfig, {"max_laps": 3.0}, "max_laps should be a whole number from 1 on"),
    (FitConfig, {"seed": -1}, "seed should be a whole number from 0 on; got -1."),
    (FitConfig, {"data": 5}, "data should be a path or URL, as text, or None for none; got 5."),
    (PassConfig, {"holdout": ["a"]}, "holdout should be a path or URL, as text, or None for none; got ['a']."),
    (TopicsConfig, {"data": True}, "data should be a path or URL"),
    (FitConfig, {"family": {"name": "cauchy"}}, "setting family: name should be 'gaussian', "),
    (FitConfig, {"family": {"name": "dirichlet"}}, "setting family: name should be 'gaussian', "),
    (FitConfig, {"family": {"hyperparameters": {"mean": [[1], [1, 2]]}}}, "setting family: mean should be a number or"),
    (FitConfig, {"family": {"hyperparameters": {"scal": 1}}}, "family gaussian has no hyperparameter scal; it has"),
    (FitConfig, {"family": {"hyperparameters": 5}}, "setting family: hyperparameters should be a table"),
    (PassConfig, {"merge": "closest"}, "merge should be one of 'auto', 'evidence'"),
    (TopicsConfig, {"learn": ["gamma"]}, "learn should be a sequence of names among concentration,"),
    (TopicsConfig, {"online_moves": {"splits": -1}}, "setting online_moves: splits of OnlinePlan should be a whole"),
    (TopicsConfig, {"max_time": float("inf")}, "max_time should be finite and above zero"),
]


@pytest.mark.parametrize(("kind", "settings", "sentence"), REFUSED, ids=lambda value: str(value)[:50])
def test_a_wrong_setting_is_refused_where_it_stands(kind: type[Any], settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_config(kind, settings)
    assert str(refused.value).startswith(sentence) or f": {sentence}" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seed = 1 # \xff", "is not UTF-8"),
        (b"seed = ", "is not TOML"),
        (b"family.hyperparameters = { mean = [[1.0], [1.0, 2.0]] }", "mean should be a number or one a column"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_config(FitConfig, path, {})


def test_options_override_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 3\nmax_laps = 5 # é\n[schedule]\nbatches = 7\nlookahead = 1\n", encoding="utf-8")
    told = read_config(FitConfig, path, {"max_laps": 2, "seed": None, "schedule": {"batches": 9, "lookahead": None}})
    assert (told.seed, told.max_laps, told.schedule.batches, told.schedule.lookahead) == (3, 2, 9, 1)
