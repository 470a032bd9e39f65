"""Lanes: operations of a client's tasks travel together, one step at a time: puts, gets.

At most one step of a lane is on its way; operations that begin meanwhile form the next step. So concurrent operations
share a round trip, each task's puts keep their order, and a step whose reply was lost can be sent again: no later step
has been sent. A single operation is sent at once, without a task switch or a lock.

The rule of this module: an entry leaves its lane exactly once, with a result, an error, or its caller's cancellation. A
message is never in two entries.
"""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from apressure.concurrency.settle import wait_shielded
from apressure.core.driver import Connection, NotSentError, Request
from apressure.core.waiting import Parked, Wait, Waits, moment
from apressure.exceptions import LeaseLostError, PressureError, QueueDoesNotExistError

R = TypeVar("R")


class State(Enum):
    """Where an operation stands.

    Attributes:
        WAITING: No step carries it.
        CARRIED: The step on its way carries it, or a part of it.
        WITHDRAWN: A step carries it, and its caller was cancelled: it leaves the lane with that step's answer, and the
            caller waits for the outcome.
    """

    WAITING = auto()
    CARRIED = auto()
    WITHDRAWN = auto()


WAITING, CARRIED, WITHDRAWN = State


class Entry(Generic[R]):
    """One operation in a lane.

    Attributes:
        future: Its caller waits for this; replaced when the caller is cancelled while a step is on its way.
        state: Where it stands.
        now: The operation may not wait, or not any longer: it fails when its step says that it must.
        sent_before: How many steps the lane had sent when the operation began.
        ending: The error to raise instead of waiting: the client was closed, or unblocked, while a step was on its way.
    """

    future: asyncio.Future[R]
    state = WAITING
    now = False
    sent_before = 0
    ending: PressureError | None = None

    def withdraw(self) -> None:
        """Note that the caller was cancelled while a step is on its way: a new future will have the outcome."""
        self.state = WITHDRAWN
        self.future = asyncio.get_running_loop().create_future()

    def succeed(self, result: R) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            if self.state is WITHDRAWN:
                self.future.exception()  # its caller raises the cancellation instead


E = TypeVar("E", bound=Entry[Any])


class LaneSteps(Protocol):
    """The steps of a queue, as a lane knows them.

    Attributes:
        settle_timeout: Seconds for which a cancelled caller waits for the outcome.
    """

    settle_timeout: float

    @property
    def connection(self) -> Connection:
        """The connection for steps."""


class LaneNotice(Protocol):
    """What the log says while a lane waits."""

    def waits(self, wait: Wait, parked: asyncio.Future[None]) -> None:
        """It waits with this future."""

    def ended(self) -> None:
        """It waits no more."""


class Lane(ABC, Generic[E]):
    """The lane of one kind of operation.

    Args:
        steps: The queue's steps.
        waits: The queue's waiters.
    """

    _role: ClassVar[str]
    _notice: LaneNotice | None = None

    def __init__(self, steps: LaneSteps, waits: Waits) -> None:
        self._steps = steps
        self._waits = waits
        self._entries: dict[E, None] = {}  # in order, and each can leave at once
        self._busy = False
        self._request: Request | None = None
        self._sent = 0
        self._parked: asyncio.Future[None] | None = None
        self._blocked_by: Wait | None = None
        self._moment = 0  # the moment before the latest step
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """How many operations are in the lane."""
        return len(self._entries)

    @property
    def _first(self) -> E:
        return next(iter(self._entries))

    async def run(self, entry: E, timeout: float | None, now: bool) -> Any:
        """Take an entry through the lane and return its result. `now` is a timeout of 0."""
        # To ask for the loop is a call of the system, in some versions of Python. A queue object has only one.
        loop = self._loop = self._loop or asyncio.get_running_loop()
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
        """Fail every operation that waits, and those on their way if their step says that they must wait.

        Returns:
            How many were waiting.
        """
        ended = [entry for entry in self._entries if entry.state is WAITING]
        for entry in self._entries:
            entry.ending = error
        for entry in ended:
            self._remove(entry)
            entry.fail(copy.copy(error))
        return len(ended)

    @abstractmethod
    def _send(self, first: E) -> None:
        """Send a step for the first entries, of which this is the very first."""

    @abstractmethod
    def _accept(self, answer: Any) -> Wait | None:
        """Give a step's answer to its entries; returns the "not now" of the others, or None if they need not wait."""

    @abstractmethod
    def _timeout(self, entry: E) -> Exception:
        """Return the error of an entry whose timeout has passed."""

    @abstractmethod
    def _recover(self, entry: E) -> asyncio.Future[Any] | None:
        """Undo the result of an entry whose caller was cancelled; returns a future that completes when it is undone."""

    def _flush(self) -> None:
        if self._busy:
            return  # the answer sees to the others
        if self._parked is not None:
            self._unpark()
        entries = self._entries
        while entries:
            first = next(iter(entries))
            if not first.future.cancelled():
                self._moment = moment()
                self._sent += 1
                self._busy = True
                self._send(first)
                return
            del entries[first]  # its caller runs in this turn of the event loop
        self._waits.hand_back(self._role)

    def _answered(self, answer: Any) -> None:  # noqa: PLR0912 (each operation passes here: a function more costs time)
        self._busy = False
        in_flight = []
        for entry in self._entries:
            if entry.state is WAITING:
                continue
            in_flight.append(entry)
            if entry.future.cancelled():
                # The reply came after the cancellation cancelled the future, and before the caller ran.
                entry.withdraw()
            elif entry.state is CARRIED:
                entry.state = WAITING
        blocked_before, self._blocked_by = self._blocked_by, None
        if not isinstance(answer, Exception):
            self._blocked_by = answer if isinstance(answer, Wait) else self._accept(answer)
        elif not isinstance(answer, NotSentError):
            self._fail(in_flight, answer)
        for entry in in_flight:
            if entry.state is WITHDRAWN and entry in self._entries:
                self._remove(entry)
                entry.future.cancel()
        if self._blocked_by is not None:
            self._fail_impatient()
        elif blocked_before is not None and self._notice is not None:
            self._notice.ended()
        if self._busy or isinstance(answer, NotSentError):
            return
        if self._blocked_by is None and not self._entries:
            self._waits.hand_back(self._role)
        elif self._blocked_by is None or any(entry.now and not self._asked(entry) for entry in self._entries):
            self._flush()
        else:
            self._wait(self._blocked_by)

    def _wait(self, wait: Wait) -> None:
        if not self._entries:
            self._waits.drop(wait)
            return
        self._parked = self._park(wait)
        if self._notice is not None:
            self._notice.waits(wait, self._parked)
        self._parked.on_wake = self._woken
        self._parked.add_done_callback(self._woken)  # where no waiter woke: the end of a lease, for example

    def _park(self, wait: Wait) -> Parked:
        """Wait until it is time to try again."""
        return self._waits.park(wait, self._moment)

    def _unpark(self) -> None:
        """Stop waiting."""
        if (parked := self._parked) is not None:
            self._parked = None
            parked.cancel()

    def _asked(self, entry: E) -> bool:
        """Whether a step was sent since the operation began."""
        return entry.sent_before < self._sent

    def _fail_impatient(self) -> None:
        """The operations of this lane must wait: fail those that may not."""
        for entry in list(self._entries):
            # An operation behind others that must wait would have to wait, too.
            if entry.ending is not None or (entry.now and self._asked(entry)):
                self._remove(entry)
                entry.fail(self._timeout(entry) if entry.ending is None else copy.copy(entry.ending))

    def _fail(self, in_flight: Sequence[E], error: Exception) -> None:
        """Fail the operations of a step that failed, or all, where the queue or the lease is gone."""
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
        if entry.state is WAITING:
            self._remove(entry)
            entry.fail(self._timeout(entry))
        else:
            entry.now = True

    def _remove(self, entry: E) -> None:
        self._entries.pop(entry, None)
        if not self._entries and self._parked is not None:
            self._unpark()
            self._waits.hand_back(self._role)

    async def _withdraw(self, entry: E) -> None:
        if entry.state is CARRIED:
            entry.withdraw()
            if self._steps.connection.take_back(self._request):
                # Later: where many tasks are cancelled together, each would send a step with all the others.
                asyncio.get_running_loop().call_soon(self._flush)
        if entry.state is WITHDRAWN:
            if not entry.future.cancelled():  # it is where the step was taken back, or did not reach this entry
                await wait_shielded(entry.future, self._steps.settle_timeout)
        elif entry in self._entries:
            self._remove(entry)
        elif (undone := self._recover(entry)) is not None:
            await wait_shielded(undone, self._steps.settle_timeout)
