"""What Spark writes: tasks put their rows aside on the server, and one commit moves them into the queue.

A commit first decides which parts it consists of, for a query and its batch; whoever repeats it finishes those and
drops its own. So each batch of a query is in the queue once, whatever dies in between.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from apressure.exceptions import PressureError, QueueDoesNotExistError, ServerUnavailableError
from apressure.spark.decoding import RAW, has_map
from apressure.spark.options import Options
from apressure.spark.steps import Busy, Full, Steps, server_of

PORTION: Final = 4 * 1024 * 1024
"""The most bytes that one command puts aside, unless one message has more."""


class Part(WriterCommitMessage):
    """What one task has put aside.

    Args:
        write: Which write it belongs to: a query's id.
        token: The part's name.
        messages: How many.
        size: Their bytes.
    """

    def __init__(self, write: str, token: str, messages: int, size: int) -> None:
        self.write = write
        self.token = token
        self.messages = messages
        self.size = size


class Sink:
    """Puts rows aside, and moves them into the queue.

    Args:
        options: The user's.
        schema: The columns of the rows.
        overwrite: The user wants to replace what is there.

    Raises:
        ValueError: There is nothing in the columns, or in the options, that could be written so.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if len(options.names) != 1:
            raise ValueError("a sink writes to one queue: .option('queue', NAME)")
        if overwrite:
            raise ValueError("a queue cannot be overwritten: use mode('append')")
        if options.format == "json" and (maps := [field.name for field in schema.fields if has_map(field.dataType)]):
            raise ValueError(f"the column {maps[0]!r}: maps cannot be written; make it a STRUCT, or text with to_json")
        self._column = None if options.format == "json" else _body_of(schema)
        self._options = options

    def steps(self) -> Steps:
        """The queue's steps, over this process's connection."""
        server = server_of(self._options)
        return Steps(server, server.settings.prefix, self._options.names[0])

    def stage(self, write: str, batches: Iterator[Any]) -> Part:
        """Put the rows of one task aside. They expire unless a commit wants them.

        Raises:
            QueueDoesNotExistError: There is no such queue, and `create` is not set.
        """
        steps, token = self.steps(), secrets.token_hex(12)
        if not self._options.create and not steps.exists():
            name = steps.name
            raise QueueDoesNotExistError(f"the queue {name!r} does not exist (or .option('create', True))", name=name)
        key = steps.keys.part(write, token)
        messages = size = 0
        for batch in batches:
            column = self._messages(batch)
            for portion, bytes_of_it in _portions(column, self._options.fetch_size):
                _append(steps, key, portion, messages, int(self._options.staging_ttl * 1000))
                messages += len(portion)
                size += bytes_of_it
        return Part(write, token, messages, size)

    def publish(self, parts: Sequence[Part | None], batch: int, remember: bool) -> None:
        """Move what the tasks have put aside into the queue, once, waiting for the producer role and for room.

        Raises:
            QueueInUseError: The role was not to be had for `roleTimeout`. A stream goes on where it stopped; of a
                batch, what is in the queue by then stays there.
            QueueClosedError, QueueDoesNotExistError: Of the queue.
            BatchLostError: What was put aside is gone.
        """
        steps, options = self.steps(), self._options
        if options.create:
            steps.create(options.bound)
        there = [part for part in parts if part is not None]
        full = [part for part in there if part.messages]
        if there:  # (an empty batch, too: an earlier try may have put something aside that has to be finished)
            write = there[0].write
            ttl = 0 if remember else int(1000 * options.staging_ttl)
            todo = steps.record(write, batch, ttl, [(part.token, part.messages, part.size) for part in full])
            kept = time.monotonic()

            def step(held: bool) -> str | Busy | Full:
                nonlocal kept
                if ttl and time.monotonic() > kept + options.staging_ttl / 3:
                    steps.keep(write, ttl, [part.token for part in full])  # waiting for room may take long
                    kept = time.monotonic()
                return steps.publish(write, batch, todo or "", remember, held)

            while todo:
                answer = steps.patiently(step, options.role_timeout)
                if isinstance(answer, Busy):
                    raise steps.in_use(answer)
                todo = answer
        if options.close_on_end:
            answer = steps.patiently(steps.close, options.role_timeout)
            if isinstance(answer, Busy):
                raise steps.in_use(answer)

    def forget(self, parts: Sequence[Part | None]) -> None:
        """A job failed: what its tasks have put aside is of no use, unless a stream's commit has chosen it."""
        # (Without a server they expire. The error that Spark shows is why the job failed.)
        with contextlib.suppress(PressureError):
            steps = self.steps()
            for part in parts:
                if part is not None:
                    steps.discard(part.write, part.token)

    def _messages(self, batch: Any) -> Any:
        """The messages of a record batch, as an Arrow array."""
        if self._column is None:
            return pa.array([_json(row) for row in batch.to_pylist()], pa.string())
        column = batch.column(self._column)
        if column.null_count:
            raise ValueError(f"the column {self._column!r} is NULL in a row: a queue has no message for that")
        return column


class BatchSink(Sink, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._write = secrets.token_hex(16)  # pickled with the writer: one for all tasks, and for the commit

    def write(self, iterator: Iterator[Any]) -> Part:
        """Put a task's rows aside."""
        return self.stage(self._write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Move them into the queue."""
        self.publish(messages, 0, remember=False)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget them."""
        self.forget(messages)  # type: ignore[arg-type]


class StreamSink(Sink, DataSourceStreamArrowWriter):
    """`writeStream`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.close_on_end:
            raise ValueError(
                "closeOnEnd is for df.write: Spark does not tell a stream's sink of the end. Close the queue when "
                "query.awaitTermination() has returned, with apressure.spark.close_queue(…)"
            )

    def write(self, iterator: Iterator[Any]) -> Part:
        """Put a task's rows aside."""
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RuntimeError("Spark has not said which query this task is of (sql.streaming.queryId)")
        return self.stage(query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Move them into the queue, unless the batch is there already."""
        self.publish(messages, batchId, remember=True)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Forget them."""
        self.forget(messages)  # type: ignore[arg-type]


def _body_of(schema: StructType) -> str:
    """The column that has the messages."""
    columns = {field.name: field.dataType for field in schema.fields}
    if set(columns) - set(RAW.names) or not isinstance(columns.get("body"), (BinaryType, StringType)):
        raise ValueError(
            "without format=json the data frame needs a column `body`, BINARY or STRING, and no others: "
            f".select(to_json(struct('*')).alias('body')), say; it has {', '.join(columns) or 'none'}"
        )
    return "body"


def _portions(column: Any, most: int) -> Iterator[tuple[Any, int]]:
    """Cut a column in pieces of not too many messages, and not too many bytes; with the bytes of each."""
    sizes = np.cumsum(pc.binary_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)
    begin = before = 0
    while begin < len(column):
        end = int(np.searchsorted(sizes, before + PORTION, "right"))
        end = min(max(end, begin + 1), begin + most)
        yield column[begin:end], int(sizes[end - 1]) - before
        begin, before = end, int(sizes[end - 1])


def packed(column: Any) -> Any:
    """The messages of a column as they go over the wire, in one buffer: no Python object is made of each."""
    column = column.cast(pa.binary())
    lengths = pc.binary_length(column).cast(pa.string()).cast(pa.binary())
    head, end, nothing = (pa.scalar(text, pa.binary()) for text in (b"$", b"\r\n", b""))
    joined = pc.binary_join_element_wise(head, lengths, end, column, end, nothing)
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.combine_chunks()
    return memoryview(joined.buffers()[2])[: pc.sum(pc.binary_length(joined)).as_py()]


def _append(steps: Steps, key: bytes, portion: Any, before: int, ttl: int) -> None:
    """Push a portion. Where the answer is lost, the list's length tells whether it came."""
    after, buffer = before + len(portion), packed(portion)
    deadline = time.monotonic() + steps.server.settings.retry_timeout
    while True:
        try:
            length = steps.server.push_once(key, len(portion), buffer, ttl)
        except ConnectionError as error:
            length = steps.server.ask(b"LLEN", key)
            if length == before:
                if time.monotonic() > deadline:
                    raise ServerUnavailableError(f"the server does not take what a task writes: {error}") from None
                time.sleep(0.05)
                continue
            if length != after:
                raise ServerUnavailableError(f"the server lost what a task has written: {error}") from None
        if length != after:
            raise ServerUnavailableError("the server lost what a task has written")
        return


def _json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=_plain, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), default=_plain, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """The same with the numbers that JSON does not have as text, as Spark's own JSON writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """What JSON has no word for. A decimal is text: a number would lose digits."""
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a column of {type(value).__name__} cannot be written as JSON")
