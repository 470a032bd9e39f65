"""`df.write` and `writeStream`: tasks stage their rows on the server, and one commit moves them into the queue.

A commit first decides which parts it consists of, for a query and its batch. A repeated commit finishes those and drops
its own. So each batch of a query is in the queue once, whatever crashes in between.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
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
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from apressure.exceptions import PressureError, ServerUnavailableError
from apressure.spark.engine.sink_steps import SinkSteps
from apressure.spark.engine.steps import server_of
from apressure.spark.options import Options
from apressure.spark.source.decoding import RAW, has_map

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""The most bytes that one command stages, unless a single message has more."""


@dataclasses.dataclass
class Part(WriterCommitMessage):
    """What one task has staged.

    Attributes:
        write: The write that it belongs to, such as a query's id.
        token: The part's name.
        messages: How many messages.
        size: Their bytes.
    """

    write: str
    token: str
    messages: int
    size: int


class Sink:
    """Stages rows, and moves them into the queue.

    Args:
        options: The user's options.
        schema: The columns of the rows.
        overwrite: Whether the user wants to replace what is in the queue.

    Raises:
        ValueError: The options or the columns do not fit a queue.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if len(options.names) != 1:
            raise ValueError("a sink writes to one queue: .option('queue', NAME)")
        if overwrite:
            raise ValueError("a queue cannot be overwritten: use mode('append')")
        if options.format == "json" and (maps := [field.name for field in schema.fields if has_map(field.dataType)]):
            raise ValueError(f"the column {maps[0]!r}: maps cannot be written. Use a STRUCT, or to_json")
        self._column = None if options.format == "json" else _body_of(schema)
        self._options = options

    def _steps(self) -> SinkSteps:
        return SinkSteps(server_of(self._options), self._options.names[0])

    def stage(self, write: str, batches: Iterator[Any]) -> Part:
        """Stage the rows of one task. They expire after `stagingTtl`, unless a commit chooses them.

        Raises:
            QueueDoesNotExistError: The queue does not exist, and `create` is not set.
        """
        steps, token = self._steps(), secrets.token_hex(12)
        key = steps.keys.part(write, token)
        messages = size = 0
        for batch in batches:
            column = self._messages(batch)
            for chunk, bytes_of_it in _chunks(column, self._options.fetch_size):
                if not messages and not self._options.create and not steps.exists():
                    raise steps.missing()
                _append(steps, key, chunk, messages, int(self._options.staging_ttl * 1000))
                messages += len(chunk)
                size += bytes_of_it
        return Part(write, token, messages, size)

    def commit_parts(self, parts: Sequence[Part | None], batch: int, remember: bool) -> None:
        """Move what the tasks have staged into the queue, once. This waits for the producer role and for room.

        Args:
            parts: What the tasks have staged.
            batch: The number of the query's batch.
            remember: Whether Spark may repeat this commit.

        Raises:
            BatchLostError: A part is not on the server any more.
            QueueClosedError, QueueDoesNotExistError: As the names say.
            QueueInUseError: Another client held the producer role for `roleTimeout`. The next start of a stream goes on
                where this stopped; what `df.write` has moved by then stays in the queue.
        """
        steps, options = self._steps(), self._options
        if options.create:
            steps.create(options.bound)
        staged = [part for part in parts if part is not None]
        if staged:  # even without rows: an earlier attempt may have left parts to finish
            ttl = 0 if remember else int(1000 * options.staging_ttl)
            self._put(steps, [part for part in staged if part.messages], staged[0].write, batch, ttl)
        if options.close_on_end:
            steps.run_when_ready(steps.close, options.role_timeout)

    def _put(self, steps: SinkSteps, parts: Sequence[Part], write: str, batch: int, ttl: int) -> None:
        options = self._options
        todo = steps.choose_parts(write, batch, ttl, [(part.token, part.messages, part.size) for part in parts])
        extended = time.monotonic()

        def step(claimed: bool) -> Any:
            nonlocal extended
            if ttl and time.monotonic() > extended + options.staging_ttl / 3:
                steps.extend(write, ttl, [part.token for part in parts])  # waiting for room may take long
                extended = time.monotonic()
            return steps.put_part(write, batch, todo or "", not ttl, claimed)

        while todo:
            todo = steps.run_when_ready(step, options.role_timeout)

    def discard_parts(self, parts: Sequence[Part | None]) -> None:
        """Delete what the tasks of a failed job have staged, except what the commit of a stream has chosen."""
        # Without a server the parts expire. Spark shows why the job failed, not this error.
        with contextlib.suppress(PressureError):
            steps = self._steps()
            for part in parts:
                if part is not None:
                    steps.discard(part.write, part.token)

    def _messages(self, batch: Any) -> Any:
        """Turn a record batch into an Arrow array of messages."""
        if self._column is None:
            return pa.array([_json(row) for row in batch.to_pylist()], pa.string())
        column = batch.column(self._column)
        if column.null_count:
            raise ValueError(
                f"the column {self._column!r} is NULL in a row, and a message cannot be NULL: filter such rows out"
            )
        return column


class BatchSink(Sink, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._write = secrets.token_hex(16)  # pickled with the writer: the same for all tasks, and for the commit

    def write(self, iterator: Iterator[Any]) -> Part:
        """Stage a task's rows."""
        return self.stage(self._write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Move the rows of all tasks into the queue."""
        self.commit_parts(messages, 0, remember=False)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the rows of all tasks."""
        self.discard_parts(messages)  # type: ignore[arg-type]


class StreamSink(Sink, DataSourceStreamArrowWriter):
    """`writeStream`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.close_on_end:
            raise ValueError(
                "closeOnEnd is for df.write: Spark does not tell a stream's sink when it ends. After "
                "query.awaitTermination() call apressure.spark.close_queue(…)"
            )

    def write(self, iterator: Iterator[Any]) -> Part:
        """Stage a task's rows."""
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RuntimeError("a task of a stream has no query id: Spark did not set sql.streaming.queryId")
        return self.stage(query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Move the rows of all tasks into the queue, unless the batch is there already."""
        self.commit_parts(messages, batchId, remember=True)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the rows of all tasks."""
        self.discard_parts(messages)  # type: ignore[arg-type]


def _body_of(schema: StructType) -> str:
    """Return the name of the column with the messages."""
    columns = {field.name: field.dataType for field in schema.fields}
    if set(columns) - set(RAW.names) or not isinstance(columns.get("body"), (BinaryType, StringType)):
        raise ValueError(
            f"without format=json the data frame needs a column `body`, BINARY or STRING, and no others; it has "
            f"{', '.join(columns) or 'none'}. Use for example .select(to_json(struct('*')).alias('body'))"
        )
    return "body"


def _chunks(column: Any, limit: int) -> Iterator[tuple[Any, int]]:
    """Split a column into chunks of at most `limit` messages and about CHUNK_BYTES bytes; with the bytes of each."""
    sizes = np.cumsum(pc.binary_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)
    begin = before = 0
    while begin < len(column):
        end = int(np.searchsorted(sizes, before + CHUNK_BYTES, "right"))
        end = min(max(end, begin + 1), begin + limit)
        yield column[begin:end], int(sizes[end - 1]) - before
        begin, before = end, int(sizes[end - 1])


def packed(column: Any) -> Any:
    """Return the messages of a column as RESP strings in one buffer, without a Python object for each message."""
    column = column.cast(pa.binary())
    lengths = pc.binary_length(column).cast(pa.string()).cast(pa.binary())
    head, end, nothing = (pa.scalar(text, pa.binary()) for text in (b"$", b"\r\n", b""))
    joined = pc.binary_join_element_wise(head, lengths, end, column, end, nothing)
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.combine_chunks()
    return memoryview(joined.buffers()[2])[: pc.sum(pc.binary_length(joined)).as_py()]


def _append(steps: SinkSteps, key: bytes, chunk: Any, before: int, ttl: int) -> None:
    """Push a chunk. If the reply is lost, the length of the list tells whether the chunk arrived."""
    after, buffer = before + len(chunk), packed(chunk)
    deadline = time.monotonic() + steps.server.settings.retry_timeout
    while True:
        try:
            length = steps.server.push_once(key, len(chunk), buffer, ttl)
        except ConnectionError as error:
            length = steps.server.ask(b"LLEN", key)
            if length == before:
                if time.monotonic() > deadline:
                    raise ServerUnavailableError(f"the server does not accept what a task writes: {error}") from None
                time.sleep(0.05)
                continue
        if length != after:
            raise ServerUnavailableError("the server lost what a task wrote")
        return


def _json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, default=_plain, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), default=_plain, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by text, as Spark's own JSON does."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not have. A decimal becomes text, because a number would lose digits."""
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a column of {type(value).__name__} cannot be written as JSON")
