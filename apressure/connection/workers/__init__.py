"""Those that work on a queue on a server: a hash of ours, from the names of registrations to their records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apressure.connection.sender import Sender, script
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Call, Request
from apressure.core.registration import Wish


class ServerRegistry:
    """The registrations of a queue; see `core.registration.Registry`.

    Args:
        sender: Sends the queue's steps.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        self._send("beat", [name, letter, record, int(lasts * 1000)], on_answer)

    def leave(self, name: bytes, on_answer: Callable[[Any], None] = lambda _: None) -> None:
        self._send("leave", [name], on_answer)

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        return await self._sender.carry_out(self._call("ask"), [worker_id, what])  # type: ignore[no-any-return]

    def _send(self, name: str, arguments: list[Argument], on_answer: Callable[[Any], None]) -> None:
        # Not sent again: the next beat says the same, and what is not removed expires.
        self._sender.connection.send(Request(self._call(name), arguments, on_answer, resend=False))

    def _call(self, name: str) -> Call:
        return script(__name__, name).on((self._sender.keys.workers,))
