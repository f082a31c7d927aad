"""Where commands print, and their words for what sentences ask for."""

from __future__ import annotations

from rich.console import Console

#: Where results and messages are printed.
OUTPUT, MESSAGES = Console(), Console(stderr=True)

#: What sentences ask for as Python does, and how the command line is asked for the same.
OPTIONS = {
    "overwrite=True": "--overwrite",
    "again=True": "--again",
    "density=True": "--density",
    "out=PATH": "--out PATH",
    "columns=['A', 'B']": "--columns A,B",
    "drop=['A']": "--drop A",
    "format=NAME": "--format NAME",
    "row_transform=TransformPlan(scale=True)": "--scale",
    "row_transform=TransformPlan(pca=50)": "--pca 50",
    "compute_dtype='float64'": "--compute-dtype float64",
}


def as_options(sentence: str) -> str:
    """A sentence with what it asks for as options."""
    for asked, option in OPTIONS.items():
        sentence = sentence.replace(asked, option)
    return sentence
