"""The okq server: everything together, from its start to its orderly end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from apressure.connection.client import Client
from apressure.events.server.administration import Administration
from apressure.events.server.commands import Commands
from apressure.events.server.listener import Listener
from apressure.events.server.operations import Operations
from apressure.events.server.queues import Queues
from apressure.events.server.readiness import notify
from apressure.events.server.settings import Address, ServerSettings

logger = logging.getLogger("apressure.events.server")


class EventServer:
    """A server for event queues that every Redis client can use.

    Args:
        settings: What it is told.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have `run` end in an orderly way: it takes no more clients, and lets commands under way end."""
        self._stopping.set()

    async def run(self, ready: Callable[[Address], None] = lambda _: None) -> None:
        """Serve clients until `stop`.

        Args:
            ready: Called once, when clients can connect, with the address where it listens.

        Raises:
            OSError: It cannot listen at the address.
            ServerUnavailableError: Redis cannot be reached at the start. Later, commands get errors meanwhile.
            ValueError: The certificate or the URL is not valid.

        Cancelled, it disconnects all clients at once. What a command had taken comes back when its lease expires.
        """
        settings = self._settings
        async with Client(settings.url, durability=settings.durability) as client:
            queues = Queues(client)
            operations = Operations(client, queues, settings.workers)
            listener = Listener(settings)
            clients = listener.clients
            clients.commands = Commands(settings, operations, Administration(queues), clients.counts)
            await listener.open()
            try:
                async with asyncio.TaskGroup() as group:
                    parts = [group.create_task(part) for part in (queues.run(), listener.look_after())]
                    self._announce(listener.address)
                    ready(listener.address)
                    notify("READY=1", f"STATUS=listening on {listener.address}")
                    await self._stopping.wait()
                    notify("STOPPING=1")
                    logger.info("stopping", extra={"clients": len(clients.connections)})
                    await listener.drain(settings.drain)
                    await operations.finish(settings.drain)
                    for part in parts:
                        part.cancel()
            finally:
                listener.abort()
                queues.close()
        logger.info("stopped")

    def _announce(self, address: Address) -> None:
        logger.info("listening", extra={"address": str(address), "tls": self._settings.tls is not None})
        if address.is_loopback:
            logger.info("only this machine can connect; --listen-addr :%d opens the server to others", address.port)
        elif self._settings.password is None:
            logger.warning("other machines can connect, and there is no password: set OKQ_PASSWORD")
