"""From data and settings to a sequential pass under way: data summary, priors, rounds, held-out scores, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from dpdist.core.errors import InputError
from dpdist.data.base import Source
from dpdist.execution.base import Backend
from dpdist.inference.data_summary import summarise_source
from dpdist.inference.mixture.problem import Problem
from dpdist.inference.prediction import predictor_of
from dpdist.inference.starts import no_concentration
from dpdist.inference.sva.base import Learner, OpeningRule
from dpdist.inference.sva.conjugate import Conjugate
from dpdist.inference.sva.nonconjugate import NonConjugate
from dpdist.inference.sva.opening import SVAState
from dpdist.inference.sva.prune_merge import EvidenceTest, PruneMerge
from dpdist.inference.sva.sequence import (
    Rounds,
    SequentialInfo,
    SequentialProblem,
    SequentialState,
    first_sequential_state,
    sequential_steps,
)
from dpdist.inference.transform import Preparation, TransformPlan
from dpdist.models.allocations import DirichletProcess, FiniteDirichlet
from dpdist.models.families.base import Family
from dpdist.models.likelihoods import Likelihood
from dpdist.models.mixture import dtype_of
from dpdist.runs.cadence import CHECKPOINT_SECONDS, Cadence
from dpdist.runs.fitting import fitted_transform, prepared_family
from dpdist.runs.run import writing
from dpdist.runs.specs.sva import SVASpec
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.descriptions import check_description
from dpdist.storage.history import History, RoundRow, rows_scored, seconds_passed

FINISHED = "finished: all rows were passed"


def begin_pass(
    spec: SVASpec, source: Source, backend: Backend, *, stream: bool = False
) -> tuple[SequentialProblem, SequentialState]:
    """Summarise the data in one pass and fix everything; the problem, and the state before the first round.

    Parameters
    ----------
    stream : whether more rows will come, so that their number is not known

    Raises
    ------
    InputError
        If the data or a setting are not what was asked for, or the family has no pass.
    """
    tidy = spec.tidy
    learner, preparation = _learner_for(spec, tidy, source, backend, stream)
    problem = SequentialProblem(
        learner=learner,
        preparation=preparation,
        rule=spec.rule,
        tidy=tidy,
        rounds=replace(spec.rounds, parallel=spec.parallel and isinstance(spec.family, Family)),
        dtype=dtype_of(spec.compute_dtype),
        seed=spec.random_state,
    )
    return problem, first_sequential_state(problem)


def _learner_for(
    spec: SVASpec, tidy: PruneMerge, source: Source, backend: Backend, stream: bool
) -> tuple[Learner, Preparation]:
    if isinstance(spec.family, Family):
        family, preparation = prepared_family(spec.family, spec.row_transform, source, backend)
        return Conjugate(family, preparation.width), preparation
    if isinstance(tidy.merge, EvidenceTest):
        raise InputError(
            f"{type(spec.family).__name__} has no conjugate prior, so there is no evidence to merge by; choose "
            "merge='distance', or None."
        )
    likelihood, preparation = _prepared_likelihood(spec.family, spec.row_transform, source, backend)
    rows = None if stream else float(source.shape[0])
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


def prepared_extension(base: Problem, fitted: Fitted, rounds: Rounds) -> tuple[SequentialProblem, SequentialState]:
    """A pass that goes on from a model fitted otherwise, and its state before the first new row.

    The concentration is the model's, where it was learned its posterior mean; ids and coordinates are kept.
    """
    width, near = base.preparation.width, base.model.allocation.plug_in(fitted.total.counts)
    if not isinstance(near, DirichletProcess | FiniteDirichlet):
        raise InputError(no_concentration(near))
    problem = SequentialProblem(
        learner=Conjugate(base.model.family, width),
        preparation=base.preparation,
        rule=OpeningRule(near.concentration, max_components=near.max_components),
        tidy=PruneMerge(1e-5, EvidenceTest()),
        rounds=rounds,
        dtype=base.precision.dtype,
        seed=base.seed,
    )
    rows, seen = round(fitted.rows), float(fitted.total.counts.sum())
    look = max(PruneMerge.first, int((1 + PruneMerge.growth) * rows))
    growth = SVAState(fitted.total.stats, fitted.ids, rows, seen, look, 0.0, np.zeros((0, 0)))
    return problem, SequentialState(growth, 0, int(fitted.ids.max()) + 1)


def resumed_pass(
    store: RunStore,
    source: Source,
    backend: Backend,
    holdout: Source | None = None,
) -> PassFit:
    """The pass in `store`, to go on from its checkpoint.

    Raises
    ------
    CheckpointError
        If the data are not those it began with, it is a saved model, or another coordinator holds it.
    """
    store.lock()
    source = store.same_data(source)
    return PassFit(store.problem(), source, backend, passed_state(store), holdout, store.history(), store)


def passed_state(store: RunStore) -> SequentialState:
    """The state that a pass goes on from."""
    fitted = store.fitted()
    assert fitted is not None, "a pass is stored with its components"
    state: SequentialState = fitted.total
    return state


def fitted_by_pass(state: SequentialState, finished: bool) -> Fitted:
    """A pass as a model is stored; a pass has no bound."""
    growth = state.growth
    return Fitted(growth.ids, state, math.nan, growth.rows, FINISHED if finished else None)


def is_finished(store: RunStore) -> bool:
    """Whether a pass reached the end of its rows."""
    fitted = store.fitted()
    return fitted is not None and fitted.stop is not None


def check_new_rows(problem: SequentialProblem, source: Source, backend: Backend, asker: str = "SVA") -> None:
    """Raise :class:`InputError` unless rows are such as the model was made from; `asker` is named in the message."""
    problem.preparation.check_source(source, asker)
    if source.sparse and not problem.learner.accepts_sparse:
        raise InputError(f"{source.label} is sparse, which this likelihood does not accept; pass x.toarray().")
    data_summary = summarise_source(source, backend, products=problem.preparation.transform.matrix is not None)
    problem.learner.check_moments(problem.preparation.transform.moments(data_summary))


@dataclass
class PassFit:
    """A pass under way: iterate over it for its rounds; interrupt it at any time.

    There is a checkpoint before the first round, one at the end, and between these as
    :class:`dpdist.runs.cadence.Cadence` says.

    Parameters
    ----------
    problem, source, backend, state : as :func:`begin_pass` gives them, or a checkpoint
    holdout : rows, as stored, whose score is followed; None for none
    history : rounds so far
    store : where to checkpoint, or None
    checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every round
    """

    problem: SequentialProblem
    source: Source
    backend: Backend
    state: SequentialState
    holdout: Source | None = None
    history: History[RoundRow] = field(default_factory=lambda: History(RoundRow))
    store: RunStore | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    _saved: SequentialState | None = field(default=None, init=False)
    _cadence: Cadence = field(default_factory=Cadence, init=False)

    def __iter__(self) -> Iterator[tuple[SequentialState, SequentialInfo]]:
        """Yield after each round; an interruption such as Ctrl-C leaves a checkpoint of the last one.

        Raises
        ------
        CheckpointError
            If a checkpoint could not be written, or another coordinator holds the model.
        """
        with writing(self):
            yield from self._rounds()

    def _rounds(self) -> Iterator[tuple[SequentialState, SequentialInfo]]:
        score = None if self.holdout is None else self._score
        partitions = self.source.partitions
        history = self.history
        steps = sequential_steps(
            self.problem, partitions, self.state, self.backend, score, seconds_passed(history), rows_scored(history)
        )
        for state, info in steps:
            self.state = state
            self.history.add(RoundRow.of(info))
            last = info.round == info.of
            if last or self._cadence.due(self.checkpoint_seconds):
                self.save(finished=last)
            yield state, info

    def save(self, finished: bool = False) -> None:
        """Write a checkpoint of the present moment, if there is a store."""
        if self.store is not None and self._saved is not self.state:
            self._cadence.begin()
            with self._cadence.timed():
                self.store.commit(self.problem, fitted_by_pass(self.state, finished), self.history)
            self._saved = self.state

    def close(self) -> None:
        """Let others write to the model."""
        if self.store is not None:
            self.store.release()

    def _score(self, growth: SVAState) -> float:
        assert self.holdout is not None, "scores are asked for only with held-out rows"
        predictor = predictor_of(self.problem, growth)
        densities = [predictor.log_density(partition) for partition in self.holdout.partitions]
        return float(np.concatenate(densities).mean())
