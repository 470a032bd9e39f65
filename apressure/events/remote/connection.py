"""A client of an okq server: what kind of server it is, commands sent again after a loss, and what errors mean.

The released okq has the commands of the specification only. Ours has more, and each channel is asked once which it is.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.settle import left_of, set_result_once
from apressure.connection.renewer import Renewer
from apressure.connection.server import Server
from apressure.connection.settings import ClientOptions
from apressure.connection.wire import channel as channels
from apressure.connection.wire.channel import Channel, ConnectionLost, RESPChannel
from apressure.connection.wire.command import Argument
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.core.asking import ask
from apressure.core.driver import OnAnswer
from apressure.core.errors import closed, missing
from apressure.core.objects import FAREWELL, SharedClient
from apressure.events.remote.address import settings_of
from apressure.exceptions import OutcomeUnknownError, ServerError, ServerTooOldError, ServerUnavailableError

T = TypeVar("T")

Command = Sequence[Argument]

_INSTEAD: Final = (
    "apressure's server (apressure events serve), or EventQueue with the URL of the server's Redis (redis://…), which "
    "works on the same queue"
)
"""What a program can use that wants more than a released okq does, for errors."""

_LACKS: Final = {
    "command": "the okq server of the queue {name!r} has no {verb}: the released okq knows no bounds, no end, no "
    "pauses, no limits, no delays and no schedules. Use {instead}",
    "extend": "the lease of an event of {name!r} cannot be extended: the released okq has no such command. Receive "
    "with a longer lease=, or use apressure's server (apressure events serve)",
    "delay": "an event of the queue {name!r} cannot be delayed: the released okq knows no delays. Use {instead}",
    "limit": "max_attempts= of the queue {name!r} cannot be kept: the released okq counts no deliveries, and has no "
    "dead letters. Leave it out, or use {instead}",
}
"""What a released okq cannot do, in the words of the errors."""


class OkqServer(Server):
    """An okq server. `greet` learns what kind each connection leads to.

    Attributes:
        extends: The latest connection led to a server that has the commands of ours.
    """

    extends = False

    async def greet(self, channel: RESPChannel) -> None:
        """Check that this is an okq server that accepts this client, and learn whether it is one of ours.

        Raises:
            AuthenticationError: It wants a password, or another one.
            ServerError: It is no okq server.
            ServerUnavailableError: It has too many clients.
        """
        # Without arguments these commands do nothing: a server that knows them says so.
        knows_okq, extends = await asyncio.gather(_knows(channel, b"QRPEEK"), _knows(channel, b"QRETURN"))
        if not knows_okq:
            raise ServerError(
                f"the server at {channel.address.text} is no okq server: it does not know QRPEEK. If it is a Redis or "
                "Valkey server, write redis://… instead of okq://…; otherwise correct the address"
            )
        self.extends = channel.extended = extends
        self.reached = True


async def _knows(channel: RESPChannel, command: bytes) -> bool:
    try:
        await channel.ask(command)
    except ServerTooOldError:  # "unknown command"
        return False
    except ServerError as error:
        if channels.FULL in str(error):
            raise ServerUnavailableError(str(error)) from None
        if "missing args" in str(error):
            return True
        raise
    return False


class OkqClient(SharedClient):
    """A client of one okq server, for any number of queues. It does nothing before its first use.

    Args:
        options: Where the server is, and the limits; see `settings_of`.

    Attributes:
        settings: Those that the options are.
        server: The server.
        connection: The connection for commands.
        renewer: Renews leases.
    """

    def __init__(self, options: ClientOptions) -> None:
        super().__init__()
        self.settings = settings_of(options)
        self.server = OkqServer(self.settings)
        self.connection: ReconnectingConnection = ReconnectingConnection(self.server.node_of(()))
        self.renewer = Renewer(self.server)

    def __repr__(self) -> str:
        return f"<OkqClient at {self.server.address}>"

    async def _release(self) -> None:
        logs.closing(1)
        loop = asyncio.get_running_loop()
        end = loop.time() + left_of(self.settings.settle_timeout)
        try:
            while self._unfinished and loop.time() < end:  # what is undone begins when its step has ended
                await asyncio.wait(self._unfinished, timeout=end - loop.time())
            await self.renewer.aclose(left_of(self.settings.settle_timeout))
        finally:
            self.connection.end()
        if self._unfinished:
            await asyncio.wait(self._unfinished, timeout=FAREWELL)

    async def step(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]] | None = None
    ) -> T:
        """Do something on the server.

        Args:
            work: What to do.
            undo: Undoes its result if the caller was cancelled.

        Cancelled, it goes on, and is undone, for up to `settle_timeout` seconds before the cancellation is raised, and
        after that in the background.
        """

        def send(on_answer: OnAnswer) -> None:
            self.soon(work).add_done_callback(lambda task: on_answer(task.result()))

        def undone(outcome: Any) -> asyncio.Future[Any] | None:
            return None if undo is None or isinstance(outcome, Exception) else self.soon(undo(outcome))

        return await ask(  # type: ignore[no-any-return]
            self.connection, send, self.settings.settle_timeout, undone
        )

    def soon(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T | Exception]:
        """Do something in the background; `aclose` waits for it. The task returns its error."""
        task = background.start(background.caught(work), "a step on an okq server")
        self.finish_before_close(task)
        return task


class Attempts:
    """The tries of one operation: each on the current connection, for `retry_timeout` seconds after the first loss.

    Args:
        connection: The connection for commands.

    Attributes:
        lost: A reply was lost, so what was sent may have been carried out.
        complete: All replies of the latest try came.
        extended: The latest try was for a server that has the commands of ours.
    """

    lost = complete = extended = False
    _until = 0.0

    def __init__(self, connection: ReconnectingConnection) -> None:
        self._connection = connection

    async def send(self, commands: Callable[[bool], Sequence[Command]]) -> list[Any]:
        """Send commands together, and return the replies that came, in order; errors are among them.

        Args:
            commands: Returns them, told whether the server has the commands of ours.

        Raises:
            ClientClosedError: The client was closed meanwhile.
            OutcomeUnknownError: A reply was lost, and the server cannot be reached again in time.
            PressureError: The server cannot be reached, or refuses the client; nothing was sent.
        """
        loop = asyncio.get_running_loop()
        if self.lost and loop.time() >= self._until:
            raise unknown("the server could not be reached again in time")
        try:
            channel = await self._connection.connected()
        except ServerUnavailableError as error:
            if self.lost:
                raise unknown(str(error)) from None
            raise
        self.extended = channel.extended
        answers = await replies(channel, commands(self.extended))
        came = [answer for answer in answers if not isinstance(answer, ConnectionLost)]
        self.complete = len(came) == len(answers)
        if not self.complete:
            self.lost = True
            self._connection.node.invalidate(channel.address)
            self._until = self._until or loop.time() + self._connection.node.settings.retry_timeout
        return came


async def replies(channel: Channel, commands: Sequence[Command]) -> list[Any]:
    """Send commands together, and return their replies; errors are among them, `ConnectionLost` where none came."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    futures: list[asyncio.Future[Any]] = []
    for command in commands:
        future = loop.create_future()
        channel.call(command, functools.partial(set_result_once, future))
        futures.append(future)
    answers = [await future for future in futures]
    if logs.logger.isEnabledFor(logging.DEBUG) and commands:
        verb, error = commands[0][0], next((one for one in answers if isinstance(one, Exception)), None)
        logs.step(verb.decode() if isinstance(verb, bytes) else str(verb), loop.time() - began, error)
    return answers


def lacks(what: str, name: str, verb: str = "") -> ServerTooOldError:
    """Return the error for what only our servers can do.

    Args:
        what: The key of the sentence in `_LACKS`.
        name: The queue's name.
        verb: The command.
    """
    return ServerTooOldError(_LACKS[what].format(name=name, verb=verb, instead=_INSTEAD))


def unknown(reason: str) -> OutcomeUnknownError:
    """Return the error for an operation that may have been carried out."""
    return OutcomeUnknownError(f"{reason.rstrip('.')}; the operation may have been carried out, or not")


def error_of(error: Exception, name: str) -> Exception:
    """Return what an error reply means for a program.

    Args:
        error: The error.
        name: The queue's name.
    """
    if isinstance(error, ConnectionLost):
        return ServerUnavailableError(str(error))
    if not isinstance(error, ServerError):
        return error
    text = str(error)
    if text == "ERR queue closed":
        return closed(name)
    if text == "ERR no such queue":
        return missing(name)
    if "may have been carried out" in text or text.startswith("ERR server-side:"):
        return OutcomeUnknownError(f"the okq server failed: {text}. The operation may have been carried out, or not")
    if text.startswith("ERR cannot reach"):
        return ServerUnavailableError(f"the okq server has lost its Redis: {text.removeprefix('ERR ')}")
    return error
