"""The client's connection for steps: requests go out as they come, survive a reconnect, and are answered once.

After a lost reply the client does not know whether the step was executed. A request with `resend` is sent again after
the reconnect, with the flag that makes its script look up what it did the first time. Any other request that was sent
and not answered ends with OutcomeUnknownError.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once
from apressure.connection import durability
from apressure.connection.server import Node
from apressure.connection.settings import RECONNECT_BACKOFF, RETRY_BACKOFF
from apressure.connection.wire.channel import Channel, ConnectionLost
from apressure.connection.wire.command import is_large
from apressure.connection.wire.replies import NOT_EXECUTED, UNREADABLE
from apressure.connection.wire.script import Request, Script, answer_of, next_tag
from apressure.core.driver import NotSentError
from apressure.exceptions import ClientClosedError, OutcomeUnknownError, ServerError, ServerUnavailableError

T = TypeVar("T")

_CLOSED = "the client was closed; open a new one"


class ReconnectingConnection:
    """A connection that is opened when it is needed, and again after a loss. It has one channel at a time.

    Args:
        node: Where to connect to.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._channel: Channel | None = None
        self._retired: set[Channel] = set()
        self._opening = background.Shared(
            self._open, "connecting to the server", self._opened, lambda late: late.abort("nobody needs it any more")
        )
        self._opened_at = -1.0
        self._short_lived = 0
        self._unanswered: dict[Request, Channel | None] = {}  # in order; None: it waits to be sent
        self._held: asyncio.TimerHandle | None = None  # until then, what the server refused waits, and what comes
        self._asking = 0
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._known: set[Script] = set()  # to the server at the other end
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, request: Request) -> None:
        """Send a request, now or as soon as there is a connection; its `on_reply` is called exactly once."""
        loop = self._loop = self._loop or asyncio.get_running_loop()  # asking for it may be a call of the system
        request.began = loop.time()
        channel = self._channel
        if channel is not None and not request.resend and not self._closed and self._may_be_half_open(channel):
            self._drop(channel)  # a step that cannot be repeated must not get lost, nor overtake another
            channel = None
        if channel is not None and channel.up and self._held is None:
            self._transmit(channel, request)
        elif self._closed:
            asyncio.get_running_loop().call_soon(self._finish, request, ClientClosedError(_CLOSED))
        else:
            self._queue(request)

    def take_back(self, request: Request | None) -> bool:
        """Withdraw a request that was not sent yet, or that the server refused to execute; it ends with NotSentError.

        Returns:
            Whether it was withdrawn. Otherwise it may be executed, or has been.
        """
        if request is None or request.reply_lost or request not in self._queued():
            return False
        self._finish(request, NotSentError())
        return True

    async def ask(self, *command: bytes | str | int, reads: bool = False) -> Any:
        """Run a command of administration on this connection; as for `repeat`."""
        return await self.repeat(lambda channel: channel.ask(*command), reads)

    async def repeat(self, send: Callable[[Channel], Awaitable[T]], reads: bool = False) -> T:
        """Run a command, and again if the server says that it was not executed.

        With `reads`, for a command that may run twice, it is also sent again if its reply was lost.

        Raises:
            ClientClosedError: The client was closed meanwhile.
            ServerError: The server refused it.
            ServerUnavailableError: The server cannot be reached, or the connection ended first.
        """
        self._asking += 1
        try:
            return await self.node.ask(self.connected, self._drop, send, reads)
        except ServerUnavailableError:
            if self._closed:  # closing has ended the connection, not the server
                raise ClientClosedError(_CLOSED) from None
            raise
        finally:
            self._asking -= 1

    async def connected(self) -> Channel:
        """Return the open channel, or open one."""
        while self._channel is None or not self._channel.up:
            if self._closed:
                raise ClientClosedError(_CLOSED)
            await self._opening.wait(needed=lambda: bool(self._queued()))
        return self._channel

    def close_if_idle(self) -> bool:
        """Close the channel if no reply is pending, and return whether it was. The next request opens another."""
        channel = self._channel
        if channel is None or not channel.up or self._unanswered or self._asking:
            return False
        self._channel = None
        self._opened_at = -1.0
        channel.abort("the connection is idle")
        return True

    async def aclose(self, timeout: float) -> None:
        """Wait for pending replies, for up to `timeout` seconds; then end the connection.

        A reply that has not come `settle_timeout` seconds after its request is not waited for.
        """
        try:
            loop = asyncio.get_running_loop()
            latest, quiet = loop.time() + timeout, 0
            while quiet < 3 and not self._closed:
                if not self._unanswered:
                    await asyncio.sleep(0)  # tasks that were just answered or cancelled may give messages back
                    quiet += 1
                    continue
                newest = next(reversed(self._unanswered))
                remaining = min(latest, newest.began + self.node.settings.settle_timeout) - loop.time()
                if remaining <= 0:
                    break
                self._drained, quiet = loop.create_future(), 0
                await asyncio.wait((self._drained,), timeout=remaining)
        finally:
            self.end()

    def end(self) -> None:
        """End the connection at once."""
        self._closed = True
        self._opening.cancel()
        if self._held is not None:
            self._held.cancel()
        for channel in (self._channel, *self._retired):
            if channel is not None:
                channel.abort("the client was closed")
        self._fail_queued(ClientClosedError("the client was closed during the operation"))

    def _queued(self) -> list[Request]:
        """Return the requests that wait to be sent, in order."""
        return [request for request, channel in self._unanswered.items() if channel is None]

    def _transmit(self, channel: Channel, request: Request) -> None:
        if not channel.up:  # it ended before anything was sent
            if self._may_retry(request):
                self._queue(request)
            else:
                self._fail(request, ServerUnavailableError("the connection was lost at once"))
            return
        self._unanswered[request] = channel
        tag = next_tag()
        script = request.call.script
        if script not in self._known and is_large(request.arguments):
            request.whole = True  # otherwise a large message is sent twice if the server does not know the script
        head = request.call.whole if request.whole else request.call.short
        command = (*request.arguments, tag)
        wanted = self.node.durability
        if wanted is None or request.changed is None:
            channel.call(command, functools.partial(self._answer, request, channel, tag), head)
            return
        on_answer = functools.partial(self._answer, request, channel, b"")
        confirmation = durability.Confirmation(channel, request.changed, wanted, on_answer)
        channel.call(command, lambda reply: confirmation.answered(answer_of(reply, tag, channel)), head)
        confirmation.send()

    def _answer(self, request: Request, channel: Channel, tag: bytes, reply: Any) -> None:
        """A request was answered. With a tag, the answer is still within the reply."""
        if tag:
            reply = answer_of(reply, tag, channel)
        if not isinstance(reply, Exception):
            self._known.add(request.call.script)
            if request.changed is not None:
                self.node.written = True
            self._finish(request, reply)
        else:
            self._refused(request, channel, reply)

    def _refused(self, request: Request, channel: Channel, reply: Exception) -> None:
        """A request has not been carried out, or nobody knows: send it again, or fail it."""
        if isinstance(reply, ConnectionLost):
            self._drop(channel)
            self.node.invalidate(channel.address)
            request.reply_lost = True
            if request.resend and not self._closed and self._may_retry(request):
                if request.again is not None:
                    request.arguments[request.again] = b"1"
                self._queue(request)
            else:
                self._fail(request, reply)
        elif not isinstance(reply, ServerError):
            self._finish(request, reply)
        elif self._closed:
            self._fail(request, reply)
        elif reply.code == "NOSCRIPT":
            request.whole = True
            self._transmit(channel, request)
        elif (moved := self.node.note_redirect(reply, channel.address)) or reply.code in NOT_EXECUTED:
            if moved:
                self._drop(channel)
            self._retry_later(request, reply)
        else:
            self._fail(request, reply)

    def _may_be_half_open(self, channel: Channel) -> bool:
        """Whether another connection to this server was lost since this one was opened."""
        return channel.up and self.node.invalidated_at(channel.address) > self._opened_at

    def _drop(self, channel: Channel) -> None:
        """Send nothing more on this channel; pending replies still come."""
        if self._channel is channel:
            self._channel = None
        if channel.up:
            self._retired = {one for one in self._retired if one.up} | {channel}
            channel.retire()

    def _retry_later(self, request: Request, reply: ServerError) -> None:
        """Pause before a request that the server did not execute is sent again; the deadline is that of a reconnect.

        Requests that come meanwhile wait behind it, because steps must keep their order.
        """
        if not self._may_retry(request):
            self._fail(request, reply)
            return
        pause = RETRY_BACKOFF.pause(request.refusals)
        request.refusals += 1
        self._unanswered[request] = None
        if self._held is None:
            self._held = asyncio.get_running_loop().call_later(pause, self._go_on)

    def _go_on(self) -> None:
        """Send the queued requests, now or as soon as there is a connection."""
        self._held = None
        if self._channel is not None and self._channel.up:
            self._transmit_queued(self._channel)
        elif self._queued():
            self._opening.start()

    def _may_retry(self, request: Request) -> bool:
        """Whether `retry_timeout` seconds have not passed since the request first failed.

        The server keeps the record that makes a repeat safe for much longer.
        """
        now = asyncio.get_running_loop().time()
        request.until = request.until or now + self.node.settings.retry_timeout
        return now < request.until

    def _finish(self, request: Request, reply: Any) -> None:
        self._unanswered.pop(request, None)
        if self._drained is not None and not self._unanswered:
            set_result_once(self._drained, None)
        if logs.logger.isEnabledFor(logging.DEBUG):
            seconds = asyncio.get_running_loop().time() - request.began
            logs.step(request.call.script.name, seconds, reply if isinstance(reply, Exception) else None)
        request.on_reply(reply)

    def _fail(self, request: Request, error: Exception) -> None:
        """Finish with an error. If the reply to an earlier try was lost, the outcome stays unknown."""
        if request.reply_lost and UNREADABLE not in str(error):
            error = OutcomeUnknownError(f"{str(error).rstrip('.')}; the operation may have been carried out, or not")
        self._finish(request, error)

    def _queue(self, request: Request) -> None:
        self._unanswered[request] = None
        if self._held is None:
            self._opening.start()

    async def _open(self) -> Channel:
        soon = asyncio.get_running_loop().time() - self._opened_at < 1.0
        self._short_lived = self._short_lived + 1 if soon else 0
        if soon:  # the last connection ended: without a pause this could become a busy loop
            await asyncio.sleep(RECONNECT_BACKOFF.pause(self._short_lived - 1))
        channel = await self.node.connect()
        try:
            await durability.check(channel, self.node)
        except ServerUnavailableError:
            self.node.invalidate(channel.address)  # lost again: the first request notices, and reconnects
        except BaseException:
            channel.abort("the server cannot do what durability= asks for")
            raise
        return channel

    def _opened(self, outcome: Channel | Exception | None) -> None:
        """Send the queued requests in order, or fail them."""
        if outcome is None:
            self._fail_queued(ClientClosedError("the client, or the event loop, ended while connecting"))
        elif isinstance(outcome, Exception):
            self._fail_queued(outcome)
        else:
            self._channel = outcome
            self._opened_at = asyncio.get_running_loop().time()
            self._known.clear()
            self._transmit_queued(outcome)

    def _transmit_queued(self, channel: Channel) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None
        for request in self._queued():
            if request.reply_lost and not self._may_retry(request):
                # The server may have forgotten by now what the step did the first time.
                self._fail(request, ServerUnavailableError("the server could not be reached again in time"))
            else:
                self._transmit(channel, request)

    def _fail_queued(self, error: Exception) -> None:
        for request in self._queued():
            self._fail(request, copy.copy(error))


async def scan(
    ask: Callable[..., Awaitable[Any]], pattern: bytes, kind: bytes, share: float = 1.0
) -> AsyncIterator[bytes]:
    """Yield the keys of a type that match; a key may come more than once.

    Args:
        ask: Sends a command to one node, and returns the reply.
        pattern: As in Redis.
        kind: The type.
        share: The part of the time in which the node may be busy with it.
    """
    cursor, loop, pause = b"", asyncio.get_running_loop(), 0.0
    while cursor != b"0":
        if pause:
            await asyncio.sleep(pause)
        began = loop.time()
        cursor, keys = await ask(b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", 1000, b"TYPE", kind)
        pause = (loop.time() - began) * (1 / share - 1)
        for key in keys:
            yield key
