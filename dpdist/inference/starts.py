"""Initial models: statistics from which the posterior of the first lap is computed. A single component needs none."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source, total_weight
from dpdist.execution.base import Backend
from dpdist.inference.blocks import blocks, weighing_rows
from dpdist.inference.drawing import draw_rows
from dpdist.inference.empirical import suggested
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.moves.seeding import nearest_seeds
from dpdist.inference.prediction import Predictor
from dpdist.inference.sample import Sample
from dpdist.inference.sva import Conjugate, EvidenceTest, PruneMerge
from dpdist.inference.sva.base import SVAState, rule_of
from dpdist.inference.sva.combine import pass_over
from dpdist.inference.sva.prediction import predictor_of
from dpdist.inference.sva.prune_merge import empty_state, prune_and_merge
from dpdist.inference.sva.sequence import BLOCK_ROWS, Rounds, SVAProblem, first_pass_state, sva_steps
from dpdist.models.families.base import Rows
from dpdist.models.mixture import share_out, weighted_product
from dpdist.models.sufficient_statistics import Summary

#: Rows drawn for k-means++ per seed, and the smallest number of rows drawn.
SAMPLE_PER_SEED, SMALLEST_SAMPLE = 100, 10_000
#: Components of a sequential start with a smaller share of the rows are dropped.
PRUNE = 1e-4
#: Responsibility above which a row opens a component, for families that learn covariances: their components overlap,
#: and a lower threshold opens hundreds that are then merged.
LIKELY = 0.5


def kmeans_start(problem: Problem, source: Source, backend: Backend, components: int) -> Summary:
    """`components` clusters seeded by k-means++ on a sample of rows, scaled to the whole data; raises
    :class:`InputError` if the sample holds fewer distinct rows than components."""
    wanted = max(SAMPLE_PER_SEED * components, SMALLEST_SAMPLE)
    drawn = draw_rows(problem.preparation, problem.seed, source, backend, wanted)
    points = problem.model.family.points(drawn.rows)
    owners = _seeded(drawn, points, components, generator(problem.seed, "k-means++"))
    with one_thread():
        sampled = _sum_hard(problem, drawn.rows, owners, drawn.weights, components)
    return sampled.scaled(total_weight(source) / float(drawn.weights.sum()))


def sequential_start(problem: Problem, source: Source, backend: Backend, rows: int | None) -> Summary:
    """The clusters of a sequential pass over a sample of about `rows` rows, or over all rows, scaled to the data.

    The pass creates clusters. After a pass over a sample, the sampled rows are assigned to them by a local step and
    summed. After a pass over all rows, the clusters' own statistics are used if they are of the same family; otherwise
    a local step over all rows follows. Families that learn covariances pass with the prior that clusters of the sample
    suggest (:mod:`dpdist.inference.empirical`): with their default prior the first cluster would cover all rows before
    a second opens.

    Raises
    ------
    InputError
        If the allocation has no concentration that a pass can use.
    """
    wanted, drawn = SMALLEST_SAMPLE if rows is None else rows, None
    if rows is not None or problem.model.family.spreads:
        drawn = draw_rows(problem.preparation, problem.seed, source, backend, wanted)
    posed = _posed_pass(problem, drawn)
    if rows is not None and drawn is not None:
        passed = _pass_over_sample(posed, drawn)
        with one_thread():
            sampled = _sums_under(problem, predictor_of(posed, passed), drawn.rows, drawn.rows, drawn.weights)
        return sampled.scaled(total_weight(source) / float(drawn.weights.sum()))
    *_, last = sva_steps(posed, source, first_pass_state(posed), backend)
    return model_start(problem, source, backend, predictor_of(posed, last.state.running))


def model_start(problem: Problem, source: Source, backend: Backend, model: Predictor) -> Summary:
    """Statistics of the non-empty components of a fitted model, of any family and transform.

    If the model has the same family and the same preparation, its own statistics are used, scaled to the weight of all
    rows; otherwise a local step under the model over all rows gives them.
    """
    if type(model.family) is type(problem.model.family) and problem.preparation.matches(model.preparation):
        kept = model.mixture()[1]
        return kept.scaled(total_weight(source) / model.rows).take(np.flatnonzero(kept.counts))
    shared, partitions = backend.share((problem, model)), backend.share_each(source.partitions)
    found = backend.gathered("rows shared out", _sums_under_on_partition, partitions, [shared] * len(partitions))
    return found.take(np.flatnonzero(found.counts))


def _posed_pass(problem: Problem, drawn: Sample | None) -> SVAProblem:
    """The pass of a sequential start, with the prior's concentration; a learned one has its mean after one row.

    `drawn` is needed for families that learn covariances only.
    """
    family, rule = problem.model.family, rule_of(problem.model.allocation, np.ones(1))
    if family.spreads and drawn is not None:
        with one_thread():
            family = suggested(family, list(family.hyperparameters()), drawn.rows, drawn.weights, problem.seed)
        rule = replace(rule, threshold=LIKELY)
    return SVAProblem(
        learner=Conjugate(family, problem.preparation.width),
        preparation=problem.preparation,
        rule=rule,
        pruning=PruneMerge(PRUNE, EvidenceTest()),
        rounds=Rounds(),
        dtype=problem.precision.dtype,
        seed=problem.seed,
    )


def _pass_over_sample(posed: SVAProblem, drawn: Sample) -> SVAState:
    """Pass over prepared rows in the order of their random keys."""
    order = np.argsort(drawn.keys, kind="stable")
    parts = np.split(order, range(BLOCK_ROWS, len(order), BLOCK_ROWS))
    blocks = [(drawn.rows[part], drawn.weights[part]) for part in parts]
    with one_thread():
        passed = empty_state(posed.learner.width, posed.pruning)
        passed = pass_over(blocks, passed, posed.learner, posed.rule, posed.pruning, posed.dtype)
        return prune_and_merge(passed, posed.learner, posed.rule, posed.pruning)


def _sums_under(problem: Problem, model: Predictor, rows: Rows, own: Rows, weights: np.ndarray) -> Summary:
    """Statistics of prepared rows with a model's responsibilities; `own` holds these rows as that model takes them."""
    family, log_volume, score = problem.model.family, problem.preparation.transform.log_volume, model.scorer()

    def summed(part: slice) -> Summary:
        block, own_weights = rows[part], weights[part]
        shares, entropy = share_out(score(own[part]), own_weights, 0.0)
        stats = weighted_product(shares, own_weights, family.features(block))
        return Summary(stats, entropy, float(own_weights @ (family.log_base_measure(block) + log_volume)))

    return _added(summed, blocks(len(weights), family.features(rows[:1]).shape[1]))


def _added(summed: Callable[[slice], Summary], parts: Iterable[slice]) -> Summary:
    """The sum of the summaries of parts of the rows; a few summaries, of K x F numbers, are held at a time."""
    return functools.reduce(operator.add, map(summed, parts))


def _sums_under_on_partition(partition: Partition, shared: tuple[Problem, Predictor]) -> Summary:
    problem, model = shared
    rows, weights, places = weighing_rows(partition)
    own = np.ones(rows.shape[0]) if weights is None else weights

    def summed(part: slice) -> Summary:
        both = problem.preparation.apply(rows[part]), model.prepared(rows[part], partition.start + places[part])
        return _sums_under(problem, model, *both, own[part])

    with one_thread():
        return _added(summed, (slice(n, n + BLOCK_ROWS) for n in range(0, max(1, len(own)), BLOCK_ROWS)))


def responsibility_start(problem: Problem, source: Source, backend: Backend, responsibilities: np.ndarray) -> Summary:
    """Statistics from given responsibilities (N, K), or from labels (N,) between 0 and K - 1; raises
    :class:`InputError` if there is not one entry per row, or if responsibilities of a row do not sum to 1."""
    given, rows = np.asarray(responsibilities), source.shape[0]
    if given.ndim not in (1, 2) or given.shape[0] != rows:
        raise InputError(
            f"initial should be {rows} labels or a ({rows}, K) array of responsibilities; got shape {given.shape}."
        )
    components = _component_count(given)
    partitions = source.partitions
    parts = [given[p.start : p.stop] for p in partitions]
    shared = [backend.share((problem, components))] * len(partitions)
    return backend.gathered("responsibilities", _sum_given, backend.share_each(partitions), parts, shared)


def _seeded(drawn: Sample, points: Rows, components: int, rng: np.random.Generator) -> np.ndarray:
    """Index of the nearest of `components` k-means++ seeds for each row of a sample, (m,)."""
    owners = nearest_seeds(points, drawn.weights, components, rng)
    if owners is None:
        raise InputError(
            f"a k-means++ start needs at least {components} distinct rows; a sample of {len(drawn.keys)} rows had "
            "fewer. Start from fewer components, or from one."
        )
    return owners


def _component_count(given: np.ndarray) -> int:
    if given.ndim == 1:
        if given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= len(given):
            raise InputError(
                "labels in initial should be whole numbers from 0 to the number of rows minus 1; got values from "
                f"{given.min()} to {given.max()}. Recode them with numpy.unique."
            )
        return int(given.max()) + 1
    if not np.isfinite(given).all() or given.min() < 0 or np.abs(given.sum(axis=1) - 1).max() > 1e-6:
        raise InputError(
            "responsibilities in initial should be zero or more and sum to 1 in every row; got other values."
        )
    return int(given.shape[1])


def _sum_hard(problem: Problem, rows: Rows, owners: np.ndarray, weights: np.ndarray, components: int) -> Summary:
    each = np.arange(components)
    return _sum_soft(problem, rows, lambda part: np.equal.outer(owners[part], each).astype(np.float64), weights)


def _sum_soft(problem: Problem, rows: Rows, shares_of: Callable[[slice], np.ndarray], weights: np.ndarray) -> Summary:
    """Statistics of rows whose responsibilities (n, K) are made block by block."""
    family, log_volume = problem.model.family, problem.preparation.transform.log_volume

    def summed(part: slice) -> Summary:
        own, shares, features = weights[part], shares_of(part), family.features(rows[part])
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        stats = np.ascontiguousarray((features.T @ (own[:, None] * shares)).T)
        base = float(own @ (family.log_base_measure(rows[part]) + log_volume))
        return Summary(stats, -own @ (shares * logs), base)

    return _added(summed, blocks(len(weights), family.features(rows[:1]).shape[1]))


def _sum_given(partition: Partition, given: np.ndarray, shared: tuple[Problem, int]) -> Summary:
    problem, components = shared
    rows, weights = partition.load()
    own = np.ones(rows.shape[0]) if weights is None else weights
    kept = np.flatnonzero(own)
    rows, own, given = rows[kept], own[kept], given[kept]
    with one_thread():
        prepared = problem.preparation.apply(rows)
        if given.ndim == 1:
            return _sum_hard(problem, prepared, given, own, components)
        return _sum_soft(problem, prepared, lambda part: given[part].astype(np.float64), own)
