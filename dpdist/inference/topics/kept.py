"""Documents' topics between two visits: in a file a partition, at the place where the run is stored.

A worker writes what a visit left of a partition's documents and reads it at the next visit; the batch's summary holds
the file's digest, and under which names the topics of then go now. So what the coordinator holds does not grow with
documents. A run that is stored nowhere, or at a place that its workers do not reach, has documents' topics in its batch
summaries instead, and computes the same bits.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdist.execution.base import Backend
from dpdist.inference.files import RunFiles
from dpdist.inference.topics.documents import DocumentTopics, join_documents


@dataclass(frozen=True, eq=False)
class VisitedDocuments:
    """A partition's documents as a visit left them: under the current topics of then, and under candidates, if any."""

    current: DocumentTopics
    candidate: DocumentTopics | None = None

    def __bytes__(self) -> bytes:
        """As NumPy's own format has arrays: ``current_*`` and ``candidate_*`` of indptr, topics and counts."""
        sets = {"current": self.current} | ({} if self.candidate is None else {"candidate": self.candidate})
        arrays = {f"{name}_{field}": array for name, each in sets.items() for field, array in vars(each).items()}
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    @staticmethod
    def of(data: bytes) -> VisitedDocuments:
        """What was made to `data`."""
        with np.load(io.BytesIO(data)) as found:
            sets = [
                DocumentTopics(**{each: found[f"{name}_{each}"] for each in ("indptr", "topics", "counts")})
                for name in ("current", "candidate")
                if f"{name}_indptr" in found
            ]
        return VisitedDocuments(*sets)


@dataclass(frozen=True, eq=False)
class KeptDocuments:
    """Where a partition's documents are: `name` and `digest` of a file, or, without a digest, `here`."""

    name: str
    digest: str
    here: VisitedDocuments | None = None


@dataclass(frozen=True)
class DocumentFiles(RunFiles):
    """Where a run keeps its documents' topics; without a path, in its batch summaries."""

    holding = "documents' topics"

    def folder(self, lap: int) -> str:
        """Of the visits of a lap."""
        return self.folder_of(lap, "documents")

    def put(self, lap: int, partition: int, visited: VisitedDocuments) -> KeptDocuments:
        """Keep what a visit of a lap left of a partition; a task that is made again writes the same."""
        name = f"{partition:06d}.npz"
        if self.path is None:
            return KeptDocuments(name, "", visited)
        return KeptDocuments(name, self.write(self.folder(lap), name, bytes(visited)).digest)

    def take(self, folder: str, kept: KeptDocuments) -> VisitedDocuments:
        """What a visit left; raises :class:`CheckpointError` as :meth:`read` does."""
        if kept.here is not None:
            return kept.here
        return VisitedDocuments.of(self.read(folder, kept.name, kept.digest))


@dataclass(frozen=True, eq=False)
class TopicNames:
    """How the topics of today are numbered where documents have them as of their last visit.

    Parameters
    ----------
    candidate : whether it comes from the candidates of then
    names : (K,) what each topic of then is called now, -1 for those that are gone; None: as then
    """

    candidate: bool
    names: np.ndarray | None = None

    def renamed(self, names: np.ndarray) -> TopicNames:
        """The same with topic k, as it is called now, called ``names[k]``; -1 goes."""
        if self.names is None:
            return replace(self, names=names)
        return replace(self, names=np.where(self.names < 0, -1, names[self.names]))

    def of(self, visited: VisitedDocuments) -> DocumentTopics:
        """Documents under this set of topics."""
        found = visited.candidate if self.candidate else visited.current
        assert found is not None, "documents were fitted under the candidates"
        return found if self.names is None else found.renamed(self.names)


@dataclass(frozen=True, eq=False)
class BatchDocuments:
    """Topics of a batch's documents.

    Parameters
    ----------
    folder : of the files that their last visit wrote
    partitions : the batch's, in order
    current, candidate : the topics they are of by now
    """

    folder: str
    partitions: tuple[KeptDocuments, ...]
    current: TopicNames
    candidate: TopicNames | None = None

    def __add__(self, other: BatchDocuments) -> BatchDocuments:
        return replace(self, partitions=self.partitions + other.partitions)

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Digests of files by name, by folder."""
        digests = {kept.name: kept.digest for kept in self.partitions if kept.digest}
        return {self.folder: digests} if digests else {}

    def starts(self) -> list[WarmStart]:
        """Where the documents of each partition begin."""
        return [WarmStart(self.folder, kept, self.current, self.candidate) for kept in self.partitions]


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Where documents of a partition begin: their topics after the last visit, as :class:`BatchDocuments` has them."""

    folder: str
    kept: KeptDocuments
    current: TopicNames
    candidate: TopicNames | None

    def read(self, files: DocumentFiles) -> tuple[DocumentTopics, DocumentTopics | None]:
        """Their topics, current and candidate."""
        visited = files.take(self.folder, self.kept)
        return self.current.of(visited), None if self.candidate is None else self.candidate.of(visited)


def tokens_beside(
    files: DocumentFiles, batches: Sequence[BatchDocuments], removed: np.ndarray, topics: int, backend: Backend
) -> np.ndarray:
    """Expected tokens (R, K) of topics in the documents of each of the topics `removed`, by its share of a document."""
    parts = len(batches)
    columns = ([files] * parts, batches, [removed] * parts, [topics] * parts)
    return sum(backend.fetch(backend.map(_beside, *columns)), np.zeros((len(removed), topics)))


def _beside(files: DocumentFiles, batch: BatchDocuments, removed: np.ndarray, topics: int) -> np.ndarray:
    used = join_documents([start.read(files)[0] for start in batch.starts()]).matrix(topics)
    tokens = np.maximum(np.asarray(used.sum(axis=1)).ravel(), 1e-300)
    return ((used[:, removed].T / tokens) @ used).toarray()
