"""What Spark's tasks read: slices of a sealed batch, or slices of a queue at one moment (`spark.read`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from apressure.exceptions import DecodeError
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import MAX_MESSAGES, QueueSteps, find_queues, measure_all, server_of, split_rows
from apressure.spark.options import Options
from apressure.spark.source.decoding import Decoder

CHUNK_BYTES: Final = 16 * 1024 * 1024
"""About the most bytes of messages in one reply of the server."""


@dataclasses.dataclass
class Slice:
    """A part of a sealed batch, or of a queue. It has no secrets, because Spark shows it.

    Attributes:
        queue: The queue's name.
        batch: Group and number of the batch; None for the queue itself.
        begin: The position of the first row, counted from the oldest message.
        end: The position behind the last row.
        rows: How many rows the whole batch has, so that a changed batch is noticed.
        first: What to add to a position for the user's `sequence`.
        left: For a queue, how many messages had left it when it was measured.
        attempts: How often Spark has begun to read the batch, if the schema has that column.
    """

    queue: str
    batch: tuple[str, int] | None
    begin: int
    end: int
    rows: int
    first: int
    left: int = 0
    attempts: int = 1


@dataclasses.dataclass
class Task(InputPartition):
    """What one task reads: a task costs Spark more than a small slice, so it may have slices of many queues.

    Attributes:
        slices: Its slices.
        ends: It gives the row that ends the stream instead.
    """

    slices: list[Slice]
    ends: bool = False


def tasks_of(options: Options, whole: Sequence[Slice]) -> list[Task]:
    """Divide what is to be read among tasks. `whole`: one slice for each batch, or queue, with all of its rows."""
    return [
        Task([dataclasses.replace(whole[index], begin=begin, end=end) for index, begin, end in ranges])
        for ranges in split_rows([one.rows for one in whole], options.tasks)
    ]


def read_task(options: Options, decoder: Decoder, task: InputPartition) -> Iterator[Any]:
    """Read the slices of a task, one after the other; see `read`. With `maxAttempts` all of them are tried."""
    assert isinstance(task, Task)
    if task.ends:
        yield decoder.end_row(options)
        return
    context, error = TaskContext.get(), None
    retries = context.attemptNumber() if context else 0
    for piece in task.slices:
        decoder.attempts = piece.attempts + retries
        try:
            yield from read(options, decoder, piece)
        except DecodeError as found:
            if not options.max_attempts:
                raise
            error = error or found
    if error:
        raise error


def read(options: Options, decoder: Decoder, piece: Slice) -> Iterator[Any]:
    """Read a slice, oldest message first, as Arrow record batches.

    Raises:
        BatchLostError: The batch is not on the server any more.
        DecodeError: A message cannot be decoded, and the schema has no column for such messages. With `maxAttempts`,
            only if one of these messages was not tried so often yet.
    """
    if piece.batch and options.max_attempts:
        yield from _read_decodable(options, decoder, piece, *piece.batch)
        return
    chunks = _read_batch(options, piece, *piece.batch) if piece.batch else _read_queue(options, piece)
    for begin, messages in chunks:
        yield decoder.batch(messages, piece.queue, piece.first + begin)


def _read_decodable(options: Options, decoder: Decoder, piece: Slice, group: str, number: int) -> Iterator[Any]:
    """Read what can be decoded, and note the other messages: those that were tried often enough become dead letters."""
    failed: list[int] = []
    error: DecodeError | None = None
    for begin, messages in _read_batch(options, piece, group, number):
        bad: list[int] = []
        try:
            batches = [decoder.batch(messages, piece.queue, piece.first + begin)]
        except DecodeError as latest:
            error, bad = latest, decoder.undecodable(messages)
            batches = [
                decoder.batch(messages[low + 1 : high], piece.queue, piece.first + begin + low + 1)
                for low, high in itertools.pairwise([-1, *bad, len(messages)])
                if high > low + 1
            ]
        failed += [begin + place for place in bad]
        yield from batches
    steps = SourceSteps(server_of(options), piece.queue, group)
    least = steps.note_failures(number, piece.begin, piece.end, failed)
    if error and least < options.max_attempts:
        raise error


def _next_chunk(options: Options, messages: Sequence[bytes]) -> int:
    """How many messages to ask for after these."""
    average = max(1, sum(map(len, messages[-100:])) // max(1, len(messages[-100:])))
    return max(1, min(options.fetch_size, CHUNK_BYTES // average))


def _read_batch(options: Options, piece: Slice, group: str, number: int) -> Iterator[tuple[int, list[bytes]]]:
    steps = SourceSteps(server_of(options), piece.queue, group)
    key = steps.batch(number)
    at, chunk = piece.begin, min(100, options.fetch_size)
    while at < piece.end:
        upto = min(at + chunk, piece.end)
        length, found = steps.server.together((b"LLEN", key), (b"LRANGE", key, -upto, -at - 1))
        if length != piece.rows:
            raise steps.batch_lost(number)
        found.reverse()
        yield at, found
        at, chunk = upto, _next_chunk(options, found)


def _read_queue(options: Options, piece: Slice) -> Iterator[tuple[int, list[bytes]]]:
    """Read the messages that were in the queue when it was measured, except those that consumers take meanwhile.

    Each message that is taken moves all others to the right. While consumers work, a script finds the messages, which
    costs the server four times as much as a range of the list.
    """
    steps = QueueSteps(server_of(options), piece.queue)
    keys = steps.keys.queue
    at, chunk, moved, quiet = piece.begin, min(100, options.fetch_size), 0, True
    while at < piece.end:
        upto = min(at + (chunk if quiet else min(chunk, MAX_MESSAGES)), piece.end)
        if quiet:
            right, left = max(0, at - moved), max(0, upto - moved)
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
                continue  # the messages have moved: this was the wrong range
        else:
            now, found = steps.peek(piece.left, at, upto)
            quiet, moved = now == moved, now
        found.reverse()
        if found:
            yield max(at, moved), found
        at, chunk = upto, _next_chunk(options, found)


class QueueReader(DataSourceReader):
    """`spark.read`: what is in the queues at this moment. Nothing is consumed.

    Args:
        options: The user's options.
        schema: The columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._decoder = Decoder(options, schema)
        if self._decoder.counts_attempts:
            raise ValueError("the column attempts is for streams: spark.read takes no messages, so it has none")

    def partitions(self) -> list[Task]:  # type: ignore[override]
        """Measure the queues and split them into slices."""
        options = self._options
        server = server_of(options)
        names = options.names if options.pattern is None else find_queues(server, options.pattern)
        queues = [QueueSteps(server, name) for name in names]
        measured = measure_all(server, queues, skip_missing=options.pattern is not None)
        pieces = tasks_of(
            options, [Slice(name, None, 0, length, length, 0, left) for name, (left, length, _) in measured.items()]
        )
        # Spark takes an empty list for one unknown partition.
        return pieces or [Task([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the slices of one task."""
        return read_task(self._options, self._decoder, partition)
