"""Waiting, which lives here alone: a connection that blocks on one key, for whoever is waiting for it.

The wait is a BLMOVE, the awaitable BRPOP in a form that puts back what it pops: it wakes when a BRPOP would, and
nothing has been taken, so a waiter that is cancelled or killed takes nothing with it.

- A *peek* moves the last element of a list onto itself.
- A *claim* moves a role's token to the list of claims, where the step that it was claimed for takes it. A claim that
  nobody wants any more is handed back.

A blocked command stays outstanding when its waiter goes away, and serves the next one; it lasts a slice of a few
seconds, after which the waiter's step has a look (leases may have expired meanwhile).
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from apressure.connection import background
from apressure.connection.channel import ConnectionLost
from apressure.connection.replies import NOT_EXECUTED
from apressure.connection.server import AnyChannel, Place
from apressure.exceptions import OutOfMemoryError, ServerError

SLICE = 5
"""Seconds for which one blocking command lasts."""

LONG_SLICE = 30
"""Seconds for which the second of two peeks lasts: the first one's slices already make the step look at both."""


class Parked(asyncio.Future[None]):
    """Somebody who waits.

    Attributes:
        on_wake: Called at the wake-up itself, with this. A done callback is called a turn of the event loop later,
            which is a large part of the time that a wake-up takes.
    """

    on_wake: Callable[[Parked], None] | None = None


class Waiter:
    """Waits for elements of one list.

    Args:
        place: Where to connect to; the connection is opened by the first wait.
        source: The list to wait for.
        destination: The same list for a peek, the list of claims for a claim.
        seconds: How long one blocking command lasts.
        on_unwanted: For a claim: called when a token came and nobody waited any more.
    """

    def __init__(
        self,
        place: Place,
        source: bytes,
        destination: bytes,
        seconds: int = SLICE,
        on_unwanted: Callable[[], None] | None = None,
    ) -> None:
        self._place = place
        self._claims = source != destination
        self._command: list[bytes | str | int] = [
            b"BLMOVE",
            source,
            destination,
            b"RIGHT",
            b"LEFT" if self._claims else b"RIGHT",
            seconds,
        ]
        self._seconds = seconds
        self._on_unwanted = on_unwanted
        self._channel: AnyChannel | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._outstanding = False
        self._watchers: set[Parked] = set()
        self._failures = 0
        self.generation = 0
        """Counts wake-ups. A step that was sent at an older generation may have missed one: do not park, try again."""
        self.claimed = False
        """A token came and has not been used yet."""

    @property
    def idle(self) -> bool:
        """Nobody waits here at present."""
        return not self._watchers and not self.claimed

    @property
    def connected(self) -> bool:
        """There is a connection that could be given up."""
        return self._channel is not None and self._channel.up

    def watch(self, future: Parked) -> None:
        """Resolve the future at the next wake-up, or with the error that makes waiting impossible."""
        self._watchers.add(future)
        future.add_done_callback(self._watchers.discard)
        if not self._outstanding:
            self._block()

    def take_claim(self) -> bool:
        """Return whether a token has been claimed; it is the caller's to use now."""
        claimed, self.claimed = self.claimed, False
        return claimed

    def hand_back(self) -> None:
        """Give a token back that nobody waits for."""
        if self.claimed and not self._watchers and self._on_unwanted is not None:
            self.claimed = False
            self._on_unwanted()

    def close(self) -> bool:
        """End the connection; who still waits is left to the caller.

        Returns:
            Whether a token may be on its way, or has come: a blocking command that is outstanding is served until the
            server sees that the connection has ended.
        """
        outstanding = self._outstanding or self.take_claim()
        if self._connecting is not None:
            connecting, self._connecting = self._connecting, None
            connecting.cancel()
        if self._channel is not None:
            channel, self._channel = self._channel, None
            self._outstanding = False
            channel.abort("the wait was ended")
        return outstanding

    def _block(self) -> None:
        if self._channel is not None and self._channel.up:
            self._outstanding = True
            channel = self._channel
            channel.call(self._command, lambda reply: self._woken(channel, reply))
        elif self._connecting is None:
            self._connecting = background.start(self._connect(), "connecting a waiter to the server")

    async def _connect(self) -> None:
        mine = asyncio.current_task()
        try:
            channel = await self._place.connect(lambda: None, self._seconds + self._place.settings.response_timeout)
        except Exception as error:  # noqa: BLE001 (whatever it is, those who wait have to know)
            if self._connecting is mine:
                self._connecting = None
                self._wake(error)
            return
        except BaseException:
            if self._connecting is mine:
                self._connecting = None
            raise
        if self._connecting is not mine:
            # Closed meanwhile: a cancellation that comes when the connection is there already goes unnoticed.
            channel.abort("the wait was ended")
            return
        self._connecting = None
        self._channel = channel
        if self._watchers and not self._outstanding:
            self._block()

    def _woken(self, channel: AnyChannel, reply: Any) -> None:
        self._outstanding = False
        if self._in_vain(channel, reply):
            # Nothing to tell a caller of: the step will say how things stand. Not too often, though.
            self._failures = min(self._failures + 1, 6)
            pause = 0.02 * 2**self._failures * random.uniform(0.5, 1.5)
            asyncio.get_running_loop().call_later(pause, self._wake, None)
            return
        self._failures = 0
        if isinstance(reply, Exception):
            self._wake(reply)
            return
        if self._claims and reply is not None:
            self.claimed = True
        if not self._wake(None):
            self.hand_back()

    def _in_vain(self, channel: AnyChannel, reply: Any) -> bool:
        """The server did not wait, or not to the end: for reasons that pass, or since the queue is elsewhere now."""
        if isinstance(reply, ConnectionLost):
            if self._channel is channel:  # not closed by us
                self._place.doubt(channel.address)
            return True
        if not isinstance(reply, ServerError):
            return False
        if self._place.is_elsewhere(reply, channel.address):
            channel.retire()
            if self._channel is channel:
                self._channel = None
            return True
        return isinstance(reply, OutOfMemoryError) or reply.code in NOT_EXECUTED

    def _wake(self, error: Exception | None) -> bool:
        """Resolve all who watch; False if there was nobody."""
        self.generation += 1
        watchers = [future for future in self._watchers if not future.done()]
        self._watchers.clear()
        for future in watchers:
            if future.done():  # what one of the others has done
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(copy.copy(error))
            if future.on_wake is not None:
                future.on_wake(future)
        return bool(watchers)


def park(waiters: Sequence[Waiter], generations: Sequence[int], seconds: float | None = None) -> Parked:
    """Return a future that is resolved when one of the waiters wakes, or when `seconds` have passed.

    It is resolved at once where a waiter woke since `generations` were noted: that is how a wake-up that comes
    between a step and the wait for it is not lost.
    """
    loop = asyncio.get_running_loop()
    future = Parked(loop=loop)
    if any(waiter.claimed or waiter.generation != noted for waiter, noted in zip(waiters, generations, strict=True)):
        future.set_result(None)
        return future
    for waiter in waiters:
        waiter.watch(future)
    if seconds is not None:
        timer = loop.call_later(seconds, lambda: None if future.done() else future.set_result(None))
        future.add_done_callback(lambda _: timer.cancel())
    return future
