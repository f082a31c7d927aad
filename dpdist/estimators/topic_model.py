"""The estimator of HDP topic models, which learns the number of topics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Self

from dpdist.core.settings import documented_by
from dpdist.data import as_source
from dpdist.estimators.fitted import Manner, RandomState
from dpdist.estimators.topic_base import TopicEstimator
from dpdist.execution import Backend
from dpdist.inference.schedules import Schedule
from dpdist.inference.topics.documents import Effort
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.online_engine import lap_info, partial_step
from dpdist.inference.topics.prediction import all_documents
from dpdist.inference.topics.problem import GlobalWeights, OnlinePlan, TopicPlan
from dpdist.runs.methods.topics import as_online, begin_partial, check_corpus
from dpdist.runs.specs import TopicSpec
from dpdist.storage.checkpoint import Fitted
from dpdist.storage.history import History

#: Stop reason of a model fitted by `partial_fit`.
_GOES_ON = "continues with the next mini-batch of partial_fit"


@documented_by(TopicSpec, Manner)
@dataclass(eq=False, repr=False)
class HDPTopicModel(TopicEstimator):
    """Hierarchical Dirichlet process topic model, whose number of topics is learned, by memoized or online inference.

    Documents share topics, each in its own proportions. Births propose topics from poorly explained documents, merges
    remove redundant topics and deletes superfluous ones; each is accepted only if the ELBO of the whole corpus rises.
    Online inference (oHDP-SM) splits and merges topics on the bound of each mini-batch. It suits corpora too large to
    be visited often, and documents that arrive over time (`partial_fit`).

    Weights, schedule and moves are three choices. Posterior weights under Memoized or Batch, with births, merges and
    deletes, are memoized inference of Hughes, Kim & Sudderth; ``Memoized(batches=1)`` is batch variational Bayes. A
    point estimate under Stochastic is oHDP-SM of Bryant & Sudderth, to which deletes are added, or, without moves
    (``OnlinePlan(split=False, merge=False, delete=False)``), their oHDP. A point estimate under Batch is their bHDP,
    whose updates never lower the bound. Other combinations are refused.

    Attributes
    ----------
    n_topics_ : int
        Number of topics, K. Topics are in the order with the highest bound, mostly by decreasing size. Online, they are
        in the order of creation, and some may hold hardly any tokens.
    elbo_ : float
        Lower bound on the evidence of the whole corpus as sequences of tokens, in nats, every constant included;
        comparable across numbers of topics. Online, it is the bound of the last mini-batch under the topics before it,
        scaled to the corpus, which is no bound on the evidence of the whole. For a point estimate under Batch, it
        includes the density of the point, which makes it incomparable across numbers of topics.
    components_ : (K, W)
        Expected probability of each word in each topic; rows sum to 1.
    concentration_, document_concentration_, pseudocount_ : float
        gamma, alpha and eta, given or learned.
    topic_weights_ : (K,)
        Expected global weights; ``rest_weight_`` is the weight of topics not in use.
    topic_ids_ : (K,) int64
        Stable identities, unchanged by reordering, resuming and saving.
    topic_sizes_ : (K,)
        Expected tokens of each topic in the corpus; online, estimated from the last mini-batches, scaled up.
    history_ : xarray.Dataset
        ELBO, K and seconds by lap, or by mini-batch of `partial_fit`; every proposal, its gain and its outcome.
    converged_ : bool
    stop_reason_ : str
    n_iter_ : int
        Number of laps and of mini-batches of `partial_fit`.
    n_features_in_ : int
        W, size of the vocabulary.
    feature_names_in_ : (W,) array of str
        The word of each column, set only if the corpus has a vocabulary or the data frame has column names. Documents
        with other words are refused; the words of documents without a vocabulary cannot be checked.
    vocabulary_ : list of str or None
        The word of each column, or None if unknown; saved with the model.

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
        x : (N, W) word counts, one row a document, as SciPy sparse matrix, NumPy array, data frame, dask.array or Zarr;
            or the path of a corpus. Documents without words do not affect a fit with posterior weights. A fractional
            entry, such as tf-idf, counts as that many tokens
        y : ignored
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`

        Returns
        -------
        self

        Raises
        ------
        InputError
            If an entry is negative or not finite, no document has words, or a parameter is invalid.
        """
        for _ in self.iter_fit(x, checkpoint_path=checkpoint_path, overwrite=overwrite, backend=backend):
            pass
        return self

    def partial_fit(self, x: object, y: object = None, *, documents: int | None = None) -> Self:
        """Update the model with one mini-batch of documents, by online inference in this process.

        An unfitted model is initialised from topics found in this mini-batch. A model fitted online continues from its
        state. A model fitted by memoized or batch inference continues from its topics and expected global weights, as
        if this were the first mini-batch. Learning rates and moves are those of the estimator if it is online,
        otherwise ``Stochastic(forgetting=0.5)`` and ``OnlinePlan()``; `learn` applies as in a fit.

        Parameters
        ----------
        x : (n, W) documents, as for :meth:`fit`, held in memory
        y : ignored
        documents : D >= n, size of the whole corpus, to which mini-batches are scaled; default: the documents so far

        Returns
        -------
        self

        Raises
        ------
        InputError
            If an entry is negative or not finite, the vocabulary differs from the model's, the first mini-batch has no
            words, or `documents` is less than n.
        """
        begun = self.__sklearn_is_fitted__()
        source = self._fitting(x) if begun else as_source(x)
        batch = all_documents(source)
        seen = batch.shape[0] + (self._fitted.rows if begun else 0.0)
        corpus = seen if documents is None else documents
        check_corpus(corpus, batch.shape[0])
        history = self._history if begun else History()
        problem = self.spec().online(batch.shape[1])
        if begun:
            problem, state = as_online(self._problem, self._fitted, problem)
        else:
            state = begin_partial(problem, self.initial_topics, batch, corpus)
        problem = replace(problem, words=self._problem.words if begun else source.names)
        step = partial_step(problem, batch, float(corpus), state)
        info = lap_info(step, len(history.laps) + 1, seen)
        history.add(info)
        fitted = Fitted(info.ids, info.total, info.elbo, seen, info.units, info.total.next_id, _GOES_ON)
        self.adopt(problem, fitted, history, self._chosen)
        return self

    def _show(self) -> None:
        fitted = self._fitted
        self._show_columns(self._problem.model.vocabulary, self._problem.words)
        self.n_topics_ = len(fitted.ids)
        self.topic_ids_, self.topic_sizes_ = fitted.ids, fitted.total.words.sum(axis=0)
        self.elbo_, self.n_iter_ = fitted.elbo, len(self._history.laps)
        self.converged_, self.stop_reason_ = fitted.converged, fitted.stop
