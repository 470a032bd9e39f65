"""`df.write` and `writeStream`: tasks stage their rows on the server, and one commit moves them into the queue.

A commit first decides which parts it consists of, for a query and its batch. A repeated commit finishes those and drops
its own. So each batch of a query is in the queue once, whatever crashes in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructType

from apressure.exceptions import PressureError, ServerUnavailableError
from apressure.spark.encoding import Encoder
from apressure.spark.engine.sink_steps import Plan, SinkSteps
from apressure.spark.engine.steps import server_of
from apressure.spark.options import Options

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""The most bytes that one command stages, unless a single message has more."""


@dataclasses.dataclass
class Staged(WriterCommitMessage):
    """What one task has staged.

    Attributes:
        write: The write that it belongs to, such as a query's id.
        parts: The task's part for each queue.
    """

    write: str
    parts: Plan


class Sink:
    """Stages rows, and moves them into the queue.

    Args:
        options: The user's options.
        schema: The columns of the rows.
        overwrite: Whether the user wants to replace what is in the queue.

    Raises:
        ValueError: The options or the columns do not fit a queue.
    """

    _no_overwrite = "a queue cannot be overwritten: use .mode('append') or INSERT INTO"

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if len(options.names) != 1:
            raise ValueError("a sink writes to one queue, .option('queue', NAME), or to those that queueColumn names")
        if overwrite:
            raise ValueError(self._no_overwrite)
        if options.queue_column is not None:
            if options.close_on_end:
                raise ValueError("closeOnEnd closes one queue: with queueColumn call apressure.spark.close_queue(…)")
            _check_queue_column(options.queue_column, schema)
        self._encoder = Encoder(options, schema)
        self._options = options

    def _steps(self, queue: str) -> SinkSteps:
        return SinkSteps(server_of(self._options), queue)

    def stage(self, write: str, batches: Iterator[Any]) -> Staged:
        """Stage the rows of one task. They expire after `stagingTtl`, unless a commit chooses them.

        Raises:
            QueueDoesNotExistError: The queue does not exist, and `create` is not set.
        """
        token, counts = secrets.token_hex(12), dict[str, tuple[int, int]]()
        for batch in batches:
            for name, column in self._by_queue(batch):
                steps = self._steps(name)
                messages, size = counts.get(name, (0, 0))
                for chunk, bytes_of_it in _chunks(column, self._options.fetch_size):
                    if not messages and not self._options.create and not steps.exists():
                        raise steps.missing()
                    _append(steps, steps.keys.part(write, token), chunk, messages, self._ttl)
                    messages += len(chunk)
                    size += bytes_of_it
                    counts[name] = messages, size
        return Staged(write, {name: [(token, messages, size)] for name, (messages, size) in counts.items()})

    @property
    def _ttl(self) -> int:
        """`stagingTtl` in milliseconds."""
        return int(1000 * self._options.staging_ttl)

    def commit_parts(self, staged: Sequence[Staged | None], batch: int, remember: bool) -> None:
        """Move what the tasks have staged into the queues, once. This waits for the producer roles and for room.

        Args:
            staged: What the tasks have staged.
            batch: The number of the query's batch.
            remember: Whether Spark may repeat this commit.

        Raises:
            BatchLostError: A part is not on the server any more.
            QueueClosedError, QueueDoesNotExistError: As the names say.
            QueueInUseError: Another client held the producer role for `roleTimeout`. The next start of a stream goes on
                where this stopped; what `df.write` has moved by then stays in the queue.
        """
        (queue,), options = self._options.names, self._options
        plan: Plan = {queue: []}
        tasks = [one for one in staged if one is not None]
        for one in tasks:
            for name, parts in one.parts.items():
                plan.setdefault(name, []).extend(parts)
        if options.create:
            for name in plan:
                self._steps(name).create(options.bound)
        if tasks:  # even without rows: an earlier attempt may have left parts to finish
            self._put_all(queue, plan, tasks[0].write, batch, remember)
        if options.close_on_end:
            steps = self._steps(queue)
            steps.run_when_ready(steps.close, options.role_timeout)

    def _put_all(self, queue: str, plan: Plan, write: str, batch: int, remember: bool) -> None:
        """Move parts into their queues. If Spark may repeat this, the first attempt decides for all queues."""
        # A query may be started again without its `queueColumn` in the middle of a write to several queues.
        several = remember and (self._options.queue_column is not None or self._steps(queue).has_plan(write))
        if several:
            planned = self._steps(queue).plan_write(write, batch, plan)
            if planned != plan:
                self._discard(write, plan, planned or {})
            if planned is None:
                return
            plan = planned
        todo = {}
        for name, parts in plan.items():  # all of them: what is chosen does not expire while one waits for room
            todo[name] = self._steps(name).choose_parts(write, batch, 0 if remember else self._ttl, parts)
        for name, first in todo.items():
            self._put(self._steps(name), plan[name], first, write, batch, 0 if remember else self._ttl)
        if several:
            self._steps(queue).complete_plan(write, batch)

    def _put(
        self,
        steps: SinkSteps,
        parts: Sequence[tuple[str, int, int]],
        todo: str | None,
        write: str,
        batch: int,
        ttl: int,
    ) -> None:
        options = self._options
        extended = time.monotonic()

        def step(claimed: bool) -> Any:
            nonlocal extended
            if ttl and time.monotonic() > extended + options.staging_ttl / 3:
                steps.extend(write, ttl, [token for token, _, _ in parts])  # waiting for room may take long
                extended = time.monotonic()
            return steps.put_part(write, batch, todo or "", not ttl, claimed)

        while todo:
            todo = steps.run_when_ready(step, options.role_timeout)

    def discard_parts(self, staged: Sequence[Staged | None]) -> None:
        """Delete what the tasks of a failed job have staged, except what the commit of a stream has chosen."""
        # Without a server the parts expire. Spark shows why the job failed, not this error.
        with contextlib.suppress(PressureError):
            for one in staged:
                if one is not None:
                    self._discard(one.write, one.parts, {})

    def _discard(self, write: str, plan: Plan, chosen: Plan) -> None:
        """Delete the parts of a plan that are not in the chosen one."""
        for name, parts in plan.items():
            for part in parts:
                if part not in chosen.get(name, ()):
                    self._steps(name).discard(write, part[0])

    def _by_queue(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Turn a record batch into Arrow arrays of messages, each with its queue."""
        (queue,), column, messages = self._options.names, self._options.queue_column, self._encoder.messages(batch)
        if column is None:
            yield queue, messages
            return
        names = pc.fill_null(batch.column(column).cast(pa.string()), queue)
        for name in pc.unique(names).to_pylist():
            if not name:
                raise ValueError(f"the column {column!r} is empty in a row: name a queue there, or use NULL")
            yield name, messages.filter(pc.equal(names, name))


class BatchSink(Sink, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._write = secrets.token_hex(16)  # pickled with the writer: the same for all tasks, and for the commit

    def write(self, iterator: Iterator[Any]) -> Staged:
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

    _no_overwrite = (
        "a queue cannot be overwritten, and outputMode('complete') writes the whole result with each batch: use "
        "outputMode('append'), or foreachBatch with df.write.mode('append')"
    )

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.close_on_end:
            raise ValueError(
                "closeOnEnd is for df.write: Spark does not tell a stream's sink when it ends. After "
                "query.awaitTermination() call apressure.spark.close_queue(…)"
            )

    def write(self, iterator: Iterator[Any]) -> Staged:
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


def _check_queue_column(name: str, schema: StructType) -> None:
    if name not in schema.names or not isinstance(schema[name].dataType, StringType):
        raise ValueError(f"queueColumn: the data frame needs a column {name!r} that is STRING")


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
