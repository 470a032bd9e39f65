"""The client's connection for steps: requests go out as they come, survive a reconnect, and are answered once.

A lost reply leaves the client not knowing whether a step was carried out. A request that says so (`resend`) is sent
again after the reconnect, with the flag that makes its script look up what it did the first time. Any other request
that was sent and not answered ends with OutcomeUnknownError.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from apressure.connection import background, durability
from apressure.connection.channel import ConnectionLost
from apressure.connection.command import is_large
from apressure.connection.replies import NOT_EXECUTED, UNREADABLE
from apressure.connection.request import Request
from apressure.connection.script import Script, answer_of
from apressure.connection.server import AnyChannel, Place
from apressure.exceptions import ClientClosedError, OutcomeUnknownError, ServerError, ServerUnavailableError


class Link:
    """One connection that is opened when it is needed, and again when it was lost.

    Args:
        place: Where to.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._channel: AnyChannel | None = None
        self._queued: list[Request] = []
        self._numbers = itertools.count(1)
        self._held: asyncio.TimerHandle | None = None
        self._retired: set[AnyChannel] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._connected_at = -1.0
        self._pause = 0.01
        self._failures = 0
        self._callers = 0
        self._asking = 0
        self._doubts = 0
        self._failure: Exception | None = None
        self._unanswered = 0
        self._finished = 0
        self._asked_at = 0.0
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._tag = 0
        self._known: set[Script] = set()

    def send(self, request: Request) -> None:
        """Send a request, now or as soon as there is a connection; its `on_reply` is called exactly once."""
        self._unanswered += 1
        request.number = next(self._numbers)
        self._asked_at = asyncio.get_running_loop().time()
        channel = self._channel
        if channel is not None and not request.resend and not self._closed and self._suspects(channel):
            self._drop(channel)  # a step that must not be repeated does not go that way; neither do those behind it
            channel = None
        if channel is not None and channel.up and not self._queued:
            self._transmit(channel, request)
        elif self._closed:
            asyncio.get_running_loop().call_soon(
                self._finish, request, ClientClosedError("the client was closed; open a new one")
            )
        else:
            self._queue(request)

    async def ask(self, *command: bytes | str | int, reads: bool = False) -> Any:
        """Run a command of administration on this connection.

        Where the server says that it did not carry it out, it is tried again; where it only reads and looks at one
        moment, also when its reply was lost.

        Raises:
            ServerError: The server refused it.
            ServerUnavailableError: It cannot be reached, or the connection ended first.
        """
        self._asking += 1
        try:
            return await insist(self.place, self.connected, self._drop, command, reads)
        finally:
            self._asking -= 1

    async def connected(self) -> AnyChannel:
        """Return the connection, opened where needed."""
        while self._channel is None or not self._channel.up:
            if self._closed:
                raise ClientClosedError("the client was closed; open a new one")
            self._connect_soon()
            failures = self._failures
            assert self._connecting is not None
            self._callers += 1
            try:
                await asyncio.wait((self._connecting,))
            except asyncio.CancelledError:
                if self._callers == 1 and not self._queued and self._connecting is not None:
                    connecting, self._connecting = self._connecting, None
                    connecting.cancel()  # nobody else wants the connection
                raise
            finally:
                self._callers -= 1
            if self._failures != failures and self._failure is not None:
                raise copy.copy(self._failure)
        return self._channel

    def rest(self) -> bool:
        """Give the connection up where nothing is on its way; it opens again when it is needed."""
        channel = self._channel
        if channel is None or not channel.up or self._unanswered or self._asking:
            return False
        self._channel = None
        self._connected_at = -1.0
        channel.abort("the connection is not needed at present")
        return True

    async def aclose(self, patience: float) -> None:
        """Wait for replies that are on their way, for `patience` seconds since they were asked for; then hang up."""
        try:
            loop = asyncio.get_running_loop()
            latest = loop.time() + patience
            while True:
                finished = self._finished
                await self._settle_down()
                remaining = min(latest, self._asked_at + patience) - loop.time()
                quiet = not self._unanswered and self._finished == finished
                if quiet or self._closed or remaining <= 0:
                    break
                if self._unanswered:
                    self._drained = loop.create_future()
                    await asyncio.wait((self._drained,), timeout=remaining)
        finally:
            self.end()

    def end(self) -> None:
        """End the connection at once."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._held is not None:
            self._held.cancel()
        retired, self._retired = self._retired, set()
        for channel in (self._channel, *retired):
            if channel is not None:
                channel.abort("the client was closed")
        self._fail_queued(ClientClosedError("the client was closed"))

    async def _settle_down(self) -> None:
        """Let the tasks run that were answered or cancelled just now: they may have something to give back."""
        for _ in range(3):
            await asyncio.sleep(0)

    def _transmit(self, channel: AnyChannel, request: Request) -> None:
        if not channel.up:  # it ended before anything was sent: no doubt about that
            if self._may_retry(request):
                self._queue(request)
            else:
                self._fail(request, ServerUnavailableError("the connection was lost at once"))
            return
        self._tag += 1
        tag = b"%d" % self._tag
        script = request.call.script
        if script not in self._known and is_large(request.arguments):
            request.whole = True  # rather than to send a large message twice, should the server not know the script
        head = request.call.whole if request.whole else request.call.short
        command = [*request.arguments, tag]
        wanted = self.place.settings.durability

        def on_reply(reply: Any) -> None:
            self._answer(request, channel, answer_of(reply, tag, channel))

        if wanted is None or request.changed is None:
            channel.call(command, on_reply, head)
        else:
            durability.Confirmation(channel, head, command, tag, request.changed, wanted, on_reply)

    def _answer(self, request: Request, channel: AnyChannel, reply: Any) -> None:
        if not isinstance(reply, Exception):
            self._known.add(request.call.script)
            if request.changed is not None:
                self.place.written()
            self._finish(request, reply)
        elif isinstance(reply, ConnectionLost):
            self._drop(channel)
            self.place.doubt(channel.address)
            request.doubtful = True
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
        elif self.place.is_elsewhere(reply, channel.address):
            self._drop(channel)
            self._later(request, reply)
        elif reply.code in NOT_EXECUTED:
            self._later(request, reply)
        else:
            self._fail(request, reply)

    def _suspects(self, channel: AnyChannel) -> bool:
        """Another connection to this server was lost since: this one may only look alive."""
        return channel.up and self._doubts != self.place.doubts(channel.address)

    def _drop(self, channel: AnyChannel) -> None:
        """Send nothing more there; what is on its way still gets its replies."""
        if self._channel is channel:
            self._channel = None
        if channel.up:
            self._retired = {one for one in self._retired if one.up} | {channel}
            channel.retire()

    def _later(self, request: Request, reply: ServerError) -> None:
        """The server did not carry it out: the request waits a little, with the deadline of a reconnect.

        What is sent meanwhile waits behind it: steps that follow each other shall not overtake each other.
        """
        if not self._may_retry(request):
            self._fail(request, reply)
            return
        pause, request.pause = request.pause * random.uniform(0.5, 1.5), min(0.5, 2 * request.pause)
        self._queued.append(request)
        if self._held is None:
            self._held = asyncio.get_running_loop().call_later(pause, self._go_on)

    def _go_on(self) -> None:
        """Send what has gathered, now or as soon as there is a connection."""
        self._held = None
        if self._channel is not None and self._channel.up:
            self._transmit_queued(self._channel)
        elif self._queued:
            self._connect_soon()

    def _may_retry(self, request: Request) -> bool:
        """A request is tried again for `retry_timeout` seconds since its first trouble.

        That is well below the time for which the server keeps the record that makes a repeat safe.
        """
        now = asyncio.get_running_loop().time()
        request.until = request.until or now + self.place.settings.retry_timeout
        return now < request.until

    def _finish(self, request: Request, reply: Any) -> None:
        self._unanswered -= 1
        self._finished += 1
        if not self._unanswered and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        request.on_reply(reply)

    def _fail(self, request: Request, error: Exception) -> None:
        """Finish with an error. What it says of this try says nothing of an earlier one whose reply was lost."""
        if request.doubtful and UNREADABLE not in str(error):
            error = OutcomeUnknownError(f"{str(error).rstrip('.')}; the operation may have been carried out, or not")
        self._finish(request, error)

    def _queue(self, request: Request) -> None:
        self._queued.append(request)
        if self._held is None:
            self._connect_soon()

    def _connect_soon(self) -> None:
        if self._connecting is None:
            self._connecting = background.start(self._connect(), "connecting to the server")

    async def _connect(self) -> None:
        """Connect, and send what has gathered meanwhile, in order."""
        loop = asyncio.get_running_loop()
        mine = asyncio.current_task()
        try:
            if loop.time() - self._connected_at < 1.0:
                # The last connection did not last: whatever ends it shall not be met with a busy loop.
                self._pause = min(1.0, 2 * self._pause)
                await asyncio.sleep(self._pause * random.uniform(0.5, 1.5))
            else:
                self._pause = 0.01
            channel = await self._open()
        except Exception as error:  # noqa: BLE001 (whatever it is, those who wait have to know)
            if self._connecting is mine:
                self._failures += 1
                self._failure = error
                self._connecting = None
                self._fail_queued(error)
            return
        except BaseException:
            if self._connecting is mine:
                self._connecting = None
                self._fail_queued(ClientClosedError("the client, or the event loop, ended while connecting"))
            raise
        if self._closed or self._connecting is not mine:
            # A cancellation that comes when the connection is there already goes unnoticed.
            channel.abort("nobody wanted the connection any more")
            return
        self._connecting = None
        self._channel = channel
        self._connected_at = loop.time()
        self._known.clear()
        self._doubts = self.place.doubts(channel.address)
        self._transmit_queued(channel)

    async def _open(self) -> AnyChannel:
        channel = await self.place.connect(lambda: None)
        try:
            await durability.check(channel, self.place.settings.durability)
        except ServerUnavailableError:
            self.place.doubt(channel.address)  # lost again: whoever uses it will see that, and come again
        except BaseException:
            channel.abort("the server was not asked anything")
            raise
        return channel

    def _transmit_queued(self, channel: AnyChannel) -> None:
        queued, self._queued = sorted(self._queued, key=lambda request: request.number), []
        for request in queued:
            if request.doubtful and not self._may_retry(request):
                # The server may have forgotten by now what the step did the first time.
                self._fail(request, ServerUnavailableError("the server could not be asked again in time"))
            else:
                self._transmit(channel, request)

    def _fail_queued(self, error: Exception) -> None:
        queued, self._queued = self._queued, []
        for request in queued:
            self._fail(request, copy.copy(error))


async def insist(
    place: Place,
    connected: Callable[[], Awaitable[AnyChannel]],
    drop: Callable[[AnyChannel], None],
    command: Sequence[bytes | str | int],
    reads: bool = False,
) -> Any:
    """Run a command; where the server says that it did not carry it out, again, there or where the data is by then.

    Args:
        place: Where the data is.
        connected: Returns the connection to use, or opens one.
        drop: Called with a connection that leads to a server which does not have the data (any more).
        command: The command.
        reads: It may be sent again where its reply was lost.

    Raises:
        ServerError: The server refused it.
        ServerUnavailableError: It cannot be reached, or the connection ended first.
    """
    loop = asyncio.get_running_loop()
    until, pause = 0.0, 0.01
    while True:
        channel = await connected()
        try:
            return await channel.ask(*command)
        except ServerUnavailableError:
            place.doubt(channel.address)
            until = until or loop.time() + place.settings.retry_timeout
            if not reads or loop.time() >= until:
                raise
        except ServerError as error:
            if place.is_elsewhere(error, channel.address):
                drop(channel)
            elif error.code not in NOT_EXECUTED:
                raise
            until = until or loop.time() + place.settings.retry_timeout
            if loop.time() >= until:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(0.5, 2 * pause)
