"""Documents as counts of words, read from files a block at a time.

npz      a SciPy matrix in CSR, of ``scipy.sparse.save_npz`` or of ``numpy.savez``
docword  UCI's format, as docword.nytimes.txt.gz
ldac     that of lda-c, as ap.dat

Text may be compressed with gzip. A word given twice in a document is counted twice; documents without words are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.documents.counts import MOST, are_whole, check_block, check_weights
from dpdist.data.documents.docword import read_docword
from dpdist.data.documents.ldac import read_ldac
from dpdist.data.documents.npz import read_npz
from dpdist.data.documents.text import read_vocabulary
from dpdist.data.files import refuse_url, require_file

__all__ = [
    "FORMATS",
    "MOST",
    "are_whole",
    "check_block",
    "check_weights",
    "open_documents",
    "read_vocabulary",
]

#: What reads a file, given the size of its vocabulary if that is known.
FORMATS: dict[str, Callable[[Path, int | None], Iterator[sparse.csr_array]]] = {
    "npz": read_npz,
    "docword": read_docword,
    "ldac": read_ldac,
}


def open_documents(
    source: str, format: str = "auto", vocabulary: Sequence[str] | None = None
) -> Iterator[sparse.csr_array]:
    """The documents of a file, which is not read yet, as CSR blocks (n, W) of counts.

    W is the words known so far where only the end of the file tells.

    Parameters
    ----------
    source : path of a file on local disk
    format : npz, docword, ldac, or auto to go by the file's name
    vocabulary : the word of each column; must be as many as the file says

    Raises
    ------
    InputError
        If there is no such file, or it is none of the formats. What is wrong within, or that the vocabulary is not of
        its size, is found while the blocks are read.
    """
    refuse_url(source)
    path = Path(source)
    reader = FORMATS.get(_format_by_name(path) if format == "auto" else format)
    if reader is None:
        raise InputError(f"format should be one of auto, {', '.join(FORMATS)}; got '{format}'. Choose one of those.")
    require_file(path)
    return reader(path, None if vocabulary is None else len(vocabulary))


def _format_by_name(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".npz"):
        return "npz"
    if name.endswith((".ldac", ".dat")):
        return "ldac"
    if name.startswith("docword") or name.endswith(".txt"):
        return "docword"
    raise InputError(
        f"{path} should be called like counts.npz, docword.NAME.txt or NAME.ldac, by which its format is told. "
        f"Rename it, or give format=NAME, one of {', '.join(FORMATS)}."
    )
