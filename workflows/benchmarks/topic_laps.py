"""Laps of topics by default settings: processor seconds, documents a second, topics and the held-out score.

Documents a second are those of the whole lap, moves included, and of its local steps alone; where candidates are tried,
documents are fitted twice, and count once. The score is of the split's held-out tokens, in nats a token, and its
seconds are not counted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from common import options, print_table
from scipy import sparse

from dpdist import HDPTopicModel
from dpdist.execution import SerialBackend
from dpdist.inference.topics import local_step

COLUMNS = ["lap", "K", "nats a token", "held out", "seconds", "documents/s", "of local steps", "moves tried"]


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


class _Timed:
    """The documents' local step, and the processor seconds that went there."""

    def __init__(self, step: Any) -> None:
        self.step, self.seconds = step, 0.0

    def __call__(self, *given: Any) -> Any:
        began = time.process_time()
        done = self.step(*given)
        self.seconds += time.process_time() - began
        return done


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
    timed = _Timed(local_step.local_step)
    local_step.local_step = timed  # type: ignore[assignment]
    print(f"{documents.shape[0]} documents, {documents.sum():.0f} tokens, one thread", flush=True)
    rows, began = list[list[object]](), time.process_time()
    for _, info in model.iter_fit(documents, backend=SerialBackend()):
        seconds, steps = time.process_time() - began, timed.seconds
        tried = ", ".join(sorted({record.kind for record in info.records})) or "none"
        rates = [f"{documents.shape[0] / each:.0f}" for each in (seconds, steps)]
        score = model.score(held, observed=observed)
        told = [f"{info.elbo / documents.sum():.4f}", f"{score:.4f}", f"{seconds:.2f}"]
        rows.append([info.lap, info.n_components, *told, *rates, tried])
        timed.seconds, began = 0.0, time.process_time()
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    main()
