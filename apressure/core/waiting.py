"""The waits of a queue object: every blocking operation tries its step, parks while that says wait, tries again."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal, NamedTuple, TypeVar

from apressure.concurrency.blocked import Blocked
from apressure.core.backpressure import Backpressure, WaitForRoom
from apressure.exceptions import PressureError, QueueEmptyError, QueueFullError, QueueInUseError, QueueOpenError, Role

T = TypeVar("T")

Reason = Literal[
    "full", "few", "room", "empty", "watch", "turn", "draining", "limited", "paused", "open", "producer", "consumer",
    "share",
]  # fmt: skip

ROLE_OF: Final[dict[Reason, Role]] = {"producer": "producer", "consumer": "consumer", "share": "consumer"}
"""The role that a wait with this reason is for."""

FOR_ROOM: Final[tuple[Reason, ...]] = ("full", "few", "room")
"""The reasons of waits for room."""


class Parked(asyncio.Future[None]):
    """A future of a task that waits.

    Attributes:
        on_wake: Called at once at the wake-up, with this future. A done callback is called one iteration of the event
            loop later, which is a large part of the time that a wake-up takes.
    """

    on_wake: Callable[[Parked], None] | None = None


class Wait(NamedTuple):
    """A step's answer "not now".

    Attributes:
        reason: Why the step cannot go on: the queue is full, has too few free places, is empty or still open, or
            another client holds the role. `"room"`: delayed messages take the free places. `"watch"`: it is empty,
            and this client is the one that watches it. `"turn"`: it is empty, and another client watches it.
            `"draining"`: it is closed and empty, and others have something that may come back. `"limited"`: messages
            wait, and the limits of the queue keep them. `"paused"`: consumers are to take nothing. `"share"`: a client
            that does not share the consumer role holds it.
        lease: Milliseconds until the next try is worth it in any case: a lease expires, or the client that watches
            counts as dead. None where there is no such time.
        created: The queue was created, and the format has queues that were not: then a wait ends when it is deleted.
        holder: Who holds the role, as the server shows it.
        due: Milliseconds until a delayed message is due, or the limits allow another one; None if there is no such
            time, or another client sees to it.
        closed: The queue is closed, and limits keep its messages: the end is not what to wait for.
    """

    reason: Reason
    lease: int | None = None
    created: bool = False
    holder: str | None = None
    due: int | None = None
    closed: bool = False

    def error(self, name: str, accepted: int = 0) -> PressureError:
        """Return the error for an operation that may not wait any longer."""
        if self.reason == "full" or self.reason == "few" or self.reason == "room":  # noqa: PLR1714 (mypy narrows this)
            return QueueFullError(f"the queue {name!r} is full", name=name, accepted=accepted)
        if self.reason in ("empty", "watch", "turn", "draining"):
            return QueueEmptyError(f"the queue {name!r} is empty", name=name)
        if self.reason == "limited":
            when = "when one of those in flight is settled" if self.due is None else f"in {self.due / 1000:g} s"
            return QueueEmptyError(f"the limits of the queue {name!r} keep its messages: try again {when}", name=name)
        if self.reason == "paused":
            return QueueEmptyError(f"the queue {name!r} is paused: consumers get nothing before resume()", name=name)
        if self.reason == "open":
            return QueueOpenError(f"the queue {name!r} is still open", name=name)
        role = ROLE_OF[self.reason]
        advice = ""
        if role == "consumer":
            advice = ". Wait for it, or share the role: shared=True in all consumers (on the command line --shared)"
        return QueueInUseError(
            f"the {role} role of the queue {name!r} is held by {self.holder or 'another client'}{advice}",
            name=name,
            role=role,
            holder=self.holder,
            accepted=accepted,
        )

    def seconds(self, most: float) -> float:
        """Return after how many seconds another try is worth it in any case."""
        return most if self.lease is None else min(most, self.lease / 1000 + 0.001)


Hasten = Callable[[Parked, Wait], None]
"""Has the step after a wait leave as early as possible: before its task runs."""

moment: Final = itertools.count(1).__next__
"""Return the number of this moment, greater than all before: it tells whether a wake-up came after a step was sent."""

EMPTY: Final = Wait("empty")
FULL: Final = Wait("full")


class Waits(ABC):
    """The waits of one queue object.

    Attributes:
        backpressure: Tells the queue that operations wait here for room.
        blocked: For how long operations waited here.
    """

    def __init__(self) -> None:
        self.backpressure = Backpressure()
        self.blocked = Blocked()
        self._parked: dict[Parked, Any] = {}
        self._closed_by: PressureError | None = None

    @abstractmethod
    def park(self, wait: Wait, since: int) -> Parked:
        """Return a future that completes when it is time to try the step again. Cancel it to stop waiting.

        It completes at once after a wake-up that came since then, so one between a step and its wait is not lost. Its
        exception says that the server cannot be reached.

        Args:
            wait: What the step has answered.
            since: The `moment` before the step was sent.
        """

    def drop(self, wait: Wait) -> None:  # noqa: B027
        """A step has been answered with this, and nobody waits for it."""

    def until(
        self, step: Callable[[], Awaitable[T | Wait]], timeout: float | None, name: str, hasten: Hasten | None = None
    ) -> Coroutine[Any, Any, T]:
        """Try a step, park while it says wait, try again: the shape of every blocking operation.

        Args:
            step: Sends the step, and answers with a value or a wait.
            timeout: Seconds after which the error of what blocked is raised; 0 for a single try.
            name: The queue's name, for that error.
            hasten: Called with each wait that has not ended already.
        """
        return self._until(step, timeout, name, self.park, hasten)

    async def _until(
        self,
        step: Callable[[], Awaitable[T | Wait]],
        timeout: float | None,
        name: str,
        park: Callable[[Wait, int], Parked],
        hasten: Hasten | None,
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        for_room: WaitForRoom | None = None
        try:
            while True:
                since = moment()
                answer: Any = await step()
                if not isinstance(answer, Wait):
                    return answer  # type: ignore[no-any-return]
                remaining = None if deadline is None else deadline - loop.time()
                if remaining is not None and remaining <= 0:
                    self.drop(answer)
                    raise answer.error(name)
                if answer.reason not in FOR_ROOM:
                    if for_room is not None:
                        for_room.ended, for_room = True, None
                elif for_room is None:
                    for_room = WaitForRoom(loop.time())
                    self.backpressure.note(for_room)
                parked = park(answer, since)
                if hasten is not None and not parked.done():
                    hasten(parked, answer)
                woken = False
                try:
                    # `asyncio.wait` would take one more turn of the event loop.
                    await (parked if remaining is None else asyncio.wait((parked,), timeout=remaining))
                    woken = parked.done() and parked.exception() is None
                finally:
                    if not woken:
                        parked.cancel()
                        self._stopped(answer)
                if parked.cancelled():
                    raise answer.error(name)
                parked.result()
        finally:
            if for_room is not None:
                for_room.ended = True

    def end(self, error: PressureError) -> int:
        """Fail everything that is parked; returns how many."""
        ended = 0
        for future in list(self._parked):
            if not future.done():
                future.set_exception(copy.copy(error))
                ended += 1
        return ended

    def hand_back(self, role: Any) -> None:  # noqa: B027
        """Give back what came for operations in this role which have ended."""

    def _stopped(self, wait: Wait) -> None:  # noqa: B027
        """An operation waits for this no more. A token may have come in this very turn of the event loop."""

    def _shut(self, error: PressureError) -> None:
        """Operations that park from now on get the error."""
        self._closed_by = error
        self.backpressure.end()

    def _refused(self) -> Parked | None:
        """Return a future with the error, if the waits were closed."""
        if self._closed_by is None:
            return None
        ended = Parked(loop=asyncio.get_running_loop())
        ended.set_exception(copy.copy(self._closed_by))
        return ended

    def _admitted(self, reason: str, future: Parked, look: Any = None) -> Parked:
        """Have `end` fail this future, too, and count its operation as blocked."""
        self._parked[future] = look
        future.add_done_callback(self._parked.pop)
        self.blocked.until(reason, future)
        return future


class ServerWaits(Waits):
    """The waits of a queue on a server, where connections block on its lists.

    Of the clients that wait for messages, one watches the queue, and a put gives the next one in line its turn.

    Args:
        server: The client's server: its connections are limited.
        resign: Called when nobody waits for messages here any more, with the place, and whether its turn had come.

    Attributes:
        messages: Waits for messages, if this client watches the queue.
        turns: Waits for this client's turn.
        news: Waits for what only the client that watches has to know: something is due earlier, or limits let more
            through.
        watching: It watches the queue, or a step has said that it is to.
    """

    messages: Any
    turns: Any
    news: Any
    _all: tuple[Any, ...]
    """The waiters."""

    _waiters: dict[Reason, tuple[Any, ...]]
    """Those that a wait with this reason is for."""

    def __init__(self, server: Any, resign: Callable[[bytes, bool], None]) -> None:
        super().__init__()
        self.watching = False
        self._resign = resign
        self._server = server
        server.add_reclaimer(self._give_up_one)

    @functools.cached_property
    def place(self) -> bytes:
        """This client's place in the line of those that wait for messages."""
        return os.urandom(8).hex().encode()  # at the first wait, since a process may be forked until then

    def drop(self, wait: Wait) -> None:
        """A step has been answered with this, and nobody waits for it: another client watches the queue."""
        if wait.reason in ("watch", "limited"):
            self.watching = True
            self.leave(False)

    def leave(self, unused: bool) -> None:
        """Have another client watch the queue, if nobody waits for messages here any more. `unused`: a turn came."""
        waiters = (self.messages, self.turns, self.news)
        if (self.watching or unused) and not any(waiter.watched for waiter in waiters):
            self.watching = False
            self._resign(self.place, unused)

    def leading(self, wait: Wait) -> Any | None:
        """Return the waiter behind whose command a step for messages may stand; None if that is not possible now."""
        return self.messages if wait.reason in ("empty", "watch") and self.messages.leads else None

    def _waiters_for(self, wait: Wait) -> tuple[Any, ...]:
        """Return the waiters for a wait."""
        self.watching = self.watching or wait.reason in ("watch", "limited")
        waiters = self._waiters[wait.reason]
        if wait.closed:  # it is no news any more; but one that limits keep may miss that others have taken the rest
            waiters = self._waiters["draining"] if wait.reason == "limited" else waiters[:1]
        return waiters

    def _close(self, error: PressureError) -> list[Any]:
        """Release the connections. Returns the waiters for which something has come, or may still come."""
        self._shut(error)
        self._server.remove_reclaimer(self._give_up_one)
        return [waiter for waiter in self._all if waiter.close()]

    def _give_up_one(self) -> bool:
        return any(waiter.close_if_idle() for waiter in self._all)
