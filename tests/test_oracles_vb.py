"""Batch variational Bayes against numbers of an independent program: no floor, components never re-sorted."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pytest

from dpdist.models.allocations import DirichletProcess
from dpdist.models.allocations.base import counts_after
from dpdist.models.families import Gaussian, Moments
from dpdist.models.mixture import Model, Precision, local_step
from dpdist.models.sufficient_statistics import Summary
from tests.cases import entropy_of
from tests.conftest import shared_path

EXACT = Precision(floor=0.0)
TAGS = ["t0", "t1", "final"]


class Oracle:
    """The numbers of one run, and the model that they belong to."""

    def __init__(self, name: str) -> None:
        with np.load(shared_path("oracles", f"{name}.npz"), allow_pickle=False) as stored:
            self.numbers = {key: stored[key] for key in stored.files}
        self.rows = self["X"]
        prior = (self[f"t0_prior_{key}"] for key in ("m", "kappa", "nu", "B"))
        rows = self.rows
        moments = Moments(len(rows), rows.mean(0), rows.var(0), rows.min(0), rows.max(0), False)
        mean, precision, degrees, scale = prior
        family = Gaussian(mean, float(precision), float(degrees), scale).with_defaults(moments)
        self.model = Model(family, DirichletProcess(float(self["t0_gamma0"])))

    def __getitem__(self, key: str) -> np.ndarray:
        return self.numbers[key]

    @cached_property
    def features(self) -> np.ndarray:
        """Sufficient statistics of the rows."""
        return self.model.family.features(self.rows)

    def summary(self, resp: np.ndarray) -> Summary:
        """The summary of explicit responsibilities."""
        return Summary(resp.T @ self.features, entropy_of(resp))

    def step(self, summary: Summary) -> tuple[np.ndarray, Summary]:
        """One local step under the posterior of a summary."""
        return local_step(self.model.posterior(summary, EXACT), self.features, np.ones(len(self.rows)))


@pytest.fixture(scope="module", params=["vb_asterisk_default", "vb_digits20_covdata"])
def oracle(request) -> Oracle:
    return Oracle(request.param)


def assert_agrees(found: np.ndarray | float, expected: np.ndarray, scale: float | None = None) -> None:
    """Agreement to 1e-10 of the largest entry, or of `scale`."""
    size = np.abs(expected).max() if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * float(size))


@pytest.mark.parametrize("tag", TAGS)
def test_statistics_agree(oracle, tag) -> None:
    d = oracle.rows.shape[1]
    stats = oracle.summary(oracle[f"{tag}_resp"]).stats
    i, j = np.triu_indices(d)
    assert_agrees(stats[:, -1], oracle[f"{tag}_ss_N"])
    assert_agrees(stats[:, -1 - d : -1], oracle[f"{tag}_ss_x"], scale=np.abs(oracle.rows).sum())
    assert_agrees(stats[:, : -1 - d], oracle[f"{tag}_ss_xxT"][:, i, j])


@pytest.mark.parametrize("tag", TAGS)
def test_posteriors_agree(oracle, tag) -> None:
    found = oracle.model.family.describe(oracle.summary(oracle[f"{tag}_resp"]).stats)
    freedom = oracle[f"{tag}_post_nu"] - oracle.rows.shape[1] - 1
    assert_agrees(found["mean"][1], oracle[f"{tag}_post_m"])
    assert_agrees(found["covariance"][1] * freedom[:, None, None], oracle[f"{tag}_post_B"])


@pytest.mark.parametrize("tag", TAGS)
def test_degrees_and_precisions_of_posteriors_agree(oracle, tag) -> None:
    counts, family = oracle.summary(oracle[f"{tag}_resp"]).counts, oracle.model.family
    assert_agrees(family.degrees_of_freedom + counts, oracle[f"{tag}_post_nu"])
    assert_agrees(family.mean_precision + counts, oracle[f"{tag}_post_kappa"])


@pytest.mark.parametrize("tag", TAGS)
def test_sticks_and_expected_log_weights_agree(oracle, tag) -> None:
    counts = oracle.summary(oracle[f"{tag}_resp"]).counts
    _, beyond = counts_after(counts)
    assert_agrees(oracle[f"{tag}_gamma1"] + counts, oracle[f"{tag}_eta1"])
    assert_agrees(oracle[f"{tag}_gamma0"] + beyond, oracle[f"{tag}_eta0"])
    assert_agrees(oracle.model.allocation.log_weights(counts), oracle[f"{tag}_Elogbeta"])


def test_expected_log_likelihoods_agree(oracle) -> None:
    before = oracle.summary(oracle["t0_resp"])
    assert_agrees(oracle.features @ oracle.model.family.coefficients(before.stats), oracle["t1_E_log_lik"])


def test_the_first_local_step_agrees(oracle) -> None:
    resp, summary = oracle.step(oracle.summary(oracle["t0_resp"]))
    assert_agrees(resp, oracle["t1_resp"])
    assert_agrees(summary.entropy, oracle["t1_Hresp"])


@pytest.mark.parametrize("tag", TAGS)
def test_every_term_of_the_elbo_agrees(oracle, tag) -> None:
    summary, model = oracle.summary(oracle[f"{tag}_resp"]), oracle.model
    data = model.family.log_evidence(summary.stats)
    assert_agrees(data, oracle[f"{tag}_Ldata_per_comp"])
    assert_agrees(data.sum(), oracle[f"{tag}_elbo_raw_Ldata"])
    assert_agrees(model.allocation.log_evidence(summary.counts), oracle[f"{tag}_elbo_raw_Lalloc"])
    assert_agrees(summary.entropy, oracle[f"{tag}_Hresp"])
    assert_agrees(summary.entropy.sum(), oracle[f"{tag}_elbo_raw_Lentropy"])
    assert_agrees(model.elbo(summary), oracle[f"{tag}_elbo_raw_total"])


def test_the_elbo_agrees_after_every_iteration(oracle) -> None:
    trace = oracle["elbo_raw_trace"]
    resp, summary = oracle["resp_init"], oracle.summary(oracle["resp_init"])
    found = [oracle.model.elbo(summary)]
    while len(found) < len(trace):
        resp, summary = oracle.step(summary)
        found.append(oracle.model.elbo(summary))
    np.testing.assert_allclose(found, trace, rtol=1e-10)
    assert (np.diff(found) >= -1e-10 * np.abs(trace).max()).all()
    assert_agrees(resp, oracle["final_resp"])


def test_merge_gains_agree(oracle) -> None:
    resp, model = oracle["final_resp"], oracle.model
    before = model.elbo(oracle.summary(resp))
    for p, (a, b) in enumerate(oracle["final_merge_pairs"]):
        merged = resp.copy()
        merged[:, a] += merged[:, b]
        after = oracle.summary(np.delete(merged, b, axis=1))
        own = oracle.summary(resp[:, [a]] + resp[:, [b]])
        terms = model.family.log_evidence(after.stats).sum(), model.allocation.log_evidence(after.counts)
        assert_agrees(own.entropy[0], oracle["final_merge_Hresp"][p], scale=1.0)
        assert_agrees((*terms, after.entropy.sum()), oracle["final_merge_terms_raw_data_alloc_entropy"][p])
        assert_agrees(model.elbo(after) - before, oracle["final_merge_gain_raw"][p], scale=abs(before))


def test_merge_gains_of_each_term_agree(oracle) -> None:
    summary, model = oracle.summary(oracle["final_resp"]), oracle.model
    for p, (a, b) in enumerate(oracle["final_merge_pairs"]):
        pair = summary.stats[a] + summary.stats[b]
        gain = model.family.log_evidence(np.stack([pair, summary.stats[a], summary.stats[b]]))
        assert_agrees(gain[0] - gain[1] - gain[2], oracle["final_merge_hardgap_obs"][p], scale=np.abs(gain).sum())
        counts = summary.counts.copy()
        counts[a] += counts[b]
        before = model.allocation.log_evidence(summary.counts)
        found = model.allocation.log_evidence(np.delete(counts, b)) - before
        assert_agrees(found, oracle["final_merge_hardgap_alloc"][p], scale=abs(before))
