"""A channel over a fakeredis client, for unit tests without a server.

fakeredis answers from memory, so there is no connection to lose. It guarantees less than a server: no fairness among
blocked clients, and no safe way to cancel a blocked pop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import NoScriptError, RedisError

from apressure.concurrency import background
from apressure.connection.addresses import Address
from apressure.connection.wire.channel import Channel, ConnectionLost, OnReply
from apressure.connection.wire.command import NO_HEAD, Argument, Head
from apressure.connection.wire.replies import error_from_reply
from apressure.exceptions import ScriptingRefusedError

POLL: Final = 0.002
"""Seconds between two looks at a list that is missing."""


class FakeredisChannel(Channel):
    """A channel that runs commands one after the other, as a server does for one connection."""

    def __init__(self, client: Any, address: Address) -> None:
        self._client = client
        self.address = address
        self.on_end: list[Callable[[], None]] = []
        self._queue: asyncio.Queue[tuple[Sequence[Argument], OnReply]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.up = True
        self.lost = ""

    def call(self, command: Sequence[Argument], on_reply: OnReply, head: Head = NO_HEAD) -> None:
        self._queue.put_nowait(((*head.arguments, *command), on_reply))
        if self._task is None or self._task.done():
            self._task = background.start(self._run(), "a command of fakeredis")

    def abort(self, reason: str, lost: bool = False) -> None:  # noqa: ARG002
        if not self.up:
            return
        self.up = False
        if self._task is not None:
            self._task.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()[1](ConnectionLost(reason))
        for on_end in self.on_end:
            on_end()

    def retire(self) -> None:
        self.abort("the connection is no longer needed")

    async def _run(self) -> None:
        while not self._queue.empty():
            command, on_reply = self._queue.get_nowait()
            try:
                reply = await self._execute(command)
            except NoScriptError:
                reply = error_from_reply("NOSCRIPT No matching script.")
            except RedisError as error:
                reply = error_from_reply(str(error))
                if isinstance(reply, ScriptingRefusedError):
                    reply = ScriptingRefusedError(
                        f"fakeredis cannot run scripts ({error}): its extra lua is missing. Run "
                        "pip install 'fakeredis[lua]>=2.40', or use scripting=False"
                    )
            except BaseException as error:
                on_reply(ConnectionLost(str(error)))
                raise
            on_reply(reply)

    async def _execute(self, command: Sequence[Argument]) -> Any:
        await asyncio.sleep(0)  # from Python 3.12 on, fakeredis answers in the same turn of the event loop
        end = asyncio.get_running_loop().time() + (float(command[-1]) if command[0] == b"BLMOVE" else 0)
        while True:
            # The program's client may decode replies.
            reply = await self._client.execute_command(*command, NEVER_DECODE=True)
            # For a list that is missing, BLMOVE of fakeredis does not wait, and lets nothing else run.
            if reply is not None or asyncio.get_running_loop().time() >= end:
                return reply
            await asyncio.sleep(POLL)
