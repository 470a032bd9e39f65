"""Listens for clients, counts them, looks after them, and ends in an orderly way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from typing import Final

from apressure.events.server.connection import READ_AHEAD, Clients, Connection
from apressure.events.server.settings import Address, ServerSettings, Tls

logger = logging.getLogger("apressure.events.server")

LOOK: Final = 1.0
"""Seconds between two looks at the clients: who is idle, who does not read."""
_BACKLOG: Final = 4096


class Listener:
    """Where clients connect.

    Args:
        settings: What the server was told.

    Attributes:
        clients: Those that have connected.
        address: Where it listens; the port is the real one.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.clients = Clients(settings)
        self.address = settings.listen
        self._tls = settings.tls
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to listen.

        Raises:
            OSError: The address is in use, or not one of this machine.
            ValueError: The certificate or the key is not valid.
        """
        listen, context = self.address, context_of(self._tls) if self._tls else None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Connection(self.clients), listen.host or None, listen.port, ssl=context, backlog=_BACKLOG
            )
        except OSError as error:
            # The event loops put the address into strerror, in words of their own; a host's name has no errno above 0.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            raise OSError(f"cannot listen on {listen}: {reason}. Choose another --listen-addr") from error
        self.address = Address(listen.host, self._server.sockets[0].getsockname()[1])

    async def look_after(self) -> None:
        """Disconnect clients that are idle, do not read, or send on while they wait. It ends when it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK)
            now = loop.time()
            for connection in list(self.clients.connections):
                self._look_at(connection, now)

    async def drain(self, timeout: float) -> None:
        """Accept no further clients, let commands under way end, and disconnect everybody.

        Commands that wait for events get nil; pushes that wait for room get an error, and have pushed nothing.

        Args:
            timeout: Seconds after which clients whose commands still run are disconnected.
        """
        self._stop_listening()
        running = {ended: one for one in list(self.clients.connections) if (ended := one.stop()) is not None}
        if running:
            _, late = await asyncio.wait(running, timeout=timeout)
            for ended in late:
                running[ended].cancel()
            if late:
                logger.warning("commands were still running when the server stopped", extra={"commands": len(late)})
                await asyncio.wait(late)
        self.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await self.clients.gone.wait()  # each end deregisters a consumer

    def abort(self) -> None:
        """Stop listening, and disconnect everybody at once."""
        self._stop_listening()
        for connection in list(self.clients.connections):
            connection.transport.abort()

    def _look_at(self, connection: Connection, now: float) -> None:
        limits, stalled = self.clients.limits, connection.stalled_since
        if limits.stalled and stalled and now - stalled > limits.stalled:
            connection.drop(f"the client has read nothing for {limits.stalled:g} seconds (--stalled-timeout)")
        elif connection.is_blocked:
            connection.refuse(
                f"ERR more than {limits.pipeline} commands, or {READ_AHEAD} bytes, came while a command waits: "
                "read its reply first (--max-pipeline)"
            )
        elif limits.idle and not connection.is_busy and now - connection.last_seen > limits.idle:
            connection.refuse(f"ERR idle for {limits.idle:g} seconds: connection closed (--idle-timeout)")

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return the TLS settings of the listener.

    Raises:
        ValueError: A file cannot be read, or is not what it should be.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the certificate, key or client CA cannot be used: {error}") from None
    return context
