"""Conformance suites: the laws that a part must keep, for dpdist's own parts and for users'.

Each check raises AssertionError, naming the law, if the part breaks it; :class:`InputError` if it cannot be stored.

>>> import numpy as np, dpdist
>>> from dpdist.testing import check_family
>>> check_family(dpdist.families.Gaussian(), np.random.default_rng(0).normal(size=(40, 2)))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
import zarr
from scipy import sparse
from scipy import stats as scipy_stats
from zarr.storage import MemoryStore

from dpdist.data.arrays import ArraySource
from dpdist.data.base import Source
from dpdist.execution import Backend, SerialBackend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.moves.accept import Reason, Verdict
from dpdist.inference.moves.base import AnyMove, Following, LapEnd, Proposals
from dpdist.inference.moves.change import MoveVerdict, change_from, judge_moves
from dpdist.inference.sva import Conjugate, OpeningRule
from dpdist.models.allocations import Allocation
from dpdist.models.families.base import Family, Rows, dense_rows, is_sparse
from dpdist.models.mixture import Block, Model, Precision
from dpdist.models.sufficient_statistics import Summary
from dpdist.storage import codec
from dpdist.storage.descriptions import check_description, write_description


def check_family(family: Family, rows: Rows, seed: int = 0) -> None:
    """Hold a likelihood to the laws of families on some rows that it can model.

    Parameters
    ----------
    family : hyperparameters may be missing
    rows : (n, D), at least 4 rows
    seed : of the random responsibilities tried
    """
    moments = summarise_source(ArraySource(rows), SerialBackend()).moments()
    filled = family.with_defaults(moments)
    filled.check_moments(moments)
    _same_part("what is given is left alone by defaults", filled.with_defaults(moments), filled)
    features = filled.features(rows)
    dense = dense_rows(features)
    stats = np.random.default_rng(seed).dirichlet(np.ones(3), size=len(dense)).T @ dense
    _check_features(filled, rows, dense)
    _check_evidence(filled, stats)
    _hold(
        "the predictive is the difference of evidences",
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


def check_allocation(allocation: Allocation, seed: int = 0) -> None:
    """Hold a prior over assignments to the laws of allocations."""
    rng = np.random.default_rng(seed)
    counts = np.sort(rng.gamma(1.0, 30.0, size=4))[::-1]
    _hold("the evidence of no counts is 0", np.asarray(allocation.log_evidence(np.zeros(4))), 0.0)
    _check_gradient(allocation.log_evidence, allocation.log_weights(counts)[None], counts[None])
    found = allocation.merge_gains(counts)
    _hold("merges gain the change of the evidence", found, Allocation.merge_gains(allocation, counts))
    weights, rest = allocation.weights(counts)
    _hold("weights and rest sum to 1", np.asarray(weights.sum() + rest), 1.0)
    assert (weights >= 0).all() and rest >= 0, "weights and rest are no less than 0"
    above = np.log(weights) + 1e-9 - allocation.log_weights(counts)
    assert (above >= 0).all(), "expected log weights lie below the log of expected weights"
    several = np.stack([counts, rng.permutation(counts), 2 * counts])
    alone = [allocation.log_evidence(each) for each in several]
    _hold("the evidence of many counts is that of each", allocation.log_evidence(several), alone)
    alone = [allocation.log_weights(each) for each in several]
    _hold("the log weights of many counts are those of each", allocation.log_weights(several), alone)
    longer = np.asarray(allocation.log_evidence(np.append(counts, 0.0)))
    _hold("a component without rows adds no evidence at the end", longer, allocation.log_evidence(counts))
    check_stored(allocation)
    best = float(allocation.log_evidence(counts))
    if allocation.ordered:
        for _ in range(10):
            other = float(allocation.log_evidence(rng.permutation(counts)))
            assert other <= best + 1e-9 * abs(best), "descending counts have the highest evidence"
    else:
        _hold("the order of counts is of no consequence", allocation.log_evidence(counts[::-1]), best)


def check_stored(part: Any) -> None:
    """Hold a part (family, likelihood, allocation, schedule, move) to coming back from disk as it was.

    Raises
    ------
    InputError
        If it cannot be stored: its class is not at the top of a module, or a field is nothing that can be written.
    """
    group = zarr.create_group(store=MemoryStore())
    codec.write(group, part)
    _same_part("what is read is what was stored", codec.read(group), part)


def check_move(move: AnyMove, model: Model, rows: Rows, responsibilities: np.ndarray, seed: int = 0) -> None:
    """Hold a move to the laws of moves: two laps' ends on one block of rows.

    Parameters
    ----------
    move : proposes something for the components of `responsibilities`
    model : a filled model
    rows : (n, D)
    responsibilities : (n, K)

    Raises
    ------
    InputError
        If the move or its proposals cannot be stored.
    """
    check_stored(move)
    block, summary = _block_of(model, rows, responsibilities, seed)
    owners, places = block.resp.argmax(axis=1), np.arange(len(summary.entropy))
    samples = {k: (rows[owners == k], block.weights[owners == k]) for k in np.unique(owners).tolist()}
    end = LapEnd(model, SerialBackend(), seed, 1, False, places, summary, places, samples)
    found = move.propose(end, move.none(), [], [])
    tried = found.proposals
    assert len(tried), "the move proposes something; give rows on which it does"
    assert not len(found.carried), "nothing goes on from a lap in which nothing was tried"
    check_stored(tried)
    armed = tried.armed(model, block.posterior, _start_of(found, summary))
    measured, cut = armed.measure(block), len(rows) // 2
    parts = [armed.measure(_part_of(block, half)) for half in (slice(0, cut), slice(cut, None))]
    _hold("measurements add over rows", parts[0].stats + parts[1].stats, measured.stats)
    _hold("measured entropies add over rows", parts[0].entropy + parts[1].entropy, measured.entropy)
    for proposal in range(len(tried)):
        _check_replacement(tried, proposal, summary, measured)
    verdicts = judge_moves(model, summary, [tried], [measured])
    _check_gains(model, summary, tried, measured, verdicts)
    change = change_from(model, summary, [tried], [measured], verdicts)
    after = change.apply(summary, [tried], [measured])
    end = replace(end, lap=2, ids=np.arange(len(after.entropy)), summary=after, origins=change.origins, samples={})
    found = move.propose(end, tried, [Verdict(*verdict[1:]) for verdict in verdicts], [])
    assert len(_start_of(found, after).stats) >= len(found.carried), "what goes on has its rows in the next lap"
    assert np.isin(found.carried, np.arange(len(measured.stats))).all(), "what goes on was measured"
    check_stored(found.proposals)


def _block_of(model: Model, rows: Rows, resp: np.ndarray, seed: int) -> tuple[Block, Summary]:
    """Rows of random weights with their responsibilities, the posterior that these make, and their summary."""
    features = model.family.features(rows)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, size=(features.shape[0],))
    entropy = -weights @ (resp * np.log(resp, out=np.zeros_like(resp), where=resp > 0))
    summary = Summary(np.ascontiguousarray((features.T @ (weights[:, None] * resp)).T), entropy)
    return Block(rows, features, weights, resp, model.posterior(summary, Precision())), summary


def _part_of(block: Block, rows: slice) -> Block:
    return Block(block.rows[rows], block.features[rows], block.weights[rows], block.resp[rows], block.posterior)


def _start_of(found: Following, summary: Summary) -> Summary:
    """The measurement with which a lap begins."""
    blank = found.proposals.blank(summary.stats.shape[1])
    start = blank if found.start is None else found.start
    shapes = (start.stats.shape, start.entropy.shape), (blank.stats.shape, blank.entropy.shape)
    assert shapes[0] == shapes[1], "what stands in for unseen rows has the shape of a measurement"
    return start


def _check_replacement(tried: Proposals, proposal: int, summary: Summary, measured: Summary) -> None:
    removed = list(tried.removed(proposal))
    replaced = tried.replacement(proposal, summary, measured)
    _hold("replacements hold the removed rows", replaced.stats.sum(axis=0), summary.stats[removed].sum(axis=0))
    twice = tried.replacement(proposal, summary.scaled(2.0), measured.scaled(2.0))
    _hold("replacements are linear", twice.stats, 2.0 * replaced.stats)
    _hold("entropies of replacements are linear", twice.entropy, 2.0 * replaced.entropy)
    heirs = tried.heirs(proposal, summary, measured)
    assert len(heirs) == len(replaced.entropy), "every replacement has an heir, or -1"
    kept = [heir for heir in heirs if heir >= 0]
    assert len(set(kept)) == len(kept) and set(kept) <= set(removed), "identities pass on once"


def _check_gains(
    model: Model, summary: Summary, tried: Proposals, measured: Summary, verdicts: Sequence[MoveVerdict]
) -> None:
    """The gain of each proposal is the change of the ELBO, from the state in which it was judged."""

    def elbo(taken: Sequence[MoveVerdict]) -> float:
        change = change_from(model, summary, [tried], [measured], taken)
        return model.elbo(change.apply(summary, [tried], [measured]))

    def change_by(verdict: MoveVerdict, before: Sequence[MoveVerdict]) -> float:
        return elbo([*before, verdict._replace(reason=Reason.ACCEPTED)]) - elbo(before)

    tolerance = 1e-8 * (1.0 + abs(model.elbo(summary)))
    taken: list[MoveVerdict] = []
    for verdict in verdicts:
        if verdict.reason is Reason.ROUNDING:
            continue
        # Judged alone is what conflicts, and what does not gain even so; all else with those accepted before it.
        alone = verdict.reason is Reason.CONFLICT or (
            verdict.reason is Reason.NO_GAIN and change_by(verdict, []) <= tolerance
        )
        change = change_by(verdict, [] if alone else taken)
        assert abs(verdict.gain - change) <= tolerance, "a gain is the change of the ELBO"
        if verdict.reason is Reason.ACCEPTED:
            taken.append(verdict)


def check_backend(backend: Backend) -> None:
    """Hold a backend to the meaning of the serial one."""
    serial, values = SerialBackend(), [10.0**k for k in range(-6, 7)] * 2
    results = []
    for each in (serial, backend):
        shared = each.share(np.arange(4.0))
        refs = each.map(_scaled, [shared] * len(values), values)
        labelled = each.share(values, label="the values")
        totals = [each.total(_scaled, [shared] * len(values), values) for _ in range(3)]
        results.append(each.fetch([each.sum(refs), *totals, *refs, each.map(np.asarray, [labelled])[0]]))
    for mine, meant in zip(results[1], results[0], strict=True):
        assert mine.tobytes() == meant.tobytes(), "a backend gives the serial backend's bits"


def check_source(source: Source) -> None:
    """Hold a source to covering its rows once, in order, the same each time it is read."""
    partitions = source.partitions
    assert [p.index for p in partitions] == list(range(len(partitions))), "partitions are numbered in order"
    edges = [p.start for p in partitions] + [partitions[-1].stop]
    assert {type(number) for number in (*source.shape, *edges)} == {int}, "its numbers are Python's, which JSON writes"
    assert edges[0] == 0 and edges[-1] == source.shape[0], "partitions cover the rows"
    assert all(p.stop == q.start for p, q in itertools.pairwise(partitions)), "without gaps"
    for partition in partitions:
        rows, weights = partition.load()
        assert rows.shape == (partition.rows, source.shape[1]), "a partition loads the rows it names"
        assert is_sparse(rows) == source.sparse, "rows are sparse or dense as the source says"
        assert rows.dtype.kind in "biuf", "rows are numbers"
        assert weights is None or weights.shape == (partition.rows,), "weights are one a row"
        assert weights is None or bool((np.isfinite(weights) & (weights >= 0)).all()), "weights are no less than 0"
        again = partition.load()[0]
        np.testing.assert_array_equal(dense_rows(again), dense_rows(rows), "a partition loads the same rows each time")
    assert source.names is None or len(source.names) == source.shape[1], "names are one a column"
    assert source.fingerprint() == source.fingerprint(), "a fingerprint does not change by itself"


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return factor * array


def _hold(law: str, found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8, err_msg=law)


def _check_gradient(function: Callable[[np.ndarray], np.ndarray], gradient: np.ndarray, at: np.ndarray) -> None:
    """Central differences along each column, against what `gradient` (K, F) promises."""
    for column in range(at.shape[1]):
        step = np.zeros_like(at)
        step[:, column] = 1e-5 * max(1.0, float(np.abs(at[:, column]).max()))
        change = (function(at + step) - function(at - step)) / (2 * step[:, column])
        scale = 1e-5 * (1.0 + np.abs(gradient).max())
        np.testing.assert_allclose(
            change, gradient[:, column], rtol=1e-4, atol=scale, err_msg="coefficients are the gradient"
        )


def _check_features(family: Family, rows: Rows, dense: np.ndarray) -> None:
    """Statistics of rows (n, F) end in 1, and are each row's own, in either precision, dense or sparse."""
    _hold("the last statistic of every row is 1", dense[:, -1], 1.0)
    halves = [family.features(rows[half]) for half in (slice(None, 2), slice(2, None))]
    apart = np.concatenate([dense_rows(half) for half in halves])
    _hold("statistics of a row depend on no other row", apart, dense)
    base = family.log_base_measure(rows)
    assert base.shape == (len(dense),), "the base measure has an entry a row"
    _hold("the base measure of a row depends on no other row", family.log_base_measure(rows[:2]), base[:2])
    single = family.features(rows, np.float32)
    assert single.dtype == np.float32, "statistics come in the precision asked for"
    np.testing.assert_allclose(
        dense_rows(single), dense, rtol=1e-5, atol=1e-30, err_msg="float32 statistics are the same rounded"
    )
    if family.accepts_sparse:
        thin = sparse.csr_array(rows)
        features = family.features(thin)
        assert is_sparse(features), "sparse rows have sparse statistics"
        _hold("sparse rows have the statistics of dense ones", dense_rows(features), dense)
        _hold("sparse rows have the base measure of dense ones", family.log_base_measure(thin), base)


def _check_evidence(family: Family, stats: np.ndarray) -> None:
    coefficients = family.coefficients(stats)
    _hold("the evidence of no rows is 0", family.log_evidence(np.zeros_like(stats)), 0.0)
    _check_gradient(family.log_evidence, coefficients.T, stats)
    alone = [family.log_evidence(row[None])[0] for row in stats]
    _hold("the evidence of a component depends on no other", family.log_evidence(stats), alone)
    columns = np.concatenate([family.coefficients(row[None]) for row in stats], axis=1)
    _hold("coefficients of a component depend on no other", coefficients, columns)


#: Draws that are looked at, and standard errors by which their mean may be off.
_DRAWS, _ERRORS = 4000, 6.0


def _check_draws(family: Family, stats: np.ndarray, columns: int, seed: int) -> None:
    """Rows drawn from the predictive teach nothing on average: E[eta] is the mean of what it will be after one more."""
    drawn = family.sample(stats, np.zeros(_DRAWS, dtype=np.intp), np.random.default_rng(seed))
    assert drawn.shape == (_DRAWS, columns), "a draw has the width of the rows"
    change = family.coefficients(stats + family.features(drawn)).T - family.coefficients(stats).T
    error = change.std(axis=0) / np.sqrt(_DRAWS) + 1e-9 * (1.0 + np.abs(change).max(axis=0))
    assert (np.abs(change.mean(axis=0)) <= _ERRORS * error).all(), "draws come from the predictive"
    again = family.sample(stats, np.zeros(_DRAWS, dtype=np.intp), np.random.default_rng(seed))
    np.testing.assert_array_equal(again, drawn, "draws depend on the generator given")
    found = family.log_predictive(family.features(drawn), stats)[:, 0] + family.log_base_measure(drawn)
    ratios = np.exp(_log_other(drawn, family.has_location) - found)
    off = abs(ratios.mean() - 1.0)
    assert off <= _ERRORS * ratios.std() / np.sqrt(_DRAWS) + 1e-9, "the predictive has all its constants: it sums to 1"


def _log_other(drawn: np.ndarray, everywhere: bool) -> np.ndarray:
    """Log density or mass (n,) at draws (n, D) of another law, whose support is within that of theirs: its ratio to
    their own is 1 on average, whatever it is, where their own sums to 1.

    Parameters
    ----------
    drawn : of which the other law is made
    everywhere : whether all real rows are in their support
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
    if rows.shape[1] > 1 and (totals == totals[0]).all():  # conditional on the total
        shares = rows.mean(axis=0) / totals[0]
        return np.asarray(scipy_stats.multinomial(int(totals[0]), shares).logpmf(rows))
    rates = np.maximum(rows.mean(axis=0), 1e-12)
    if rows.max() <= 1.0:
        return np.asarray(scipy_stats.bernoulli(rates).logpmf(rows).sum(axis=1))
    return np.asarray(scipy_stats.poisson(rates).logpmf(rows).sum(axis=1))


def _check_components(family: Family, rows: Rows, dense: np.ndarray, seed: int) -> None:
    """Rows drawn of a component fit it at least as well as another, on average (Gibbs' inequality)."""
    order = np.argsort(dense_rows(rows).sum(axis=1), kind="stable")
    halves = np.stack([dense[half].sum(axis=0) for half in np.array_split(order, 2)])
    for k in (0, 1):
        drawn = family.sample(halves, np.full(_DRAWS, k, dtype=np.intp), np.random.default_rng(seed))
        fits = family.log_predictive(family.features(drawn), halves)
        lead = fits[:, k] - fits[:, 1 - k]
        law = "draws are of the components asked for"
        assert lead.mean() >= -_ERRORS * lead.std() / np.sqrt(_DRAWS) - 1e-9, law


def _check_axes(family: Family, rows: Rows, seed: int) -> None:
    if not family.turns:
        return
    columns = rows.shape[1]
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(columns, columns)))
    turned, moved = family.turned(axes), np.asarray(rows, dtype=np.float64) @ axes
    there, here = turned.features(moved), family.features(rows)
    law = "turning rows and prior together changes nothing"
    _hold(law, turned.log_evidence(there.sum(axis=0)[None]), family.log_evidence(here.sum(axis=0)[None]))


def _check_pass(family: Family, rows: Rows, dense: np.ndarray) -> None:
    going = Conjugate(family, rows.shape[1]).begin(np.zeros((0, dense.shape[1])), OpeningRule(), np.float64, None, 0.0)
    going.advance(rows, np.ones(len(dense)))
    total = dense.sum(axis=0)
    gap = np.abs(going.table.sum(axis=0) - total) / (1.0 + np.abs(dense).sum(axis=0))
    _hold("a sequential pass shares out every row", gap, 0.0)


def _check_description(family: Family, stats: np.ndarray) -> None:
    """What is described can be stored, and read without dpdist."""
    found = family.describe(stats)
    check_description(found, stats.shape[1], family)
    assert all(len(values) == len(stats) for _, values in found.values()), "a component is described at a time"
    store = MemoryStore()
    write_description(zarr.create_group(store=store), found)
    read = xr.open_zarr(store, consolidated=False)
    for name, (dims, values) in found.items():
        assert read[name].dims == dims, f"the dimensions of {name} are read as they were described"
        np.testing.assert_array_equal(read[name].values, values, f"{name} is read as it was described")


def _check_origin(family: Family, rows: Rows) -> None:
    if not family.has_location:
        return
    origin = np.asarray(rows, dtype=np.float64).mean(axis=0) + 1.0
    moved, features = family.about(origin), family.features(rows)
    about = moved.features(rows - origin)
    here, there = features.sum(axis=0)[None], about.sum(axis=0)[None]
    law = "moving rows and prior together changes nothing"
    _hold(law, moved.log_evidence(there), family.log_evidence(here))
    _hold(law, about @ moved.coefficients(there), features @ family.coefficients(here))


def _same_part(law: str, found: Any, expected: Any) -> None:
    assert type(found) is type(expected), law
    for field in fields(expected):
        if field.init:
            _same_value(f"{law}: {field.name}", getattr(found, field.name), getattr(expected, field.name))


def _same_value(law: str, found: Any, expected: Any) -> None:
    """Parts, arrays and lists are compared by what they hold; numbers by value, NumPy's or Python's."""
    if is_dataclass(expected):
        _same_part(law, found, expected)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected), law
        for each, other in zip(found, expected, strict=True):
            _same_value(law, each, other)
    elif isinstance(expected, dict):
        assert isinstance(found, dict), law
        _same_value(law, [*found, *found.values()], [*expected, *expected.values()])
    else:
        np.testing.assert_array_equal(found, expected, law, strict=isinstance(expected, np.ndarray))
