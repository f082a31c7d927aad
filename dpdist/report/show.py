"""A run or model as text: a table for people, plain values for scripts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from dpdist.core.errors import CheckpointError
from dpdist.inference.moves.accept import Reason
from dpdist.inference.prediction import predictor_of
from dpdist.inference.schedules import Schedule, Stochastic
from dpdist.inference.topics.evaluation import top_words
from dpdist.inference.topics.hyperparameters import LEARNABLE
from dpdist.inference.topics.prediction import predictor_of_topics
from dpdist.runs.opening import command_of, open_run
from dpdist.runs.passing import is_finished, passed_state
from dpdist.storage.checkpoint import Fitted, RunStore
from dpdist.storage.history import History, seconds_passed


def shown_values(path: str) -> dict[str, Any]:
    """What is stored at `path` as plain values; raises as :func:`summary_values` does."""
    command = command_of(path)
    if command == "sva":
        return pass_values(RunStore.open(path))
    return topic_values(open_run(path)) if command == "topics" else summary_values(RunStore.open(path))


def shown_tables(path: str) -> Group:
    """What is stored at `path` as tables; raises as :func:`summary_values` does."""
    command = command_of(path)
    if command == "sva":
        return pass_tables(RunStore.open(path))
    return topic_tables(open_run(path)) if command == "topics" else summary_tables(RunStore.open(path))


def summary_values(store: RunStore) -> dict[str, Any]:
    """The run as plain values, for ``--json``.

    Raises
    ------
    CheckpointError
        If no lap was finished yet.
    """
    fitted, history, problem = _finished(store), store.history(), store.problem()
    weights, rest = problem.model.allocation.weights(fitted.total.counts)
    return {
        "path": str(store.path),
        "family": problem.model.family.name,
        "allocation": problem.model.allocation.name,
        "laps": len(history.rows),
        "rows": fitted.rows,
        "elbo": fitted.elbo,
        "elbo_per_row": fitted.elbo / fitted.rows,
        "n_components": len(fitted.ids),
        "converged": fitted.converged,
        "stop_reason": fitted.stop,
        "component_ids": fitted.ids.tolist(),
        "counts": fitted.total.counts.tolist(),
        "weights": weights.tolist(),
        "rest_weight": rest,
        "moves": move_counts(history),
        "seconds": float(sum(lap.seconds for lap in history.rows)),
        "settings": store.settings,
    }


def move_counts(history: History) -> dict[str, dict[str, int]]:
    """Kind of move -> what became of the proposals -> how many."""
    counts = Counter((row.kind, row.reason) for row in history.proposals)
    return {
        kind: {reason.value: counts[kind, reason] for reason in Reason if counts[kind, reason]}
        for kind in history.kinds
    }


def summary_tables(store: RunStore, largest: int = 20) -> Group:
    """The run as tables: what it reached, the `largest` components, the moves and their reasons."""
    values = summary_values(store)
    return Group(_facts(values), _components(values, largest), _moves(values), _laps(store.history()))


def pass_values(store: RunStore) -> dict[str, Any]:
    """A sequential pass as plain values, for ``--json``."""
    problem, growth, history = store.problem(), passed_state(store).growth, store.history()
    weights, rest = predictor_of(problem, growth).weights()
    held = [row.holdout_score for row in history.rows if not np.isnan(row.holdout_score)]
    return {
        "path": str(store.path),
        "method": store.method,
        "finished": is_finished(store),
        "rows": growth.rows,
        "n_components": len(growth.ids),
        "rounds": len(history.rows),
        "seconds": seconds_passed(history),
        "holdout_score": held[-1] if held else None,
        "pruned_weight": growth.pruned,
        "component_ids": growth.ids.tolist(),
        "counts": growth.weights.tolist(),
        "weights": weights.tolist(),
        "rest_weight": rest,
        "settings": store.settings,
    }


def pass_tables(store: RunStore, largest: int = 20) -> Group:
    """A sequential pass as tables: what it reached, and the `largest` components."""
    values = pass_values(store)
    held = values["holdout_score"]
    facts = [
        ("components", f"{values['n_components']}"),
        ("rows", f"{values['rows']}"),
        ("pass", f"{values['rounds']} rounds in {values['seconds']:.1f} s"),
        ("held-out score", "none given" if held is None else f"{held:.6f} nats a row"),
        ("weight of pruned components", f"{values['pruned_weight']:.1f} rows"),
        ("finished", "yes" if values["finished"] else "not yet: go on with dpdist resume"),
    ]
    return Group(_fact_table(values["path"], facts), _components(values, largest))


def topic_values(store: RunStore) -> dict[str, Any]:
    """A topic model as plain values, for ``--json``; raises as :func:`summary_values` does.

    ``top_words`` is None where the words of the documents are not known.
    """
    fitted, history, problem = _finished(store), store.history(), store.problem()
    predictor = predictor_of_topics(problem, fitted.total, fitted.ids)
    # Runs from before words were stored know them from their corpus, while it is there.
    tokens, vocabulary = predictor.tokens, problem.words
    return {
        "path": str(store.path),
        "method": store.method,
        "laps": len(history.rows),
        "documents": fitted.rows,
        "words": problem.model.vocabulary,
        "tokens": tokens,
        "elbo": fitted.elbo,
        "elbo_of": _elbo_of(problem.schedule),
        "elbo_per_token": fitted.elbo / tokens,
        "n_topics": len(fitted.ids),
        "converged": fitted.converged,
        "stop_reason": fitted.stop,
        "topic_ids": fitted.ids.tolist(),
        "topic_sizes": predictor.words.sum(axis=0).tolist(),
        "topic_weights": predictor.weights[:-1].tolist(),
        "rest_weight": float(predictor.weights[-1]),
        "concentration": predictor.model.allocation.concentration,
        "document_concentration": predictor.model.allocation.document_concentration,
        "pseudocount": predictor.model.pseudocount,
        "top_words": None if vocabulary is None else top_words(predictor.topics, list(vocabulary)),
        "moves": move_counts(history),
        "seconds": float(sum(lap.seconds for lap in history.rows)),
        "settings": store.settings,
    }


def topic_tables(store: RunStore, largest: int = 20) -> Group:
    """A topic model as tables: what it reached, the `largest` topics, the moves and their reasons."""
    values = topic_values(store)
    facts = [
        ("topics", f"{values['n_topics']}"),
        ("ELBO", f"{values['elbo']:.6f} nats, of {values['elbo_of']}"),
        ("ELBO per token", f"{values['elbo_per_token']:.6f} nats"),
        ("corpus", f"{values['documents']:.0f} documents, {values['tokens']:.0f} tokens, {values['words']} words"),
        ("hyperparameters", ", ".join(f"{name} {values[name]:.4g}" for name in LEARNABLE)),
        ("laps", f"{values['laps']} in {values['seconds']:.1f} s"),
        ("ended", values["stop_reason"] or "not yet: go on with dpdist resume"),
    ]
    parts = _fact_table(values["path"], facts), _topics(values, largest), _moves(values), _laps(store.history())
    return Group(*parts)


def _elbo_of(schedule: Schedule) -> str:
    return "the last mini-batch, scaled to the corpus" if isinstance(schedule, Stochastic) else "the corpus"


def _topics(values: dict[str, Any], largest: int) -> Table:
    shown = min(largest, values["n_topics"])
    more = "" if shown == values["n_topics"] else f" (largest {shown} of {values['n_topics']})"
    table, words = Table(title=f"topics{more}"), values["top_words"]
    for name in ("id", "tokens", "weight"):
        table.add_column(name, justify="right")
    table.add_column("words" if words else "words (not known)")
    for k in range(shown):
        table.add_row(
            str(values["topic_ids"][k]),
            f"{values['topic_sizes'][k]:.1f}",
            f"{100 * values['topic_weights'][k]:.2f} %",
            " ".join(words[k]) if words else "",
        )
    return table


def _fact_table(title: str, facts: list[tuple[str, str]]) -> Table:
    table = Table(title=title, show_header=False)
    for name, value in facts:
        table.add_row(name, value)
    return table


def _finished(store: RunStore) -> Fitted:
    fitted = store.fitted()
    if fitted is None:
        raise CheckpointError(f"{store.path} holds no finished lap yet; go on with: dpdist resume {store.path}")
    return fitted


def _facts(values: dict[str, Any]) -> Table:
    facts = [
        ("components", f"{values['n_components']}"),
        ("ELBO", f"{values['elbo']:.6f} nats"),
        ("ELBO per row", f"{values['elbo_per_row']:.6f} nats"),
        ("rows", f"{values['rows']:.0f}"),
        ("laps", f"{values['laps']} in {values['seconds']:.1f} s"),
        ("family", values["family"]),
        ("ended", values["stop_reason"] or "not yet: go on with dpdist resume"),
    ]
    return _fact_table(values["path"], facts)


def _components(values: dict[str, Any], largest: int) -> Table:
    shown = min(largest, values["n_components"])
    more = "" if shown == values["n_components"] else f" (largest {shown} of {values['n_components']})"
    table = Table(title=f"components{more}")
    for name in ("id", "rows", "weight"):
        table.add_column(name, justify="right")
    order = np.argsort(-np.array(values["counts"]), kind="stable")[:shown]
    for k in order:
        table.add_row(
            str(values["component_ids"][k]), f"{values['counts'][k]:.1f}", f"{100 * values['weights'][k]:.2f} %"
        )
    return table


def _moves(values: dict[str, Any]) -> Table:
    table = Table(title="moves")
    for name in ("kind", "what became of it", "proposals"):
        table.add_column(name, justify="right" if name == "proposals" else "left")
    for kind, reasons in values["moves"].items():
        for reason, count in reasons.items():
            table.add_row(kind, reason, str(count))
    return table


def _laps(history: History, last: int = 5) -> Table:
    table = Table(title=f"last laps of {len(history.rows)}")
    for name in ("lap", "K", "ELBO", "gained by moves", "seconds"):
        table.add_column(name, justify="right")
    for row in history.rows[-last:]:
        gained = row.elbo - row.elbo_before_moves
        table.add_row(str(row.lap), str(row.n_components), f"{row.elbo:.4f}", f"{gained:.4f}", f"{row.seconds:.2f}")
    return table
