"""What the demo proves about the flights, and what it counts. Pure."""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

LATE: Final = 15
"""A flight is late if it arrives more than so many minutes after its schedule."""

_MISSING: Final = ("", "NA")


def numbered(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each row behind its sequence number, from 0: these are the messages."""
    for number, row in enumerate(rows):
        yield b"%d,%b" % (number, row)


class StreamProof:
    """What both sides know about the stream and compare at the end.

    Attributes:
        rows: How many messages there were.
        out_of_order: How many of them did not carry the number that was due.
        first_error: What was wrong with the first of them, or None.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.out_of_order = 0
        self.first_error: str | None = None
        self._hash = hashlib.sha256()

    def add(self, message: bytes) -> bytes:
        """Count a message and return its row, without the sequence number."""
        number, _, row = message.partition(b",")
        if number != b"%d" % self.rows:
            self.out_of_order += 1
            if self.first_error is None:
                self.first_error = f"row {number.decode(errors='replace')} came where row {self.rows} was due"
        self.rows += 1
        self._hash.update(message)
        self._hash.update(b"\n")
        return row

    @property
    def sha256(self) -> str:
        """The SHA-256 of all messages, each followed by a newline."""
        return self._hash.hexdigest()


class Delays:
    """Delays by carrier.

    Args:
        columns: The names of the columns of the rows.
    """

    def __init__(self, columns: list[str]) -> None:
        self._carrier = columns.index("carrier")
        self._departed = columns.index("dep_time")
        self._departure = columns.index("dep_delay")
        self._arrival = columns.index("arr_delay")
        self._carriers: dict[str, _Carrier] = {}

    def add(self, row: bytes) -> None:
        """Count one flight."""
        fields = next(csv.reader((row.decode(),)))
        code = fields[self._carrier]
        carrier = self._carriers.get(code)
        if carrier is None:
            carrier = self._carriers[code] = _Carrier()
        carrier.flights += 1
        if fields[self._departed] in _MISSING:
            carrier.cancelled += 1
        # How often each delay occurred says all that is asked for, in a few hundred numbers.
        if (delay := fields[self._departure]) not in _MISSING:
            carrier.departures[int(delay)] += 1
        if (delay := fields[self._arrival]) not in _MISSING:
            carrier.arrivals[int(delay)] += 1

    def table(self, names: dict[str, str]) -> list[dict[str, Any]]:
        """Return one row a carrier, those that arrive latest on average first."""
        rows = [
            {
                "carrier": code,
                "name": names.get(code, code),
                "flights": carrier.flights,
                "cancelled": carrier.cancelled,
                "departure_delay_mean": _mean(carrier.departures),
                "departure_delay_median": _median(carrier.departures),
                "arrival_delay_mean": _mean(carrier.arrivals),
                "arrival_delay_median": _median(carrier.arrivals),
                "late_percent": _late(carrier.arrivals),
            }
            for code, carrier in self._carriers.items()
        ]
        return sorted(rows, key=lambda row: (-(row["arrival_delay_mean"] or 0.0), row["carrier"]))


class _Carrier:
    def __init__(self) -> None:
        self.flights = 0
        self.cancelled = 0
        self.departures: Counter[int] = Counter()
        self.arrivals: Counter[int] = Counter()


def _mean(delays: Counter[int]) -> float | None:
    count = delays.total()
    return round(sum(delay * times for delay, times in delays.items()) / count, 2) if count else None


def _median(delays: Counter[int]) -> float | None:
    return float(statistics.median(delays.elements())) if delays else None


def _late(delays: Counter[int]) -> float | None:
    count = delays.total()
    return round(100 * sum(n for delay, n in delays.items() if delay > LATE) / count, 2) if count else None
