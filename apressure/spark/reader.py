"""What Spark's tasks read: slices of a sealed batch, and slices of a queue as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from apressure.spark.decoding import Decoder
from apressure.spark.options import Options
from apressure.spark.steps import MOST, BatchLostError, Steps, find, server_of, spread

PORTION: Final = 16 * 1024 * 1024
"""About the most bytes of messages that one answer of the server brings."""
SMALL: Final = 10_000
"""Rows that are not worth a task of their own."""


class Slice(InputPartition):
    """A piece of a sealed batch, or of a queue. It carries no secret: Spark shows it.

    Args:
        queue: The queue's name.
        batch: Where it is: group and number of the batch; None for the queue itself.
        begin: The first row's place, counted from the oldest message.
        end: The place behind the last one's.
        rows: How many the batch has, so that one that has changed is noticed.
        base: What to add to a place for the number that the user sees.
        left: For a queue, how many messages had left it when it was measured.
    """

    def __init__(
        self, queue: str, batch: tuple[str, int] | None, begin: int, end: int, rows: int, base: int, left: int = 0
    ) -> None:
        self.queue = queue
        self.batch = batch
        self.begin = begin
        self.end = end
        self.rows = rows
        self.base = base
        self.left = left


def tasks(options: Options) -> int:
    """The most tasks that are worth while for one batch."""
    return options.num_partitions or os.cpu_count() or 1


def read(options: Options, decoder: Decoder, piece: Slice) -> Iterator[Any]:
    """Read a slice, oldest message first, as Arrow record batches.

    Raises:
        BatchLostError: The server has no such batch.
        DecodeError: A message cannot be decoded, and there is no column for such.
    """
    if piece.begin == piece.end:
        return
    server = server_of(options)
    steps = Steps(server, server.settings.prefix, piece.queue)
    portions = _of_batch(steps, piece, options) if piece.batch else _of_queue(steps, piece, options)
    for begin, messages in portions:
        yield decoder.batch(messages, piece.queue, piece.base + begin)


def _portion(options: Options, messages: Sequence[bytes]) -> int:
    """How many messages to ask for next, after those."""
    average = max(1, sum(map(len, messages[-100:])) // max(1, len(messages[-100:])))
    return max(1, min(options.fetch_size, PORTION // average))


def _of_batch(steps: Steps, piece: Slice, options: Options) -> Iterator[tuple[int, list[bytes]]]:
    assert piece.batch is not None
    key = steps.keys.batch(*piece.batch)
    at, portion = piece.begin, min(100, options.fetch_size)
    while at < piece.end:
        upto = min(at + portion, piece.end)
        length, found = steps.server.together((b"LLEN", key), (b"LRANGE", key, -upto, -at - 1))
        if length != piece.rows:
            raise steps.lost(*piece.batch)
        found.reverse()
        yield at, found
        at, portion = upto, _portion(options, found)


def _of_queue(steps: Steps, piece: Slice, options: Options) -> Iterator[tuple[int, list[bytes]]]:
    """What consumers have taken since the queue was measured moves all others to the right, and is left out.

    While they work a script finds the messages, which costs the server four times as much as a range of the list.
    """
    keys = steps.keys.queue
    at, portion, moved, quiet = piece.begin, min(100, options.fetch_size), 0, True
    while at < piece.end:
        upto = min(at + (portion if quiet else min(portion, MOST)), piece.end)
        right, left = max(0, at - moved), max(0, upto - moved)
        if quiet:
            taken, latest, apart, found = steps.server.together(
                (b"GET", keys.messages_count("consumer")),
                (b"LLEN", keys.inflight),
                (b"HLEN", keys.apart),
                (b"LRANGE", keys.messages, -left, -right - 1) if left > right else (b"LRANGE", keys.messages, 1, 0),
            )
            now = int(taken or 0) + latest + apart - piece.left
            quiet = now == moved
            moved = now
            if not quiet:
                continue  # that was not the place
        else:
            now, found = steps.snapshot(piece.left, at, upto)
            quiet, moved = now == moved, now
        found.reverse()
        if found:
            yield max(at, moved), found
        at, portion = upto, _portion(options, found)


class QueueReader(DataSourceReader):
    """`spark.read`: what is in the queues at this moment. Nothing is consumed.

    Args:
        options: The user's.
        schema: The columns that he wants.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._decoder = Decoder(options, schema)

    def partitions(self) -> list[Slice]:  # type: ignore[override]
        """Measure the queues and cut them in slices."""
        options = self._options
        server = server_of(options)
        prefix = server.settings.prefix
        names = options.names if options.pattern is None else find(server, prefix, options.pattern)
        pieces = []
        for name in names:
            left, length, _ = Steps(server, prefix, name).measure()
            most = max(1, tasks(options) // len(names))
            pieces += [Slice(name, None, begin, end, length, 0, left) for begin, end in spread(length, most, SMALL)]
        # Spark takes an empty list for one partition that it knows nothing about.
        return pieces or [Slice(name, None, 0, 0, 0, 0) for name in (*names, "")[:1]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one slice."""
        assert isinstance(partition, Slice)
        return read(self._options, self._decoder, partition)


__all__ = ["BatchLostError", "QueueReader", "Slice", "read", "tasks"]
