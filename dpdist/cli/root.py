"""``dpdist`` itself: the list of commands, each of which is imported when it is called."""

from __future__ import annotations

import errno
import importlib
import logging
import re
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dpdist import __version__
from dpdist.cluster.terminal import MESSAGES, OUTPUT, as_options
from dpdist.core.errors import DpdistError

#: Module -> its commands, functions of the same name, with the first sentence of their documentation; none for what
#: jobs call rather than people.
COMMANDS = {
    "cli.run_commands": {
        "fit": "Fit a Dirichlet-process mixture; checkpoints are made as often as they are cheap.",
        "sva": "Cluster in one pass over the rows (sequential variational approximation).",
        "topics": "Fit a hierarchical Dirichlet process topic model; checkpoints are made as often as they are cheap.",
        "extend": "Let new rows refine and grow a model, without the rows it was made from.",
        "resume": "Go on where a run or a pass stopped, to the same bits.",
    },
    "cli.app": {
        "show": "Show what a run or a pass reached: K, ELBO or held-out score, sizes, moves taken and refused and why.",
        "report": "Write what a run or a model is as one HTML file that needs no network: its course, moves, clusters, "
        "map, time.",
        "predict": "Label rows with their most probable components, or documents with the proportions of their topics.",
        "demo": "Cluster 1,797 handwritten digits on a local Dask cluster; nothing is downloaded.",
        "convert": "Write rows to a Zarr array, a block at a time; the index of a data frame is left out unless it is "
        "named.",
        "corpus": "Write documents as counts of words to a corpus, a block at a time.",
    },
    "cli.cluster_commands": {
        "tree": "Grow the tree of a model's clusters, from all of them down to one by exact merges, and keep it there.",
        "stability": "Refit a model some times, on halves of the rows, and say which clusters come back.",
    },
    "cli.plan_command": {
        "plan": "Say what a fit will cost on so many workers: hours, memory, checkpoints, what it is bound by and what "
        "would help.",
    },
    "cli.score_command": {
        "score": "Score what was not fitted: mean log predictive density of rows, or of tokens of documents by "
        "completion; nats.",
    },
    "cli.job_commands": {
        "submit": "Start a run that needs nobody: its coordinator is a job of its own. Prints the run's id.",
        "status": "Say where a run is: its job, its coordinator, its last checkpoint and what it found so far.",
        "attach": "Watch a run as if it ran here; Ctrl-C leaves it running.",
        "cancel": "End a run after a last checkpoint; dpdist resume goes on with it.",
        "certificates": "Make the certificates by which the parts of a cluster know each other (mutual TLS).",
        "coordinate": "",
    },
    "cluster.doctor": {
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
                f"Got unexpected extra arguments ({' '.join(ctx.args)}). Several files are one table by a pattern in "
                "quotes, as in 'part-*.csv'."
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
    alone.command(name, cls=Command)(getattr(importlib.import_module(f"dpdist.{module}"), name))
    command = get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Cluster any number of feature vectors without being told how many clusters there are.",
)


#: Advice for errors of the operating system, by number.
_ADVICE = {
    errno.ENOSPC: "make room, and give the command again.",
    errno.EFBIG: "files may not be so large here; raise that limit (ulimit -f), or name another place.",
    errno.EROFS: "name a place that can be written to.",
    errno.EACCES: "see that you may read and write there.",
}


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence."""
    warnings.formatwarning = lambda message, *_: f"warning: {as_options(str(message))}\n"
    try:
        app(standalone_mode=True)
    except DpdistError as error:
        told = _in_a_line(as_options(str(error)))
    except MemoryError as error:
        told = f"there is too little memory ({error}); take fewer components, or fewer columns by PCA."
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "see that what was named is there and answers.")
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
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if version:
        OUTPUT.print(__version__, highlight=False)
        raise typer.Exit
    if context.invoked_subcommand is None:
        OUTPUT.print(context.get_help())
