"""Rows that go to another component: which go, where to, and what is left of the sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import dpdist
from dpdist.inference.moves import arrange, hops
from dpdist.inference.moves.hops import _swept, hopped
from dpdist.inference.moves.regroup import Regroup
from dpdist.inference.moves.sampled_rows import Arrangement, SampledRows
from dpdist.models.allocations import DirichletProcess
from dpdist.models.families import Moments
from dpdist.models.mixture import Model
from tests.cases import FAMILIES, filled


def arranged(sample: SampledRows, owners: np.ndarray) -> Arrangement:
    """Components that own their rows whole."""
    resp = (owners[:, None] == np.arange(owners.max() + 1)) * sample.weights[:, None]
    return Arrangement(sample.sums(resp), 0.0, resp, np.zeros(resp.shape[1]))


def astray(count: int = 2) -> tuple[SampledRows, Arrangement, np.ndarray]:
    """Few rows for their columns, some of which are settled in the other of two components; whose they are."""
    owners = np.repeat([0, 1], 20)
    rows = np.random.default_rng(3).normal(size=(40, 20))
    rows[:, :10] += 4.0 * owners[:, None]
    moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), True)
    family = dpdist.families.Gaussian(degrees_of_freedom=31.0, scale=10.0).with_defaults(moments)
    sample = SampledRows.of(Model(family, DirichletProcess(1.0)), rows, np.ones(len(rows)))
    return sample, sample.settled(sample.owned(np.where(np.arange(40) < count, 1, owners), 2)), owners


def test_rows_that_inference_leaves_astray_go_where_they_belong() -> None:
    sample, now, owners = astray()
    assert (now.resp.argmax(axis=1)[:2] == 1).all(), "inference alone leaves them"
    gone = hopped(sample, now)
    after = sample.settled(gone)
    assert after.elbo > now.elbo + 40
    np.testing.assert_array_equal(after.resp.argmax(axis=1), owners)


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_a_row_goes_exactly_where_what_all_components_say_of_their_rows_rises(case) -> None:
    """Beside the evidence, counts say as much as the logarithm of what a component holds without the row."""
    rows = case.rows(np.random.default_rng(1), 40, 4)
    model = Model(filled(case, rows), DirichletProcess(1.0))
    sample, owners = SampledRows.of(model, rows, np.ones(len(rows))), np.arange(len(rows)) % 3
    after = _swept(sample, owners, 3)
    for n in range(len(rows)):
        gains = np.zeros(3)
        for k in {0, 1, 2} - {int(owners[n])}:
            moved = owners.copy()
            moved[n] = k
            before, then = (model.family.log_evidence(arranged(sample, each).stats).sum() for each in (owners, moved))
            held = (owners == k).sum(), (owners == owners[n]).sum() - 1
            gains[k] = then - before + np.log(held[0]) - np.log(held[1])
        assert after[n] == (gains.argmax() if gains.max() > 0 else owners[n])


def test_rows_go_where_nothing_else_is_better(monkeypatch) -> None:
    sample, now, owners = astray()
    np.testing.assert_allclose(hopped(sample, now).sum(axis=0), sample.features.sum(axis=0), rtol=1e-9)
    for better in ([], [arranged(sample, owners).stats]):
        asked = []
        monkeypatch.setattr(arrange, "_candidates", lambda *_, better=better: better)
        monkeypatch.setattr(arrange, "hopped", lambda *given, asked=asked: asked.append(given) or hopped(*given))
        found = arrange.rearranged(sample, sample.settled(now.stats), Regroup().seedings, np.random.default_rng(0))
        np.testing.assert_array_equal(found.resp.argmax(axis=1), owners)
        assert len(asked) == (1 if better else 2), "once where others were tried in vain"


def test_a_row_of_weight_w_goes_as_w_such_rows_would() -> None:
    sample, now, _ = astray()
    owners = now.resp.argmax(axis=1)
    twice = {name: np.concatenate([getattr(sample, name)] * 2) for name in ("features", "points", "weights")}
    repeated = replace(sample, **twice)
    heavy = _swept(replace(sample, weights=2 * sample.weights), owners, 2)
    np.testing.assert_array_equal(_swept(repeated, np.tile(owners, 2), 2), np.tile(heavy, 2))
    assert (heavy != owners).any()


def test_those_nearest_to_going_are_looked_at_first(monkeypatch) -> None:
    sample, now, _ = astray()
    owners = now.resp.argmax(axis=1)
    every = _swept(sample, owners, 2) != owners
    assert 1 < every.sum() < 8
    monkeypatch.setattr(hops, "LOOKED_AT", 8)
    np.testing.assert_array_equal(_swept(sample, owners, 2) != owners, every)


def test_nothing_goes_where_rows_are_where_they_fit_or_are_a_part_of_many() -> None:
    sample, now, owners = astray()
    assert hopped(sample, arranged(sample, owners)) is None
    assert hopped(sample, arranged(sample, 0 * owners)) is None
    alone = arranged(sample, np.where(np.arange(len(owners)) == 0, 2, owners))
    assert hopped(sample, alone) is None, "to be made one with another is a merge's"
    weightless = replace(sample, weights=np.where(now.resp.argmax(axis=1) == owners, sample.weights, 0.0))
    assert hopped(weightless, arranged(weightless, owners)) is None
    assert hopped(replace(sample, share=0.5), now) is None


def test_a_fit_of_few_rows_of_many_columns_ends_higher_for_it(monkeypatch) -> None:
    rows, found = load_breast_cancer().data[:200, :20], []
    for every in (hopped, lambda *_: None):
        monkeypatch.setattr(arrange, "hopped", every)
        found.append(dpdist.DPMixture(dpdist.families.Gaussian(), initial="sva", random_state=0).fit(rows).elbo_)
    assert found[0] > found[1] + 0.01 * len(rows)
