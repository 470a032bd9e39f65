"""Every wait is here: a connection that blocks on one key, shared by all tasks of the client that wait for it.

The wait is a BLMOVE that puts back what it pops. It wakes when a BRPOP would, but takes nothing, so a task that is
cancelled or killed while it waits loses nothing.

- A *peek* moves the last element of a list onto itself.
- A *claim* moves a role's token to the list of claims, where the next step takes it. A claim that is no longer needed
  is handed back.
- A *turn* is a token that the wait does take away: the next step passes it on, and so does the end of the wait. Where
  the client dies in between, others try their steps again after a slice.

A blocked command stays outstanding when its task ends, and serves the next one. It lasts a slice of a few seconds;
then the waiting task tries its step again, because leases may have expired meanwhile. A *patient* waiter has long
slices, and blocks again: `rounds` look whether there is a reason to try.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once
from apressure.connection.server import Node
from apressure.connection.settings import RECONNECT_BACKOFF
from apressure.connection.wire.channel import Channel, ConnectionLost, OnReply
from apressure.connection.wire.replies import NOT_EXECUTED
from apressure.connection.wire.script import Request, answer_of, next_tag
from apressure.core.waiting import Parked, moment
from apressure.exceptions import OutOfMemoryError, ServerError

SLICE = 5
"""Seconds that one blocking command lasts."""

FOLLOWING = 4
"""How many steps may stand behind a blocked command, those included that nobody needs any more."""

LONG_SLICE = 60
"""The same for a patient waiter, and for the second of two peeks, if the other waiter already polls often enough."""


class Waiter:
    """Waits for elements of one list.

    Args:
        node: Where to connect to; the first wait opens the connection.
        source: The list to wait for.
        destination: The same list for a peek, the list of claims for a claim; None takes the token away.
        seconds: How long one blocking command lasts.
        on_unwanted: Called when something came and no task waited any more.
        patient: Block again when a command has lasted its time, without waking the tasks.
        on_element: Called with each element that ends a wait, before the tasks are woken.
        spare: The tasks can do without, since something else wakes them later: where no connection is left, or the user
            lacks a right, it does not wait, and its connection is given up for one that is needed.
    """

    def __init__(
        self,
        node: Node,
        source: bytes,
        destination: bytes | None,
        seconds: int = SLICE,
        on_unwanted: Callable[[], None] | None = None,
        patient: bool = False,
        *,
        on_element: Callable[[bytes], object] | None = None,
        spare: bool = False,
    ) -> None:
        self._node = node
        end = b"RIGHT" if source == destination else b"LEFT"
        self._command: list[bytes | str | int] = [b"BLMOVE", source, destination or b"", b"RIGHT", end, seconds]
        if destination is None:
            self._command = [b"BRPOP", source, seconds]
        self._on_unwanted = on_unwanted
        self._patient = patient
        self._on_element = on_element
        self._spare = spare
        self._channel: Channel | None = None
        connect = functools.partial(node.connect, seconds + node.settings.response_timeout)
        self._opening = background.Shared(
            connect, "connecting a waiter to the server", self._opened, lambda late: late.abort("the wait was ended")
        )
        self._outstanding: OnReply | None = None  # receives the reply to the command that blocks
        self._behind: list[Behind] = []  # what stands behind it
        self._watchers: set[Parked] = set()
        self._failures = 0
        self.woken = 0
        """The `moment` of the latest wake-up. A step that was sent before may have missed it: try again."""
        self.claimed = False
        """A token came and has not been used yet."""

    @property
    def _claims(self) -> bool:
        """Whether what comes is this client's: a peek moves the element onto itself."""
        return self._command[1] != self._command[2]

    @property
    def idle(self) -> bool:
        """Whether no task waits here."""
        return not self._watchers and not self.claimed

    @property
    def watched(self) -> bool:
        """Whether a task waits here."""
        return any(not future.done() for future in self._watchers)

    @property
    def connected(self) -> bool:
        """Whether there is a connection that could be closed."""
        return self._channel is not None and self._channel.up

    def watch(self, future: Parked) -> None:
        """Complete the future at the next wake-up, or with the error that makes waiting impossible."""
        self._watchers.add(future)
        future.add_done_callback(self._watchers.discard)
        if self._outstanding is None:
            self._block()

    @property
    def leads(self) -> bool:
        """Whether a step may stand behind the command that blocks."""
        # Whether replicas have a step is asked behind it, which would take the connection too long.
        return self._outstanding is not None and len(self._behind) < FOLLOWING and self._node.durability is None

    def follow(self, behind: Behind, request: Request) -> None:
        """Send a step behind the command that blocks, once; `leads` is true."""
        channel, tag, on_reply = self._channel, next_tag(), request.on_reply
        assert channel is not None
        self._behind.append(behind)
        command = [*request.arguments, tag]
        channel.call(command, lambda reply: on_reply(answer_of(reply, tag, channel)), request.call.short)

    def take_claim(self) -> bool:
        """Return whether a token has been claimed; the caller must use it."""
        claimed, self.claimed = self.claimed, False
        return claimed

    def hand_back(self) -> None:
        """Give back a token that no task waits for."""
        if self.claimed and not self._watchers and self._on_unwanted is not None:
            self.claimed = False
            self._on_unwanted()

    def overdue(self) -> None:
        """There is something in the list: without a reply soon, end the connection, since it is half-open."""
        outstanding = self._outstanding

        def end() -> None:
            if self._outstanding is outstanding and self._channel is not None:
                self._channel.abort("a wait did not end when it should have", lost=True)

        if outstanding is not None:
            asyncio.get_running_loop().call_later(self._node.settings.response_timeout, end)

    def close_if_idle(self) -> bool:
        """Close the connection if no task waits here, or needs to, and return whether there was one."""
        idle = (self.idle or self._spare) and self.connected
        if idle:
            self.close()
        return idle

    def close(self) -> bool:
        """End the connection. It does not wake the tasks that wait.

        Returns:
            Whether a token has come, or may still come: the server serves an outstanding command until it sees that the
            connection has ended.
        """
        outstanding = self._outstanding is not None or self.take_claim()
        self._opening.cancel()
        channel, self._channel, self._outstanding = self._channel, None, None
        if channel is not None:
            channel.abort("the wait was ended")
        return outstanding

    def _block(self) -> None:
        if self._channel is not None and self._channel.up:
            self._outstanding = functools.partial(self._woken, self._channel)
            self._channel.call(self._command, self._outstanding)
        else:
            self._opening.start()

    def _opened(self, outcome: Channel | Exception | None) -> None:
        if isinstance(outcome, Exception):
            if not self._spare:
                self._wake(outcome)
        elif outcome is not None:
            self._channel = outcome
            if self._watchers and self._outstanding is None:
                self._block()

    def _woken(self, channel: Channel, reply: Any) -> None:
        self._outstanding = None
        behind, self._behind = self._behind, []
        if self._wait_failed(channel, reply):
            # The tasks try their steps again. If the problem persists, the steps raise its error.
            asyncio.get_running_loop().call_later(RECONNECT_BACKOFF.pause(self._failures), self._wake, None)
            self._failures += 1
            return
        self._failures = 0
        if isinstance(reply, Exception):
            if not self._spare:
                self._wake(reply)
            return
        if reply is None and self._patient and self.watched and not behind:
            self._block()
            return
        for step in behind:
            step.on_end()
        if self._claims and reply is not None:
            self.claimed = True
        if self._on_element is not None and reply is not None:
            self._on_element(reply)
        if self._wake(None):
            return
        if self._claims:
            self.hand_back()
        elif self._on_unwanted is not None:
            self._on_unwanted()

    def _wait_failed(self, channel: Channel, reply: Any) -> bool:
        """Whether the wait ended for a temporary reason, or because the queue is on another server now."""
        if isinstance(reply, ConnectionLost):
            if self._channel is channel:  # not closed by us
                self._node.invalidate(channel.address)
            return True
        if not isinstance(reply, ServerError):
            return False
        if self._node.note_redirect(reply, channel.address):
            channel.retire()
            if self._channel is channel:
                self._channel = None
            return True
        return isinstance(reply, OutOfMemoryError) or reply.code in NOT_EXECUTED

    def _wake(self, error: Exception | None) -> bool:
        """Complete all watching futures; False if there were none."""
        self.woken = moment()
        watchers = [future for future in self._watchers if not future.done()]
        self._watchers.clear()
        for future in watchers:
            if future.done():  # cancelled by the callback of another one
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(copy.copy(error))
            if future.on_wake is not None:
                future.on_wake(future)
        return bool(watchers)


class Behind:
    """Sends a step behind the command with which a waiter blocks: when that ends, the server runs it in the same turn.

    The step is sent once, and by the time at which it runs nobody may need it any more: it has to see that for itself.

    Args:
        waiter: The waiter, which `leads`.
        on_end: Called when the wait has ended, and before its tasks are woken: the step's answer is about to come. Not
            called where the connection was lost: then the step's reply is `ConnectionLost`.
    """

    def __init__(self, waiter: Waiter, on_end: Callable[[], None]) -> None:
        self._waiter = waiter
        self.on_end = on_end

    def send(self, request: Request) -> None:
        """Send the step; its `on_reply` is called exactly once."""
        self._waiter.follow(self, request)


def park(waiters: Sequence[Waiter], since: int, seconds: float | None = None) -> Parked:
    """Return a future that completes when one of the waiters wakes, or when `seconds` have passed.

    It completes at once if a waiter woke after the moment `since`, so a wake-up between a step and its wait is not
    lost.
    """
    loop = asyncio.get_running_loop()
    future = Parked(loop=loop)
    if any(waiter.claimed or waiter.woken > since for waiter in waiters):
        future.set_result(None)
        return future
    for waiter in waiters:
        waiter.watch(future)
    if seconds is not None:
        timer = loop.call_later(seconds, set_result_once, future, None)
        future.add_done_callback(lambda _: timer.cancel())
    return future
