"""Documents as word counts, read from files in blocks.

npz      a SciPy matrix in CSR, of ``scipy.sparse.save_npz`` or of ``numpy.savez``
docword  UCI's format, as docword.nytimes.txt.gz
ldac     that of lda-c, as ap.dat

Text may be compressed with gzip. Repeated words in a document are added; documents without words are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scipy import sparse

from dpdist.core.errors import InputError
from dpdist.data.documents.docword import read_docword
from dpdist.data.documents.ldac import read_ldac
from dpdist.data.documents.npz import read_npz
from dpdist.data.documents.text import read_vocabulary
from dpdist.data.files import refuse_url, require_file

__all__ = ["FORMATS", "open_documents", "read_vocabulary"]

#: Readers of files by format; they take the path, and the size of the vocabulary if known.
FORMATS: dict[str, Callable[[Path, int | None], Iterator[sparse.csr_array]]] = {
    "npz": read_npz,
    "docword": read_docword,
    "ldac": read_ldac,
}


def open_documents(
    source: str, format: str = "auto", vocabulary: Sequence[str] | None = None
) -> Iterator[sparse.csr_array]:
    """The documents of a file as CSR blocks (n, W) of counts, which are read on iteration.

    If only the end of the file tells the vocabulary, W is the number of words so far.

    Parameters
    ----------
    source : path of a file on local disk
    format : npz, docword, ldac, or auto to decide by the file name
    vocabulary : the word of each column; must have as many words as the file

    Raises
    ------
    InputError
        If there is no such file, or the format is unknown. Errors within the file, and a vocabulary of the wrong size,
        are raised while the blocks are read.
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
        f"{path} should have a name like counts.npz, docword.NAME.txt or NAME.ldac, which tells its format. "
        f"Rename it, or give format=NAME, one of {', '.join(FORMATS)}."
    )
