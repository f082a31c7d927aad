"""The estimator of topic models: a corpus of documents over topics whose number is learned."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

from scipy import sparse

from dpdist.core.settings import documented_by
from dpdist.data import as_source
from dpdist.estimators.fitted import RandomState
from dpdist.estimators.manner import Manner
from dpdist.estimators.topic_base import TopicEstimator
from dpdist.execution import Backend
from dpdist.inference.schedules import Schedule
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.prediction import all_documents
from dpdist.inference.topics.problem import GlobalWeights, OnlinePlan, PointProblem, TopicPlan
from dpdist.runs.methods.topics import as_online, begin_partial, check_corpus, continue_online
from dpdist.runs.specs import TopicSpec
from dpdist.storage.history import History


@documented_by(TopicSpec, Manner)
@dataclass(eq=False, repr=False)
class HDPTopicModel(TopicEstimator):
    """Hierarchical Dirichlet process topic model, whose number of topics is learned, by memoized or online inference.

    Documents share topics, each in proportions of its own. New topics are looked for in documents that are
    poorly explained, redundant topics are merged and superfluous ones deleted, each only if the bound on the evidence
    of the whole corpus rises. Online inference (oHDP-SM) splits and merges topics on the bound of each
    mini-batch; it passes over corpora too large to be visited often, or takes documents as they come (`partial_fit`).

    Weights, schedule and moves are three choices. Posterior weights under Memoized or Batch, with births, merges and
    deletes, are memoized inference of Hughes, Kim & Sudderth; ``Memoized(batches=1)`` is batch variational Bayes. A
    point estimate under Stochastic with splits and merges is oHDP-SM of Bryant & Sudderth, to which deletes are added;
    with none, ``OnlinePlan(split=False, merge=False, delete=False)``, their oHDP; under Batch it is their bHDP, whose
    updates never lower the bound. Other combinations are refused.

    Attributes
    ----------
    n_topics_ : int
        Number of topics, K, in the order that the bound prefers, larger ones mostly first. Online, in the order found,
        and some may hold hardly a token.
    elbo_ : float
        Lower bound on the evidence of the whole corpus as sequences of tokens, in nats, every constant included;
        comparable across numbers of topics. Online: of the last mini-batch scaled to the corpus, under the topics
        before it, and no bound on the evidence of the whole. Of a point estimate
        under Batch: with its density, which is not comparable across numbers of topics.
    components_ : (K, W)
        Expected probability of each word in each topic; rows sum to 1.
    concentration_, document_concentration_, pseudocount_ : float
        As given, or as learned.
    topic_weights_ : (K,)
        Expected global weights; ``rest_weight_`` is left to topics not in use.
    topic_ids_ : (K,) int64
        Stable identities, kept through reordering, resuming and saving.
    topic_sizes_ : (K,)
        Expected tokens of each topic in the corpus; after `partial_fit` as its last mini-batches, scaled up, suggest.
    history_ : xarray.Dataset
        ELBO, K and seconds by lap, or by mini-batch of `partial_fit`; every proposal, its gain and what became of it.
    converged_ : bool
    stop_reason_ : str
    n_iter_ : int
        Laps made, and mini-batches of `partial_fit`.
    n_features_in_ : int
        W, size of the vocabulary.
    feature_names_in_ : (W,) array of str
        The word of each column, only where it is known: of a corpus that has them, or a data frame's names. Documents
        with other words are refused; those of which no words are known are taken as they are.
    vocabulary_ : list of str or None
        The same, None where it is not known; kept through saving.

    References
    ----------
    M. Bryant and E. Sudderth (2012), "Truly nonparametric online variational inference for hierarchical Dirichlet
    processes", NeurIPS. M. Hughes, D. Kim and E. Sudderth (2015), "Reliable and scalable variational inference for
    the hierarchical Dirichlet process", AISTATS.

    Examples
    --------
    >>> import numpy as np, dpdist
    >>> words, rng = np.kron(np.eye(3), np.full(4, 0.25)), np.random.default_rng(0)
    >>> x = np.array([rng.multinomial(60, share @ words) for share in rng.dirichlet(np.ones(3), size=300)])
    >>> dpdist.HDPTopicModel(random_state=0).fit(x).n_topics_
    3
    """

    _spec_type = TopicSpec

    concentration: float = 10.0
    document_concentration: float = 1.0
    pseudocount: float = 0.5
    _: KW_ONLY
    learn: Sequence[str] = LEARNABLE
    initial_topics: int = 400
    weights: GlobalWeights = "posterior"
    schedule: Schedule | None = None
    moves: TopicPlan | OnlinePlan | None = None
    effort: Effort | None = None
    tolerance: float = 1e-5
    max_laps: int | None = 100
    max_time: float | None = None
    random_state: RandomState = 0
    verbose: bool = False

    def fit(
        self,
        x: object,
        y: object = None,
        *,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
    ) -> Self:
        """Fit to documents.

        Parameters
        ----------
        x : (N, W) counts of words as SciPy sparse matrix, NumPy array, data frame, dask.array or Zarr, a row a
            document, or the path of a corpus. Documents without words change nothing under posterior weights. Weights
            of words that are not whole, such as tf-idf, count as that many tokens
        y : ignored
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`

        Returns
        -------
        self

        Raises
        ------
        InputError
            If an entry is negative or not finite, none has words, or a parameter is not what was asked for.
        """
        for _ in self.iter_fit(x, checkpoint_path=checkpoint_path, overwrite=overwrite, backend=backend):
            pass
        return self

    def partial_fit(self, x: object, y: object = None, *, documents: int | None = None) -> Self:
        """Take in one mini-batch of documents, by online inference in this process.

        A model that is not fitted begins with topics found in this mini-batch; one fitted online, by mini-batches or
        loaded goes on from there; one of memoized or batch inference from its topics and expected global weights, as
        before a first mini-batch. Rates and moves are the estimator's own where they are online, else those of
        ``Stochastic(forgetting=0.5)`` and ``OnlinePlan()``; what is learned is the estimator's own.

        Parameters
        ----------
        x : (n, W) documents, as for :meth:`fit`, held in memory
        y : ignored
        documents : D >= n, in the whole corpus, to which mini-batches are scaled; default: all that were seen so far

        Returns
        -------
        self

        Raises
        ------
        InputError
            If an entry is negative or not finite, they are over another vocabulary, none of the first mini-batch has
            words, or there are fewer documents in the corpus than in the mini-batch.
        """
        begun = self.__sklearn_is_fitted__()
        source = self._fitting(x) if begun else as_source(x)
        batch = all_documents(source)
        seen = batch.shape[0] + (self._fitted.rows if begun else 0.0)
        corpus = seen if documents is None else documents
        check_corpus(corpus, batch.shape[0])
        history = self._history if begun else History()
        problem, state = self._going_on() if begun else self._beginning(batch, corpus)
        problem = replace(problem, words=self._problem.words if begun else source.names)
        info, fitted = continue_online(problem, batch, corpus, state, seen, history)
        history.add(info)
        self.adopt(problem, fitted, history, self._chosen)
        return self

    def _beginning(self, batch: sparse.csr_array, corpus: float) -> tuple[PointProblem, OnlineState]:
        problem = self.spec().online(batch.shape[1])
        return problem, begin_partial(problem, self.initial_topics, batch, corpus)

    def _going_on(self) -> tuple[PointProblem, OnlineState]:
        return as_online(self._problem, self._fitted, self.spec().online(self._problem.model.vocabulary))

    def _show(self) -> None:
        fitted = self._fitted
        self._show_columns(self._problem.model.vocabulary, self._problem.words)
        self.n_topics_ = len(fitted.ids)
        self.topic_ids_, self.topic_sizes_ = fitted.ids, fitted.total.words.sum(axis=0)
        self.elbo_, self.n_iter_ = fitted.elbo, len(self._history.laps)
        self.converged_, self.stop_reason_ = fitted.converged, fitted.stop
