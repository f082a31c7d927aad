"""What the experiments of papers share: options, results that are kept and not made twice, tables."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from sklearn.exceptions import ConvergenceWarning

#: The shared data folder where neither ``--data`` nor ``DPDIST_SHARED`` names one: beside the repository.
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
Fields = dict[str, Any]


def options(about: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with what every workflow here takes; pictures are drawn without a screen."""
    mpl.use("agg")
    warnings.simplefilter("ignore", ConvergenceWarning)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared, out = Path(os.environ.get("DPDIST_SHARED", SHARED)), Path("build") / "workflows" / name
    parser.add_argument("--data", type=Path, default=shared, help="folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=out, help="folder for results; what is there is not done again")
    parser.add_argument("--small", action="store_true", help="a reduced size that runs in seconds and checks results")
    return parser


class Kept:
    """Results, a file each, under the keys they were asked for by: a run broken off goes on where it was."""

    def __init__(self, out: Path) -> None:
        self._folder = out / "results"
        self._folder.mkdir(parents=True, exist_ok=True)

    def once(self, key: Fields, make: Callable[[], Fields]) -> Fields:
        """The result under a key, made if it is not there; the fields of both."""
        path = self._folder / (re.sub(r"[^\w.]+", "-", " ".join(map(str, key.values()))) + ".json")
        found = json.loads(path.read_text()) if path.exists() else {}
        if found.get("key") != json.loads(json.dumps(key)):
            found = {"key": key, "result": make()}
            part = path.with_suffix(".part")
            part.write_text(json.dumps(found) + "\n")
            part.replace(path)
            told = {name: value for name, value in found["result"].items() if not isinstance(value, list | dict)}
            print(*(f"{name} {value}" for name, value in {**key, **told}.items()), sep=", ", flush=True)
        return {**key, **found["result"]}

    def everything(self) -> list[Fields]:
        """The fields of all results, also of those that this call did not ask for."""
        found = [json.loads(path.read_text()) for path in sorted(self._folder.glob("*.json"))]
        return [{**one["key"], **one["result"]} for one in found]


def spread(values: Sequence[float], digits: int) -> str:
    """The median, with the smallest and the largest where they differ."""
    middle, least, most = (f"{value:.{digits}f}" for value in (np.median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def purity(found: np.ndarray, labels: np.ndarray) -> float:
    """Share of rows whose label is the commonest one of their cluster."""
    table = np.zeros((found.max() + 1, labels.max() + 1), dtype=int)
    np.add.at(table, (found, labels), 1)
    return float(table.max(axis=1).sum() / len(labels))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], out: Path, name: str = "table") -> None:
    """Print a table, and write it as CSV and as text."""
    with (out / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    lines = [list(columns), *([str(entry) for entry in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = ["  ".join(entry.rjust(width) for entry, width in zip(line, widths, strict=True)) for line in lines]
    (out / f"{name}.txt").write_text("\n".join(text) + "\n")
    print(*text, sep="\n", flush=True)
