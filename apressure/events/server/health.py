"""Asks a running server whether it, and the Redis behind it, answer."""

from __future__ import annotations

import asyncio
import ssl

from apressure.events.server.settings import Address
from apressure.exceptions import AuthenticationError, ServerError, ServerUnavailableError

PROBE = "apressure-health"
"""A queue that nobody uses: looking at it goes to Redis and back."""


async def check(address: Address, password: str | None, tls: ssl.SSLContext | None, timeout: float) -> float:
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
    host = address.host or "127.0.0.1"
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, address.port, ssl=tls)
            try:
                if password is not None:
                    await _ask(reader, writer, b"AUTH", password.encode("utf-8", "surrogateescape"))
                await _ask(reader, writer, b"PING")
                await _ask(reader, writer, b"QRPEEK", PROBE.encode())
            finally:
                writer.close()
    except TimeoutError:
        raise ServerUnavailableError(
            f"the server at {host}:{address.port} did not answer in {timeout:g} seconds"
        ) from None
    except (OSError, asyncio.IncompleteReadError) as error:
        reason = str(error) or "it closed the connection"
        raise ServerUnavailableError(
            f"the server at {host}:{address.port} cannot be reached: {reason}. Is it running, and is the address right?"
        ) from None
    return loop.time() - began


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *words: bytes) -> None:
    """Send a command. An error reply is raised; what else comes is not looked at."""
    writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
    line = await reader.readuntil(b"\r\n")
    if line.startswith(b"-"):
        text = line[1:].decode(errors="replace").strip()
        kind = AuthenticationError if text.startswith(("NOAUTH", "WRONGPASS")) else ServerError
        raise kind(f"the server answers with an error: {text}", code=text.partition(" ")[0])
