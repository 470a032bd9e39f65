"""The lanes of a queue of events: a client's concurrent pushes become one step, and so do its pops and its settling."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from apressure import logs
from apressure.concurrency.settle import set_result_once, wait_shielded
from apressure.connection.wire.request import Request
from apressure.core.lanes import Entry, Lane
from apressure.core.putting import Putting, PuttingLane
from apressure.core.waiting import EMPTY, FULL, Wait
from apressure.events.engine.answers import Event, Popped
from apressure.events.engine.steps import MAX_EVENTS, EventSteps
from apressure.events.engine.waits import EventWaits
from apressure.exceptions import DuplicateEventError, DurabilityError, OutcomeUnknownError

logger = logging.getLogger("apressure")

Pair = tuple[bytes, bytes]
"""An event's id and its contents."""


class Push(Putting[Pair]):
    """Events on their way into the queue."""


class PushLane(PuttingLane[Push]):
    """The pushes of a client's tasks.

    Args:
        steps, waits: As for `Lane`.
        front: They push to the front.
    """

    _wait_type = Wait
    _most = MAX_EVENTS
    _full = FULL
    _steps: EventSteps
    _waits: EventWaits

    def __init__(self, steps: EventSteps, waits: EventWaits, front: bool) -> None:
        super().__init__(steps, waits)
        self._front = front

    def _put(self, items: Sequence[Pair], expected: bool) -> Request:
        self._waits.take_room()
        return self._steps.send_push(self._series, items, self._front, False, expected, self._answered)

    def _count(self, answer: bytes) -> int:
        return len(answer)

    def _refusal(self, entry: Push, answer: bytes, begin: int, end: int) -> DuplicateEventError | None:
        if b"d" not in answer[begin:end]:
            return None  # only `put(id=…)` gives ids that may be in use, one at a time
        event_id = entry.items[0][0].decode(errors="surrogateescape")
        return DuplicateEventError(
            f"the queue {self._steps.name!r} has an event with the id {event_id!r} already: nothing was put",
            name=self._steps.name,
            id=event_id,
        )


class Pop(Entry[list[Event]]):
    """A pop of one to `max_events` events, claimed for `lease` milliseconds; 0 acknowledges them at once."""

    def __init__(self, max_events: int, lease: int, expected: bool) -> None:
        self.max_events = max_events
        self.lease = lease
        self.expected = expected


class PopLane(Lane[Pop]):
    """The pops of a client's tasks.

    Args:
        steps, waits: As for `Lane`.
        limit: How often an event is delivered at most; 0 for no limit.
    """

    _role = "consumer"
    _wait_type = Wait
    _steps: EventSteps
    _waits: EventWaits

    def __init__(self, steps: EventSteps, waits: EventWaits, limit: int) -> None:
        super().__init__(steps, waits)
        self._series = steps.series()
        self._limit = limit
        self._back: list[tuple[int, Sequence[Event], asyncio.Future[None]]] = []
        self._order = 0

    def give_back(self, events: Sequence[Event], order: int) -> asyncio.Future[None]:
        """Give back events that nobody has seen; the future completes when they are back, or that has failed.

        Events of several cancelled tasks go back together and in order, before the next step of this lane.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._back:
            loop.call_soon(self._send_back)
        self._back.append((order, events, done))
        return done

    def _send_back(self) -> None:
        back, self._back = sorted(self._back, key=lambda given: given[0]), []
        events = [event for _, some, _ in back for event in some]
        for some in ([one for one in events if one.token], [one for one in events if not one.token]):
            if some:
                waiting = [done for _, given, done in back if given[0] in some]
                gone = self._steps.give_back_soon(some)
                gone.add_done_callback(functools.partial(self._given_back, some, waiting))

    def _given_back(
        self, events: Sequence[Event], waiting: Sequence[asyncio.Future[None]], gone: asyncio.Future[Any]
    ) -> None:
        if isinstance(error := gone.result(), Exception):
            fate = "they come back when their lease ends" if events[0].token else "they are lost"
            logger.error(
                "%d events of the queue %r, taken by a cancelled operation, could not be given back: %s: %s",
                len(events), self._steps.name, fate, error,
            )  # fmt: skip
        for done in waiting:
            set_result_once(done, None)

    def _send(self) -> None:
        self._send_back()
        first, wanted = self._first, 0
        for entry in self._entries:
            if wanted >= MAX_EVENTS:
                break
            if entry.future.cancelled():
                continue
            if (entry.lease, entry.expected) != (first.lease, first.expected):
                break
            entry.in_flight = True
            wanted += min(entry.max_events, MAX_EVENTS - wanted)
        place = b"" if all(entry.now for entry in self._entries) else self._waits.take_turn()
        self._request = self._steps.send_pop(
            self._series, wanted, first.lease, place, self._limit, first.expected, None, False, self._answered
        )

    def _accept(self, answer: Popped) -> Wait | None:
        events, begin = answer.events, 0
        note_popped(self._steps, answer)
        if not self._first.lease:
            self._steps.counts.deleted_count += len(events)
        lease = next((entry.lease for entry in self._entries), 0)
        for entry in list(self._entries):
            if entry.withdrawn or entry.future.cancelled():
                continue  # perhaps it joined after the step had left, and was cancelled in this turn of the loop
            if begin == len(events) or entry.lease != lease:
                break
            share = events[begin : begin + entry.max_events]
            begin += len(share)
            self._remove(entry)
            entry.succeed(share)
        if begin < len(events):
            # The rest was taken for cancelled callers: those that still wait do so until it has been given back.
            self._order += 1
            undone = self.give_back(events[begin:], self._order)
            for entry in [entry for entry in self._entries if entry.withdrawn]:
                self._remove(entry)
                _follow(undone, entry.future)
        return None

    def _fail(self, in_flight: Sequence[Pop], error: Exception) -> None:
        if isinstance(error, DurabilityError) and isinstance(error.answer, Popped) and error.answer.events:
            self._order += 1
            undone = self.give_back(error.answer.events, self._order)
            for entry in [entry for entry in in_flight if entry.withdrawn]:
                self._remove(entry)
                _follow(undone, entry.future)
            in_flight = [entry for entry in in_flight if not entry.withdrawn]
        super()._fail(in_flight, error)
        if isinstance(error, OutcomeUnknownError) and any(one.withdrawn and not one.lease for one in in_flight):
            logger.error("a cancelled get of the queue %r may have lost events: %s", self._steps.name, error)

    def _wait(self, wait: Wait) -> None:
        for entry in self._entries:
            entry.expected = entry.expected or wait.created
        super()._wait(wait)

    def _timeout(self, entry: Pop) -> Exception:  # noqa: ARG002
        return (self._blocked_by or EMPTY).error(self._steps.name)

    def _recover(self, entry: Pop) -> asyncio.Future[None] | None:
        if entry.future.cancelled() or entry.future.exception() is not None:
            return None
        self._order += 1
        return self.give_back(entry.future.result(), self._order)


def note_popped(steps: EventSteps, answer: Popped) -> None:
    """Count and log what a step has popped."""
    name, counts = steps.name, steps.counts
    counts.received_count += len(answer.events)
    counts.dead_lettered_count += logs.dead_letters("EventQueue", name, answer.dead)
    for one in answer.events:
        if one.attempts > 1:
            event_id = one.id.decode(errors="backslashreplace")
            logs.redelivered("EventQueue", name, event_id, one.attempts, one.contents)


def _follow(undone: asyncio.Future[None], outcome: asyncio.Future[Any]) -> None:
    undone.add_done_callback(lambda _: set_result_once(outcome, []))


OnSettled = Callable[[bool | Exception], None]


class Settler:
    """Settles deliveries: one step at a time; those that are settled meanwhile form the next one.

    Args:
        steps: The queue's steps.
        keep_errors: Keep the errors of events that go back.

    Attributes:
        keep_errors: As given.
    """

    def __init__(self, steps: EventSteps, keep_errors: bool) -> None:
        self.keep_errors = keep_errors
        self._steps = steps
        self._series = steps.series()
        self._waiting: deque[tuple[str, Sequence[bytes], OnSettled]] = deque()
        self._busy = False
        self._idle: asyncio.Future[None] | None = None

    def soon(self, how: str, claim: Sequence[bytes], on_settled: OnSettled) -> None:
        """Settle a claim, `how` and `claim` being as for `EventSteps.send_settle`; `on_settled` is called once.

        Its argument says whether the event was still claimed, or is the error.
        """
        self._waiting.append((how, claim, on_settled))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._send)  # others may follow in this turn of the event loop

    async def settle(self, how: str, claim: Sequence[bytes]) -> bool:
        """Settle a claim and wait for the outcome: whether the event was still claimed.

        Cancelled, it waits for the outcome, then raises.
        """
        done: asyncio.Future[bool | Exception] = asyncio.get_running_loop().create_future()
        self.soon(how, claim, functools.partial(set_result_once, done))
        try:
            await asyncio.wait((done,))
        except asyncio.CancelledError:
            await wait_shielded(done, self._steps.settle_timeout)
            raise
        outcome = done.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def flushed(self) -> asyncio.Future[None]:
        """Return a future that completes when everything so far has been settled, or has failed."""
        if self._idle is None or self._idle.done():
            self._idle = asyncio.get_running_loop().create_future()
            if not self._busy:
                self._idle.set_result(None)
        return self._idle

    def _send(self) -> None:
        if not self._waiting:
            self._busy = False
            if self._idle is not None:
                set_result_once(self._idle, None)
            return
        how = self._waiting[0][0]
        batch: list[tuple[str, Sequence[bytes], OnSettled]] = []
        while self._waiting and self._waiting[0][0] == how and len(batch) < MAX_EVENTS:
            batch.append(self._waiting.popleft())

        def on_answer(answer: Any) -> None:
            outcomes: Sequence[bool | Exception]
            if isinstance(answer, Exception):
                outcomes = [answer] * len(batch)
            else:
                # A late answer to a repeat has no letters: its step was done, and nothing is known.
                outcomes = [letter == ord("1") for letter in answer] or [True] * len(batch)
            if how == "ack":
                self._steps.counts.deleted_count += sum(outcome is True for outcome in outcomes)
            for (_, _, on_settled), outcome in zip(batch, outcomes, strict=True):
                on_settled(outcome)
            self._send()

        self._steps.send_settle(self._series, how, [claim for _, claim, _ in batch], False, on_answer)
