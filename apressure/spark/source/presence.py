"""A query that reads registers at its queues, as services do: at its triggers, since Spark calls nothing in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from apressure.connection.sender import script
from apressure.connection.wire.blocking import Blocking
from apressure.core.registration import Doing, record_of, worker_id
from apressure.core.workers import Letter
from apressure.exceptions import PermissionDeniedError, PressureError, ScriptingRefusedError

BEAT: Final = 15.0
"""Seconds from one registration to the next, at a trigger: a query may read hundreds of queues."""
LASTS: Final = 60.0
"""Seconds for which a registration counts: a batch may take long."""

_ROOM: Final = "apressure.connection.workers"


class Presence:
    """The registrations of one query.

    Args:
        group: The group of the query, which is shown as its handler.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._name = b""
        self._began = time.monotonic()
        self._next = 0.0
        self._in_hand: dict[tuple[str, int], int] = {}  # the rows of batches, by their queue and number
        self._handled: dict[str, int] = {}

    def reads(self, batches: Iterable[tuple[str, int, int]]) -> None:
        """Spark reads batches: the name of each one's queue, its number, and how many rows it has."""
        self._in_hand.update({(name, number): rows for name, number, rows in batches})

    def committed(self, positions: Mapping[str, int]) -> None:
        """Spark has processed the batches up to these."""
        for name, number in [key for key in self._in_hand if key[1] <= positions.get(key[0], 0)]:
            self._handled[name] = self._handled.get(name, 0) + self._in_hand.pop((name, number))

    def tell(self, server: Blocking, workers: Mapping[str, bytes]) -> None:
        """Tell what the query does, if it is time. An error is ignored: the next trigger tries again.

        Args:
            server: The connection.
            workers: The key of the workers of each queue, by its name.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + BEAT
        self._name = self._name or f"{worker_id()}/{os.urandom(4).hex()}".encode()
        self._send(server, "beat", {key: self._arguments(name, now) for name, key in workers.items()})

    def leave(self, server: Blocking, workers: Mapping[str, bytes]) -> None:
        """The query has ended."""
        if self._name:
            self._send(server, "leave", {key: [self._name] for key in workers.values()})

    def _arguments(self, name: str, now: float) -> list[Any]:
        in_hand = sum(rows for (queue, _), rows in self._in_hand.items() if queue == name)
        record = record_of("spark", self._group, now - self._began, Doing(0, in_hand, self._handled.get(name, 0)))
        return [self._name, Letter.CANNOT, record, int(LASTS * 1000)]

    def _send(self, server: Blocking, step: str, arguments: Mapping[bytes, list[Any]]) -> None:
        try:
            server.run_all([(script(_ROOM, step).on((key,)), given) for key, given in arguments.items()])
        except (PermissionDeniedError, ScriptingRefusedError):
            self._next = float("inf")
        except PressureError:
            pass
