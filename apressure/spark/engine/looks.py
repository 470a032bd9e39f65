"""Looks at many queues with few commands: one for the queues of a slot, where the server has such a command."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from apressure.connection.wire.blocking import Blocking
from apressure.spark.engine.steps import QueueSteps

MOST_QUEUES: Final = 200
"""The most queues that one command looks at, so that it never blocks the server for long."""


class Look(NamedTuple):
    """Queues at one moment."""

    messages: int
    """How many messages wait in all of them."""
    final: bool
    """Not to wait for more: all are closed, or one is full, so that its producers wait, or one does not exist."""


def groups_of(queues: Sequence[QueueSteps]) -> list[list[QueueSteps]]:
    """Divide queues into groups that one command can look at."""
    by_slot: dict[int | None, list[QueueSteps]] = {}
    for queue in queues:
        by_slot.setdefault(queue.slot, []).append(queue)
    return [some[at : at + MOST_QUEUES] for some in by_slot.values() for at in range(0, len(some), MOST_QUEUES)]


def count(server: Blocking, groups: Sequence[Sequence[QueueSteps]], key: Callable[[QueueSteps], bytes]) -> int:
    """Return how many of the queues have this key. An empty list does not exist."""
    return sum(map(int, server.ask_all([(b"EXISTS", *map(key, group)) for group in groups])))


def lengths(server: Blocking, groups: Sequence[Sequence[QueueSteps]]) -> dict[str, int]:
    """Return how many messages wait in each queue. If all are empty, this takes one command a group."""
    queues = list(itertools.chain(*groups))
    if len(groups) < len(queues) and not count(server, groups, messages_of):
        return {queue.name: 0 for queue in queues}
    replies = server.ask_all([(b"LLEN", messages_of(queue)) for queue in queues])
    return {queue.name: int(reply) for queue, reply in zip(queues, replies, strict=True)}


def look(server: Blocking, groups: Sequence[Sequence[QueueSteps]]) -> Look:
    """Look at queues whose messages a query collects."""
    queues, waiting = list(itertools.chain(*groups)), lengths(server, groups)
    replies = server.ask_all([(b"MGET", *(one.keys.queue.bound for one in group)) for group in groups])
    bounds = zip(queues, itertools.chain(*replies), strict=True)
    blocked = any(bound is None or 0 < _whole(bound) <= waiting[queue.name] for queue, bound in bounds)
    return Look(sum(waiting.values()), blocked or count(server, groups, closed_of) == len(queues))


def backlogs(server: Blocking, groups: Sequence[Sequence[QueueSteps]]) -> dict[str, dict[str, int]]:
    """Return the `messages` that wait in each queue, and their `bytes`, unless its clients do not count them."""
    waiting = lengths(server, groups)
    replies = server.ask_all(
        [(b"MGET", *(key for one in group for key in one.keys.queue.statistics)) for group in groups]
    )
    found = {}
    for group, counts in zip(groups, replies, strict=True):
        for queue, counted in zip(group, _fours(counts), strict=True):
            length = waiting[queue.name]
            size = _bytes_of(length, counted)
            found[queue.name] = {"messages": length} | ({} if size is None else {"bytes": size})
    return found


def messages_of(queue: QueueSteps) -> bytes:
    """The list of a queue's messages."""
    return queue.keys.queue.messages


def closed_of(queue: QueueSteps) -> bytes:
    """The list that exists if a queue is closed."""
    return queue.keys.queue.closed


def _whole(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 19 else 0  # others may have written more digits than int() takes


def _fours(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[at : at + 4] for at in range(0, len(values), 4))


def _bytes_of(length: int, counts: Sequence[bytes | None]) -> int | None:
    """Return the bytes of the messages that wait, if the statistics agree with their number."""
    try:
        produced, produced_bytes, consumed, consumed_bytes = (int(count or 0) for count in counts)
    except ValueError:  # another program has written them
        return None
    size = produced_bytes - consumed_bytes
    return size if produced - consumed == length and size >= 0 else None
