"""One client: what it has said about itself, and what it has registered for."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from apressure.events.server.outcomes import Outcome
from apressure.events.server.queues import ServedQueue
from apressure.events.server.wire import Limits

T = TypeVar("T")

UNAUTHENTICATED = Limits(bulk=16 * 1024, command=64 * 1024, arguments=16, inline=16 * 1024)
"""What a client may send before AUTH."""


class Interrupted(Exception):
    """A command that waited ends early: its client has gone, or the server stops."""


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """The state of one connection that commands see and change.

    Attributes:
        number: The number of the connection, as CLIENT ID tells it.
        peer: The client's address, for logs.
        authenticated: The client has sent the password, or needs none.
        protocol: The version of RESP.
        name: The name that the client gave itself.
        library: The client's library, as it says.
        consumer: The id under which the client registers as a consumer.
        registered: The queues that it is registered for.
        gone: The connection has ended: nobody reads a reply.
        leaving: Close the connection after the current reply.
        interrupted: Nothing waits any more, since the client has gone or the server stops.
        waiter: The task whose command waits.
    """

    number: int
    peer: str
    authenticated: bool
    protocol: int = 2
    name: bytes = b""
    library: dict[bytes, bytes] = dataclasses.field(default_factory=dict)
    consumer: bytes = dataclasses.field(default_factory=lambda: str(uuid.uuid4()).encode())
    registered: Sequence[ServedQueue] = ()
    gone: bool = False
    leaving: bool = False
    interrupted: bool = False
    waiter: asyncio.Task[object] | None = None

    async def wait(self, operation: Awaitable[T]) -> T:
        """Wait for an operation, unless the client goes or the server stops meanwhile.

        Args:
            operation: It is cancelled then, and must leave nothing behind.

        Raises:
            Interrupted: The client has gone, or the server stops.
        """
        task = asyncio.current_task()
        assert task is not None
        if self.interrupted:
            if asyncio.iscoroutine(operation):
                operation.close()
            elif isinstance(operation, Outcome):
                operation.cancel()
            raise Interrupted
        self.waiter = task
        try:
            return await operation
        except asyncio.CancelledError:
            if self.interrupted and task.uncancel() == 0:
                raise Interrupted from None
            raise
        finally:
            self.waiter = None

    def interrupt(self) -> None:
        """End the wait under way, and let no other begin."""
        if not self.interrupted:
            self.interrupted = True
            if self.waiter is not None:
                self.waiter.cancel()
