"""Moves accepted with confidence: the effect of the standard error of a gain on a mini-batch.

Bryant & Sudderth (2012), section 3, accept any gain on a mini-batch, and suggest confidence intervals. oHDP-SM is run
with any gain accepted, and with required confidences of 0.8 to 0.999, on the bars of their section 4.1 (one corpus per
seed, twenty mini-batches of 100 documents) and on NIPS articles (seven mini-batches of 200), otherwise with default
settings. A split counts as undone if its second half is gone at the end, a merge if its topic is split again later. For
each confidence, the table shows how many proposals with a gain were refused as uncertain.

Written to --out: results, one file per run, which are not repeated; table.csv, table.txt, traces.png.
"""

from __future__ import annotations

import itertools
import time
from functools import partial

from bars import bars_of, draw_documents
from shared import (
    Corpus,
    Fields,
    Kept,
    corpus_of,
    draw_traces,
    drawn,
    ended,
    groups,
    hold_out,
    online,
    options,
    spread,
    used,
    write_table,
)

from dpdist import HDPTopicModel, OnlinePlan
from dpdist.data.arrays import ArraySource
from dpdist.execution import SerialBackend
from dpdist.inference.moves.accept import Reason
from dpdist.inference.state import Record

CONFIDENCES = (None, 0.8, 0.95, 0.999)
TOLD = ["splits", "splits undone", "merges", "merges undone", "deletes", "uncertain"]
COLUMNS = ["corpus", "from", "confidence", "runs", "topics", "held out", *TOLD, "bars alone", "seconds"]


def undone(records: list[Record], first: int, left: set[int]) -> Fields:
    """What was accepted and refused, and how much of it did not last.

    Parameters
    ----------
    records : in the order in which they were judged
    first : topics before the first of them, whose ids are below
    left : ids of those at the end
    """
    made = [record for record in records if record.reason is Reason.ACCEPTED]
    of = {kind: [place for place, one in enumerate(made) if one.kind == kind] for kind in ("split", "merge", "delete")}
    born = range(first, first + len(of["split"]))
    later = {place: {made[i].components[0] for i in of["split"] if i > place} for place in of["merge"]}
    counts = [len(born), len(set(born) - left), len(of["merge"])]
    counts += [sum(made[i].components[0] in later[i] for i in of["merge"]), len(of["delete"])]
    counts.append(sum(record.reason is Reason.UNCERTAIN for record in records))
    return dict(zip(TOLD, counts, strict=True))


def run(model: HDPTopicModel, corpus: Corpus, batch: int, is_bars: bool) -> Fields:
    """One fit, its way pass by pass, and what became of its moves; seconds are a processor's."""
    points, records, seconds, began = list[list[float]](), list[Record](), 0.0, time.process_time()
    for _, info in model.iter_fit(ArraySource(corpus.train, partition_rows=batch), backend=SerialBackend()):
        seconds += time.process_time() - began
        score = model.score(corpus.held, observed=corpus.observed)
        points.append([info.lap * corpus.train.shape[0], used(model.topic_sizes_), score, round(seconds, 2)])
        records += info.records
        began = time.process_time()
    ids, found = set(model.topic_ids_.tolist()), bars_of(model.topic_sizes_, model.components_) if is_bars else {}
    alone = found["found"] == 20 and not found["unmatched"] if is_bars else "-"
    births = sum(one.kind == "split" and one.reason is Reason.ACCEPTED for one in records)
    first = info.total.next_id - births
    return {"topics": len(ids), **ended(points), **undone(records, first, ids), "bars alone": alone}


def table(runs: list[Fields]) -> list[list[object]]:
    """A line a corpus, start and confidence."""
    rows = list[list[object]]()
    for (corpus, start, confidence), own in groups(runs, "corpus", "start", "confidence"):
        told = [spread([run[name] for run in own], 0) for name in TOLD]
        topics, score = (spread([run[name] for run in own], digits) for name, digits in (("topics", 0), ("score", 4)))
        alone = "-" if own[0]["bars alone"] == "-" else f"{sum(run['bars alone'] for run in own)} of {len(own)}"
        seconds = spread([run["seconds"] for run in own], 1)
        rows.append([corpus, start, confidence or "any gain", len(own), topics, score, *told, alone, seconds])
    return rows


def main() -> None:
    """Run the workflow."""
    parser = options(__doc__, "hdp_confidence")
    parser.add_argument("--corpus", choices=["nips", "kos"], default="nips", help="NIPS articles or Daily KOS entries")
    parser.add_argument("--starts", type=int, nargs="*", default=[100], help="topics to begin with on articles")
    parser.add_argument("--seeds", type=int, default=3, help="of the bars")
    parser.add_argument("--passes", type=int, default=5, help="over each corpus")
    parser.add_argument("--levels", type=float, nargs="*", default=CONFIDENCES[1:], help="confidences beside any gain")
    given = parser.parse_args()
    kept, runs, small = Kept(given.out), list[Fields](), given.small
    documents, passes = (320, 4) if small else (2000, given.passes)
    levels = (None, *given.levels)
    for seed, start, confidence in itertools.product(range(1 if small else given.seeds), (10, 100), levels):
        if small and (start, confidence) not in {(100, None), (100, 0.95)}:
            continue
        parts = hold_out(draw_documents(documents // 10, seed=1000 + seed), 0.8, seed=2)
        corpus = Corpus(draw_documents(documents, seed=20 + seed), *parts, [])
        model = online(start, seed, batches=20, laps=passes, moves=OnlinePlan(confidence=confidence))
        key = {"corpus": "bars", "start": start, "confidence": confidence, "seed": seed, "passes": passes}
        runs.append(kept.once(key, partial(run, model, corpus, -(-documents // 20), True)))
    corpus = corpus_of(given, drawn(300 if small else 1740, 300, 12))
    batch = 40 if small else 200
    for start, confidence in itertools.product((20,) if small else given.starts, levels[:: 2 if small else 1]):
        batches = -(-corpus.train.shape[0] // batch)
        model = online(start, 0, batches=batches, laps=passes, moves=OnlinePlan(confidence=confidence))
        key = {"corpus": given.corpus, "start": start, "confidence": confidence, "seed": 0, "passes": passes}
        runs.append(kept.once(key, partial(run, model, corpus, batch, False)))
    draw_traces(given.out / "traces.png", runs, "corpus", "confidence")
    write_table(COLUMNS, table(runs), given.out)
    if small:
        bold, careful = (
            sum(own["splits"] + own["merges"] for own in runs if own["confidence"] == c) for c in (None, 0.95)
        )
        assert careful < bold, "with confidence less is accepted"
        assert sum(own["uncertain"] for own in runs if own["confidence"]) > 0, "what gains may be uncertain"


if __name__ == "__main__":
    main()
