"""Laps of topics with default settings: processor seconds, documents per second, topics and the held-out score.

Documents per second are those of the whole lap, including moves, and of a single local step on all documents, as in a
lap without moves: from the previous lap's proportions, with the topics at the beginning of the lap. A lap that tries
candidates fits documents twice, but counts them once. Kernels are compiled before. The score is of the split's held-out
tokens, in nats per token; its seconds are not counted. The last line sums up all laps from the first that tried moves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import options, print_table
from scipy import sparse

from dpdist import HDPTopicModel
from dpdist.data import as_source
from dpdist.data.base import Partition
from dpdist.execution import SerialBackend
from dpdist.inference.state import State
from dpdist.inference.topics.documents import NO_PAIRS, Effort, local_step
from dpdist.inference.topics.kept import DocumentFiles
from dpdist.inference.topics.local_step import documents_of

COLUMNS = ["lap", "K", "nats a token", "held out", "seconds", "documents/s", "of a local step", "share", "moves tried"]


def read(name: str, data: Path) -> tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array]:
    """Documents to fit, and observed and held-out tokens of others."""
    folder = data / f"text_{name}"
    whole, split = np.load(folder / f"{name}.npz"), np.load(folder / f"split_{name}.npz")
    shape = tuple(whole["shape"])
    documents = sparse.csr_array((whole["data"].astype(np.float64), whole["indices"], whole["indptr"]), shape=shape)
    observed, held = (
        sparse.csr_array(
            tuple(split[f"{part}_{each}"] for each in ("data", "indices", "indptr")),
            shape=(len(split["test"]), shape[1]),
        )
        for part in ("obs", "held")
    )
    return documents[split["train"]], observed, held


def drawn() -> tuple[sparse.csr_array, sparse.csr_array, sparse.csr_array]:
    """Small ones that are drawn."""
    rng = np.random.default_rng(0)
    words, shares = rng.dirichlet(np.full(100, 0.05), size=5), rng.dirichlet(np.full(5, 0.2), size=240)
    counts = np.array([rng.multinomial(60, share @ words) for share in shares])
    return sparse.csr_array(counts[:200]), sparse.csr_array(counts[200:]), sparse.csr_array(counts[200:])


def bare_step(model: HDPTopicModel, state: State, partitions: Sequence[Partition]) -> float:
    """Processor seconds of a local step by default on all documents under the topics of a model: from where the lap
    left them and, beside it, afresh."""
    posterior, count, spent = model._fitted_predictor().posterior, len(state.batch_summaries), 0.0
    for w, batch in enumerate(state.batch_summaries):
        for partition, start in zip(partitions[w::count], batch.documents.starts(), strict=True):
            documents, (known, _) = documents_of(partition), start.read(DocumentFiles())
            began = time.process_time()
            local_step(posterior, documents, known, NO_PAIRS, Effort())
            spent += time.process_time() - began
    return spent


def rates(documents: int, seconds: float, step: float) -> list[str]:
    """Seconds of a lap, documents a second of it and of its local step, and their ratio."""
    return [f"{seconds:.2f}", f"{documents / seconds:.0f}", f"{documents / step:.0f}", f"{step / seconds:.2f}"]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument("--corpus", choices=("kos", "nips"), default="kos")
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--topics", type=int, help="initial topics; default: that of the estimator")
    given = parser.parse_args()
    documents, observed, held = drawn() if given.small else read(given.corpus, given.data)
    laps = 4 if given.small else given.laps
    model = HDPTopicModel(max_laps=laps, random_state=0)
    if given.topics is not None:
        model.set_params(initial_topics=given.topics)
    HDPTopicModel(max_laps=4, random_state=0).fit(drawn()[0])
    print(f"{documents.shape[0]} documents, {documents.sum():.0f} tokens, one thread", flush=True)
    rows, spent, began, step = list[list[object]](), list[tuple[float, float]](), time.process_time(), np.nan
    source = as_source(documents)
    for state, info in model.iter_fit(source, backend=SerialBackend()):
        seconds = time.process_time() - began
        kinds = sorted({record.kind for record in info.records})
        score = model.score(held, observed=observed)
        told = [f"{info.elbo / documents.sum():.4f}", f"{score:.4f}"]
        rows.append([info.lap, info.n_components, *told, *rates(documents.shape[0], seconds, step), ", ".join(kinds)])
        if kinds or spent:
            spent.append((seconds, step))
        step = bare_step(model, state, source.partitions)
        began = time.process_time()
    if spent:
        laps, steps = np.array(spent).sum(axis=0)
        every = rates(documents.shape[0] * len(spent), laps, steps)
        rows.append(["all", "", "", "", *every, "from the first moves on"])
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    main()
