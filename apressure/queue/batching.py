"""The two lanes of a queue: concurrent puts of a client become one step, and so do its gets."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Sequence
from typing import Any

from apressure.connection.settle import resolve
from apressure.exceptions import DurabilityError, OutcomeUnknownError, PressureError
from apressure.queue.lanes import Entry, Lane
from apressure.queue.portions import MAX_BYTES, MAX_MESSAGES
from apressure.queue.steps import EMPTY, FULL, Steps
from apressure.queue.waits import Wait, Waits

logger = logging.getLogger("apressure")


class Put(Entry[None]):
    """Messages on their way into the queue.

    Attributes:
        messages: What to put, a portion: small enough for one step.
        done: How many of them are in the queue, however the operation ends.
    """

    done = 0

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = messages

    def fail(self, error: Exception) -> None:
        if isinstance(error, PressureError):
            error.accepted = self.done
        super().fail(error)


class PutLane(Lane[Put]):
    """What a client's tasks put.

    Args:
        token: The lease token of an exclusive producer; empty for everybody else.
        force: Put whatever the bound says. Such puts have a lane of their own: they do not wait behind others.
    """

    _role = "producer"

    def __init__(
        self, steps: Steps, waits: Waits, settle_timeout: float, token: bytes = b"", force: bool = False
    ) -> None:
        super().__init__(steps, waits, settle_timeout)
        self._series = steps.series()
        self._token = token
        self._force = force
        self._window = MAX_MESSAGES
        self._batch: list[tuple[Put, int]] = []
        self._size = 0
        self._served = 0

    def put(self, put: Put, timeout: float | None = None, now: bool = False) -> Awaitable[Any]:
        """Put messages in order, waiting for room."""
        return self.run(put, timeout, now)

    def _send(self) -> None:
        first = self._first
        if len(self._entries) == 1 and len(first.messages) - first.done <= self._window:
            messages: Sequence[bytes] = first.messages[first.done :] if first.done else first.messages
            self._batch = [(first, len(messages))]
            first.in_flight = True
        else:
            messages = self._gather()
        self._size = len(messages)
        self._steps.put(
            self._series, messages, self._waits.take_claim(self._role), self._token, self._force, self._answered
        )

    def _gather(self) -> list[bytes]:
        messages: list[bytes] = []
        size = 0
        batch = self._batch = []
        waiting, served = len(self._entries), self._served
        # Tasks that put again and again would all wait for one step, and the server then for all of them. So half of
        # them leave, and while the server works on those, the others get what they need for the next step.
        most = waiting if waiting <= served else (waiting + served + 1) // 2
        # A full queue accepts few: sending a thousand again for each that fits would cost more than it moves.
        for entry in self._entries:
            if len(batch) == most:
                break
            if entry.future.cancelled():
                continue
            begin = len(messages)
            for message in entry.messages[entry.done : entry.done + self._window - begin]:
                size += len(message)
                if size > MAX_BYTES and messages:
                    break
                messages.append(message)
            if len(messages) == begin:
                break
            entry.in_flight = True
            batch.append((entry, len(messages) - begin))
            if len(messages) >= self._window or size > MAX_BYTES:
                break
        return messages

    def _accept(self, answer: int) -> Wait | None:
        accepted = answer
        full = accepted < self._size
        self._window = max(16, 2 * accepted) if full else MAX_MESSAGES
        batch, self._batch = self._batch, []
        self._served = 0
        for entry, sent in batch:
            taken = min(sent, accepted)
            accepted -= taken
            entry.done += taken
            if entry.done == len(entry.messages):
                self._served += 1
                self._remove(entry)
                entry.resolve(None)
        return FULL if full else None

    def _fail(self, in_flight: Sequence[Put], error: Exception) -> None:
        if isinstance(error, DurabilityError):
            # Some are in the queue, if not safely. Those that found no room are certainly not, and go on waiting.
            accepted, unsure = error.answer, []
            for entry, sent in self._batch:
                if accepted > 0:
                    unsure.append(entry)
                accepted -= sent
            in_flight = unsure
        self._batch, self._served = [], 0
        super()._fail(in_flight, error)

    def _timeout(self, entry: Put) -> Exception:
        return (self._blocked_by or FULL).error(self._steps.name, entry.done)

    def _recover(self, entry: Put) -> None:  # noqa: ARG002
        return None  # the message is wholly in


class Got(list[bytes]):
    """Messages that were got.

    Attributes:
        order: The number of the step that got them, and their place among all that the lane got.
    """

    def __init__(self, messages: Sequence[bytes], order: tuple[int, int]) -> None:
        super().__init__(messages)
        self.order = order


class Get(Entry[Got]):
    """A wish for messages.

    Attributes:
        max_items: How many at the most.
    """

    def __init__(self, max_items: int) -> None:
        self.max_items = max_items


class GetLane(Lane[Get]):
    """What a client's tasks get (at-most-once)."""

    _role = "consumer"

    def __init__(self, steps: Steps, waits: Waits, settle_timeout: float) -> None:
        super().__init__(steps, waits, settle_timeout)
        self._series = steps.gets()
        self._order = 0
        self._back: list[tuple[tuple[int, int], Sequence[bytes], asyncio.Future[None]]] = []

    def get(self, max_items: int = 1, timeout: float | None = None, now: bool = False) -> Awaitable[Got]:
        """Get one to max_items messages, waiting while the queue is empty."""
        return self.run(Get(max_items), timeout, now)

    def give_back(self, messages: Sequence[bytes], order: tuple[int, int] | None = None) -> asyncio.Future[None]:
        """Make messages the first in line again; the future is done when they are, or when they are lost.

        `order` is that of what was got; None for what the latest step got.

        What several cancelled tasks have to give back in one turn of the event loop goes back together, in the order
        in which it was got, and before the next step of this lane.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if not self._back:
            loop.call_soon(self._send_back)
        self._back.append((self._next_order() if order is None else order, messages, done))
        return done

    def _send_back(self) -> None:
        back, self._back = sorted(self._back, key=lambda given: given[0]), []
        by_step = [(step, list(given)) for step, given in itertools.groupby(back, key=lambda given: given[0][0])]
        for step, given in reversed(by_step):  # the oldest last: it will be the first in line
            messages = [message for _, some, _ in given for message in some]
            answered = functools.partial(self._given_back, len(messages), [done for _, _, done in given])
            self._steps.give_back(self._series, step, messages, answered)

    def _given_back(self, count: int, waiting: Sequence[asyncio.Future[None]], answer: Any) -> None:
        if isinstance(answer, Exception):
            logger.error(
                "%d messages of the queue %r were taken for a get that was cancelled, and are lost: %s",
                count,
                self._steps.name,
                answer,
            )
        for done in waiting:
            resolve(done, None)

    def _next_order(self) -> tuple[int, int]:
        self._order += 1
        return (0 if self._series is None else self._series.number, self._order)

    def _send(self) -> None:
        self._send_back()
        wanted = 0
        for entry in self._entries:
            if wanted >= MAX_MESSAGES:
                break
            if entry.future.cancelled():
                continue
            entry.in_flight = True
            wanted += min(entry.max_items, MAX_MESSAGES - wanted)
        self._steps.get(self._series, self._waits.take_claim(self._role), wanted, self._answered)

    def _accept(self, answer: list[bytes]) -> Wait | None:
        begin = 0
        for entry in list(self._entries):
            if entry.withdrawn or entry.future.cancelled():
                continue  # also one that joined after the step had left, and was cancelled in this turn of the loop
            if begin == len(answer):
                break
            share = answer[begin : begin + entry.max_items]
            begin += len(share)
            self._remove(entry)
            entry.resolve(Got(share, self._next_order()))
        if begin == len(answer):
            return None if begin else EMPTY
        # Taken for somebody who was cancelled: the withdrawn callers wait until it is back.
        undone = self.give_back(answer[begin:])
        for entry in [entry for entry in self._entries if entry.withdrawn]:
            self._remove(entry)
            _follow(undone, entry.future)
        return None

    def _fail(self, in_flight: Sequence[Get], error: Exception) -> None:
        if isinstance(error, DurabilityError):
            undone = self.give_back(error.answer)
            for entry in [entry for entry in in_flight if entry.withdrawn]:
                self._remove(entry)  # cancelled: its caller waits until everything is as it was
                _follow(undone, entry.future)
            in_flight = [entry for entry in in_flight if not entry.withdrawn]
        super()._fail(in_flight, error)
        if isinstance(error, OutcomeUnknownError) and any(entry.withdrawn for entry in in_flight):
            logger.error("a cancelled get of the queue %r may have lost messages: %s", self._steps.name, error)

    def _timeout(self, entry: Get) -> Exception:  # noqa: ARG002
        return (self._blocked_by or EMPTY).error(self._steps.name)

    def _recover(self, entry: Get) -> asyncio.Future[None] | None:
        if entry.future.cancelled() or entry.future.exception() is not None:
            return None
        got = entry.future.result()
        return self.give_back(got, got.order)


def _follow(undone: asyncio.Future[None], outcome: asyncio.Future[Any]) -> None:
    def follow(_: asyncio.Future[None]) -> None:
        if not outcome.done():
            outcome.set_result([])

    undone.add_done_callback(follow)
