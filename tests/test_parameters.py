"""Every parameter given what it is not meant for: it is taken, or one sentence names it and what came.

Tables say which of a few odd values each parameter takes: what it takes has to work, and all else has to be refused.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import dpdist
from dpdist import allocations, families, likelihoods, schedules
from dpdist.inference.sva import DistanceTest, EvidenceTest, PruneMerge
from dpdist.runs.limits import Limits

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(20, 2))
COUNTS = RNG.poisson(3.0, size=(20, 4))
BITS = np.tile(np.array([[0, 1], [1, 0], [1, 1], [0, 0]]), (5, 1))
SHARES = RNG.dirichlet([1.0, 2.0, 3.0], 20)

#: Values that hardly any parameter is meant for.
ODD: dict[str, Any] = {
    "none": None,
    "text": "a",
    "minus": -1,
    "zero": 0,
    "fraction": 1.5,
    "nan": np.nan,
    "inf": np.inf,
    "list": [],
    "dict": {},
    "object": object(),
    "true": True,
    "table": np.ones((2, 2)),
    "bytes": b"a",
    "complex": 1j,
    "bool": np.True_,
    "scalar nan": np.float32(np.nan),
    "huge": -(10**400),
}
NONE, ZERO, FRACTION, TRUE = {"none"}, {"zero"}, {"fraction"}, {"true", "bool"}
NOTHING: set[str] = set()
#: Arguments that are data or where they are: paths without anything there are no fault of the argument.
DATA = ("x", "holdout", "observed", "path")


@dataclass(frozen=True)
class Case:
    """What has parameters, what to do with it, and which odd values each of them takes."""

    make: Callable[..., Any]
    use: Callable[[Any], None]
    takes: dict[str, set[str]]


def fitted(rows: Any) -> Callable[[Any], None]:
    """Fits an estimator in one lap, whose scores then are numbers."""

    def use(model: Any) -> None:
        assert np.isfinite(model.fit(rows).score(rows))
        assert np.isfinite(getattr(model, "elbo_", 0.0))

    return use


def fitted_topics(model: dpdist.HDPTopicModel) -> None:
    """Fits a topic model in one lap."""
    assert np.isfinite(model.fit(COUNTS).elbo_)


def of_a_mixture(name: str, rows: Any = ROWS, **others: Any) -> Callable[[Any], None]:
    """Fits a mixture with a value as its parameter `name`."""
    return lambda value: fitted(rows)(dp_mixture(**{name: value, **others}))


def with_move(move: Any) -> None:
    """Fits a mixture with one move."""
    of_a_mixture("moves", max_laps=3)([move])


def of_topics(name: str, **others: Any) -> Callable[[Any], None]:
    """Fits a topic model with a value as its parameter `name`."""
    return lambda value: fitted_topics(topic_model(**{name: value, **others}))


def dp_mixture(**parameters: Any) -> dpdist.DPMixture:
    return dpdist.DPMixture(**{"family": families.IsotropicGaussian(), "max_laps": 1, "random_state": 0, **parameters})


def finite_mixture(**parameters: Any) -> dpdist.FiniteMixture:
    given = {
        "family": families.IsotropicGaussian(),
        "n_components": 2,
        "max_laps": 1,
        "max_time": 0.1,
        "random_state": 0,
    }
    return dpdist.FiniteMixture(**{**given, **parameters})


def sva(**parameters: Any) -> dpdist.SVA:
    return dpdist.SVA(**{"family": families.IsotropicGaussian(), "random_state": 0, **parameters})


def topic_model(**parameters: Any) -> dpdist.HDPTopicModel:
    return dpdist.HDPTopicModel(**{"initial_topics": 2, "max_laps": 1, "random_state": 0, **parameters})


def each(names: str, takes: set[str]) -> dict[str, set[str]]:
    """The same for several names."""
    return dict.fromkeys(names.split(), takes)


FITTING = {
    **each("family initial_rows schedule sampling candidates row_transform max_laps", NONE),
    **each("moves", NONE | {"list"}),
    **each("max_time", NONE | FRACTION),
    **each("background", NONE),
    **each("initial compute_dtype prior", NOTHING),
    **each("floor", ZERO),
    **each("tolerance", ZERO | FRACTION),
    **each("concentration", FRACTION),
    **each("random_state", NONE | ZERO),
    **each("verbose warm_start", TRUE),
    **each("n_init", NOTHING),
}
CASES = {
    "DPMixture": Case(
        dp_mixture, fitted(ROWS), {**FITTING, **each("max_components", NONE), **each("initial_components", NOTHING)}
    ),
    "FiniteMixture": Case(finite_mixture, fitted(ROWS), {**FITTING, **each("n_components", NOTHING)}),
    "SVA": Case(
        sva,
        fitted(ROWS),
        {
            **each("family merge max_components row_transform", NONE),
            **each("concentration merge_threshold", FRACTION),
            **each("threshold round_partitions compute_dtype forgetting", NOTHING),
            **each("prune floor", ZERO),
            **each("parallel shuffle own_clock", TRUE),
            **each("random_state", NONE | ZERO),
            **each("verbose", TRUE),
        },
    ),
    "HDPTopicModel": Case(
        topic_model,
        fitted_topics,
        {
            **each("concentration document_concentration pseudocount", FRACTION),
            **each("learn", {"list", "dict"}),
            **each("initial_topics weights", NOTHING),
            **each("schedule moves effort max_laps", NONE),
            **each("max_time", NONE | FRACTION),
            **each("tolerance", ZERO | FRACTION),
            **each("random_state", NONE | ZERO),
            **each("verbose", TRUE),
        },
    ),
    "Split": Case(
        dpdist.Split,
        with_move,
        {**each("children seedings refine tries", NOTHING), **each("seed_iterations cooldown", ZERO)},
    ),
    "Regroup": Case(
        dpdist.Regroup,
        with_move,
        each("smallest largest widest rows seedings searches refine", NOTHING),
    ),
    "Merge": Case(dpdist.Merge, with_move, each("pairs", ZERO)),
    "Delete": Case(dpdist.Delete, with_move, each("absorbers", NOTHING)),
    "Sampling": Case(dpdist.Sampling, of_a_mixture("sampling", max_laps=3), each("rows total_bytes fewest", NOTHING)),
    "Candidates": Case(
        dpdist.Candidates,
        of_a_mixture("candidates", max_laps=3),
        {**each("every components", NOTHING), "share": ZERO},
    ),
    "Memoized": Case(
        schedules.Memoized,
        of_a_mixture("schedule"),
        {**each("batches", NONE), **each("lookahead", ZERO), **each("keep_start", TRUE)},
    ),
    "Stochastic": Case(
        schedules.Stochastic,
        of_a_mixture("schedule", moves=[]),
        {
            **each("batches", NOTHING),
            **each("lookahead", ZERO),
            **each("delay", ZERO | FRACTION),
            **each("forgetting", NOTHING),
        },
    ),
    "TransformPlan": Case(
        dpdist.TransformPlan, of_a_mixture("row_transform"), {**each("center scale", TRUE), **each("pca", NONE)}
    ),
    "DirichletProcess": Case(
        allocations.DirichletProcess,
        of_a_mixture("concentration"),
        {**each("concentration", FRACTION), **each("max_components", NONE)},
    ),
    "LearnedDirichletProcess": Case(
        allocations.LearnedDirichletProcess,
        of_a_mixture("concentration"),
        {**each("shape rate", FRACTION), **each("nodes", NOTHING), **each("max_components", NONE)},
    ),
    "FiniteDirichlet": Case(
        lambda **given: allocations.FiniteDirichlet(**{"components": 3, **given}),
        of_a_mixture("concentration"),
        {**each("components", NOTHING), **each("concentration", FRACTION)},
    ),
    "Effort": Case(
        dpdist.Effort,
        of_topics("effort"),
        {**each("tolerance", ZERO | FRACTION), **each("most", NOTHING), **each("fresh", TRUE)},
    ),
    "TopicPlan": Case(
        dpdist.TopicPlan,
        of_topics("moves"),
        {
            **each("birth merge delete", TRUE),
            **each("births sample iterations", NOTHING),
            **each("tries refine cooldown partners", ZERO),
        },
    ),
    "OnlinePlan": Case(
        dpdist.OnlinePlan,
        of_topics("moves", weights="point", schedule=schedules.Stochastic(2, forgetting=0.5)),
        {
            **each("split merge delete lasting", TRUE),
            **each("iterations max_topics merge_rate", NOTHING),
            **each("splits merges alike deletes", ZERO),
            **each("smoothing", FRACTION),
            **each("confidence", NONE),
        },
    ),
    "PruneMerge": Case(
        lambda **given: PruneMerge(**{"merge": EvidenceTest(), **given}),
        lambda pruning: None,
        {
            **each("prune first_check spacing", ZERO),
            **each("merge", NONE),
            **each("least share", ZERO | FRACTION),
        },
    ),
    "DistanceTest": Case(
        DistanceTest, lambda test: fitted(ROWS)(sva(merge=test)), {**each("most", FRACTION), **each("relative", TRUE)}
    ),
    "EvidenceTest": Case(EvidenceTest, lambda test: fitted(ROWS)(sva(merge=test)), each("partners", NOTHING)),
    "Limits": Case(Limits, lambda limits: None, {**each("max_laps", NONE), **each("max_time", NONE | FRACTION)}),
    "Gaussian": Case(
        families.Gaussian,
        of_a_mixture("family"),
        {
            **each("mean", NONE | {"zero", "minus", "fraction"}),
            **each("mean_precision degrees_of_freedom", NONE | FRACTION),
            **each("scale", NONE | FRACTION),
        },
    ),
    "ZeroMeanGaussian": Case(
        families.ZeroMeanGaussian, of_a_mixture("family"), each("degrees_of_freedom scale", NONE | FRACTION)
    ),
    "DiagonalGaussian": Case(
        families.DiagonalGaussian,
        of_a_mixture("family"),
        {**each("mean", NONE | {"zero", "minus", "fraction"}), **each("mean_precision shape rate", NONE | FRACTION)},
    ),
    "IsotropicGaussian": Case(
        families.IsotropicGaussian,
        of_a_mixture("family"),
        {**each("mean", NONE | {"zero", "minus", "fraction"}), **each("variance mean_variance", NONE | FRACTION)},
    ),
    "Multinomial": Case(families.Multinomial, of_a_mixture("family", COUNTS), each("pseudocount", NONE | FRACTION)),
    "Bernoulli": Case(families.Bernoulli, of_a_mixture("family", BITS), each("ones zeros", NONE | FRACTION)),
    "Poisson": Case(families.Poisson, of_a_mixture("family", COUNTS), each("shape rate", NONE | FRACTION)),
    "Dirichlet": Case(
        likelihoods.Dirichlet,
        lambda likelihood: fitted(SHARES)(sva(family=likelihood)),
        {
            **each("precision delta", NONE | FRACTION),
            **each("eta", FRACTION),
            **each("draws", ZERO),
            **each("natural", TRUE),
        },
    ),
}
#: Where the parameters of a case are declared, if it is made with others left at a value.
HOMES = {
    "DPMixture": dpdist.DPMixture,
    "FiniteMixture": dpdist.FiniteMixture,
    "SVA": dpdist.SVA,
    "HDPTopicModel": dpdist.HDPTopicModel,
    "FiniteDirichlet": allocations.FiniteDirichlet,
    "PruneMerge": PruneMerge,
}


def names_of(home: Any) -> set[str]:
    """Names of the parameters of a class."""
    if is_dataclass(home):
        return {each.name for each in fields(home) if each.init}
    return set(inspect.signature(home).parameters)


@pytest.mark.parametrize("name", CASES)
def test_the_table_has_every_parameter(name: str) -> None:
    assert set(CASES[name].takes) == names_of(HOMES.get(name, CASES[name].make))


def test_the_table_has_every_public_part() -> None:
    parts = {*schedules.SCHEDULES.values(), *allocations.ALLOCATIONS.values(), *families.FAMILIES.values()}
    parts |= {*likelihoods.LIKELIHOODS.values(), *(getattr(dpdist, name) for name in dpdist.__all__)}
    kinds = [part for part in parts if inspect.isclass(part) and not issubclass(part, Exception)]
    assert {kind.__name__ for kind in kinds if names_of(kind)} <= set(CASES)


def assert_refused(error: dpdist.DpdistError, name: str, value: Any) -> None:
    """One sentence or two, with the parameter's name, and the value or its shape; data and paths are named as such."""
    sentence = str(error)
    assert "\n" not in sentence and len(sentence.split()) > 5
    if name not in DATA:
        came = f"shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)[:70]
        came = f"shape {np.shape(value)}" if name == "sample_weight" and isinstance(value, list) else came
        assert name in sentence and came in sentence and sentence.endswith("."), sentence
        assert isinstance(error, dpdist.InputError)
    elif isinstance(value, str):
        assert "there is no" in sentence and f" {value}" in sentence


def assert_taken_or_refused(do: Callable[[Any], Any], name: str, takes: set[str]) -> None:
    """Each odd value is taken if it should be, and refused if not."""
    for label, value in ODD.items():
        refusal = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                do(value)
            except dpdist.DpdistError as error:
                refusal = error
        assert (refusal is None) == (label in takes), f"{name}={value!r}: {refusal}"
        if refusal is not None:
            assert_refused(refusal, name, value)


def each_parameter() -> Iterator[Any]:
    for case, known in CASES.items():
        for name, takes in known.takes.items():
            yield pytest.param(known, name, takes, id=f"{case}.{name}")


@pytest.mark.parametrize(("case", "name", "takes"), list(each_parameter()))
def test_a_parameter_is_taken_or_refused_in_a_sentence(case: Case, name: str, takes: set[str]) -> None:
    told = {"most": "merge_threshold"}.get(name, name) if case.make is DistanceTest else name
    assert_taken_or_refused(lambda value: case.use(case.make(**{name: value})), told, takes)


#: Values at the very edge of what a parameter takes, and just beyond; what the odd values above show is not repeated.
EDGES: dict[str, tuple[list[Any], list[Any]]] = {
    **dict.fromkeys(
        [
            *("DPMixture.initial_components", "DPMixture.initial_rows", "DPMixture.max_components"),
            *("DPMixture.max_laps", "FiniteMixture.n_components", "SVA.round_partitions", "SVA.max_components"),
            *("HDPTopicModel.initial_topics", "HDPTopicModel.max_laps", "Memoized.batches", "Stochastic.batches"),
            *("TransformPlan.pca", "FiniteDirichlet.components", "Effort.most", "EvidenceTest.partners"),
            *("DirichletProcess.max_components", "LearnedDirichletProcess.max_components", "Limits.max_laps"),
            *("Regroup.rows", "Regroup.seedings", "Regroup.searches", "Regroup.refine"),
            *(
                "Split.seedings",
                "Split.refine",
                "Split.tries",
                "Delete.absorbers",
                "Sampling.total_bytes",
                "Sampling.fewest",
            ),
            *("Candidates.every", "Candidates.components"),
            *(f"TopicPlan.{name}" for name in ("births", "sample", "iterations")),
            *("OnlinePlan.iterations", "OnlinePlan.max_topics"),
        ],
        ([1, np.int64(1), 2], [1.0, np.float64(1)]),
    ),
    **dict.fromkeys(
        ["Split.children", "Regroup.smallest", "Regroup.largest", "Sampling.rows", "LearnedDirichletProcess.nodes"],
        ([2], [1]),
    ),
    **dict.fromkeys(["Memoized.lookahead", "Stochastic.lookahead"], ([0, 8], [9])),
    **dict.fromkeys(["DPMixture.floor", "FiniteMixture.floor", "SVA.floor"], ([0.0, 0.0099], [0.01, -1e-9])),
    **dict.fromkeys(["DPMixture.tolerance", "HDPTopicModel.tolerance", "Effort.tolerance"], ([0.0, 1e6], [-1e-9])),
    **dict.fromkeys(["DPMixture.max_time", "Limits.max_time"], ([1e-9, 1, np.float32(1.5)], [-1e-9])),
    "SVA.threshold": ([1e-9, 0.999], [1.0]),
    "SVA.prune": ([0.999], [1.0, -1e-9]),
    "SVA.forgetting": ([0.51, 1, 1.0], [0.5, 1.01]),
    "OnlinePlan.confidence": ([0.51, 0.999], [0.5, 1.0]),
    "OnlinePlan.merge_rate": ([0.01, 1.0], [1.01]),
    "Stochastic.forgetting": ([0.01, 1.0], [1.01]),
    "Stochastic.delay": ([0.5, 100], [-1e-9]),
    "PruneMerge.prune": ([0.999], [1.0]),
    "Dirichlet.draws": ([1], []),
    **dict.fromkeys(
        [
            *(f"HDPTopicModel.{name}" for name in ("concentration", "document_concentration", "pseudocount")),
            *("OnlinePlan.smoothing", "DPMixture.concentration", "SVA.concentration", "DirichletProcess.concentration"),
        ],
        ([1e-100, 1e9], [0.99e-100, 1.01e9]),
    ),
    **dict.fromkeys(["SVA.merge_threshold", "DistanceTest.most"], ([1e-6, 1e6], [-1e-6])),
    **dict.fromkeys(["Gaussian.mean", "DiagonalGaussian.mean", "IsotropicGaussian.mean"], ([[0, 1], ROWS[0]], [])),
    **dict.fromkeys(["DiagonalGaussian.rate", "Multinomial.pseudocount", "Poisson.shape"], ([[1, 2]], [[1, 0]])),
    **dict.fromkeys(["Gaussian.scale", "ZeroMeanGaussian.scale"], ([np.eye(2)], [np.ones((2, 2, 2)), [[1], [1, 2]]])),
}


def made(case: Case, name: str, value: Any) -> None:
    """Make a part, and the spec of an estimator; nothing is fitted."""
    part = case.make(**{name: value})
    if hasattr(part, "spec"):
        part.spec()


@pytest.mark.parametrize("place", EDGES)
def test_bounds_are_where_they_are_said_to_be(place: str) -> None:
    case, name = place.split(".")
    inside, outside = EDGES[place]
    for value in inside:
        made(CASES[case], name, value)
    for value in outside:
        with pytest.raises(dpdist.InputError, match="should be"):
            made(CASES[case], name, value)


def test_numbers_are_plain_however_they_came() -> None:
    plan, rule = dpdist.Sampling(np.int32(5)), schedules.Stochastic(np.uint8(3), 0, np.float32(0.5), 1)
    assert type(plan.rows) is int and plan.rows == 5
    assert [type(value) for value in (rule.batches, rule.delay, rule.forgetting)] == [int, float, float]
    assert type(dpdist.TransformPlan(center=np.True_).center) is bool
    assert rule == schedules.Stochastic(3, 0, 0.5, 1.0)


# arguments of methods and functions


@dataclass(frozen=True)
class Models:
    """Fitted models, where they are kept, and the folder for more."""

    mixture: dpdist.DPMixture
    passed: dpdist.SVA
    topics: dpdist.HDPTopicModel
    folder: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """One of each kind, fitted and saved."""
    folder = tmp_path_factory.mktemp("models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = Models(dp_mixture().fit(ROWS), sva().fit(ROWS), topic_model().fit(COUNTS), folder)
        for _ in dp_mixture().iter_fit(ROWS, checkpoint_path=folder / "run"):
            pass
    found.mixture.save(folder / "mixture")
    found.passed.save(folder / "passed")
    return found


def run_through(steps: Iterator[Any]) -> None:
    for _ in steps:
        pass


#: Arguments by what is called and their name: how, and the odd values that are taken.
WEIGHTS = NONE | FRACTION
CALLS: dict[str, tuple[Callable[[Models, Any], Any], set[str]]] = {
    "DPMixture.fit(x)": (lambda m, v: dp_mixture().fit(v), {"table"}),
    "DPMixture.fit(sample_weight)": (lambda m, v: dp_mixture().fit(ROWS, sample_weight=v), WEIGHTS),
    "DPMixture.fit(holdout)": (lambda m, v: dp_mixture().fit(ROWS, holdout=v), NONE | {"table"}),
    "DPMixture.iter_fit(checkpoint_path)": (
        lambda m, v: run_through(dp_mixture().iter_fit(ROWS, checkpoint_path=v)),
        NONE | {"text"},
    ),
    "DPMixture.iter_fit(overwrite)": (
        lambda m, v: run_through(dp_mixture().iter_fit(ROWS, checkpoint_path=f"over-{v}", overwrite=v)),
        TRUE,
    ),
    "DPMixture.iter_fit(backend)": (lambda m, v: run_through(dp_mixture().iter_fit(ROWS, backend=v)), NONE),
    "DPMixture.predict(x)": (lambda m, v: m.mixture.predict(v), {"table"}),
    "DPMixture.predict_top(count)": (lambda m, v: m.mixture.predict_top(ROWS, v), NOTHING),
    "DPMixture.score(x)": (lambda m, v: m.mixture.score(v), {"table"}),
    "DPMixture.sample(n_samples)": (lambda m, v: m.mixture.sample(v), NOTHING),
    "DPMixture.save(path)": (lambda m, v: m.mixture.save(v, overwrite=True), {"text"}),
    "DPMixture.save(overwrite)": (lambda m, v: m.mixture.save(m.folder / "saved", overwrite=v), TRUE),
    "SVA.fit(x)": (lambda m, v: sva().fit(v), {"table"}),
    "SVA.fit(sample_weight)": (lambda m, v: sva().fit(ROWS, sample_weight=v), WEIGHTS),
    "SVA.fit(holdout)": (lambda m, v: sva().fit(ROWS, holdout=v), NONE | {"table"}),
    "SVA.partial_fit(x)": (lambda m, v: sva().partial_fit(v), {"table"}),
    "SVA.partial_fit(sample_weight)": (lambda m, v: sva().partial_fit(ROWS, sample_weight=v), WEIGHTS),
    "SVA.iter_fit(checkpoint_seconds)": (
        lambda m, v: run_through(sva().iter_fit(ROWS, checkpoint_seconds=v)),
        ZERO | FRACTION | {"inf"},
    ),
    "SVA.save(path)": (lambda m, v: m.passed.save(v, overwrite=True), {"text"}),
    "HDPTopicModel.fit(x)": (lambda m, v: topic_model().fit(v), {"table"}),
    "HDPTopicModel.fit(backend)": (lambda m, v: topic_model().fit(COUNTS, backend=v), NONE),
    "HDPTopicModel.fit(checkpoint_path)": (
        lambda m, v: topic_model().fit(COUNTS, checkpoint_path=v, overwrite=True),
        NONE | {"text"},
    ),
    "HDPTopicModel.partial_fit(x)": (lambda m, v: topic_model().partial_fit(v), {"table"}),
    "HDPTopicModel.partial_fit(documents)": (lambda m, v: topic_model().partial_fit(COUNTS, documents=v), NONE),
    "HDPTopicModel.transform(x)": (lambda m, v: m.topics.transform(v), NOTHING),
    "HDPTopicModel.score(x)": (lambda m, v: m.topics.score(v), NOTHING),
    "HDPTopicModel.score(observed)": (lambda m, v: m.topics.score(COUNTS, observed=v), NONE),
    "HDPTopicModel.score(share)": (lambda m, v: m.topics.score(COUNTS, share=v), NOTHING),
    "HDPTopicModel.score(random_state)": (lambda m, v: m.topics.score(COUNTS, random_state=v), ZERO),
    "HDPTopicModel.top_words(vocabulary)": (
        lambda m, v: m.topics.top_words(list("abcd") if v is None else v),
        NONE,
    ),
    "HDPTopicModel.top_words(words)": (lambda m, v: m.topics.top_words(["a"] * 4, v), NOTHING),
    "HDPTopicModel.coherence(x)": (lambda m, v: m.topics.coherence(v), NOTHING),
    "HDPTopicModel.coherence(words)": (lambda m, v: m.topics.coherence(COUNTS, v), NOTHING),
    "HDPTopicModel.save(path)": (lambda m, v: m.topics.save(v, overwrite=True), {"text"}),
    "load(path)": (lambda m, v: dpdist.load(v), NOTHING),
    "resume(path)": (lambda m, v: dpdist.resume(v, ROWS), NOTHING),
    "resume(x)": (lambda m, v: dpdist.resume(m.folder / "run", v), NOTHING),
    "resume(max_laps)": (lambda m, v: dpdist.resume(m.folder / "run", ROWS, max_laps=v), NONE),
    "resume(max_time)": (lambda m, v: dpdist.resume(m.folder / "run", ROWS, max_time=v), NONE | FRACTION),
    "resume(holdout)": (lambda m, v: dpdist.resume(m.folder / "run", ROWS, holdout=v), NONE | {"table"}),
    "resume(backend)": (lambda m, v: dpdist.resume(m.folder / "run", ROWS, backend=v), NONE),
    "extend(path)": (lambda m, v: dpdist.extend(v, ROWS, out="grown", overwrite=True, again=True), NOTHING),
    "extend(x)": (
        lambda m, v: dpdist.extend(m.folder / "passed", v, out=m.folder / "longer", overwrite=True, again=True),
        {"table"},
    ),
    "extend(sample_weight)": (
        lambda m, v: dpdist.extend(
            m.folder / "passed", ROWS, sample_weight=v, out=m.folder / "longer", overwrite=True, again=True
        ),
        WEIGHTS,
    ),
    "extend(out)": (
        lambda m, v: dpdist.extend(m.folder / "passed", ROWS, out=v, overwrite=True, again=True),
        NONE | {"text"},
    ),
    "extend(again)": (
        lambda m, v: dpdist.extend(m.folder / "passed", ROWS, out=m.folder / "longer", overwrite=True, again=v),
        TRUE,
    ),
    "extend(overwrite)": (
        lambda m, v: dpdist.extend(m.folder / "passed", ROWS, out=m.folder / f"o{v}", overwrite=v, again=True),
        TRUE,
    ),
    "extend(backend)": (
        lambda m, v: dpdist.extend(
            m.folder / "passed", ROWS, out=m.folder / "longer", overwrite=True, again=True, backend=v
        ),
        NONE,
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_is_taken_or_refused_in_a_sentence(
    models: Models, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do, takes = CALLS[call]
    monkeypatch.chdir(tmp_path)
    name = call[call.index("(") + 1 : -1]
    assert_taken_or_refused(lambda value: do(models, value), name, takes)


def test_what_is_asked_of_an_iteration_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(dpdist.SVA, "follow", lambda model, fit: iter([seen.append(fit)]))
    run_through(sva().iter_fit(ROWS, checkpoint_seconds=7, checkpoint_path=tmp_path / "run", holdout=ROWS))
    assert seen[0].checkpoint_seconds == 7.0 and seen[0].method.holdout is not None and seen[0].store is not None
