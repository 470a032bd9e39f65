"""What the core needs of a driver: where steps leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Request: TypeAlias = Any
"""A step on its way, as the connection that sent it knows it."""

OnAnswer = Callable[[Any], None]
"""Called once, with a step's value, its "not now", or an exception."""


class NotSentError(Exception):
    """The answer to a request that was withdrawn before it was sent."""


class Sending(Protocol):
    """What sends a step."""

    def send(self, request: Request) -> None:
        """Send a request: at once if that is possible."""


class Connection(Sending, Protocol):
    """Where steps leave."""

    async def connected(self) -> Any:
        """Return the open connection, or open one."""

    def take_back(self, request: Request) -> bool:
        """Withdraw a request that was not sent yet: its answer is `NotSentError`. Returns whether that was possible."""
