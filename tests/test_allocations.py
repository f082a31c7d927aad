"""Laws of every prior over how rows are shared among components."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import logsumexp

from dpdist.core.checks import LARGEST, SMALLEST
from dpdist.core.errors import InputError
from dpdist.models.allocations import ALLOCATIONS as KNOWN
from dpdist.models.allocations import (
    Allocation,
    DirichletProcess,
    FiniteDirichlet,
    LearnedDirichletProcess,
    dirichlet_process,
)
from tests.cases import ALLOCATIONS
from tests.reference import allocation_terms

COUNTS = st.lists(st.floats(0.0, 1e4), min_size=1, max_size=8).map(np.array)

every_allocation = pytest.mark.parametrize("allocation", ALLOCATIONS, ids=lambda a: a.name)
fixed_allocations = pytest.mark.parametrize(
    "allocation", [a for a in ALLOCATIONS if not isinstance(a, LearnedDirichletProcess)], ids=lambda a: a.name
)
ordered_allocations = pytest.mark.parametrize("allocation", [a for a in ALLOCATIONS if a.ordered], ids=lambda a: a.name)


def test_the_registry_holds_every_allocation() -> None:
    assert {a.name for a in ALLOCATIONS} == set(KNOWN)
    assert all(type(a) is KNOWN[a.name] for a in ALLOCATIONS)


@every_allocation
@pytest.mark.parametrize("components", [1, 5])
def test_the_evidence_of_no_counts_is_zero(allocation, components) -> None:
    assert allocation.log_evidence(np.zeros(components)) == pytest.approx(0.0, abs=1e-12)


@every_allocation
@given(counts=COUNTS)
def test_log_weights_are_the_gradient_of_log_evidence(allocation, counts) -> None:
    counts = counts + 0.01
    step = 1e-3 * np.eye(len(counts)) * counts
    rise = allocation.log_evidence(counts + step) - allocation.log_evidence(counts - step)
    found = allocation.log_weights(counts)
    rounding = 1e-12 * np.abs(allocation.log_evidence(counts)) / (1e-3 * counts)
    np.testing.assert_allclose(rise / (2e-3 * counts), found, rtol=1e-4, atol=1e-4 + rounding.max())


@every_allocation
@given(counts=COUNTS)
def test_counts_of_several_mixtures_have_the_log_weights_of_each(allocation, counts) -> None:
    several = np.stack([counts, counts[::-1], 2 * counts])[:, None]
    each = [[allocation.log_weights(own[0])] for own in several]
    np.testing.assert_allclose(allocation.log_weights(several), each, rtol=1e-9, atol=1e-9)


#: Allocations at the ends of what is accepted.
EXTREME = [
    *(DirichletProcess(c) for c in (SMALLEST, 1e-30, LARGEST)),
    *(LearnedDirichletProcess(s, r) for s, r in ((1e-3, 1e-3), (0.1, 1e8), (1e9, 2.0), (1.0, 2e-8))),
    *(FiniteDirichlet(m, c) for m, c in ((1, SMALLEST), (10, 1e-98), (10**9, 1e-30), (10**9, LARGEST), (2, LARGEST))),
]


@pytest.mark.parametrize("allocation", EXTREME, ids=str)
@pytest.mark.parametrize("counts", [[0.0], [0.0] * 300, [1e9, 1e3, 0.3, 0.0, 0.0], [1e-300, 7.0, 1e12]])
def test_whatever_is_accepted_can_be_computed_with(allocation, counts) -> None:
    counts = np.array(counts)[: allocation.max_components]
    evidence, slopes = allocation.log_evidence(counts), allocation.log_weights(counts)
    assert np.isfinite(evidence)
    assert np.isfinite(slopes).all() and np.isfinite(slopes.sum())
    weights, rest = allocation.weights(counts)
    assert weights.sum() + rest == pytest.approx(1.0, rel=1e-9)
    assert np.isfinite(allocation.plug_in(counts).log_evidence(counts))


@pytest.mark.parametrize("kind", [DirichletProcess, LearnedDirichletProcess])
def test_what_is_fixed_at_its_mean_keeps_the_bound_of_components(kind) -> None:
    assert kind(max_components=7).plug_in(np.array([3.0, 1.0])).max_components == 7


@every_allocation
@given(counts=COUNTS)
def test_weights_and_the_rest_sum_to_one(allocation, counts) -> None:
    weights, rest = allocation.weights(counts)
    assert weights.shape == counts.shape
    assert (weights > 0).all()
    assert rest > 0
    assert weights.sum() + rest == pytest.approx(1.0, rel=1e-9)


@every_allocation
@given(counts=COUNTS)
def test_expected_log_weights_lie_below_the_log_of_expected_weights(allocation, counts) -> None:
    assert (allocation.log_weights(counts) <= np.log(allocation.weights(counts)[0]) + 1e-9).all()


@every_allocation
def test_a_batch_of_counts_gives_what_a_loop_gives(allocation) -> None:
    counts = np.random.default_rng(0).uniform(0, 50, size=(3, 4, 6))
    found = allocation.log_evidence(counts)
    assert found.shape == (3, 4)
    alone = [[allocation.log_evidence(row) for row in rows] for rows in counts]
    np.testing.assert_allclose(found, alone, rtol=1e-13)


@every_allocation
@given(counts=COUNTS, other=COUNTS)
def test_the_log_evidence_is_convex(allocation, counts, other) -> None:
    size = min(len(counts), len(other))
    a, b = counts[:size], other[:size]
    ends = 0.5 * (allocation.log_evidence(a) + allocation.log_evidence(b))
    assert allocation.log_evidence(0.5 * (a + b)) <= ends + 1e-9 * abs(ends)


@ordered_allocations
@given(counts=COUNTS, data=st.data())
def test_no_order_beats_the_descending_one(allocation, counts, data) -> None:
    best = allocation.log_evidence(np.sort(counts)[::-1])
    other = allocation.log_evidence(np.array(data.draw(st.permutations(counts.tolist()))))
    assert other <= best + 1e-10 * abs(best)


@given(counts=COUNTS, data=st.data())
def test_a_finite_mixture_has_no_order(counts, data) -> None:
    allocation = FiniteDirichlet(50, 2.0)
    other = np.array(data.draw(st.permutations(counts.tolist())))
    assert allocation.log_evidence(other) == pytest.approx(float(allocation.log_evidence(counts)), rel=1e-12)


@every_allocation
@given(counts=COUNTS)
def test_an_empty_component_at_the_end_adds_no_evidence(allocation, counts) -> None:
    longer = np.append(counts, 0.0)
    assert allocation.log_evidence(longer) == pytest.approx(float(allocation.log_evidence(counts)), abs=1e-9)
    np.testing.assert_allclose(allocation.log_weights(longer)[:-1], allocation.log_weights(counts), rtol=1e-9)


@given(counts=COUNTS)
def test_merging_any_two_gains_the_change_of_the_evidence(counts) -> None:
    allocation, before = DirichletProcess(2.0), DirichletProcess(2.0).log_evidence(-np.sort(-counts))
    gains = Allocation.merge_gains(allocation, counts)
    assert (gains == gains.T).all()
    assert not gains.diagonal().any()
    for a in range(len(counts)):
        for b in range(a + 1, len(counts)):
            after = sorted([*np.delete(counts, [a, b]), counts[a] + counts[b]], reverse=True)
            change = float(allocation.log_evidence(np.array(after)) - before)
            assert gains[a, b] == pytest.approx(change, abs=1e-9 * (1 + abs(before)))


@pytest.mark.parametrize(
    "allocation",
    [*ALLOCATIONS, DirichletProcess(SMALLEST), DirichletProcess(1e3), LearnedDirichletProcess(50.0, 1.0, nodes=37)],
    ids=repr,
)
@pytest.mark.parametrize("shape", [0.02, 0.5, 100.0], ids=["far apart", "apart", "nearly equal"])
@pytest.mark.parametrize("size", [1, 2, 3, 25, 50])
def test_a_short_way_to_the_gains_of_merges_leads_where_the_long_one_does(allocation, shape, size) -> None:
    rng = np.random.default_rng(size)
    for scale in (0.1, 10.0, 1e5):
        counts = rng.gamma(shape, scale / shape, size=size)
        counts[rng.random(size) < 0.1] = 0.0
        counts[rng.random(size) < 0.2] = counts[-1]
        found, meant = allocation.merge_gains(counts), Allocation.merge_gains(allocation, counts)
        whole = counts.sum() + 1e3
        np.testing.assert_allclose(found, meant, rtol=1e-9, atol=1e-16 * size * whole * np.log(whole) + 1e-10)
        assert (found == found.T).all()
        assert not found.diagonal().any()


def test_gains_of_a_few_components_are_not_told_node_by_node(monkeypatch) -> None:
    counts = np.array([30.0, 20.0, 5.0])
    meant = Allocation.merge_gains(LearnedDirichletProcess(), counts)
    monkeypatch.setattr(dirichlet_process, "stick_merge_gains", lambda *_: pytest.fail("two hundred nodes take long"))
    np.testing.assert_array_equal(LearnedDirichletProcess().merge_gains(counts), meant)


@given(
    counts=COUNTS,
    nodes=st.sampled_from([2, 3, 16, 40, 256]),
    prior=st.sampled_from([(1.0, 0.1), (0.1, 1e-3), (300, 1)]),
)
def test_the_evidence_of_a_learned_concentration_leaves_no_node_out(counts, nodes, prior) -> None:
    allocation = LearnedDirichletProcess(*prior, nodes=nodes)
    given_each = [float(DirichletProcess(node).log_evidence(counts)) for node in allocation._grid]
    meant = logsumexp(np.array(given_each) + allocation._log_prior)
    assert allocation.log_evidence(counts) == pytest.approx(meant, rel=1e-10, abs=1e-8)


@given(counts=COUNTS, prior=st.sampled_from([(1.0, 0.1), (0.1, 1e-3), (2.0, 1e10), (300, 1)]))
def test_expected_log_weights_are_the_mean_over_all_nodes(counts, prior) -> None:
    allocation = LearnedDirichletProcess(*prior)
    given_each = np.array([DirichletProcess(node).log_weights(counts) for node in allocation._grid])
    meant = allocation._posterior(counts) @ given_each
    np.testing.assert_allclose(allocation.log_weights(counts), meant, rtol=1e-9, atol=1e-9)


def test_nodes_that_the_posterior_leaves_out_take_no_time_in_expected_log_weights(monkeypatch) -> None:
    asked, joint = [], LearnedDirichletProcess._log_joint
    monkeypatch.setattr(
        LearnedDirichletProcess, "_log_joint", lambda own, n, nodes: asked.append(nodes) or joint(own, n, nodes)
    )
    LearnedDirichletProcess().log_weights(np.full(100, 30.0))
    assert sum(len(range(*nodes.indices(256))) for nodes in asked) < 128


@ordered_allocations
def test_descending_is_the_order_of_ordered_allocations(allocation) -> None:
    counts = np.array([[2.0, 7.0, 0.0], [1.0, 1.0, 5.0]])
    assert allocation.in_order(counts).tolist() == [[7.0, 2.0, 0.0], [5.0, 1.0, 1.0]]
    assert FiniteDirichlet(5).in_order(counts).tolist() == counts.tolist()


@fixed_allocations
@given(counts=COUNTS)
def test_evidence_is_expected_log_weights_less_the_divergence_of_the_weights(allocation, counts) -> None:
    assert allocation.log_evidence(counts) == pytest.approx(allocation_terms(allocation, counts), rel=1e-8, abs=1e-7)


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5), concentration=st.floats(0.1, 10.0))
def test_sticks_given_whole_counts_are_the_probability_of_the_sequence(sizes, concentration) -> None:
    allocation, counts, total = DirichletProcess(concentration), np.zeros(len(sizes)), 0.0
    for k, size in enumerate(sizes):
        for _ in range(size):
            total += np.log(allocation.weights(counts)[0][k])
            counts[k] += 1
    assert allocation.log_evidence(counts) == pytest.approx(total, rel=1e-9, abs=1e-9)


@given(counts=COUNTS, concentration=st.floats(0.1, 20.0))
def test_a_sharp_prior_on_the_concentration_fixes_it(counts, concentration) -> None:
    sharp, fixed = LearnedDirichletProcess(1e10, 1e10 / concentration), DirichletProcess(concentration)
    assert sharp.log_evidence(counts) == pytest.approx(float(fixed.log_evidence(counts)), rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(sharp.log_weights(counts), fixed.log_weights(counts), rtol=1e-3, atol=1e-3)
    assert sharp.expected_concentration(counts) == pytest.approx(concentration, rel=1e-4)
    assert sharp.plug_in(counts).concentration == pytest.approx(concentration, rel=1e-4)


@pytest.mark.parametrize(("shape", "rate"), [(1.0, 0.1), (2.0, 1.0), (5.0, 0.5), (0.2, 0.1), (0.05, 1.0)])
@pytest.mark.parametrize("counts", [[0.0], [40.0, 10.0, 3.0], [900.0, 30.0, 20.5, 4.0, 1.0, 0.2]])
def test_the_concentration_is_integrated_out(shape, rate, counts) -> None:
    allocation, counts = LearnedDirichletProcess(shape, rate), np.array(counts)
    prior = stats.gamma(shape, scale=1 / rate)

    def joint(log_gamma: float) -> float:
        evidence = DirichletProcess(np.exp(log_gamma)).log_evidence(counts) - top
        return np.exp(prior.logpdf(np.exp(log_gamma)) + log_gamma + evidence)

    def integral(function) -> float:
        ends = [-200.0, -50.0, -10.0, np.log(prior.ppf(1 - 1e-10))]
        return sum(integrate.quad(function, a, b, epsabs=0, limit=200)[0] for a, b in itertools.pairwise(ends))

    top = max(DirichletProcess(gamma).log_evidence(counts) for gamma in np.geomspace(0.01, 100, 200))
    whole, first = integral(joint), integral(lambda log_gamma: np.exp(log_gamma) * joint(log_gamma))
    assert allocation.log_evidence(counts) == pytest.approx(np.log(whole) + top, abs=2e-4)
    assert allocation.expected_concentration(counts) == pytest.approx(first / whole, rel=2e-4)
    assert allocation.plug_in(counts).concentration == pytest.approx(first / whole, rel=2e-4)


@every_allocation
def test_an_allocation_is_its_hyperparameters(allocation) -> None:
    again = replace(allocation)
    counts = np.array([20.0, 5.0, 1.0])
    assert again.log_evidence(counts) == allocation.log_evidence(counts)


def test_no_more_components_than_the_prior_has() -> None:
    assert FiniteDirichlet(7).max_components == 7
    assert DirichletProcess(1.0, max_components=9).max_components == 9
    assert DirichletProcess().max_components is None


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (DirichletProcess, {"concentration": 0.0}),
        (DirichletProcess, {"concentration": np.nan}),
        (DirichletProcess, {"concentration": 1e-320}),
        (DirichletProcess, {"concentration": 1e308}),
        (LearnedDirichletProcess, {"shape": -1.0}),
        (LearnedDirichletProcess, {"rate": np.inf}),
        (LearnedDirichletProcess, {"rate": 1e-320}),
        (LearnedDirichletProcess, {"shape": 1e12}),
        (LearnedDirichletProcess, {"shape": 1e308}),
        (LearnedDirichletProcess, {"shape": 1e-320}),
        (LearnedDirichletProcess, {"rate": 1e300}),
        (LearnedDirichletProcess, {"nodes": 1}),
        (FiniteDirichlet, {"components": 0}),
        (FiniteDirichlet, {"components": 3, "concentration": 0.0}),
        (FiniteDirichlet, {"components": 3, "concentration": 1e-320}),
        (FiniteDirichlet, {"components": 3, "concentration": 1e12}),
        (FiniteDirichlet, {"components": 10**12, "concentration": 1e-90}),
    ],
)
def test_hyperparameters_out_of_range_are_refused_in_a_sentence(make, parameters) -> None:
    with pytest.raises(InputError, match=rf"(?s){list(parameters)[-1]} .*should .*\.$"):
        make(**parameters)
