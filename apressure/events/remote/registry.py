"""Those that work on a queue on an okq server of ours, which keeps them on its Redis; see `core.registration`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apressure.concurrency import background
from apressure.connection.wire.command import Argument
from apressure.core.registration import Wish
from apressure.events.remote.commands import Commands
from apressure.events.remote.connection import OkqClient


class RemoteRegistry:
    """The registrations of a queue (QWORKERS).

    Args:
        client: The client of the server.
        commands: The commands for the queue.
    """

    def __init__(self, client: OkqClient, commands: Commands) -> None:
        self._client = client
        self._commands = commands

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        self._send(on_answer, b"BEAT", name, letter, record, int(lasts * 1000))

    def leave(self, name: bytes) -> None:
        self._send(lambda _: None, b"LEAVE", name)

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        told, _ = await self._commands.change("QWORKERS", b"ASK", worker_id, what)
        return int(told)

    def _send(self, on_answer: Callable[[Any], None], *arguments: Argument) -> None:
        async def ask() -> Any:  # once: the next beat says the same, and what is not removed expires
            return (await self._commands.ask("QWORKERS", *arguments, ours=True, again=False))[0]

        async def run() -> None:
            on_answer(await background.caught(ask()))

        self._client.soon(run())
