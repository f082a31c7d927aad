"""Components divided anew at random by the values of columns: what is found, and what is not lost on the way."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.core.errors import PrecisionError
from dpdist.inference.moves import arrange, redivision, regroup
from dpdist.inference.moves.arrange import redivided
from dpdist.inference.moves.conjunctions import conditions, decision_list, evidence_of
from dpdist.inference.moves.redivision import DIVIDED, KEPT, redivisions
from dpdist.inference.moves.regroup import MOST_ROUNDS, Regroup
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from tests.cases import ALLOCATIONS, FAMILIES
from tests.test_agglomerate import SHARES, of_case
from tests.test_crossing import answered
from tests.test_regroup import drawn, end_of, model_of, sums


def table(seed: int = 0, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Answers yes or no and measurements; rows with two certain answers have other measurements; who they are."""
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 2, size=(rows, 5)).astype(float)
    who = np.where(answers[:, 0] * answers[:, 1] == 1, 1, np.where((answers[:, 2] == 1) & (answers[:, 3] == 0), 2, 0))
    shapes = rng.normal(size=(3, 3, 3))
    measured = np.einsum("nij,nj->ni", shapes[who], rng.normal(size=(rows, 3)))
    return np.column_stack([answers, measured]), who


def sampled(rows: np.ndarray, weights: np.ndarray | None = None) -> SampledRows:
    return SampledRows.of(model_of(rows), rows, np.ones(len(rows)) if weights is None else weights)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
@SHARES
def test_no_row_is_lost_in_any_family_and_the_best_comes_first(case, share, monkeypatch) -> None:
    sample = of_case(case, ALLOCATIONS[0], share)
    codes = [np.random.default_rng(k).integers(0, 3, len(sample.weights)) for k in range(4)]
    monkeypatch.setattr(redivision, "by_value", lambda *given: codes)
    (now,) = sample.stepped([np.random.default_rng(0).dirichlet(np.ones(5), size=60).T @ sample.features])
    tried = list[np.ndarray]()
    merged = redivision.merged_down

    def watched(given: SampledRows, candidates: list[np.ndarray]) -> list[Arrangement]:
        tried.extend(candidates)
        return merged(given, candidates)

    monkeypatch.setattr(redivision, "merged_down", watched)
    found = redivisions(sample, now, np.random.default_rng(0))
    for stats in tried:
        np.testing.assert_allclose(stats.sum(axis=0), sample.total, rtol=1e-9, atol=1e-9)
    elbos = [each.elbo for each in merged(sample, tried)]
    again = [each.elbo for each in merged(sample, tried) if any(np.array_equal(each.stats, one) for one in found)]
    assert len(tried) > len(found) == KEPT and min(again) >= sorted(elbos)[-KEPT]


def test_where_no_value_recurs_nothing_is_divided() -> None:
    rows, owners = drawn()
    sample = sampled(rows)
    now = sample.settled(sums(sample.model, rows, owners))
    assert redivisions(sample, now, np.random.default_rng(0)) == []
    assert redivided(sample, now, 3, np.random.default_rng(0)) is None


@pytest.mark.parametrize("soft", [False, True])
def test_the_gain_of_parting_is_that_of_the_evidences_computed_anew(soft) -> None:
    rows, who = table()
    sample, rng = sampled(rows, np.random.default_rng(1).uniform(0.5, 2.0, 400)), np.random.default_rng(2)
    resp = np.eye(4)[np.where(who == 0, rng.integers(2, 4, 400), who - 1)]
    resp = (rng.dirichlet(np.ones(4), 400) if soft else resp) * sample.weights[:, None]
    has = np.column_stack([rows[:, :5] == 1, np.ones(400, dtype=bool), np.zeros(400, dtype=bool)])
    among = resp * (rows[:, [4]] == 0)
    found = redivision._gains_of_parting(sample, sample.sums(resp), among, has)
    for value in range(4):
        leaving = among * has[:, [value]]
        after = sample.sums(np.column_stack([resp - leaving, leaving.sum(axis=1)]))
        expected = evidence_of(sample, after[after[:, -1] > 1e-9]).sum() - evidence_of(sample, sample.sums(resp)).sum()
        assert found[value] == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert np.isneginf(found[4:]).all(), "none of the rows have the value, or all, or none of all"


def test_the_rows_of_the_best_conjunction_leave_all_components(monkeypatch) -> None:
    rows, _ = answered()
    sample, resp = sampled(rows[:, 6:]), np.eye(3)[rows[:, 4].astype(int) - 1]
    has = conditions([answers.astype(int) - 1 for answers in rows[:, :6].T])

    def after(leaving: np.ndarray) -> np.ndarray:
        stats = sample.sums(np.column_stack([resp * ~leaving[:, None], leaving]))
        return stats[stats[:, -1] >= 1]

    def evidence(leaving: np.ndarray) -> float:
        return float(evidence_of(sample, after(leaving)).sum()) if leaving.any() else -np.inf

    best, conditions_met = np.ones(len(rows), dtype=bool), 0
    while True:
        longer = max((best & value for value in has.T if (best & value).sum() < best.sum()), key=evidence)
        if conditions_met and evidence(longer) <= evidence(best):
            break
        best, conditions_met = longer, conditions_met + 1
    assert conditions_met > 1
    monkeypatch.setattr(redivision, "IN_ONE", (1.0,))
    now = Arrangement(sample.sums(resp), 0.0, resp, np.zeros(3))
    found = redivision._parted(sample, now, has, np.random.default_rng(0))
    np.testing.assert_allclose(found[found[:, -1] >= 1], after(best), rtol=1e-9, atol=1e-6)


def test_a_decision_list_divides_some_components_and_leaves_the_others() -> None:
    rows, _ = table()
    sample, has = sampled(rows), conditions([answers.astype(int) for answers in rows[:, :5].T])
    now = sample.stepped([sums(sample.model, rows, np.arange(400) % 12)])[0]
    numbers, divided = set(), set()
    for seed in range(30):
        found = redivision._listed(sample, now, has, np.random.default_rng(seed))
        kept = [k for k, stats in enumerate(now.stats) if (found == stats).all(axis=1).any()]
        numbers.add(12 - len(kept))
        divided |= set(range(12)) - set(kept)
    assert numbers == set(range(2, DIVIDED + 1)) and divided == set(range(12))


def test_a_random_decision_list_has_conditions_of_its_own_in_every_conjunction() -> None:
    rows, _ = table()
    sample, has = sampled(rows), conditions([answers.astype(int) for answers in rows[:, :5].T])
    every = decision_list(sample, has, sample.weights)
    found = [decision_list(sample, has, sample.weights, 0.4, np.random.default_rng(seed)) for seed in range(8)]
    assert len({stats.tobytes() for stats in found}) > 4
    assert not any(np.array_equal(stats[:1], every[:1]) for stats in found[:1])
    np.testing.assert_array_equal(decision_list(sample, has, sample.weights, 1.0, np.random.default_rng(0)), every)


def apart_by_two(seed: int) -> tuple[SampledRows, np.ndarray, np.ndarray]:
    """A table, its rows' components, and components by an answer that has nothing to do with them."""
    rows, who = table(seed)
    sample = sampled(rows)
    return sample, sums(sample.model, rows, who), sums(sample.model, rows, rows[:, 4].astype(int))


@pytest.mark.parametrize("seed", range(3))
def test_rounds_lead_from_a_bad_arrangement_to_that_of_the_answers(seed) -> None:
    sample, truth, other = apart_by_two(seed)
    now, best = sample.settled(other), sample.settled(truth)
    assert now.elbo < best.elbo - 0.1 * len(sample.weights)
    found = redivided(sample, now, 20, np.random.default_rng(seed))
    assert found is not None and found.elbo >= best.elbo - 1.0
    limited = redivided(sample, now, 20, np.random.default_rng(seed), 2)
    assert limited is None or len(limited.stats) <= 2
    assert redivided(sample, found, 0, np.random.default_rng(seed)) is None


def test_rounds_go_on_after_a_random_component_that_lost_its_precision(monkeypatch) -> None:
    sample, _, other = apart_by_two(0)
    rounds, true = list[int](), arrange.redivisions

    def failing(*given) -> list[np.ndarray]:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise PrecisionError("lost")
        return true(*given)

    monkeypatch.setattr(arrange, "redivisions", failing)
    assert redivided(sample, sample.settled(other), 10, np.random.default_rng(0)) is not None and len(rounds) == 10


@pytest.mark.parametrize(("members", "widest", "rounds"), [(7, 8, True), (6, 8, False), (3, 3, True), (2, 3, False)])
def test_only_the_largest_groups_are_divided_at_random(members, widest, rounds) -> None:
    end, move = end_of(*drawn()), Regroup(smallest=2, largest=2, widest=widest)
    found = move._rounds(end, tuple(range(members)))
    affordable = int(regroup.ROWS_REDIVIDED / (7 * (150 + 50 + 0.125 * 6)))
    assert 1 < affordable < MOST_ROUNDS and found == (affordable if rounds else 0)


@pytest.mark.parametrize("largest", [2, 5])
def test_a_search_divides_at_random_if_nothing_else_was_found(largest, monkeypatch) -> None:
    rows, who = table()
    sample = sampled(rows)
    monkeypatch.setattr(regroup, "rearranged", lambda *given: None)
    monkeypatch.setattr(regroup, "rearranged_widely", lambda *given: None)
    group, drawn_rows = sums(sample.model, rows, np.arange(400) % 3), regroup.GroupRows(rows, np.ones(400), 1.0)
    given = (sample.model, Regroup(largest=largest)), group, drawn_rows, 1
    assert regroup._arrange_task(*given, 0, np.inf, (0, 0, 0, 0)) is None
    found = regroup._arrange_task(*given, 20, np.inf, (0, 0, 0, 0))
    assert found is not None
    after = sample.settled(found.stats).elbo
    assert after >= sample.settled(sums(sample.model, rows, who)).elbo - 1.0
