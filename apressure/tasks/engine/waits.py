"""What an operation on tasks waits for: a message on a channel, or at most a second.

Blueque's released nodes publish nothing, so a waiting client tries again every second. What our own nodes do is
published, so their tasks are found at once. A client has one connection that listens, for all its queues and tasks.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from typing import Final

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once
from apressure.connection.client import Client
from apressure.connection.waiting.subscription import Subscriber
from apressure.core.waiting import Parked, Wait, Waits, moment
from apressure.exceptions import PressureError
from apressure.tasks.engine.steps import TaskSteps

POLL: Final = 1.0
"""Seconds after which a wait tries again in any case."""

LINGER: Final = 5.0
"""Seconds for which a channel is listened to after the last wait."""

_ENOUGH: Final = 3
"""With fewer connections than this, none listens: steps and the renewal of leases need theirs."""

_FAKE_POLL: Final = 0.02
"""Seconds between two tries where there are no messages, since fakeredis is in this process."""


class Channels:
    """The channels that a client listens to.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._heard_at: dict[bytes, int] = {}  # the moment at which something was heard last
        most = client.settings.max_connections
        self._fake = client.settings.fake is not None
        self._silent = self._fake or (most is not None and most < _ENOUGH)
        self._subscriber = Subscriber(client.connection.node, self._heard, self._missed)
        self._running: asyncio.Task[None] | None = None
        self._parked: dict[bytes, set[Parked]] = {}
        self._listening: dict[bytes, asyncio.Task[None]] = {}
        self._leaving: dict[bytes, asyncio.TimerHandle] = {}

    def park(self, channel: bytes, since: int, seconds: float) -> Parked:
        """Return a future that completes at a message after the moment `since`, or after so many seconds."""
        loop = asyncio.get_running_loop()
        future = Parked(loop=loop)
        if self._heard_at.get(channel, 0) > since:
            future.set_result(None)
            return future
        self._listen(channel)
        self._parked.setdefault(channel, set()).add(future)
        timer = loop.call_later(min(seconds, _FAKE_POLL) if self._fake else seconds, set_result_once, future, None)

        def ended(_: asyncio.Future[None]) -> None:
            timer.cancel()
            if (parked := self._parked.get(channel)) is not None:
                parked.discard(future)
                if not parked:
                    self._linger(channel)

        future.add_done_callback(ended)
        return future

    async def wait(self, channel: bytes, since: int, seconds: float) -> None:
        """Wait until the future of `park` completes.

        Raises:
            PressureError: The client was closed.

        Cancelled, nothing has changed.
        """
        parked = self.park(channel, since, seconds)
        try:
            await asyncio.wait((parked,))
        finally:
            parked.cancel()
        parked.result()

    def client_closed(self, error: PressureError) -> None:
        """Listen no more, and fail everything that waits."""
        for future in [one for parked in self._parked.values() for one in parked]:
            if not future.done():
                future.set_exception(copy.copy(error))
        for timer in self._leaving.values():
            timer.cancel()
        for task in (*self._listening.values(), self._running):
            if task is not None:
                task.cancel()
        self._leaving.clear()
        self._listening.clear()
        self._running = None
        self._silent = True

    def _listen(self, channel: bytes) -> None:
        """Listen to a channel. When that has begun, those that wait try again: they may have missed something."""
        if (timer := self._leaving.pop(channel, None)) is not None:
            timer.cancel()
        if self._silent or channel in self._listening:
            return
        if self._running is None or self._running.done():
            self._running = background.start(self._subscriber.run(), "listening for tasks")
        self._listening[channel] = background.start(self._begin(channel), "subscribing to a queue of tasks")

    async def _begin(self, channel: bytes) -> None:
        await self._subscriber.subscribe(channel)
        self._heard(channel)

    def _linger(self, channel: bytes) -> None:
        if channel not in self._listening:
            self._parked.pop(channel, None)
        elif channel not in self._leaving:
            self._leaving[channel] = asyncio.get_running_loop().call_later(LINGER, self._leave, channel)

    def _leave(self, channel: bytes) -> None:
        self._leaving.pop(channel, None)
        self._parked.pop(channel, None)
        self._heard_at.pop(channel, None)
        if (task := self._listening.pop(channel, None)) is not None:
            task.cancel()
        self._subscriber.unsubscribe(channel)

    def _heard(self, channel: bytes) -> None:
        if channel not in self._listening:
            return  # it was left meanwhile
        self._heard_at[channel] = moment()
        for future in list(self._parked.get(channel, ())):
            if not future.done():  # the callback of another one may have cancelled it
                future.set_result(None)
                if future.on_wake is not None:
                    future.on_wake(future)

    def _missed(self) -> None:
        """The connection was opened, perhaps again."""
        for channel in list(self._parked):
            self._heard(channel)


_channels: weakref.WeakKeyDictionary[Client, Channels] = weakref.WeakKeyDictionary()


def channels_of(client: Client) -> Channels:
    """Return the channels of a client."""
    if client not in _channels:
        _channels[client] = Channels(client)
        client.attached.add(_channels[client])
    return _channels[client]


class TaskWaits(Waits):
    """The waits of one queue object.

    Args:
        client: The client.
        steps: The queue's steps.

    Attributes:
        blocked: For how long operations waited here.
    """

    def __init__(self, client: Client, steps: TaskSteps) -> None:
        super().__init__()
        self._channels = channels_of(client)
        self._keys = steps.keys

    def park(self, wait: Wait, since: int) -> Parked:
        if (refused := self._refused()) is not None:
            return refused
        channel = self._keys.room if wait.reason == "full" else self._keys.channel
        return self._admitted(wait.reason, self._channels.park(channel, since, wait.seconds(POLL)))

    def close(self, error: PressureError) -> None:
        """Operations that park from now on get the error."""
        self._shut(error)
