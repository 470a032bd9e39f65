"""What Spark has taken from a queue and not done with, for `apressure doctor`. No pyspark is needed here.

A batch never expires, since Spark may ask for it again at any time: only a human knows that its query will not come
back.
"""

from __future__ import annotations

import dataclasses

from apressure.connection.blocking import Blocking
from apressure.connection.settings import Settings
from apressure.exceptions import QueueDoesNotExistError
from apressure.spark.keys import check_group
from apressure.spark.steps import Steps


@dataclasses.dataclass(frozen=True, slots=True)
class Flight:
    """What a group has taken.

    Attributes:
        group: The group.
        batches: How many batches, a half-filled one included.
        messages: How many messages.
        seconds: How long ago the oldest of them was sealed; None where none is.
    """

    group: str
    batches: int
    messages: int
    seconds: float | None


def look(settings: Settings, name: str) -> list[Flight]:
    """Return what groups have in flight, sorted; groups that have nothing are left out.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.
    """
    server = Blocking(settings)
    try:
        steps = Steps(server, settings.prefix, name)
        found = []
        for group, (committed, last, age) in steps.flights().items():
            lengths = [length for length in steps.lengths(group, committed + 1, last) if length]
            if lengths:
                found.append(Flight(group, len(lengths), sum(lengths), age / 1000 if age >= 0 else None))
        return found
    finally:
        server.close()


def give_back(settings: Settings, name: str, group: str) -> int:
    """Give what a group has in flight back to the queue, first in line, and return how many messages that were.

    The group's query, if it runs, ends with an error, and so does every other with its checkpoint: what it has
    read may be read again by others. Interrupted, it may be repeated.

    Raises:
        QueueDoesNotExistError: The queue is gone: create it first. Its query goes on.
        GroupTakenError: The query was started again in between.
        ValueError: That is no name of a group.
    """
    check_group(group)
    server = Blocking(settings)
    try:
        steps = Steps(server, settings.prefix, name)
        committed, last, _ = steps.flights().get(group, (0, 0, -1))
        if not any(steps.lengths(group, committed + 1, last)):
            return 0
        if not steps.exists():  # before its query is refused, which could go on with what it has
            raise QueueDoesNotExistError(
                f"the queue {name!r} does not exist: create it, and then what was taken from it can go back", name=name
            )
        epoch, _, sealed = steps.adopt(group)
        committed, last, _ = steps.flights()[group]  # its query may have gone on until now
        # What comes last is at the left end: it goes first, so that the oldest is the first in line in the end.
        return sum(steps.give_back(group, epoch, number, max(last, sealed)) for number in range(last, committed, -1))
    finally:
        server.close()
