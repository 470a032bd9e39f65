"""Which waiter a step's "not now" leads to. The waiting itself is `connection/waiter.py`'s."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeVar

from apressure.connection.server import Place
from apressure.connection.waiter import LONG_SLICE, SLICE, Parked, Waiter, park
from apressure.exceptions import PressureError, QueueEmptyError, QueueFullError, QueueInUseError, Role
from apressure.queue.keys import Keys

T = TypeVar("T")

Reason = Literal["full", "empty", "open", "producer", "consumer"]
Noted = list[int]


class Wait(NamedTuple):
    """A step's answer "not now".

    Attributes:
        reason: What has to change: the queue is full, empty or still open, or somebody holds the role.
        holder: Who holds the role, as the server shows it.
        lease: Milliseconds until the holder's lease expires; None where there is none.
    """

    reason: Reason
    holder: str | None = None
    lease: int | None = None

    def error(self, name: str, accepted: int = 0) -> PressureError:
        """What a timeout raises."""
        if self.reason == "full":
            return QueueFullError(f"the queue {name!r} is full", name=name, accepted=accepted)
        if self.reason == "empty":
            return QueueEmptyError(f"the queue {name!r} is empty", name=name)
        if self.reason == "open":
            return QueueEmptyError(f"the queue {name!r} is still open", name=name)
        return QueueInUseError(
            f"the {self.reason} role of the queue {name!r} is held by {self.holder or 'another client'}",
            name=name,
            role=self.reason,
            holder=self.holder,
            accepted=accepted,
        )


class Waits:
    """The waiters of one queue, each with a connection of its own once it has been needed: five at most.

    Args:
        place: Where they connect to.
        keys: The queue's keys.
        hand_back: Called with a role whose token was claimed for nobody.
    """

    def __init__(self, place: Place, keys: Keys, hand_back: Callable[[Role], None]) -> None:
        def peek(key: bytes, seconds: int = SLICE) -> Waiter:
            return Waiter(place, key, key, seconds)

        def claim(role: Role) -> Waiter:
            return Waiter(place, keys.free(role), keys.claim(role), on_unwanted=lambda: hand_back(role))

        self._closed = peek(keys.closed, LONG_SLICE)
        self._messages = peek(keys.messages)
        self._not_full = peek(keys.not_full)
        self._claims: dict[Role, Waiter] = {"producer": claim("producer"), "consumer": claim("consumer")}
        self._parked: set[asyncio.Future[None]] = set()
        self._waiters: dict[Reason, tuple[Waiter, ...]] = {
            "full": (self._not_full, self._closed),
            "empty": (self._messages, self._closed),
            "open": (self._closed,),
            "producer": (self._claims["producer"],),
            "consumer": (self._claims["consumer"],),
        }
        self._all = (self._closed, self._messages, self._not_full, *self._claims.values())
        self._server = place.server
        self._closed_by: PressureError | None = None
        self._server.on_shortage(self._give_up_one)

    def note(self) -> Noted:
        """Note how often everything has woken; before a step is sent, for `park` after its answer."""
        return [waiter.generation for waiter in self._all]

    def park(self, wait: Wait, noted: Noted) -> Parked:
        """Return a future that is resolved when the step is worth another try.

        Cancelling it is how to stop waiting. Where a connection is out of reach, it has the exception.
        """
        if self._closed_by is not None:
            ended = Parked(loop=asyncio.get_running_loop())
            ended.set_exception(copy.copy(self._closed_by))
            return ended
        seconds = None if wait.lease is None else wait.lease / 1000 + 0.001
        waiters = self._waiters[wait.reason]
        future = park(waiters, [noted[self._all.index(waiter)] for waiter in waiters], seconds)
        self._parked.add(future)
        future.add_done_callback(self._parked.discard)
        return future

    def take_claim(self, role: Role) -> bytes:
        """Return `b"1"` if the role's token has been claimed for the step that is about to be sent."""
        return b"1" if self._claims[role].take_claim() else b"0"

    def hand_back(self, role: Role) -> None:
        """Give back a token that was claimed for operations which have ended."""
        self._claims[role].hand_back()

    async def until(self, step: Callable[[], Awaitable[T | Wait]], timeout: float | None, name: str) -> T:
        """Try a step, park while it says wait, try again: the shape of every blocking operation.

        Args:
            step: Sends the step, and answers with a value or a `Wait`.
            timeout: Seconds after which the error of what blocked is raised; 0 for a single try.
            name: The queue's name, for that error.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            noted = self.note()
            answer = await step()
            if not isinstance(answer, Wait):
                return answer
            remaining = None if deadline is None else deadline - loop.time()
            if remaining is not None and remaining <= 0:
                raise answer.error(name)
            parked = self.park(answer, noted)
            try:
                woken, _ = await asyncio.wait((parked,), timeout=remaining)
            except asyncio.CancelledError:
                self._stop(parked, answer.reason)
                raise
            if not woken:
                self._stop(parked, answer.reason)
                raise answer.error(name)
            if parked.exception() is not None:
                self._stop(parked, answer.reason)
            parked.result()

    def _stop(self, parked: asyncio.Future[None], reason: Reason) -> None:
        """Nobody waits here any more; a token may have come in this very turn of the event loop."""
        parked.cancel()
        if reason == "producer" or reason == "consumer":  # noqa: PLR1714 (mypy narrows this)
            self.hand_back(reason)

    def end(self, error: PressureError) -> int:
        """Fail everything that is parked; returns how many."""
        ended = 0
        for future in list(self._parked):
            if not future.done():
                future.set_exception(copy.copy(error))
                ended += 1
        return ended

    def close(self, error: PressureError) -> list[Role]:
        """Let go of the connections; whoever parks from now on gets the error.

        Returns:
            The roles whose token the server may still move to the claims, for a connection that is no more.
        """
        self._closed_by = error
        self._server.forget(self._give_up_one)
        for waiter in (self._closed, self._messages, self._not_full):
            waiter.close()
        return [role for role, waiter in self._claims.items() if waiter.close()]

    def _give_up_one(self) -> bool:
        for waiter in self._all:
            if waiter.idle and waiter.connected:
                waiter.close()
                return True
        return False
