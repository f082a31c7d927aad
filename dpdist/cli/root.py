"""``dpdist`` itself: the list of commands, each of which is imported when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import re
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dpdist import __version__
from dpdist.cli.terminal import MESSAGES, OUTPUT, as_options
from dpdist.core.errors import DpdistError

#: Module -> its commands, functions of the same name, with the first sentence of their documentation; none for what
#: jobs call rather than people.
COMMANDS = {
    "run_commands": {
        "fit": "Fit a Dirichlet-process mixture; checkpoints are written as often as they are cheap.",
        "sva": "Cluster in one pass over the rows (sequential variational approximation).",
        "topics": "Fit a hierarchical Dirichlet process topic model; checkpoints are written as often as they are "
        "cheap.",
        "extend": "Extend a model with new rows, without reading the rows that it was fitted to.",
        "resume": "Continue a run where it stopped; the result is the same to the bit.",
    },
    "app": {
        "show": "Show the results of a run: K, ELBO or held-out score, sizes, accepted and rejected moves with "
        "reasons.",
        "report": "Write a report of a run or a model as one HTML file that needs no network: ELBO, moves, clusters, "
        "map, time.",
        "predict": "Label rows with their most probable components, or documents with the proportions of their topics.",
        "demo": "Cluster 1,797 handwritten digits on a local Dask cluster; nothing is downloaded.",
        "convert": "Write rows to a Zarr array, block by block; the index of a data frame is written only if --columns "
        "names it.",
        "corpus": "Write documents to a corpus of word counts, block by block.",
    },
    "cluster_commands": {
        "tree": "Build the tree of a model's clusters by exact merges, from all clusters down to one, and store it in "
        "the run.",
        "stability": "Refit a model several times on halves of the rows, and show which clusters are found again.",
    },
    "plan_command": {
        "plan": "Forecast the cost of a fit: time, memory, checkpoints, the bottleneck, and settings that would be "
        "faster.",
    },
    "score_command": {
        "score": "Score held-out data: mean log predictive density of rows, or of tokens by document completion, in "
        "nats.",
    },
    "job_commands": {
        "submit": "Start a run in the background, with its coordinator as a separate job, and print the id of the run.",
        "status": "Show the state of a run: its job, its coordinator, its last checkpoint and its results so far.",
        "attach": "Watch a run as if it ran here, and exit with its status; Ctrl-C leaves it running.",
        "cancel": "Stop a run after a last checkpoint; dpdist resume continues it.",
        "certificates": "Create the certificates with which the processes of a cluster authenticate each other (mutual "
        "TLS).",
        "coordinate": "",
    },
    "doctor": {
        "doctor": "Check a cluster, a run's place and data, and say what to fix; exits with 1 if there is a fault.",
    },
}
SENTENCES = {name: sentence for commands in COMMANDS.values() for name, sentence in commands.items()}


class Command(TyperCommand):
    """A command with a helpful error for extra files, which result from shell patterns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left after parsing, which must be none."""
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, args)
        if ctx.args:
            ctx.fail(
                f"Got unexpected extra arguments ({' '.join(ctx.args)}). To read several files as one table, give a "
                "pattern in quotes, as in 'part-*.csv'."
            )
        return left


class Commands(TyperGroup):
    """The commands by name with a description; each is imported only when called, as importing all takes over a
    second."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, sentence in SENTENCES.items():
            self.add_command(TyperCommand(name, help=sentence, hidden=not sentence))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The called command, with its options."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else command_of(name), rest


def command_of(name: str) -> TyperCommand:
    """A command with its options, imported now."""
    module = next(module for module, commands in COMMANDS.items() if name in commands)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=Command)(getattr(importlib.import_module(f"dpdist.cli.{module}"), name))
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Cluster any number of feature vectors; the number of clusters is inferred from the data.",
)


#: Advice for errors of the operating system, by number.
_ADVICE = {
    errno.ENOSPC: "free some space, and run the command again.",
    errno.EDQUOT: "free some space, and run the command again.",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or write to another place.",
    errno.EOPNOTSUPP: "choose a path on another file system.",
    errno.EROFS: "choose a path that can be written to.",
    errno.EACCES: "check your permissions to read and write there.",
}


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":  # names that it cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_: f"warning: {as_options(str(message))}\n"
    try:
        app(standalone_mode=True)
    except DpdistError as error:
        told = _in_a_line(as_options(str(error)))
    except MemoryError as error:
        told = f"there is not enough memory ({error}); use fewer components, or fewer columns with PCA."
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check that the path or address exists and responds.")
        place = f" ({error.filename})" if error.filename else ""
        told = f"{error.strerror or error}{place}; {advice}"
    else:
        return
    MESSAGES.print(f"dpdist: {told}", style="red", highlight=False, soft_wrap=True, markup=False)
    sys.exit(1)


def _in_a_line(sentence: str) -> str:
    """A message on one line, without the lists of names in scikit-learn's messages."""
    listed = sentence.replace(":\n- ", ": ").replace("\n- ", ", ")
    return re.sub(r"(?<![.\n])\n", ". ", listed).replace("\n", " ")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        OUTPUT.print(__version__, highlight=False)
        raise typer.Exit
    if context.invoked_subcommand is None:
        OUTPUT.print(context.get_help())
