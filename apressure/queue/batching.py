"""Lanes: what many tasks of a client put into a queue, or get from it, travels in turns, one step at a time.

One step of a lane is on its way; what arrives meanwhile forms the next one. So concurrent operations share a round
trip, each task's puts keep their order, and a step whose reply was lost can be sent again without doubt about the
ones behind it. An operation that is alone goes out at once: no task switch, no lock.

The rule that this module keeps: an entry leaves a lane exactly once, with a result, an error, or its caller's
cancellation; a message is never in two entries.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from apressure.connection.settle import settled
from apressure.exceptions import LeaseLostError, OutcomeUnknownError, PressureError, QueueDoesNotExistError, Role
from apressure.queue.steps import EMPTY, FULL, Steps
from apressure.queue.waits import Wait, Waits

logger = logging.getLogger("apressure")

MAX_MESSAGES = 2000
"""The most messages in one step, so that it does not hold up the server for more than a few milliseconds."""

MAX_BYTES = 1 << 20
"""The most bytes in one step of several messages."""

R = TypeVar("R")


class Entry(Generic[R]):
    """One operation in a lane.

    Attributes:
        future: What its caller waits for; replaced when the caller is cancelled while a step is on its way.
        now: The operation does not wait: one step decides.
        asked: A step was sent since the operation began.
        in_flight: The step on its way carries (part of) it.
        withdrawn: The caller was cancelled, and waits only to learn the outcome.
        overdue: The timeout passed while a step was on its way.
    """

    __slots__ = ("asked", "future", "in_flight", "now", "overdue", "withdrawn")

    def __init__(self, now: bool) -> None:
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.now = now
        self.asked = False
        self.in_flight = False
        self.withdrawn = False
        self.overdue = False

    def resolve(self, result: R) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            if self.withdrawn:
                self.future.exception()  # its caller raises the cancellation instead


E = TypeVar("E", bound=Entry[Any])


class Lane(ABC, Generic[E]):
    """The machinery of both lanes.

    Args:
        steps: The queue's steps.
        waits: The queue's waiters.
        settle_timeout: Seconds for which a cancelled caller waits to learn its outcome.
    """

    _role: ClassVar[Role]

    def __init__(self, steps: Steps, waits: Waits, settle_timeout: float) -> None:
        self._steps = steps
        self._waits = waits
        self._settle_timeout = settle_timeout
        self._entries: deque[E] = deque()
        self._busy = False
        self._parked: asyncio.Future[None] | None = None
        self._blocked_by: Wait | None = None
        self._noted: dict[Any, tuple[int, ...]] = {}

    @property
    def waiting(self) -> int:
        """How many operations are in the lane."""
        return len(self._entries)

    async def run(self, entry: E, timeout: float | None) -> Any:
        """Bring an entry through the lane and return its result."""
        if timeout is not None and timeout <= 0:
            entry.now, timeout = True, None
        self._entries.append(entry)
        if not self._busy and (self._parked is None or entry.now):
            self._flush()
        timer = None
        if timeout is not None and not entry.future.done():
            timer = asyncio.get_running_loop().call_later(timeout, self._expire, entry)
        try:
            return await entry.future
        except asyncio.CancelledError:
            await self._withdraw(entry)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def end(self, error: PressureError) -> int:
        """Fail every operation that is not on its way; returns how many."""
        ended = [entry for entry in self._entries if not entry.in_flight]
        for entry in ended:
            self._remove(entry)
            entry.fail(error)
        return len(ended)

    @abstractmethod
    def _send(self) -> bool:
        """Send a step for the first entries; False if there is nothing to send."""

    @abstractmethod
    def _accept(self, answer: Any) -> Wait | None:
        """Hand a step's answer to its entries; returns what the rest has to wait for."""

    @abstractmethod
    def _timeout(self, entry: E) -> Exception:
        """The error of an entry whose time is up."""

    @abstractmethod
    def _recover(self, entry: E) -> asyncio.Future[Any] | None:
        """A caller was cancelled with its result in hand: undo that, and return a future to wait for."""

    def _flush(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.cancel()
        if self._entries and not self._busy:
            self._noted = self._waits.note()
            for entry in self._entries:
                entry.asked = True
            self._busy = self._send()
        if not self._entries:
            self._waits.hand_back(self._role)

    def _answered(self, answer: Any) -> None:
        self._busy = False
        in_flight = [entry for entry in self._entries if entry.in_flight]
        for entry in in_flight:
            entry.in_flight = False
        if isinstance(answer, Exception):
            self._blocked_by = None
            self._fail(in_flight, answer)
        else:
            self._blocked_by = answer if isinstance(answer, Wait) else self._accept(answer)
        for entry in in_flight:
            if entry.withdrawn and not entry.future.done():
                self._remove(entry)
                entry.future.cancel()
        if self._blocked_by is not None:
            # An operation that does not wait, and stands behind others that have to: it would have to wait, too.
            for entry in [entry for entry in self._entries if (entry.now and entry.asked) or entry.overdue]:
                self._remove(entry)
                entry.fail(self._timeout(entry))
        if self._busy:
            return
        if self._blocked_by is None or not all(entry.asked for entry in self._entries if entry.now):
            self._flush()
        elif self._entries:
            self._parked = self._waits.park(self._blocked_by, self._noted)
            self._parked.add_done_callback(self._woken)

    def _fail(self, in_flight: Sequence[E], error: Exception) -> None:
        """A step failed. The queue is gone or closed for all; anything else is for those whose step it was."""
        everybody = isinstance(error, (QueueDoesNotExistError, LeaseLostError))
        for entry in list(self._entries) if everybody else in_flight:
            self._remove(entry)
            entry.fail(copy.copy(error))  # one exception raised in many tasks would mix their tracebacks

    def _woken(self, parked: asyncio.Future[None]) -> None:
        if parked.cancelled() or parked is not self._parked:
            return
        self._parked = None
        error = parked.exception()
        if error is None:
            self._flush()
        elif isinstance(error, Exception):
            self._fail(list(self._entries), error)

    def _expire(self, entry: E) -> None:
        if entry.future.done():
            return
        if entry.in_flight:
            entry.overdue = True
        else:
            self._remove(entry)
            entry.fail(self._timeout(entry))

    def _remove(self, entry: E) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
        if not self._entries and self._parked is not None:
            parked, self._parked = self._parked, None
            parked.cancel()
            self._waits.hand_back(self._role)

    async def _withdraw(self, entry: E) -> None:
        if entry.in_flight:
            entry.withdrawn = True
            entry.future = outcome = asyncio.get_running_loop().create_future()
            await settled(outcome, self._settle_timeout)
            return
        if entry in self._entries:
            self._remove(entry)
        elif (undone := self._recover(entry)) is not None:
            await settled(undone, self._settle_timeout)


class Put(Entry[int]):
    """Messages on their way into the queue.

    Attributes:
        messages: What to put.
        done: How many of them are in the queue.
    """

    __slots__ = ("done", "messages")

    def __init__(self, messages: Sequence[bytes], now: bool = False) -> None:
        super().__init__(now)
        self.messages = messages
        self.done = 0


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
        self._sent = 0

    async def put(self, messages: Sequence[bytes], timeout: float | None = None, now: bool = False) -> None:
        """Put messages in order, waiting for room."""
        await self.run(Put(messages, now), timeout)

    def _send(self) -> bool:
        first = self._entries[0]
        if len(self._entries) == 1 and len(first.messages) == 1:
            messages: Sequence[bytes] = first.messages
            self._batch = [(first, 1)]
            first.in_flight = True
        else:
            messages = self._gather()
        self._sent = len(messages)
        self._steps.put(
            self._series, messages, self._waits.take_claim(self._role), self._token, self._force, self._answered
        )
        return True

    def _gather(self) -> list[bytes]:
        messages: list[bytes] = []
        size = 0
        self._batch = []
        # A full queue accepts few: sending a thousand again for each that fits would cost more than it moves.
        for entry in self._entries:
            begin = len(messages)
            for message in entry.messages[entry.done : entry.done + self._window - begin]:
                size += len(message)
                if size > MAX_BYTES and messages:
                    break
                messages.append(message)
            if len(messages) == begin:
                break
            entry.in_flight = True
            self._batch.append((entry, len(messages) - begin))
            if len(messages) >= self._window or size > MAX_BYTES:
                break
        return messages

    def _accept(self, answer: int) -> Wait | None:
        accepted = answer
        self._window = MAX_MESSAGES if accepted == self._sent else max(16, 2 * accepted)
        for entry, sent in self._batch:
            taken = min(sent, accepted)
            accepted -= taken
            entry.done += taken
            if entry.done == len(entry.messages):
                self._remove(entry)
                entry.resolve(entry.done)
        return FULL if answer < self._sent else None

    def _timeout(self, entry: Put) -> Exception:
        return (self._blocked_by or FULL).error(self._steps.name, entry.done)

    def _recover(self, entry: Put) -> None:
        return None  # the message is wholly in


class Get(Entry[list[bytes]]):
    """A wish for messages.

    Attributes:
        max_items: How many at the most.
    """

    __slots__ = ("max_items",)

    def __init__(self, max_items: int, now: bool = False) -> None:
        super().__init__(now)
        self.max_items = max_items


class GetLane(Lane[Get]):
    """What a client's tasks get (at-most-once)."""

    _role = "consumer"

    def __init__(self, steps: Steps, waits: Waits, settle_timeout: float) -> None:
        super().__init__(steps, waits, settle_timeout)
        self._series = steps.series()

    async def get(self, max_items: int = 1, timeout: float | None = None, now: bool = False) -> list[bytes]:
        """Get one to max_items messages, waiting while the queue is empty."""
        messages: list[bytes] = await self.run(Get(max_items, now), timeout)
        return messages

    def give_back(self, messages: Sequence[bytes]) -> asyncio.Future[None]:
        """Make messages the first in line again; the future is done when they are, or when they are lost."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(answer: Any) -> None:
            if isinstance(answer, Exception):
                logger.error(
                    "%d messages of the queue %r were taken for a get that was cancelled, and are lost: %s",
                    len(messages),
                    self._steps.name,
                    answer,
                )
            if not done.done():
                done.set_result(None)

        self._steps.give_back(self._series, messages, answered)
        return done

    def _send(self) -> bool:
        wanted = 0
        for entry in self._entries:
            if wanted >= MAX_MESSAGES:
                break
            entry.in_flight = True
            wanted += min(entry.max_items, MAX_MESSAGES - wanted)
        self._steps.get(self._waits.take_claim(self._role), wanted, self._answered)
        return True

    def _accept(self, answer: list[bytes]) -> Wait | None:
        begin = 0
        for entry in list(self._entries):
            if entry.withdrawn:
                continue
            if begin == len(answer):
                break
            share = answer[begin : begin + entry.max_items]
            begin += len(share)
            self._remove(entry)
            entry.resolve(share)
        if begin == len(answer):
            return None if begin else EMPTY
        # Taken for somebody who was cancelled: the withdrawn callers wait until it is back.
        undone = self.give_back(answer[begin:])
        for entry in [entry for entry in self._entries if entry.withdrawn]:
            self._remove(entry)
            _follow(undone, entry.future)
        return None

    def _fail(self, in_flight: Sequence[Get], error: Exception) -> None:
        super()._fail(in_flight, error)
        if isinstance(error, OutcomeUnknownError) and any(entry.withdrawn for entry in in_flight):
            logger.error("a cancelled get of the queue %r may have lost messages: %s", self._steps.name, error)

    def _timeout(self, entry: Get) -> Exception:
        return (self._blocked_by or EMPTY).error(self._steps.name)

    def _recover(self, entry: Get) -> asyncio.Future[None] | None:
        if entry.future.cancelled() or entry.future.exception() is not None:
            return None
        return self.give_back(entry.future.result())


def _follow(undone: asyncio.Future[None], outcome: asyncio.Future[Any]) -> None:
    follow: Callable[[asyncio.Future[None]], None] = lambda _: None if outcome.done() else outcome.set_result([])
    undone.add_done_callback(follow)
