"""The history of a queue on a server: a list of ours with a record for each minute of a day."""

from __future__ import annotations

from typing import Final

from apressure.connection.sender import Sender, script
from apressure.core.history import KEPT

_EXPIRES: Final = 25 * 3600 * 1000
"""Milliseconds."""


class ServerHistory:
    """The steps of a queue that are about its history.

    Args:
        sender: Sends the queue's steps.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._key = (sender.keys.history,)

    async def read(self) -> list[bytes]:
        found = await self._sender.carry_out(script(__name__, "read").on(self._key), [KEPT])
        return list(found)

    async def write(self, number: int, record: bytes) -> bool:
        call = script(__name__, "write").on(self._key)
        return bool(await self._sender.carry_out(call, [number, record, KEPT, _EXPIRES]))
