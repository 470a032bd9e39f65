"""The steps that reading and writing a queue from Spark have in common.

A step is one script or command: it orders the arguments, and turns the answer into a result or an error. A step never
waits, and every step may be repeated. Only `run_when_ready`, `claim` and the methods called `await_…` wait.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from apressure.connection.discovery import slot_of
from apressure.connection.wire.blocking import Blocking
from apressure.connection.wire.script import Call, Script
from apressure.exceptions import QueueDoesNotExistError, QueueError, QueueInUseError, Role, ServerError
from apressure.pressure.engine.dead_letters import SUFFIX
from apressure.spark.engine.keys import SparkKeys, bound_pattern, queue_name
from apressure.spark.options import Options

T = TypeVar("T")

MAX_MESSAGES: Final = 4000
"""The most messages that one script moves or reads, so that it never blocks the server for long."""
MAX_WAIT: Final = 1.0
"""The most seconds that one command waits at the server; less where `response_timeout` is shorter."""
MIN_ROWS: Final = 10_000
"""Fewer rows than this are not worth a task of their own."""


class BatchLostError(QueueError):
    """The server no longer has the messages of a batch that Spark needs."""


class GroupTakenError(QueueError):
    """Another query, or another checkpoint, has read for this group. A group is one query with one checkpoint."""


class StreamEndedError(QueueError):
    """A queue has messages after a row has ended its stream: Spark would drop their rows as late."""


class RoleBusy(NamedTuple):
    """Another client holds the role that a step needs."""

    role: Role
    holder: str
    lease: int
    """Milliseconds until its lease ends; -1 without a lease."""


class NoRoom(NamedTuple):
    """The queue is full. `delayed`: delayed messages take the room."""

    delayed: bool = False


class Step(NamedTuple, Generic[T]):
    """A step that has not been made yet, so that steps of several queues can be made at once.

    Attributes:
        call: The script and its keys.
        arguments: Its arguments.
        read: Turns the script's answer into the result or an error.
    """

    call: Call
    arguments: tuple[Any, ...]
    read: Callable[[Any], T]


def run_steps(server: Blocking, steps: Sequence[Step[T]]) -> list[T]:
    """Make steps of any queues at once, and return their results.

    Raises:
        QueueError, ServerError: One of the steps failed. The others were made, or not.
    """
    answers = server.run_all([(step.call, step.arguments) for step in steps]) if steps else []
    return [step.read(answer) for step, answer in zip(steps, answers, strict=True)]


def measure_all(server: Blocking, queues: Sequence[QueueSteps], skip_missing: bool) -> dict[str, tuple[int, int, bool]]:
    """Measure queues at once; see `QueueSteps.measure`.

    Args:
        server: The connection.
        queues: The queues.
        skip_missing: Leave out queues that do not exist: they were deleted since they were found.

    Raises:
        QueueDoesNotExistError: A queue does not exist.
    """
    steps = [queue.to_measure() for queue in queues]
    answers = server.run_all([(step.call, step.arguments) for step in steps]) if steps else []
    found = {}
    for queue, step, answer in zip(queues, steps, answers, strict=True):
        try:
            found[queue.name] = step.read(answer)
        except QueueDoesNotExistError:
            if not skip_missing:
                raise
    return found


@functools.cache
def script(name: str, package: str = "apressure.spark.engine") -> Script:
    """Return the script of that name. Each one is read once."""
    return Script(package, name, "apressure.pressure.engine")


def server_of(options: Options) -> Blocking:
    """Return this process's connection for these options.

    Spark reuses its worker processes, so most tasks find an open connection. A worker runs one task at a time.
    """
    return _server_of(options, os.getpid())


@functools.lru_cache(maxsize=8)
def _server_of(options: Options, _: int) -> Blocking:
    return Blocking(options.settings())


def find_queues(server: Blocking, pattern: str) -> list[str]:
    """Return the names of the queues that match a pattern, sorted. This scans all keys of the server.

    The dead-letter queue of a queue that matches is left out: a stream would read its own dead letters, and make dead
    letters of them. So are names that are not UTF-8, which Spark cannot show.
    """
    prefix = server.settings.prefix
    names = (queue_name(prefix, key) for key in server.scan(bound_pattern(prefix)))
    return sorted(name for name in names if _matches(name, pattern))


def _matches(name: str, pattern: str) -> bool:
    if not fnmatch.fnmatchcase(name, pattern) or any("\ud800" <= letter <= "\udfff" for letter in name):
        return False
    return not (name.endswith(SUFFIX) and fnmatch.fnmatchcase(name.removesuffix(SUFFIX), pattern))


def fair_shares(lengths: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide `limit` rows among queues of these lengths, as evenly as their lengths allow."""
    shares = dict.fromkeys(lengths, 0)
    left = limit
    waiting = {name: length for name, length in lengths.items() if length > 0}
    while waiting and left > 0:
        each = max(1, left // len(waiting))
        for name in list(waiting):
            more = min(each, waiting[name], left)
            shares[name] += more
            left -= more
            waiting[name] -= more
            if not waiting[name]:
                del waiting[name]
    return shares


def split_rows(lengths: Sequence[int], limit: int, min_rows: int = MIN_ROWS) -> list[list[tuple[int, int, int]]]:
    """Divide the rows of lists of these lengths among at most `limit` tasks, evenly.

    Args:
        lengths: The lengths of the lists.
        limit: The most tasks.
        min_rows: A task has about so many rows or more.

    Returns:
        For each task its ranges: the index of the list, and the positions of the first row and behind the last one.
    """
    total = sum(lengths)
    count = max(1, min(limit, total // min_rows))
    ends = list(itertools.accumulate(lengths))
    tasks = []
    for low, high in itertools.pairwise(total * i // count for i in range(count + 1)):
        within = ((index, max(low, end - lengths[index]), min(high, end)) for index, end in enumerate(ends))
        ranges = [
            (i, begin - ends[i] + lengths[i], end - ends[i] + lengths[i]) for i, begin, end in within if begin < end
        ]
        if ranges:
            tasks.append(ranges)
    return tasks


class QueueSteps:
    """The steps of one queue that need neither a group nor a write.

    Args:
        server: The connection.
        name: The queue's name.

    Attributes:
        slot: The slot of the queue's keys in a cluster; None for other servers.

    Raises:
        ValueError: The server is a cluster, and the queue's keys would be on several nodes.
    """

    def __init__(self, server: Blocking, name: str) -> None:
        self.server = server
        self.keys = SparkKeys(server.settings.prefix, name)
        self.slot = slot_of(server.settings.address, self.keys.queue.specified)
        self.name = name
        self._uid = server.id

    def create(self, bound: int) -> None:
        """Create the queue if it does not exist (specification: Create)."""
        collisions = self.keys.queue.collisions()
        call = script("create", "apressure.pressure.engine").on((*self._operation(), *collisions))
        answer = self.server.run(call, bound, 1, 0)
        if isinstance(answer, list) and answer[0] == b"collides":
            other = collisions[answer[1] - 1].removesuffix(b":bound").decode(errors="replace")
            raise QueueError(
                f"the queue {self.name!r} would share a key with the existing queue at {other!r}: choose another name",
                name=self.name,
            )

    def close(self, claimed: bool = False) -> int | RoleBusy:
        """Close the queue (specification: Close). A closed queue stays closed."""
        call = script("close", "apressure.pressure.engine").on(self._operation())
        answer = self.server.run(call, self._uid, 1, 0, int(claimed), "")
        if isinstance(answer, list) and answer[0] == b"closed":
            return 1
        return self._read(answer)  # type: ignore[no-any-return]

    def exists(self) -> bool:
        """Whether the queue exists (specification: Exists)."""
        return bool(self.server.ask(b"EXISTS", self.keys.queue.bound))

    def missing(self) -> QueueDoesNotExistError:
        """Return the error for a queue that does not exist."""
        hint = "create it, or set .option('create', True)"
        return QueueDoesNotExistError(f"the queue {self.name!r} does not exist: {hint}", name=self.name)

    def length(self) -> int:
        """Return the number of waiting messages."""
        return int(self.server.ask(b"LLEN", self.keys.queue.messages))

    def measure(self) -> tuple[int, int, bool]:
        """Return how many messages have ever left the queue, how many wait in it, and whether it is closed."""
        return self._now(self.to_measure())

    def to_measure(self) -> Step[tuple[int, int, bool]]:
        """`measure` as a step to make later."""
        return self._step("measure", (), (), lambda answer: (answer[1], answer[2], bool(answer[3])))

    def peek(self, left: int, begin: int, end: int) -> tuple[int, list[bytes]]:
        """Read messages at the positions `begin` to `end` of the queue, as it was when `left` messages had left it.

        Returns:
            How many messages have left since then, and those of the messages that are still there, newest first.
        """
        _, moved, found = self._run("peek", (), left, begin, end)
        return moved, found

    def groups(self) -> list[str]:
        """Return the groups that have read the queue with Spark, sorted."""
        return sorted(group.decode(errors="replace") for group in self.server.ask(b"HKEYS", self.keys.groups))

    def await_message(self, seconds: float) -> bool:
        """Wait until the queue has a message, and return whether it has one. Nothing is taken."""
        messages = self.keys.queue.messages
        return None is not self.server.ask(b"BLMOVE", messages, messages, b"RIGHT", b"RIGHT", f"{seconds:.3f}")

    def await_room(self, seconds: float, delayed: bool = False) -> None:
        """Wait until the queue may have room; `delayed`: delayed messages take it."""
        not_full = self.keys.queue.room if delayed else self.keys.queue.not_full
        self.server.ask(b"BLMOVE", not_full, not_full, b"RIGHT", b"RIGHT", f"{seconds:.3f}")

    def claim(self, role: Role, seconds: float) -> bool:
        """Wait in line for a role's token and claim it (specification: BRPOPLPUSH). Return whether it came."""
        free, claim = self.keys.queue.free(role), self.keys.queue.claim(role)
        return self.server.ask(b"BLMOVE", free, claim, b"RIGHT", b"LEFT", f"{seconds:.3f}") is not None

    def run_when_ready(self, step: Callable[[bool], T | RoleBusy | NoRoom], role_timeout: float) -> T:
        """Run a step again and again until its role is free and the queue has room, and return its result.

        For room this waits without a limit.

        Args:
            step: The step. Its argument says whether the role was claimed for it.
            role_timeout: Seconds to wait for the role.

        Raises:
            QueueInUseError: Another client held the role for `role_timeout` seconds.
        """
        deadline = time.monotonic() + role_timeout
        longest = min(MAX_WAIT, self.server.settings.response_timeout / 2)
        claimed = False
        while True:
            answer = step(claimed)
            claimed = False
            if isinstance(answer, NoRoom):
                self.await_room(longest, answer.delayed)
                deadline = time.monotonic() + role_timeout
            elif isinstance(answer, RoleBusy):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.in_use(answer)
                lease = answer.lease / 1000 + 0.01 if answer.lease >= 0 else longest
                claimed = self.claim(answer.role, max(0.01, min(left, lease, longest)))
            else:
                return answer

    def in_use(self, busy: RoleBusy) -> QueueInUseError:
        """Return the error for a role that another client holds."""
        return QueueInUseError(
            f"the {busy.role} role of the queue {self.name!r} is held by {busy.holder or 'another client'!r}: wait "
            "longer with roleTimeout, or run `apressure doctor`",
            name=self.name,
            role=busy.role,
            holder=busy.holder or None,
        )

    def _operation(self) -> tuple[bytes, ...]:
        return self.keys.queue.for_script(secrets.token_hex(8))

    def _run(self, name: str, more_keys: tuple[bytes, ...], *arguments: Any) -> Any:
        return self._now(self._step(name, more_keys, arguments, lambda answer: answer))

    def _now(self, step: Step[T]) -> T:
        return step.read(self.server.run(step.call, *step.arguments))

    def _step(
        self, name: str, more_keys: tuple[bytes, ...], arguments: tuple[Any, ...], result: Callable[[Any], T]
    ) -> Step[T]:
        """Return a step of a script of ours. `result` turns an answer that is no error into the result."""
        call = script(name).on((*self.keys.base, *more_keys))
        return Step(call, arguments, lambda answer: result(self._read(answer)))

    def _read(self, answer: Any) -> Any:
        """Turn the answers that many scripts have in common into results and errors."""
        match answer[0] if isinstance(answer, list) else None:
            case b"busy":
                return RoleBusy(answer[1].decode(), answer[2].decode(errors="replace"), answer[3])
            case b"missing":
                raise self.missing()
            case b"corrupt":
                raise ServerError(f"the queue {self.name!r} is damaged: {answer[1].decode(errors='replace')}")
        return answer
