"""Documents' topics between two visits: one file per partition, at the place of the run.

A worker writes the topics of a partition's documents after a visit and reads them at the next one. The batch summary
holds the file's digest and the present names of the stored topics. So the coordinator's memory does not grow with the
number of documents. A run without a place, or whose workers cannot reach it, keeps documents' topics in its batch
summaries instead; results are the same to the bit.
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
    """A partition's documents after a visit: under the current topics at that time, and under candidates, if any."""

    current: DocumentTopics
    candidate: DocumentTopics | None = None

    def __bytes__(self) -> bytes:
        """In NumPy's format: arrays ``current_*`` and ``candidate_*`` of indptr, topics and counts."""
        sets = {"current": self.current} | ({} if self.candidate is None else {"candidate": self.candidate})
        arrays = {f"{name}_{field}": array for name, each in sets.items() for field, array in vars(each).items()}
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    @staticmethod
    def of(data: bytes) -> VisitedDocuments:
        """The documents stored in `data`."""
        with np.load(io.BytesIO(data)) as found:
            sets = [
                DocumentTopics(**{each: found[f"{name}_{each}"] for each in ("indptr", "topics", "counts")})
                for name in ("current", "candidate")
                if f"{name}_indptr" in found
            ]
        return VisitedDocuments(*sets)


@dataclass(frozen=True, eq=False)
class KeptDocuments:
    """Location of a partition's documents: `name` and `digest` of a file, or `here` without a digest."""

    name: str
    digest: str
    here: VisitedDocuments | None = None


@dataclass(frozen=True)
class DocumentFiles(RunFiles):
    """Where a run stores its documents' topics; without a path, in its batch summaries."""

    holding = "documents' topics"

    def folder(self, lap: int) -> str:
        """Folder for the visits of a lap."""
        return self.folder_of(lap, "documents")

    def put(self, lap: int, partition: int, visited: VisitedDocuments) -> KeptDocuments:
        """Store the result of a visit of a partition; a repeated task writes the same file."""
        name = f"{partition:06d}.npz"
        if self.path is None:
            return KeptDocuments(name, "", visited)
        return KeptDocuments(name, self.write(self.folder(lap), name, bytes(visited)).digest)

    def take(self, folder: str, kept: KeptDocuments) -> VisitedDocuments:
        """The result of a visit; raises :class:`CheckpointError` like :meth:`read`."""
        if kept.here is not None:
            return kept.here
        return VisitedDocuments.of(self.read(folder, kept.name, kept.digest))


@dataclass(frozen=True, eq=False)
class TopicNames:
    """Map from the topics at the documents' last visit to the present topics.

    Parameters
    ----------
    candidate : whether the stored topics are the candidates of that visit
    names : (K,) the present number of each stored topic, -1 for removed ones; None if unchanged
    """

    candidate: bool
    names: np.ndarray | None = None

    def renamed(self, names: np.ndarray) -> TopicNames:
        """The map with the present topic k renamed to ``names[k]``; -1 removes it."""
        if self.names is None:
            return replace(self, names=names)
        return replace(self, names=np.where(self.names < 0, -1, names[self.names]))

    def of(self, visited: VisitedDocuments) -> DocumentTopics:
        """The visited documents under this set of topics."""
        found = visited.candidate if self.candidate else visited.current
        assert found is not None, "documents were fitted under the candidates"
        return found if self.names is None else found.renamed(self.names)


@dataclass(frozen=True, eq=False)
class BatchDocuments:
    """Topics of a batch's documents.

    Parameters
    ----------
    folder : of the files that the last visit wrote
    partitions : of the batch, in order
    current, candidate : maps to the present topics
    """

    folder: str
    partitions: tuple[KeptDocuments, ...]
    current: TopicNames
    candidate: TopicNames | None = None

    def __add__(self, other: BatchDocuments) -> BatchDocuments:
        return replace(self, partitions=self.partitions + other.partitions)

    @property
    def files(self) -> dict[str, dict[str, str]]:
        """Folder -> file name -> digest."""
        digests = {kept.name: kept.digest for kept in self.partitions if kept.digest}
        return {self.folder: digests} if digests else {}

    def starts(self) -> list[BatchDocuments]:
        """The documents of each partition alone, whose topics are the initial ones of its next visit."""
        return [replace(self, partitions=(kept,)) for kept in self.partitions]

    def read(self, files: DocumentFiles) -> tuple[DocumentTopics, DocumentTopics | None]:
        """The topics, current and candidate, of the documents of a single partition."""
        (kept,) = self.partitions
        visited = files.take(self.folder, kept)
        return self.current.of(visited), None if self.candidate is None else self.candidate.of(visited)


def tokens_beside(
    files: DocumentFiles, batches: Sequence[BatchDocuments], removed: np.ndarray, topics: int, backend: Backend
) -> np.ndarray:
    """Expected tokens (R, K) of topics in the documents of `removed` topics, weighted by these topics' shares."""
    parts = len(batches)
    columns = ([files] * parts, batches, [removed] * parts, [topics] * parts)
    return sum(backend.fetch(backend.map(_beside, *columns)), np.zeros((len(removed), topics)))


def _beside(files: DocumentFiles, batch: BatchDocuments, removed: np.ndarray, topics: int) -> np.ndarray:
    used = join_documents([start.read(files)[0] for start in batch.starts()]).matrix(topics)
    tokens = np.maximum(np.asarray(used.sum(axis=1)).ravel(), 1e-300)
    return ((used[:, removed].T / tokens) @ used).toarray()
