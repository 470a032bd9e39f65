"""The replies to what a queue object has asked: one connection waits for all of them.

A reply is an element of a list of the asker. It is removed only after it has been read: neither a connection that ends
nor a cancellation loses one. So one may be read twice, and the second time nobody waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from apressure.concurrency import background
from apressure.connection.settings import RETRY_BACKOFF
from apressure.connection.waiting.waiter import LONG_SLICE, SLICE, Waiter, park
from apressure.core.requests import Asker
from apressure.exceptions import PressureError, ServerUnavailableError

_PAGE: Final = 50
"""How many replies are read at a time."""


class Replies:
    """Reads the replies of one asker, while it waits for some.

    Args:
        connection: Where to read them.
        source: The list that has them.
        asker: The asker.
    """

    def __init__(self, connection: Any, source: bytes, asker: Asker) -> None:
        self._connection = connection
        self._source = source
        self._asker = asker
        self._waiter = Waiter(connection.node, source, source, LONG_SLICE, patient=True, on_element=self._came)
        self._reading: asyncio.Task[None] | None = None
        connection.node.server.add_reclaimer(self._waiter.close_if_idle)

    def read(self) -> None:
        """Begin to read, if that has not begun."""
        if self._reading is None or self._reading.done():
            self._reading = background.start(self._read(), "reading replies")

    def close(self) -> None:
        """Release the connection."""
        self._connection.node.server.remove_reclaimer(self._waiter.close_if_idle)
        self._waiter.close()
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        failures = 0
        while self._asker.waits:
            noted = [self._waiter.generation]
            try:
                page = await self._connection.ask(b"LRANGE", self._source, -_PAGE, -1, reads=True)
                for element in reversed(page):  # the oldest first
                    self._came(element)
                if not page:
                    await park([self._waiter], noted, SLICE)
                    continue
                # It is not sent again if its own reply is lost: by then it may have removed these, and others be there.
                await self._connection.ask(b"LTRIM", self._source, 0, -len(page) - 1)
                failures = 0
            except ServerUnavailableError:
                await asyncio.sleep(RETRY_BACKOFF.pause(failures))
                failures += 1
            except PressureError as error:
                self._asker.end(error)
                return

    def _came(self, element: bytes) -> None:
        request_id, _, reply = element.partition(b" ")
        self._asker.came(request_id.decode(errors="replace"), reply)
