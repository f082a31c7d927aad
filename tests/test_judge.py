"""The accept rule, by itself and over arbitrary moves: it always ends, and its verdicts follow one from another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from dpdist import DPMixture
from dpdist.inference.moves import change as change_module
from dpdist.inference.moves.accept import Reason, accepted, judge, reason_for
from dpdist.inference.moves.base import Proposals
from dpdist.inference.moves.change import MoveVerdict, change_from, judge_moves, rounding
from dpdist.models.allocations import DirichletProcess, FiniteDirichlet, LearnedDirichletProcess
from dpdist.models.families import Family, IsotropicGaussian
from dpdist.models.mixture import Model
from dpdist.models.sufficient_statistics import Summary, concatenate
from tests.runs import FEW_MOVES


@dataclass(frozen=True)
class Coupled:
    """Proposals whose gains change with what was accepted before them, in ways told one by one."""

    fixed: tuple[float, ...]
    effects: tuple[tuple[float, ...], ...]  # what the one accepted does to the gain of the other
    thresholds: tuple[float, ...]
    needs: tuple[frozenset[int], ...]  # what a proposal changes
    limit: int
    done: tuple[int, ...] = ()

    def gain(self, proposal: int) -> float:
        assert self.holds(proposal), "the gain of what conflicts is not asked for"
        return self.fixed[proposal] + sum(self.effects[other][proposal] for other in self.done)

    def threshold(self, proposal: int) -> float:
        return self.thresholds[proposal]

    def holds(self, proposal: int) -> bool:
        return not any(self.needs[proposal] & self.needs[other] for other in self.done)

    def too_many_with(self, proposal: int) -> bool:
        return len(self.done) >= self.limit

    def after(self, proposal: int) -> Coupled:
        return replace(self, done=(*self.done, proposal))


GAINS = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, 1.0, 1.0, 2.0]) | st.floats(-5, 5)


@st.composite
def standings(draw) -> Coupled:
    size = draw(st.integers(0, 6))
    some = {"min_size": size, "max_size": size}
    return Coupled(
        tuple(draw(st.lists(GAINS, **some))),
        tuple(tuple(draw(st.lists(st.sampled_from([0.0, 0.0, -3.0, 3.0]), **some))) for _ in range(size)),
        tuple(draw(st.lists(st.sampled_from([0.0, 0.0, 1e-3, 1.5, -1.5, np.inf, np.nan]), **some))),
        tuple(draw(st.lists(st.frozensets(st.integers(0, 4), min_size=1, max_size=2), **some))),
        draw(st.integers(0, 6)),
    )


@given(standing=standings(), exact=st.booleans(), data=st.data())
def test_the_rule_goes_from_the_most_promising_on_and_each_verdict_follows_from_those_before(standing, exact, data):
    size = len(standing.fixed)
    some = data.draw(st.lists(GAINS, min_size=size, max_size=size))
    promise = np.array(standing.fixed if exact else some, dtype=float)
    verdicts = judge(standing, promise, exact)
    order = [v.proposal for v in verdicts]
    assert sorted(order) == list(range(size))
    for first, then in pairwise(order):
        alike = promise[first] == pytest.approx(promise[then], rel=1e-6, abs=0.0)
        assert np.isnan(promise[then]) or alike or promise[first] > promise[then]
        assert promise[first] != promise[then] or first < then
    for proposal, gain, reason in verdicts:
        free, promised = standing.holds(proposal), promise[proposal]
        asked = free and (promised > 0 or promised > standing.threshold(proposal) or not exact)
        np.testing.assert_equal(gain, standing.gain(proposal) if asked else promised if exact else np.nan)
        if exact or free:
            beyond = standing.too_many_with(proposal)
            assert reason is expected_reason(gain, standing.threshold(proposal), free, beyond)
        else:
            assert reason is Reason.CONFLICT
        standing = standing.after(proposal) if reason is Reason.ACCEPTED else standing
    assert tuple(accepted(verdicts)) == standing.done


def test_what_may_cost_a_little_is_judged_anew_too() -> None:
    apart = (frozenset({0}), frozenset({1}))
    standing = Coupled((2.0, -1.0), ((0.0, -3.0), (0.0, 0.0)), (0.0, -1.5), apart, limit=2)
    assert judge(standing, np.array(standing.fixed), exact=True)[1] == (1, -4.0, Reason.NO_GAIN)


@given(standing=standings(), exact=st.booleans())
def test_whatever_is_accepted_gains_fits_and_overlaps_nothing(standing, exact) -> None:
    verdicts = judge(standing, np.array(standing.fixed, dtype=float), exact)
    done = accepted(verdicts)
    assert len(done) <= standing.limit
    assert all(v.gain > standing.threshold(v.proposal) for v in verdicts if v.reason is Reason.ACCEPTED)
    taken = Counter(k for proposal in done for k in standing.needs[proposal])
    assert max(taken.values(), default=1) == 1


@dataclass(frozen=True, eq=False)
class Stated(Family):
    """A likelihood whose log evidence is the first statistic: any gain can be stated, of any size of numbers."""

    name = "stated"

    def with_defaults(self, moments):
        return self

    def features(self, rows, dtype=np.float64):
        return np.stack([np.zeros(len(rows)), np.ones(len(rows))], axis=1)

    def log_evidence(self, stats):
        return stats[:, 0].copy()

    def coefficients(self, stats):
        return np.zeros((2, len(stats)))

    def describe(self, stats):
        return {}

    def sample(self, stats, components, rng):
        return np.zeros((len(components), 1))


@dataclass(frozen=True, eq=False)
class Listed(Proposals):
    """Proposals told one by one: what each removes, puts in its place, and who inherits."""

    taken: tuple[tuple[int, ...], ...]
    put: tuple[Summary, ...]
    inherit: tuple[tuple[int, ...], ...] = ()

    def __len__(self):
        return len(self.taken)

    def blank(self, columns):
        return Summary.zeros(0, columns)

    def measure(self, block):
        raise NotImplementedError

    def removed(self, proposal):
        return self.taken[proposal]

    def replacement(self, proposal, summary, measured):
        return self.put[proposal]

    def heirs(self, proposal, summary, measured):
        return self.inherit[proposal]


@dataclass(frozen=True)
class Case:
    """A lap's end."""

    model: Model
    total: Summary
    proposals: tuple[Listed, ...]
    dtype: type = np.float64

    @property
    def measured(self) -> list[Summary]:
        return [Summary.zeros(0, 2)] * len(self.proposals)

    def verdicts(self) -> list[MoveVerdict]:
        return judge_moves(self.model, self.total, self.proposals, self.measured, self.dtype)

    def put(self, verdict: MoveVerdict) -> Summary:
        return self.proposals[verdict.move].put[verdict.proposal]

    def taken(self, verdict: MoveVerdict) -> set[int]:
        return set(self.proposals[verdict.move].taken[verdict.proposal])

    def threshold(self, verdict: MoveVerdict) -> float:
        """Four units in the last place of the numbers added up, and 64 of the bound's own; twice its count more where
        a component of less than half a row would come, and its count less where one would go."""
        put, taken = self.put(verdict), self.total.take(sorted(self.taken(verdict)))
        noise = 4 * float(np.finfo(self.dtype).eps) * np.abs(put.stats[:, 0]).sum()
        noise += 64 * np.finfo(float).eps * abs(self.model.elbo(self.total))
        if len(put.counts) > len(taken.counts) and (put.counts < 0.5).any():
            return noise + 2 * max(1e-3, put.counts.min())
        if len(put.counts) < len(taken.counts) and (taken.counts < 0.5).any():
            return noise - max(1e-3, taken.counts.min())
        return noise


class Replay:
    """The components as accepted proposals leave them, each held as it is."""

    def __init__(self, case: Case) -> None:
        self.model, self.base = case.model, case.total.base
        self.kept = {k: case.total.take([k]) for k in range(len(case.total.entropy))}
        self.added: list[Summary] = []

    def summary(self) -> Summary:
        """All components, in the order of the lap's end."""
        whole = replace(concatenate([*self.kept.values(), *self.added]), base=self.base)
        order = np.argsort(-whole.counts, kind="stable") if self.model.allocation.ordered else slice(None)
        return whole.take(np.arange(len(whole.counts))[order])

    def holds(self, taken: set[int]) -> bool:
        return taken <= self.kept.keys()

    def after(self, taken: set[int], put: Summary) -> Replay:
        other = Replay.__new__(Replay)
        other.model, other.base, other.added = self.model, self.base, [*self.added, put]
        other.kept = {k: part for k, part in self.kept.items() if k not in taken}
        return other

    def gain(self, taken: set[int], put: Summary) -> float:
        return self.model.elbo(self.after(taken, put).summary()) - self.model.elbo(self.summary())


COUNTS = st.sampled_from([0.0, 0.2, 1.0, 1.0, 2.5, 7.0, 40.0]) | st.floats(0.0, 50.0)
#: Gains on the scale of what allocations add, of the rounding of large numbers, and of nothing at all.
SMALL = st.sampled_from([0.0, 1e-300, 1e-14, -1e-14, 0.25, -0.25]) | st.floats(-20.0, 20.0)
ANY = SMALL | st.sampled_from([np.nan, np.inf, -np.inf, 1e300])
SIZES = st.sampled_from([0.0, 1.0, 1e3, 1e6])


@st.composite
def allocations(draw, components: int):
    limit = draw(st.sampled_from([None, 1, components, components + 1, components + 2]))
    concentration = draw(st.sampled_from([0.1, 1.0, 5.0]))
    kind = draw(st.sampled_from([DirichletProcess, LearnedDirichletProcess, FiniteDirichlet]))
    if kind is FiniteDirichlet:
        return FiniteDirichlet(max(components, limit or 30), concentration)
    return kind(concentration, max_components=limit) if kind is DirichletProcess else kind(max_components=limit)


@st.composite
def cases(draw, entropies=SMALL) -> Case:
    """Few components, often of equal counts or none; proposals that overlap, tie, shrink and grow."""
    size = draw(st.integers(1, 6))
    counts = np.array(draw(st.lists(COUNTS, min_size=size, max_size=size)))
    heights = draw(SIZES) * np.array(draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size)))
    entropy = np.array(draw(st.lists(SMALL, min_size=size, max_size=size)))
    total = Summary(np.stack([heights, counts], axis=1), entropy, base=-2.5)
    proposals = tuple(draw(st.lists(listed(total, entropies), max_size=3)))
    dtype = draw(st.sampled_from([np.float64, np.float32]))
    return Case(Model(Stated(), draw(allocations(size))), total, proposals, dtype)


@st.composite
def listed(draw, total: Summary, entropies) -> Listed:
    place = st.integers(0, len(total.entropy) - 1)
    taken = draw(st.lists(st.lists(place, min_size=1, max_size=3, unique=True).map(tuple), max_size=5))
    return Listed(tuple(taken), tuple(draw(replacements(total.take(removed), entropies)) for removed in taken))


@st.composite
def replacements(draw, removed: Summary, entropies) -> Summary:
    """What was removed in other shares, its entropy changed by anything."""
    shares = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), dtype=float)
    shares /= shares.sum()
    changes = np.array(draw(st.lists(entropies, min_size=len(shares), max_size=len(shares))))
    return Summary(shares[:, None] * removed.stats.sum(axis=0), shares * removed.entropy.sum() + changes)


@settings(max_examples=200)
@given(case=cases())
def test_every_verdict_follows_from_the_state_that_those_before_it_left(case) -> None:
    start = state = Replay(case)
    tolerance, limit = 1e-9 + 1e-12 * np.abs(case.total.stats[:, 0]).sum(), case.model.allocation.max_components
    before = np.inf
    for verdict in case.verdicts():
        taken, put = case.taken(verdict), case.put(verdict)
        alone, free = start.gain(taken, put), state.holds(taken)
        now = state.gain(taken, put) if free and verdict.gain > min(0, case.threshold(verdict)) else alone
        assert alone <= before + tolerance, "best first"
        assert verdict.gain == pytest.approx(now, abs=tolerance) or alone == pytest.approx(0, abs=tolerance)
        growth = len(put.entropy) - len(taken)
        size = len(state.kept) + sum(len(part.entropy) for part in state.added)
        beyond = limit is not None and growth > 0 and size + growth > limit
        assert verdict.reason is expected_reason(verdict.gain, case.threshold(verdict), free, beyond)
        before, state = alone, state.after(taken, put) if verdict.reason is Reason.ACCEPTED else state


def expected_reason(gain: float, threshold: float, free: bool, beyond: bool) -> Reason:
    """The first thing that speaks against a proposal."""
    objections = {
        Reason.NO_GAIN: not (gain > (-abs(threshold) if np.isfinite(threshold) else 0.0) or gain > threshold),
        Reason.ROUNDING: not gain > threshold,
        Reason.CONFLICT: not free,
        Reason.LIMIT: beyond,
        Reason.ACCEPTED: True,
    }
    return next(reason for reason, holds in objections.items() if holds)


@given(case=cases())
def test_accepted_gains_add_up_to_the_change_of_the_bound(case) -> None:
    verdicts, state = case.verdicts(), Replay(case)
    accepted = [verdict for verdict in verdicts if verdict.reason is Reason.ACCEPTED]
    whole = change_from(case.model, case.total, case.proposals, case.measured, verdicts).apply(
        case.total, case.proposals, case.measured
    )
    rise = case.model.elbo(whole) - case.model.elbo(state.summary())
    tolerance = 1e-9 + 1e-11 * np.abs(case.total.stats[:, 0]).sum()
    assert sum(verdict.gain for verdict in accepted) == pytest.approx(rise, abs=tolerance)
    for verdict in accepted:
        state = state.after(case.taken(verdict), case.put(verdict))
    np.testing.assert_array_equal(whole.stats, state.summary().stats)
    np.testing.assert_array_equal(whole.entropy, state.summary().entropy)
    assert whole.base == case.total.base


@given(case=cases(), data=st.data())
def test_identities_go_with_their_components_and_new_ones_are_never_used_again(case, data) -> None:
    verdicts = case.verdicts()
    change = change_from(case.model, case.total, case.proposals, case.measured, verdicts)
    size = len(case.total.entropy)
    ids = np.array(data.draw(st.permutations(range(10, 10 + size))))
    tagged, heirs, tried = Summary(case.total.stats, np.arange(size, dtype=float)), {}, []
    for each in case.proposals:
        put, inherit = [], []
        for taken, part in zip(each.taken, each.put, strict=True):
            own = data.draw(st.permutations([*taken, -1, -1, -1]))[: len(part.entropy)]
            tags = 100.0 + len(heirs) + np.arange(len(own))
            heirs |= dict(zip(tags, own, strict=True))
            put.append(Summary(part.stats, tags))
            inherit.append(tuple(own))
        tried.append(Listed(each.taken, tuple(put), tuple(inherit)))
    found, following = change.identities(ids, 50, tagged, tried, case.measured)
    places = change.apply(tagged, tried, case.measured).entropy
    owners = [heirs.get(tag, int(tag)) for tag in places]
    assert [i if i < 50 else None for i in found.tolist()] == [int(ids[k]) if k >= 0 else None for k in owners]
    assert sorted(i for i in found.tolist() if i >= 50) == list(range(50, following))


@given(case=cases(ANY))
def test_whatever_the_gains_each_proposal_gets_one_verdict_and_the_accepted_are_disjoint(case) -> None:
    with np.errstate(all="ignore"):
        verdicts = case.verdicts()
    every = [(m, j) for m, tried in enumerate(case.proposals) for j in range(len(tried))]
    assert sorted((verdict.move, verdict.proposal) for verdict in verdicts) == every
    accepted = [verdict for verdict in verdicts if verdict.reason is Reason.ACCEPTED]
    taken = Counter(k for verdict in accepted for k in case.taken(verdict))
    assert max(taken.values(), default=1) == 1
    assert all(verdict.gain > case.threshold(verdict) for verdict in accepted)


def stated(gains: Sequence[float], taken: Sequence[tuple[int, ...]], components: int = 4) -> Case:
    """Proposals that put one component of equal statistics in the place of one, so that entropy alone gains."""
    total = Summary(np.tile([0.0, 5.0], (components, 1)), np.zeros(components))
    put = tuple(
        Summary(total.take(k).stats, np.full(len(k), gain / len(k))) for gain, k in zip(gains, taken, strict=True)
    )
    return Case(Model(Stated(), DirichletProcess()), total, (Listed(tuple(taken), put),))


def test_a_gain_within_its_rounding_of_a_component_that_is_taken_ends_nothing() -> None:
    case = stated([3.0, 1e-15, 1.0], [(0, 1), (1,), (1, 2)])
    found = {verdict.proposal: verdict.reason for verdict in case.verdicts()}
    assert found == {0: Reason.ACCEPTED, 1: Reason.ROUNDING, 2: Reason.CONFLICT}


def test_a_run_goes_on_where_gains_are_within_their_rounding() -> None:
    rows = load_digits().data[:300]
    model = DPMixture(IsotropicGaussian(), compute_dtype="float32", max_laps=16, moves=FEW_MOVES, random_state=1)
    elbos = [info.elbo for _, info in model.iter_fit(rows)]
    assert len(elbos) == 16
    assert (np.diff(elbos) > -1e-6 * np.abs(elbos[1:])).all()


def test_of_two_equal_proposals_the_first_is_accepted() -> None:
    reasons = [(v.proposal, v.reason) for v in stated([2.0, 2.0, 2.0], [(3,), (1,), (1,)]).verdicts()]
    assert reasons == [(0, Reason.ACCEPTED), (1, Reason.ACCEPTED), (2, Reason.CONFLICT)]


def test_room_that_a_merge_makes_is_filled_and_no_more() -> None:
    total = Summary(np.tile([0.0, 8.0], (6, 1)), np.zeros(6))
    wanted = [((0,), 2), ((1,), 2), ((2, 3), 1), ((4,), 2), ((5,), 2), ((5,), 1)]  # removed, parts put; best first
    put = tuple(
        Summary(np.tile([0.0, 8.0 * len(taken) / parts], (parts, 1)), np.full(parts, 100.0 * (6 - j) / parts))
        for j, (taken, parts) in enumerate(wanted)
    )
    limited = Model(Stated(), DirichletProcess(max_components=7))
    verdicts = Case(limited, total, (Listed(tuple(taken for taken, _ in wanted), put),)).verdicts()
    refused = {1: Reason.LIMIT, 4: Reason.LIMIT}
    assert [(v.proposal, v.reason) for v in verdicts] == [(j, refused.get(j, Reason.ACCEPTED)) for j in range(6)]


@pytest.mark.parametrize(("gain", "comes"), [(0.5, True), (0.3, False)])
def test_a_component_of_less_than_half_a_row_comes_only_for_twice_its_count(gain, comes) -> None:
    whole, parts = np.array([[0.0, 8.0]]), np.array([[0.0, 7.8], [0.0, 0.2]])
    assert (reason_of(whole, parts, gain) is Reason.ACCEPTED) == comes


@pytest.mark.parametrize(("gain", "goes"), [(0.1, True), (-0.1, True), (-0.3, False)])
def test_a_component_of_less_than_half_a_row_goes_where_that_costs_no_more_than_its_count(gain, goes) -> None:
    whole, parts = np.array([[0.0, 8.0]]), np.array([[0.0, 7.8], [0.0, 0.2]])
    assert (reason_of(parts, whole, gain) is Reason.ACCEPTED) == goes


def reason_of(before: np.ndarray, after: np.ndarray, gain: float) -> Reason:
    """What becomes of all components being replaced by others, where that gains so many nats."""
    total, taken = Summary(before, np.zeros(len(before))), tuple(range(len(before)))

    def case(entropy: float) -> Case:
        put = Summary(after, np.full(len(after), entropy / len(after)))
        return Case(Model(Stated(), DirichletProcess(1.0)), total, (Listed((taken,), (put,)),))

    return case(gain - case(0.0).verdicts()[0].gain).verdicts()[0].reason


def test_a_model_beyond_the_limit_may_still_shrink_and_change() -> None:
    total = Summary(np.tile([0.0, 8.0], (4, 1)), np.zeros(4))
    put = (Summary(np.array([[0.0, 16.0]]), np.array([90.0])), Summary(np.array([[0.0, 8.0]]), np.array([50.0])))
    model = Model(Stated(), DirichletProcess(max_components=2))
    verdicts = Case(model, total, (Listed(((0, 1), (2,)), put),)).verdicts()
    assert [verdict.reason for verdict in verdicts] == [Reason.ACCEPTED] * 2


def test_the_evidence_of_a_state_is_found_once() -> None:
    class Counted(DirichletProcess):
        calls = 0

        def log_evidence(self, counts):
            Counted.calls += 1
            return super().log_evidence(counts)

    case = stated([1.0] * 30, [(k % 4,) for k in range(30)])
    accepted = sum(
        verdict.reason is Reason.ACCEPTED
        for verdict in judge_moves(Model(Stated(), Counted()), case.total, case.proposals, case.measured)
    )
    assert accepted == 4
    assert Counted.calls <= 2 + 30 + 2 * accepted  # the lap's, every proposal, and again those that are accepted


@pytest.mark.parametrize("gain", [np.nan, -np.inf, -1.0, -1e-300, 0.0])
@pytest.mark.parametrize("threshold", [0.0, np.inf, np.nan])
def test_what_does_not_rise_has_no_gain(gain, threshold) -> None:
    assert reason_for(gain, threshold) is Reason.NO_GAIN


@pytest.mark.parametrize(("gain", "threshold"), [(1.0, 1.0), (1e-12, 1e-11), (1.0, np.inf), (1.0, np.nan)])
def test_what_rises_by_no_more_than_its_threshold_is_refused(gain, threshold) -> None:
    assert reason_for(gain, threshold) is Reason.ROUNDING
    assert reason_for(gain, 0.999 * gain) is Reason.ACCEPTED


@pytest.mark.parametrize("threshold", [1e-9, 2.0])
def test_whether_what_rounding_leaves_is_a_gain_or_a_loss_decides_nothing(threshold) -> None:
    for gain in (0.5 * threshold, 0.0, -0.5 * threshold):
        assert reason_for(gain, threshold) is Reason.ROUNDING
    assert reason_for(-threshold, threshold) is Reason.NO_GAIN


@given(gains=st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=6))
def test_of_proposals_alike_but_for_rounding_the_first_is_accepted(gains) -> None:
    """As where two moves come to the same change by sums in another order."""
    noise = np.random.default_rng(0).uniform(-1e-12, 1e-12, len(gains))
    twins = np.concatenate([gains, np.array(gains) * (1 + noise)])
    needs = tuple(frozenset({i % len(gains)}) for i in range(len(twins)))
    apart = ((0.0,) * len(twins),) * len(twins)
    standing = Coupled(tuple(twins.tolist()), apart, (0.0,) * len(twins), needs, limit=99)
    borders = np.abs(np.abs(np.frexp(gains)[0] * 2.0**20 % 1) - 0.5) < 1e-5
    assume(not borders.any())
    assert set(accepted(judge(standing, twins, exact=True))) == set(range(len(gains)))


def replaced(before: Sequence[float], after: Sequence[float], gain: float) -> MoveVerdict:
    """The verdict on components of some counts in place of the first ones, where entropy makes up the gain."""
    total = Summary(np.stack([np.zeros(len(before) + 1), [*before, 9.0]], axis=1), np.zeros(len(before) + 1))
    put = Summary(np.stack([np.zeros(len(after)), after], axis=1), np.zeros(len(after)))
    taken = tuple(range(len(before)))
    (bare,) = Case(Model(Stated(), DirichletProcess()), total, (Listed((taken,), (put,)),)).verdicts()
    put = replace(put, entropy=np.full(len(after), (gain - bare.gain) / len(after)))
    (verdict,) = Case(Model(Stated(), DirichletProcess()), total, (Listed((taken,), (put,)),)).verdicts()
    assert verdict.gain == pytest.approx(gain, abs=1e-12)
    return verdict


@pytest.mark.parametrize(("count", "reason"), [(1e-6, Reason.ROUNDING), (0.5, Reason.ACCEPTED)])
def test_a_component_without_rows_does_not_come_for_what_its_presence_gains(count, reason) -> None:
    assert replaced([5.0], [5.0 - count, count], gain=2e-6).reason is reason
    assert replaced([5.0], [5.0 - count, count], gain=0.25).reason is Reason.ACCEPTED


@pytest.mark.parametrize(("count", "reason"), [(1e-6, Reason.ACCEPTED), (0.5, Reason.NO_GAIN)])
def test_a_component_without_rows_goes_at_the_loss_of_what_its_presence_gains(count, reason) -> None:
    assert replaced([5.0 - count, count], [5.0], gain=-2e-6).reason is reason
    assert replaced([5.0 - count, count], [5.0], gain=-0.25).reason is Reason.NO_GAIN
    assert replaced([5.0 - count, count], [5.0 - count, count], gain=-2e-6).reason is Reason.NO_GAIN


@given(scale=st.floats(1.0, 1e12), elbo=st.floats(-1e12, 1e12), dtype=st.sampled_from([np.float32, np.float64]))
def test_rounding_grows_with_the_numbers_and_with_their_coarseness(scale, elbo, dtype) -> None:
    least = 4 * float(np.finfo(dtype).eps) * scale + 64 * np.finfo(float).eps * abs(elbo)
    assert rounding(dtype, scale, elbo) == pytest.approx(least, rel=1e-12)


@settings(max_examples=30)
@given(case=cases(), numbers=st.integers(1, 12))
def test_how_many_replacements_are_weighed_together_decides_nothing(case, numbers) -> None:
    together = case.verdicts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change_module, "_CHUNK", numbers)
        assert case.verdicts() == together
