"""Names of columns, with scikit-learn's rules: a model fitted to named columns needs the same names in the same order.

Names are taken from data frames and arrays that have them, and only if all are text. If only one side has names, they
cannot be compared, so there is a warning; different names are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from dpdist.core.errors import InputError

Names = tuple[str, ...]
#: Largest number of names in a message.
_TOLD = 5


def as_names(labels: Sequence[object]) -> Names | None:
    """The labels of columns as names; None if none of them is text. Raises :class:`InputError` if only some of them are
    text."""
    texts = [label for label in labels if isinstance(label, str)]
    if texts and len(texts) < len(labels):
        other = next(label for label in labels if not isinstance(label, str))
        raise InputError(
            f"column names should all be strings, or none should be; got {texts[0]!r} and {other!r}. Convert them, for "
            "example with x.columns = x.columns.astype(str)."
        )
    return tuple(map(str, texts)) or None


def check_names(fitted: Names | None, given: Names | None, asker: str) -> None:
    """Raise :class:`InputError` if columns have other names than in the fit; warn if only one side has names.

    Parameters
    ----------
    fitted, given : names in the fit and now, None without names
    asker : name of the model in messages
    """
    if fitted == given:
        return
    if fitted is None:
        warnings.warn(f"X has feature names, but {asker} was fitted without feature names", stacklevel=2)
        return
    if given is None:
        warnings.warn(f"X does not have valid feature names, but {asker} was fitted with feature names", stacklevel=2)
        return
    unseen, missing = sorted(set(given) - set(fitted)), sorted(set(fitted) - set(given))
    told = "The feature names should match those that were passed during fit.\n"
    if unseen:
        told += f"Feature names unseen at fit time:\n{_lines(unseen)}"
    if missing:
        told += f"Feature names seen at fit time, yet now missing:\n{_lines(missing)}"
    if not unseen and not missing:
        told += "Feature names must be in the same order as they were in fit.\n"
    raise InputError(
        f"{told}Select the columns of the fit, with x[model.feature_names_in_] in Python, or of files with dpdist "
        "convert --columns A,B."
    )


def _lines(names: Sequence[str]) -> str:
    more = "- ...\n" if len(names) > _TOLD else ""
    return "".join(f"- {name}\n" for name in names[:_TOLD]) + more


def check_same_words(known: Names | None, own: Names | None, documents: str, model: str) -> None:
    """Raise :class:`InputError` if documents have another vocabulary than the model.

    Parameters
    ----------
    known, own : words of the model and of the documents, of the same number
    documents, model : their names in the message
    """
    if known is None or own is None or known == own:
        return
    place = next(w for w, (word, other) in enumerate(zip(known, own, strict=True)) if word != other)
    raise InputError(
        f"{documents} should have the vocabulary of {model}, in the same order; column {place} is {own[place]!r}, "
        f"but was {known[place]!r} in the fit. Count the words of the documents with the vocabulary of the fit."
    )


def listed(names: Names, most: int = 8) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
