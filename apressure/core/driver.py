"""What the core needs of a driver: where steps leave, and who renews leases in time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Request: TypeAlias = Any
"""A step on its way, as the connection that sent it knows it."""

OnAnswer = Callable[[Any], None]
"""Called once, with a step's value, its "not now", or an exception."""


class NotSentError(Exception):
    """The answer to a request that was withdrawn before it was sent."""


class Connection(Protocol):
    """Where steps leave."""

    async def connected(self) -> Any:
        """Return the open connection, or open one."""

    def send(self, request: Request) -> None:
        """Send a request: at once if that is possible."""

    def take_back(self, request: Request) -> bool:
        """Withdraw a request that was not sent yet: its answer is `NotSentError`. Returns whether that was possible."""


class Renewer(Protocol):
    """Looks after the leases of a client in time, also while its event loop is blocked.

    Attributes:
        home: The client's event loop.
        home_thread: The thread that runs it.
        turned_at: When the client's event loop is known to have turned, by the monotonic clock.
        late: How many renewals came too late, by the name of the queue.
    """

    home: asyncio.AbstractEventLoop | None
    home_thread: threading.Thread | None
    turned_at: float
    late: Counter[str]

    def __contains__(self, renewal: Any) -> bool: ...

    def add(self, renewal: Any) -> None:
        """Look after a lease until `discard`. It may have been added before. Called on the client's event loop."""

    def discard(self, renewal: Any) -> None:
        """Look after a lease no more."""

    def failed(self, renewal: Any, error: Exception) -> None:
        """A renewal has failed: try again."""

    def call_home(self, function: Callable[[], object]) -> None:
        """Call a function on the client's event loop, as soon as that turns; if it has ended, never."""
