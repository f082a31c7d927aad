"""Settings say in TOML what parameters say in Python, and are refused alike, at the place where they stand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dpdist
from dpdist import allocations, families, likelihoods, schedules
from dpdist.cli import root as cli
from dpdist.core.errors import InputError
from dpdist.core.settings import settings_of
from dpdist.inference.sva import DistanceTest
from dpdist.runs.config import parse_config, read_config
from dpdist.runs.specs import SPECS

# one meaning


MIXTURE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        ({name: value}, {name: value})
        for name, value in [
            *(("concentration", 2.5), ("initial", "k-means++"), ("initial_components", 7), ("initial_rows", None)),
            *(("initial_rows", 300), ("max_components", 9), ("compute_dtype", "float32"), ("floor", 1e-3)),
            *(("tolerance", 0.25), ("max_laps", 7), ("max_laps", None), ("max_time", 2.5)),
            *(("prior", "clusters"), ("background", 0.25)),
        ]
    ),
    ({"random_state": 7}, {"random_state": 7}),
    ({"family": {"name": "poisson", "rate": 2.0}}, {"family": families.Poisson(rate=2.0)}),
    (
        {"family": {"mean": [1, 2], "scale": [[2, 0], [0, 1]]}},
        {"family": families.Gaussian(mean=[1, 2], scale=[[2, 0], [0, 1]])},
    ),
    (
        {"concentration": {"shape": 2, "rate": 0.5, "max_components": 9}},
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
    ({"schedule": "stochastic"}, {"schedule": schedules.Stochastic()}),
    ({"moves": []}, {"moves": []}),
    ({"moves": ["merge", "delete"]}, {"moves": [dpdist.Merge(), dpdist.Delete()]}),
    *(
        ({"moves": [{"name": "split", name: value}]}, {"moves": [dpdist.Split(**{name: value})]})
        for name, value in {"children": 3, "refine": 2, "cooldown": 0, "tries": 4}.items()
    ),
    ({"sampling": {"rows": 5}}, {"sampling": dpdist.Sampling(5)}),
    ({"candidates": {"every": 5, "share": 0.25}}, {"candidates": dpdist.Candidates(5, share=0.25)}),
    ({"row_transform": {"center": True}}, {"row_transform": dpdist.TransformPlan(center=True)}),
    ({"row_transform": {"scale": True}}, {"row_transform": dpdist.TransformPlan(scale=True)}),
    ({"row_transform": {"pca": 2}}, {"row_transform": dpdist.TransformPlan(pca=2)}),
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
    ({"merge_threshold": 0.125}, {"merge_threshold": 0.125}),
    ({"merge": {"name": "distance", "most": 0.125}}, {"merge": DistanceTest(0.125)}),
    ({"random_state": 7}, {"random_state": 7}),
    (
        {"family": {"name": "dirichlet", "precision": 9.0, "natural": False}},
        {"family": likelihoods.Dirichlet(9.0, natural=False)},
    ),
    ({"row_transform": {"pca": 2, "scale": True}}, {"row_transform": dpdist.TransformPlan(scale=True, pca=2)}),
]
TOPICS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        ({name: value}, {name: value})
        for name, value in [
            *(("concentration", 2.5), ("document_concentration", 0.75), ("pseudocount", 0.25), ("initial_topics", 7)),
            *(("learn", ["pseudocount"]), ("tolerance", 0.25), ("max_laps", 7), ("max_laps", None), ("max_time", 2.5)),
        ]
    ),
    ({"random_state": 7}, {"random_state": 7}),
    ({"schedule": {"batches": 3, "lookahead": 1}}, {"schedule": schedules.Memoized(3, 1)}),
    (
        {
            "weights": "point",
            "schedule": {"name": "stochastic", "batches": 3, "delay": 2.0, "forgetting": 0.75},
            "moves": {"name": "point", "merges": 3, "lasting": False, "confidence": 0.9},
        },
        {
            "weights": "point",
            "schedule": schedules.Stochastic(3, 0, 2.0, 0.75),
            "moves": dpdist.OnlinePlan(merges=3, lasting=False, confidence=0.9),
        },
    ),
    ({"moves": {"birth": False, "partners": 7}}, {"moves": dpdist.TopicPlan(birth=False, partners=7)}),
    ({"effort": {"tolerance": 0.5, "most": 3}}, {"effort": dpdist.Effort(0.5, 3)}),
]
#: Each command, the estimator of the same, and what is said to both.
KINDS: dict[str, tuple[Callable[..., Any], list[tuple[dict[str, Any], dict[str, Any]]]]] = {
    "fit": (dpdist.DPMixture, MIXTURE),
    "sva": (dpdist.SVA, PASS),
    "topics": (dpdist.HDPTopicModel, TOPICS),
}


def pairs() -> list[Any]:
    return [(command, *pair) for command, (_, table) in KINDS.items() for pair in table]


@pytest.mark.parametrize(("command", "settings", "parameters"), pairs(), ids=lambda value: str(value)[:50])
def test_a_setting_means_what_the_parameter_means(
    command: str, settings: dict[str, Any], parameters: dict[str, Any]
) -> None:
    make, _ = KINDS[command]
    told = parse_config(command, settings)
    assert repr(told.spec) == repr(make(**parameters).spec()) != repr(make().spec())
    assert repr(parse_config(command, told.tables).spec) == repr(told.spec), "as a run keeps it"


@pytest.mark.parametrize("command", KINDS)
def test_defaults_are_the_same_and_each_setting_has_its_row(command: str) -> None:
    make, table = KINDS[command]
    spec = parse_config(command, {}).spec
    assert repr(spec) == repr(make().spec())
    assert {name for settings, _ in table for name in settings} == {*settings_of(type(spec))}


def test_a_merge_test_by_name_has_the_threshold_beside_it() -> None:
    assert dpdist.SVA(merge="distance", merge_threshold=0.125).spec().pruning.merge == DistanceTest(0.125)


ESTIMATORS = [dpdist.DPMixture, dpdist.FiniteMixture, dpdist.SVA, dpdist.HDPTopicModel]


@pytest.mark.parametrize("make", ESTIMATORS, ids=lambda make: make.__name__)
def test_an_estimator_has_the_names_defaults_and_sentences_of_its_spec(make: type[Any]) -> None:
    known = {**settings_of(type(make().spec())), **settings_of(type(make().manner()))}
    parameters = inspect.signature(make).parameters
    assert {name: each.default for name, each in parameters.items()} == {
        name: each.default for name, each in known.items()
    }
    text = " ".join((make.__doc__ or "").split())
    assert all(f" {name} : {each.wanted.told}" in text and each.doc in text for name, each in known.items())


@pytest.mark.parametrize("command", KINDS)
def test_the_command_line_has_the_names_defaults_and_sentences_of_the_spec(command: str) -> None:
    known = settings_of(SPECS[command])
    options = {each.name: each for each in cli.command_of(command).params}
    told = {name.partition("__")[0] for name in options}
    in_files_alone = {"moves", "sampling", "candidates"} if command == "fit" else {"effort"}
    assert {name for name in known if name not in told} <= in_files_alone
    for name, each in known.items():
        option = options.get(name) or options.get(f"{name}__name")
        if option is not None:
            assert each.doc in option.help and f"--{name.replace('_', '-')}" in option.opts
            default = ", ".join(each.default) if isinstance(each.default, tuple) else str(each.default).lower()
            assert name not in options or each.default is None or default in option.help
    for name in ("batches", "pca"):
        assert name not in options
    flat = {name.partition("__")[2]: option for name, option in options.items() if "__" in name}
    assert all(option.opts[0] == f"--{name.replace('_', '-')}" for name, option in flat.items() if name != "name")


def test_the_help_of_moves_says_which_are_made_by_default() -> None:
    (moves,) = (each for each in cli.command_of("topics").params if each.name == "moves__name")
    assert moves.help.endswith("Default: all moves that weights and schedule allow.")


@pytest.mark.parametrize("name", ["2024-01-01", "2024-01-01T10:00:00", "10:00:00"])
def test_a_folder_that_has_a_date_for_a_name_is_no_date(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("dpdist.cli.run_commands.read_config", lambda *told: seen.append(told))
    CliRunner().invoke(cli.app, ["fit", "rows.zarr", "--initial", name])
    assert seen[0][2]["initial"] == name


def test_options_are_read_as_a_file_has_them_and_override_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("dpdist.cli.run_commands.read_config", lambda *told: seen.append(told))
    given = (
        "--random-state 7 --family poisson --concentration 2.5 --initial k-means++ --initial-rows none --no-keep-start "
        "--batches 9 --schedule memoized --scale --tolerance 1e-3"
    )
    CliRunner().invoke(cli.app, ["fit", "rows.zarr", *given.split()])
    assert seen == [
        (
            "fit",
            None,
            {
                "data": "rows.zarr",
                "random_state": 7,
                "row_transform": {"scale": True},
                "family": {"name": "poisson"},
                "concentration": 2.5,
                "initial": "k-means++",
                "initial_rows": "none",
                "schedule": {"name": "memoized", "batches": 9, "keep_start": False},
                "tolerance": 1e-3,
            },
        )
    ]
    for learn in (["--learn", "pseudocount", "--learn", "concentration"], ["--learn", "pseudocount, concentration"]):
        CliRunner().invoke(cli.app, ["topics", "corpus.zarr", *learn])
        assert seen.pop()[2]["learn"] == ["pseudocount", "concentration"]


# refusals


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fit", {"dta": "rows.zarr"}, "there is no setting dta; did you mean data?"),
    ("sva", {"treshold": 0.5}, "there is no setting treshold; did you mean threshold?"),
    ("topics", {"zzz": 0.5}, "there is no setting zzz; known settings: data, random_state, max_laps"),
    ("topics", {"holdout": "rows.zarr"}, "there is no setting holdout; known settings: data"),
    ("fit", {"schedule": {"batch": 3}}, "there is no setting schedule.batch; did you mean batches?"),
    (
        "fit",
        {"schedule": {"name": "batch", "delay": 3}},
        "there is no setting schedule.delay if schedule is 'batch'; leave it out, or choose "
        "'stochastic', as in schedule = {name = 'stochastic', ...}.",
    ),
    (
        "topics",
        {"schedule": {"name": "stochastic", "keep_start": True}},
        "there is no setting schedule.keep_start if schedule is 'stochastic'; leave it out, or choose "
        "'memoized', as in schedule = {name = 'memoized', ...}.",
    ),
    ("topics", {"effort": {"name": "effort"}}, "there is no setting effort.name; known settings: tolerance"),
    ("fit", {"schedule": 5}, "setting schedule should be a table, as in [schedule]; got 5."),
    ("fit", {"row_transform": "pca"}, "setting row_transform should be a table, as in [row_transform]; got 'pca'."),
    (
        "fit",
        {"schedule": {"batches": 0}},
        "setting schedule: batches should be a whole number of at least 1, or None for",
    ),
    ("fit", {"schedule": {"name": "x"}}, "setting schedule: name should be 'memoized', 'stochastic' or 'batch'"),
    ("fit", {"moves": {"split": False}}, "setting moves should be a list of tables, as in [[moves]]; got"),
    (
        "fit",
        {"moves": ["slpit"]},
        "setting moves: name should be 'split', 'regroup', 'merge' or 'delete'; got 'slpit'.",
    ),
    ("fit", {"moves": [{"name": "split", "childs": 3}]}, "there is no setting moves.childs; did you mean children?"),
    ("fit", {"concentration": "a"}, "concentration should be finite and above zero"),
    ("fit", {"concentration": {"shap": 1}}, "there is no setting concentration.shap; did you mean shape?"),
    ("fit", {"concentration": {"shape": -1, "rate": 1}}, "shape should be finite and above zero; got -1."),
    ("fit", {"max_laps": True}, "max_laps should be a whole number of at least 1, or None for no bound; got True."),
    ("fit", {"max_laps": 3.0}, "max_laps should be a whole number of at least 1"),
    ("fit", {"random_state": -1}, "random_state should be a whole number of at least 0; got -1."),
    ("fit", {"data": 5}, "data should be a path or URL, as text, or None for none; got 5."),
    ("sva", {"holdout": ["a"]}, "holdout should be a path or URL, as text, or None for none; got ['a']."),
    ("fit", {"holdout": 3}, "holdout should be a path or URL, as text, or None for none; got 3."),
    ("topics", {"data": True}, "data should be a path or URL"),
    ("fit", {"family": {"name": "cauchy"}}, "setting family: name should be 'gaussian', "),
    ("fit", {"family": {"name": "dirichlet"}}, "setting family: name should be 'gaussian', "),
    ("fit", {"family": {"mean": [[1], [1, 2]]}}, "setting family: mean should be a number or"),
    ("fit", {"family": {"scal": 1}}, "there is no setting family.scal; did you mean scale?"),
    ("fit", {"family": 5}, "setting family should be a table"),
    ("sva", {"merge": "closest"}, "merge should be one of 'auto', 'evidence'"),
    ("topics", {"learn": ["gamma"]}, "learn should be a sequence of names among concentration,"),
    ("topics", {"moves": {"name": "point", "splits": -1}}, "setting moves: splits of OnlinePlan should be a whole"),
    (
        "topics",
        {"moves": {"splits": 1}},
        "there is no setting moves.splits if moves is 'posterior'; leave",
    ),
    ("topics", {"max_time": float("inf")}, "max_time should be finite and above zero"),
]


@pytest.mark.parametrize(("command", "settings", "sentence"), REFUSED, ids=lambda value: str(value)[:50])
def test_a_wrong_setting_is_refused_where_it_stands(command: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_config(command, settings)
    assert str(refused.value).startswith(sentence) or f": {sentence}" in str(refused.value)


@pytest.mark.parametrize(
    ("command", "setting", "without", "beside"),
    [
        ("fit", {"initial_components": 7}, {}, {"initial": "k-means++"}),
        ("fit", {"initial_components": 7}, {"initial": "sva"}, {"initial": "k-means++"}),
        ("fit", {"initial_rows": "none"}, {"initial": "k-means++"}, {"initial": "sva"}),
        ("sva", {"merge_threshold": 0.3}, {}, {"merge": "absolute distance"}),
        ("sva", {"merge_threshold": 0.3}, {"merge": {"name": "distance"}}, {"family": "dirichlet"}),
        ("sva", {"round_partitions": 4}, {"parallel": False}, {}),
        ("sva", {"round_partitions": 4}, {"family": "dirichlet"}, {"family": "poisson"}),
        ("sva", {"forgetting": 0.9}, {"family": "poisson"}, {"family": "dirichlet"}),
        ("sva", {"own_clock": False}, {}, {"family": "dirichlet"}),
    ],
    ids=str,
)
def test_a_setting_without_effect_beside_the_others_is_refused(
    command: str, setting: dict[str, Any], without: dict[str, Any], beside: dict[str, Any]
) -> None:
    (name,) = setting
    with pytest.raises(InputError, match=f"{name} has an effect only with .*; leave it out, or set that as well"):
        read_config(command, None, {**without, **setting})
    assert name not in read_config(command, None, {**beside, **setting}).spec.idle
    assert name in read_config(command, None, without).spec.idle


def test_a_file_is_refused_for_a_setting_without_effect_and_an_option_may_take_its_effect(tmp_path: Path) -> None:
    path = tmp_path / "pass.toml"
    path.write_text("merge = 'distance'\nmerge_threshold = 0.3\n")
    assert read_config("sva", path, {"merge": "evidence"}).spec.merge_threshold == 0.3
    path.write_text("merge_threshold = 0.3\n")
    with pytest.raises(InputError, match="merge_threshold has an effect only with"):
        read_config("sva", path, {"data": "rows.zarr"})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seed = 1 # \xff", "is not UTF-8"),
        (b"seed = ", "is not valid TOML"),
        (b"family = { mean = [[1.0], [1.0, 2.0]] }", "mean should be a number or one per column"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_config("fit", path, {})


def test_options_override_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("random_state = 3\nmax_laps = 5 # é\n[schedule]\nbatches = 7\nlookahead = 1\n", encoding="utf-8")
    told = read_config("fit", path, {"max_laps": 2, "schedule": {"batches": 9}}).spec
    assert (told.random_state, told.max_laps, told.schedule.batches, told.schedule.lookahead) == (3, 2, 9, 1)
