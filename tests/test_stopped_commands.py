"""A command that a signal ends says what is there, whatever it was doing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

from dpdist.__main__ import main
from dpdist.cli import root as cli
from dpdist.cli.app import _AGAIN
from dpdist.cli.foreground import KEPT, NOT_KEPT
from tests.runs import clusters, mixture


class Asked(NamedTuple):
    """How a command is given, what it does for long, and what is there once it was stopped in the midst of that."""

    arguments: list[str]
    does: str
    then: str


COMMANDS = {
    "predict": Asked(["run.zarr", "rows.npy", "--out", "l.zarr", "--serial"], "dpdist.cli.app.write_labels", KEPT),
    "convert": Asked(["rows.npy", "--out", "new.zarr"], "dpdist.data.convert.convert", KEPT),
    "stability": Asked(["run.zarr", "--serial"], "dpdist.cli.cluster_commands.refit_stored", KEPT),
    "tree": Asked(["run.zarr", "--serial"], "dpdist.cli.cluster_commands.grow_stored_tree", NOT_KEPT),
    "score": Asked(["run.zarr", "rows.npy", "--serial"], "dpdist.cli.score_command._score_rows", NOT_KEPT),
    "corpus": Asked(["counts.npz", "--out", "corpus.zarr"], "dpdist.data.corpora.write_corpus", NOT_KEPT),
    "demo": Asked(["--serial"], "dpdist.cli.demo.run_demo", _AGAIN),
    "plan": Asked(["--data", "rows.npy", "--costs", "costs.json"], "dpdist.runs.planning.plan.plan", NOT_KEPT),
}
#: Those that only look, and are done before anybody would stop them.
QUICK = {"show", "report"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", clusters(0))
    scipy.sparse.save_npz("counts.npz", scipy.sparse.csr_matrix(np.eye(4)))
    for _ in mixture(max_laps=1).iter_fit("rows.npy", checkpoint_path="run.zarr"):
        pass
    monkeypatch.setattr("dpdist.runs.planning.costs.read_costs", lambda path: object())
    return tmp_path


def test_who_stops_a_command_that_is_being_imported_sees_no_traceback(monkeypatch) -> None:
    def pressed() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpdist.cli.root.main", pressed)
    with pytest.raises(SystemExit, match="130"):
        main()


def test_all_commands_that_take_long_are_here() -> None:
    modules = ("app", "cluster_commands", "plan_command", "score_command")
    assert {name for module in modules for name in cli.COMMANDS[module]} == COMMANDS.keys() | QUICK


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_stopped_command_says_what_is_there(name, number, status, folder, monkeypatch) -> None:
    asked = COMMANDS[name]

    def stopped(*given: object, **more: object) -> None:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # which is not heard, for the command ends already

    monkeypatch.setattr(asked.does, stopped)
    before = signal.signal(number, signal.default_int_handler)  # those of a shell's background ignore some
    try:
        done = CliRunner().invoke(cli.app, [name, *asked.arguments])
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert done.exit_code == status, done.output
    assert f"stopped; {asked.then}" in " ".join(done.output.split())
