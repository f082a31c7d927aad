"""A stream of newspaper size, after Bryant & Sudderth (2012), section 4.3 and figure 3: does the number of topics
follow?

No corpus of that size is available, so articles are resampled: each document of the stream keeps each token of one
randomly drawn article with probability one half. Nothing is drawn from a model, so words are as bursty as in articles.
Articles held out for scoring are never in the stream: 80 % of their tokens are observed and the others predicted.
Mini-batches are discarded after their step. oHDP keeps its initial number of topics; oHDP-SM adds topics as needed. All
settings are the defaults.

Among the splits of oHDP-SM whose halves both survive to the end of the stream, those whose smaller half has the most
tokens there are shown: the most frequent words of the topic before the split, and of its halves afterwards and at the
end.

Written to --out: results, one file per run, which are not repeated, and continue in the middle of a stream; table.csv,
table.txt, traces.png; lives.csv, lives.txt, lives.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from scipy import sparse
from shared import Corpus, Fields, Kept, corpus_of, draw_traces, drawn, ended, fixed, online, options, used, write_table

import dpdist
from dpdist import HDPTopicModel
from dpdist.inference.moves.accept import Reason

COLUMNS = ["method", "from", "documents", "topics", "used", "held out", "seconds"]
LIFE = ["split", "topic", "tokens then", "before", "just after", "tokens at the end", "at the end"]
#: Mini-batches from one saved model to the next, words that a topic is told by, and splits that are told.
OFTEN, WORDS, TOLD = 5, 8, 4


def resampled(originals: sparse.csr_array, documents: int, key: int) -> sparse.csr_array:
    """Halves of originals (documents, W), the same for the same key."""
    rng = np.random.default_rng((1, key))
    found = sparse.csr_array(originals[rng.integers(originals.shape[0], size=documents)])
    found.data = rng.binomial(found.data.astype(np.int64), 0.5).astype(np.float64)
    found.eliminate_zeros()
    return found


class Stream:
    """A model on its way through a stream, kept in a folder every few mini-batches.

    Parameters
    ----------
    folder : where it is kept
    model : before the first mini-batch
    """

    def __init__(self, folder: Path, model: HDPTopicModel) -> None:
        self._folder, self.model = folder, model
        self.found: Fields = {"points": [], "splits": [], "shares": []}
        if (folder / "way.json").exists():
            self.found = json.loads((folder / "way.json").read_text())
            self.model = dpdist.load(folder / f"{len(self.found['points'])}.zarr")

    def take(self, batch: sparse.csr_array, documents: int, corpus: Corpus) -> None:
        """Take in a mini-batch of a stream of so many documents, and keep what it did."""
        before = top_words(self.model, corpus.words) if self.found["points"] else {}
        began, spent = time.process_time(), self.found["points"][-1][3] if before else 0.0
        self.model.partial_fit(batch, documents=documents)
        seconds, sizes = round(spent + time.process_time() - began, 2), self.model.topic_sizes_
        seen = batch.shape[0] * (1 + len(self.found["points"]))
        score = self.model.score(corpus.held, observed=corpus.observed)
        self.found["points"].append([seen, used(sizes), score, seconds])
        shares = dict(
            zip(map(str, self.model.topic_ids_.tolist()), np.round(sizes / sizes.sum(), 6).tolist(), strict=True)
        )
        self.found["shares"].append(shares)
        after = top_words(self.model, corpus.words)
        born = sorted(key for key in after if before and key not in before)
        for parent, child in zip(self._split_topics() if before else [], born, strict=True):
            told = {"seen": seen, "topic": parent, "half": child, "before": before[parent]}
            self.found["splits"].append({**told, "after": [after[parent], after[child]]})

    def _split_topics(self) -> list[int]:
        """Ids of the topics split by the last mini-batch, in the order in which their second halves got theirs."""
        history = self.model.history_
        last = history["proposal_lap"] == self.model.n_iter_
        split = (history["proposal_kind"] == "split") & (history["proposal_reason"] == Reason.ACCEPTED.value)
        return [int(k) for k in history["proposal_component"].values[(last & split).values]]

    def keep(self) -> None:
        """Write down where it is."""
        number = len(self.found["points"])
        self.model.save(self._folder / f"{number}.zarr", overwrite=True)
        (self._folder / "way.part").write_text(json.dumps(self.found))
        (self._folder / "way.part").replace(self._folder / "way.json")
        for old in self._folder.glob("*.zarr"):
            if old.name != f"{number}.zarr":
                shutil.rmtree(old)


def top_words(model: HDPTopicModel, words: list[str]) -> dict[int, str]:
    """The most frequent words of each topic, by its id."""
    best = np.argsort(-model.components_, axis=1, kind="stable")[:, :WORDS]
    return {k: " ".join(words[w] for w in row) for k, row in zip(model.topic_ids_.tolist(), best, strict=True)}


def follow(folder: Path, model: HDPTopicModel, corpus: Corpus, batches: int, batch: int) -> Fields:
    """A model taken through the whole stream; what is left of it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = Stream(folder, model)
    for number in range(len(stream.found["points"]), batches):
        stream.take(resampled(corpus.train, batch, number), batches * batch, corpus)
        if number % OFTEN == OFTEN - 1:
            stream.keep()
            print(f"{folder.name}: {stream.found['points'][-1]}", flush=True)
    ids, last = stream.model.topic_ids_.tolist(), top_words(stream.model, corpus.words)
    shutil.rmtree(folder)
    told = {str(k): last[k] for k in ids}
    return {"topics": len(ids), **ended(stream.found["points"]), **stream.found, "at_end": told}


def lasting(run: Fields) -> list[Fields]:
    """Splits whose halves both live to the end, those of the largest smaller half first; one a topic, its first."""
    final, found = run["shares"][-1], dict[int, Fields]()
    for split in run["splits"]:
        halves = [final.get(str(split[name]), 0.0) for name in ("topic", "half")]
        if min(halves) > 0:
            found.setdefault(split["topic"], {**split, "final": halves})
    return sorted(found.values(), key=lambda split: -min(split["final"]))


def write_lives(run: Fields, out: Path) -> None:
    """A table of what became of topics that were split, and the share of tokens of the first of them and its halves."""
    rows, chosen = list[list[object]](), lasting(run)[:TOLD]
    shares = {seen: own for (seen, *_), own in zip(run["points"], run["shares"], strict=True)}
    for split in chosen:
        for name, after, final in zip(("topic", "half"), split["after"], split["final"], strict=True):
            key, before = str(split[name]), split["before"] if name == "topic" else "-"
            then = f"{shares[split['seen']][key]:.2%}"
            rows.append([split["seen"], key, then, before, after, f"{final:.2%}", run["at_end"][key]])
    write_table(LIFE, rows, out, "lives")
    figure, axes = plt.subplots(max(len(chosen), 1), 1, figsize=(11, 3 * max(len(chosen), 1)), squeeze=False)
    for axis, split in zip(axes[:, 0], chosen, strict=False):
        for name, colour in (("topic", "C0"), ("half", "C1")):
            key = str(split[name])
            seen = [at for at, own in shares.items() if key in own]
            label = f"topic {key}, at the end: {run['at_end'][key]}"
            axis.plot(seen, [shares[at][key] for at in seen], colour, marker=".", label=label)
        axis.axvline(split["seen"], color="grey", linestyle=":", label=f"split; before: {split['before']}")
        axis.set(xlabel="documents seen", ylabel="share of tokens", ylim=(0, None))
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out / "lives.png", dpi=120)
    plt.close(figure)


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = options(__doc__, "hdp_stream")
    parser.add_argument("--corpus", choices=["nips", "kos"], default="kos", help="NIPS articles or Daily KOS entries")
    parser.add_argument("--documents", type=int, default=300_000, help="in the stream")
    parser.add_argument("--batch", type=int, default=5_000, help="documents of a mini-batch")
    parser.add_argument("--grown", type=int, nargs="+", default=[20, 100], help="topics that oHDP-SM begins with")
    parser.add_argument("--fixed", type=int, nargs="+", default=[20, 100, 300], help="topics that oHDP keeps")
    return parser.parse_args()


def main() -> None:
    """Run the workflow."""
    given = parsed()
    corpus = corpus_of(given, drawn(400 if given.small else 3400, 300, 15))
    batch, batches = (150, 16) if given.small else (given.batch, given.documents // given.batch)
    starts = {
        "oHDP-SM": (online, [3] if given.small else given.grown),
        "oHDP": (fixed, [3] if given.small else given.fixed),
    }
    kept, runs = Kept(given.out), list[Fields]()
    for method, (make, many) in starts.items():
        for start in many:
            folder = given.out / f"{method} from {start}"
            key = {
                "method": method,
                "start": start,
                "documents": batch * batches,
                "batch": batch,
                "corpus": given.corpus,
            }
            runs.append(kept.once(key, partial(follow, folder, make(start), corpus, batches, batch)))
    draw_traces(given.out / "traces.png", runs, "method", "start")
    rows = [[run[name] for name in ("method", "start", "documents", "topics", "used")] for run in runs]
    told = [[f"{run['score']:.4f}", f"{run['seconds']:.0f}"] for run in runs]
    write_lives(runs[0], given.out)
    write_table(COLUMNS, [[*row, *more] for row, more in zip(rows, told, strict=True)], given.out)
    if given.small:
        grown, still = runs
        assert grown["used"] > still["used"] and grown["score"] > still["score"], "splits follow the stream"
        assert lasting(grown), "halves of a split live on"


if __name__ == "__main__":
    main()
