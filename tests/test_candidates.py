"""Laws of candidates: a valid q, its ELBO exact, every row looked at once, the same bits wherever and whenever."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.arrays import ArrayPartition
from dpdist.data.base import Source
from dpdist.execution import SerialBackend
from dpdist.inference.blocks import weighing_rows
from dpdist.inference.mixture.candidates import Candidates, Heirs, row_groups
from dpdist.inference.mixture.engine import laps
from dpdist.inference.mixture.local_step import LocalStepTask, groups_of_rows, visit
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.delete import Delete
from dpdist.inference.moves.merge import Merge
from dpdist.inference.moves.split import Split
from dpdist.inference.schedules import Memoized, Stochastic
from dpdist.models.families import FAMILIES
from dpdist.models.sufficient_statistics import Summary
from tests.runs import begun, clusters, digest, mixture, some_steps, source_of
from tests.test_local_step import assert_same, orders_of, visited
from tests.test_moves import entropy, explicit_shares, rows_for

#: Two laps of three go by candidates, from two components on; a large share leaves most components out.
FEW = Candidates(every=3, components=2, share=0.1)
SEEDS = st.integers(0, 2**32 - 1)


def test_an_owner_of_no_rows_has_the_candidates_for_whose_rows_it_is_one() -> None:
    held = np.array([[90.0, 10, 5, 0], [8, 70, 0, 0], [0, 0, 0, 0], [0, 0, 0, 30]])
    expected = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]], dtype=bool)
    np.testing.assert_array_equal(Candidates().of(held), expected)


class Recording(SerialBackend):
    """Keeps with what each partition was visited last."""

    def __init__(self) -> None:
        self.visits: dict[int, tuple[LocalStepTask, np.ndarray | None]] = {}

    def total(self, function, *columns):
        if function is visit:
            for partition, _, task, owners in zip(*columns, strict=True):
                self.visits[partition.index] = task, owners
        return super().total(function, *columns)


def explicit_summary(problem: Problem, source: Source, backend: Recording) -> Summary:
    """Of responsibilities row by row, each a softmax over what the row was looked at for and the background, if any."""
    family, found = problem.model.family, []
    for partition in source.partitions:
        (task, owners), (rows, weights, kept) = backend.visits[partition.index], weighing_rows(partition)
        prepared = problem.preparation.apply(rows)
        features = family.features(prepared)
        resp = np.zeros((len(rows), task.posterior.coefficients.shape[1]))
        outside, beyond = task.posterior.outside, np.zeros((len(rows), 0 if task.posterior.outside is None else 1))
        logits_beyond = np.zeros((len(rows), 0)) if outside is None else (features @ outside)[:, None]
        for group in groups_of_rows(len(rows), None if owners is None else owners[kept], task):
            looked = np.arange(resp.shape[1]) if group.components is None else group.components
            logits = features[group.rows] @ task.posterior.coefficients[:, looked]
            shares = explicit_shares(np.hstack([logits, logits_beyond[group.rows]]), 1e-8)
            resp[np.arange(len(rows))[group.rows][:, None], looked] = shares[:, : len(looked)]
            beyond[group.rows] = shares[:, len(looked) :]
        assert resp.sum(axis=1) + beyond.sum(axis=1) == pytest.approx(1.0)
        assert task.candidates is None or owners is not None
        base = weights @ (family.log_base_measure(prepared) + np.log1p(-task.posterior.share))
        base = float(base + (weights @ (beyond * logits_beyond)).sum() + entropy(beyond, weights).sum())
        found.append(Summary((weights[:, None] * resp).T @ features, entropy(resp, weights), base))
    return sum(found[1:], found[0])


#: A family that has a location and learns no spread has no background.
BACKED = [name for name, family in sorted(FAMILIES.items()) if family.spreads or not family.has_location]


@pytest.mark.parametrize(
    ("name", "background"), [*((name, None) for name in sorted(FAMILIES)), *((name, 0.05) for name in BACKED)]
)
def test_elbo_of_candidates_is_that_of_explicit_responsibilities(name, background) -> None:
    rows = np.concatenate([rows_for(name, np.random.default_rng(s), 2.0) for s in (1, 2, 3)])
    rows = np.tile(rows, (1, 4)) if name == "bernoulli" else rows * np.repeat([1, 10, 100], 90)[:, None]
    weights = np.random.default_rng(5).uniform(0, 2, size=len(rows)).round(1)
    source = source_of(rows, 40, weights)
    start = np.repeat([0, 2, 4], 90) + np.arange(270) % 2
    model = mixture(family=FAMILIES[name](), initial=start, candidates=FEW, moves=[Split(), Merge(), Delete()])
    problem, state = begun(model.set_params(background=background), source)
    backend, by_candidates = Recording(), 0
    for following, info in islice(laps(problem, source, state, backend), 7):
        by_candidates += state.candidates is not None and not state.candidates.all()
        plain = problem.model.elbo(explicit_summary(problem, source, backend))
        assert info.elbo_before_moves == pytest.approx(plain, rel=1e-10)
        state = following
    assert by_candidates > 0


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("schedule", [Memoized, Stochastic])
def test_going_on_with_candidates_from_any_step_gives_the_same_bits(schedule, lookahead) -> None:
    source, start = source_of(clusters(2, 300), 40), {"initial": "k-means++", "initial_components": 7}
    moves = [Split(), Merge(), Delete()]
    model = mixture(schedule=schedule(4, lookahead), candidates=FEW, moves=moves, **start)
    problem, state = begun(model, source)
    whole = [step.state for step in some_steps(problem, source, state, 26)]
    assert sum(each.candidates is not None for each in whole) > 10
    for stop in (2, 4, 9, 15):
        again = [step.state for step in some_steps(problem, source, whole[stop], 25 - stop)]
        assert digest(again[-1]) == digest(whole[-1])


def test_what_converges_does_so_in_a_dense_lap_as_high_as_without_candidates() -> None:
    source, start = source_of(clusters(4, 400, spread=2.0)), {"initial": np.arange(400) % 12, "moves": []}
    near = Candidates(every=1000, components=2)  # so that no lap is dense because its turn has come
    problem, state = begun(mixture(candidates=near, **start), source)
    by_candidates = 0
    for following, _ in islice(laps(problem, source, state, SerialBackend()), 400):
        by_candidates += state.candidates is not None
        if following.quiet:
            break
        state = following
    assert following.quiet and state.candidates is None and by_candidates > 10
    dense = mixture(candidates=Candidates(every=1), max_laps=400, **start).fit(source)
    assert following.elbo == pytest.approx(dense.elbo_, abs=400 * 1e-3)


def test_a_visit_by_all_that_hold_something_is_a_dense_one() -> None:
    rows = np.concatenate([clusters(2 + seed, 200, spread=4.0) + 100 * seed for seed in (-1, 0, 1)])
    rows = rows[np.random.default_rng(0).permutation(600)]
    weights = np.random.default_rng(1).uniform(0, 2, 600).round(1)
    model = mixture(initial=np.digitize(rows[:, 0], [-50, 50]) * 2 + np.arange(600) % 2, moves=[Split(cooldown=0)])
    problem, task = orders_of(model, source_of(rows), owned=True)
    dense = visited(problem, task, rows, weights)
    held, owners = dense.sample.held, dense.batch_summary.owners
    np.testing.assert_allclose(held.sum(axis=0), dense.batch_summary.summary.counts)
    assert (held == 0).mean() > 0.5 and any(len(proposals) for proposals in task.proposals)
    partition = ArrayPartition(0, 0, 600, rows, weights)
    found = visit(partition, problem.preparation, replace(task, candidates=held > 0), owners)
    assert_same(found.batch_summary, dense.batch_summary)
    entropies = [each.batch_summary.summary.entropy for each in (found, dense)]
    np.testing.assert_allclose(*entropies, rtol=1e-9, atol=1e-9)
    assert entropies[0].max() > 1.0
    assert_same(found.sample.seen, dense.sample.seen)
    np.testing.assert_array_equal(found.batch_summary.owners, owners)
    np.testing.assert_array_equal(np.bincount(found.sample.owners), np.bincount(dense.sample.owners))
    assert found.sample.held is None


def test_few_components_have_no_candidates() -> None:
    source = source_of(clusters(5))
    problem, state = begun(mixture(initial="k-means++", initial_components=8), source)
    for step in some_steps(problem, source, state, 12):
        assert step.state.candidates is None and step.batch_summary.owners is None


@given(seed=SEEDS, components=st.integers(1, 30), rows=st.integers(0, 200), most=st.integers(1, 60))
def test_every_row_is_looked_at_once_for_its_candidates(seed, components, rows, most) -> None:
    rng = np.random.default_rng(seed)
    candidates = (rng.random((components, components)) < 0.2) | np.eye(components, dtype=bool)
    owners = rng.integers(components, size=rows).astype(np.uint16)
    groups = list(row_groups(owners, candidates, most))
    assert len(groups) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate([group.rows for group in groups])), np.arange(rows))
    for group in groups:
        looked = np.isin(np.arange(components), group.components)
        wanted = candidates[owners[group.rows]].any(axis=0)
        np.testing.assert_array_equal(looked, wanted)
        assert len(group.rows) <= most and (np.diff(group.components) > 0).all()


@given(seed=SEEDS)
def test_heirs_of_candidates_are_candidates_of_heirs(seed) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.integers(1, 9, size=2)
    passed = rng.random((before, after)) < 0.3
    passed[np.arange(before), rng.integers(after, size=before)] = True
    passed[rng.integers(before, size=after), np.arange(after)] = True
    candidates = (rng.random((before, before)) < 0.3) | np.eye(before, dtype=bool)
    heirs = Heirs(*np.nonzero(passed))
    found = heirs.candidates(candidates)
    for old, new in np.argwhere(passed):
        for other, heir in np.argwhere(passed):
            assert found[new, heir] or not candidates[old, other]
    assert found.sum() <= sum(passed[old].sum() * passed[other].sum() for old, other in np.argwhere(candidates))
    owners = rng.integers(before, size=20)
    assert passed[owners, heirs.owners(owners)].all()
