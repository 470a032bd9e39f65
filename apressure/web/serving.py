"""Serves the page over HTTP, with uvicorn, until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

from starlette.applications import Starlette

from apressure.concurrency import background
from apressure.web import missing

try:
    import uvicorn
except ImportError as error:
    raise missing(error) from error

_CONNECTIONS: Final = 400
"""Connections at a time: those of open pages, whose number `live` limits, and room for others."""

_LONGEST_HEAD: Final = 65536
"""Bytes of a request's first line and headers; `guard` refuses less than that with a text."""


class _Server(uvicorn.Server):
    """One that leaves signals to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(page: Starlette, host: str, port: int, root: str, started: Callable[[str], object]) -> None:
    """Serve the page.

    Args:
        page: The page.
        host: The address to listen at.
        port: The port; 0 for a free one.
        root: The path under which a proxy has it; "" for none.
        started: Called with the page's URL when it can be asked for.

    Raises:
        OSError: The address or the port cannot be used.

    Cancelled, it closes its connections first; that takes a second at most.
    """
    listening = _listen(host, port)
    config = uvicorn.Config(
        page, http="h11", ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False,
        server_header=False, root_path=root, limit_concurrency=_CONNECTIONS, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_LONGEST_HEAD,
    )  # fmt: skip
    server = _Server(config)
    with listening:
        shown = f"[{host}]" if ":" in host else host
        async with page.router.lifespan_context(page):
            running = background.start(server.serve(sockets=[listening]), "serving the page")
            try:
                started(f"http://{shown}:{listening.getsockname()[1]}{root}/")
                await asyncio.shield(running)
            finally:
                server.should_exit = True
                await asyncio.wait((running,))


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4][:2], family=found[0][0])
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot serve the page at {host} port {port}: {error.strerror or error}. Choose another port, or 0 for a "
            "free one",
        ) from None
