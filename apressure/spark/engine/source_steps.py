"""The steps of a group that reads a queue: it takes messages in sealed batches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

from apressure.connection.discovery import slot_of
from apressure.connection.wire.blocking import Blocking
from apressure.dead_letters import encode
from apressure.exceptions import ServerError
from apressure.spark.engine.steps import MAX_MESSAGES, BatchLostError, GroupTakenError, QueueSteps, RoleBusy, Step

Sealed = int | Literal["more", "empty", "closed"]
"""The number of a sealed batch; or why nothing was sealed: see `SourceSteps.seal`."""

_MOST_DEAD: Final = 50
"""The most dead letters of one step: each is looked for by itself."""


class SealOptions(TypedDict, total=False):
    """What `seal` may do, and for which batch.

    Attributes:
        upto: How many messages may ever have left the queue; None for any number.
        claimed: Whether the consumer role was claimed for this step.
        allow_empty: Seal a batch without messages if the queue is closed and empty.
        limit_bytes: About the most bytes of the batch; 0 for no limit. The messages of one step (about 1 MB, or one
            large message) may be in it beyond that.
        most: How many messages the step moves at most.
    """

    upto: int | None
    claimed: bool
    allow_empty: bool
    limit_bytes: int
    most: int


class SourceSteps(QueueSteps):
    """The steps of one queue and one group; see `QueueSteps`."""

    def __init__(self, server: Blocking, name: str, group: str) -> None:
        super().__init__(server, name)
        self.group = group
        self.state = self.keys.state(group)
        self.batch = functools.partial(self.keys.batch, group)
        self._about = f"the group {group!r} of the queue {name!r}"

    def begin_epoch(self, start: int | None = None) -> tuple[int, int, int]:
        """Become the query that reads for the group: the steps of all earlier epochs are refused from now on.

        Args:
            start: The last batch in the query's checkpoint; None for a new checkpoint.

        Returns:
            The epoch, the last committed batch, the last sealed batch.

        Raises:
            GroupTakenError: The checkpoint is older than the last commit. The query that reads now goes on.
        """
        return self._now(self.to_begin_epoch(start))

    def to_begin_epoch(self, start: int | None) -> Step[tuple[int, int, int]]:
        """`begin_epoch` as a step to make later."""
        keys, arguments = (self.state, self.keys.groups), (self.group, "" if start is None else start)
        return self._step("begin_epoch", keys, arguments, lambda answer: (answer[1], answer[2], answer[3]))

    def check_position(self, start: int, committed: bytes | None) -> None:
        """Check that a checkpoint at `start` is not older than the last commit, as the group's state has it.

        Raises:
            GroupTakenError: It is older.
            ServerError: Another program has written into the group's state.
        """
        if committed is None:
            return
        if not committed.isdigit():
            raise self._damaged()
        if int(committed[:20]) > start:
            raise self._behind(int(committed[:20]))

    def seal(self, epoch: int, start: int, limit: int, **options: Unpack[SealOptions]) -> Sealed | RoleBusy:
        """Take messages for the batch after `start` in one step, and seal the batch when it is complete.

        Args:
            epoch: The query's epoch.
            start: The last batch that the query has.
            limit: The most messages of the batch; 0 for all.
            **options: See `SealOptions`.

        Returns:
            The number of the sealed batch; or why nothing was sealed: there is `more` to take for it, the queue is
            `empty`, or it is `closed` and empty.

        Raises:
            GroupTakenError: Another query reads for this group.
            QueueDoesNotExistError: The queue does not exist, and nothing was taken from it before.
        """
        return self._now(self.to_seal(epoch, start, limit, **options))

    def to_seal(self, epoch: int, start: int, limit: int, **options: Unpack[SealOptions]) -> Step[Sealed | RoleBusy]:
        """`seal` as a step to make later."""
        upto = options.get("upto")
        arguments = (
            self._uid, int(options.get("claimed", False)), epoch, start, limit, options.get("most", MAX_MESSAGES),
            "" if upto is None else upto, int(options.get("allow_empty", False)), options.get("limit_bytes", 0),
        )  # fmt: skip
        return self._step("seal", (self.state, self.batch(start + 1)), arguments, _sealed)

    def batch_rows(self, epoch: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the number of the first row and the number of rows for each of these sealed batches."""
        return self._now(self.to_count_rows(epoch, first, last))

    def to_count_rows(self, epoch: int, first: int, last: int) -> Step[list[tuple[int, int]]]:
        """`batch_rows` as a step to make later."""

        def result(answer: Any) -> list[tuple[int, int]]:
            if answer[0] == b"gone":
                raise self.batch_lost(answer[1])
            return list(zip(answer[1][::2], answer[1][1::2], strict=True))

        keys = (self.state, *map(self.batch, range(first, last + 1)))
        return self._step("batch_rows", keys, (epoch, first), result)

    def to_count_attempts(self, epoch: int, number: int) -> Step[int]:
        """The step that counts that Spark is about to read a sealed batch. Its result is how often it has.

        If a reply is lost, the number is higher.
        """
        return self._step("count_attempt", (self.state,), (epoch, number), lambda answer: int(answer[1]))

    def to_forget_failures(self, first: int, last: int) -> tuple[Any, ...]:
        """The command that forgets which rows of these batches could not be decoded."""
        return (b"HDEL", self.state, *(f"bad-{number}" for number in range(first, last + 1)))

    def failures(self, first: int, last: int) -> list[int]:
        """Return the numbers of those of these batches that have rows that could not be decoded."""
        numbers = range(first, last + 1)
        found = self.server.ask(b"HMGET", self.state, *(f"bad-{number}" for number in numbers))
        return [number for number, rows in zip(numbers, found, strict=True) if rows]

    def note_failures(self, number: int, begin: int, end: int, positions: Sequence[int]) -> int:
        """Note the rows of a slice of a batch that cannot be decoded.

        Args:
            number: The batch.
            begin: The position of the slice's first row, counted from the oldest message.
            end: The position behind its last row.
            positions: Those of the rows.

        Returns:
            How often the row was tried that was tried least; 0 if there is none.
        """
        _, least = self._run("note_failures", (self.state,), number, begin, end, *positions)
        return int(least)

    def bury(self, epoch: int, number: int) -> None:
        """Move the rows of a processed batch that could not be decoded to the dead-letter queue.

        Raises:
            ServerError: The dead-letter queue cannot take them.
        """
        dead = self.keys.dead_letters
        keys = (self.state, self.batch(number), *dead.as_dead_letters(), *dead.collisions())
        why = encode(f"Spark's group {self.group!r} cannot decode it: it does not fit the format and the schema")
        left = 1
        while left:
            _, left = self._run("bury", keys, epoch, number, why, _MOST_DEAD)

    def check_dead_letters(self) -> None:
        """Raise ValueError if the dead-letter queue is elsewhere in the cluster."""
        slot_of(self.server.settings.address, (*self.keys.queue.specified, *self.keys.dead_letters.specified))

    def commit(self, epoch: int, first: int, last: int) -> None:
        """Delete these batches: Spark has processed them."""
        for step in self.to_commit(epoch, first, last):
            self._now(step)

    def to_commit(self, epoch: int, first: int, last: int) -> list[Step[Any]]:
        """`commit` as steps to make later."""
        steps = []
        for begin in range(first, last + 1, 1000):
            keys = (self.state, *map(self.batch, range(begin, min(begin + 1000, last + 1))))
            steps.append(self._step("commit", keys, (epoch, begin), lambda answer: answer))
        return steps

    def unfinished(self) -> tuple[int, int, int]:
        """Return the last committed batch, the last one that may exist, and the age of the oldest in milliseconds.

        The age counts from when the batch was sealed; it is -1 if none is sealed.
        """
        _, committed, last, age = self._run("unfinished", (self.state,))
        return committed, last, age

    def lengths(self, first: int, last: int) -> list[int]:
        """Return how many messages each of these batches has."""
        return list(map(int, self.server.ask_all([(b"LLEN", self.batch(number)) for number in range(first, last + 1)])))

    def sizes(self, first: int, last: int) -> tuple[list[int | None], int, int]:
        """Return the bytes of each of these batches (None if they were not counted), and what the group has done.

        Returns:
            The bytes, how many messages the group has ever taken, and its epoch: when its query began, in milliseconds.

        Raises:
            ServerError: Another program has written into the group's state.
        """
        fields = ("rows", "epoch", "bytes", *(f"size-{number}" for number in range(first, last + 1)))
        values = self.server.ask(b"HMGET", self.state, *fields)
        try:
            rows, epoch, filling, *sizes = (None if value is None else int(value) for value in values)
        except ValueError:
            raise self._damaged() from None
        if sizes and sizes[-1] is None:  # the last one may be incomplete
            sizes[-1] = filling
        return sizes, rows or 0, epoch or 0

    def give_back(self, epoch: int, number: int, last: int) -> int:
        """Return the messages of the group's latest batch to the queue, and return how many there were."""
        total, left = 0, 1
        while left:
            _, moved, left = self._run("give_back", (self.state, self.batch(number)), epoch, number, last, MAX_MESSAGES)
            total += moved
        return total

    def forget(self) -> None:
        """Delete what the server keeps of the group: its position, and batches without a commit."""
        committed, last, _ = self.unfinished()
        self.server.ask(b"UNLINK", self.state, *map(self.batch, range(committed + 1, last + 1)))
        self.server.ask(b"HDEL", self.keys.groups, self.group)

    def batch_lost(self, number: int) -> BatchLostError:
        """Return the error for a batch that is missing."""
        return BatchLostError(
            f"the messages of batch {number} of {self._about} are not on the server any more: they were deleted, or "
            "lost in a failover or restart. To go on without them, start with a new checkpoint",
            name=self.name,
        )

    def _read(self, answer: Any) -> Any:
        match answer[0] if isinstance(answer, list) else None:
            case b"fenced" if answer[1]:
                raise self._group_taken(
                    f"another query reads for {self._about} now (epoch {answer[1].decode()}), so this one ends. Give "
                    "each query a group of its own; a query that uses a stream twice needs two"
                )
            case b"fenced":
                raise self._group_taken(
                    f"the server has no state of {self._about} any more: it was deleted, or lost in a failover or "
                    "restart. Start the query again: it goes on where it was"
                )
            case b"corrupt" if answer[1].startswith(self.state):
                raise self._damaged(answer[1].decode(errors="replace"))
            case b"dead":
                raise ServerError(
                    f"dead letters of the queue {self.name!r} cannot be moved: {answer[1].decode(errors='replace')}. "
                    "Run `apressure doctor`, then start the query again"
                )
            case b"behind":
                raise self._behind(answer[1])
        return super()._read(answer)

    def _behind(self, committed: int) -> GroupTakenError:
        return self._group_taken(
            f"batches up to {committed} of {self._about} are committed, and this checkpoint has not read them: a query "
            "with another checkpoint read them, or they were given back to the queue. Start with a new checkpoint, or "
            "give each query a group of its own"
        )

    def _damaged(self, why: str | None = None) -> ServerError:
        why = why or f"another program has written into {self.state.decode(errors='replace')}"
        return ServerError(
            f"the state of {self._about} is damaged: {why}. Set it right, or read with a new group and a new checkpoint"
        )

    def _group_taken(self, message: str) -> GroupTakenError:
        return GroupTakenError(message, name=self.name)


def _sealed(answer: Any) -> Sealed | RoleBusy:
    if isinstance(answer, RoleBusy):
        return answer
    return int(answer[1]) if answer[0] == b"sealed" else answer[0].decode()
