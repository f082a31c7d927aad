"""Methods of fitted topic models: topic proportions, scores, top words and topic weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dpdist.core.checks import COUNT, Wanted, whole
from dpdist.core.errors import InputError
from dpdist.data import Source, as_source
from dpdist.estimators.fitted import Estimator, default_backend
from dpdist.inference.prediction import ask_each
from dpdist.inference.topics.evaluation import Score, coherence, top_words
from dpdist.inference.topics.prediction import DocumentPredictor, all_documents, complete_documents
from dpdist.inference.topics.problem import AnyTopicProblem
from dpdist.runs.specs import TopicSpec


class TopicEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator[TopicSpec]):
    """Base of topic estimators; subclasses implement the fit."""

    _problem: AnyTopicProblem
    _predictor: DocumentPredictor
    n_topics_: int

    def transform(self, x: object) -> np.ndarray:
        """Expected topic proportions of documents, (N, K), rows sum to 1.

        They are posterior means over the topics in use, renormalised without the mass of topics not in use. A document
        without words gets the global weights. Each document is iterated until its expected tokens per topic change by
        less than 1e-6 an update on average, which is stricter than in a fit.

        Parameters
        ----------
        x : (N, W) documents, as for :meth:`fit`

        Raises
        ------
        InputError
            If the number of columns is not the size of the vocabulary, the corpus has other words, or an entry is
            negative or not finite.
        """
        partitions = self._fitting(x).partitions
        return np.concatenate(ask_each(default_backend(), partitions, self._predictor, "proportions"))

    def score(
        self, x: object, y: object = None, *, observed: object = None, share: float = 0.8, random_state: int = 0
    ) -> float:
        """Mean log probability of held-out tokens given observed tokens of the same documents, in nats a token.

        The topics are fixed; the proportions of each document are fitted to its observed tokens and then score its
        held-out tokens (document completion: Bryant & Sudderth 2012, section 4).

        Parameters
        ----------
        x : (N, W) documents; if `observed` is given, their held-out tokens only
        y : ignored
        observed : (N, W) observed tokens of the same documents, optional; `x` and `observed` are held in memory
        share : share of each document's tokens that are observed, drawn at random, if `observed` is not given
        random_state : seed of these draws; the same documents in the same order are divided alike in any format

        Raises
        ------
        InputError
            As for :meth:`transform`, or if no token is scored.
        """
        return self.completion(x, observed=observed, share=share, random_state=random_state).per_token

    def completion(self, x: object, *, observed: object = None, share: float = 0.8, random_state: int = 0) -> Score:
        """As :meth:`score`, but with the number of scored tokens beside the nats a token."""
        if observed is not None:
            return self._fitted_predictor().score(self._loaded(observed), self._loaded(x))
        seed = whole(0).take("random_state", random_state)
        return complete_documents(self._predictor, self._fitting(x), default_backend(), share, seed)

    def perplexity(self, x: object, *, observed: object = None, share: float = 0.8, random_state: int = 0) -> float:
        """exp(-score), with the arguments of :meth:`score`."""
        return float(np.exp(-self.score(x, observed=observed, share=share, random_state=random_state)))

    def top_words(self, vocabulary: Sequence[str] | None = None, words: int = 10) -> list[list[str]]:
        """The most probable words of each topic, best first.

        Parameters
        ----------
        vocabulary : (W,) the word of each column; default: ``vocabulary_``
        words : number of words per topic

        Raises
        ------
        InputError
            If the vocabulary is not of length W, or none is given and ``vocabulary_`` is None.
        """
        check_is_fitted(self)
        known = self.vocabulary_ if vocabulary is None else vocabulary
        if known is None:
            raise InputError("the words are unknown, because the fit had no vocabulary; give the vocabulary.")
        words, known = COUNT.take("words", words), _WORDS.take("vocabulary", known)
        if len(known) != self.n_features_in_:
            raise InputError(
                f"the vocabulary should have a word for each of {self.n_features_in_} columns; got {len(known)}. "
                "Give the vocabulary with which the documents were counted."
            )
        return top_words(self.components_, known, words)

    def coherence(self, x: object, words: int = 10) -> np.ndarray:
        """Mean normalised pointwise mutual information of the top words of each topic in documents, (K,), in [-1, 1].

        Parameters
        ----------
        x : (N, W) documents, held in memory
        words : number of top words of each topic, two or more

        Raises
        ------
        InputError
            As for :meth:`transform`, or if there are fewer than two words.
        """
        return coherence(self._fitted_predictor().topics, self._loaded(x), words)

    @property
    def components_(self) -> np.ndarray:
        """Expected probability of each word in each topic, (K, W)."""
        return self._fitted_predictor().topics

    @property
    def vocabulary_(self) -> list[str] | None:
        """The word of each column, (W,), or None if the fitted documents had no vocabulary."""
        check_is_fitted(self)
        return None if self._problem.words is None else list(self._problem.words)

    @property
    def concentration_(self) -> float:
        """Concentration gamma of the global weights, given or learned."""
        return self._fitted_predictor().model.allocation.concentration

    @property
    def document_concentration_(self) -> float:
        """Concentration alpha of the document proportions, given or learned."""
        return self._fitted_predictor().model.allocation.document_concentration

    @property
    def pseudocount_(self) -> float:
        """Dirichlet parameter eta of the topics' word distributions, given or learned."""
        return self._fitted_predictor().model.pseudocount

    @property
    def topic_weights_(self) -> np.ndarray:
        """Expected global weights, (K,)."""
        return self._fitted_predictor().weights()[0]

    @property
    def rest_weight_(self) -> float:
        """Expected total weight of topics not in use."""
        return self._fitted_predictor().weights()[1]

    @property
    def _n_features_out(self) -> int:
        return self.n_topics_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def _fitted_predictor(self) -> DocumentPredictor:
        check_is_fitted(self)
        return self._predictor

    def _fitting(self, x: object) -> Source:
        """The documents of `x`, checked against the model's vocabulary."""
        predictor, source = self._fitted_predictor(), as_source(x)
        predictor.check_source(source)
        return source

    def _loaded(self, x: object) -> sparse.csr_array:
        """As :meth:`_fitting`, but loaded into memory."""
        return all_documents(self._fitting(x))


def _are_words(words: object) -> bool:
    if not isinstance(words, Collection) or isinstance(words, str | Mapping):
        return False
    return len(words) > 0 and all(isinstance(word, str) for word in words)


#: The check of a vocabulary.
_WORDS = Wanted("a sequence of words, one per column", _are_words, list)
