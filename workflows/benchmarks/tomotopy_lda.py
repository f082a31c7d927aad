"""Topics with default settings compared with tomotopy's LDA in equal processor time: held-out scores and documents per
second.

tomotopy samples (collapsed Gibbs) with a fixed number of topics and optimises its hyperparameters; its documents per
second are those of its sweeps. Both are scored alike, by the held-out tokens of the split in nats per token, with
proportions fitted to the observed ones; scoring does not count in the seconds.
"""

from __future__ import annotations

import importlib.util
import time
from typing import NamedTuple

import numpy as np
from common import options, print_table
from scipy import sparse
from topic_laps import drawn, read

from dpdist import HDPTopicModel
from dpdist.execution import SerialBackend
from dpdist.inference.topics.evaluation import completion_score

COLUMNS = ["method", "K", "laps or sweeps", "seconds", "documents/s", "held out"]
#: Sweeps between two looks at the seconds.
SWEEPS = 10


class Split(NamedTuple):
    """Documents to fit, and observed and held-out tokens of others."""

    documents: sparse.csr_array
    observed: sparse.csr_array
    held: sparse.csr_array


def laps(split: Split, most: int) -> tuple[list[object], float]:
    """The row of the table of so many laps of ours, and their seconds."""
    model, began = HDPTopicModel(max_laps=most, random_state=0), time.process_time()
    for _ in model.iter_fit(split.documents, backend=SerialBackend()):
        pass
    seconds = time.process_time() - began
    score = model.score(split.held, observed=split.observed)
    return _row("dpdist", model.n_topics_, model.n_iter_, seconds, split, score), seconds


def sweeps(split: Split, topics: int, seconds: float) -> list[object]:
    """A row of tomotopy's, once it had that many seconds."""
    import tomotopy

    model = tomotopy.LDAModel(k=topics, seed=0)
    for j in range(split.documents.shape[0]):
        part = slice(split.documents.indptr[j], split.documents.indptr[j + 1])
        words, counts = split.documents.indices[part], split.documents.data[part].astype(int)
        model.add_doc([str(word) for word in np.repeat(words, counts)])
    began, done = time.process_time(), 0
    while time.process_time() - began < seconds:
        model.train(SWEEPS, workers=1)
        done += SWEEPS
    spent, words = time.process_time() - began, np.full((topics, split.documents.shape[1]), 1e-12)
    words[:, [int(word) for word in model.used_vocabs]] = [model.get_topic_word_dist(k) for k in range(topics)]
    words /= words.sum(axis=1, keepdims=True)
    score = completion_score(words, np.asarray(model.alpha, dtype=np.float64), split.observed, split.held).per_token
    return _row("tomotopy LDA", topics, done, spent, split, score)


def _row(method: str, topics: int, passes: int, seconds: float, split: Split, score: float) -> list[object]:
    rate = passes * split.documents.shape[0] / seconds
    return [method, topics, passes, f"{seconds:.1f}", f"{rate:.0f}", f"{score:.4f}"]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--corpus", choices=("kos", "nips"), default="kos")
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--topics", type=int, nargs="+", default=[200], help="of tomotopy's")
    given = parser.parse_args()
    split = Split(*(drawn() if given.small else read(given.corpus, given.data)))
    ours, seconds = laps(split, 2 if given.small else given.laps)
    rows = [ours]
    if importlib.util.find_spec("tomotopy") is None:
        print("tomotopy is not installed and left out; it comes with: pip install 'dpdist[workflows]'")
    else:
        rows += [sweeps(split, 5 if given.small else topics, seconds) for topics in given.topics]
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    main()
