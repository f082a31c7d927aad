"""Rows for a report: an evenly spread part of the data, or draws from the model if the data are not available."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpdist.core.errors import DpdistError
from dpdist.core.randomness import generator
from dpdist.data import Source, source_like
from dpdist.inference.prediction import Predictor
from dpdist.inference.topics.prediction import DocumentPredictor, checked_documents
from dpdist.models.families.base import Rows, dense_rows
from dpdist.runs.view import View

#: Largest number of values in the rows that are read.
NUMBERS = 50_000_000
#: Number of rows drawn from a model whose data are not available.
DRAWN = 2000


@dataclass(frozen=True, eq=False)
class SomeRows:
    """A part of the rows.

    Parameters
    ----------
    rows : (n, D) raw; CSR for documents
    weights : (n,) float64; None if all are equal
    places : (n,) position of each in the data; None for draws from the model
    origin : description of where they come from
    names : of the columns, if they have any
    """

    rows: Rows
    weights: np.ndarray | None
    places: np.ndarray | None
    origin: str
    names: tuple[str, ...] | None


def rows_of(view: View, data: object, most: int) -> SomeRows | None:
    """About `most` rows of the run's data, or of `data` if given; draws from the model if the data cannot be read.

    For topic models the result is then None, as the lengths of documents are not part of the model.
    """
    predictor = view.predictor
    given = view.settings.get("data") if data is None else data
    try:
        if given is None:
            raise FileNotFoundError("the data of the run were in memory, and no data are given")
        source = source_like(given, predictor.names, view.settings)
        predictor.check_source(source, view.label)
        return _some(source, most, isinstance(predictor, DocumentPredictor))
    except (DpdistError, OSError) as error:
        if data is not None:
            raise
        return None if isinstance(predictor, DocumentPredictor) else _drawn(predictor, min(DRAWN, most), str(error))


def _some(source: Source, most: int, documents: bool) -> SomeRows:
    """The first rows of evenly spread partitions, equally many of each; all rows if there are at most `most`."""
    count, columns = source.shape
    most = min(most, count, max(1, NUMBERS // (1 if documents else columns)))
    partitions = source.partitions
    if most >= count:
        each, chosen = count, np.arange(len(partitions))
    else:
        sizes = np.array([part.rows for part in partitions])
        needed = min(len(partitions), int(np.ceil(most / sizes.mean())))
        chosen = np.unique(np.linspace(0, len(partitions) - 1, needed).round().astype(int))
        each = -(-most // len(chosen))
    loaded, ranges = [], []
    for part in (partitions[i] for i in chosen):
        rows = checked_documents(part) if documents else part.load()[0]
        loaded.append(rows[:each])
        ranges.append(np.arange(part.start, part.start + loaded[-1].shape[0]))
    rows = sparse.csr_array(sparse.vstack(loaded)) if documents else np.concatenate([*map(dense_rows, loaded)])
    what = "documents" if documents else "rows"
    told = f"all {count:,}" if rows.shape[0] == count else f"{rows.shape[0]:,} of the {count:,}"
    places = np.concatenate(ranges)
    weights = None if source.weights is None else source.weights[places]
    return SomeRows(rows, weights, places, f"{told} {what} of {source.label}", source.names)


def _drawn(predictor: Predictor, count: int, why: str) -> SomeRows:
    """Rows of the existing clusters only, because draws from the prior would be as broad as the prior."""
    rng, shares = generator(0, "rows of a report"), predictor.shares()
    rows = predictor.draw(rng.choice(len(shares), size=count, p=shares), rng)
    told = f"{count:,} rows drawn from the model, because {why.rstrip('.')}"
    return SomeRows(rows, None, None, told, predictor.preparation.names)
