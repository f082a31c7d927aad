"""Articles, after Bryant & Sudderth (2012), section 4.2: oHDP-SM, oHDP and bHDP from 100, 300 and 1,000 topics.

1,392 NIPS articles (or 2,744 Daily KOS entries) are fitted, online in mini-batches of 200, and 348 (686) are scored by
completion: 80 % of their tokens are observed and the others predicted, with a split that is part of the data. All three
hyperparameters are learned, or keep their defaults; memoized inference only has the defaults. tomotopy's HDP is
collapsed Gibbs sampling of Teh et al. (2006), gensim's the Chinese restaurant franchise of Wang, Paisley & Blei (2011);
both have their own defaults and are scored alike. If the articles are not available, documents drawn from a model are
used.

Written to --out: results, one file per run, which are not repeated; table.csv, table.txt, traces.png.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from shared import (
    Fields,
    Kept,
    batch_updates,
    corpus_of,
    draw_traces,
    drawn,
    fixed,
    follow,
    groups,
    online,
    options,
    others,
    write_table,
)

from dpdist import HDPTopicModel
from dpdist.data.arrays import ArraySource
from dpdist.inference.topics.hyperparameters import LEARNABLE

STARTS, LEARN = (100, 300, 1000), {"learned": LEARNABLE, "fixed": ()}
METHODS: dict[str, Callable[..., HDPTopicModel]] = {"oHDP-SM": online, "oHDP": fixed, "bHDP": batch_updates}
COLUMNS = ["method", "from", "hyperparameters", "passes", "topics", "used", "held out", "seconds"]
#: Documents of a mini-batch.
BATCH = 200


def nothing(*_: Any) -> Fields:
    """No more is told."""
    return {}


def main() -> None:
    """Run the workflow."""
    parser = options(__doc__, "hdp_nips")
    parser.add_argument("--corpus", choices=["nips", "kos"], default="nips", help="NIPS articles or Daily KOS entries")
    parser.add_argument("--passes", type=int, default=10, help="over the articles, of each method")
    parser.add_argument("--starts", type=int, nargs="+", default=STARTS, help="topics to begin with")
    parser.add_argument("--sweeps", type=int, default=1000, help="of tomotopy's sampler")
    given = parser.parse_args()
    corpus = corpus_of(given, drawn(300 if given.small else 1740, 300, 12))
    starts, passes, batch = ((6,), 4, 40) if given.small else (given.starts, given.passes, BATCH)
    source, kept, runs = ArraySource(corpus.train, partition_rows=batch), Kept(given.out), list[Fields]()

    def run(method: str, start: object, learn: str, model: HDPTopicModel) -> None:
        key = {"method": method, "start": start, "hyperparameters": learn, "seed": 0, "corpus": given.corpus}
        runs.append(kept.once({**key, "passes": passes}, lambda: follow(model, corpus, source)))

    run("memoized", "default", "learned", HDPTopicModel(random_state=0, max_laps=passes))
    for start, (learn, names), (method, make) in itertools.product(starts, LEARN.items(), METHODS.items()):
        run(method, start, learn, make(start, batches=len(source.partitions), laps=passes, learn=names))
    if not given.small:
        own = {"hyperparameters": "their own", "passes": "-"}
        runs += [{**found, **own} for found in others(corpus, kept, given.sweeps, nothing)]
    draw_traces(given.out / "traces.png", runs, "method", "hyperparameters")
    rows = [[run[name] for name in ("method", "start", "hyperparameters", "passes", "topics", "used")] for run in runs]
    told = [[f"{run['score']:.4f}", f"{run['seconds']:.0f}"] for run in runs]
    write_table(COLUMNS, [[*row, *more] for row, more in zip(rows, told, strict=True)], given.out)
    if given.small:
        plain = np.asarray(corpus.train.sum(axis=0)).ravel() + 0.5
        unigram = float(corpus.held.sum(axis=0) @ np.log(plain / plain.sum())) / corpus.held.sum()
        assert all(run["score"] > unigram for run in runs), "topics predict words better than their frequencies"
        best = {method: max(run["score"] for run in own) for (method,), own in groups(runs, "method")}
        assert best["oHDP-SM"] > best["oHDP"], "splits predict better than the topics there are"


if __name__ == "__main__":
    main()
