"""What an operation on a queue of events waits for. `connection/waiter.py` does the waiting.

Of the clients that wait for events one watches the list itself, so that okq's pushes wake it, too; the others wait in
line for a token of ours. So a push wakes one client. Clients that wait for room wait in another line.
"""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from apressure.blocked import Blocked
from apressure.connection.waiter import LONG_SLICE, SLICE, Parked, Waiter, park
from apressure.events.engine.answers import Reason, Wait
from apressure.events.engine.steps import EventSteps
from apressure.exceptions import PressureError

T = TypeVar("T")

_EVENTS: Final = ("empty", "watch", "turn", "draining", "paused")


class EventWaits:
    """The waiters of one queue: at most six, each with a connection that its first wait opens.

    Args:
        steps: The queue's steps.

    Attributes:
        blocked: For how long operations waited here.
        place: This client's place in the line of those that wait for events.
    """

    def __init__(self, steps: EventSteps) -> None:
        node, keys = steps.connection.node, steps.keys
        self.blocked = Blocked()
        self._steps = steps
        self._node = node
        self.place = secrets.token_hex(8).encode()
        self._list = Waiter(node, keys.unclaimed, keys.unclaimed, on_unwanted=lambda: self._leave(False))
        self._turns = Waiter(node, keys.turns, None, on_unwanted=lambda: self._leave(True))
        self._room = Waiter(node, keys.room, None, on_unwanted=self._pass_room)
        self._end = Waiter(node, keys.end, None, LONG_SLICE, on_unwanted=self._pass_end)
        self._closed = Waiter(node, keys.closed, keys.closed, LONG_SLICE)
        self._resumed = Waiter(node, keys.resumed, keys.resumed, LONG_SLICE)
        self._all = (self._list, self._turns, self._room, self._end, self._closed, self._resumed)
        self._waiters: dict[Reason, tuple[Waiter, ...]] = {
            "full": (self._room,),
            "empty": (self._list, self._end),
            "watch": (self._list, self._end),
            "turn": (self._turns,),
            "draining": (self._turns,),
            "paused": (self._resumed,),
            "open": (self._closed,),
        }
        self._watching = False
        self._parked: set[Parked] = set()
        self._closed_by: PressureError | None = None
        node.server.add_reclaimer(self._give_up_one)

    def note(self) -> list[int]:
        """Return what `park` needs after the step that is about to be sent: how often each waiter has woken."""
        return [waiter.generation for waiter in self._all]

    def take_turn(self) -> bytes:
        """A step for events is about to be sent: it sees to it that others get their turn. Returns the place."""
        self._turns.take_claim()
        self._end.take_claim()  # a step that finds the queue at its end tells the next one
        self._watching = False
        return self.place

    def take_room(self) -> None:
        """A step that pushes is about to be sent: it wakes the next client if there is more room."""
        self._room.take_claim()

    def park(self, wait: Wait, noted: list[int]) -> Parked:
        """Return a future that completes when it is time to try the step again. Cancel it to stop waiting.

        Its exception says that the server cannot be reached.
        """
        if self._closed_by is not None:
            ended = Parked(loop=asyncio.get_running_loop())
            ended.set_exception(copy.copy(self._closed_by))
            return ended
        # Time alone may end a wait: leases, other clients that die, and FLUSHALL, which wakes nobody.
        seconds = float(SLICE) if wait.lease is None else min(SLICE, wait.lease / 1000 + 0.001)
        self._watching = self._watching or wait.reason == "watch"
        waiters = self._waiters[wait.reason]
        future = park(waiters, [noted[self._all.index(waiter)] for waiter in waiters], seconds)
        self._parked.add(future)
        future.add_done_callback(self._parked.discard)
        self.blocked.until(wait.reason, future)
        return future

    def drop(self, wait: Wait) -> None:
        """A step has been answered with this, and nobody waits for it: another client watches the queue."""
        if wait.reason == "watch":
            self._watching = True
            self._leave(False)

    def hand_back(self, role: str) -> None:
        """Give back what came for operations which have ended: a turn for events, or a token for room."""
        if role == "producer":
            self._room.hand_back()
        else:
            self._turns.hand_back()
            self._end.hand_back()
            self._leave(False)

    async def until(self, step: Callable[[], Awaitable[T | Wait]], timeout: float | None, name: str) -> T:
        """Try a step, park while it says wait, try again.

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
                self.drop(answer)
                raise answer.error(name)
            parked = self.park(answer, noted)
            woken = False
            try:
                done, _ = await asyncio.wait((parked,), timeout=remaining)
                woken = bool(done) and parked.exception() is None
            finally:
                if not woken:  # a token may have come in this very turn of the event loop
                    parked.cancel()
                    self.hand_back("consumer" if answer.reason in _EVENTS else "producer")
            if not done:
                raise answer.error(name)
            parked.result()

    def end(self, error: PressureError) -> int:
        """Fail everything that is parked; returns how many."""
        ended = 0
        for future in list(self._parked):
            if not future.done():
                future.set_exception(copy.copy(error))
                ended += 1
        return ended

    def close(self, error: PressureError) -> bool:
        """Release the connections; operations that park from now on get the error.

        Returns:
            Whether `hand_over` is needed: the server may wait for this client, or has given it a token.
        """
        self._closed_by = error
        self._node.server.remove_reclaimer(self._give_up_one)
        ended = [waiter.close() for waiter in self._all]
        return any(ended[1:4]) or self._watching

    async def hand_over(self) -> None:
        """After `close`: have others take this client's place, and tokens that came too late."""
        await asyncio.sleep(0)  # the waits' connections close in the next turn of the event loop
        await asyncio.sleep(0)
        await self._steps.status()  # after a round trip the server has seen that, too
        self._steps.resign(self.place, True)
        self._steps.pass_room()
        self._steps.pass_end()

    def _pass_end(self) -> None:
        if not self._end.watched:
            self._steps.pass_end()

    def _leave(self, unused: bool) -> None:
        """Have another client watch the queue, if nobody waits for events here any more. `unused`: a turn came."""
        if (self._watching or unused) and not (self._list.watched or self._turns.watched):
            self._watching = False
            self._steps.resign(self.place, unused)

    def _pass_room(self) -> None:
        if not self._room.watched:
            self._steps.pass_room()

    def _give_up_one(self) -> bool:
        for waiter in self._all:
            if waiter.idle and waiter.connected:
                waiter.close()
                return True
        return False
