"""Stand-ins for the server: the test answers each command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from apressure import ServerUnavailableError
from apressure.connection.addresses import Address
from apressure.connection.server import Node, Server
from apressure.connection.settings import settings_from
from apressure.connection.wire.channel import ConnectionLost, OnReply, reply_of
from apressure.connection.wire.command import NO_HEAD, Argument, Head
from apressure.connection.wire.replies import error_from_reply
from apressure.connection.wire.script import Request


class FakeChannel:
    """A channel on which the test answers.

    Attributes:
        calls: The commands that were sent, without their heads.
        answered: How many of them have a reply.
        silent: `ask` waits for the test's reply; otherwise the connection ends there.
    """

    def __init__(self) -> None:
        self.up = True
        self.address = Address("a test")
        self.lost = ""
        self.on_end: list[Callable[[], None]] = []
        self.calls: list[tuple[Sequence[Argument], OnReply]] = []
        self.answered = 0
        self.retired = False
        self.silent = False

    @property
    def sent(self) -> list[Any]:
        """The last argument of each step before its tag."""
        return [command[-2] for command, _ in self.calls]

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None:
        assert self.up
        self.calls.append((command, on_reply))

    async def ask(self, *command: bytes | str | int) -> Any:
        if self.silent:
            return await reply_of(self, command)
        self.abort("it died")
        raise ServerUnavailableError("it died")

    def reply(self, value: Any) -> None:
        """Reply to the oldest command that has no reply."""
        _, on_reply = self.calls[self.answered]
        self.answered += 1
        on_reply(value)

    def answer(self, value: Any) -> None:
        """Reply to the oldest step that has no reply, with its tag."""
        command, _ = self.calls[self.answered]
        self.reply([command[-1], value])

    def refuse(self, text: str) -> None:
        """Reply with an error."""
        self.reply(error_from_reply(text))

    def abort(self, reason: str, lost: bool = False) -> None:
        self.up = False
        while self.answered < len(self.calls):
            self.reply(ConnectionLost(reason))

    def retire(self) -> None:
        self.retired = True
        if self.answered == len(self.calls):
            self.up = False


class FakeNode(Node):
    """A node whose connections are fake channels.

    Attributes:
        channels: Those that were connected so far.
        error: What connecting raises.
        delay: Seconds that connecting takes.
        dead: How many of the next channels have ended when they are there.
    """

    def __init__(self, **options: Any) -> None:
        settings = settings_from({"retry_timeout": 5, **options}, {})  # type: ignore[typeddict-item]
        super().__init__(Server(settings), None)
        self.channels: list[FakeChannel] = []
        self.error: Exception | None = None
        self.delay = 0.0
        self.dead = 0

    async def connect(self, response_timeout: float | None = None) -> FakeChannel:
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        channel = FakeChannel()
        self.channels.append(channel)
        if self.dead:
            self.dead -= 1
            channel.up = False
        return channel


class FakeConnection:
    """A connection that keeps the steps, and answers as if each one had succeeded."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def send(self, request: Request) -> None:
        self.requests.append(request)
        asyncio.get_running_loop().call_soon(request.on_reply, 1)


@asynccontextmanager
async def listening(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A server that answers each piece it reads by `answer`, and its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(answer(data))
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
