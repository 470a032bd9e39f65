"""The replies to what a queue object has asked: one connection waits for all of them.

A reply is an element of a list of the asker. The step that reads the next ones removes those that were read: neither a
connection that ends nor a cancellation loses one. So one may be read twice, and the second time nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from apressure.concurrency import background
from apressure.connection.settings import RETRY_BACKOFF
from apressure.connection.waiting.waiter import LONG_SLICE, SLICE, Waiter, park
from apressure.core.requests import Asker
from apressure.core.waiting import moment
from apressure.exceptions import PressureError, ServerUnavailableError

Step = Callable[[list[bytes]], Awaitable[list[bytes]]]
"""Removes the replies to these requests, and returns the next ones, the oldest first."""


class Replies:
    """Reads the replies of one asker, while it waits for some.

    Args:
        node: Where they are.
        source: The list that has them.
        step: Reads them.
        asker: The asker.
    """

    def __init__(self, node: Any, source: bytes, step: Step, asker: Asker) -> None:
        self._server = node.server
        self._step = step
        self._asker = asker
        self._waiter = Waiter(node, source, source, LONG_SLICE, patient=True, on_element=self._came)
        self._reading: asyncio.Task[None] | None = None
        self._server.add_reclaimer(self._waiter.close_if_idle)

    def read(self) -> None:
        """Begin to read, if that has not begun."""
        if self._reading is None or self._reading.done():
            self._reading = background.start(self._read(), "reading replies")

    def close(self) -> None:
        """Release the connection."""
        self._server.remove_reclaimer(self._waiter.close_if_idle)
        self._waiter.close()
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        failures = 0
        read: list[bytes] = []
        while self._asker.waits or read:
            since = moment()
            try:
                read = [self._came(element) for element in await self._step(read)]
                if not read:
                    await park([self._waiter], since, SLICE)
                failures = 0
            except ServerUnavailableError:
                read = []  # what is still there is read once more
                await asyncio.sleep(RETRY_BACKOFF.pause(failures))
                failures += 1
            except PressureError as error:
                self._asker.fail(error)
                return

    def _came(self, element: bytes) -> bytes:
        """Hand over a reply; returns the id of its request."""
        request_id, _, reply = element.partition(b" ")
        self._asker.came(request_id.decode(errors="replace"), reply)
        return request_id
