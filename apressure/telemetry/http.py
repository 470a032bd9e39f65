"""Serves `/metrics` and `/healthz` over HTTP, in threads: prometheus_client's application in Python's WSGI server.

So a scrape works while the event loop is blocked, and `/healthz` can say so.
"""

from __future__ import annotations

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
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            return self._show(environ, start_response)
        if path != "/healthz":
            status, text = "404 Not Found", b"There are only /metrics and /healthz.\n"
        elif seconds := self._metrics.stalled:
            status, text = "503 Service Unavailable", b"the event loop has not run for %.1f s\n" % seconds
        else:
            status, text = "200 OK", b"ok\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text]


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
