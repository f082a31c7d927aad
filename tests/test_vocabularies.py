"""The words of a corpus are stored with the topic model fitted to it, and told, compared and refused without it."""

from __future__ import annotations

import io
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from rich.console import Console
from scipy import sparse

import dpdist
from dpdist.cli.app import predict
from dpdist.core.errors import InputError
from dpdist.core.strings import join_strings, part_strings
from dpdist.data.corpora import write_corpus
from dpdist.inference.schedules import Batch, Memoized, Stochastic
from dpdist.report.show import shown_tables, shown_values
from dpdist.runs.opening import open_run
from tests.runs import mixture
from tests.test_topic_model import VOCABULARY, blocks, model_of

WORDS = ["", "word", "Wörter", "語", "a b\n", *VOCABULARY[5:]]
SCHEDULES = {
    "memoized": {"schedule": Memoized(batches=3), "max_laps": 2},
    "online": {"weights": "point", "schedule": Stochastic(batches=2), "moves": dpdist.OnlinePlan(), "max_laps": 1},
    "batch": {"weights": "point", "schedule": Batch(), "moves": None, "max_laps": 2},
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, and with one over the same words in another order."""
    folder = tmp_path_factory.mktemp("vocabularies")
    write_corpus(folder / "corpus.zarr", [blocks(60)], WORDS)
    write_corpus(folder / "turned.zarr", [blocks(9)], WORDS[::-1])
    return folder


@pytest.fixture(scope="module", params=SCHEDULES)
def run(request: pytest.FixtureRequest, corpora: Path) -> Path:
    """A run over a corpus that was then taken away."""
    away, path = corpora / f"{request.param}-corpus.zarr", corpora / f"{request.param}.zarr"
    shutil.copytree(corpora / "corpus.zarr", away)
    for _ in model_of(**SCHEDULES[request.param]).iter_fit(away, checkpoint_path=path):
        pass
    shutil.rmtree(away)
    return path


@pytest.mark.parametrize("strings", [[], [""], WORDS, ["", "", "x"]])
def test_strings_joined_and_parted_are_the_same(strings: list[str]) -> None:
    text, offsets = join_strings(strings)
    assert text.dtype == np.uint8 and offsets.dtype == np.int64 and len(offsets) == len(strings) + 1
    assert part_strings(text, offsets) == strings


def test_a_model_knows_its_words_where_its_corpus_is_not(run: Path, tmp_path: Path) -> None:
    model = dpdist.load(run)
    assert model.vocabulary_ == WORDS and model.top_words(words=3) == model.top_words(WORDS, 3)
    model.save(tmp_path / "saved.zarr")
    assert dpdist.load(tmp_path / "saved.zarr").vocabulary_ == WORDS
    for path in (run, tmp_path / "saved.zarr"):
        assert shown_values(str(path))["top_words"] == model.top_words()


def test_any_reader_of_zarr_can_read_the_words(run: Path) -> None:
    group = zarr.open_group(run, mode="r")[open_run(run).attributes["problem"]]
    text, ends = group["problem/vocabulary.text"][:].tobytes(), group["problem/vocabulary.offset"][:]
    assert [text[a:b].decode() for a, b in itertools.pairwise(ends)] == WORDS


def test_documents_over_other_words_are_refused(run: Path, corpora: Path) -> None:
    model, turned = dpdist.load(run), str(corpora / "turned.zarr")
    for call in (model.transform, model.score, model.coherence, model.partial_fit):
        with pytest.raises(
            InputError, match=r"turned.zarr should have the vocabulary of .*; column 0 is 'word11', but was '' in"
        ):
            call(turned)
    with pytest.raises(InputError, match=f"should have the vocabulary of {run}, in the same order"):
        predict(str(run), turned, str(corpora / "x.zarr"))
    assert not (corpora / "x.zarr").exists()
    assert model.transform(corpora / "corpus.zarr").shape == (60, model.n_topics_)
    assert model.transform(blocks(5)).shape == (5, model.n_topics_), "arrays are over whatever words"


def test_mini_batches_keep_the_words(run: Path, corpora: Path, tmp_path: Path) -> None:
    for model in (dpdist.load(run), model_of()):
        model.partial_fit(corpora / "corpus.zarr").partial_fit(blocks(20, seed=3))
        model.save(tmp_path / "model.zarr", overwrite=True)
        assert dpdist.load(tmp_path / "model.zarr").vocabulary_ == WORDS


def test_models_of_arrays_have_no_words(tmp_path: Path) -> None:
    model = model_of(max_laps=1).fit(blocks(60))
    model.save(tmp_path / "model.zarr")
    for each in (model, dpdist.load(tmp_path / "model.zarr")):
        assert each.vocabulary_ is None and each.top_words(VOCABULARY, 2) == model.top_words(VOCABULARY, 2)
        with pytest.raises(InputError, match="the words are unknown, because the fit had no vocabulary"):
            each.top_words()
    assert shown_values(str(tmp_path / "model.zarr"))["top_words"] is None


ODD = ["[deleted]", "[/b]", ":smile:", "$\\frac", "x$", "[red]"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over words that libraries of output take for commands, in a folder of such a name."""
    folder = tmp_path_factory.mktemp("odd") / "[red]x"
    folder.mkdir()
    counts = sparse.csr_array(np.random.default_rng(0).poisson(2.0, size=(40, len(ODD))))
    write_corpus(folder / "corpus.zarr", [counts], ODD)
    model_of(max_laps=1, initial_topics=2).fit(folder / "corpus.zarr").save(folder / "model.zarr")
    return folder / "model.zarr"


def test_words_and_paths_are_shown_as_they_are(odd: Path) -> None:
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(shown_tables(str(odd)))
    told = "".join(console.export_text().split())  # a title is as wide as its table
    assert str(odd) in told and all(word in told for word in ODD)


@pytest.mark.parametrize(("weight", "named"), [(1.0, "rows"), (0.3, "total weight of rows")])
def test_a_total_of_weights_is_not_called_a_number_of_rows(weight: float, named: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(45, 2))
    mixture(max_laps=1).fit(rows, sample_weight=np.full(45, weight)).save(tmp_path / "model.zarr")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown_tables(str(tmp_path / "model.zarr")))
    assert re.search(rf"\W {named} +\W {45 * weight:g}", console.export_text())


def test_words_are_drawn_as_they_are(odd: Path) -> None:
    axes = dpdist.plot.clusters(odd)
    axes.figure.savefig(io.BytesIO())
    words = " ".join(text.get_text() for text in axes.texts).replace(r"\$", "$")
    assert all(word in words for word in ODD)
