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
from apressure.core.putting import Putting, PuttingLane
from apressure.core.taking import TakeLane
from apressure.events.engine.answers import Event, Popped
from apressure.events.engine.steps import MAX_EVENTS, EventSteps, Want
from apressure.events.engine.waits import EventWaits
from apressure.exceptions import DuplicateEventError

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

    _most = MAX_EVENTS
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


class PopLane(TakeLane[Want, Event]):
    """The pops of a client's tasks."""

    _most = MAX_EVENTS
    _steps: EventSteps
    _waits: EventWaits

    def __init__(self, steps: EventSteps, waits: EventWaits) -> None:
        super().__init__(steps, waits)
        self._series = steps.series()

    def _take(self, most: int, want: Want, waits: bool) -> Request:
        place = self._waits.take_turn() if waits else b""
        return self._steps.send_pop(self._series, most, want, place, self._answered)

    def _messages(self, answer: Any) -> list[Event]:
        return answer.events if isinstance(answer, Popped) else []

    def _note(self, answer: Popped) -> None:
        note_popped(self._steps, answer)

    def _return(self, step: int, messages: Sequence[Event]) -> asyncio.Future[Any]:  # noqa: ARG002
        return self._steps.give_back_soon(messages)

    def _fate(self, messages: Sequence[Event]) -> str:
        return super()._fate(messages) if messages[0].token else "they are lost"


def note_popped(steps: EventSteps, answer: Popped) -> None:
    """Count and log what a step has popped."""
    name, counts = steps.name, steps.counts
    counts.received_count += len(answer.events)
    counts.dead_lettered_count += logs.dead_letters("EventQueue", name, answer.dead)
    for one in answer.events:
        if one.attempts > 1:
            event_id = one.id.decode(errors="backslashreplace")
            logs.redelivered("EventQueue", name, event_id, one.attempts, one.contents)


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
