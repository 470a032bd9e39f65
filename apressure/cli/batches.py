"""What the doctor says of batches that Spark has taken from a queue, and how it gives them back."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex

from apressure import recovery
from apressure.connection.settings import Settings
from apressure.spark import flights


async def added(result: recovery.Repair, settings: Settings, give_back: str | None) -> recovery.Repair:
    """Return a look, or a repair, with what Spark has in flight, after giving a group's batches back.

    Raises:
        QueueDoesNotExistError: There is no queue that they could be given back to.
        ValueError: That is no name of a group.
    """
    done = result.done
    if give_back is not None:
        moved = await asyncio.to_thread(flights.give_back, settings, result.name, give_back)
        text = f"put {moved} messages back, first in line, that the group {give_back!r} had taken for Spark"
        done = (*done, recovery.Action("spark_batches", text))
    found = await asyncio.to_thread(flights.look, settings, result.name)
    report = dataclasses.replace(
        result.report, findings=(*result.report.findings, *(_finding(result.name, flight) for flight in found))
    )
    return recovery.Repair(result.name, done, report)


def _finding(name: str, flight: flights.Flight) -> recovery.Finding:
    age = "" if flight.seconds is None else f"; the oldest was taken {flight.seconds:.0f} s ago"
    command = f"apressure doctor {shlex.quote(name)} --give-back {shlex.quote(flight.group)}"
    return recovery.Finding(
        "spark_batches",
        False,
        "by hand",
        f"{flight.messages} messages are in flight in {flight.batches} batch{'es' * (flight.batches != 1)} of the "
        f"Spark query of the group {flight.group!r}{age}. They wait for it as long as it takes.",
        f"If that query will not come back: {command} puts them back, first in line. Its checkpoint is of no use then.",
    )
