"""`spark.readStream`: sealed batches of queues, so that a crash neither loses nor doubles a message.

Spark calls these methods in one process, for as long as the query lives: `latestOffset` seals a batch, `partitions`
splits it into slices, `commit` deletes it. An offset is the number of the last sealed batch of each queue, and of the
rows that ended the stream (see `ending`). The batches are on the server; Spark's log of offsets decides which of them
count.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from apressure.exceptions import PressureError, QueueInUseError
from apressure.spark import ending
from apressure.spark.engine.steps import RoleBusy, StreamEndedError, fair_shares, server_of
from apressure.spark.options import Options
from apressure.spark.source.admission import Admission
from apressure.spark.source.decoding import Decoder
from apressure.spark.source.presence import Presence
from apressure.spark.source.queues import LOOKS, Offset, OpenQueue, Queues
from apressure.spark.source.slices import Slice, Task, read_task, tasks_of

REPORT_INTERVAL: Final = 1.0
"""Seconds after which a stream without new batches looks at its backlog."""
_log = logging.getLogger("apressure.spark")


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
        if options.ends:
            self._decoder.check_end(options)
        self._admission = Admission(options)
        self._queues = Queues(options, options.group)
        self._presence = Presence(options.group)
        self._warn_at = -math.inf
        self._available_now = False  # the query ends when it has read what was there at its start
        self._begun = False  # this process has had a batch
        self._again: bool | None = None  # the end row is given once more; None if nobody was asked yet
        # The latest report of the backlog, and when it is stale.
        self._report: tuple[float, dict[str, dict[str, int]] | None] = (-math.inf, None)

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new checkpoint begins: at the oldest batch without a commit."""
        return {name: queue.committed for name, queue in self._queues.open({}).items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option `maxRowsPerBatch`. Spark takes one limit: `maxBytesPerBatch` holds beside it."""
        return ReadMaxRows(self._options.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and no more; with `stopAtEnd` everything until the queues are closed."""
        self._available_now = True
        if not self._options.stop_at_end:
            self._queues.limit_to_present()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Seal a batch of each queue that has messages, or return one that was sealed before a crash.

        If another client holds the consumer role, this waits for `roleTimeout`, then returns `start` with a warning.

        If all queues are closed and empty, and this process has had no batch yet, this seals an empty one: Spark
        finishes the last windows in a batch without data, and after a crash it makes none by itself.

        With `endTimeColumn` or `endMessage`, the first batch after all queues are closed and empty is the end row.
        After it, only an empty batch comes from each further process, or one more end row; see
        `ending.is_given_again`.

        With `minRowsPerBatch` this returns `start` while there are too few messages, unless AvailableNow asks.

        With `stopAtEnd` this waits for messages, and returns `start` only when all queues are closed and empty:
        AvailableNow ends with the first call that returns `start`.

        Raises:
            GroupTakenError: Another query reads for this group, or has read on with another checkpoint.
            QueueDoesNotExistError: A queue does not exist.
            QueueInUseError: Only with AvailableNow, which would end without having read everything.
            StreamEndedError: A queue has messages after the end row.
            ValueError: `stopAtEnd` without AvailableNow, or the end row would appear in the query's output.
        """
        if self._options.stop_at_end and not self._available_now:
            raise ValueError(
                "stopAtEnd needs .trigger(availableNow=True): Spark ends no other stream by itself. Or leave it out, "
                "and call apressure.spark.await_end(…)"
            )
        self._ask()
        rows, before = self._row_limit(limit), ending.positions(start)
        queues = self._queues.open(before)
        # Spark has processed what is below `start`: its commit was lost in a crash, or AvailableNow sent none.
        processed = {name: queue for name, queue in queues.items() if queue.fresh or self._available_now}
        self._queues.commit(processed, before)
        self._presence.committed(before)
        if ending.rows(start):
            end = self._after_end(queues, start)
        elif rows and not self._available_now and self._waits(queues):
            self._tell(queues)
            return start
        else:
            end = self._next(queues, before, rows)
            while not end and self._options.stop_at_end and not all(queue.ended for queue in queues.values()):
                end = self._next(queues, before, rows)
        if end or not self._admission.begun:
            self._admission.sealed()
        if end:
            self._begun, self._report = True, (-math.inf, None)
        else:
            self._tell(queues)  # `partitions` does it where there are messages
        return {**start, **end} if end else start

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        """The backlog of each queue, for the query's progress: the `messages` that wait in it, and their `bytes`.

        Spark asks for it at every trigger. An idle stream looks once a second.
        """
        (stale_at, report), commands = self._report, 0
        if time.monotonic() >= stale_at:
            with contextlib.suppress(PressureError):  # the query itself says what is wrong
                report, commands = self._queues.backlogs()
            self._report = time.monotonic() + max(REPORT_INTERVAL, 5 * commands / LOOKS), report
        return report

    def partitions(self, start: Offset, end: Offset) -> list[Task]:  # type: ignore[override]
        """Divide the sealed batches between two offsets among tasks. The end row, if it is there, has its own.

        Raises:
            BatchLostError: A batch is not on the server any more.
            GroupTakenError: Another query reads for this group, or has read on with another checkpoint.
            ValueError: The end row would appear in the query's output.
        """
        self._begun = True
        before, after = ending.positions(start), ending.positions(end)
        self._queues.open(before)
        found = self._queues.batches(before, after)
        self._presence.reads((queue.steps.name, number, rows) for queue, number, _, rows in found)
        attempts = self._queues.count_attempts(found) if self._decoder.counts_attempts else [1] * len(found)
        batches = [
            Slice(queue.steps.name, (self._group, number), 0, rows, rows, row, attempts=times)
            for (queue, number, row, rows), times in zip(found, attempts, strict=True)
        ]
        self._tell(self._queues.known)
        tasks = tasks_of(self._options, batches)
        if ending.rows(end) == ending.rows(start) or not self._options.ends:
            return tasks
        self._ask()
        return [*tasks, Task([], ends=True)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the slices of one task, or the end row."""
        return read_task(self._options, self._decoder, partition)

    def commit(self, end: Offset) -> None:
        """Delete everything up to `end` on the server: Spark has processed it."""
        positions = ending.positions(end)
        self._queues.commit(self._queues.opened(positions), positions)
        self._presence.committed(positions)

    def stop(self) -> None:
        """The query has ended."""
        self._presence.leave(server_of(self._options), _workers(self._queues.known))

    def _tell(self, queues: Mapping[str, OpenQueue]) -> None:
        """Tell that this query works on queues."""
        self._presence.tell(server_of(self._options), _workers(queues))

    @property
    def _limited(self) -> bool:
        """Whether the query reads only what was there at its start."""
        return self._available_now and not self._options.stop_at_end

    def _ask(self) -> None:
        """Ask once whether the end row may be given, and whether once more."""
        if self._options.ends and self._again is None:
            self._again = ending.is_given_again(self._options)

    def _waits(self, queues: dict[str, OpenQueue]) -> bool:
        """Wait for more messages, about for `pollWait`, and return whether to wait longer (`minRowsPerBatch`)."""
        left = self._admission.seconds_left(lambda: self._queues.look(queues))
        time.sleep(min(left, max(self._options.poll_wait, len(queues) / LOOKS)))
        return left > 0

    def _next(self, queues: dict[str, OpenQueue], start: Offset, rows: int) -> Offset:
        """Seal the next batches, and return their numbers. If there is no message, this waits for `pollWait`."""
        end, busy, waiting = self._seal(queues, start, rows)
        if end:
            return end
        if busy:
            return self._seal_busy(queues, start, rows, busy)
        ended = all(queue.ended for queue in queues.values())
        if ended and self._options.ends and self._queues.all_drained(queues):
            self._again = False
            return {ending.ROWS: 1}
        if ended and not self._begun and (end := self._seal_empty(queues, start)):
            return end
        if self._limited or (ended and self._options.stop_at_end):
            return {}
        if waiting:  # in queues that are paused
            time.sleep(self._options.poll_wait)
        elif self._queues.await_message(queues):
            return self._seal(queues, start, rows)[0]
        return {}

    def _after_end(self, queues: dict[str, OpenQueue], start: Offset) -> Offset:
        """Return what comes after the end row, if anything. Messages are not taken: their rows would be dropped."""
        if found := [name for name, length in self._queues.lengths(queues).items() if length]:
            raise StreamEndedError(
                f"the queue {found[0]!r} has messages after a row has ended its stream: it was created again, or "
                "messages were put back. Spark would drop their rows, because its watermark is past them. Read them "
                "with a new group and a new checkpoint",
                name=found[0],
            )
        if self._again:
            self._again = False
            return {ending.ROWS: ending.rows(start) + 1}
        if not self._begun and (end := self._seal_empty(queues, start)):
            return end
        if not self._available_now:
            time.sleep(self._options.poll_wait)
        return {}

    def _seal_busy(self, queues: dict[str, OpenQueue], start: Offset, rows: int, busy: QueueInUseError) -> Offset:
        """Wait for the role of a queue that another client holds, and seal its next batch."""
        name = busy.name or ""
        # A queue among several must not delay the others for long.
        alone = len(queues) == 1 or self._limited
        timeout = self._options.role_timeout if alone else self._options.poll_wait
        size = self._options.max_bytes_per_batch if rows else 0
        try:
            number = self._queues.seal_when_ready(
                queues[name], start.get(name, queues[name].committed), rows, size, timeout
            )
        except QueueInUseError as error:
            self._warn(error)
            return {}
        return {} if number is None else {name: number}

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

    def _seal(
        self, queues: dict[str, OpenQueue], start: Offset, rows: int
    ) -> tuple[Offset, QueueInUseError | None, bool]:
        """Seal what is there.

        Returns:
            The new numbers, the error of a queue whose role is busy, and whether any message waits.
        """
        lengths = self._queues.lengths(queues)
        shares = fair_shares(lengths, rows) if rows else lengths
        filled = sum(share > 0 for share in shares.values())
        # Even an empty queue may have a batch from before a crash, and may have ended.
        everything = not filled and self._wants_end and self._queues.all_closed(queues)
        chosen = self._queues.in_turn(queues)
        least = max(1, rows // max(1, len(queues)))
        limits = {
            name: rows and (share or least)
            for name, share in shares.items()
            if share or everything or name in chosen or queues[name].fresh
        }
        size = self._options.max_bytes_per_batch if rows else 0
        end, busy = self._queues.seal(queues, start, limits, size and max(1, size // max(1, filled)))
        return end, busy, bool(filled)

    @property
    def _wants_end(self) -> bool:
        """Whether it matters that all queues are closed and empty."""
        return self._options.stop_at_end or bool(self._options.ends) or not self._begun

    def _seal_empty(self, queues: dict[str, OpenQueue], start: Offset) -> Offset:
        """Seal an empty batch of one of the queues, all of which have ended, if any of them was read before."""
        for name, queue in queues.items():
            if start.get(name):
                answer = queue.steps.seal(queue.epoch, start[name], 1, upto=0, allow_empty=True)
                number = None if isinstance(answer, RoleBusy) else queue.note(answer)
                return {} if number is None else {name: number}
        return {}


def _workers(queues: Mapping[str, OpenQueue]) -> dict[str, bytes]:
    """Return the keys of those that work on queues, by the names of the queues."""
    return {name: queue.steps.keys.queue.workers for name, queue in queues.items()}
