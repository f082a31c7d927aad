"""Names of columns, by scikit-learn's rules: a model fitted to named columns takes the same names in the same order.

Names are those of a data frame or an array that tells them, and only if all are text. Where one side has names and the
other has none nobody can tell, so it is warned; names that differ are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from dpdist.core.errors import InputError

Names = tuple[str, ...]
#: Names told in a message.
_TOLD = 5


def as_names(labels: Sequence[object]) -> Names | None:
    """The labels of columns as names; None where none of them is text.

    Raises
    ------
    InputError
        If only some are.
    """
    texts = [label for label in labels if isinstance(label, str)]
    if texts and len(texts) < len(labels):
        other = next(label for label in labels if not isinstance(label, str))
        raise InputError(
            f"names of columns should all be text, or none of them; got {texts[0]!r} and {other!r}. Rename them, as "
            "with x.columns = x.columns.astype(str)."
        )
    return tuple(map(str, texts)) or None


def check_names(fitted: Names | None, given: Names | None, asker: str) -> None:
    """Raise :class:`InputError` unless columns have the names of the fit; warn where only one of the two is known.

    Parameters
    ----------
    fitted, given : names at the fit and now, None for none
    asker : what a person calls the model, for messages
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
    raise InputError(f"{told}Give the columns of the fit, as with x[model.feature_names_in_].")


def _lines(names: Sequence[str]) -> str:
    more = "- ...\n" if len(names) > _TOLD else ""
    return "".join(f"- {name}\n" for name in names[:_TOLD]) + more


def check_same_words(known: Names | None, own: Names | None, documents: str, model: str) -> None:
    """Raise :class:`InputError` if documents are known to be counted over other words than a model was fitted to.

    Parameters
    ----------
    known, own : of the model and of the documents, as many
    documents, model : how the message names them
    """
    if known is None or own is None or known == own:
        return
    place = next(w for w, (word, other) in enumerate(zip(known, own, strict=True)) if word != other)
    raise InputError(
        f"the words of {documents} should be those that {model} was fitted to, in their order; column "
        f"{place} is {own[place]!r} and was {known[place]!r}. Count the documents over that vocabulary."
    )


def listed(names: Names, most: int = 8) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
