"""The laws of moves: proposals, measurements and gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpdist.execution import SerialBackend
from dpdist.inference.moves.accept import Reason, Verdict
from dpdist.inference.moves.base import AnyMove, Following, LapEnd, Proposals
from dpdist.inference.moves.change import MoveVerdict, change_from, judge_moves
from dpdist.models.families.base import Rows
from dpdist.models.mixture import Block, Model, Precision
from dpdist.models.sufficient_statistics import Summary
from dpdist.testing.laws import hold
from dpdist.testing.stored import check_stored


def check_move(move: AnyMove, model: Model, rows: Rows, responsibilities: np.ndarray, seed: int = 0) -> None:
    """Check a move against the laws of moves, on one block of rows at the ends of two laps.

    Parameters
    ----------
    move : must propose something for the components of `responsibilities`
    model : with all hyperparameters set
    rows : (n, D)
    responsibilities : (n, K)

    Raises
    ------
    InputError
        If the move or its proposals cannot be stored.
    """
    check_stored(move)
    block, summary = _block_of(model, rows, responsibilities, seed)
    owners, places = block.resp.argmax(axis=1), np.arange(len(summary.entropy))
    samples = {k: (rows[owners == k], block.weights[owners == k]) for k in np.unique(owners).tolist()}
    end = LapEnd(model, SerialBackend(), seed, 1, False, places, summary, places, samples)
    found = move.propose(end, move.none(), [], [])
    tried = found.proposals
    assert len(tried), "the move proposes nothing; give rows for which it proposes something"
    assert not len(found.carried), "carried is empty if nothing was tried in the last lap"
    check_stored(tried)
    armed = tried.armed(model, block.posterior, _start_of(found, summary))
    measured, cut = armed.measure(block), len(rows) // 2
    parts = [armed.measure(_part_of(block, half)) for half in (slice(0, cut), slice(cut, None))]
    hold("measurements add over rows", parts[0].stats + parts[1].stats, measured.stats)
    hold("measured entropies add over rows", parts[0].entropy + parts[1].entropy, measured.entropy)
    for proposal in range(len(tried)):
        _check_replacement(tried, proposal, summary, measured)
    verdicts = judge_moves(model, summary, [tried], [measured])
    _check_gains(model, summary, tried, measured, verdicts)
    change = change_from(model, summary, [tried], [measured], verdicts)
    after = change.apply(summary, [tried], [measured])
    end = replace(end, lap=2, ids=np.arange(len(after.entropy)), summary=after, origins=change.origins, samples={})
    found = move.propose(end, tried, [Verdict(*verdict[1:]) for verdict in verdicts], [])
    assert len(_start_of(found, after).stats) >= len(found.carried), "the next lap starts with all carried rows"
    assert np.isin(found.carried, np.arange(len(measured.stats))).all(), "carried rows are rows of the measurement"
    check_stored(found.proposals)


def _block_of(model: Model, rows: Rows, resp: np.ndarray, seed: int) -> tuple[Block, Summary]:
    """Rows with random weights and their responsibilities, the resulting posterior, and their summary."""
    features = model.family.features(rows)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, size=(features.shape[0],))
    entropy = -weights @ (resp * np.log(resp, out=np.zeros_like(resp), where=resp > 0))
    summary = Summary(np.ascontiguousarray((features.T @ (weights[:, None] * resp)).T), entropy)
    return Block(rows, features, weights, resp, model.posterior(summary, Precision())), summary


def _part_of(block: Block, rows: slice) -> Block:
    return Block(block.rows[rows], block.features[rows], block.weights[rows], block.resp[rows], block.posterior)


def _start_of(found: Following, summary: Summary) -> Summary:
    """The initial measurement of a lap."""
    blank = found.proposals.blank(summary.stats.shape[1])
    start = blank if found.start is None else found.start
    shapes = (start.stats.shape, start.entropy.shape), (blank.stats.shape, blank.entropy.shape)
    assert shapes[0] == shapes[1], "the start of a lap has the shape of a measurement"
    return start


def _check_replacement(tried: Proposals, proposal: int, summary: Summary, measured: Summary) -> None:
    removed = list(tried.removed(proposal))
    replaced = tried.replacement(proposal, summary, measured)
    hold(
        "replacements keep the sums of the removed components",
        replaced.stats.sum(axis=0),
        summary.stats[removed].sum(axis=0),
    )
    twice = tried.replacement(proposal, summary.scaled(2.0), measured.scaled(2.0))
    hold("statistics of replacements are linear", twice.stats, 2.0 * replaced.stats)
    hold("entropies of replacements are linear", twice.entropy, 2.0 * replaced.entropy)
    heirs = tried.heirs(proposal, summary, measured)
    assert len(heirs) == len(replaced.entropy), "heirs has one entry per replacement"
    kept = [heir for heir in heirs if heir >= 0]
    assert len(set(kept)) == len(kept) and set(kept) <= set(removed), "heirs are different removed components, or -1"


def _check_gains(
    model: Model, summary: Summary, tried: Proposals, measured: Summary, verdicts: Sequence[MoveVerdict]
) -> None:
    """The gain of each proposal is the change of the ELBO from the state in which it was judged."""

    def elbo(taken: Sequence[MoveVerdict]) -> float:
        change = change_from(model, summary, [tried], [measured], taken)
        return model.elbo(change.apply(summary, [tried], [measured]))

    def change_by(verdict: MoveVerdict, before: Sequence[MoveVerdict]) -> float:
        return elbo([*before, verdict._replace(reason=Reason.ACCEPTED)]) - elbo(before)

    tolerance = 1e-8 * (1.0 + abs(model.elbo(summary)))
    taken: list[MoveVerdict] = []
    for verdict in verdicts:
        if verdict.reason is Reason.ROUNDING:
            continue
        # Conflicting proposals are judged alone, as are those without a gain even alone; others after those accepted.
        alone = verdict.reason is Reason.CONFLICT or (
            verdict.reason is Reason.NO_GAIN and change_by(verdict, []) <= tolerance
        )
        change = change_by(verdict, [] if alone else taken)
        assert abs(verdict.gain - change) <= tolerance, "a gain is the change of the ELBO"
        if verdict.reason is Reason.ACCEPTED:
            taken.append(verdict)
