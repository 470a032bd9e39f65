"""Batches that Spark has taken from a queue and not committed, for the command line and for `LagListener`.

This needs no pyspark.

A batch never expires, because Spark may read it again at any time. Only a person can tell that its
query will not come back.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing

from apressure.connection.settings import Settings
from apressure.connection.wire.blocking import Blocking
from apressure.exceptions import PermissionDeniedError, QueueDoesNotExistError, ScriptingRefusedError
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import QueueSteps
from apressure.spark.options import check_group


@dataclasses.dataclass(frozen=True, slots=True)
class GroupBatches:
    """One group, and its batches that are not committed.

    Spark commits a batch when it asks for the next one, so an idle query keeps its last batch.

    Attributes:
        group: The group.
        batches: How many batches, an incomplete one included.
        messages: How many messages.
        seconds: Seconds since the oldest one was sealed; None if none is sealed.
        bytes: The size of the messages in bytes; None if clients of the queue do not count them.
        read: How many messages the group has ever taken in sealed batches.
        since: When the query that reads for the group began, in seconds since 1970; None if the server lost its state.
    """

    group: str
    batches: int
    messages: int
    seconds: float | None
    bytes: int | None
    read: int
    since: float | None


def uncommitted(settings: Settings, name: str) -> list[GroupBatches]:
    """Return what each group has in flight, sorted by group, without the groups that have nothing.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.
    """
    return [found for found in all_groups(settings, name) if found.batches]


def all_groups(settings: Settings, name: str) -> list[GroupBatches]:
    """Return all groups that have read a queue, sorted.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.
    """
    with closing(Blocking(settings)) as server:
        return groups(server, name)


def visible_groups(settings: Settings, name: str) -> list[GroupBatches]:
    """Return what `all_groups` returns; nothing where this user may not look.

    Raises:
        ServerError, ServerUnavailableError: The server refused something else, or cannot be reached.
    """
    try:
        return all_groups(settings, name)
    except (PermissionDeniedError, ScriptingRefusedError):
        return []


def groups(server: Blocking, name: str) -> list[GroupBatches]:
    """Return all groups that have read a queue, sorted, over an open connection.

    Raises:
        ServerError, ServerUnavailableError: The server refused, or cannot be reached.
    """
    return [_group(SourceSteps(server, name, group)) for group in QueueSteps(server, name).groups()]


def _group(steps: SourceSteps) -> GroupBatches:
    committed, last, age = steps.unfinished()
    lengths = steps.lengths(committed + 1, last)
    counted, read, epoch = steps.sizes(committed + 1, last)
    taken = [(length, size) for length, size in zip(lengths, counted, strict=True) if length]
    sizes = [size for _, size in taken if size is not None]
    return GroupBatches(
        steps.group,
        batches=len(taken),
        messages=sum(length for length, _ in taken),
        seconds=age / 1000 if age >= 0 else None,
        bytes=sum(sizes) if len(sizes) == len(taken) else None,
        read=read,
        since=epoch / 1000 if epoch else None,
    )


def give_back(settings: Settings, name: str, group: str) -> int:
    """Return what a group has in flight to the queue, first in line. An interrupted call may be repeated.

    The group's query, if it runs, ends with an error, and its checkpoint cannot be used any more: others may read its
    messages again.

    Returns:
        How many messages were given back.

    Raises:
        QueueDoesNotExistError: The queue was deleted: create it first. The group's query goes on.
        GroupTakenError: The query was started again in the meantime.
        ValueError: The name of the group is invalid.
    """
    check_group(group)
    with closing(Blocking(settings)) as server:
        steps = SourceSteps(server, name, group)
        committed, last, _ = steps.unfinished()
        if not any(steps.lengths(committed + 1, last)):
            return 0
        if not steps.exists():  # before its query is refused: it can go on with what it has
            raise QueueDoesNotExistError(
                f"the queue {name!r} does not exist: create it, then its batches can be given back", name=name
            )
        epoch, _, sealed = steps.begin_epoch()
        committed, last, _ = steps.unfinished()  # its query may have committed more until now
        # The latest batch goes first, so that the oldest message is first in line in the end.
        return sum(steps.give_back(epoch, number, max(last, sealed)) for number in range(last, committed, -1))
