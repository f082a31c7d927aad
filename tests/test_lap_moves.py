"""Laws of a lap's end: who rests, who is sampled, which splits go on, who is tried next."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dpdist
from dpdist.execution import SerialBackend
from dpdist.inference.mixture import engine
from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.mixture.engine import laps
from dpdist.inference.mixture.lap_moves import LapMoves, take_lap_moves
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves import turns as turns_module
from dpdist.inference.moves.accept import Reason
from dpdist.inference.moves.children import seed_children
from dpdist.inference.moves.cooldown import Cooldown, Cooldowns
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.merge import Merge, propose_merges
from dpdist.inference.moves.pairs import pair_gains
from dpdist.inference.moves.sampling import MOST_TURNS, TOGETHER, Sampling
from dpdist.inference.moves.split import Split
from dpdist.inference.moves.turns import parts_of
from dpdist.inference.schedules import Memoized
from dpdist.inference.state import Info, State
from dpdist.models.allocations import FiniteDirichlet
from tests.runs import begun, clusters, mixture, source_of
from tests.test_regroup import end_of

REFUSED = (Reason.NO_GAIN, Reason.ROUNDING, Reason.LIMIT)


# --- who may be split --------------------------------------------------------------------------------------------

SPLIT = Split(tries=4, cooldown=3)
SAMPLING = Sampling(100, 2**20)


def resting(cooldowns: dict[int, Cooldown]) -> Divisions:
    """No splits, after some were refused."""
    return replace(SPLIT.none(), cooldowns=Cooldowns.of(cooldowns))


def moves(**parameters) -> list:
    """The usual moves, with splits as told."""
    return [Split(**parameters), Merge(), Delete()]


@pytest.mark.parametrize(
    ("rest", "lap", "allowed"),
    [
        (None, 1, True),
        (Cooldown(1, 7, 50.0), 6, False),
        (Cooldown(1, 7, 50.0), 7, True),
        (Cooldown(1, 7, 50.0), 8, True),
        (Cooldown(3, 7, 50.0), 7, True),
        (Cooldown(4, 7, 50.0), 9, False),
        (Cooldown(5, 7, 50.0), 9, False),
    ],
)
def test_a_component_rests_until_its_lap_and_is_left_alone_after_so_many_tries(rest, lap, allowed) -> None:
    cooldowns = {} if rest is None else {3: rest}
    found = Cooldowns.of(cooldowns)
    assert found.allow(np.array([3, 4]), lap, tries=4).tolist() == [allowed, True]
    assert found.entries == cooldowns


# --- sampling ----------------------------------------------------------------------------------------------------


def probabilities(sampling: Sampling, rows, cooldowns=None, lap: int = 5, row_bytes: int = 8):
    """Sampling probabilities of components with ids 10, 11, ..."""
    rows = np.array(rows, dtype=float)
    wanted = SPLIT.wants_rows(resting(cooldowns or {}), 10 + np.arange(len(rows)), lap)
    return sampling.probabilities(wanted, rows, row_bytes)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1000.0, 240.0], [0.12, 0.5]),
        ([120.0, 119.0], [1.0, 1.0]),
        ([1.2e7], [1e-5]),
        ([0.3, 0.0], [1.0, 1.0]),
    ],
)
def test_a_fifth_more_rows_than_wanted_are_drawn_of_each_component(rows, expected) -> None:
    np.testing.assert_allclose(probabilities(SAMPLING, rows), expected)


def test_who_may_be_split_when_the_lap_ends_is_sampled_during_it() -> None:
    cooldowns = {10: Cooldown(1, 6, 1.0), 11: Cooldown(1, 7, 1.0), 12: Cooldown(4, 1, 1.0), 14: Cooldown(3, 1, 1.0)}
    drawn = probabilities(SAMPLING, [1000.0] * 5, cooldowns, lap=5) > 0
    assert drawn.tolist() == [True, False, False, True, True]
    _, state = begun(mixture(moves=[Merge(), Delete()]), source_of(clusters(0)))
    assert not state.sampling_probabilities.any()


def test_components_that_rest_leave_their_part_of_the_sample_to_others() -> None:
    sampling = Sampling(100, 8 * 120)
    np.testing.assert_allclose(probabilities(sampling, [1000.0] * 3), 1.2 * 40 / 1000)
    rested = probabilities(sampling, [1000.0] * 3, {11: Cooldown(1, 9, 1.0)})
    np.testing.assert_allclose(rested, [1.2 * 60 / 1000, 0, 1.2 * 60 / 1000])


@given(
    components=st.integers(1, 60),
    row_bytes=st.integers(1, 4000),
    room=st.integers(2, 5000),
    sample=st.integers(2, 300),
    children=st.integers(2, 4),
)
def test_a_sample_never_outgrows_its_bytes(components, row_bytes, room, sample, children) -> None:
    sampling = Sampling(sample, max(room, children) * row_bytes)
    together = -(-components // sampling.turns(np.full(components, 1e6), row_bytes, 3, children))
    each = sampling.each(together, row_bytes)
    assert together * each * row_bytes <= sampling.total_bytes
    assert min(children, sample) <= each <= sample  # so that no component of a turn is left out
    assert each == sample or together * (each + 1) * row_bytes > sampling.total_bytes


@given(components=st.integers(1, 70), parts=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_every_component_has_its_turn_and_turns_are_alike(components, parts, seed) -> None:
    rng = np.random.default_rng(seed)
    stats = rng.normal(size=(components, 4)) * rng.choice([0.0, 1.0, 1e6], size=4)
    stats[:, -1] = rng.choice([0.0, 0.5, 300.0], size=components)
    found = parts_of(stats, parts, rng)
    sizes = np.bincount(found, minlength=parts)
    assert found.shape == (components,) and len(sizes) == parts
    assert sizes.max() - sizes.min() <= 1


def test_a_laps_end_tells_of_which_components_rows_were_asked(monkeypatch) -> None:
    """Few fit: who was not asked for rows has none, and whom a move made is not waited for."""
    told = []

    def watched(self, end, before, verdicts, others):
        told.append(end)
        return propose(self, end, before, verdicts, others)

    propose = Split.propose
    monkeypatch.setattr(Split, "propose", watched)
    sampling = Sampling(rows=100, total_bytes=24 * 320, fewest=20)
    list(mixture(sampling=sampling, initial=np.arange(900) % 48, moves=[Split()], max_laps=5).iter_fit(clusters(0)))
    for end in told:
        assert set(end.samples) <= set(np.flatnonzero(end.asked).tolist()) and end.asked[end.origins < 0].all()
    assert any(not end.asked.all() for end in told) and any(end.asked.any() for end in told)


@pytest.mark.parametrize("seed", range(3))
def test_components_that_lie_near_each_other_have_their_turn_together(seed, monkeypatch) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(8), 5))
    means = 100.0 * np.repeat(np.eye(8), 3, axis=1)[groups] + rng.normal(size=(40, 24))
    counts = rng.uniform(1, 1e5, size=(40, 1))
    stats = np.concatenate([counts * means, counts], axis=1)
    found = parts_of(stats, 8, np.random.default_rng(seed))
    assert all(len(set(found[groups == group].tolist())) == 1 for group in range(8))
    monkeypatch.setattr(turns_module, "_CHUNK", 60)
    assert np.array_equal(parts_of(stats, 8, np.random.default_rng(seed)), found)


def test_where_few_rows_fit_each_lap_draws_enough_of_some_components_and_all_have_a_turn() -> None:
    sampling = Sampling(rows=100, total_bytes=24 * 320, fewest=20)  # 320 rows of three columns: 16 components a lap
    model = mixture(sampling=sampling, initial=np.arange(900) % 48, moves=[Split(tries=9)], tolerance=0.0)
    problem, state = begun(model, source_of(clusters(0)))
    rows, stats = np.full(48, 19.0), state.start.summary.stats
    for first in (3, 6):  # where nothing changes all have their turn in three laps, none twice
        states = [replace(state, lap=lap) for lap in range(first, first + 3)]
        settled = [engine._with_sampling_probabilities(problem, each, rows, stats) for each in states]
        drawn = [each.sampling_probabilities > 0 for each in settled]
        assert (np.sum(drawn, axis=0) == 1).all() and (np.sum(drawn, axis=1) == 16).all()
    seen = set(np.flatnonzero(state.sampling_probabilities).tolist())
    for _, (following, _) in zip(range(6), laps(problem, source_of(clusters(0)), state, SerialBackend()), strict=False):
        drawn = np.flatnonzero(following.sampling_probabilities)
        wanted = problem.moves[0].wants_rows(following.proposals[0], following.ids, following.lap)
        assert len(drawn) <= 16 and wanted[drawn].all() and sampling.each(max(1, len(drawn)), 24) >= 20
        seen |= set(following.ids[drawn].tolist())
    assert len(seen) > 32


@given(components=st.integers(1, 200), row_bytes=st.integers(1, 10**9), fewest=st.integers(1, 500))
def test_neighbours_have_their_turn_together_however_wide_rows_are(components, row_bytes, fewest) -> None:
    sampling = Sampling(fewest=fewest)
    turns = sampling.turns(np.full(components, 1e6), row_bytes, 3)
    together = min(TOGETHER, max(1, sampling.total_bytes // row_bytes))  # a row of each fits
    assert turns == 1 if components <= together else components / turns > together / 2


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=300), st.integers(1, 10**4), st.integers(2, 3000))
@example([1e4] * 190, 512, 2081)
@example([1e4] * 2000, 1024, 8385)
def test_components_take_turns_so_that_each_has_rows_enough_for_its_statistics(rows, row_bytes, columns) -> None:
    sampling, held = Sampling(), np.array(rows)
    turns, wanted = sampling.turns(held, row_bytes, columns), min(sampling.rows, max(sampling.fewest, 2 * columns))
    if row_bytes * held.sum() <= sampling.total_bytes:
        assert turns == 1
    elif len(rows) > TOGETHER * turns:
        least = min(wanted, int(held.max())) if turns < MOST_TURNS else sampling.fewest
        assert sampling.each(-(-len(rows) // turns), row_bytes) >= least


@pytest.mark.parametrize("least", [2, 5])
def test_of_components_whose_least_rows_do_not_fit_each_has_its_turn(least) -> None:
    problem, state = begun(
        mixture(
            moves=[dpdist.Split(children=least)],
            initial=np.arange(900) % 8,
            sampling=Sampling(total_bytes=3 * 24 * least, fewest=1),
            max_laps=12,
        ),
        source_of(clusters(0)),
    )
    seen = set(np.flatnonzero(state.sampling_probabilities).tolist())
    for _, (following, _) in zip(range(9), laps(problem, source_of(clusters(0)), state, SerialBackend()), strict=False):
        drawn = np.flatnonzero(following.sampling_probabilities)
        assert len(drawn) <= 3 and problem.sampling.each(max(1, len(drawn)), 24) >= least
        seen |= set(following.ids[drawn].tolist())
    assert seen >= set(range(8))


def test_a_component_that_owns_no_row_does_not_keep_a_run_from_its_end() -> None:
    """It shares its rows with larger ones, so that no sample has any of them, and no split of it can be tried."""
    rows, labels = clusters(0, 90), np.arange(90) % 3
    end, refused = (
        end_of(rows, labels),
        resting({10: Cooldown(SPLIT.tries, 0, 30.0), 12: Cooldown(SPLIT.tries, 0, 30.0)}),
    )
    assert SPLIT.unfinished(end, refused)
    alone = replace(end, samples={k: end.samples[k] for k in (0, 2)})
    assert not SPLIT.unfinished(alone, refused)
    assert SPLIT.unfinished(replace(alone, asked=np.array([True, False, True])), refused)  # its turn is in another lap
    assert SPLIT.unfinished(alone, resting({10: Cooldown(SPLIT.tries, 0, 30.0)}))


def test_a_sample_too_small_for_any_split_is_refused() -> None:
    with pytest.raises(
        dpdist.InputError, match=r"total_bytes of Sampling should hold at least 2 rows of 24 bytes each"
    ):
        begun(mixture(sampling=Sampling(total_bytes=47)), source_of(clusters(0)))
    _, state = begun(mixture(sampling=Sampling(total_bytes=48)), source_of(clusters(0)))
    np.testing.assert_allclose(state.sampling_probabilities, 1.2 * 2 / 900)


# --- children that do not pay yet --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "before", "gain", "goes_on"),
    [
        (0, -np.inf, -1e9, True),  # nothing to compare with yet
        (1, -90.0, -61.0, True),  # 4 laps left, 29 better each: reaches 55
        (1, -90.0, -72.0, False),  # reaches exactly 0
        (1, -90.0, -73.0, False),
        (1, -90.0, -100.0, False),  # grows worse
        (3, -90.0, -61.0, False),  # 2 laps left
        (3, -90.0, -59.0, True),
        (4, -90.0, -0.1, True),  # the last lap
        (5, -90.0, -0.1, False),  # none left
    ],
)
def test_children_go_on_while_their_improvement_may_reach_a_gain(age, before, gain, goes_on) -> None:
    splits = replace(Divisions.begun([(9,), (2,)], [2, 2]), ages=np.array([5, age]), gains=np.array([0.0, before]))
    assert Split(refine=6).postpones(splits, 1, gain) == goes_on


# --- whole ends of laps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """What one lap's end was given and what it made of it."""

    problem: Problem
    state: State
    total: BatchSummary
    settled: bool
    turn: LapMoves
    following: State
    info: Info

    @property
    def moved(self) -> set[int]:
        """Ids of the components that an accepted move took."""
        return {i for r in self.info.records if r.reason is Reason.ACCEPTED for i in r.components}

    @property
    def refused(self) -> list[int]:
        """Ids of the components whose split was refused."""
        return [r.components[0] for r in self.info.records if r.kind == "split" and r.reason in REFUSED]

    def resting(self, following: bool) -> dict[int, Cooldown]:
        """Id -> cooldown, before or after."""
        state = self.following if following else self.state
        return dict(state.proposals[0].cooldowns.entries)

    def splits(self, following: bool) -> dict[int, tuple[int, float]]:
        """Id -> (age, gain) of the splits under way, before or after."""
        state = self.following if following else self.state
        tried = state.proposals[0]
        columns = (state.ids[tried.groups[:, 0]].tolist(), tried.ages.tolist(), tried.gains.tolist())
        return {identity: (age, gain) for identity, age, gain in zip(*columns, strict=True)}

    def children(self, following: bool, identity: int, batch_summary: BatchSummary) -> np.ndarray:
        """Statistics of a split's children in a leaf from before or after."""
        state = self.following if following else self.state
        place = state.ids[state.proposals[0].groups[:, 0]].tolist().index(identity)
        return batch_summary.measured[0].stats[state.proposals[0].rows_of(place)]


def ends_of(monkeypatch, model, source, count: int) -> list[End]:
    """The ends of a run's first laps."""
    seen = []

    def spy(problem, backend, state, total, settled, change):
        turn = take_lap_moves(problem, backend, state, total, settled, change)
        seen.append((problem, state, total, settled, turn))
        return turn

    monkeypatch.setattr(engine, "take_lap_moves", spy)
    problem, state = begun(model, source)
    found = []
    for _, (following, info) in zip(range(count), laps(problem, source, state, SerialBackend()), strict=False):
        found.append(End(*seen[-1], following, info))
    return found


def crowded(seed: int = 3, spread: float = 4.0, weights=None, **parameters):
    """A run with refusals, gains and components that come and go."""
    usual = {
        "moves": moves(cooldown=2, tries=3, refine=4),
        "initial": "k-means++",
        "initial_components": 9,
        "schedule": Memoized(3),
        "random_state": seed,
    }
    return mixture(**{**usual, **parameters}), source_of(clusters(seed, 600, 2, 5, spread), weights=weights)


@pytest.fixture(scope="module")
def ends() -> list[End]:
    """Laps of a few runs: plain, bounded in its components, weighted, crowded at the start."""
    weights = np.random.default_rng(0).uniform(0.2, 3, 600)
    four = source_of(clusters(9, 400, 2, 4, 40.0))
    halves = (mixture(initial="k-means++", initial_components=2, max_components=3, schedule=Memoized(2)), four, 8)
    impatient = moves(cooldown=2, tries=3, refine=2)
    runs = [
        halves,
        (*crowded(4, 2.0, moves=[Split(cooldown=2, tries=3, refine=1), Merge(1), Delete()], initial_components=15), 3),
        (*crowded(), 26),
        (*crowded(4, concentration=FiniteDirichlet(3, 1.0), initial_components=3), 12),
        (*crowded(5, weights=weights), 20),
        (*crowded(4, 2.0, moves=moves(cooldown=2, tries=3, refine=1), initial_components=15), 12),
        (*crowded(3, 1.0, moves=impatient, initial_components=25), 12),
        (*crowded(4, 1.0, moves=impatient, initial_components=25), 12),
    ]
    with pytest.MonkeyPatch.context() as patch:
        return [end for run in runs for end in ends_of(patch, *run)]


def test_rests_follow_from_refusals_moves_and_sizes(ends) -> None:
    kinds = set()
    for end in ends:
        split, lap = end.problem.moves[0], end.state.lap
        sizes = dict(zip(end.info.ids.tolist(), end.info.counts.tolist(), strict=True))
        expected = {i: rest for i, rest in end.resting(False).items() if i not in end.moved}
        for identity in end.refused:
            if identity not in end.moved:
                kinds |= {r.reason for r in end.info.records if r.components == (identity,)}
                before = expected[identity].refusals if identity in expected else 0
                expected[identity] = Cooldown(before + 1, lap + 1 + split.cooldown, sizes[identity])
                kinds.add("again" if before else "refused")
        kept = {i: rest for i, rest in expected.items() if abs(sizes[i] / rest.size - 1) <= 0.1}
        if end.settled:
            kinds |= {"called up" for rest in kept.values() if rest.until > lap + 1}
            kept = {i: rest._replace(until=min(rest.until, lap + 1)) for i, rest in kept.items()}
        hopeless = too_few(end, kept)
        for i in hopeless:
            refusals = kept[i].refusals if i in kept else 0
            until = lap + 1 if end.settled else lap + 1 + split.cooldown
            kept[i] = Cooldown(refusals + 1, until, sizes[i])
        kinds |= {"hopeless"} if hopeless else set()
        kinds |= {"moved"} if set(end.resting(False)) & end.moved else set()
        kinds |= {"changed"} if len(kept) < len(expected) else set()
        assert end.resting(True) == kept
    assert kinds >= {"refused", "again", "called up", "moved", "changed", "hopeless", Reason.NO_GAIN, Reason.LIMIT}


def may_split(end: End, cooldowns: dict[int, Cooldown], identity: int) -> bool:
    """Whether a component may be given children at the end of a lap."""
    allowed = Cooldowns.of(cooldowns).allow(np.array([identity]), end.state.lap + 1, end.problem.moves[0].tries)
    return bool(allowed[0])


def too_few(end: End, cooldowns: dict[int, Cooldown]) -> set[int]:
    """Ids of the components that would be tried but had a single row drawn."""
    most = end.problem.model.allocation.max_components
    if most is not None and len(end.info.ids) >= most:
        return set()
    owners, rows = np.unique(end.state.sample.owners, return_counts=True)
    lone = {int(end.state.ids[k]) for k in owners[rows == 1]} - end.moved
    busy = {i for i, (age, _) in end.splits(True).items() if age > 0}
    return {i for i in lone - busy if may_split(end, cooldowns, i)}


def test_splits_go_on_with_age_gain_and_children_or_end(ends) -> None:
    going_on = 0
    for end in ends:
        before, after = end.splits(False), end.splits(True)
        postponed_ids = {
            r.components[0]: r.gain for r in end.info.records if r.reason is Reason.REFINING and r.kind == "split"
        }
        continued = {i: after[i] for i in after if i in postponed_ids and i not in end.moved}
        assert continued == {i: (before[i][0] + 1, gain) for i, gain in postponed_ids.items() if i not in end.moved}
        fresh = [i for i in after if i not in continued]
        assert all(after[i] == (0, -np.inf) for i in fresh)
        going_on += len(continued)
        for old, new in zip(end.state.batch_summaries, end.following.batch_summaries, strict=True):
            for i in continued:
                np.testing.assert_array_equal(end.children(True, i, new), end.children(False, i, old))
            for i in fresh:
                assert not end.children(True, i, new).any()
        for i in fresh:  # what the sample gave stands in for rows that children have not met
            assert end.following.start is not None
            seeds = end.children(True, i, end.following.start)
            size = end.info.counts[end.info.ids.tolist().index(i)]
            assert seeds[:, -1].sum() == pytest.approx(size, rel=1e-9) and (seeds[:, -1] >= 0).all()
        for i in continued:
            assert end.following.start is None or not end.children(True, i, end.following.start).any()
    assert going_on > 3


def test_whoever_may_be_split_and_has_a_sample_is_tried(ends) -> None:
    tried_at_all, limited, at_once = 0, 0, 0
    for end in ends:
        most = end.problem.model.allocation.max_components
        sample, ids = end.state.sample, end.state.ids
        drawn = {int(ids[k]) for k in np.unique(sample.owners)}
        free = {i for i in end.info.ids.tolist() if may_split(end, end.resting(True), i)}
        continued = {i for i, (age, _) in end.splits(True).items() if age > 0}
        expected = set() if most is not None and len(end.info.ids) >= most else (free & drawn) - end.moved - continued
        limited += most is not None and len(end.info.ids) >= most
        tried = set(end.splits(True)) - continued
        assert tried - end.moved == expected and tried & end.moved <= free
        tried_at_all, at_once = tried_at_all + len(expected), at_once + len(tried & end.moved)
    assert tried_at_all > 10 and limited > 0 and at_once > 10


def test_every_component_and_lap_has_seedings_of_its_own(monkeypatch) -> None:
    first = []

    def spy(sample, children, seedings, rng):
        first.append(rng.random())
        return seed_children(sample, children, seedings, rng)

    monkeypatch.setattr("dpdist.inference.moves.split.seed_children", spy)
    for seed in (3, 4):
        list(crowded(seed, max_laps=9)[0].iter_fit(crowded()[1]))
    assert len(set(first)) == len(first) > 12


def test_what_a_lap_end_makes_of_every_batch_adds_up_to_what_it_makes_of_the_total(ends) -> None:
    for end in ends:
        batch_summaries = end.following.batch_summaries
        total = batch_summaries[0]
        for batch_summary in batch_summaries[1:]:
            total = total + batch_summary
        size = np.abs(end.info.total.stats).max()
        np.testing.assert_allclose(total.summary.stats, end.info.total.stats, atol=1e-9 * size)
        np.testing.assert_allclose(total.summary.entropy, end.info.total.entropy, atol=1e-9 * size)
        assert total.summary.base == pytest.approx(end.info.total.base)
        assert len(end.following.proposals) == len(total.measured) == len(end.problem.moves)
        for tried, measured in zip(end.following.proposals, total.measured, strict=True):
            blank = tried.blank(total.summary.stats.shape[1])
            assert (blank.stats.shape, blank.entropy.shape) == (measured.stats.shape, measured.entropy.shape)
            assert isinstance(tried, Divisions) or not measured.entropy.any()


def test_a_lap_with_moves_or_proposals_to_come_is_not_quiet(ends) -> None:
    for end in ends:
        tolerance = end.problem.tolerance * end.info.counts.sum()
        near = end.state.elbo is not None and abs(end.info.elbo_before_moves - end.state.elbo) < tolerance
        assert end.settled == near
        cooldowns, tries = end.resting(True), end.problem.moves[0].tries
        most, ids = end.problem.model.allocation.max_components, end.info.ids.tolist()
        waiting = (most is None or len(ids) < most) and any(
            i not in cooldowns or cooldowns[i].refusals < tries for i in ids
        )
        under_way = bool(end.splits(True))
        assert end.turn.accepted == sum(r.reason is Reason.ACCEPTED for r in end.info.records)
        assert end.following.quiet == (near and not end.moved and not waiting and not under_way)
        assert end.info.rows == pytest.approx(end.info.counts.sum(), rel=1e-9)


def test_components_busy_splitting_are_no_targets_of_deletes(ends) -> None:
    deletes = 0
    for end in ends:
        *_, tried = end.following.proposals
        deletes += len(tried)
        reserved = [each.reserved().tolist() for each in end.following.proposals[:-1]]
        assert not set().union(*reserved) & (set(tried.targets.tolist()) | set(tried.absorbers.ravel().tolist()))
    assert deletes > 0


def test_as_many_merges_and_deletes_are_tried_as_planned_the_best_and_the_smallest(ends) -> None:
    bounded = 0
    for end in ends:
        count, total = end.info.n_components, end.info.total
        (*_, merge, delete), (*others, merges, deletes) = end.problem.moves, end.following.proposals
        if count < 2:
            assert not len(merges) and not len(deletes)
            continue
        gains = pair_gains(end.problem.model, total)
        np.testing.assert_array_equal(merges.pairs, propose_merges(gains, merge.pairs * count).pairs)
        assert len(merges) <= merge.pairs * count
        bounded += len(merges) == merge.pairs * count
        assert len(deletes) <= max(1, count // 10)
        free = np.setdiff1d(np.arange(count), np.concatenate([each.reserved() for each in others]))
        if len(free) > delete.absorbers and count > delete.absorbers:
            assert len(deletes) and total.counts[deletes.targets[0]] == total.counts[free].min()
    assert bounded > 0


def test_components_without_distinct_rows_are_left_alone() -> None:
    points = np.repeat(np.random.default_rng(0).normal(size=(3, 2)), 30, axis=0)
    model = mixture(initial=np.repeat(np.arange(3), 30), max_laps=60, moves=[Split()])
    *_, (state, info) = model.iter_fit(source_of(points))
    assert info.n_components == 3 and not info.records and info.lap <= 4
    assert {rest.refusals for rest in state.proposals[0].cooldowns.entries.values()} == {Split().tries}
    assert model.converged_


@pytest.mark.parametrize(
    ("off", "kinds"), [("split", {"merge", "delete"}), ("merge", {"split", "delete"}), ("delete", {"split", "merge"})]
)
def test_moves_that_are_not_listed_are_not_tried(off, kinds) -> None:
    model, source = crowded(moves=[move for move in moves() if move.kind != off])
    tried = {record.kind for _, info in model.iter_fit(source) for record in info.records}
    assert tried == kinds
