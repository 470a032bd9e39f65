"""`spark.readStream`: sealed batches of queues, which a crash cannot lose or double.

Spark asks one process, for as long as the query lives: which is the last batch (`latestOffset`), what are its slices
(`partitions`); and it says what it has done with (`commit`). An offset is the number of the last sealed batch of each
queue. Which batches there are is on the server; what Spark has logged decides which of them count.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from apressure.exceptions import QueueInUseError
from apressure.spark.decoding import Decoder
from apressure.spark.options import Options
from apressure.spark.reader import SMALL, Slice, read, tasks
from apressure.spark.steps import Busy, Steps, allot, find, server_of, spread

Offset = dict[str, int]

LOOK_AROUND: Final = 5.0
"""Seconds after which a pattern is looked up again: somebody may have made another queue."""
_log = logging.getLogger("apressure.spark")


class _Reading:
    """One queue, as this process reads it for a group.

    Attributes:
        steps: Its steps.
        committed: The last batch that is done with.
        fresh: Nothing has been taken by this process: there may be a batch from before a crash.
        upto: How many messages may have left the queue in all; None for any number.
    """

    def __init__(self, steps: Steps, group: str) -> None:
        self.steps = steps
        self._group = group
        self._epoch, self.committed, _ = steps.adopt(group)
        self.fresh = True
        self.upto: int | None = None

    def seal(self, start: int, most: int, timeout: float) -> int | Busy | None:
        """Seal the batch after `start`: its number, or None where there is nothing for it."""
        answer: int | bool | Busy | None = True
        while answer is True:
            answer = self.steps.patiently(
                lambda held: self.steps.seal(self._group, self._epoch, start, most, self.upto, held), timeout
            )
        if not isinstance(answer, Busy):
            self.fresh = False
        return answer

    def slices(self, start: int, end: int, most: int) -> list[Slice]:
        """The slices of the batches after `start` up to `end`."""
        found = self.steps.slices(self._group, self._epoch, start + 1, end) if end > start else []
        return [
            Slice(self.steps.name, (self._group, number), begin, upto, rows, first)
            for number, (first, rows) in enumerate(found, start + 1)
            for begin, upto in spread(rows, most, SMALL)
        ]

    def commit(self, end: int) -> None:
        """Spark has done with all batches up to `end`."""
        if end > self.committed:
            self.steps.commit(self._group, self._epoch, self.committed + 1, end)
            self.committed = end


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one query.

    Args:
        options: The user's.
        schema: The columns that he wants.

    Raises:
        ValueError: The options have no group, or the schema does not fit.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.group is None:
            raise ValueError(
                "a stream needs a group: .option('group', NAME), one for each query; it goes on where the group was"
            )
        self._options = options
        self._group = options.group
        self._decoder = Decoder(options, schema)
        self._readings: dict[str, _Reading] = {}
        self._found: tuple[str, ...] = options.names
        self._looked = 0.0
        self._complained = -math.inf
        self._ends = False  # AvailableNow: the query ends when it has read what there was

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy, to read with: which queues there are is this process's business.
        return {**self.__dict__, "_readings": {}}

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new checkpoint begins: at the oldest batch that no query has done with."""
        return {name: reading.committed for name, reading in self._queues().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As `maxRowsPerBatch` says."""
        return ReadMaxRows(self._options.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and no more."""
        self._ends = True
        for reading in self._queues().values():
            left, length, _ = reading.steps.measure()
            reading.upto = left + length

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Seal a batch for each queue that has messages, or adopt one that was sealed before a crash.

        Where another client holds the role, this waits for it for `roleTimeout`; then the stream lives on without it.

        Raises:
            GroupTakenError: Another query reads for this group.
            QueueDoesNotExistError: There is no such queue.
            QueueInUseError: With AvailableNow, which would end without having read everything.
        """
        most = self._most(limit)
        readings = self._queues()
        for name, reading in readings.items():
            # What is below `start` is done with: whoever was to commit it died, or is AvailableNow, which never does.
            if reading.fresh or self._ends:
                reading.commit(start.get(name, 0))
        end, busy = self._seal(readings, start, most, 0.0)
        if not end and busy:
            # One queue of several must not hold the others up.
            alone = len(readings) == 1 or self._ends
            timeout = self._options.role_timeout if alone else self._options.poll_wait
            end, busy = self._seal({busy: readings[busy]}, start, most, timeout)
            if busy:
                self._complain(readings[busy].steps.in_use(self._holder))
        elif not end and not self._ends and self._await_message(readings):
            end, _ = self._seal(readings, start, most, 0.0)
        return {**start, **end} if end else start

    def partitions(self, start: Offset, end: Offset) -> list[Slice]:  # type: ignore[override]
        """Cut the sealed batches between two offsets in slices.

        Raises:
            BatchLostError: The server has the messages no more.
            GroupTakenError: Another query reads for this group.
        """
        changed = {name: number for name, number in end.items() if number != start.get(name)}
        most = max(1, tasks(self._options) // max(1, len(changed)))
        pieces: list[Slice] = []
        for name, number in changed.items():
            reading = self._reading(name)
            pieces += reading.slices(start.get(name, reading.committed), number, most)
        return pieces

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one slice."""
        assert isinstance(partition, Slice)
        return read(self._options, self._decoder, partition)

    def commit(self, end: Offset) -> None:
        """Spark has done with everything up to `end`: the server need not keep it."""
        for name, number in end.items():
            self._reading(name).commit(number)

    def _complain(self, error: QueueInUseError) -> None:
        """The role was not to be had: that ends AvailableNow, and nothing else. It is said now and then."""
        if self._ends:
            raise error
        if time.monotonic() >= self._complained + self._options.role_timeout:
            self._complained = time.monotonic()
            _log.warning("%s; the stream goes on with its next batch", error)

    def _most(self, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable):
            return 0
        return max(1, limit.max_rows) if isinstance(limit, ReadMaxRows) else self._options.max_rows_per_batch

    def _queues(self) -> dict[str, _Reading]:
        """The queues that there are to read."""
        if self._options.pattern is not None and (not self._looked or time.monotonic() > self._looked + LOOK_AROUND):
            server = server_of(self._options)
            if not (self._ends and self._looked):  # AvailableNow reads what there was
                self._found = tuple(find(server, server.settings.prefix, self._options.pattern))
            self._looked = time.monotonic()
        return {name: self._reading(name) for name in self._found}

    def _reading(self, name: str) -> _Reading:
        if name not in self._readings:
            server = server_of(self._options)
            steps = Steps(server, server.settings.prefix, name)
            if self._options.create:
                steps.create(self._options.bound)
            self._readings[name] = _Reading(steps, self._group)
        return self._readings[name]

    def _seal(
        self, readings: dict[str, _Reading], start: Offset, most: int, timeout: float
    ) -> tuple[Offset, str | None]:
        """Seal what there is: the new numbers, and the name of a queue whose role another client holds."""
        shares = dict.fromkeys(readings, most)
        if len(readings) > 1 and most:
            lengths = {name: reading.steps.length() for name, reading in readings.items()}
            shares = allot(lengths, most)
        end: Offset = {}
        busy = None
        for name, share in shares.items():
            reading = readings[name]
            if most and not share and not reading.fresh:
                continue
            # (Where there is nothing new, there may be a batch from before a crash.)
            answer = reading.seal(start.get(name, reading.committed), share or min(most, 1), timeout)
            if isinstance(answer, Busy):
                self._holder, busy = answer, name
            elif answer is not None:
                end[name] = answer
        return end, busy

    def _await_message(self, readings: dict[str, _Reading]) -> bool:
        """Wait for a message where the query would otherwise ask again and again. Whether there may be one."""
        seconds = self._options.poll_wait
        if len(readings) == 1 and seconds:
            (reading,) = readings.values()
            reading.steps.await_message(seconds)
            return True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:  # nothing waits for several lists at once and takes nothing
            time.sleep(min(left, 0.05))
            if any(reading.steps.length() for reading in readings.values()):
                return True
        return False
