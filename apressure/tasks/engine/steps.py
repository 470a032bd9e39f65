"""One function for each step on the server: it orders the script's arguments, sends it, and reads its answer.

A step never waits for the queue. It answers with a value, with a `Wait`, or with an exception. Each step has a script
of the same name in `lua/`. A step that changes something is numbered in a `Series`, so that one whose reply was lost
can be sent again. The asynchronous methods take a series from a pool, so any number of them may run at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from apressure import logs
from apressure.concurrency.settle import note_sent
from apressure.connection.client import Client
from apressure.connection.sender import StepSender, flag
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Request, Series
from apressure.core.dedup_lane import has_put
from apressure.core.driver import OnAnswer
from apressure.core.due import Due
from apressure.core.limits import Changes, arguments_of
from apressure.exceptions import DurabilityError
from apressure.tasks.engine.answers import Claim, Reservation, Reserved, raw, read, text
from apressure.tasks.engine.keys import QUEUES, TaskKeys
from apressure.tasks.options import OnOrphan

MAX_TASKS: Final = 1000
"""The most tasks in one step, so that it does not hold up the server for more than a few milliseconds."""

MAX_DELETED: Final = 250
"""The most tasks that one step deletes or enqueues again: that takes several commands for each."""

CHUNK: Final = 100
"""How many tasks are listed in one step."""

How = Literal["start", "progress", "complete", "fail", "nack", "later", "unseen"]

New = tuple[bytes, bytes, bytes]
"""A new task: its id, its parameters, and when it is due, as `eta_of` returns it."""


def eta_of(due: Due | None) -> bytes:
    """Return when a task is due, as scripts take it: seconds since 1970, or `+` and milliseconds; nothing for now.

    Behind that is what `Due.end` says.
    """
    if due is None:
        return b""
    when = repr(due.milliseconds / 1000).encode() if due.absolute else b"+%d" % due.milliseconds
    return (when if due.milliseconds else b"") + due.end


DONE: Final = "1"
"""The letter of a change that was made, as in `lua/settle.lua`."""


class Change(NamedTuple):
    """What happens to a reserved task.

    Attributes:
        how: As in `lua/settle.lua`.
        claim: The claim on it.
        value: The process, the result, or the error.
        fields: Fields of its hash that are set, too.
        delay: Milliseconds until it is due; of `"later"`.
    """

    how: How
    claim: Claim
    value: bytes = b""
    fields: Mapping[str, str] = {}
    delay: int = 0


class Want(NamedTuple):
    """What a reservation asks for, beside tasks.

    Attributes:
        lease: Milliseconds after which they are taken from a node that gives no sign of life.
        limit: How often a task is tried at most; 0 for no limit.
        on_orphan: What happens to a task whose node dies.
        listener: For which listener.
        expected: The queue must have been created.
        in_hand: With this, a closed and empty queue answers `Wait("draining")` while others have tasks: so many are the
            caller's own.
    """

    lease: int
    limit: int
    on_orphan: OnOrphan
    listener: bytes
    expected: bool = False
    in_hand: int | None = None


class TaskSteps(StepSender):
    """The steps of one queue of tasks. Its arguments and attributes are those of `StepSender`."""

    keys: TaskKeys

    _keys = TaskKeys
    room = "apressure.tasks.engine"
    _not_durable = frozenset({"browse", "extend", "register", "peek", "status", "tend"})

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(client, name, ())

    def _read(self, reply: Any, token: bytes) -> Any:  # noqa: ARG002 (claims of tasks name their tokens)
        if type(reply) is list and reply[0] == b"put":  # each put passes here
            return int(reply[1] or 0)
        told = reply.answer if isinstance(reply, DurabilityError) else reply
        if isinstance(told, list) and isinstance(told[-1], list) and told[-1][:1] == [b"dead"]:
            self.counts.dead_lettered_count += logs.dead_letters("TaskQueue", self.name, told.pop()[1:])
        return read(reply, self.name)

    @staticmethod
    def _changed(answer: Any) -> bool:
        match answer[:1] if isinstance(answer, list) else answer:
            case [b"put"] | [b"settled"] | [b"moved"] | [b"purged"]:
                return bool(answer[1].strip(b"0-:"))
            case [b"dedup"]:
                return has_put(answer[1])
            case [b"tasks"]:
                return bool(answer[1]) or answer[2] > 0
            case [b"created"] | [b"done"] | [b"changed"] | [b"tended"]:
                return True
            case _:
                return False

    def messages(self, answer: Any) -> list[Reserved] | None:
        """Return the tasks that a step has reserved; None if its answer tells of something else."""
        return answer.tasks if isinstance(answer, Reservation) else None

    def note(self, answer: Reservation) -> None:
        """Count what a step has reserved; log what it has dropped, and the tasks that were tried before."""
        self.counts.received_count += len(answer.tasks)
        for one in answer.tasks:
            attempts = one.fields.get("attempts", "")[:9]  # another program may have written it
            if attempts.isdecimal() and int(attempts) > 1:
                task_id, parameters = one.id.decode(errors="backslashreplace"), raw(one.fields.get("parameters", ""))
                logs.redelivered("TaskQueue", self.name, task_id, int(attempts), parameters)
        if answer.dropped:
            logs.logger.warning(
                "%d ids that waited in the queue %r were dropped: their tasks were deleted, or do not wait",
                answer.dropped, self.name,
            )  # fmt: skip

    # Steps that a lane sends: one at a time for each series.

    def send_enqueue(
        self, series: Series, tasks: Iterable[Sequence[Any]], expected: bool, on_answer: OnAnswer
    ) -> Request:
        """Enqueue or schedule tasks. Answers with how many there was room for."""
        arguments: list[Argument] = [series.next(), b"0", flag(expected), *itertools.chain.from_iterable(tasks)]
        return self._send(series.call("enqueue"), arguments, on_answer, 1)

    def send_reserve(self, series: Series, most: int, want: Want, on_answer: OnAnswer) -> Request:
        """Reserve up to `most` tasks. Answers with a `Reservation` or a `Wait`."""
        arguments: list[Argument] = [
            series.next(), b"0", most, want.lease, series.token, want.listener, want.limit, want.on_orphan,
            flag(want.expected), b"" if want.in_hand is None else want.in_hand,
        ]  # fmt: skip
        return self._send(series.call("reserve"), arguments, on_answer, 1)

    def send_settle(self, changes: Iterable[Change], ttl: float, on_answer: OnAnswer) -> Request:
        """Note what happens to reserved tasks. Answers with a letter for each, as in `lua/settle.lua`.

        `ttl`: seconds for which results are kept; 0 keeps them.
        """
        arguments: list[Argument] = [b"0", repr(float(ttl))]
        for how, claim, value, fields, delay in changes:
            arguments += (f"later:{delay}" if how == "later" else how, *claim, value, len(fields))
            for pair in fields.items():
                arguments += pair
        return self._send(self._unnumbered.call("settle"), arguments, on_answer, 0)

    def give_back_soon(self, tasks: Sequence[Reserved]) -> asyncio.Future[Any]:
        """Give back tasks that nobody has seen; returns what completes when they are back, or when that failed."""
        changes = [Change("unseen", task.claim) for task in reversed(tasks)]
        return self._soon(lambda on_answer: self.send_settle(changes, 0, on_answer))

    def reopen_soon(self, claims: Sequence[Claim]) -> asyncio.Future[Any]:
        """Give back tasks that were completed with these claims; returns what completes when they wait again."""
        arguments: list[Argument] = [part for claim in reversed(claims) for part in claim[:2]]
        return self._soon(lambda on_answer: self._send(self._unnumbered.call("reopen"), arguments, on_answer))

    # Steps that any number of tasks may run at a time.

    async def take(self, claims: Sequence[Claim], result: bytes, ttl: float) -> str:
        """Complete tasks for a caller that gets them; see `send_settle`. Cancelled, they wait again, first in line."""

        def undo(answer: Any) -> asyncio.Future[Any] | None:
            return None if isinstance(answer, Exception) else self.reopen_soon(claims)

        changes = [Change("complete", claim, result) for claim in claims]
        letters: str = await self._ask(lambda on_answer: self.send_settle(changes, ttl, on_answer), undo)
        self.counts.deleted_count += letters.count("1")
        return letters

    async def register(self, listener: bytes, block: bytes, seconds: float, gone: bool = False) -> int:
        """Note a sign of life of a listener, for so many seconds, or that a block of it is gone.

        Returns:
            How many listeners there are.
        """
        milliseconds = int(seconds * 1000)
        return await self._run("register", flag(gone), listener, block, milliseconds)  # type: ignore[no-any-return]

    async def pause(self, pausing: bool, expected: bool = False) -> bool:
        """Pause the queue, or resume it. Returns whether that is new."""
        return (await self._run("pause", flag(pausing), flag(expected)))[0] == b"done"  # type: ignore[no-any-return]

    async def limit(self, changes: Changes, expected: bool = False) -> None:
        """Change the limits of the queue: see `LimitSteps`."""
        await self._run("limit", flag(expected), *arguments_of(changes))

    async def purge(
        self, what: str, most: int, older_than: float | None = None, expected: bool = False
    ) -> tuple[int, int]:
        """Delete up to so many tasks with this status, or that are `"held"`, by nodes.

        `older_than`: only those that have not changed for so many seconds.

        Returns:
            How many were deleted, and how many were looked at.
        """
        age = b"" if older_than is None else repr(float(older_than))
        return _pair(await self._numbered("purge", what, most, age, flag(expected)))

    async def tend(self, now: float | None, ttl: float) -> float:
        """Look after the queue: enqueue the tasks that are due by this time, and clean up; see `lua/tend.lua`.

        `now`: seconds since 1970; None for the server's time.

        Returns:
            In how many seconds there is more to do; infinite where nobody knows of anything.
        """
        time = b"" if now is None else repr(float(now))
        _, _, more, *times = await self._run("tend", time, repr(float(ttl)), MAX_TASKS)
        if more:
            return 0.0
        return min((milliseconds / 1000 for milliseconds in times if milliseconds >= 0), default=math.inf)

    async def bury(self, tasks: Iterable[Sequence[Any]], expected: bool = False) -> None:
        """Add tasks that have failed, the oldest first; what is known of each is said in `lua/bury.lua`."""
        await self._numbered("bury", flag(expected), *itertools.chain.from_iterable(tasks))

    async def requeue(self, most: int, expected: bool = False) -> tuple[int, int]:
        """Enqueue failed tasks again, the oldest first. Returns how many were, and how many were looked at."""
        return _pair(await self._numbered("requeue", most, flag(expected)))

    async def promote(self, most: int, ids: Sequence[bytes], expected: bool = False) -> int:
        """Make scheduled tasks due now, those first that are due first, or those with these ids. Returns how many."""
        return int(await self._numbered("promote", most, flag(expected), *ids) or 0)

    async def cancel(self, task_id: bytes) -> str:
        """Cancel a task. Returns what happened, as in `lua/cancel.lua`."""
        return await self._numbered("cancel", task_id)  # type: ignore[no-any-return]

    async def retry(self, task_id: bytes, expected: bool = False, *failed_at: bytes) -> str:
        """Enqueue a failed task again, also only if it failed then. Returns what happened, as in `lua/retry.lua`."""
        return await self._numbered("retry", task_id, flag(expected), *failed_at)  # type: ignore[no-any-return]

    async def remove(self, task_id: bytes, failed: bool = False, *failed_at: bytes) -> str:
        """Delete a task that has ended, or only if it has failed (then). Returns what happened: `lua/remove.lua`."""
        return await self._numbered("remove", task_id, flag(failed), *failed_at)  # type: ignore[no-any-return]

    async def adopt(
        self, listener: bytes, on_orphan: str, lease: float, gone: bool, tasks: Sequence[tuple[bytes, bool, bytes]]
    ) -> tuple[int, int]:
        """Take over tasks of a listener that has died.

        Args:
            listener: The listener.
            on_orphan: What happens to its tasks.
            lease: Seconds for which those stay whose processes run.
            gone: Whether no process has its number.
            tasks: The newest first: their ids, whether their processes run, and the tokens that they had.

        Returns:
            How many went back or failed, and how many still run.
        """
        orphans = itertools.chain.from_iterable((task_id, flag(runs), token) for task_id, runs, token in tasks)
        milliseconds = int(lease * 1000)
        return _pair(await self._numbered("adopt", listener, on_orphan, milliseconds, flag(gone), *orphans))

    async def delete(self) -> None:
        """Delete the queue with all its tasks, in steps. Waiting clients learn at the first one that it is gone.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        await self._run("delete", b"1", more=self._beside)
        note_sent()
        for what in ("pending", "scheduled", "held", "complete", "failed"):
            while (await self.purge(what, MAX_DELETED))[1]:
                pass
        await self._run("delete", b"0", more=self._beside)


def _pair(answer: str) -> tuple[int, int]:
    """Return the two numbers of an answer; an empty one is that of a step that came too late."""
    first, _, second = answer.partition(":")
    return int(first or 0), int(second or 0)


async def ids_in(client: Client, key: bytes, command: bytes, backwards: bool = False) -> AsyncGenerator[list[bytes]]:
    """Yield the ids of tasks in a list (LRANGE) or a sorted set (ZRANGE), up to 100 at a time."""
    begin, more = 0, True
    while more:
        span = (-begin - CHUNK, -begin - 1) if backwards else (begin, begin + CHUNK - 1)
        ids: list[bytes] = await client.connection.ask(command, key, *span, reads=True)
        if ids:
            yield ids[::-1] if backwards else ids
        begin, more = begin + len(ids), len(ids) == CHUNK


async def queue_names(client: Client) -> list[str]:
    """Return the names of all queues, sorted."""
    found = await client.connection.ask(b"ZRANGE", QUEUES, 0, -1, reads=True)
    return sorted(map(text, found))
