"""One function for each step of Spark's with a queue: it orders the script's arguments and reads its answer.

A step never waits, but for `patiently`, which does so for a role and for room. All steps may be repeated: what has been
done is on the server. No pyspark is needed here.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from apressure.connection.blocking import Blocking
from apressure.connection.discovery import slot_of
from apressure.connection.script import Call, Script
from apressure.exceptions import (
    QueueClosedError,
    QueueDoesNotExistError,
    QueueError,
    QueueInUseError,
    Role,
    ServerError,
)
from apressure.spark.keys import SparkKeys, bounds, name_of_bound
from apressure.spark.options import Options

MOST: Final = 4000
"""The most messages that one script moves, or looks at, so that the server is never busy with it for long."""
SLICE: Final = 1.0
"""Seconds that one wait at the server may last; less where its answers are given up sooner."""


class BatchLostError(QueueError):
    """The server has no messages of a batch that Spark means to read."""


class GroupTakenError(QueueError):
    """Another query reads for this group, or another checkpoint has: one group is one query and its checkpoint."""


class Busy(NamedTuple):
    """Another client holds the role that a step needs."""

    role: Role
    holder: str
    lease: int
    """Milliseconds until its lease ends; -1 where it has none."""


class Full(NamedTuple):
    """There is no room in the queue."""


@functools.cache
def script(name: str, package: str = "apressure.spark") -> Script:
    """Return the script of that name, read once."""
    return Script(package, name, "apressure.queue")


def server_of(options: Options) -> Blocking:
    """The connection of this process for these options: Spark's workers live on, and need not connect for each task.

    A worker has one thread that does something.
    """
    return _server_of(options, os.getpid())


@functools.lru_cache(maxsize=8)
def _server_of(options: Options, _: int) -> Blocking:
    return Blocking(options.settings())


class Steps:
    """The steps of one queue.

    Args:
        server: Where it is.
        prefix: The prefix of its keys.
        name: Its name.

    Raises:
        ValueError: The server is a cluster, and would spread the queue's keys over several nodes.
    """

    def __init__(self, server: Blocking, prefix: str, name: str) -> None:
        self.server = server
        self.keys = SparkKeys(prefix, name)
        slot_of(server.settings.address, self.keys.queue.specified)
        self.name = name
        self._uid = server.settings.client_id

    # Reading.

    def adopt(self, group: str) -> tuple[int, int, int]:
        """Become the query that reads for a group: (epoch, last batch that is done with, last sealed batch)."""
        _, *answer = self._run("adopt", group, (self.keys.state(group), self.keys.groups), group)
        return tuple(answer)  # type: ignore[return-value]

    def seal(
        self, group: str, epoch: int, start: int, most: int, upto: int | None = None, held: bool = False
    ) -> int | bool | Busy | None:
        """Take messages for the batch after `start`, in one step: at most so many for the batch (0: all).

        `upto`: how many may have left the queue in all.

        Returns:
            Its number when it is sealed; None if there is nothing to take, True if there is more to take.

        Raises:
            GroupTakenError: Another query reads for this group.
            QueueDoesNotExistError: There is no such queue, and nothing was taken from it before.
        """
        keys = (self.keys.state(group), self.keys.batch(group, start + 1))
        answer = self._run(
            "seal", group, keys, self._uid, int(held), epoch, start, most, MOST, "" if upto is None else upto
        )
        match answer[0] if isinstance(answer, list) else None:
            case b"sealed":
                return int(answer[1])
            case b"more":
                return True
            case b"empty" | b"closed":
                return None
        return answer  # type: ignore[no-any-return]

    def slices(self, group: str, epoch: int, first: int, last: int) -> list[tuple[int, int]]:
        """For each of these sealed batches the number of its first row, and of its rows."""
        keys = (self.keys.state(group), *(self.keys.batch(group, number) for number in range(first, last + 1)))
        answer = self._run("slices", group, keys, epoch, first)
        if answer[0] == b"gone":
            raise self.lost(group, answer[1])
        numbers = answer[1]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def commit(self, group: str, epoch: int, first: int, last: int) -> None:
        """Forget these batches: Spark has done with them."""
        for begin in range(first, last + 1, 1000):
            numbers = range(begin, min(begin + 1000, last + 1))
            keys = (self.keys.state(group), *(self.keys.batch(group, number) for number in numbers))
            self._run("commit", group, keys, epoch, begin)

    def flights(self) -> dict[str, tuple[int, int, int]]:
        """For each group (last batch done with, last that there may be, milliseconds since the oldest was sealed)."""
        groups = sorted(group.decode() for group in self.server.ask(b"HKEYS", self.keys.groups))
        if not groups:
            return {}
        _, found = self._run("flights", "", tuple(map(self.keys.state, groups)))
        return {group: tuple(one) for group, one in zip(groups, found, strict=True)}  # type: ignore[misc]

    def lengths(self, group: str, first: int, last: int) -> list[int]:
        """How many messages each of these batches has."""
        return [int(self.server.ask(b"LLEN", self.keys.batch(group, number))) for number in range(first, last + 1)]

    def give_back(self, group: str, epoch: int, number: int, last: int) -> int:
        """Give the messages of a group's latest batch back to the queue. Answers with how many they were."""
        keys = (self.keys.state(group), self.keys.batch(group, number))
        total, left = 0, 1
        while left:
            _, moved, left = self._run("return", group, keys, epoch, number, last, MOST)
            total += moved
        return total

    def lost(self, group: str, number: int) -> BatchLostError:
        """The error for a batch that is not there."""
        return BatchLostError(
            f"the messages of batch {number} of the group {group!r}, taken from the queue {self.name!r}, are not on "
            "the server any more: somebody deleted them, or the server lost them in a failover or restart. "
            "Spark would leave them out silently; start with a new checkpoint to go on without them",
            name=self.name,
        )

    def length(self) -> int:
        """How many messages wait in the queue."""
        return int(self.server.ask(b"LLEN", self.keys.queue.messages))

    def measure(self) -> tuple[int, int, bool]:
        """How many messages have ever left the queue at its right end, how many are in it, and whether it is closed."""
        _, left, length, closed = self._run("measure", "", ())
        return left, length, bool(closed)

    def snapshot(self, left: int, begin: int, end: int) -> tuple[int, list[bytes]]:
        """Messages of the snapshot that was measured when so many had left the queue, by their places in it.

        Returns:
            How many have left since, and those of the messages that are there, newest first.
        """
        _, moved, found = self._run("snapshot", "", (), left, begin, end)
        return moved, found

    def await_message(self, seconds: float) -> None:
        """Wait until there is a message. Nothing is taken."""
        key = self.keys.queue.messages
        self.server.ask(b"BLMOVE", key, key, b"RIGHT", b"RIGHT", f"{seconds:.3f}")

    # Writing.

    def record(self, write: str, batch: int, ttl: int, parts: Sequence[tuple[str, int, int]]) -> str | None:
        """Decide which parts (token, messages, bytes) a write consists of. They live for `ttl` milliseconds; 0: on.

        Returns:
            The first part that has to be moved; None if all of it is in the queue already.
        """
        keys = (self.keys.sinks, self.keys.todo(write), *(self.keys.part(write, token) for token, _, _ in parts))
        words = (f"{token} {messages} {size}" for token, messages, size in parts)
        answer = self._run("record", "", keys, write, batch, ttl, *words)
        match answer[0]:
            case b"done":
                return None
            case b"gone":
                raise self._part_lost()
            case b"other":
                raise QueueError(
                    f"batch {answer[1]} of the same query has not been written to the queue {self.name!r} wholly: two "
                    "queries with one checkpoint, or a checkpoint that was set back",
                    name=self.name,
                )
        return answer[1].decode()  # type: ignore[no-any-return]

    def publish(self, write: str, batch: int, part: str, remember: bool, held: bool = False) -> str | Busy | Full:
        """Move messages of a part into the queue, in one step. Answers with the next part; with '' if there is none."""
        token = part.partition(" ")[0]
        keys = (self.keys.sinks, self.keys.todo(write), self.keys.part(write, token))
        answer = self._run("publish", "", keys, self._uid, int(held), write, batch, part, MOST, int(remember))
        if isinstance(answer, list) and answer[0] == b"gone":
            raise self._part_lost()
        return answer[2].decode() if isinstance(answer, list) else answer  # type: ignore[no-any-return]

    def discard(self, write: str, token: str) -> None:
        """Forget what a task has written, unless a stream's commit has chosen it: that has no time to live."""
        if self.server.ask(b"PTTL", self.keys.part(write, token)) > 0:
            self.server.ask(b"UNLINK", self.keys.part(write, token))

    def keep(self, write: str, ttl: int, tokens: Sequence[str]) -> None:
        """Have what is still to be written live for another `ttl` milliseconds."""
        keys = (self.keys.todo(write), *(self.keys.part(write, token) for token in tokens))
        self.server.together(*((b"PEXPIRE", key, ttl) for key in keys))

    def await_room(self, seconds: float) -> None:
        """Wait until the queue may have room."""
        key = self.keys.queue.not_full
        self.server.ask(b"BLMOVE", key, key, b"RIGHT", b"RIGHT", f"{seconds:.3f}")

    def _part_lost(self) -> BatchLostError:
        return BatchLostError(
            f"what a task has written for the queue {self.name!r} is not on the server any more: it took longer than "
            "stagingTtl, or somebody deleted it",
            name=self.name,
        )

    # The queue itself, by its own scripts.

    def create(self, bound: int) -> None:
        """Make the queue, where it does not exist (specification: Create)."""
        collisions = self.keys.queue.collisions()
        call = script("create", "apressure.queue").on((*self._operation(), *collisions))
        answer = self.server.run(call, bound, 1, 0)
        if isinstance(answer, list) and answer[0] == b"collides":
            other = collisions[answer[1] - 1].removesuffix(b":bound").decode(errors="replace")
            raise QueueError(
                f"the queue {self.name!r} would share a key with the existing queue at {other!r}: choose another name",
                name=self.name,
            )

    def close(self, held: bool = False) -> int | Busy:
        """Close the queue (specification: Close). One that is closed already stays so."""
        call = script("close", "apressure.queue").on(self._operation())
        answer = self.server.run(call, self._uid, 1, 0, int(held), "")
        if isinstance(answer, list) and answer[0] == b"closed":
            return 1
        return self._read(answer, "")  # type: ignore[no-any-return]

    def exists(self) -> bool:
        """Whether the queue exists (specification: Exists)."""
        return bool(self.server.ask(b"EXISTS", self.keys.queue.bound))

    def _operation(self) -> tuple[bytes, ...]:
        return self.keys.queue.for_script(secrets.token_hex(8))

    # A role, or room, that has to be waited for.

    def claim(self, role: Role, seconds: float) -> bool:
        """Wait in line for a role's token and claim it (specification: BRPOPLPUSH). Whether it came."""
        free, claim = self.keys.queue.free(role), self.keys.queue.claim(role)
        return self.server.ask(b"BLMOVE", free, claim, b"RIGHT", b"LEFT", f"{seconds:.3f}") is not None

    def patiently(self, step: Callable[[bool], Any], timeout: float) -> Any:
        """Run a step until it gets its role, or room; its argument says whether the role was claimed for it.

        Returns:
            The step's answer; `Busy` if the role was not to be had in `timeout` seconds. (For room it waits without
            end.)
        """
        deadline = time.monotonic() + timeout
        longest = min(SLICE, self.server.settings.response_timeout / 2)
        held = False
        while True:
            answer = step(held)
            held = False
            if isinstance(answer, Full):
                self.await_room(longest)
                deadline = time.monotonic() + timeout
            elif isinstance(answer, Busy):
                left = deadline - time.monotonic()
                if left <= 0:
                    return answer
                lease = answer.lease / 1000 + 0.01 if answer.lease >= 0 else longest
                held = self.claim(answer.role, max(0.01, min(left, lease, longest)))
            else:
                return answer

    def in_use(self, busy: Busy) -> QueueInUseError:
        """The error for a role that was not to be had."""
        return QueueInUseError(
            f"the {busy.role} role of the queue {self.name!r} is held by {busy.holder or 'somebody'!r}; wait for it "
            "longer with roleTimeout, or see what `apressure doctor` says",
            name=self.name,
            role=busy.role,
            holder=busy.holder or None,
        )

    def _run(self, name: str, group: str, more: tuple[bytes, ...], *arguments: Any) -> Any:
        call = Call(script(name), (*self.keys.base, *more))
        return self._read(self.server.run(call, *arguments), group)

    def _read(self, answer: Any, group: str) -> Any:
        if not isinstance(answer, list):
            return answer
        match answer[0]:
            case b"busy":
                return Busy(answer[1].decode(), answer[2].decode(errors="replace"), answer[3])
            case b"full":
                return Full()
            case b"missing":
                raise QueueDoesNotExistError(
                    f"the queue {self.name!r} does not exist (or .option('create', True))", name=self.name
                )
            case b"closed" if group == "":
                raise QueueClosedError(f"the queue {self.name!r} is closed: nothing can be written", name=self.name)
            case b"corrupt":
                raise ServerError(f"the queue {self.name!r} is damaged: {answer[1].decode(errors='replace')}")
            case b"fenced":
                raise GroupTakenError(_fenced(self.name, group, answer[1]), name=self.name)
            case b"behind":
                raise GroupTakenError(
                    f"batches up to {answer[1]} of the group {group!r} of the queue {self.name!r} are done with, and "
                    "this checkpoint has not read them: another checkpoint has, or they were given back to the queue. "
                    "Start with a new checkpoint, or give each query a group of its own",
                    name=self.name,
                )
        return answer


def _fenced(name: str, group: str, epoch: bytes) -> str:
    if not epoch:
        return (
            f"what the server knew of the group {group!r} of the queue {name!r} is gone: it was deleted, or lost in a "
            "failover or restart. Starting the query again goes on where it was"
        )
    return (
        f"another query reads for the group {group!r} of the queue {name!r} since (epoch {epoch.decode()}): it goes "
        "on, and this one ends. Give each query a group of its own; a stream that is used twice in one query needs two"
    )


def find(server: Blocking, prefix: str, pattern: str) -> list[str]:
    """The names of the queues that match a pattern, sorted. The whole key space is scanned."""
    names = (name_of_bound(prefix, key) for key in server.scan(bounds(prefix)))
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))


def allot(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """Share out `most` rows among queues with so many messages, as evenly as there are messages for it."""
    shares = dict.fromkeys(waiting, 0)
    left = most
    hungry = {name: length for name, length in waiting.items() if length > 0}
    while hungry and left > 0:
        each = max(1, left // len(hungry))
        for name in list(hungry):
            more = min(each, hungry[name], left)
            shares[name] += more
            left -= more
            hungry[name] -= more
            if not hungry[name]:
                del hungry[name]
    return shares


def spread(length: int, most: int, least: int) -> list[tuple[int, int]]:
    """Cut so many rows in at most `most` slices (from, to), each of at least about `least` rows."""
    count = max(1, min(most, length // least))
    edges = [length * i // count for i in range(count + 1)]
    return [(begin, end) for begin, end in itertools.pairwise(edges) if end > begin]
