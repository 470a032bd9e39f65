"""What an operation on a queue of events waits for. `connection/waiting/waiter.py` does the waiting.

Of the clients that wait for events one watches the list itself, so that okq's pushes wake it, too; the others wait in
line for a token of ours. So a push wakes one client. Clients that wait for room wait in another line.
"""

from __future__ import annotations

import asyncio
from typing import Final

from apressure.connection.waiting.waiter import LONG_SLICE, SLICE, Waiter, park
from apressure.core.waiting import Parked, ServerWaits, Wait
from apressure.events.engine.steps import EventSteps
from apressure.exceptions import PressureError

_EVENTS: Final = ("empty", "watch", "turn", "draining", "limited", "paused")


class EventWaits(ServerWaits):
    """The waiters of one queue: at most seven, each with a connection that its first wait opens.

    Args:
        steps: The queue's steps.

    Attributes:
        blocked: For how long operations waited here.
        place: This client's place in the line of those that wait for events.
    """

    def __init__(self, steps: EventSteps) -> None:
        node, keys = steps.connection.node, steps.keys
        super().__init__(node.server, steps.resign)
        self._steps = steps
        self.messages = Waiter(node, keys.unclaimed, keys.unclaimed, on_unwanted=lambda: self.leave(False))
        self.turns = Waiter(node, keys.turns, None, on_unwanted=lambda: self.leave(True))
        self._room = Waiter(node, keys.room, None, on_unwanted=lambda: self._pass_on(self._room, room=True))
        self.news = Waiter(node, keys.end, None, LONG_SLICE, on_unwanted=lambda: self._pass_on(self.news, end=True))
        closed = Waiter(node, keys.closed, keys.closed, LONG_SLICE)
        resumed = Waiter(node, keys.resumed, keys.resumed, LONG_SLICE)
        # Without a connection for it, those that wait for the end look again after a slice.
        self._gone = Waiter(node, keys.gone, keys.gone, LONG_SLICE, spare=True)
        self._all = (self.messages, self.turns, self._room, self.news, closed, resumed, self._gone)
        self._waiters = {
            "full": (self._room,),
            "empty": (self.messages, self.news),
            "watch": (self.messages, self.news),
            "turn": (self.turns,),
            "draining": (self.turns,),
            "limited": (self.news,),  # there are messages, so the list would wake it at once
            "paused": (resumed,),
            "open": (closed,),
        }

    def take_turn(self) -> bytes:
        """A step for events is about to be sent: it sees to it that others get their turn. Returns the place."""
        self.turns.claimed = False
        self.news.claimed = False  # a step that finds the queue at its end tells the next one
        self.watching = False
        return self.place

    def take_room(self) -> None:
        """A step that pushes is about to be sent: it wakes the next client if there is more room."""
        self._room.claimed = False

    def park(self, wait: Wait, since: int) -> Parked:
        if (refused := self._refused()) is not None:
            return refused
        # Time alone may end a wait: leases, other clients that die, and FLUSHALL, which wakes nobody.
        return self._admitted(wait.reason, park(self._waiters_for(wait), since, wait.seconds(SLICE)))

    def _waiters_for(self, wait: Wait) -> tuple[Waiter, ...]:
        waiters = super()._waiters_for(wait)
        # What tells of the end of a queue may still be there when it has not been created again.
        return (*waiters, self._gone) if wait.reason == "open" and wait.created else waiters

    def hand_back(self, role: str) -> None:
        """Give back what came for operations which have ended: a turn for events, or a token for room."""
        if role == "producer":
            if self._room.claimed:  # mostly not, and each put asks
                self._room.hand_back()
        else:
            self.turns.hand_back()
            self.news.hand_back()
            self.leave(False)

    def _stopped(self, wait: Wait) -> None:
        self.hand_back("consumer" if wait.reason in _EVENTS else "producer")

    def close(self, error: PressureError) -> bool:
        """Release the connections; operations that park from now on get the error.

        Returns:
            Whether `hand_over` is needed: the server may wait for this client, or has given it a token.
        """
        outstanding = self._close(error)
        return any(waiter in outstanding for waiter in self._all[1:4]) or self.watching

    async def hand_over(self) -> None:
        """After `close`: have others take this client's place, and tokens that came too late."""
        await asyncio.sleep(0)  # the waits' connections close in the next turn of the event loop
        await asyncio.sleep(0)
        await self._steps.status()  # after a round trip the server has seen that, too
        self._steps.resign(self.place, True, True, True)

    def _pass_on(self, waiter: Waiter, room: bool = False, end: bool = False) -> None:
        """A token came for nobody here: another client gets it."""
        if not waiter.watched:
            self._steps.resign(b"", False, room, end)
