"""The okq server: everything together, from its start to its orderly end, and a question to one that runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from apressure.connection.addresses import is_loopback
from apressure.connection.client import Client
from apressure.events.server.connection import Clients, Connection
from apressure.events.server.operations import Operations
from apressure.events.server.queues import Queues
from apressure.events.server.settings import Address, ServerSettings, Tls
from apressure.events.server.wire import encode
from apressure.exceptions import AuthenticationError, ServerError, ServerUnavailableError

logger = logging.getLogger("apressure.events.server")

_BACKLOG: Final = 4096
PROBE: Final = b"apressure-health"
"""A queue that nobody uses: looking at it goes to Redis and back."""


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
            clients = Clients(settings, operations)
            listener = await _listen(settings, clients)
            try:
                async with asyncio.TaskGroup() as group:
                    parts = [group.create_task(part) for part in (queues.run(), clients.look_after())]
                    address = Address(settings.listen.host, listener.sockets[0].getsockname()[1])
                    self._announce(address)
                    ready(address)
                    notify("READY=1", f"STATUS=listening on {address}")
                    await self._stopping.wait()
                    notify("STOPPING=1")
                    logger.info("stopping", extra={"clients": len(clients.connections)})
                    listener.close()
                    await clients.drain(settings.drain)
                    await operations.finish(settings.drain)
                    for part in parts:
                        part.cancel()
            finally:
                listener.close()
                clients.abort()
                queues.close()
        logger.info("stopped")

    def _announce(self, address: Address) -> None:
        logger.info("listening", extra={"address": str(address), "tls": self._settings.tls is not None})
        if is_loopback(address.host):
            logger.info("only this machine can connect; --listen-addr :%d opens the server to others", address.port)
        elif self._settings.password is None:
            logger.warning("other machines can connect, and there is no password: set OKQ_PASSWORD")


async def _listen(settings: ServerSettings, clients: Clients) -> asyncio.Server:
    """Begin to listen.

    Raises:
        OSError: The address is in use, or not one of this machine.
        ValueError: The certificate or the key is not valid.
    """
    listen, context = settings.listen, context_of(settings.tls) if settings.tls else None
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(clients), listen.host or None, listen.port, ssl=context, backlog=_BACKLOG
        )
    except OSError as error:
        # The event loops put the address into strerror, in words of their own; a host's name has no errno above 0.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise OSError(f"cannot listen on {listen}: {reason}. Choose another --listen-addr") from error


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


def notify(*states: str) -> None:
    """Send states such as `READY=1` to systemd, or what speaks its protocol (`NOTIFY_SOCKET`). Errors are discarded."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place[:1] in ("/", "@"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.setblocking(False)
            one.sendto("\n".join(states).encode(), "\0" + place[1:] if place[0] == "@" else place)


async def check_health(address: Address, password: str | None, tls: ssl.SSLContext | None, timeout: float) -> float:
    """Ask a server, and return the seconds that it took to answer.

    Args:
        address: Where it listens. Without a host, this machine is asked.
        password: What it wants.
        tls: How to connect; None without TLS.
        timeout: Seconds in all.

    Raises:
        ServerUnavailableError: It cannot be reached, or does not answer.
        AuthenticationError: It wants a password, or another one.
        ServerError: It cannot reach its Redis.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    host, commands = address.host or "127.0.0.1", [[b"QRPEEK", PROBE]]
    if password is not None:
        commands.insert(0, [b"AUTH", password.encode("utf-8", "surrogateescape")])
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, address.port, ssl=tls)
            try:
                writer.write(b"".join(map(encode, commands)))
                replies = [await reader.readuntil(b"\r\n") for _ in commands]  # what else comes is not looked at
            finally:
                writer.close()
    except TimeoutError:
        late = f"the server at {host}:{address.port} did not answer in {timeout:g} seconds"
        raise ServerUnavailableError(late) from None
    except (OSError, asyncio.IncompleteReadError) as error:
        reason = str(error) or "it closed the connection"
        raise ServerUnavailableError(
            f"the server at {host}:{address.port} cannot be reached: {reason}. Is it running, and is the address right?"
        ) from None
    for reply in replies:
        if reply.startswith(b"-"):
            text = reply[1:].decode(errors="replace").strip()
            kind = AuthenticationError if text.startswith(("NOAUTH", "WRONGPASS")) else ServerError
            raise kind(f"the server answers with an error: {text}", code=text.partition(" ")[0])
    return loop.time() - began
