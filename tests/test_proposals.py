"""Which moves are tried: gains of pairs, merges and deletes, children found in a sample, by their meaning."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpdist import DPMixture
from dpdist.core.errors import PrecisionError
from dpdist.core.randomness import generator
from dpdist.inference.moves import pairs as pair_module
from dpdist.inference.moves.base import Proposals
from dpdist.inference.moves.children import paying, seed_children
from dpdist.inference.moves.contest import contest
from dpdist.inference.moves.delete import Deletes, propose_deletes
from dpdist.inference.moves.division import Divisions
from dpdist.inference.moves.merge import Merges, propose_merges
from dpdist.inference.moves.pairs import pair_gains
from dpdist.inference.moves.sampled_rows import SampledRows
from dpdist.inference.moves.seeding import (
    alike_in_a_column,
    distances_from_drawn,
    many_nearest_seeds,
    nearest_seeds,
    standardized,
)
from dpdist.inference.moves.shells import column_depths, even_shares, shells, small_shares
from dpdist.inference.moves.split import Split, _seed_task
from dpdist.models.families import IsotropicGaussian
from dpdist.models.mixture import Block, Model, Posterior, Precision, local_step
from dpdist.models.sufficient_statistics import Summary
from tests.cases import ALLOCATIONS, FAMILIES, filled

KINDS = [(case, thin) for case in FAMILIES for thin in (False, True) if case.sparse or not thin]
every_family = pytest.mark.parametrize("case", FAMILIES, ids=lambda c: c.name)
sparse_families = pytest.mark.parametrize("case", [c for c in FAMILIES if c.sparse], ids=lambda c: c.name)
every_prior = pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)


def drawn(case, seed: int, n: int = 60, d: int = 3):
    """Rows of two kinds, their weights and a filled model's family."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([case.rows(rng, n // 2, d), case.rows(rng, n - n // 2, d)])
    return rows, rng.uniform(0.2, 3.0, size=n), filled(case, rows), rng


def unsorted_total(case, components: int = 7) -> tuple[Model, Summary]:
    """Statistics of random responsibilities, in no order, one component without rows."""
    rows, weights, family, rng = drawn(case, 5)
    resp = rng.dirichlet(rng.gamma(0.5, size=components - 1) + 0.05, size=len(rows)) * weights[:, None]
    stats = np.concatenate([resp.T @ family.features(rows), np.zeros((1, family.features(rows[:1]).shape[1]))])
    return family, Summary(stats[rng.permutation(components)], rng.normal(size=components))


def gain_of_pair(model: Model, total: Summary, a: int, b: int) -> float:
    """A + A_alloc with two components made one, less before, each in the order of the allocation."""
    others = np.delete(np.arange(len(total.entropy)), [a, b])
    after = np.concatenate([total.stats[others], total.stats[[a, b]].sum(axis=0, keepdims=True)])

    def evidence(stats: np.ndarray) -> float:
        counts = np.array(sorted(stats[:, -1], reverse=True))
        return float(model.family.log_evidence(stats).sum() + model.allocation.log_evidence(counts))

    return evidence(after) - evidence(total.stats)


@every_family
@every_prior
@pytest.mark.parametrize("pairs", [1, 4, 10**6], ids=["a pair at a time", "some pairs", "all pairs"])
def test_the_gain_of_every_pair_is_the_change_of_evidence(case, allocation, pairs, monkeypatch) -> None:
    family, total = unsorted_total(case)
    model, size = Model(family, allocation), len(total.entropy)
    monkeypatch.setattr(pair_module, "_CHUNK", pairs * total.stats.shape[1])
    found = pair_gains(model, total)
    for a in range(size):
        assert (found[a, : a + 1] == -np.inf).all(), "a pair is told once"
        for b in range(a + 1, size):
            assert found[a, b] == pytest.approx(gain_of_pair(model, total, a, b), rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("allocation", ALLOCATIONS[:2], ids=lambda a: a.name)
def test_memory_of_the_gains_of_pairs_grows_with_the_square_of_the_components(allocation) -> None:
    case = next(c for c in FAMILIES if c.name == "isotropic_gaussian")
    rows, _, family, rng = drawn(case, 0)
    counts, peaks = rng.uniform(10, 30, size=400), []
    for size in (100, 400):
        stats = counts[:size, None] * family.features(rows).mean(axis=0)
        tracemalloc.start()
        pair_gains(Model(family, allocation), Summary(stats, np.zeros(size)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 40 * 8 * 400**2, "some forty numbers a pair"
    assert peaks[1] < 20 * peaks[0]


SQUARES = st.integers(1, 6).flatmap(
    lambda k: st.lists(st.sampled_from([-np.inf, -2.0, 0.0, 1e-9, 1.0, 1.0, 3.0, 8.0]), min_size=k * k, max_size=k * k)
)


@given(gains=SQUARES, limit=st.integers(0, 40))
def test_the_best_pairs_above_zero_are_proposed_best_first(gains, limit) -> None:
    size = int(np.sqrt(len(gains)))
    table = np.triu(np.array(gains).reshape(size, size), 1)
    table[np.tril_indices(size)] = -np.inf
    proposed = [tuple(pair) for pair in propose_merges(table, limit).pairs.tolist()]
    every = [(a, b) for a in range(size) for b in range(a + 1, size) if table[a, b] > 0]
    assert proposed == sorted(every, key=lambda pair: -table[pair])[:limit]


@given(
    counts=st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0, 9.0]) | st.floats(0, 10), min_size=1, max_size=9),
    absorbers=st.integers(1, 3),
    limit=st.integers(1, 4),
    data=st.data(),
)
def test_deletes_share_the_smallest_free_component_among_its_best_free_partners(counts, absorbers, limit, data) -> None:
    size = len(counts)
    busy = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    values = data.draw(st.permutations(range(size * size)))
    gains = np.array(values, dtype=float).reshape(size, size) - size
    gains[np.tril_indices(size)] = -np.inf
    total = Summary(np.array(counts)[:, None], np.zeros(size))
    deletes, free = propose_deletes(total, gains, busy, absorbers, limit), set(np.flatnonzero(~busy).tolist())
    for target, found in zip(deletes.targets.tolist(), deletes.absorbers.tolist(), strict=True):
        assert target in free
        assert counts[target] == min(counts[k] for k in free)
        partners = sorted(free - {target}, key=lambda k: -gains[min(k, target), max(k, target)])
        assert found == partners[:absorbers]
        free -= {target, *found}
    assert len(deletes) <= limit
    assert len(deletes) == limit or len(free) <= absorbers, "as many as there can be"
    assert deletes.absorbers.shape == (len(deletes), absorbers)


def test_proposing_leaves_what_it_was_given_alone() -> None:
    gains, busy = np.triu(np.ones((6, 6)), 1), np.zeros(6, bool)
    propose_deletes(Summary(np.arange(6.0)[:, None], np.zeros(6)), gains, busy, 2, 2)
    assert not busy.any()
    assert gains.sum() == 15


@every_family
@every_prior
def test_children_share_rows_as_a_model_of_nothing_else_would(case, allocation) -> None:
    rows, _, family, rng = drawn(case, 1)
    model, precision = Model(family, allocation), Precision(np.float32)
    stats = rng.dirichlet(np.ones(6), size=len(rows)).T @ family.features(rows)
    stats[:3] *= 5
    posterior = model.posterior(Summary(stats, np.zeros(6)), precision)
    splits = Divisions.begun([(4,), (1,)], [3, 3])
    armed = splits.armed(model, posterior, Summary(stats, np.zeros(6)))
    for j, own in enumerate((stats[:3], stats[3:])):
        alone = model.posterior(Summary(own, np.zeros(3)), precision)
        np.testing.assert_array_equal(armed.coefficients[armed.rows_of(j)], alone.coefficients.T)
        assert armed.coefficients.dtype == np.float32
    deletes = Deletes(np.array([0, 5]), np.array([[1, 2], [4, 3]])).armed(model, posterior, Summary(stats, np.zeros(6)))
    np.testing.assert_array_equal(deletes.coefficients, posterior.coefficients.T[[1, 2, 4, 3]])


def proposals_of(model: Model, posterior: Posterior, stats: np.ndarray) -> list[Proposals]:
    """Splits, merges and deletes of six components, ready to measure."""
    trials = [
        Divisions.begun([(5,), (0,), (2,)], [2, 2, 2]),
        Divisions.begun([(5, 1), (2, 4, 0)], [2, 4]),
        Merges(np.array([[0, 3], [2, 1], [5, 4]])),
        Deletes(np.array([1, 5]), np.array([[0, 2, 4], [3, 1, 0]])),
    ]
    children = Summary(np.roll(stats, 1, axis=0) + 0.3 * stats, np.zeros(6))
    return [trial.armed(model, posterior, children) for trial in trials]


@sparse_families
@every_prior
def test_sparse_rows_measure_what_dense_rows_do(case, allocation) -> None:
    rows, weights, family, rng = drawn(case, 2)
    model, compressed = Model(family, allocation), sparse.csr_array(rows)
    stats = np.asarray(rng.dirichlet(np.full(6, 0.2), size=len(rows)).T @ family.features(rows))
    posterior = model.posterior(Summary(stats, np.zeros(6)), Precision(floor=9e-3))
    posterior.coefficients[-1, 2] = -1e4  # a target without rows
    dense, thin = family.features(rows), family.features(compressed)
    assert sparse.issparse(thin)
    resp, _ = local_step(posterior, dense, weights)
    assert not resp[:, 2].any()
    for trial in proposals_of(model, posterior, stats):
        meant = trial.measure(Block(rows, dense, weights, resp, posterior))
        found = trial.measure(Block(compressed, thin, weights, resp, posterior))
        np.testing.assert_allclose(found.stats, meant.stats, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.entropy, meant.entropy, rtol=1e-10, atol=1e-10)
        assert found.stats.shape == trial.blank(dense.shape[1]).stats.shape
        assert found.entropy.shape == trial.blank(dense.shape[1]).entropy.shape


@every_family
def test_a_row_of_weight_three_measures_as_three_rows(case) -> None:
    rows, _, family, rng = drawn(case, 3)
    model, times = Model(family, ALLOCATIONS[0]), rng.integers(1, 4, size=len(rows))
    stats = rng.dirichlet(np.full(6, 0.3), size=len(rows)).T @ family.features(rows)
    posterior = model.posterior(Summary(stats, np.zeros(6)), Precision())
    found = []
    for part, weights in ((rows, times.astype(float)), (rows.repeat(times, axis=0), np.ones(times.sum()))):
        features = family.features(part)
        resp, _ = local_step(posterior, features, weights)
        block = Block(part, features, weights, resp, posterior)
        found.append([trial.measure(block) for trial in proposals_of(model, posterior, stats)])
    for once, often in zip(*found, strict=True):
        np.testing.assert_allclose(once.stats, often.stats, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(once.entropy, often.entropy, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("child", [0, 1])
def test_a_child_whose_logits_are_no_numbers_is_told(bad, thin, child) -> None:
    case = next(c for c in FAMILIES if c.name == "poisson")
    rows, weights, family, _ = drawn(case, 4)
    model = Model(family, ALLOCATIONS[0])
    posterior = model.posterior(Summary(np.ones((2, 4)), np.zeros(2)), Precision())
    features = family.features(sparse.csr_array(rows) if thin else rows)
    resp, _ = local_step(posterior, features, weights)
    splits = replace(Divisions.begun([(0,)], [2]), coefficients=np.zeros((2, 4)))
    splits.coefficients[child, -1] = bad
    with pytest.raises(PrecisionError, match=r"not finite.*\.$"):
        splits.measure(Block(rows, features, weights, resp, posterior))


@given(counts=st.lists(st.floats(0.0, 9.0), min_size=6, max_size=6, unique=True))
def test_the_larger_one_of_a_pair_keeps_the_identity(counts) -> None:
    total = Summary(np.array(counts)[:, None], np.zeros(6))
    merges = Merges(np.array([[0, 1], [3, 2], [5, 4]]))
    for j, pair in enumerate(merges.pairs.tolist()):
        assert merges.heirs(j, total, merges.blank(1)) == (max(pair, key=lambda k: counts[k]),)
    deletes = Deletes(np.array([2]), np.array([[5, 1]]))
    assert deletes.heirs(0, total, total) == (5, 1)


def test_replacements_that_have_most_in_common_with_a_component_keep_its_identity() -> None:
    means = np.array([[0.0], [10.0], [20.0], [30.0]])
    old = np.array([[40.0], [10.0], [10.0], [5.0]]) * np.hstack([means, np.ones((4, 1))])
    new = np.array([[1.0, 1.0], [189.0, 9.0], [270.0, 9.0], [80.0, 8.0], [6.0, 2.0]])
    total, measured = Summary(old, np.zeros(4)), Summary(new, np.zeros(5))
    groups = Divisions.begun([(0,), (2, 1, 3)], [2, 3])
    assert groups.heirs(0, total, measured) == (0, -1)
    assert groups.heirs(1, total, measured) == (3, 1, 2)


@pytest.mark.parametrize(("case", "thin"), KINDS, ids=[f"{c.name} {'sparse' if t else 'dense'}" for c, t in KINDS])
@pytest.mark.parametrize(("seed", "allocation"), list(enumerate(ALLOCATIONS)), ids=[a.name for a in ALLOCATIONS])
def test_children_are_the_best_of_several_ways_to_seed_them(case, thin, seed, allocation) -> None:
    rows, weights, family, _ = drawn(case, seed)
    model = Model(family, allocation)
    sample = SampledRows.of(model, sparse.csr_array(rows) if thin else rows, weights, 0.4)
    found = seed_children(sample, 3, 8, np.random.default_rng(seed))
    rng, points = np.random.default_rng(seed), sample.points
    scaled = standardized(points, weights)
    ways = [many_nearest_seeds(own, weights, 3, 4, rng) for own in (points, scaled)]
    every = densities_under_one(model, rows, weights)[:, None], column_depths(scaled, weights, 2, rng)
    ways += [shells(depths, weights, even_shares(2, 2, rng)) for depths in every]
    nearness = -distances_from_drawn(scaled, weights, 4, rng)
    ways.append(shells(nearness, weights, small_shares(weights, 2, 4, rng)))
    finalists: list[tuple[float, int, np.ndarray]] = []
    for way, owners in enumerate(ways):
        hard = [[sums_of(family, rows, weights * (each == c)) for c in range(3)] for each in owners.T]
        tried = [refined(model, rows, weights, np.array(stats)) for stats in hard]
        tie = 1e-7 * float(weights.sum())
        finalists += [(-float(family.log_evidence(stats).sum() // tie), way, stats) for stats in tried]
    finalists.sort(key=lambda each: each[0])
    chosen: list[tuple[float, int, np.ndarray]] = []
    for each in finalists:
        if sum(each[1] == way for _, way, _ in chosen) < 2 and (not chosen or each[0] > chosen[-1][0]):
            chosen.append(each)
    assert len(found) == len(chosen) > 1
    for stats, (_, _, expected) in zip(found, chosen, strict=True):
        both = (each[np.lexsort(each.T.round(5))] for each in (stats, expected))
        np.testing.assert_allclose(*both, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", range(1, 4))
def test_no_child_holds_less_than_nothing(seed, monkeypatch) -> None:
    """Rows in a few places, and a prior under which hardly any second cluster is expected: some children stay empty."""
    rows, held, gradient = np.random.default_rng(seed).integers(0, 4, size=(2000, 2)), [], Model.gradient

    def spied(self: Model, stats: np.ndarray) -> np.ndarray:
        held.append(stats[..., -1].min())
        return gradient(self, stats)

    monkeypatch.setattr(Model, "gradient", spied)
    model = DPMixture(IsotropicGaussian(), concentration=1e-12, moves=[Split()], max_laps=6, random_state=0)
    model.fit(rows.astype(float))
    assert min(held) >= 0.0 and min(held) < 1e-6


@every_family
@every_prior
def test_children_that_pay_are_those_that_end_above_the_one_component(case, allocation) -> None:
    rows, weights, family, rng = drawn(case, 3)
    sample = SampledRows.of(Model(family, allocation), rows, weights, 0.4)
    seeded = seed_children(sample, 2, 8, rng)
    one = sample.stepped([sums_of(family, rows, weights)[None]])[0].elbo
    expected = contest(sample, seeded, ((3, 4),), one, among_credible=False)
    found = paying(sample, seeded, ((3, 4),))
    assert [each.gain for each in found] == pytest.approx([each.outlook - one for each in expected], abs=1e-6)
    for own, each in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own.stats, each.stats)


@pytest.mark.parametrize("pays", [False, True], ids=["no children pay", "children pay"])
@pytest.mark.parametrize("count", [1234.5, None], ids=["sample", "all rows"])
def test_the_most_promising_children_are_scaled_to_what_the_component_holds(pays, count, monkeypatch) -> None:
    if not pays:
        monkeypatch.setattr("dpdist.inference.moves.split.paying", lambda *_: [])
    rng = np.random.default_rng(5)
    rows, weights = rng.normal(size=(60, 2)), rng.uniform(0.2, 3.0, 60)
    rows[:20, 0] += 8.0
    case = next(each for each in FAMILIES if each.name == "gaussian")
    model, split, held = Model(filled(case, rows), ALLOCATIONS[0]), Split(), count or float(weights.sum())
    found = _seed_task((model, split), (rows, weights), held, (1, 2, 3))
    sample = SampledRows.of(model, rows, weights, weights.sum() / held)
    seeded, stages = seed_children(sample, 2, 8, generator(1, "seed children", 2, 3)), ((5, 2), (1, 4))
    children = (
        paying(sample, seeded, stages) if pays else contest(sample, seeded, stages, -np.inf, among_credible=False)
    )
    best = children[0].stats
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(best, axis=0) * held / weights.sum(), rtol=1e-12)
    assert found[:, -1].sum() == pytest.approx(held) and found[0, -1] >= found[1, -1]


def sums_of(family, rows: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Statistics of rows, one row at a time."""
    return sum(share * family.features(rows[n : n + 1])[0] for n, share in enumerate(shares))


def densities_under_one(model: Model, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Log densities of rows under one component that holds them all, a row at a time."""
    coefficients = model.family.coefficients(sums_of(model.family, rows, weights)[None])[:, 0]
    return np.array([model.family.features(rows[n : n + 1])[0] @ coefficients for n in range(len(rows))])


def refined(model: Model, rows: np.ndarray, weights: np.ndarray, stats: np.ndarray) -> np.ndarray:
    """A global step and a local step, a row at a time."""
    coefficients, prior = model.family.coefficients(stats), model.allocation.log_weights(stats[:, -1])
    after = np.zeros_like(stats)
    for n, weight in enumerate(weights):
        features = model.family.features(rows[n : n + 1])[0]
        logits = features @ coefficients + prior
        shares = np.exp(logits - logits.max())
        after += weight * np.outer(shares / shares.sum(), features)
    return after


@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("cuts", [1, 3])
def test_rows_are_parted_by_values_of_a_column_in_which_they_recur(thin, cuts) -> None:
    rng = np.random.default_rng(4)
    whole, weights = rng.integers(0, 4, size=(400, 2)).astype(float), rng.uniform(0.1, 2.0, 400)
    rows = np.column_stack([np.ones(400), rng.normal(size=400), whole, rng.normal(size=400)])
    weights[whole[:, 0] == 3] = 0.0
    given_rows = sparse.csr_array(rows) if thin else rows
    found = alike_in_a_column(given_rows, weights, cuts, 60, np.random.default_rng(0))
    assert found.shape == (400, 60)
    seen = set()
    for owners in found.T:
        (column,) = (j for j in (2, 3) if all(len(set(owners[rows[:, j] == value])) == 1 for value in range(4)))
        parted = [int(owners[rows[:, column] == value][0]) for value in range(4)]
        own = [part for part in parted if part < cuts]
        assert 0 in own and len(own) == len(set(own)) <= cuts, "each of the values drawn has a part, once"
        seen |= {(column, value) for value in range(4) if parted[value] == 0}
    assert seen == {(2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (3, 3)}, "of no value that weighs nothing"


def test_values_are_drawn_by_weight_and_columns_by_how_often_values_recur() -> None:
    rng = np.random.default_rng(1)
    some, zeros = rng.integers(0, 2, 600), rng.random(600) < 0.4
    rows = np.column_stack([some, rng.integers(0, 30, 600) * zeros, rng.normal(size=600)])
    weights = np.where(rows[:, 0] == 1, 9.0, 1.0)
    found = alike_in_a_column(rows, weights, 1, 400, rng)
    of_first = np.array([len(set(own[rows[:, 0] == 1])) == 1 for own in found.T])
    ones = np.array([own[rows[:, 0] == 1][0] == 0 for own in found.T[of_first]])
    assert 0.5 < of_first.mean() < 0.75 and 0.8 < ones.mean() < 0.98


NOISE = np.random.default_rng(0).normal(size=(50, 3))


@pytest.mark.parametrize("rows", [np.ones((50, 3)), NOISE, np.repeat(NOISE, 3, axis=0), np.zeros((1, 2))])
def test_where_no_value_recurs_or_all_do_nothing_is_parted_by_values(rows) -> None:
    assert alike_in_a_column(rows, np.ones(len(rows)), 1, 4, np.random.default_rng(0)) is None


def test_draws_by_values_do_not_hang_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(2)
    rows, weights, order = rng.integers(0, 5, (200, 3)) * 1.0, rng.uniform(0.5, 2.0, 200), rng.permutation(200)
    rows += np.arange(200)[:, None] % 2 * np.array([0.0, 0.0, 0.3])
    found = alike_in_a_column(rows, weights, 2, 9, np.random.default_rng(3))
    other = alike_in_a_column(rows[order], weights[order], 2, 9, np.random.default_rng(3))
    ties = len(np.unique(rows, axis=0)) < 200
    assert ties and found is not None and other is not None
    assert sum((own[order] == each).all() for own, each in zip(found.T, other.T, strict=True)) >= 7


@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
def test_standardized_columns_spread_alike_whatever_their_units(thin) -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.poisson(1.0, size=(200, 5)) * np.array([1.0, 1e6, 1e-5, 3.0, 1e-8]), rng.uniform(0.5, 2.0, 200)
    rows[:, 3] = 3.1  # a constant that binary fractions do not hold exactly
    found = standardized(sparse.csr_array(rows) if thin else rows, weights)
    dense = found.toarray() if thin else found
    means = np.average(dense, weights=weights, axis=0)
    np.testing.assert_allclose(np.average((dense - means) ** 2, weights=weights, axis=0), [1, 1, 1, 0, 0], atol=1e-9)
    expected = (rows - np.average(rows, weights=weights, axis=0))[:, :3] @ np.diag(1 / spread_of(rows, weights)[:3])
    np.testing.assert_allclose((dense - means)[:, :3], expected, atol=1e-9)
    assert not np.ptp(dense[:, 3:], axis=0).any()


@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
def test_distances_are_from_rows_drawn_by_weight_in_whatever_order_they_come(thin) -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.integers(-2, 3, size=(60, 3)) + 0.5, rng.choice([0.5, 1.0, 4.0], 60)
    given_rows = sparse.csr_array(rows) if thin else rows
    found = distances_from_drawn(given_rows, weights, 4000, np.random.default_rng(1))
    every = ((rows[:, None] - rows) ** 2).sum(axis=2)
    distinct, names = np.unique(rows, axis=0, return_inverse=True)
    drawn_rows = [
        int(names[np.flatnonzero((np.abs(every - column[:, None]) < 1e-9).all(axis=0))[0]]) for column in found.T
    ]
    expected = np.bincount(names, weights) / weights.sum()
    shares = np.bincount(drawn_rows, minlength=len(distinct)) / 4000
    assert np.abs(shares - expected).max() < 4 * np.sqrt(expected.max() / 4000)
    other = rng.permutation(60)
    moved = distances_from_drawn(given_rows[other], weights[other], 50, np.random.default_rng(1))
    once = distances_from_drawn(given_rows, weights, 50, np.random.default_rng(1))
    np.testing.assert_allclose(moved, once[other], atol=1e-9)


def test_a_constant_column_says_nothing_among_sparse_rows_of_uneven_weights_either() -> None:
    """A sparse column's variance is a difference of two sums, of which rounding leaves something."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.random((900, 7)) < 0.3, np.ones(900)]).astype(float)
    for weights in rng.uniform(0.01, 1.5, size=(30, 900)):
        dense, thin = standardized(rows, weights), standardized(sparse.csr_array(rows), weights).toarray()
        assert not dense[:, -1].any() and not thin[:, -1].any()
        np.testing.assert_allclose(dense - dense[0], thin - thin[0], atol=1e-9)


def spread_of(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Standard deviations of columns."""
    return np.sqrt(np.diag(np.cov(rows.T, aweights=weights, ddof=0)))


@given(data=st.data(), seed=st.integers(0, 2**32 - 1), thin=st.booleans())
def test_rows_belong_to_the_nearest_of_seeds_drawn_by_squared_distance(data, seed, thin) -> None:
    count, seeds = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    rows = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=2 * count, max_size=2 * count)), dtype=float)
    rows = rows.reshape(count, 2)
    weights = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=count, max_size=count)))
    found = nearest_seeds(sparse.csr_array(rows) if thin else rows, weights, seeds, np.random.default_rng(seed))
    if len(np.unique(rows, axis=0)) < seeds:
        assert found is None
        return
    rng, chosen = np.random.default_rng(seed), list[int]()
    along = sorted(range(count), key=(rows @ rng.standard_normal(2)).__getitem__)
    while len(chosen) < seeds:
        nearest = [min((((row - rows[c]) ** 2).sum() for c in chosen), default=1.0) for row in rows]
        mark, passed = rng.random() * float(np.sum(weights * nearest)), 0.0
        for n in along:
            passed += weights[n] * nearest[n]
            if passed > mark:
                chosen.append(n)
                break
    distances = [[((row - rows[c]) ** 2).sum() for c in chosen] for row in rows]
    assert found.tolist() == np.argmin(distances, axis=1).tolist()
