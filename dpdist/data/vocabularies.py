"""The words that documents are counted over: and that they are those of a model."""

from __future__ import annotations

from dpdist.core.errors import InputError
from dpdist.data import Source
from dpdist.data.columns import Names

#: The word of each column, in order.
Words = Names


def check_same_words(known: Words | None, source: Source, model: str) -> None:
    """Raise :class:`InputError` if documents are known to be counted over other words than a model was fitted to.

    Parameters
    ----------
    known : of the model, as many as the documents have columns
    source : the documents
    model : how the message names it
    """
    own = source.names
    if known is None or own is None or known == own:
        return
    place = next(w for w, (word, other) in enumerate(zip(known, own, strict=True)) if word != other)
    raise InputError(
        f"the words of {source.label} should be those that {model} was fitted to, in their order; column "
        f"{place} is {own[place]!r} and was {known[place]!r}. Count the documents over that vocabulary."
    )
