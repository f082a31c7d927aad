"""Where commands print, and their words for what sentences ask for."""

from __future__ import annotations

import re
import shlex

from rich.console import Console

#: Where results and messages are printed.
OUTPUT, MESSAGES = Console(), Console(stderr=True)

#: What sentences ask for as Python does, and how the command line is asked for the same.
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
#: Columns to be left out.
_DROP = re.compile(r"drop=\['(.*?)'\](?=[,.; ]|$)")


def _named(column: str) -> str:
    """A column's name as an option takes it: in double quotes where it has commas, quotes or blanks at its ends."""
    plain = column and column == column.strip() and not re.search('[,"]', column)
    return column if plain else '"' + column.replace('"', '""') + '"'


def as_options(sentence: str) -> str:
    """A sentence with what it asks for as options."""
    for asked, option in OPTIONS.items():
        sentence = sentence.replace(asked, option)
    return _DROP.sub(lambda found: " ".join(map(_dropped, found[1].split("', '"))), sentence)


def _dropped(column: str) -> str:
    return f"--drop {shlex.quote(_named(column))}"
