"""A channel over a fakeredis client, for unit tests that want no server.

fakeredis answers from memory; there is no connection to lose. It keeps less than a server does: no fairness among
blocked clients, and no way to cancel a blocked pop safely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from apressure.connection import background
from apressure.connection.addresses import Address
from apressure.connection.channel import ConnectionLost, OnReply
from apressure.connection.command import NO_HEAD, Argument, Head
from apressure.connection.replies import error_from_reply
from apressure.exceptions import ServerUnavailableError


class FakeChannel:
    """Runs each command of a channel in a task of its own, one after the other, as one connection would."""

    def __init__(self, client: Any, address: Address, on_lost: Callable[[], None]) -> None:
        self._client = client
        self.address = address
        self._on_lost = on_lost
        self._queue: asyncio.Queue[tuple[Sequence[Argument], OnReply]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.up = True

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None:
        """Run a command; `on_reply` is called exactly once, never from within this call."""
        self._queue.put_nowait(((*head.arguments, *command), on_reply))
        if self._task is None or self._task.done():
            self._task = background.start(self._run(), "a command of fakeredis")

    async def ask(self, *command: bytes | str | int) -> Any:
        """Run a command and return its reply.

        Raises:
            ServerError: fakeredis refused it.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.call(command, lambda reply: None if future.done() else future.set_result(reply))
        reply = await future
        if isinstance(reply, ConnectionLost):
            raise ServerUnavailableError(str(reply))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def abort(self, reason: str) -> None:
        """Stop; what has not been answered becomes `ConnectionLost`."""
        if not self.up:
            return
        self.up = False
        if self._task is not None:
            self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()[1](ConnectionLost(reason))
        self._on_lost()

    def retire(self) -> None:
        """Stop. (A fakeredis never sends a client elsewhere.)"""
        self.abort("the connection is not needed any more")

    async def _run(self) -> None:
        while not self._queue.empty():
            command, on_reply = self._queue.get_nowait()
            try:
                reply = await self._client.execute_command(
                    *command, NEVER_DECODE=True
                )  # whatever the program's client does
            except NoScriptError:
                reply = error_from_reply("NOSCRIPT No matching script.")
            except RedisError as error:
                reply = error_from_reply(str(error))
            except BaseException as error:
                on_reply(ConnectionLost(str(error)))
                raise
            on_reply(reply)
