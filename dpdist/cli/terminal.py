"""Consoles of commands, and the translation of messages from Python arguments to command-line options."""

from __future__ import annotations

import re
import shlex

from rich.console import Console

#: Consoles for results and for messages.
OUTPUT, MESSAGES = Console(), Console(stderr=True)

#: Options that correspond to Python arguments in messages.
OPTIONS = {
    "overwrite=True": "--overwrite",
    "again=True": "--again",
    "give_up=True": "--give-up",
    "density=True": "--density",
    "out=PATH": "--out PATH",
    "columns=['A', 'B']": "--columns A,B",
    "format=NAME": "--format NAME",
    "row_transform=TransformPlan(scale=True)": "--scale",
    "row_transform=TransformPlan(pca=50)": "--pca 50",
    "compute_dtype='float64'": "--compute-dtype float64",
}
#: The argument for columns to leave out.
_DROP = re.compile(r"drop=\['(.*?)'\](?=[,.; ]|$)")


def _named(column: str) -> str:
    """A column's name as an option value, quoted if it has commas, quotes, or blanks at its ends."""
    plain = column and column == column.strip() and not re.search('[,"]', column)
    return column if plain else '"' + column.replace('"', '""') + '"'


def as_options(sentence: str) -> str:
    """A message with its Python arguments replaced by options."""
    for asked, option in OPTIONS.items():
        sentence = sentence.replace(asked, option)
    return _DROP.sub(lambda found: " ".join(map(_dropped, found[1].split("', '"))), sentence)


def _dropped(column: str) -> str:
    return f"--drop {shlex.quote(_named(column))}"
