"""What a request asks for: its query, read without trust, and the queue that it names."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from apressure import queue_addresses
from apressure.monitor.monitor import Monitor, Seen
from apressure.web.bodies import Bodies
from apressure.web.live import Live


class NoSuchPageError(Exception):
    """There is nothing at this URL; the text is for people."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request for a view.

    Attributes:
        request: The request.
        monitor: Watches the queues.
        live: Has the list of them.
        bodies: What of messages is shown.
    """

    request: Request
    monitor: Monitor
    live: Live
    bodies: Bodies

    @cached_property
    def query(self) -> dict[str, str]:
        """The query. Bytes that are no UTF-8 are kept, since names of queues may have them."""
        raw = self.request.scope.get("query_string", b"").decode("latin-1")
        return dict(parse_qsl(raw, errors="surrogateescape", keep_blank_values=True))

    def text(self, name: str) -> str:
        """Return a value of the query; "" if there is none."""
        return self.query.get(name, "")

    def number(self, name: str, default: int, *, least: int = 1, most: int) -> int:
        """Return a number of the query, between two others; the default if it is none."""
        text = self.text(name)
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
        return max(least, min(most, number))

    def seen(self) -> Seen:
        """Return the queue that the query names.

        Raises:
            NoSuchPageError: It is not watched, or was not found yet.
        """
        at = self.text("at")
        try:
            address = queue_addresses.read(at)
            found = self.monitor.find(address, self.text("server")) if address.url is None else None
        except (TypeError, ValueError):
            found = None
        if found is None:
            raise NoSuchPageError(
                "This queue is not watched: it does not exist, was not found yet, or the page watches others."
            )
        return found

    def server_in_links(self, seen: Seen) -> str:
        """Return what names the server in links to a queue: nothing, if there is one server."""
        return seen.server if self.monitor.many_servers else ""

    def options(self) -> dict[str, Any]:
        """Return the arguments of operations that ask a server: no page waits for ever."""
        return {"deadline": self.monitor.reader.timeout}
