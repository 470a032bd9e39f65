"""What a queue object asks on a server: one connection waits for the replies to all of it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from apressure.connection.requests.replies import Replies
from apressure.connection.sender import Sender, script
from apressure.core.requests import Asker
from apressure.exceptions import PressureError


class ServerRequests:
    """What a queue object asks.

    Args:
        sender: Sends the queue's steps.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._asking: tuple[Asker, Replies] | None = None

    async def ask(self, put: Callable[[str], Awaitable[object]], timeout: float) -> Any:
        """Put a request, given its id, and return its reply; raises what `ask` of the queue does."""
        asker, replies = self._asking = self._asking or self._first_ask()
        request_id = asker.new_id()

        async def begin() -> None:
            replies.read()
            await put(request_id)

        return await asker.ask(request_id, begin, timeout)

    def end(self, error: PressureError) -> int:
        """Fail all that wait for a reply; returns how many."""
        return 0 if self._asking is None else self._asking[0].end(error)

    def close(self) -> None:
        """Release the connection."""
        if self._asking is not None:
            self._asking[1].close()

    def _first_ask(self) -> tuple[Asker, Replies]:
        """Return what asks and reads replies: not made before, since a process may be forked until then."""
        sender, asker = self._sender, Asker(self._sender.name)
        source = sender.keys.replies(asker.id)
        return asker, Replies(sender.connection.node, source, functools.partial(self.replies, source), asker)

    async def replies(self, source: bytes, read: list[bytes]) -> list[bytes]:
        """Remove the replies to these requests from a list, and return the next ones, the oldest first."""
        call = script(__name__, "replies").on((source,))
        return await self._sender.carry_out(call, [*read])  # type: ignore[no-any-return]
