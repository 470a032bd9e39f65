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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from apressure.connection.settle import settled
from apressure.exceptions import LeaseLostError, PressureError, QueueDoesNotExistError, Role
from apressure.queue.steps import Steps
from apressure.queue.waits import Noted, Wait, Waits

R = TypeVar("R")


class Entry(Generic[R]):
    """One operation in a lane.

    Attributes:
        future: What its caller waits for; replaced when the caller is cancelled while a step is on its way.
        now: The operation does not wait: one step decides.
        sent_before: How many steps the lane had sent when the operation began.
        in_flight: The step on its way carries (part of) it.
        withdrawn: The caller was cancelled, and waits only to learn the outcome.
        overdue: The timeout passed while a step was on its way.
        ending: What to raise instead of waiting: the client was closed, or unblocked, while a step was on its way.
    """

    future: asyncio.Future[R]
    now = False
    sent_before = 0
    in_flight = False
    withdrawn = False
    overdue = False
    ending: PressureError | None = None

    def withdraw(self) -> None:
        """The caller was cancelled while a step is on its way: a fresh future says when the outcome is known."""
        if not self.withdrawn:
            self.withdrawn = True
            self.future = asyncio.get_running_loop().create_future()

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
        self._entries: dict[E, None] = {}  # in order, and each can leave at once
        self._busy = False
        self._sent = 0
        self._parked: asyncio.Future[None] | None = None
        self._blocked_by: Wait | None = None
        self._noted: Noted = []

    @property
    def waiting(self) -> int:
        """How many operations are in the lane."""
        return len(self._entries)

    @property
    def _first(self) -> E:
        return next(iter(self._entries))

    async def run(self, entry: E, timeout: float | None, now: bool) -> Any:
        """Bring an entry through the lane and return its result; `now` as with a timeout of 0."""
        loop = asyncio.get_running_loop()
        entry.future = loop.create_future()
        if now or (timeout is not None and timeout <= 0):
            entry.now, timeout = True, None
        entry.sent_before = self._sent
        self._entries[entry] = None
        if not self._busy and (self._parked is None or entry.now):
            self._flush()
        timer = None
        if timeout is not None and not entry.future.done():
            timer = loop.call_later(timeout, self._expire, entry)
        try:
            return await entry.future
        except asyncio.CancelledError:
            await self._withdraw(entry)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def end(self, error: PressureError) -> int:
        """Fail every operation that waits, now or when the step on its way says that it has to; returns how many."""
        ended = [entry for entry in self._entries if not entry.in_flight]
        for entry in self._entries:
            entry.ending = error
        for entry in ended:
            self._remove(entry)
            entry.fail(copy.copy(error))
        return len(ended)

    @abstractmethod
    def _send(self) -> None:
        """Send a step for the first entries."""

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
        while self._entries and (first := self._first).future.cancelled():
            del self._entries[first]  # its caller will notice in this turn of the loop
        if self._entries and not self._busy:
            self._noted = self._waits.note()
            self._sent += 1
            self._busy = True
            self._send()
        if not self._entries:
            self._waits.hand_back(self._role)

    def _answered(self, answer: Any) -> None:
        self._busy = False
        in_flight = [entry for entry in self._entries if entry.in_flight]
        withdrawn = []
        for entry in in_flight:
            entry.in_flight = False
            if entry.future.cancelled():
                # A cancellation cancels the future at once, and the caller runs a little later: the reply came between.
                entry.withdraw()
            if entry.withdrawn:
                withdrawn.append(entry)
        if isinstance(answer, Exception):
            self._blocked_by = None
            self._fail(in_flight, answer)
        else:
            self._blocked_by = answer if isinstance(answer, Wait) else self._accept(answer)
        for entry in withdrawn:
            if entry in self._entries:
                self._remove(entry)
                entry.future.cancel()
        if self._blocked_by is not None:
            self._fail_impatient()
        if self._busy:
            return
        if self._blocked_by is None or any(entry.now and not self._asked(entry) for entry in self._entries):
            self._flush()
        elif self._entries:
            self._parked = self._waits.park(self._blocked_by, self._noted)
            self._parked.on_wake = self._woken
            self._parked.add_done_callback(self._woken)  # for what comes otherwise: the end of a lease, say

    def _asked(self, entry: E) -> bool:
        """A step was sent since the operation began."""
        return entry.sent_before < self._sent

    def _fail_impatient(self) -> None:
        """The queue makes its operations wait: fail those that do not, or no longer."""
        for entry in list(self._entries):
            if entry.ending is not None:
                self._remove(entry)
                entry.fail(copy.copy(entry.ending))
            elif (entry.now and self._asked(entry)) or entry.overdue:
                # One that stands behind others that have to wait would have to wait, too.
                self._remove(entry)
                entry.fail(self._timeout(entry))

    def _fail(self, in_flight: Sequence[E], error: Exception) -> None:
        """A step failed. The queue is gone or closed for all; anything else is for those whose step it was."""
        everybody = isinstance(error, (QueueDoesNotExistError, LeaseLostError))
        for entry in list(self._entries) if everybody else in_flight:
            self._remove(entry)
            failure = copy.copy(error)  # one exception raised in many tasks would mix their tracebacks
            entry.fail(failure)

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
        self._entries.pop(entry, None)
        if not self._entries and self._parked is not None:
            parked, self._parked = self._parked, None
            parked.cancel()
            self._waits.hand_back(self._role)

    async def _withdraw(self, entry: E) -> None:
        if entry.in_flight:
            entry.withdraw()
        if entry.withdrawn:
            await settled(entry.future, self._settle_timeout)
        elif entry in self._entries:
            self._remove(entry)
        elif (undone := self._recover(entry)) is not None:
            await settled(undone, self._settle_timeout)
