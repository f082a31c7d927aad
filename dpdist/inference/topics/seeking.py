"""How many new topics are sought, and in place of which.

As long as far more are sought than there are, births replace all topics: by topics found like the first ones, and if
these are refused, by topics of fewer groups of words. Few topics that are better than any found afresh may still
contain some that join several; so at last a quarter of them is replaced, as it always is where there are many.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import sparse

from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.inference.topics.births import Seeds, seek_topics
from dpdist.inference.topics.first import seek_first
from dpdist.inference.topics.problem import PosteriorProblem, TopicPlan
from dpdist.inference.topics.summary import TopicSummary
from dpdist.inference.topics.trials import TopicTrials
from dpdist.models.families.base import Rows

#: New topics searched for when there are many already.
_SOUGHT = 50


def may_seek(plan: TopicPlan, trials: TopicTrials, topics: int) -> bool:
    """Whether births may be tried with so many topics: once more if these are few, when one in four is replaced."""
    tries = plan.tries + (plan.tries > 0 and _few(plan, topics))
    return plan.birth and trials.births_refused < tries


def _few(plan: TopicPlan, topics: int) -> bool:
    """Whether births begin with replacing all of so many topics, because far more are sought."""
    return 4 * topics <= _sought(plan, topics)


def _sought(plan: TopicPlan, topics: int) -> int:
    """Number of new topics searched for beside so many topics."""
    return max(plan.births - topics, min(plan.births, _SOUGHT))


def seek_new(problem: PosteriorProblem, total: TopicSummary, sample: Rows, refused: int, lap: int) -> Seeds:
    """New topics from a sample of documents, after so many births were refused in a row."""
    plan, topics = problem.plan, len(total.entropy)
    rng = generator(problem.seed, "seek topics", lap)
    few, sought = _few(plan, topics), _sought(plan, topics)
    with one_thread():
        if not few or refused >= plan.tries:
            wanted = max(topics, 4) if few else max(1, sought >> refused)
            replaced = max(1, wanted // 4)
            return seek_topics(problem.model, total, sample, total.totals, wanted, plan.iterations, rng, replaced)[0]
        order, seed = rng.permutation(sample.shape[0]), int(rng.integers(2**31))
        shuffled = sparse.csr_array(sample[order], dtype=np.float64)
        again = refused > 0  # keep groups of words as they are; iterations blur them
        iterations = 1 if again else plan.iterations
        found, _ = seek_first(problem.model, shuffled, total.totals, sought, iterations, seed, fewer=again)
        return replace(found, replaced=np.arange(topics, dtype=np.int64))


def wanted_documents(plan: TopicPlan, trials: TopicTrials, topics: int) -> int:
    """Number of documents to draw in a lap of so many topics, if new ones are searched for at its end."""
    return plan.sample if may_seek(plan, trials, topics) else 0
