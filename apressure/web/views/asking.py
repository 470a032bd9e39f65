"""What a request asks for: its query, read without trust, and the queue that it names."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request

from apressure import queue_addresses
from apressure.core.searching import DeadLetterSearch
from apressure.monitor.monitor import Monitor, Seen
from apressure.web.bodies import Bodies
from apressure.web.jobs import Jobs
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
        jobs: What operators have begun.
    """

    request: Request
    monitor: Monitor
    live: Live
    bodies: Bodies
    jobs: Jobs

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
        """Return the queue that the query names: as `at`, or as `quoted`, since fields of forms cannot have any bytes.

        Raises:
            NoSuchPageError: It is not watched, or was not found yet.
        """
        at = self.text("at") or unquote(self.text("quoted"), errors="surrogateescape")
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

    @property
    def searched(self) -> dict[str, str]:
        """What the query looks for, as it stands there."""
        return {name: self.text(name) for name in ("id", "error", "text", "since", "until") if self.text(name)}

    @property
    def place(self) -> dict[str, str]:
        """The place in the queue that the query names, as it stands there."""
        return {name: self.text(name) for name in ("place", "newest", "cursor") if self.text(name)}

    def search(self) -> DeadLetterSearch:
        """Return which dead letters the query looks for.

        Raises:
            NoSuchPageError: It cannot be searched for that.
        """
        if self.text("text") and not self.bodies.whole:
            raise NoSuchPageError("Messages are hidden, so they cannot be searched for a text.")
        ids = [self.text("id")] if self.text("id") else None
        return DeadLetterSearch(
            ids=ids, error=self.text("error"), text=self.text("text"), since=self._time("since"),
            until=self._time("until"),
        )  # fmt: skip

    def _time(self, name: str) -> datetime | None:
        """Return a time of the query, in UTC unless it names a zone."""
        try:
            found = datetime.fromisoformat(self.text(name)) if self.text(name) else None
        except ValueError:
            raise NoSuchPageError(f"{self.text(name)[:40]!r} is not a time: write 2030-01-31T18:00.") from None
        return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)

    def server_in_links(self, seen: Seen) -> str:
        """Return what names the server in links to a queue: nothing, if there is one server."""
        return seen.server if self.monitor.many_servers else ""

    def options(self) -> dict[str, Any]:
        """Return the arguments of operations that ask a server: no page waits for ever."""
        return {"deadline": self.monitor.reader.timeout}
