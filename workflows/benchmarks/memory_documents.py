"""Peak memory of the coordinator and of the workers as the number of documents of a topic model grows tenfold.

Daily KOS entries drawn with replacement (or drawn documents if they are missing), written to a corpus while they are
drawn; 50 topics, 20 batches, two laps without moves, on two worker processes (``--small``: ten topics, four batches,
one worker). Each size runs in its own processes. The run is stored, so the topics of documents are in files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import options
from memory import FLAT, in_own_process, measured, report
from scipy import sparse


class Size(NamedTuple):
    """How large the benchmark is."""

    documents: tuple[int, ...]
    topics: int
    batches: int
    workers: int


FULL, SMALL = Size((20_000, 200_000), 50, 20, 2), Size((300, 3_000), 10, 4, 1)
#: Documents of a block.
BLOCK = 5_000


def read(data: Path, small: bool) -> sparse.csr_array:
    """The entries if they are there, else drawn documents."""
    path = data / "text_kos" / "kos.npz"
    if small or not path.exists():
        rng = np.random.default_rng(0)
        words = rng.dirichlet(np.full(400, 0.05), size=10)
        shares = rng.dirichlet(np.full(10, 0.2), size=300)
        return sparse.csr_array(np.array([rng.multinomial(50, share @ words) for share in shares]))
    stored = np.load(path)
    return sparse.csr_array((stored["data"], stored["indices"], stored["indptr"]), shape=tuple(stored["shape"]))


def drawn(entries: sparse.csr_array, documents: int) -> Iterator[sparse.csr_array]:
    """Blocks of documents drawn with replacement."""
    rng = np.random.default_rng(1)
    for start in range(0, documents, BLOCK):
        yield entries[rng.integers(entries.shape[0], size=min(BLOCK, documents - start))]


def fit_measured(path: str, size: Size) -> dict[str, Any]:
    """Two laps over the corpus at `path`; memory in MB before and at its peak."""
    from dpdist import HDPTopicModel, TopicPlan
    from dpdist.inference.schedules import Memoized

    model = HDPTopicModel(
        initial_topics=size.topics,
        schedule=Memoized(batches=size.batches),
        moves=TopicPlan(birth=False, merge=False, delete=False),
        tolerance=0.0,
        max_laps=2,
        random_state=0,
    )
    run = f"{path}.run"
    return measured(
        lambda backend: model.iter_fit(path, checkpoint_path=run, overwrite=True, backend=backend), size.workers
    )


def main() -> None:
    """Run the benchmark and print its table."""
    parser = options(__doc__)
    parser.add_argument(
        "--measure", metavar="ZARR", help="measure one fit in this process (the benchmark calls itself)"
    )
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    if given.measure:
        print(json.dumps(fit_measured(given.measure, size)))
        return
    from dpdist.data.corpora import write_corpus

    given.out.mkdir(parents=True, exist_ok=True)
    found, entries = [], read(given.data, given.small)
    for documents in size.documents:
        path = given.out / f"memory-documents-{documents}.zarr"
        write_corpus(path, drawn(entries, documents), overwrite=True)
        found.append(in_own_process(__file__, str(path.resolve()), given))
    print(f"W={entries.shape[1]} K={size.topics}, {size.batches} batches, 2 laps, worker processes: {size.workers}")
    ratios = report(size.documents, found, "document")
    if given.small:
        assert max(ratios) < FLAT, f"memory grew with the documents: {ratios}"


if __name__ == "__main__":
    main()
