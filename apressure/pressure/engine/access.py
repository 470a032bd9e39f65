"""What an object of this process has of a queue on the server: its steps, and the waits that they ask for."""

from __future__ import annotations

import asyncio
import contextlib

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.exceptions import PressureError, Role
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.sending import script
from apressure.pressure.engine.steps import Steps
from apressure.pressure.engine.waits import Waits


class Access(Steps):
    """The steps of one queue, and the waits that they ask for.

    Args:
        client: The client whose connections they use.
        keys: The queue's keys.
        name: The queue's name.

    Attributes:
        client: As given.
        waits: The waits.
    """

    def __init__(self, client: Client, keys: Keys, name: str) -> None:
        super().__init__(client, keys, name)
        self.client = client
        rounds = client.rounds_on(self.connection, lambda: script("look"))
        self.waits = Waits(self.connection.node, keys, self.unclaim, self.resign, rounds)

    def release(self, error: PressureError) -> None:
        """Release the connections of waits; operations that would wait from now on raise the error."""
        roles = self.waits.close(error)
        if (roles or self.waits.in_line) and self.client.on_its_loop:
            self.client.finish_before_close(
                background.start(self._hand_back(roles), "giving back a role that was waited for")
            )

    async def _hand_back(self, roles: list[Role]) -> None:
        """Give back tokens that came for waits which have ended, or their roles would stay busy for 5 seconds."""
        with contextlib.suppress(PressureError):
            await asyncio.sleep(0)  # the waits' connections close in the next turn of the event loop
            await asyncio.sleep(0)
            await self.exists()  # after a round trip the server has seen that, too
            for role in roles:
                self.unclaim(role)
            if self.waits.in_line:
                self.resign(self.waits.line.place, True)
