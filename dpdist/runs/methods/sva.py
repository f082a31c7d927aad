"""Sequential variational approximation (SVA): preparation by a data summary, held-out scores, and extensions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.base import Source, total_weight
from dpdist.execution.base import Backend
from dpdist.inference.empirical import empirical_family
from dpdist.inference.loop import Step
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.state import State
from dpdist.inference.sva.base import Learner, SVAState
from dpdist.inference.sva.conjugate import Conjugate
from dpdist.inference.sva.nonconjugate import NonConjugate
from dpdist.inference.sva.prediction import SVAPredictor, predictor_of
from dpdist.inference.sva.sequence import SVAProblem, first_pass_state, sva_steps
from dpdist.inference.transform import Preparation, TransformPlan
from dpdist.models.families.base import Family
from dpdist.models.likelihoods import Likelihood
from dpdist.models.mixture import dtype_of
from dpdist.models.sufficient_statistics import Summary
from dpdist.runs.methods.mixture import fitted_transform, prepared_family
from dpdist.runs.methods.rows import HELD_OUT, RowMethod, check_new_rows
from dpdist.runs.specs.sva import SVASpec
from dpdist.storage.checkpoint import Fitted
from dpdist.storage.descriptions import check_description


def begin_pass(spec: SVASpec, source: Source, backend: Backend, *, stream: bool = False) -> tuple[SVAProblem, State]:
    """Summarise the data in one pass; return the problem and the state before the first round.

    Parameters
    ----------
    stream : whether more rows will follow, so that their number is unknown

    Raises
    ------
    InputError
        If the data or a setting is invalid, or the family does not support sequential passes.
    """
    pruning = spec.pruning
    learner, preparation = _learner_for(spec, source, backend, stream)
    problem = SVAProblem(
        learner=learner,
        preparation=preparation,
        rule=spec.rule,
        pruning=pruning,
        rounds=replace(spec.rounds, parallel=spec.parallel and learner.additive),
        dtype=dtype_of(spec.compute_dtype),
        seed=spec.random_state,
    )
    return problem, first_pass_state(problem)


def _learner_for(spec: SVASpec, source: Source, backend: Backend, stream: bool) -> tuple[Learner, Preparation]:
    if isinstance(spec.family, Family):
        family, preparation = prepared_family(
            spec.family, spec.row_transform, source, backend, dtype_of(spec.compute_dtype)
        )
        family = empirical_family(spec.family, family, preparation, source, backend, spec.random_state)
        return Conjugate(family, preparation.width), preparation
    likelihood, preparation = _prepared_likelihood(spec.family, spec.row_transform, source, backend)
    rows = None if stream else total_weight(source)
    seed = spec.random_state
    return NonConjugate(likelihood, preparation.width, seed, spec.forgetting, rows, spec.own_clock), preparation


def _prepared_likelihood(
    likelihood: Likelihood, plan: TransformPlan, source: Source, backend: Backend
) -> tuple[Likelihood, Preparation]:
    if source.sparse:
        raise InputError(f"{type(likelihood).__name__} needs dense rows; pass x.toarray().")
    transform, moments = fitted_transform(plan, source, backend)
    likelihood = likelihood.with_defaults(moments)
    likelihood.check_moments(moments)
    typical = likelihood.prior_draws(np.random.default_rng(0), 1, moments.dimension)
    check_description(likelihood.describe(typical), likelihood.size(moments.dimension) + 1, likelihood)
    return likelihood, Preparation(transform, None, source.shape[1], source.names)


@dataclass(frozen=True, eq=False)
class SequentialPass(RowMethod[SVASpec, SVAProblem, SVAState, SVAPredictor]):
    """Sequential variational approximation (SVA), one pass over the rows, whose laps are rounds; parameters as in the
    base."""

    command = "sva"
    lap = "round"
    ended = "all rows were passed"
    endless = False
    wider = ""  # rounds have no batches

    def begin(self, spec: SVASpec, source: Source, backend: Backend) -> tuple[SVAProblem, State]:
        problem, state = begin_pass(spec, source, backend)
        if self.holdout is not None:
            check_new_rows(problem.preparation, problem.learner, self.holdout, backend, HELD_OUT)
        return problem, state

    def steps(
        self, problem: SVAProblem, source: Source, state: State, backend: Backend, path: str | None
    ) -> Iterator[Step]:
        def score(running: SVAState) -> float:
            return self.score(problem, running, running.ids, backend)

        return sva_steps(problem, source, state, backend, None if self.holdout is None else score)

    def predictor(self, problem: SVAProblem, total: SVAState, ids: np.ndarray) -> SVAPredictor:
        return predictor_of(problem, total)

    def outcome(self, fitted: Fitted[SVAState]) -> str:
        count = len(fitted.ids)
        return f"{count} {self.parts_of(count)} of {fitted.rows} rows; {fitted.stop}."

    def values(self, problem: SVAProblem, fitted: Fitted[SVAState], predictor: SVAPredictor) -> dict[str, object]:
        return {"pruned_weight": fitted.total.pruned, "counts": fitted.total.weights.tolist()}

    def batch_rows(self, problem: SVAProblem, source: Source) -> list[int]:
        rounds = problem.rounds.of(source.partitions, problem.seed)
        return [sum(part.rows for part in parts) for parts in rounds]

    def useful_workers(self, problem: SVAProblem, partitions: int) -> int:
        return max(problem.rounds.sizes(partitions))


def passed(running: SVAState, stop: str | None) -> Fitted[SVAState]:
    """A sequential pass as a fitted model, whose ELBO is NaN."""
    return Fitted(running.ids, running, math.nan, running.rows, running.rows, running.next_id, stop)


def prepared_extension(base: Problem, fitted: Fitted[Summary], spec: SVASpec) -> tuple[SVAProblem, SVAState]:
    """A sequential pass that continues a model of another method; the problem, and the state before the first new row.

    Ids and coordinates are those of the model; `spec` configures the pass and must have the model's likelihood.
    """
    if base.model.background is not None:
        raise InputError(
            "a sequential pass cannot extend a model with a background: it would open clusters for the rows of the "
            "background. Fit all rows again instead."
        )
    problem = SVAProblem(
        learner=Conjugate(base.model.family, base.preparation.width),
        preparation=base.preparation,
        rule=spec.rule,
        pruning=spec.pruning,
        rounds=spec.rounds,
        dtype=base.precision.dtype,
        seed=base.seed,
    )
    rows, seen = round(fitted.rows), float(fitted.total.counts.sum())
    running = SVAState(
        table=fitted.total.stats,
        ids=fitted.ids,
        rows=rows,
        seen=seen,
        next_check=max(spec.pruning.first_check, spec.pruning.next_check(rows, len(fitted.ids))),
        pruned=0.0,
        exposed=np.full(len(fitted.ids), seen),
        looked=seen,
        overlap=np.zeros((0, 0)),
        next_id=fitted.next_id,
    )
    return problem, running
