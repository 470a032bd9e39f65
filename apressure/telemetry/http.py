"""Serves `/metrics`, `/healthz` and `/scale/ADDRESS` over HTTP, in threads, with Python's WSGI server.

So a scrape works while the event loop is blocked, and `/healthz` can say so.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from apressure import validation

if TYPE_CHECKING:
    from apressure.telemetry.metrics import Metrics

logger = logging.getLogger("apressure")

_PATIENCE: Final = 10.0
"""Seconds within which each part of a request has to come, and each part of an answer to be taken."""

_AT_A_TIME: Final = 16
"""So many requests are answered side by side; further connections are closed."""

_SCALE: Final = "/scale/"
_TEXT: Final = "text/plain; charset=utf-8"
_LONGEST: Final = 1000
"""Characters of a name, or of all names, that an error repeats."""


class MetricsServer:
    """The HTTP server of a `Metrics`. Requests are limited as in Python's `http.server`: 64 KiB a line, 100 headers.

    Args:
        metrics: The metrics.
        host: The address to listen at.
        port: The port; 0 for a free one.

    Attributes:
        port: The port; where 0 was given, the one that was chosen by `start`.

    Raises:
        TypeError, ValueError: An argument is invalid.
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self.port = self._port = validation.whole(port, "port", 0, 65535)
        self._host = validation.text(host, "host")
        if not host:
            raise ValueError("host must not be empty: '0.0.0.0' listens at all addresses of this machine")
        self._metrics = metrics
        collector = metrics.collector()

        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry()
        registry.register(collector)
        self._show: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen, and answer in a thread.

        Raises:
            OSError: The address or the port cannot be used.
        """
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._server = _Server(found[0][0], (self._host, self._port), self._answer)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot serve metrics at {self._host} port {self._port}: {error.strerror or error}. Choose another "
                "port, or 0 for a free one",
            ) from None
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="apressure-metrics", daemon=True).start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        logger.info("metrics are at http://%s:%d/metrics", host, self.port)

    def stop(self) -> None:
        """Listen no more. Waits for up to half a second; requests under way are answered."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request; this is a WSGI application."""
        path = str(environ.get("PATH_INFO"))
        if path == "/metrics":
            return self._show(environ, start_response)
        kind = _TEXT
        scales = self._metrics.scaling is not None
        if scales and path.startswith(_SCALE):
            status, text, kind = self._scale(path.removeprefix(_SCALE).encode("latin-1").decode(errors="replace"))
        elif path != "/healthz":
            there = b"/metrics, /healthz and /scale/ADDRESS" if scales else b"/metrics and /healthz"
            status, text = "404 Not Found", b"There are only %s.\n" % there
        elif seconds := self._metrics.stalled:
            status, text = "503 Service Unavailable", b"the event loop has not run for %.1f s\n" % seconds
        else:
            status, text = "200 OK", b"ok\n"
        start_response(status, [("Content-Type", kind)])
        return [text]

    def _scale(self, address: str) -> tuple[str, bytes, str]:
        """Return how many workers a queue needs: status, body and the body's type."""
        needs = self._metrics.needs()
        for labels, need in needs.items():
            if address not in _addresses(labels):
                continue
            if need is None:
                text = f"The latest look at {address} failed or is out of date: see apressure_up, and the log.\n"
                return "503 Service Unavailable", text.encode(), _TEXT
            found = {"queue": labels[0], "kind": labels[1], **dataclasses.asdict(need)}
            return "200 OK", json.dumps(found).encode() + b"\n", "application/json"
        known = ", ".join(each for labels in needs for each in _addresses(labels)[:1]) or "none"
        text = f"No queue {address[:_LONGEST]} is looked at. There are: {known[:_LONGEST]}.\n"
        return "404 Not Found", text.encode(errors="replace"), _TEXT


def _addresses(labels: tuple[str, str]) -> tuple[str, ...]:
    """Return the addresses of a queue, without its server: an `AsyncQueue` needs no kind. A pattern has none."""
    name, kind = labels
    if kind == "AsyncQueue":
        return name, f"queue:{name}"
    return (f"{kind.removesuffix('Queue').lower()}s:{name}",) if kind.endswith("Queue") else ()


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, and a limited number of them."""

    daemon_threads = True

    def __init__(self, family: int, address: tuple[str, int], application: Callable[..., Any]) -> None:
        self.address_family = family
        self._room = threading.BoundedSemaphore(_AT_A_TIME)
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        # As in HTTPServer, but without asking DNS for a name of this host, which may take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        logger.debug("a request for metrics from %s failed: %r", client_address[0], sys.exception())


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.debug("metrics: %s", format % arguments)
