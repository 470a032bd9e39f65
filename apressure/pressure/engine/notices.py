"""Logs that an operation waits for a role, which client holds it, and until when."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

from apressure.core.waiting import ROLE_OF, Wait
from apressure.exceptions import Role

logger = logging.getLogger("apressure")

PATIENCE = 1.0
"""Seconds of waiting before the first log message: roles usually change hands quickly."""

_LONGEST = 10**11
"""Milliseconds: the longest lease that is logged. A date cannot be further away than the year 9999."""


class Notice:
    """Logs waits for a role: once for each holder, however many operations wait and try again.

    Args:
        name: The queue's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._since: float | None = None
        self._told: tuple[Role, str | None] | None = None

    def waits(self, wait: Wait, parked: asyncio.Future[None]) -> None:
        """Log soon that an operation waits, if it is for a role, unless its future completes before."""
        if (role := ROLE_OF.get(wait.reason)) is None:
            self.ended()
            return
        loop, holder, lease = asyncio.get_running_loop(), wait.holder, wait.lease
        if self._since is None:
            self._since = loop.time()
        if self._told == (role, holder):
            return
        expires = None if lease is None else datetime.now(UTC) + timedelta(milliseconds=min(lease, _LONGEST))
        patience = max(0.0, self._since + PATIENCE - loop.time())
        timer = loop.call_later(patience, self._tell, role, holder, expires)
        parked.add_done_callback(lambda _: timer.cancel())

    def ended(self) -> None:
        """Note that no operation waits for a role any more."""
        self._since = self._told = None

    def _tell(self, role: Role, holder: str | None, expires: datetime | None) -> None:
        if self._told == (role, holder):
            return
        self._told = (role, holder)
        if expires is None:
            until = " without a lease; if that client has died, `apressure doctor` frees the role"
        else:
            seconds = max(0.0, (expires - datetime.now(UTC)).total_seconds())
            until = f" until {expires.astimezone():%H:%M:%S} ({seconds:.0f} s), and longer if it renews its lease"
        tell(self._name, role, holder, expires, until)


def tell(name: str, role: Role, holder: str | None, expires: datetime | None = None, until: str = "") -> None:
    """Log at INFO that an operation waits for a role, which client holds it, and `until` when, if that is known."""
    logger.info(
        "waiting for the %s role of the queue %r: %s holds it%s",
        role, name, "another client" if holder is None else repr(holder), until,
        extra={"event": "role_awaited", "queue": name, "role": role, "holder": holder, "expires": expires},
    )  # fmt: skip
