"""`spark.readStream`: sealed batches of queues, so that a crash neither loses nor doubles a message.

Spark calls these methods in one process, for as long as the query lives: `latestOffset` seals a batch, `partitions`
splits it into slices, `commit` deletes it. An offset is the number of the last sealed batch of each queue. The batches
are on the server; Spark's log of offsets decides which of them count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from apressure.exceptions import PressureError, QueueInUseError
from apressure.spark.engine.source_steps import SourceSteps
from apressure.spark.engine.steps import fair_shares, find_queues, server_of, split_rows
from apressure.spark.options import Options
from apressure.spark.source.admission import Admission
from apressure.spark.source.decoding import Decoder
from apressure.spark.source.slices import Slice, read, tasks_per_queue

Offset = dict[str, int]

PATTERN_INTERVAL: Final = 5.0
"""Seconds after which a stream looks for new queues that match its pattern."""
REPORT_INTERVAL: Final = 1.0
"""Seconds after which a stream without new batches looks at its backlog."""
_log = logging.getLogger("apressure.spark")


class _Queue:
    """One queue, as this process reads it.

    Attributes:
        steps: The queue's steps.
        committed: The last committed batch.
        fresh: This process has not asked for a batch yet: there may be one from before a crash.
        ended: The queue was closed and empty when it was last asked for a batch.

    Args:
        steps: The queue's steps.
        start: The last batch in the query's checkpoint; None for a new checkpoint.
        upto: How many messages may ever have left the queue; None for any number.
        max_attempts: How often a message is decoded before it becomes a dead letter; 0 for any number.
    """

    def __init__(self, steps: SourceSteps, start: int | None, upto: int | None, max_attempts: int) -> None:
        self.steps = steps
        self._max_attempts = max_attempts
        if max_attempts:
            steps.check_dead_letters()
        self._epoch, self.committed, _ = steps.begin_epoch(start)
        self.fresh = True
        self.ended = False
        self._upto = upto

    def seal(
        self, start: int, limit: int, timeout: float, allow_empty: bool = False, limit_bytes: int = 0
    ) -> int | None:
        """Seal the batch after `start` and return its number, or None if there are no messages.

        Raises:
            QueueInUseError: Another client held the consumer role for `timeout` seconds.
        """

        def step(claimed: bool) -> Any:
            return self.steps.seal(self._epoch, start, limit, self._upto, claimed, allow_empty, limit_bytes)

        while (answer := self.steps.run_when_ready(step, timeout)) == "more":
            pass
        self.fresh = False
        self.ended = answer == "closed"
        return answer if isinstance(answer, int) else None

    def slices(self, start: int, end: int, limit: int) -> list[Slice]:
        """Return the slices of the batches after `start` up to `end`."""
        found = self.steps.batch_rows(self._epoch, start + 1, end) if end > start else []
        return [
            Slice(self.steps.name, (self.steps.group, number), begin, upto, rows, first)
            for number, (first, rows) in enumerate(found, start + 1)
            for begin, upto in split_rows(rows, limit)
        ]

    def count_attempts(self, start: int, end: int) -> int:
        """Count that Spark reads the batches after `start` up to `end`, and return how often it has."""
        return self.steps.count_attempts(self._epoch, start + 1, end)

    def commit(self, end: int) -> None:
        """Delete all batches up to `end`: Spark has processed them."""
        if end > self.committed:
            for number in range(self.committed + 1, end + 1) if self._max_attempts else ():
                self.steps.bury(self._epoch, number, self._max_attempts)
            self.steps.commit(self._epoch, self.committed + 1, end)
            self.committed = end


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one query.

    Args:
        options: The user's options.
        schema: The columns.

    Raises:
        ValueError: The options have no group, or the schema does not fit.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.group is None:
            raise ValueError("a stream needs a group: .option('group', NAME), a different one for each query")
        self._options = options
        self._group = options.group
        self._decoder = Decoder(options, schema)
        self._admission = Admission(options)
        self._opened: dict[str, _Queue] = {}
        self._found: tuple[str, ...] = options.names
        self._look_at = -math.inf  # when to look for queues that match the pattern
        self._warn_at = -math.inf
        self._available_now = False  # the query ends when it has read what was there at its start
        self._upto: dict[str, int] = {}  # with AvailableNow: how many messages may ever have left each queue
        self._begun = False  # this process has had a batch
        # The latest report of the backlog, and when it is stale.
        self._report: tuple[float, dict[str, dict[str, int]] | None] = (-math.inf, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}  # tasks get a copy: they read slices and need no queues

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new checkpoint begins: at the oldest batch without a commit."""
        return {name: queue.committed for name, queue in self._queues({}).items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `maxRowsPerBatch`. Spark takes one limit: `maxBytesPerBatch` holds beside it."""
        return ReadMaxRows(self._options.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and no more; with `stopAtEnd` everything until the queues are closed."""
        self._available_now = True
        if self._options.stop_at_end:
            return
        for name in self._names():
            left, length, _ = self._steps(name).measure()
            self._upto[name] = left + length
        self._look_at = math.inf

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Seal a batch of each queue that has messages, or return one that was sealed before a crash.

        If another client holds the consumer role, this waits for `roleTimeout`, then returns `start` with a warning.

        If all queues are closed and empty, and this process has had no batch yet, this seals an empty one: Spark
        finishes the last windows in a batch without data, and after a crash it makes none by itself.

        With `minRowsPerBatch` this returns `start` while there are too few messages, unless AvailableNow asks.

        With `stopAtEnd` this waits for messages, and returns `start` only when all queues are closed and empty:
        AvailableNow ends with the first call that returns `start`.

        Raises:
            GroupTakenError: Another query reads for this group, or has read on with another checkpoint.
            QueueDoesNotExistError: A queue does not exist.
            QueueInUseError: Only with AvailableNow, which would end without having read everything.
            ValueError: `stopAtEnd` without AvailableNow.
        """
        if self._options.stop_at_end and not self._available_now:
            raise ValueError(
                "stopAtEnd needs .trigger(availableNow=True): Spark ends no other stream by itself. Or leave it out, "
                "and call apressure.spark.await_end(…)"
            )
        rows = self._row_limit(limit)
        queues = self._queues(start)
        for name, queue in queues.items():
            # Spark has processed what is below `start`: its commit was lost in a crash, or AvailableNow sent none.
            if queue.fresh or self._available_now:
                queue.commit(start.get(name, 0))
        if rows and not self._available_now and self._waits(queues):
            return start
        end = self._next(queues, start, rows)
        while not end and self._options.stop_at_end and not all(queue.ended for queue in queues.values()):
            end = self._next(queues, start, rows)
        if end or not self._admission.begun:
            self._admission.sealed()
        if end:
            self._begun, self._report = True, (-math.inf, None)
        return {**start, **end} if end else start

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        """The backlog of each queue, for the query's progress: the `messages` that wait in it, and their `bytes`.

        Spark asks for it at every trigger. An idle stream looks once a second.
        """
        stale_at, report = self._report
        if time.monotonic() >= stale_at:
            with contextlib.suppress(PressureError):  # the query itself says what is wrong
                found = {name: queue.steps.backlog() for name, queue in self._opened.items()}
                report = {
                    name: {"messages": messages} | ({} if size is None else {"bytes": size})
                    for name, (messages, size) in found.items()
                }
            self._report = time.monotonic() + REPORT_INTERVAL, report
        return report

    def partitions(self, start: Offset, end: Offset) -> list[Slice]:  # type: ignore[override]
        """Split the sealed batches between two offsets into slices.

        Raises:
            BatchLostError: A batch is not on the server any more.
            GroupTakenError: Another query reads for this group, or has read on with another checkpoint.
        """
        self._begun = True
        self._queues(start)
        changed = {name: number for name, number in end.items() if number != start.get(name)}
        limit = tasks_per_queue(self._options, len(changed))
        pieces: list[Slice] = []
        for name, number in changed.items():
            queue = self._queue(name, start.get(name))
            begin = start.get(name, queue.committed)
            found = queue.slices(begin, number, limit)
            if self._decoder.counts_attempts and found:
                attempts = queue.count_attempts(begin, number)
                found = [dataclasses.replace(piece, attempts=attempts) for piece in found]
            pieces += found
        return pieces

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one slice."""
        assert isinstance(partition, Slice)
        context = TaskContext.get()
        self._decoder.attempts = partition.attempts + (context.attemptNumber() if context else 0)
        return read(self._options, self._decoder, partition)

    def commit(self, end: Offset) -> None:
        """Delete everything up to `end` on the server: Spark has processed it."""
        for name, number in end.items():
            self._queue(name, number).commit(number)

    @property
    def _limited(self) -> bool:
        """Whether the query reads only what was there at its start."""
        return self._available_now and not self._options.stop_at_end

    def _waits(self, queues: dict[str, _Queue]) -> bool:
        """Wait for more messages, at most for `pollWait`, and return whether to wait longer (`minRowsPerBatch`)."""
        left = self._admission.seconds_left(lambda: [queue.steps.look() for queue in queues.values()])
        time.sleep(min(left, self._options.poll_wait))
        return left > 0

    def _next(self, queues: dict[str, _Queue], start: Offset, rows: int) -> Offset:
        """Seal the next batches, and return their numbers. If there is no message, this waits for `pollWait`."""
        end, busy = self._seal(queues, start, rows, 0.0)
        if not end and busy:
            # A queue among several must not delay the others for long.
            alone = len(queues) == 1 or self._limited
            timeout = self._options.role_timeout if alone else self._options.poll_wait
            name = busy.name or ""
            end, busy = self._seal({name: queues[name]}, start, rows, timeout)
            if busy:
                self._warn(busy)
        elif not end and not self._begun and all(queue.ended for queue in queues.values()):
            end = self._seal_empty(queues, start)
        elif not end and not self._limited and self._await_message(queues):
            end, _ = self._seal(queues, start, rows, 0.0)
        return end

    def _warn(self, error: QueueInUseError) -> None:
        """Log that a role is busy, once for each `roleTimeout`; with AvailableNow raise it."""
        if self._limited:
            raise error
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + self._options.role_timeout
            _log.warning("%s. The stream tries again with its next batch", error)

    def _row_limit(self, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable):
            return 0
        return max(1, limit.max_rows) if isinstance(limit, ReadMaxRows) else self._options.max_rows_per_batch

    def _names(self) -> tuple[str, ...]:
        """The names of the queues to read."""
        if self._options.pattern is not None and time.monotonic() >= self._look_at:
            self._found = tuple(find_queues(server_of(self._options), self._options.pattern))
            self._look_at = time.monotonic() + PATTERN_INTERVAL
        return self._found

    def _queues(self, start: Offset) -> dict[str, _Queue]:
        """The queues to read, for a query whose checkpoint is at `start`."""
        names = self._names()
        for name in names:  # check all of them before any other query of the group is refused
            if name in start and name not in self._opened:
                self._steps(name).check_position(start[name])
        return {name: self._queue(name, start.get(name)) for name in names}

    def _queue(self, name: str, start: int | None) -> _Queue:
        if name not in self._opened:
            self._opened[name] = _Queue(self._steps(name), start, self._upto.get(name), self._options.max_attempts)
        return self._opened[name]

    def _steps(self, name: str) -> SourceSteps:
        steps = SourceSteps(server_of(self._options), name, self._group)
        if self._options.create:
            steps.create(self._options.bound)
        return steps

    def _seal(
        self, queues: dict[str, _Queue], start: Offset, rows: int, timeout: float
    ) -> tuple[Offset, QueueInUseError | None]:
        """Seal what is there, and return the new numbers, and the error of a queue whose role is busy."""
        shares = dict.fromkeys(queues, rows)
        if len(queues) > 1 and rows:
            shares = fair_shares({name: queue.steps.length() for name, queue in queues.items()}, rows)
        size = self._options.max_bytes_per_batch // max(1, sum(share > 0 for share in shares.values())) if rows else 0
        end: Offset = {}
        busy = None
        for name, share in shares.items():
            queue = queues[name]
            if rows and not share and not queue.fresh and self._begun and not self._options.stop_at_end:
                continue
            try:  # even an empty queue may have a batch from before a crash, and may have ended
                number = queue.seal(start.get(name, queue.committed), share or min(rows, 1), timeout, limit_bytes=size)
            except QueueInUseError as error:
                busy = error
            else:
                if number is not None:
                    end[name] = number
        return end, busy

    def _seal_empty(self, queues: dict[str, _Queue], start: Offset) -> Offset:
        """Seal an empty batch of one of the queues, all of which have ended, if any of them was read before."""
        for name, queue in queues.items():
            if start.get(name):
                number = queue.seal(start[name], 1, 0.0, allow_empty=True)
                return {} if number is None else {name: number}
        return {}

    def _await_message(self, queues: dict[str, _Queue]) -> bool:
        """Wait for a message for `pollWait` seconds, and return whether there may be one."""
        seconds = self._options.poll_wait
        if len(queues) == 1 and seconds:
            (queue,) = queues.values()
            queue.steps.await_message(seconds)
            return True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:  # no command waits for several lists and takes nothing
            time.sleep(min(left, 0.05))
            if any(queue.steps.length() for queue in queues.values()):
                return True
        return False
