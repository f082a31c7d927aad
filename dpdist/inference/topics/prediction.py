"""Predictions of a fitted topic model for documents: proportions of topics, and scores of held-out words.

Proportions are posterior means under fixed topics and global weights,

    E[pi_jk] = (alpha E[beta_k] + n_jk) / sum_l (alpha E[beta_l] + n_jl),

over the topics in use, without the mass of topics not in use. A document without words has the global weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from dpdist.core.checks import number
from dpdist.core.errors import InputError
from dpdist.core.randomness import generator
from dpdist.core.threads import one_thread
from dpdist.data.base import Partition, Source
from dpdist.data.columns import Names, check_same_words
from dpdist.data.documents.counts import are_whole, check_block, check_weights
from dpdist.execution.base import Backend
from dpdist.inference.prediction import Outputs, ask_each, label_outputs, labels_of
from dpdist.inference.topics.documents import NO_PAIRS, DocumentTopics, Effort, local_step
from dpdist.inference.topics.evaluation import Score, completion_score
from dpdist.inference.topics.hyperparameters import learned, with_values
from dpdist.inference.topics.model import TopicModel, TopicPosterior
from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.problem import OnlinePlan, TopicPlan, TopicProblem
from dpdist.inference.topics.summary import TOKENS, TopicSummary
from dpdist.inference.transform import Description
from dpdist.models.families.base import Rows, stack_rows

#: Types of counts that matrices of documents may have.
COUNTED = [np.dtype(kind) for kind in "?bBhHiIlLqQfd"]
#: How far documents are iterated for predictions.
SETTLED = Effort(tolerance=1e-6, most=1000)
#: NumPy's limit on the number of tokens to draw from.
MOST_DRAWN = 10**9


@dataclass(frozen=True, eq=False)
class DocumentPredictor:
    """Fixed topics and global weights that predict documents; picklable.

    Parameters
    ----------
    model : the prior, with the learned hyperparameters
    words : (W, K) expected tokens of each word in each topic, in the whole corpus
    global_weights : (K + 1,); the last is the mass of all topics not in use
    tokens : number in the whole corpus; online the topics' sum, which is close to it
    ids : (K,) stable ids of the topics
    vocabulary : (W,) the words, if known
    """

    model: TopicModel
    words: np.ndarray
    global_weights: np.ndarray
    tokens: float
    ids: np.ndarray
    vocabulary: Names | None = None

    @property
    def names(self) -> Names | None:
        """The words."""
        return self.vocabulary

    @property
    def prior(self) -> np.ndarray:
        """Dirichlet parameter of a document's proportions, (K,)."""
        return self.model.allocation.document_concentration * self.global_weights[:-1]

    @cached_property
    def posterior(self) -> TopicPosterior:
        """q in the form of the local step."""
        parameters = self.model.allocation.document_concentration * self.global_weights
        return self.model.posterior_of(self.words, parameters)

    @cached_property
    def topics(self) -> np.ndarray:
        """Expected probabilities of words, (K, W)."""
        words = self.model.pseudocount + self.words
        return np.ascontiguousarray((words / words.sum(axis=0)).T)

    def weights(self) -> tuple[np.ndarray, float]:
        """Global weights (K,), and the remainder for topics not in use."""
        return self.global_weights[:-1], float(self.global_weights[-1])

    def exported(self) -> Description:
        """Nothing, because counts of words describe topics already."""
        return {}

    def check_words(self, columns: int, name: str = "documents") -> None:
        """Raise :class:`InputError` unless there is one column per word of the model's vocabulary."""
        vocabulary = self.model.vocabulary
        if columns != vocabulary:
            unseen = f"; columns from {vocabulary} on were not in the fitted data" if columns > vocabulary else ""
            raise InputError(
                f"{name} should have {vocabulary} columns, one for each word of the model's vocabulary, in its order; "
                f"got {columns}{unseen}. Count the words of that vocabulary, and no others "
                f"(X has {columns} features, but HDPTopicModel is expecting {vocabulary} features as input)."
            )

    def check_source(self, source: Source, model: str = "the model") -> None:
        """Raise :class:`InputError` unless documents use the model's words; `model` is its name in messages."""
        self.check_words(source.shape[1])
        check_same_words(self.vocabulary, source.names, source.label, model)

    def outputs(self, top: int, density: bool) -> Outputs:
        """Names, shapes and dtypes of :meth:`predictions`: proportions and the largest topic, or the `top` largest."""
        if density:
            raise InputError(
                "a topic model has no density. Leave out density=True, and score documents with: dpdist score"
            )
        return label_outputs(top, len(self.ids)) | {"proportion": ((len(self.ids),), "float64")}

    def predictions(self, partition: Partition, top: int, density: bool) -> dict[str, np.ndarray]:
        """The predictions of documents, by name."""
        shares = self.proportions(partition)
        order = np.argsort(-shares, axis=1, kind="stable")[:, :top]
        return {"proportion": shares, **labels_of(order, np.take_along_axis(shares, order, axis=1), top)}

    def proportions(self, partition: Partition) -> np.ndarray:
        """E[pi_jk] of documents, (n, K), rows sum to 1."""
        documents = checked_documents(partition)
        unknown = DocumentTopics.unknown(documents.shape[0])
        with one_thread():
            _, _, used = local_step(self.posterior, documents, unknown, NO_PAIRS, SETTLED)
            parameters = self.prior + used.matrix(len(self.prior)).toarray()
        return parameters / parameters.sum(axis=1, keepdims=True)

    def completion(self, partition: Partition, share: float, seed: int) -> Score:
        """The score of documents with a `share` of their tokens observed; without held-out tokens, 0 for 0 tokens."""
        observed, held = split_tokens(checked_documents(partition), share, seed, partition.start)
        if not held.nnz:
            return Score(0.0, 0.0)
        with one_thread():
            return self.score(observed, held)

    def score(self, observed: sparse.csr_array, held: sparse.csr_array) -> Score:
        """The score of held-out tokens (n, W) of documents, given their observed tokens."""
        return completion_score(self.topics, self.prior, observed, held)


def predictor_of_topics(
    problem: TopicProblem[TopicPlan | OnlinePlan], total: object, ids: np.ndarray
) -> DocumentPredictor:
    """The predictor of a fitted topic model.

    Parameters
    ----------
    total : OnlineState of a point estimate, else TopicSummary of the whole corpus
    ids : (K,) stable ids of the topics
    """
    with one_thread():
        if isinstance(total, OnlineState):
            model, weights, tokens = with_values(problem.model, total.learned), total.weights, float(total.words.sum())
        else:
            assert isinstance(total, TopicSummary), "a topic model's total"
            model, tokens = learned(problem.model, total, problem.learn), float(total.totals[TOKENS])
            weights = model.sticks(total).weights
    return DocumentPredictor(model, total.words, weights, tokens, ids, problem.words)


def complete_documents(
    predictor: DocumentPredictor, source: Source, backend: Backend, share: float, seed: int
) -> Score:
    """The score of documents with a `share` of their tokens observed, drawn with the key `seed`; raises
    :class:`InputError` if `share` is not between 0 and 1, no token is held out, or the documents are not counts."""
    share = number(above=0, below=1).take("share", share)
    parts: list[Score] = ask_each(backend, source.partitions, predictor, "completion", share, seed)
    tokens = sum(part.tokens for part in parts)
    if not tokens:
        raise InputError("no token is held out; pass documents with more words, or a smaller share.")
    return Score(sum(part.per_token * part.tokens for part in parts) / tokens, tokens)


def require_unweighted(source: Source) -> None:
    """Raise :class:`InputError` if documents have weights of their own."""
    if source.weights is not None:
        raise InputError("documents of a topic model have no weights; repeat a document that should count twice.")


def all_documents(source: Source) -> sparse.csr_array:
    """All documents in memory, as from :func:`counts_of`; raises :class:`InputError` also if they have weights."""
    require_unweighted(source)
    return sparse.csr_array(stack_rows([checked_documents(each) for each in source.partitions]))


def checked_documents(partition: Partition) -> sparse.csr_array:
    """The documents of a partition, as from :func:`counts_of`; raises what that raises."""
    return counts_of(partition.load()[0], partition.start)


def counts_of(rows: Rows, first: int) -> sparse.csr_array:
    """Documents as CSR (n, W): int32 if all entries are whole counts, else weights of words as float64.

    Parameters
    ----------
    first : number of the first document

    Raises
    ------
    InputError
        If a count or weight is negative or not finite (the message names the document), or of a type that SciPy lacks.
    """
    if rows.dtype not in COUNTED:
        raise InputError(
            f"the documents should have a dtype that sparse arrays of SciPy support; got {rows.dtype.str}. "
            "Convert counts to int32, and weights to float64."
        )
    documents = sparse.csr_array(rows)
    check = check_block if are_whole(documents.data) else check_weights
    return check(documents, first, "the corpus")


def split_tokens(
    documents: sparse.csr_array, share: float, seed: int, first: int = 0
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Tokens observed and held out, each (n, W): a random `share` of each document's tokens is observed.

    For counts, tokens are drawn, rounded to a whole number. For weights, words are drawn until they have the share; the
    last word drawn is divided.

    Parameters
    ----------
    documents : (n, W) CSR counts or weights
    share : observed, between 0 and 1
    seed : key of the draws
    first : number of the first document, also a key of the draws
    """
    observed = documents.copy()
    for j in range(documents.shape[0]):
        own = slice(documents.indptr[j], documents.indptr[j + 1])
        rng = generator(seed, "tokens observed", first + j)
        amounts = documents.data[own]
        divide = _tokens_observed if are_whole(amounts) else _weights_observed
        observed.data[own] = divide(amounts, share, rng, first + j)
    held = sparse.csr_array(
        (documents.data - observed.data, documents.indices, documents.indptr), shape=documents.shape, copy=True
    )
    for part in (observed, held):
        part.eliminate_zeros()
    return observed, held


def _tokens_observed(counts: np.ndarray, share: float, rng: np.random.Generator, document: int) -> np.ndarray:
    """How often each word of a document is observed, if tokens are drawn uniformly."""
    whole = counts.astype(np.int64)
    if whole.sum() >= MOST_DRAWN:
        raise InputError(
            f"document {document} should have fewer than {MOST_DRAWN} tokens to be divided at random; got "
            f"{whole.sum()}. Choose its observed tokens yourself, or leave it out."
        )
    return rng.multivariate_hypergeometric(whole, round(share * int(whole.sum())))


def _weights_observed(weights: np.ndarray, share: float, rng: np.random.Generator, document: int) -> np.ndarray:
    """The observed part of each word's weight, if words are taken in random order up to the share."""
    order, observed = rng.permutation(len(weights)), np.empty(len(weights))
    ends = np.cumsum(weights[order])
    observed[order] = np.clip(share * ends[-1] - (ends - weights[order]), 0, weights[order])
    return observed
