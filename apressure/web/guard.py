"""What every request meets first, and every answer gets: limits, the check of the host, and security headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine, under which only this machine reaches itself."""

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

_LONGEST_PATH: Final = 1024
_LONGEST_QUERY: Final = 16384
"""Bytes: a name of a queue may have 1 kB, each byte as `%FF`, and there is more in a query than that."""
_MOST_HEADERS: Final = 32768
_LONGEST_COOKIE: Final = 8192
LONGEST_BODY: Final = 1 << 20
"""Bytes: an item that is put by hand is the largest thing that a form sends."""


class Guard:
    """Refuses what is too large or asks for another host, and adds the security headers.

    Args:
        app: The application.
        hosts: The names under which it may be asked for; `*` for any. Without that, a page of another site could have
            its own name lead to this machine (DNS rebinding), and read what the page shows.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        if (refused := self._refusal(scope)) is not None:
            await refused(scope, receive, secured)
        else:
            await self._app(scope, _Limited(receive).receive, secured)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if len(scope.get("raw_path") or scope["path"]) > _LONGEST_PATH or len(scope["query_string"]) > _LONGEST_QUERY:
            return PlainTextResponse("The URL is too long.\n", 414)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MOST_HEADERS:
            return PlainTextResponse("The headers are too large.\n", 431)
        if sum(map(len, headers.getlist("cookie"))) > _LONGEST_COOKIE:
            return PlainTextResponse("The cookies are too large. Delete those of this host.\n", 431)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:20]) > LONGEST_BODY:
            return PlainTextResponse("The form is too large.\n", 413)
        if not self._is_allowed(headers.get("host", "")) and not scope["path"].endswith("/healthz"):
            return PlainTextResponse(
                "This page may not be asked for under this name of its host. Give the name with --allow-host, or "
                "hosts=(…) of apressure.web.app.\n", 421,
            )  # fmt: skip
        return None

    def _is_allowed(self, host: str) -> bool:
        name, colon, port = host.lower().rpartition(":")
        if not colon or not port.isdigit():
            name = host.lower()
        return "*" in self._hosts or name in self._hosts


class _Limited:
    """Reads the body of a request up to the limit: what is longer ends as if the client had left."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > LONGEST_BODY:
                return {"type": "http.disconnect"}
        return message
