"""Logs connections: one line when a server is reached, one when it is lost, and one when it is reached again.

These stay as few, however many connections a client had and however often it tries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

from apressure.connection.addresses import Address

logger = logging.getLogger("apressure")


class Outages:
    """The servers that one client has lost and not reached since.

    Args:
        level: The level of the log lines.
    """

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self._reached: set[str] = set()
        self._since: dict[str, float] = {}
        self._lost_by: dict[Hashable, str] = {}

    def lost(self, node: Hashable, address: Address, reason: str) -> None:
        """A connection was lost: this client did not end it.

        Args:
            node: The node that it was for. A failover may lead the next one to another address.
            address: Where the server was.
            reason: How the connection ended.
        """
        self._lost_by[node] = address.text
        if address.text not in self._since:
            self._since[address.text] = time.monotonic()
            logger.log(
                self._level, "lost the connection to the server at %s: %s", address.text, reason,
                extra={"event": "connection_lost", "address": address.text, "error": reason},
            )  # fmt: skip

    def connected(self, node: Hashable, address: Address) -> None:
        """A connection for a node was opened, the first one or one more."""
        if address.text not in self._reached:
            self._reached.add(address.text)
            logger.log(
                self._level, "connected to the server at %s", address.text,
                extra={"event": "connected", "address": address.text},
            )  # fmt: skip
        if not self._since:
            return
        lost = {address.text, self._lost_by.pop(node, address.text)}
        found = [self._since.pop(text) for text in lost if text in self._since]
        if found:
            seconds = time.monotonic() - min(found)
            text = "connected to the server at %s again, %.1f seconds after the loss"
            extra = {"event": "reconnected", "address": address.text, "seconds": seconds}
            logger.log(self._level, text, address.text, seconds, extra=extra)
