"""Batch summaries come back from a checkpoint to the bit, each from its own place."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dpdist.inference.mixture.batch_summary import BatchSummary
from dpdist.inference.state import State
from dpdist.inference.topics.batch_summary import Measured, TopicBatchSummary
from dpdist.inference.topics.documents import DocumentTopics, PairSums
from dpdist.inference.topics.kept import BatchDocuments, KeptDocuments, TopicNames, VisitedDocuments
from dpdist.inference.topics.summary import TopicSummary
from dpdist.models.sufficient_statistics import Summary
from dpdist.storage import memo
from dpdist.storage.codec import read, shape_of, write


def random_batch_summary(rng: np.random.Generator, components: int = 3) -> BatchSummary:
    """A batch summary of two trials, the second of which measures entropies alone."""
    sizes = ((components, components), (2, 2), (0, 4))
    parts = [Summary(rng.normal(size=(rows, 5)), rng.normal(size=entries), rng.normal()) for rows, entries in sizes]
    return BatchSummary(parts[0], tuple(parts[1:]))


def batch_summary_bits(batch_summary: BatchSummary) -> list[Any]:
    """A batch summary, to the bit."""
    return [
        (p.stats.tobytes(), p.stats.shape, p.entropy.tobytes(), p.base)
        for p in (batch_summary.summary, *batch_summary.measured)
    ]


def test_batch_summaries_of_a_mixture_are_stored_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for batch_summaries in (
        [random_batch_summary(rng) for _ in range(4)],
        [random_batch_summary(rng)],
        [BatchSummary(random_batch_summary(rng).summary)] * 2,
    ):
        group = zarr.group()
        write(group, batch_summaries)
        assert [batch_summary_bits(batch_summary) for batch_summary in read(group)] == [
            batch_summary_bits(batch_summary) for batch_summary in batch_summaries
        ]


def random_documents(rng: np.random.Generator, topics: int) -> Measured:
    """Sums over documents."""
    sums = (rng.normal(size=size) for size in ((6, topics), topics, (topics + 1, 4), 4))
    pairs = PairSums(rng.normal(size=2), rng.normal(size=(2, 4)))
    return Measured(TopicSummary(*sums), pairs)


def random_visit(rng: np.random.Generator, documents: int, tried: bool) -> VisitedDocuments:
    """Documents' topics as a visit leaves them, of 3 topics and of 4 candidates."""
    held = [rng.random((documents, k)) * (rng.random((documents, k)) < 0.5) for k in ((3, 4) if tried else (3,))]
    return VisitedDocuments(*map(DocumentTopics.of, held))


def visit_bits(visited: VisitedDocuments) -> list[Any]:
    """Documents' topics, to the bit."""
    sets = [each for each in (visited.current, visited.candidate) if each is not None]
    return [(array.tobytes(), array.dtype, array.shape) for each in sets for array in vars(each).values()]


def topic_bits(batch_summary: TopicBatchSummary) -> list[Any]:
    """A batch summary of documents, to the bit."""
    found: list[Any] = []
    for part in (batch_summary.current, batch_summary.candidate):
        found.append(part is not None)
        if part is not None:
            sums, pairs = part.summary, part.pairs
            arrays = (sums.words, sums.entropy, sums.groups, sums.totals, pairs.entropy, pairs.groups)
            found += [(array.tobytes(), array.shape) for array in arrays]
    if (documents := batch_summary.documents) is not None:
        names = [each and (each.candidate, each.names) for each in (documents.current, documents.candidate)]
        kept = [(one.name, one.digest, one.here and visit_bits(one.here)) for one in documents.partitions]
        found += [documents.folder, repr(names), kept]
    return found


@pytest.mark.parametrize("known", ["nowhere", "here", "in files"])
@pytest.mark.parametrize("tried", [True, False])
def test_batch_summaries_of_topics_are_stored_to_the_bit(known, tried) -> None:
    rng = np.random.default_rng(0)

    def left(sizes: tuple[int, ...]) -> BatchDocuments | None:
        kept = [
            KeptDocuments(f"{n}.npz", "", random_visit(rng, n, tried))
            if known == "here"
            else KeptDocuments(f"{n}", "7")
            for n in sizes
        ]
        names = TopicNames(candidate=False, names=rng.permutation(3)), TopicNames(candidate=True) if tried else None
        return None if known == "nowhere" else BatchDocuments("objects/3", tuple(kept), *names)

    batch_summaries = [
        TopicBatchSummary(random_documents(rng, 3), random_documents(rng, 4) if tried else None, left(sizes))
        for sizes in ((5, 1), (2,), (7, 3))
    ]
    group = zarr.group()
    write(group, batch_summaries)
    assert [topic_bits(batch_summary) for batch_summary in read(group)] == [
        topic_bits(batch_summary) for batch_summary in batch_summaries
    ]


@pytest.mark.parametrize("tried", [True, False])
def test_documents_topics_come_back_from_their_file_to_the_bit(tried) -> None:
    visited = random_visit(np.random.default_rng(0), 9, tried)
    assert visit_bits(VisitedDocuments.of(bytes(visited))) == visit_bits(visited)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=20), st.integers(1, 60))
def test_batch_summaries_of_one_pack_have_one_shape(sizes, pack_bytes) -> None:
    batch_summaries = [Summary(np.zeros((rows, columns)), np.zeros(0), 0.0) for columns, rows in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo, "PACK_BYTES", pack_bytes)
        packs = memo.packed(batch_summaries, 7)
    assert sorted(map(id, batch_summaries)) == sorted(
        id(batch_summary) for pack in packs.values() for batch_summary in pack
    )
    assert all(name.startswith("objects/000007-") for name in packs)
    for pack in packs.values():
        assert pack and len({batch_summary.stats.shape[1] for batch_summary in pack}) == 1
        assert len(pack) == 1 or sum(batch_summary.stats.nbytes for batch_summary in pack) <= pack_bytes
    for columns in range(1, 4):
        mine = [pack for pack in packs.values() if pack[0].stats.shape[1] == columns]
        filled = [
            sum(batch_summary.stats.nbytes for batch_summary in pack) + after[0].stats.nbytes
            for pack, after in itertools.pairwise(mine)
        ]
        assert all(size > pack_bytes for size in filled)  # a pack is begun only where the one before is full


def test_batch_summaries_that_add_have_one_shape_and_others_another() -> None:
    rng = np.random.default_rng(0)
    one, other = random_batch_summary(rng), random_batch_summary(rng)
    shape, size = shape_of(one)
    assert shape == shape_of(other)[0] == shape_of(one + other)[0] != shape_of(BatchSummary(one.summary))[0]
    assert size == 8 * (3 * 5 + 3 + 2 * 5 + 2 + 4)
    sums, visited = random_documents(rng, 3), random_visit(rng, 5, tried=False)
    kept = [(KeptDocuments("5.npz", "", visited),), (KeptDocuments("5.npz", "7"),)]
    here, filed = (BatchDocuments("objects/3", each, TopicNames(candidate=False)) for each in kept)
    pairs = itertools.product((None, sums), (None, here, filed))
    batch_summaries = [TopicBatchSummary(sums, *pair) for pair in pairs]
    shapes, sizes = zip(*map(shape_of, batch_summaries), strict=True)
    assert len(set(shapes)) == 4  # where documents' topics are in files, all are in one array of digests or none
    assert sizes[3] == 2 * sizes[0] == 2 * sizes[2]
    assert sizes[1] - sizes[0] == sum(len(each[0]) for each in visit_bits(visited))


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_every_batch_summary_of_a_state_is_named_at_its_own_place(started, running) -> None:
    rng = np.random.default_rng(0)
    batch_summaries = [random_batch_summary(rng) for _ in range(7)]
    start, total = batch_summaries[3] if started else None, batch_summaries[4] if running else None
    empty = np.zeros(0)
    state = State(
        4,
        (0, 1, 2),
        1,
        empty,
        0,
        tuple(batch_summaries[:3]),
        start,
        (),
        empty,
        queue=tuple(batch_summaries[5:]),
        running=total,
    )
    followed = memo.Memo(state)
    kept: dict[str, list[Any]] = {}
    for _ in range(2):  # stored anew, then known
        manifest, packs = followed.manifest(state)
        kept |= packs
        place = {"start": (manifest.start, start), "running": (manifest.running, total)}
        assert [kept[at.pack][at.index] for at in manifest.batches] == batch_summaries[:3]
        assert [kept[at.pack][at.index] for at in manifest.queue] == batch_summaries[5:]
        assert all((at is None) == (batch_summary is None) for at, batch_summary in place.values())
        assert all(kept[at.pack][at.index] is batch_summary for at, batch_summary in place.values() if at is not None)
        assert manifest.component_map is None and manifest.packs == sorted(kept)
        followed.stored(state, manifest)
    assert not packs
