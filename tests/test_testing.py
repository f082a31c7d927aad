"""The conformance suites pass on every part of the registries, and fail on parts that break a law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data import ArraySource, as_source
from dpdist.execution import SerialBackend
from dpdist.inference.moves.base import Following
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.merge import Merge
from dpdist.inference.moves.split import Split
from dpdist.models.allocations import DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.models.families import FAMILIES, DiagonalGaussian, Family, Gaussian, IsotropicGaussian, Moments, Poisson
from dpdist.models.mixture import Block, Model
from dpdist.models.sufficient_statistics import Summary
from dpdist.testing import check_allocation, check_backend, check_family, check_move, check_source, check_stored
from tests.own_parts import Cut, Cuts, Exponential, GeometricSticks, KnownSpread, Never
from tests.test_moves import rows_for


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_conform(name) -> None:
    check_family(FAMILIES[name](), rows_for(name, np.random.default_rng(0), 2.0))


@pytest.mark.parametrize(
    "allocation", [DirichletProcess(2.0), LearnedDirichletProcess(), FiniteDirichlet(6)], ids=lambda a: a.name
)
def test_allocations_conform(allocation) -> None:
    check_allocation(allocation)


@pytest.mark.parametrize("move", [Split(), Split(3), Merge(), Delete(2), Cut()], ids=repr)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_moves_conform(move, name) -> None:
    rng = np.random.default_rng(1)
    rows = rows_for(name, rng, 1.0)
    moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), True)
    model = Model(FAMILIES[name]().with_defaults(moments), DirichletProcess(1.0))
    check_move(move, model, rows, rng.dirichlet(np.ones(4), size=len(rows)))


def test_the_serial_backend_conforms() -> None:
    check_backend(SerialBackend())


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, lambda x: da.from_array(x, chunks=(70, 2))])
def test_sources_conform(make) -> None:
    check_source(as_source(make(np.random.default_rng(0).poisson(1.0, size=(300, 4)))))


class Unsteady(ArraySource):
    """A source that breaks the law that it is told to break."""

    def __init__(self, law: str) -> None:
        super().__init__(np.arange(60.0).reshape(30, 2), partition_rows=15, names=("a", "b"))
        self.law, self.reads = law, 0
        self.sparse = law == "sparse"
        self.names = ("a", "b", "c") if law == "names" else self.names

    def partition(self, *given: Any) -> Any:
        made = super().partition(*given)
        vars(made)["load"] = lambda: self.read(made)
        return made

    def read(self, made: Any) -> tuple[Any, Any]:
        self.reads += 1
        rows, weights = type(made).load(made)
        rows = rows + self.reads if self.law == "steady" else rows
        rows = rows.astype(object) if self.law == "numbers" else rows
        weights = np.ones(len(rows)) if self.law == "weighing" else weights
        return rows, -np.ones(len(rows)) if self.law == "weights" else weights


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        ("steady", "same rows each time"),
        ("sparse", "sparse or dense as the source declares"),
        ("numbers", "rows are numbers"),
        ("weights", "not below 0"),
        ("weighing", "partitions have weights if the source has weights"),
        ("names", "one name per column"),
    ],
)
def test_a_source_that_breaks_a_law_is_found(law: str, sentence: str) -> None:
    check_source(Unsteady(""))
    with pytest.raises(AssertionError, match=sentence):
        check_source(Unsteady(law))


@dataclass(frozen=True, eq=False)
class Broken(Poisson):
    """A family that keeps every law but the one that it is told to break."""

    law: str = ""
    held: Any = None

    def breaks(self, law: str) -> bool:
        return self.law == law

    def with_defaults(self, moments: Moments) -> Broken:
        held = self.held if not self.breaks("defaults") else float(self.held or 0) + 1
        return replace(super().with_defaults(moments), held=held)

    def features(self, rows: Any, dtype: type = np.float64) -> Any:
        features = super().features(rows, np.float64 if self.breaks("dtype") else dtype)
        if self.breaks("ones") or (self.breaks("sparse") and sparse.issparse(rows)):
            features[:, -1] = 2.0
        return features - features.mean(axis=0) * [1, 1, 0] if self.breaks("neighbours") else features

    def log_base_measure(self, rows: Any) -> np.ndarray:
        base = super().log_base_measure(rows)
        if self.breaks("base measure"):
            return base.sum(keepdims=True)
        if self.breaks("constants"):
            return 0.0 * base
        return base - base.mean() if self.breaks("base of others") else base

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        evidence = super().log_evidence(stats)
        if self.breaks("nothing"):
            return evidence + 0.01
        return evidence - evidence.mean() if self.breaks("others") else evidence

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        found = super().coefficients(stats)
        found[-1] *= 1.001 if self.breaks("gradient") else 1.0
        return found

    def log_predictive(self, features: Any, stats: np.ndarray) -> np.ndarray:
        return super().log_predictive(features, stats) + (1e-5 if self.breaks("predictive") else 0.0)

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if self.breaks("generator"):
            rng = np.random.default_rng()
        drawn = super().sample(stats, 0 * components if self.breaks("components") else components, rng)
        if self.breaks("width"):
            return drawn[:, :1]
        return np.rint(1.2 * drawn) if self.breaks("draws") else drawn

    def describe(self, stats: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        found = super().describe(stats)
        if self.breaks("every component"):
            return {"rate": (("component", "column"), found["rate"][1][:1])}
        return {"weight": found["rate"]} if self.breaks("description") else found


BREAKS = {
    "defaults": "defaults do not change given",
    "dtype": "have the requested dtype",
    "ones": "last statistic",
    "sparse": "same statistics as dense rows",
    "neighbours": "statistics of a row do not depend on other rows",
    "base measure": "one entry per row",
    "base of others": "base measure of a row",
    "nothing": "evidence of no rows",
    "others": "evidence of no rows|not depend on other components|is the gradient|are the gradient",
    "gradient": "are the gradient",
    "predictive": "difference of log evidences",
    "width": "as many columns as the rows",
    "draws": "come from the predictive",
    "generator": "depend only on the given generator",
    "constants": "it sums to 1",
    "components": "come from the requested components",
    "every component": "descriptions have one entry per component",
}
COUNTS = np.random.default_rng(3).poisson([2.0, 5.0], size=(60, 2)).astype(float)


@pytest.mark.parametrize("law", BREAKS)
def test_a_family_that_breaks_a_law_is_found(law) -> None:
    check_family(Broken(), COUNTS)
    with pytest.raises(AssertionError, match=BREAKS[law]):
        check_family(Broken(law=law), COUNTS)


def test_a_family_that_cannot_be_stored_is_found() -> None:
    with pytest.raises(InputError, match=r"other than component, .*; got 'weight'"):
        check_family(Broken(law="description"), COUNTS)
    with pytest.raises(InputError, match="held of Broken should be a number"):
        check_family(Broken(held=object()), COUNTS)


@dataclass(frozen=True, eq=False)
class Unmoved(IsotropicGaussian):
    """A prior that stays where it is."""

    about = Family.about


@dataclass(frozen=True, eq=False)
class Straight(Gaussian):
    """A prior that does not turn with the rows."""

    turned = Family.turned


@dataclass(frozen=True, eq=False)
class Short(DiagonalGaussian):
    """Without -(D / 2) log 2 pi a row, in the evidence and in its gradient alike."""

    def log_evidence(self, stats: np.ndarray) -> np.ndarray:
        return super().log_evidence(stats) + self._left_out(stats) * stats[:, -1]

    def coefficients(self, stats: np.ndarray) -> np.ndarray:
        found = super().coefficients(stats).copy()
        found[-1] += self._left_out(stats)
        return found

    def _left_out(self, stats: np.ndarray) -> float:
        return 0.5 * np.log(2 * np.pi) * (stats.shape[1] // 2)

    log_predictive = Family.log_predictive


@dataclass(frozen=True, eq=False)
class Blurred(Gaussian):
    """Draws that vary a tenth too much."""

    def sample(self, stats: np.ndarray, components: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean = self.posterior(stats).mean[components]
        return mean + 1.1 * (super().sample(stats, components, rng) - mean)


@pytest.mark.parametrize(
    ("family", "law"),
    [
        (Unmoved(), "shifting rows"),
        (Straight(scale=np.diag([1.0, 9.0])), "rotating rows"),
        (Short(), "it sums to 1"),
        (Blurred(), "come from the predictive"),
    ],
)
def test_a_family_of_real_rows_that_breaks_a_law_is_found(family, law) -> None:
    with pytest.raises(AssertionError, match=law):
        check_family(family, np.random.default_rng(0).normal(size=(60, 2)) + 3.0)


@dataclass(frozen=True, eq=False)
class Deviant(GeometricSticks):
    """An allocation that breaks the law that it is told to."""

    law: str = ""
    held: Any = None

    @property
    def ordered(self) -> bool:  # type: ignore[override]
        return self.law != "unordered"

    def logs(self, components: int) -> np.ndarray:
        return np.log(0.05 * np.arange(1.0, components + 1)) if self.law == "order" else super().logs(components)

    def log_evidence(self, counts: np.ndarray) -> np.ndarray:
        evidence = super().log_evidence(counts)
        if self.law == "nothing":
            return evidence + 1.0
        if self.law == "many":
            return evidence.mean() + 0.0 * evidence
        return evidence - 0.1 * counts.shape[-1] * counts.any() if self.law == "empty" else evidence

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        return super().log_weights(counts) + (0.01 if self.law == "gradient" else 0.0)

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        weights, rest = super().weights(counts)
        if self.law == "even":
            return np.full(len(counts), (1 - rest) / len(counts)), rest
        if self.law == "negative":
            return weights + rest + 0.5, -(len(counts) - 1) * rest - 0.5 * len(counts)
        return weights, rest + (0.01 if self.law == "sum" else 0.0)


DEVIATIONS = {
    "nothing": "evidence of zero counts",
    "many": "have the evidence of each alone",
    "empty": "empty component at the end does not change the evidence",
    "gradient": "are the gradient",
    "order": "descending counts",
    "sum": "sum to 1",
    "negative": "are not negative",
    "even": "at most the logs of",
    "unordered": "order of counts does not matter",
}


@pytest.mark.parametrize("law", DEVIATIONS)
def test_an_allocation_that_breaks_a_law_is_found(law) -> None:
    check_allocation(Deviant())
    with pytest.raises(AssertionError, match=DEVIATIONS[law]):
        check_allocation(Deviant(law=law))


def test_an_allocation_that_cannot_be_stored_is_found() -> None:
    with pytest.raises(InputError, match="held of Deviant should be a number"):
        check_allocation(Deviant(held=object()))


@dataclass(frozen=True, eq=False)
class WrongCuts(Cuts):
    """Proposals that break the law that they are told to."""

    law: str = ""
    held: Any = None

    def blank(self, columns: int) -> Summary:
        return Summary.zeros(2 * len(self) + (self.law == "shape"), columns)

    def measure(self, block: Block) -> Summary:
        found = super().measure(block)
        if self.law == "entropy":
            return replace(found, entropy=found.entropy + 1.0)
        return replace(found, stats=found.stats + 1.0) if self.law == "rows" else found

    def replacement(self, proposal: int, summary: Summary, measured: Summary) -> Summary:
        found = super().replacement(proposal, summary, measured)
        if self.law == "lost":
            return found.take([0])
        return replace(found, entropy=found.entropy + 1.0) if self.law == "linear" else found

    def heirs(self, proposal: int, summary: Summary, measured: Summary) -> tuple[int, ...]:
        own, new = super().heirs(proposal, summary, measured)
        return {"heirs": (own,), "twice": (own, own), "others": (own, own + 1)}.get(self.law, (own, new))

    def evidence_before(self, proposal: int, evidence: np.ndarray, replaced: Summary, model: Model) -> float:
        return super().evidence_before(proposal, evidence, replaced, model) - (1.0 if self.law == "gain" else 0.0)


@dataclass(frozen=True)
class WrongCut(Cut):
    """A move that breaks the law that it is told to."""

    law: str = ""
    held: Any = None

    def propose(self, end, before, verdicts, others) -> Following:
        found = super().propose(end, before, verdicts, others)
        cuts = WrongCuts(found.proposals.targets, found.proposals.thresholds, found.proposals.refused, self.law)
        if self.law == "nothing":
            return Following(self.none())
        if self.law == "stored":
            return Following(replace(cuts, held=object()))
        columns = end.summary.stats.shape[1]
        stray = np.arange(99, 100) if self.law == "carried" and verdicts else found.carried
        return Following(cuts, stray, Summary.zeros(2 * len(cuts), columns) if self.law == "shape" else None)


WRONG = {
    "nothing": "proposes something",
    "rows": "measurements add over rows",
    "entropy": "measured entropies add over rows",
    "lost": "replacements keep the sums of the removed components",
    "linear": "entropies of replacements are linear",
    "heirs": "heirs has one entry per replacement",
    "twice": "heirs are different removed components",
    "others": "heirs are different removed components",
    "gain": "a gain is the change of the ELBO",
    "shape": "has the shape of a measurement",
    "carried": "the next lap starts with all carried rows",
}


def checked(move: Cut) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(60, 2))
    moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), True)
    check_move(move, Model(Gaussian().with_defaults(moments), DirichletProcess()), rows, rng.dirichlet([1.0] * 3, 60))


@pytest.mark.parametrize("law", WRONG)
def test_a_move_that_breaks_a_law_is_found(law) -> None:
    checked(WrongCut())
    with pytest.raises(AssertionError, match=WRONG[law]):
        checked(WrongCut(law=law))


def test_a_move_that_cannot_be_stored_is_found() -> None:
    with pytest.raises(InputError, match="held of WrongCut should be a number"):
        checked(WrongCut(held=object()))
    with pytest.raises(InputError, match="held of WrongCuts should be a number"):
        checked(WrongCut(law="stored"))


@dataclass(frozen=True, eq=False)
class Forgetful(Merge):
    """A move that does not keep what it is given."""

    held: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "held", (self.held or 0) + 1)


def test_a_part_that_does_not_come_back_is_found() -> None:
    with pytest.raises(AssertionError, match="a part does not change when stored: held"):
        check_stored(Forgetful())


def test_parts_of_ones_own_conform() -> None:
    check_family(Exponential(2.0), np.random.default_rng(0).exponential([1.0, 3.0], size=(50, 2)))
    check_allocation(GeometricSticks(0.3))
    for part in (KnownSpread(2.0), Never()):
        check_stored(part)
