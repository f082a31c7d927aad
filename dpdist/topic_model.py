"""The estimator of topic models: a corpus of documents over topics whose number is learned."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import xarray as xr
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist import storage
from dpdist.allocations.hierarchical import HierarchicalDirichletProcess
from dpdist.backends import Backend
from dpdist.checkpoint import Fitted
from dpdist.clustering import default_backend, path_of
from dpdist.errors import InputError
from dpdist.fitting import Fit, Limits
from dpdist.history import History
from dpdist.prediction import predict_partition
from dpdist.schedules import Memoized, Schedule
from dpdist.sources import Source, as_source
from dpdist.state import Info, State
from dpdist.stored_topics import TopicStore
from dpdist.topic_fitting import TopicRecipe, begin_topics
from dpdist.topic_prediction import TopicPredictor, complete_documents, documents_of
from dpdist.topics.documents import Effort
from dpdist.topics.engine import topic_steps
from dpdist.topics.evaluation import Score, coherence, top_words
from dpdist.topics.problem import TopicPlan, TopicProblem
from dpdist.visit import stack_rows


class HDPTopicModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Hierarchical Dirichlet process topic model, whose number of topics is learned, by memoized inference.

    Documents share topics, each in proportions of its own. New topics are looked for in documents that are not
    explained, topics that are the same are merged and those that are not needed deleted, each only if the bound on
    the evidence of the whole corpus rises.

    Parameters
    ----------
    concentration : float
        gamma > 0 of the global weights; larger values expect more topics.
    document_concentration : float
        alpha > 0; larger values keep documents' proportions closer to the global weights.
    pseudocount : float
        eta > 0 of the topics' symmetric Dirichlet prior over words.
    learn : sequence of str
        Which of these three are set anew at every lap's end, to what raises the bound most, and so only begin as given.
    initial_topics : int
        Topics looked for, in at most 1,000 documents, to begin with; there may be fewer where documents are few.
    schedule : Memoized, optional
        Default: ``Memoized(waves=20)``. ``Memoized(waves=1)`` is batch variational Bayes.
    moves : TopicPlan, optional
        Which moves to make; default: births, merges and deletes.
    effort : Effort, optional
        How far documents are iterated.
    tolerance : float
        Change of the ELBO, in nats a token, below which a lap counts as settled.
    max_laps : int or None
        Largest number of passes over the corpus.
    max_time : float or None
        Largest time in seconds.
    random_state : int, RandomState or None

    Attributes
    ----------
    n_topics_ : int
        Number of topics in use, K, most tokens first.
    elbo_ : float
        Lower bound on the evidence of the whole corpus as sequences of tokens, in nats, every constant included;
        comparable across numbers of topics.
    components_ : (K, W)
        Expected probability of each word in each topic; rows sum to 1.
    concentration_, document_concentration_, pseudocount_ : float
        As given, or as learned.
    topic_weights_ : (K,)
        Expected global weights; ``rest_weight_`` is left to topics not in use.
    topic_ids_ : (K,) int64
        Stable identities, kept through reordering, resuming and saving.
    topic_sizes_ : (K,)
        Expected tokens of each topic in the corpus.
    history_ : xarray.Dataset
        ELBO, K and seconds by lap; every proposal, its exact gain and what became of it.
    converged_ : bool
    stop_reason_ : str
    n_iter_ : int
        Laps made.
    n_features_in_ : int
        W, size of the vocabulary.

    References
    ----------
    M. Bryant and E. Sudderth (2012), "Truly nonparametric online variational inference for hierarchical Dirichlet
    processes", NeurIPS. M. Hughes, D. Kim and E. Sudderth (2015), "Reliable and scalable variational inference for
    the hierarchical Dirichlet process", AISTATS.

    Examples
    --------
    >>> import numpy as np, dpdist
    >>> words, rng = np.kron(np.eye(3), np.full(4, 0.25)), np.random.default_rng(0)
    >>> x = np.array([rng.multinomial(60, words[rng.choice(3, 2)].mean(axis=0)) for _ in range(300)])
    >>> dpdist.HDPTopicModel(initial_topics=2, random_state=0).fit(x).n_topics_
    3
    """

    def __init__(
        self,
        concentration: float = 10.0,
        document_concentration: float = 1.0,
        pseudocount: float = 0.1,
        *,
        learn: Sequence[str] = (),
        initial_topics: int = 50,
        schedule: Schedule | None = None,
        moves: TopicPlan | None = None,
        effort: Effort | None = None,
        tolerance: float = 1e-5,
        max_laps: int | None = 100,
        max_time: float | None = None,
        random_state: Any = None,
    ) -> None:
        self.concentration = concentration
        self.document_concentration = document_concentration
        self.pseudocount = pseudocount
        self.learn = learn
        self.initial_topics = initial_topics
        self.schedule = schedule
        self.moves = moves
        self.effort = effort
        self.tolerance = tolerance
        self.max_laps = max_laps
        self.max_time = max_time
        self.random_state = random_state

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
    ) -> Self:
        """Fit to documents.

        Parameters
        ----------
        x : (N, W) counts of words as SciPy sparse matrix, NumPy array, dask.array or Zarr, a row a document, or the
            path of a corpus; documents without words are kept
        y : ignored
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the documents are no counts, none has words, or a parameter is not what was asked for.
        """
        for _ in self.iter_fit(x, checkpoint_path=checkpoint_path, overwrite=overwrite, backend=backend):
            pass
        return self

    def iter_fit(
        self,
        x: Any,
        y: Any = None,
        *,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
    ) -> Iterator[tuple[State, Info]]:
        """Fit lap by lap; the caller's loop is the callback, and may break at any lap.

        Parameters
        ----------
        x, y : as for :meth:`fit`
        checkpoint_path : folder that a checkpoint is written to after every lap, optional
        overwrite : whether to replace what is there
        backend : where to run; default: the active Dask client, else this process

        Yields
        ------
        state, info : after each lap; the estimator is fitted as of that lap
        """
        settings = {"max_laps": self.max_laps, "max_time": self.max_time, "data": path_of(x)}
        yield from self.follow(self.prepare(x, checkpoint_path, overwrite, backend, settings))

    def follow(self, fit: Fit) -> Iterator[tuple[State, Info]]:
        """Run a fit, taking its model as this estimator's own after every lap."""
        for step in fit:
            if step.info is not None:
                self.adopt(fit.problem, fit.fitted, fit.history)
                yield step.state, step.info

    def prepare(
        self,
        x: Any,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Fit:
        """A fit ready to run, wave by wave: parameters and counts checked, first checkpoint written.

        Parameters
        ----------
        x : documents or a source
        checkpoint_path, overwrite, backend : as for :meth:`iter_fit`
        settings : plain values kept with the checkpoint, by which the command line resumes
        """
        recipe, limits = self.recipe(), Limits(self.max_laps, self.max_time)
        source = as_source(x)
        if checkpoint_path is not None:
            storage.claim(checkpoint_path, overwrite)
        backend = backend or default_backend()
        problem, state = begin_topics(recipe, source, backend)
        fit = Fit(problem, source, backend, state, limits, History(), run=topic_steps)
        if checkpoint_path is not None:
            kept = settings if settings is not None else {}
            fit.store = TopicStore.create(checkpoint_path, problem, kept, source.fingerprint(), overwrite)
            fit.save()
            fit.settle()
        return fit

    def recipe(self) -> TopicRecipe:
        """The parameters, checked and made into values."""
        schedule = Memoized(waves=20) if self.schedule is None else self.schedule
        if not isinstance(schedule, Memoized):
            raise InputError(
                f"a topic model is fitted by a Memoized schedule; got {schedule!r}. Choose its waves only."
            )
        if not (isinstance(self.initial_topics, int | np.integer) and self.initial_topics >= 1):
            raise InputError(f"initial_topics should be a whole number from 1 on; got {self.initial_topics!r}.")
        if not (np.isfinite(self.tolerance) and self.tolerance >= 0):
            raise InputError(f"tolerance should be zero or more nats a token; got {self.tolerance}.")
        return TopicRecipe(
            allocation=HierarchicalDirichletProcess(float(self.concentration), float(self.document_concentration)),
            pseudocount=float(self.pseudocount),
            schedule=schedule,
            plan=TopicPlan() if self.moves is None else self.moves,
            effort=Effort() if self.effort is None else self.effort,
            seed=_seed(self.random_state),
            tolerance=float(self.tolerance),
            initial_topics=int(self.initial_topics),
            learn=tuple(self.learn),
        )

    def transform(self, x: Any) -> np.ndarray:
        """Expected proportions of the topics in documents, (N, K), rows sum to 1.

        They are posterior means over the topics in use; the mass that the model leaves to topics not in use is left
        out. A document without words has the global weights. Computed to about 1e-6 of a token.

        Parameters
        ----------
        x : (N, W) documents, as for :meth:`fit`

        Raises
        ------
        InputError
            If there is not a column for each word of the model's vocabulary, or the documents are no counts.
        """
        partitions, backend = self._fitting(x).partitions, default_backend()
        columns = ([value] * len(partitions) for value in (backend.share(self._predictor), "proportions"))
        return np.concatenate(backend.fetch(backend.map(predict_partition, backend.share_each(partitions), *columns)))

    def score(self, x: Any, y: Any = None, *, observed: Any = None, share: float = 0.8, random_state: int = 0) -> float:
        """Mean log probability of tokens of documents of which others are seen, in nats a token.

        With the topics held fixed, proportions are fitted to the observed tokens of each document, and score its other
        tokens (document completion: Bryant & Sudderth 2012, section 4).

        Parameters
        ----------
        x : (N, W) documents; or their tokens to score, where `observed` is given
        y : ignored
        observed : (N, W) the other tokens of the same documents, optional; both are held in memory
        share : of each document's tokens, drawn at random, that are observed where they are not given
        random_state : key of these draws; the same documents in the same order are divided alike however they come

        Raises
        ------
        InputError
            As for :meth:`transform`, or if no token is scored.
        """
        return self.completion(x, observed=observed, share=share, random_state=random_state).per_token

    def completion(self, x: Any, *, observed: Any = None, share: float = 0.8, random_state: int = 0) -> Score:
        """What :meth:`score` is made of: nats a token, and the number of tokens scored."""
        if observed is not None:
            return self._fitted_predictor().score(self._loaded(observed), self._loaded(x))
        source = self._fitting(x)
        return complete_documents(self._predictor, source, default_backend(), float(share), int(random_state))

    def perplexity(self, x: Any, *, observed: Any = None, share: float = 0.8, random_state: int = 0) -> float:
        """exp(-score) of the same arguments."""
        return float(np.exp(-self.score(x, observed=observed, share=share, random_state=random_state)))

    def top_words(self, vocabulary: list[str], words: int = 10) -> list[list[str]]:
        """The most probable words of each topic, best first.

        Parameters
        ----------
        vocabulary : (W,) the word of each column
        words : number of them
        """
        self._fitted_predictor().check_words(len(vocabulary), "the vocabulary")
        return top_words(self.components_, vocabulary, words)

    def coherence(self, x: Any, words: int = 10) -> np.ndarray:
        """Normalised pointwise mutual information of topics' top words within documents, (K,), from -1 to 1.

        Parameters
        ----------
        x : (N, W) documents, held in memory
        words : most probable words of each topic that are looked at
        """
        return coherence(self._fitted_predictor().topics, self._loaded(x), words)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fitted model as a Zarr group; :func:`dpdist.load` reads it."""
        check_is_fitted(self)
        store = TopicStore.create(path, self._problem, {}, {}, overwrite)
        stop = self._fitted.stop or "saved before the fit ended"
        store.commit(self._problem, self._fitted._replace(stop=stop), self._history)
        store.release()

    def adopt(self, problem: TopicProblem, fitted: Fitted | None, history: History) -> None:
        """Take the model of a lap as this estimator's own."""
        assert fitted is not None, "a lap was finished"
        self._predictor = TopicPredictor(problem, fitted.total, fitted.ids)
        self._problem, self._fitted, self._history = problem, fitted, history
        self.n_features_in_, self.n_topics_ = problem.model.vocabulary, len(fitted.ids)
        self.topic_ids_, self.topic_sizes_ = fitted.ids, fitted.total.counts
        self.elbo_, self.n_iter_ = fitted.elbo, len(history.laps)
        self.converged_, self.stop_reason_ = fitted.converged, fitted.stop

    @property
    def components_(self) -> np.ndarray:
        """Expected probability of each word in each topic, (K, W)."""
        return self._fitted_predictor().topics

    @property
    def concentration_(self) -> float:
        """gamma, as given or as learned."""
        return self._fitted_predictor().model.allocation.concentration

    @property
    def document_concentration_(self) -> float:
        """alpha, as given or as learned."""
        return self._fitted_predictor().model.allocation.document_concentration

    @property
    def pseudocount_(self) -> float:
        """eta, as given or as learned."""
        return self._fitted_predictor().model.pseudocount

    @property
    def topic_weights_(self) -> np.ndarray:
        """Expected global weights, (K,)."""
        return self._fitted_predictor().weights[:-1]

    @property
    def rest_weight_(self) -> float:
        """Expected weight of all topics not in use."""
        return float(self._fitted_predictor().weights[-1])

    @property
    def history_(self) -> xr.Dataset:
        """Laps and proposals of the fit."""
        check_is_fitted(self)
        return self._history.dataset()

    @property
    def _n_features_out(self) -> int:
        return self.n_topics_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def _fitted_predictor(self) -> TopicPredictor:
        check_is_fitted(self)
        return self._predictor

    def _fitting(self, x: Any) -> Source:
        """Documents over the model's vocabulary."""
        predictor, source = self._fitted_predictor(), as_source(x)
        predictor.check_words(source.shape[1])
        return source

    def _loaded(self, x: Any) -> sparse.csr_array:
        """The same, in memory."""
        return sparse.csr_array(stack_rows([documents_of(each) for each in self._fitting(x).partitions]))


def _seed(random_state: Any) -> int:
    """`random_state` as one whole number."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
