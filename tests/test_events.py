"""Events: what is written is read back, newer writers do not confuse older readers, and telling never disturbs."""

from __future__ import annotations

import itertools
import json
import math
import threading
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpdist
from dpdist.cluster.running import events_of
from dpdist.execution import SerialBackend
from dpdist.execution.base import Counts
from dpdist.inference.loop import batch_count
from dpdist.inference.mixture.engine import steps
from dpdist.inference.moves.accept import Reason
from dpdist.inference.schedules import Memoized
from dpdist.runs.events import (
    BatchEvent,
    Broadcast,
    Event,
    Happening,
    LapEvent,
    NoteEvent,
    Pace,
    event_of_step,
    from_dict,
    in_order,
    note,
    notes_of_counts,
    to_dict,
)
from dpdist.runs.limits import Limits
from dpdist.runs.methods.mixture import MemoizedMixture
from dpdist.runs.methods.sva import SequentialPass
from dpdist.runs.preparing import NOWHERE, prepare
from tests.runs import begun, clusters, mixture, source_of

counts = st.integers(1, 2**53)
finite = st.floats(allow_nan=False, allow_infinity=False)
unbounded = st.floats(allow_nan=False)
stamps = {"run": st.text(), "session": st.text(), "sequence": st.integers(0, 2**53)}
batches = st.builds(
    BatchEvent,
    lap=counts,
    done=counts,
    of=counts,
    rows=st.none() | counts,
    rows_per_second=st.none() | finite,
    **stamps,
)
laps = st.builds(
    LapEvent,
    lap=counts,
    elbo=unbounded,
    per_unit=unbounded,
    unit=st.text(),
    rows=counts,
    n_components=counts,
    seconds=finite,
    accepted=st.dictionaries(st.text(), counts),
    refining=counts,
    batches=counts,
    rows_per_second=st.none() | finite,
    **stamps,
)
rounds = st.builds(
    LapEvent,
    lap=counts,
    of=counts,
    rows=counts,
    n_components=counts,
    seconds=finite,
    holdout=st.none() | unbounded,
    **stamps,
)
notes = st.builds(NoteEvent, sentence=st.text(), about=st.text(), count=counts, time=finite, **stamps)
events = batches | laps | rounds | notes


# values


@given(events)
def test_every_event_is_read_back_as_it_was(event: Event) -> None:
    assert from_dict(to_dict(event)) == event


@given(events)
def test_every_event_travels_as_strict_json(event: Event) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(event), allow_nan=False))) == event


@pytest.mark.parametrize(("elbo", "text"), [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")])
def test_an_elbo_that_is_no_number_is_named(elbo: float, text: str) -> None:
    event = LapEvent(lap=1, elbo=elbo, rows=3, n_components=1, seconds=0.1, accepted={}, batches=1)
    plain = json.loads(json.dumps(to_dict(event), allow_nan=False))
    assert plain["elbo"] == text
    read = from_dict(plain)
    assert isinstance(read, LapEvent)
    np.testing.assert_equal(read.elbo, elbo)
    assert to_dict(read) == to_dict(event)


@given(events)
def test_what_a_newer_version_adds_is_passed_over(event: Event) -> None:
    assert from_dict(to_dict(event) | {"added later": [1, {"a": None}]}) == event
    assert from_dict(to_dict(event) | {"kind": "added later"}) is None


@pytest.mark.parametrize("message", [None, 3, "lap", [], {}, {"kind": "lap"}, {"kind": "batch", "lap": "x"}])
def test_what_is_no_event_is_passed_over(message: object) -> None:
    assert from_dict(message) is None


@given(st.lists(events, max_size=12, unique_by=lambda event: (event.session, event.sequence)), st.randoms())
def test_kept_events_come_in_the_order_of_their_numbers(kept: list[Event], random: object) -> None:
    told = sorted(kept, key=lambda event: (event.session, event.sequence))
    pairs = [(float(moment), to_dict(event)) for moment, event in enumerate(told)]
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert in_order(shuffled) == told
    assert in_order([(0.0, to_dict(event) | {"kind": "added later"}) for event in told]) == []


# what a run shows


def test_a_fit_shows_each_batch_and_each_lap_with_the_moves_taken() -> None:
    source = source_of(clusters(0, rows=3000, groups=4), 256)
    problem, state = begun(mixture(schedule=Memoized(5)), source)
    told, infos = [], []
    for step in steps(problem, source, state, SerialBackend()):
        told.append(event_of_step(MemoizedMixture(), step))
        infos += [] if step.info is None else [step.info]
        if step.state.lap > 8:
            break
    assert [event.done for event in told if isinstance(event, BatchEvent)] == [1, 2, 3, 4] * 8
    ended = [event for event in told if isinstance(event, LapEvent)]
    assert [(e.lap, e.elbo, e.n_components, e.rows) for e in ended] == [
        (i.lap, i.elbo, i.n_components, 3000) for i in infos
    ]
    for event, info in zip(ended, infos, strict=True):
        taken = [record for record in info.records if record.reason is Reason.ACCEPTED]
        assert sum(event.accepted.values()) == len(taken)
        assert event.refining == len([record for record in info.records if record.reason is Reason.REFINING])
    assert sum(sum(event.accepted.values()) for event in ended) > 0
    assert all(from_dict(to_dict(event)) == event for event in told)


def test_pace_counts_rows_of_the_lap_from_where_the_fit_went_on() -> None:
    source = source_of(clusters(0, rows=2000), 128)
    problem, state = begun(mixture(schedule=Memoized(4)), source)
    assert batch_count(problem.schedule, source) == 4
    run = steps(problem, source, state, SerialBackend())
    state = next(run).state
    now = iter(range(100))
    pace = Pace(MemoizedMixture().batch_rows(problem, source), state, state.ids, clock=lambda: float(next(now)))
    told = [event_of_step(MemoizedMixture(), step, pace) for _, step in zip(range(7), run, strict=False)]
    rows = [512, 512, 512, 464]
    size = [rows[batch] for batch in state.order]
    assert [e.rows for e in told[:3]] == [sum(size[:2]), sum(size[:3]), 2000]
    assert [e.rows_per_second for e in told[:3]] == [size[1], sum(size[1:3]) / 2, sum(size[1:]) / 3]
    assert told[-1].rows == 2000 and told[-1].rows_per_second == 500
    assert isinstance(told[2], LapEvent) and isinstance(told[-1], LapEvent)


@pytest.mark.parametrize("kind", ["mixture", "topics", "online"])
def test_a_lap_adds_up(kind: str) -> None:
    """Components before, and those new, less those gone, are those after; also of a fit that goes on."""
    counts = np.random.default_rng(0).poisson(np.kron(np.eye(4), np.full((40, 5), 3.0)) + 0.1)
    online = dpdist.schedules.Stochastic(4, forgetting=0.5)
    schedule, weights = (online, "point") if kind == "online" else (None, "posterior")
    topics = dpdist.HDPTopicModel(initial_topics=8, schedule=schedule, weights=weights, random_state=0)
    model, data = (mixture(), clusters(0, rows=3000, groups=6)) if kind == "mixture" else (topics, counts)
    fit = model.set_params(max_laps=9).prepare(data)
    before, ends, moved = len(fit.state.ids), [], 0
    for _ in range(2):
        for event in events_of(fit):
            if isinstance(event, LapEvent):
                assert before + event.new - event.gone == event.n_components
                before, moved = event.n_components, moved + event.new + event.gone
                ends.append(event.lap)
                if event.lap == 3:
                    break
    assert ends == list(range(1, 10)) and moved > 0


def test_what_is_new_and_gone_is_not_told_where_the_lap_before_is_not_known() -> None:
    x = np.random.default_rng(0).poisson(np.kron(np.eye(4), np.full((40, 5), 3.0)) + 0.1)
    model = dpdist.HDPTopicModel(
        initial_topics=30, schedule=dpdist.schedules.Stochastic(4), weights="point", max_laps=2
    )
    run = model.prepare(source_of(x, 40))
    for _, _step in zip(range(2), run, strict=False):
        pass
    told = [event for event in events_of(run) if isinstance(event, LapEvent)]
    assert (told[0].new, told[0].gone) == (None, None) and told[1].new is not None


def test_a_pass_shows_its_rounds_with_their_scores_and_pace() -> None:
    rows = clusters(0, rows=2000)
    held, source = source_of(rows[:100]), source_of(rows, 400)
    spec = dpdist.SVA(random_state=0).spec()
    run = prepare(SequentialPass(held), spec, source, Limits(None), SerialBackend(), NOWHERE)
    pace = Pace(run.method.batch_rows(run.problem, source), run.state, run.state.ids, clock=itertools.count().__next__)
    told = [event_of_step(run.method, step, pace) for step in run]
    assert [(e.lap, e.of, e.rows) for e in told] == [(1, 4, 400), (2, 4, 800), (3, 4, 1600), (4, 4, 2000)]
    assert [e.rows_per_second for e in told] == [400, 400, 800, 400]
    assert all(e.holdout is not None and e.elbo is None and from_dict(to_dict(e)) == e for e in told)
    unscored = event_of_step(run.method, next(iter(dpdist.SVA(random_state=0).prepare(source))))
    assert unscored.holdout is None


def test_what_a_backend_went_through_is_told_once_and_in_few_words() -> None:
    before = Counts(resubmissions=2, restarts=0, lost=1)
    told = notes_of_counts(before, Counts(resubmissions=7, restarts=1, lost=3))
    assert [(e.about, e.count, e.sentence) for e in told] == [
        ("resubmitted", 5, "5 tasks submitted again: the cluster lost them."),
        ("stuck", 1, "1 worker restarted: no response from it."),
        ("note", 2, "2 workers lost."),
    ]
    assert notes_of_counts(before, before) == []


# telling


class Kept:
    """An outlet that keeps what it is given, and fails as told."""

    def __init__(self, reached: bool = True) -> None:
        self.events: list[Event] = []
        self.reached, self.gate = reached, threading.Event()
        self.gate.set()

    def send(self, event: Event) -> bool:
        self.gate.wait()
        self.events.append(event)
        return self.reached


def batch(done: int) -> BatchEvent:
    return BatchEvent(lap=1, done=done, of=10_000)


def lap(number: int) -> LapEvent:
    return LapEvent(lap=number, elbo=-1.5, rows=10, n_components=2, seconds=0.1, accepted={}, batches=10_000)


def test_broadcasts_drop_batches_only_and_number_what_they_send() -> None:
    outlet = Kept()
    with closing(Broadcast("a run", outlet.send, interval=3600)) as broadcast:
        for number in range(1, 51):
            broadcast.tell(batch(number))
            broadcast.tell(lap(number))
    assert [e.sequence for e in outlet.events] == list(range(1, 52))
    assert {(e.run, len({e.session for e in outlet.events})) for e in outlet.events} == {("a run", 1)}
    assert [e.lap for e in outlet.events if isinstance(e, LapEvent)] == list(range(1, 51))
    assert broadcast.dropped == 49 and broadcast.lost == 0


def test_two_sessions_of_a_run_differ() -> None:
    outlet = Kept()
    for _ in range(2):
        with closing(Broadcast("a run", outlet.send)) as broadcast:
            broadcast.tell(lap(1))
    assert len({event.session for event in outlet.events}) == 2
    assert [event.sequence for event in outlet.events] == [1, 1]


def test_batches_do_not_queue_behind_an_outlet_that_hangs_and_telling_goes_on() -> None:
    outlet = Kept()
    outlet.gate.clear()
    with closing(Broadcast("a run", outlet.send, interval=0.0)) as broadcast:
        broadcast.tell(lap(1))
        broadcast.tell(lap(2))
        for number in range(100):
            broadcast.tell(lap(3 + number))
            broadcast.tell(batch(number))
        assert broadcast.dropped == 100
        outlet.gate.set()
    assert [e.lap for e in outlet.events] == list(range(1, 103))


def test_events_that_are_lost_are_counted() -> None:
    with closing(Broadcast("a run", Kept(reached=False).send)) as broadcast:
        broadcast.tell(lap(1))
        broadcast.tell(note(Happening.CHECKPOINT, "a checkpoint was written."))
    assert broadcast.lost == 2
