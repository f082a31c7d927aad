"""The laws of likelihood families."""

from __future__ import annotations

import numpy as np
import xarray as xr
import zarr
from scipy import sparse
from scipy import stats as scipy_stats
from zarr.storage import MemoryStore

from dpdist.data.arrays import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.sva import Conjugate, OpeningRule
from dpdist.models.families.base import Family, Rows, dense_rows, is_sparse
from dpdist.storage.descriptions import check_description, write_description
from dpdist.testing.laws import check_gradient, hold
from dpdist.testing.stored import check_stored, same_part


def check_family(family: Family, rows: Rows, seed: int = 0) -> None:
    """Check a family against the laws of families, with some rows that it can model.

    Parameters
    ----------
    family : hyperparameters may be missing
    rows : (n, D), at least 4 rows
    seed : of the random responsibilities and draws
    """
    moments = summarise_source(ArraySource(rows), SerialBackend()).moments()
    filled = family.with_defaults(moments)
    filled.check_moments(moments)
    same_part("defaults do not change given hyperparameters", filled.with_defaults(moments), filled)
    features = filled.features(rows)
    dense = dense_rows(features)
    stats = np.random.default_rng(seed).dirichlet(np.ones(3), size=len(dense)).T @ dense
    _check_features(filled, rows, dense)
    _check_evidence(filled, stats)
    hold(
        "the log predictive is a difference of log evidences",
        filled.log_predictive(features, stats),
        Family.log_predictive(filled, features, stats),
    )
    _check_draws(filled, dense[:4].sum(axis=0, keepdims=True), rows.shape[1], seed)
    _check_components(filled, rows, dense, seed)
    _check_origin(filled, rows)
    _check_axes(filled, rows, seed)
    _check_pass(filled, rows, dense)
    for part in (family, filled):
        check_stored(part)
    _check_description(filled, stats)


def _check_features(family: Family, rows: Rows, dense: np.ndarray) -> None:
    """Statistics of rows (n, F) end in 1 and depend on their own row only, in either precision, dense or sparse."""
    hold("the last statistic of every row is 1", dense[:, -1], 1.0)
    halves = [family.features(rows[half]) for half in (slice(None, 2), slice(2, None))]
    apart = np.concatenate([dense_rows(half) for half in halves])
    hold("statistics of a row do not depend on other rows", apart, dense)
    base = family.log_base_measure(rows)
    assert base.shape == (len(dense),), "the base measure has one entry per row"
    hold("the base measure of a row does not depend on other rows", family.log_base_measure(rows[:2]), base[:2])
    single = family.features(rows, np.float32)
    assert single.dtype == np.float32, "statistics have the requested dtype"
    np.testing.assert_allclose(
        dense_rows(single),
        dense,
        rtol=1e-5,
        atol=1e-30,
        err_msg="float32 statistics are rounded float64 statistics",
    )
    if family.accepts_sparse:
        thin = sparse.csr_array(rows)
        features = family.features(thin)
        assert is_sparse(features), "sparse rows have sparse statistics"
        hold("sparse rows have the same statistics as dense rows", dense_rows(features), dense)
        hold("sparse rows have the same base measure as dense rows", family.log_base_measure(thin), base)


def _check_evidence(family: Family, stats: np.ndarray) -> None:
    coefficients = family.coefficients(stats)
    hold("the evidence of no rows is 0", family.log_evidence(np.zeros_like(stats)), 0.0)
    check_gradient(family.log_evidence, coefficients.T, stats)
    alone = [family.log_evidence(row[None])[0] for row in stats]
    hold("the evidence of a component does not depend on other components", family.log_evidence(stats), alone)
    columns = np.concatenate([family.coefficients(row[None]) for row in stats], axis=1)
    hold("coefficients of a component do not depend on other components", coefficients, columns)


#: Number of draws, and largest error of their mean, in standard errors.
_DRAWS, _ERRORS = 4000, 6.0


def _check_draws(family: Family, stats: np.ndarray, columns: int, seed: int) -> None:
    """Draws from the predictive do not change E[eta] on average: E[eta] is the mean of its value after one more
    draw."""
    drawn = family.sample(stats, np.zeros(_DRAWS, dtype=np.intp), np.random.default_rng(seed))
    assert drawn.shape == (_DRAWS, columns), "draws have as many columns as the rows"
    change = family.coefficients(stats + family.features(drawn)).T - family.coefficients(stats).T
    error = change.std(axis=0) / np.sqrt(_DRAWS) + 1e-9 * (1.0 + np.abs(change).max(axis=0))
    assert (np.abs(change.mean(axis=0)) <= _ERRORS * error).all(), "draws come from the predictive"
    again = family.sample(stats, np.zeros(_DRAWS, dtype=np.intp), np.random.default_rng(seed))
    np.testing.assert_array_equal(again, drawn, "draws depend only on the given generator")
    found = family.log_predictive(family.features(drawn), stats)[:, 0] + family.log_base_measure(drawn)
    ratios = np.exp(_log_other(drawn, family.has_location) - found)
    off = abs(ratios.mean() - 1.0)
    assert off <= _ERRORS * ratios.std() / np.sqrt(_DRAWS) + 1e-9, "the predictive includes all constants: it sums to 1"


def _log_other(drawn: np.ndarray, everywhere: bool) -> np.ndarray:
    """Log density or mass (n,) at draws (n, D) of another distribution, whose support is within that of the family. Its
    ratio to the predictive is 1 on average if the predictive sums to 1.

    Parameters
    ----------
    drawn : draws, from which the other distribution is estimated
    everywhere : whether all real rows are in the family's support
    """
    rows = np.asarray(drawn, dtype=np.float64)
    totals = rows.sum(axis=1)
    if not (rows == np.rint(rows)).all():
        if everywhere:
            narrow = 0.5 * np.atleast_2d(np.cov(rows.T))
            return np.asarray(
                scipy_stats.multivariate_normal(rows.mean(axis=0), narrow, allow_singular=True).logpdf(rows)
            )
        low, high = np.quantile(rows, (0.2, 0.8), axis=0)
        inside = ((rows >= low) & (rows <= high)).all(axis=1)
        return np.where(inside, -np.log(high - low).sum(), -np.inf)
    if totals[0] > 0 and (totals == totals[0]).all():  # conditional on the total
        shares = rows.mean(axis=0) / totals[0]
        return np.asarray(scipy_stats.multinomial(int(totals[0]), shares).logpmf(rows))
    rates = np.maximum(rows.mean(axis=0), 1e-12)
    if rows.max() <= 1.0:
        return np.asarray(scipy_stats.bernoulli(rates).logpmf(rows).sum(axis=1))
    return np.asarray(scipy_stats.poisson(rates).logpmf(rows).sum(axis=1))


def _check_components(family: Family, rows: Rows, dense: np.ndarray, seed: int) -> None:
    """Rows drawn from a component fit it at least as well as another one, on average (Gibbs' inequality)."""
    order = np.argsort(dense_rows(rows).sum(axis=1), kind="stable")
    halves = np.stack([dense[half].sum(axis=0) for half in np.array_split(order, 2)])
    for k in (0, 1):
        drawn = family.sample(halves, np.full(_DRAWS, k, dtype=np.intp), np.random.default_rng(seed))
        fits = family.log_predictive(family.features(drawn), halves)
        lead = fits[:, k] - fits[:, 1 - k]
        law = "draws come from the requested components"
        assert lead.mean() >= -_ERRORS * lead.std() / np.sqrt(_DRAWS) - 1e-9, law


def _check_axes(family: Family, rows: Rows, seed: int) -> None:
    if not family.turns:
        return
    columns = rows.shape[1]
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(columns, columns)))
    turned, moved = family.turned(axes), np.asarray(rows, dtype=np.float64) @ axes
    there, here = turned.features(moved), family.features(rows)
    law = "rotating rows and prior together changes nothing"
    hold(law, turned.log_evidence(there.sum(axis=0)[None]), family.log_evidence(here.sum(axis=0)[None]))


def _check_origin(family: Family, rows: Rows) -> None:
    if not family.has_location:
        return
    origin = np.asarray(rows, dtype=np.float64).mean(axis=0) + 1.0
    moved, features = family.about(origin), family.features(rows)
    about = moved.features(rows - origin)
    here, there = features.sum(axis=0)[None], about.sum(axis=0)[None]
    law = "shifting rows and prior together changes nothing"
    hold(law, moved.log_evidence(there), family.log_evidence(here))
    hold(law, about @ moved.coefficients(there), features @ family.coefficients(here))


def _check_pass(family: Family, rows: Rows, dense: np.ndarray) -> None:
    going = Conjugate(family, rows.shape[1]).begin(np.zeros((0, dense.shape[1])), OpeningRule(), np.float64, None, 0.0)
    going.advance(rows, np.ones(len(dense)))
    total = dense.sum(axis=0)
    gap = np.abs(going.table.sum(axis=0) - total) / (1.0 + np.abs(dense).sum(axis=0))
    hold("a sequential pass assigns every row completely", gap, 0.0)


def _check_description(family: Family, stats: np.ndarray) -> None:
    """Described arrays can be stored, and read without dpdist."""
    found = family.describe(stats)
    check_description(found, stats.shape[1], family)
    assert all(len(values) == len(stats) for _, values in found.values()), "descriptions have one entry per component"
    store = MemoryStore()
    write_description(zarr.create_group(store=store), found)
    read = xr.open_zarr(store, consolidated=False)
    for name, (dims, values) in found.items():
        assert read[name].dims == dims, f"the dimensions of {name} do not change when stored"
        np.testing.assert_array_equal(read[name].values, values, f"the values of {name} do not change when stored")
