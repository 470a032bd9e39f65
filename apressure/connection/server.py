"""From settings to connections: one server, counted connections, its version checked once."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Callable
from typing import Protocol

from apressure.connection import channel as channels
from apressure.connection.channel import OnReply
from apressure.connection.fake import FakeChannel
from apressure.connection.settings import Settings, resolve
from apressure.exceptions import (
    AuthenticationError,
    ConnectionLimitError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
)

OLDEST_VERSION = (6, 2)


class AnyChannel(Protocol):
    """What the rest of the package knows of a channel."""

    up: bool

    def call(self, command: list[bytes | str | int], on_reply: OnReply) -> None: ...

    def abort(self, reason: str) -> None: ...

    async def ask(self, *command: bytes | str | int) -> object: ...


class Server:
    """The server of a client.

    Args:
        settings: Where it is, and the limits of the client.

    Attributes:
        connections: How many connections are open or being opened.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.connections = 0
        self._met = False
        self._spare: list[Callable[[], bool]] = []

    @property
    def address(self) -> str:
        """Where the server is, for messages; without secrets."""
        return self.settings.address

    def on_shortage(self, give_up_one: Callable[[], bool]) -> None:
        """Register somebody who may close a connection that is idle when the limit is reached."""
        self._spare.append(give_up_one)

    def forget(self, give_up_one: Callable[[], bool]) -> None:
        """Take that back."""
        if give_up_one in self._spare:
            self._spare.remove(give_up_one)

    async def connect(self, on_lost: Callable[[], None], response_timeout: float | None = None) -> AnyChannel:
        """Open one connection.

        A server that answered before is tried again with growing pauses for `retry_timeout` seconds; one that never
        did fails at once, since it is more likely that the address is wrong.

        Raises:
            ConnectionLimitError: `max_connections` are in use.
            ServerUnavailableError: It cannot be reached.
            ServerError: It refuses the connection, or is too old.
        """
        self._reserve()
        lost = False

        def release() -> None:
            nonlocal lost
            if not lost:
                lost = True
                self.connections -= 1
                on_lost()

        try:
            return await self._connect_retrying(release, response_timeout or self.settings.response_timeout)
        except BaseException:
            if not lost:
                lost = True
                self.connections -= 1
            raise

    def _reserve(self) -> None:
        limit = self.settings.max_connections
        if limit is not None and self.connections >= limit and not any(spare() for spare in self._spare):
            raise ConnectionLimitError(
                f"all {limit} connections of this client are in use (max_connections={limit}); each queue that waits "
                "takes up to five: raise the limit, or let fewer queues wait at a time"
            )
        self.connections += 1

    async def _connect_retrying(self, on_lost: Callable[[], None], response_timeout: float) -> AnyChannel:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.retry_timeout
        pause = 0.05
        while True:
            try:
                return await self._connect(on_lost, response_timeout)
            except ServerUnavailableError as error:
                pause_now = pause * random.uniform(0.5, 1.5)
                if not self._met or loop.time() + pause_now > deadline:
                    if self._met and self.settings.retry_timeout:
                        raise ServerUnavailableError(
                            f"{error} (tried again for {self.settings.retry_timeout:g} seconds)"
                        ) from None
                    raise
                await asyncio.sleep(pause_now)
                pause = min(1.0, pause * 2)

    async def _connect(self, on_lost: Callable[[], None], response_timeout: float) -> AnyChannel:
        if self.settings.fake is not None:
            return FakeChannel(self.settings.fake, on_lost)
        if self.settings.embedded:
            await self._start_embedded()
        channel = await channels.connect(self.settings, response_timeout, on_lost)
        if not self._met:
            await self._check_version(channel)
            self._met = True
        return channel

    async def _start_embedded(self) -> None:
        from apressure import embedded

        server = await asyncio.to_thread(embedded.shared, self.settings.embedded_directory)
        real = resolve({"url": server.url})
        self.settings = dataclasses.replace(
            self.settings,
            address=real.address,
            connection_class=real.connection_class,
            connection_options=real.connection_options,
        )

    async def _check_version(self, channel: channels.Channel) -> None:
        try:
            information = bytes(await channel.ask("INFO", "server"))
        except AuthenticationError:
            channel.abort("the server wants a password")  # later commands would say it less clearly
            raise
        except ServerError:
            return  # a user with few rights may not ask; a missing command will tell
        except BaseException:
            channel.abort("cancelled while connecting")
            raise
        version = re.search(rb"redis_version:(\d+)\.(\d+)", information)
        valkey = b"valkey_version:" in information
        if version and not valkey and (int(version[1]), int(version[2])) < OLDEST_VERSION:
            channel.abort("the server is too old")
            raise ServerTooOldError(
                f"the server at {self.address} is Redis {int(version[1])}.{int(version[2])}: "
                "apressure needs Redis 6.2 or later, or Valkey"
            )
