"""What an examination finds: values, and how they are shown to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.table import Table
from rich.text import Text


class Level(Enum):
    """How bad a finding is; a fault makes runs fail, or end at other bits. With the colour it is shown in."""

    OK = "ok", "green"
    WARNING = "warning", "yellow"
    FAULT = "fault", "bold red"


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Parameters
    ----------
    level : how bad it is
    subject : what was looked at, in a word or two
    found : what there is
    advice : what to do about it; empty if nothing
    """

    level: Level
    subject: str
    found: str
    advice: str = ""


def ok(subject: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, subject, found)


def warning(subject: str, found: str, advice: str) -> Finding:
    """Runs work, but slower, or less safely."""
    return Finding(Level.WARNING, subject, found, advice)


def fault(subject: str, found: str, advice: str) -> Finding:
    """Runs fail, or end at other bits."""
    return Finding(Level.FAULT, subject, found, advice)


def of_sentence(level: Level, subject: str, sentence: str, advice: str = "") -> Finding:
    """A finding from a sentence that says, behind a semicolon, what to do; else `advice` does."""
    found, _, told = sentence.partition("; ")
    return Finding(level, subject, found.rstrip(".").replace("\n", " "), (told or advice).rstrip("."))


def of_error(subject: str, error: BaseException, advice: str = "") -> Finding:
    """A fault from an error."""
    return of_sentence(Level.FAULT, subject, str(error) or type(error).__name__, advice)


def once(findings: Iterable[Finding], otherwise: Finding) -> list[Finding]:
    """Each finding once, in order; `otherwise` where there is none."""
    return list(dict.fromkeys(findings)) or [otherwise]


def as_table(findings: Sequence[Finding]) -> Table:
    """A line each, for people."""
    table = Table(box=None, header_style="bold")
    for name in ("", "looked at", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for each in findings:
        table.add_row(Text(*each.level.value), Text(each.subject), Text(each.found), Text(each.advice))
    return table
