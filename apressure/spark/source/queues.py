"""The queues of one stream, in the process that reads them. One round trip to each server is for all of its queues."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from apressure.exceptions import QueueDoesNotExistError, QueueInUseError
from apressure.spark.engine import looks
from apressure.spark.engine.source_steps import Sealed, SourceSteps
from apressure.spark.engine.steps import MAX_MESSAGES, RoleBusy, find_queues, measure_all, run_steps, server_of
from apressure.spark.options import Options

PATTERN_INTERVAL: Final = 5.0
"""Seconds after which a stream looks for new queues that match its pattern."""
LOOK_INTERVAL: Final = 0.05
"""Seconds between two looks at several queues that are empty, at first."""
LOOKS: Final = 50
"""About the most commands a second for looking at queues that are empty."""
LEAST_MOVED: Final = 500
"""The most messages that one step moves if many queues are sealed at once."""
Offset = dict[str, int]


@dataclasses.dataclass
class OpenQueue:
    """One queue, as this process reads it.

    Attributes:
        steps: The queue's steps.
        epoch: The query's epoch.
        committed: The last committed batch.
        fresh: This process has not asked for a batch yet: there may be one from before a crash.
        ended: The queue was closed and empty when it was last asked for a batch.
    """

    steps: SourceSteps
    epoch: int
    committed: int
    fresh: bool = True
    ended: bool = False

    def note(self, answer: Sealed) -> int | None:
        """Note what a step that seals has answered, and return the number of the sealed batch."""
        self.fresh = False
        self.ended = answer == "closed"
        return answer if isinstance(answer, int) else None


class Queues:
    """The queues of one stream.

    Args:
        options: The user's options.
        group: The group.
    """

    def __init__(self, options: Options, group: str) -> None:
        self._options = options
        self._group = group
        self._opened: dict[str, OpenQueue] = {}
        self._found: tuple[str, ...] = options.names
        self._search_at = -math.inf  # when to look for queues that match the pattern
        self._upto: dict[str, int] = {}  # with AvailableNow: how many messages may ever have left each queue
        self._pause = LOOK_INTERVAL
        # Whose turn it is to be asked although it looks empty, and when.
        self._turn, self._turn_at = 0, -math.inf

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}  # tasks get a copy: they read slices and need no queues

    def names(self) -> tuple[str, ...]:
        """The names of the queues to read."""
        began = time.monotonic()
        if self._options.pattern is not None and began >= self._search_at:
            self._found = tuple(find_queues(server_of(self._options), self._options.pattern))
            now = time.monotonic()  # a server with very many keys takes long to scan
            self._search_at = now + max(PATTERN_INTERVAL, 20 * (now - began))
        return self._found

    def open(self, start: Offset) -> dict[str, OpenQueue]:
        """The queues to read, for a query whose checkpoint is at `start`.

        Raises:
            GroupTakenError: The checkpoint is older than the last commit of a queue.
        """
        # A queue of the checkpoint that is not read any more may have a batch from before a crash.
        self._open(start, start)
        before = (name for name in start if self._opened[name].fresh)
        names = dict.fromkeys([*self.names(), *before])
        self._open(names, start)
        return {name: self._opened[name] for name in names}

    def opened(self, positions: Offset) -> dict[str, OpenQueue]:
        """The queues with a position, including those that match the pattern no longer."""
        self._open(positions, positions)
        return {name: self._opened[name] for name in positions}

    @property
    def known(self) -> dict[str, OpenQueue]:
        """The queues that have been opened so far."""
        return self._opened

    def limit_to_present(self) -> None:
        """Take only the messages that are there now, and look for no more queues."""
        names, server = self.names(), server_of(self._options)
        queues = [self._steps(name) for name in names]
        measured = measure_all(server, queues, skip_missing=self._options.pattern is not None)
        self._found = tuple(measured)
        self._upto = {name: left + length for name, (left, length, _) in measured.items()}
        self._search_at = math.inf

    def lengths(self, queues: Mapping[str, OpenQueue]) -> dict[str, int]:
        """How many messages wait in each queue."""
        return looks.lengths(server_of(self._options), _groups(queues))

    def all_closed(self, queues: Mapping[str, OpenQueue]) -> bool:
        """Whether all queues are closed."""
        return looks.count(server_of(self._options), _groups(queues), looks.closed_of) == len(queues)

    def all_drained(self, queues: Mapping[str, OpenQueue]) -> bool:
        """Whether all queues are closed and empty at this moment."""
        return self.all_closed(queues) and not any(self.lengths(queues).values())

    def look(self, queues: Mapping[str, OpenQueue]) -> looks.Look:
        """How many messages wait in all queues, and whether to wait for more."""
        return looks.look(server_of(self._options), _groups(queues))

    def backlogs(self) -> tuple[dict[str, dict[str, int]], int]:
        """The messages and bytes that wait in each queue, and how many commands it took to ask."""
        groups = _groups(self._opened)
        return looks.backlogs(server_of(self._options), groups), 2 * len(groups)

    def in_turn(self, queues: Mapping[str, OpenQueue]) -> set[str]:
        """The names of a few queues to ask although they look empty, three a second.

        That finds a queue that was deleted, a query that has taken the group, and what a dead consumer left.
        """
        now = time.monotonic()
        if now < self._turn_at:
            return set()
        names = list(queues)
        chosen = {names[(self._turn + i) % len(names)] for i in range(min(3, len(names)))}
        self._turn, self._turn_at = self._turn + 3, now + 1.0
        return chosen

    def seal(
        self, queues: Mapping[str, OpenQueue], start: Offset, limits: Mapping[str, int], limit_bytes: int
    ) -> tuple[Offset, QueueInUseError | None]:
        """Seal the next batch of each queue that has a limit, all at once.

        If this process dies meanwhile, any of the queues may have a batch that is sealed, or incomplete: the next
        process uses it.

        Returns:
            The numbers of the batches, and the error of a queue whose role is busy.
        """
        left, server = dict(limits), server_of(self._options)
        sealed: Offset = {}
        busy = None
        self._pause = LOOK_INTERVAL if any(limits.values()) else self._pause
        while left:
            most = max(LEAST_MOVED, MAX_MESSAGES // len(left))
            steps = {
                name: queues[name].steps.to_seal(
                    queues[name].epoch,
                    start.get(name, queues[name].committed),
                    limit,
                    upto=self._upto.get(name) if name in self._found else 0,
                    limit_bytes=limit_bytes,
                    most=most,
                )
                for name, limit in left.items()
            }
            answers = server.run_all([(step.call, step.arguments) for step in steps.values()])
            for (name, step), answer in zip(steps.items(), answers, strict=True):
                try:
                    result = step.read(answer)
                except QueueDoesNotExistError:
                    if name in self._options.names:
                        raise
                    self._found = tuple(one for one in self._found if one != name)
                    queues[name].note("closed")
                    del left[name]
                    continue
                if result == "more":
                    continue
                del left[name]
                if isinstance(result, RoleBusy):
                    busy = queues[name].steps.in_use(result)
                elif (number := queues[name].note(result)) is not None:
                    sealed[name] = number
                queues[name].ended |= name not in self._found
        return sealed, busy

    def seal_when_ready(self, queue: OpenQueue, start: int, limit: int, limit_bytes: int, timeout: float) -> int | None:
        """Wait for the consumer role of one queue, and seal its next batch; None if it has no messages.

        Raises:
            QueueInUseError: Another client held the role for `timeout` seconds.
        """
        upto = self._upto.get(queue.steps.name)

        def step(claimed: bool) -> Any:
            return queue.steps.seal(queue.epoch, start, limit, upto=upto, claimed=claimed, limit_bytes=limit_bytes)

        while (answer := queue.steps.run_when_ready(step, timeout)) == "more":
            pass
        return queue.note(answer)

    def await_message(self, queues: Mapping[str, OpenQueue]) -> bool:
        """Wait for a message for `pollWait` seconds, and return whether there may be one. Nothing is taken.

        Several queues are looked at again and again, because no command waits for several lists and takes nothing. In
        a cluster with many slots this may take longer than `pollWait`, as each slot costs a command.
        """
        seconds = self._options.poll_wait
        if len(queues) == 1 and seconds:
            (queue,) = queues.values()
            return queue.steps.await_message(seconds)
        groups = _groups(queues)
        longest = max(2 * LOOK_INTERVAL, len(groups) / LOOKS)
        deadline = time.monotonic() + (max(seconds, self._pause) if seconds else 0.0)
        while True:
            left, pause = deadline - time.monotonic(), self._pause
            self._pause = min(2 * pause, longest)
            if left <= pause:  # Spark asks again at once, and then the first thing is a look
                time.sleep(max(0.0, left))
                return False
            time.sleep(pause)
            if looks.count(server_of(self._options), groups, looks.messages_of):
                return True

    def batches(self, start: Offset, end: Offset) -> list[tuple[OpenQueue, int, int, int]]:
        """The batches between two offsets: queue, number of the batch, number of its first row, number of rows."""
        changed = {name: number for name, number in end.items() if number != start.get(name)}
        self._open(changed, start)
        ranges = []
        for name, number in changed.items():
            queue = self._opened[name]
            begin = start.get(name, queue.committed)
            if number > begin:
                ranges.append((queue, begin + 1, number))
        if not self._options.max_attempts:  # no row is left out now, as it was if another process had `maxAttempts`
            fresh = [(queue, first, last) for queue, first, last in ranges if queue.fresh]
            server_of(self._options).ask_all([queue.steps.to_forget_failures(*rest) for queue, *rest in fresh])
        counted = run_steps(
            server_of(self._options),
            [queue.steps.to_count_rows(queue.epoch, first, last) for queue, first, last in ranges],
        )
        return [
            (queue, number, row, rows)
            for (queue, first, _), found in zip(ranges, counted, strict=True)
            for number, (row, rows) in enumerate(found, first)
        ]

    def count_attempts(self, batches: Sequence[tuple[OpenQueue, int, int, int]]) -> list[int]:
        """Count that Spark is about to read these batches, and return how often it has read each of them."""
        steps = [queue.steps.to_count_attempts(queue.epoch, number) for queue, number, _, _ in batches]
        return run_steps(server_of(self._options), steps)

    def commit(self, queues: Mapping[str, OpenQueue], end: Offset) -> None:
        """Delete all batches up to `end`: Spark has processed them."""
        due = {name: number for name, number in end.items() if name in queues and number > queues[name].committed}
        for name, number in due.items():
            queue = queues[name]
            # Whatever the limit is now: Spark went on without these rows when they had been tried often enough.
            if self._options.max_attempts or queue.fresh:
                for batch in queue.steps.failures(queue.committed + 1, number):
                    queue.steps.bury(queue.epoch, batch)
        run_steps(
            server_of(self._options),
            [
                step
                for name, number in due.items()
                for step in queues[name].steps.to_commit(queues[name].epoch, queues[name].committed + 1, number)
            ],
        )
        for name, number in due.items():
            queues[name].committed = number

    def _open(self, names: Iterable[str], start: Offset) -> None:
        new = {name: self._steps(name) for name in names if name not in self._opened}
        server, known = server_of(self._options), [name for name in new if name in start]
        # Check all of them before any other query of the group is refused.
        for name, committed in zip(
            known,
            server.ask_all([(b"HGET", new[name].state, b"committed") for name in known]),
            strict=True,
        ):
            new[name].check_position(start[name], committed)
        for steps in new.values() if self._options.max_attempts else ():
            steps.check_dead_letters()
        begun = run_steps(server, [steps.to_begin_epoch(start.get(name)) for name, steps in new.items()])
        for (name, steps), (epoch, committed, _) in zip(new.items(), begun, strict=True):
            self._opened[name] = OpenQueue(steps, epoch, committed)

    def _steps(self, name: str) -> SourceSteps:
        steps = SourceSteps(server_of(self._options), name, self._group)
        if self._options.create and name in self._options.names:
            steps.create(self._options.bound)
        return steps


def _groups(queues: Mapping[str, OpenQueue]) -> Sequence[Sequence[SourceSteps]]:
    return looks.groups_of([queue.steps for queue in queues.values()])  # type: ignore[return-value]
