"""What a bound is told per: the rows of a mixture, or the tokens of a topic model's documents."""

from __future__ import annotations

from typing import Any, NamedTuple

from dpdist.inference.topics.online import OnlineState
from dpdist.inference.topics.summary import TOKENS, TopicSummary


class PerUnit(NamedTuple):
    """A bound in nats per unit, and what the unit is called: row or token."""

    nats: float
    unit: str


def tokens_of(total: Any) -> float | None:
    """Tokens of the documents in the total of a topic model, expected ones online; None for that of a mixture.

    Parameters
    ----------
    total : what a lap ended with: Summary, TopicSummary or OnlineState
    """
    if isinstance(total, TopicSummary):
        return float(total.totals[TOKENS])
    return float(total.words.sum()) if isinstance(total, OnlineState) else None


def per_unit(elbo: float, rows: float, tokens: float | None) -> PerUnit:
    """A bound of the whole data per token, or per row where there are no tokens.

    Parameters
    ----------
    elbo : nats
    rows : number of rows or documents
    tokens : as :func:`tokens_of` gives them
    """
    return PerUnit(elbo / rows, "row") if tokens is None else PerUnit(elbo / tokens, "token")
