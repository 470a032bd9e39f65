"""The commands for a queue as a whole. Each is repeated until the server has answered, or `retry_timeout` has passed.

All but a few are commands of our servers: on a released okq, they raise ServerTooOldError. One whose repeat would do
more is not repeated when its reply was lost: that raises OutcomeUnknownError. Cancelled, a command that changes
something ends all the same; see `OkqClient.step`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from apressure import validation
from apressure.connection.schedules import encoded, records_of
from apressure.connection.settings import MAX_NAME
from apressure.connection.wire.command import Argument
from apressure.core.added_letters import Added
from apressure.core.errors import closed
from apressure.core.limits import UNLIMITED, Changes, arguments_of, read_limits
from apressure.core.workers import Beside, WaitingProducer, WorkerStatistics, told_of
from apressure.events.engine.answers import Status
from apressure.events.remote.connection import Attempts, Command, OkqClient, error_of, lacks, unknown
from apressure.exceptions import QueueDoesNotExistError, ServerError, ServerTooOldError, UnsupportedError

AT_A_TIME: Final = 100
"""How many commands for single events are sent together."""

HELD: Final = 12
_END: Final = 17
"""Where the limits are in the reply to QLOOK, those of a hold first; servers of ours that know none tell none."""


class QueueCommands:
    """The commands for one queue as a whole, and how every command is sent.

    Args:
        client: The client of the server.
        name: The queue's name.

    Attributes:
        name: As given.
        queue: The name as the server gets it.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is empty or too long.
    """

    script_keys: ClassVar[tuple[bytes, ...]] = ()
    """The client's own connection serves every queue."""

    def __init__(self, client: OkqClient, name: str) -> None:
        self.queue = validation.encoded(name, "the queue's name", MAX_NAME)
        self.name = name
        self._client = client

    def schedules(self) -> RemoteSchedules:
        """Return the steps that are about the queue's schedules."""
        return RemoteSchedules(self)

    async def counts(self) -> Status:
        """Count events and consumers (QSTATUS). The specification's commands tell nothing else of a queue.

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        reply, _ = await self.ask("QSTATUS")
        if not (isinstance(reply, list) and reply and isinstance(reply[0], list) and len(reply[0]) >= 4):
            raise ServerError(
                f"the server at {self._client.server.address} answers QSTATUS with {reply!r:.80}, which is not a list "
                "of counts: it is older than okq's specification. Update it"
            )
        total, claimed, consumers = map(int, reply[0][1:4])
        return Status(0, False, total - claimed, claimed, True, consumers, False, 0, None, False)

    async def extends(self) -> bool:
        """Whether the server extends claims, as ours do. On a released okq, it returns False.

        Raises:
            PressureError: It cannot be reached.
        """
        return (await self._client.connection.connected()).extended

    @property
    def can_delay(self) -> bool:
        """Whether the server has QLATER, as far as the latest connection told."""
        return self._client.server.extends

    async def status(self) -> Status:
        """Look at the queue."""
        reply, _ = await self.ask("QLOOK", ours=True)
        exists, created, bound, closed, paused, waiting, claimed, consumers, dead, delayed, next_due = reply[:11]
        (expired,) = reply[11:HELD] or (0,)
        limits = read_limits(*reply[HELD:_END]) if len(reply) >= _END else UNLIMITED
        return Status(
            bound, created == 1, waiting, claimed, exists, consumers, closed == 1, dead, None, paused == 1, delayed,
            next_due, expired, limits,
        )  # fmt: skip

    async def create(self, bound: int) -> bool | None:
        """Create the queue, unless it exists. Returns whether it is new; None if a lost reply may have said so."""
        new, lost = await self.change("QCREATE", bound)
        return True if new else None if lost else False

    async def delete(self) -> None:
        """Delete the queue with everything in it."""
        try:
            await self.change("QDELETE", again=False)
        except QueueDoesNotExistError:
            raise QueueDoesNotExistError(f"the queue {self.name!r} does not exist", name=self.name) from None

    async def close(self, expected: bool) -> None:
        """Close the queue; `expected`: it must have been created."""
        done, lost = await self.change("QCLOSE", *([b"CREATED"] if expected else ()))
        if not done and not lost:
            raise closed(self.name)

    async def pause(self, pausing: bool, expected: bool = False) -> bool:
        """Pause the queue, or resume it. Return whether that is new; after a lost reply it counts as new."""
        done, lost = await self.change("QPAUSE" if pausing else "QRESUME")
        return bool(done) or lost

    async def limit(self, changes: Changes, expected: bool = False) -> None:
        """Change the limits of the queue: see `LimitSteps`. It is safe to repeat.

        Raises:
            UnsupportedError: It says what messages have cost.
        """
        if "spent" in changes:
            raise UnsupportedError(
                "okq's commands have no costs: spend() needs the address of the Redis or Valkey server. Nothing was "
                "counted", name=self.name,
            )  # fmt: skip
        await self.change("QLIMIT", *arguments_of(changes))

    async def purge(self, most: int) -> int:
        """Delete up to so many events that wait. Return how many."""
        deleted, _ = await self.change("QPURGE", most, again=False)
        return int(deleted)

    async def promote(self, most: int, ids: Sequence[bytes], expected: bool = False) -> int:
        """Make delayed events due; see `EventSteps.promote`."""
        promoted, _ = await self.change("QPROMOTE", most, *ids, again=False)
        return int(promoted)

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""
        letters, _ = await self.ask("QDEAD", passed, most, ours=True)
        return list(letters)

    async def bury(self, letters: Sequence[Added], expected: bool) -> None:
        """Add dead letters: no okq server does that."""
        raise UnsupportedError(
            f"the okq server of the queue {self.name!r} takes no dead letters: use the address of its Redis or Valkey "
            "server. Nothing was added",
            name=self.name,
        )

    async def requeue(self, most: int, chosen: Sequence[bytes] = (), expected: bool = False) -> bytes:
        """Move dead letters back; see `EventSteps.requeue`."""
        letters, _ = await self.change("QREQUEUE", most, *chosen, again=False)
        return bytes(letters)

    async def discard(self, chosen: Sequence[bytes]) -> bytes:
        """Delete dead letters; see `EventSteps.discard`."""
        letters, _ = await self.change("QDISCARD", *chosen, again=False)
        return bytes(letters)

    async def ask(
        self, verb: str, *arguments: Argument, ours: bool = False, again: bool = True, within: float = math.inf
    ) -> tuple[Any, bool]:
        """Send a command. Return the reply, and whether an earlier one was lost.

        Args:
            verb: The command.
            *arguments: Its arguments behind the queue's name.
            ours: Only servers of ours have it.
            again: Send it again when its reply was lost.
            within: Only within so many seconds after it was sent; after that, the reply is None.

        Raises:
            ServerTooOldError: It is a released okq, which does not have the command.
            OutcomeUnknownError: The reply was lost, and the command must not be repeated.
            PressureError: The server refused, or cannot be reached.
        """
        attempts, command = Attempts(self._client.connection), (verb.encode(), self.queue, *arguments)
        now, until = asyncio.get_running_loop().time, math.inf

        def commands(extended: bool) -> list[Command]:
            nonlocal until
            if not attempts.lost:
                until = now() + within
            return [command] if now() <= until and (extended or not ours) else []

        while True:
            came = await attempts.send(commands)
            if ours and (not attempts.extended or (came and isinstance(came[0], ServerTooOldError))):
                raise lacks("command", self.name, verb)
            if came or attempts.complete:
                return self._value(came[0]) if came else None, attempts.lost
            if not again:
                raise unknown(f"the connection broke during {verb} of the queue {self.name!r}")

    async def change(self, verb: str, *arguments: Argument, again: bool = True) -> tuple[Any, bool]:
        """Do the same with a command of our servers that changes something: cancelled, it ends all the same."""
        return await self._client.step(self.ask(verb, *arguments, ours=True, again=again))

    async def _each(self, commands: Sequence[Command]) -> tuple[list[Any], bool]:
        """Send commands, some at a time, each until its reply has come. Return these, and whether others were lost."""
        attempts, replies = Attempts(self._client.connection), list[Any]()
        while len(replies) < len(commands):
            came = await attempts.send(lambda _: commands[len(replies) :][:AT_A_TIME])
            replies.extend(map(self._value, came))
        return replies, attempts.lost

    def _value(self, reply: Any) -> Any:
        """Return a reply; raise what an error means for a program."""
        if isinstance(reply, Exception):
            raise error_of(reply, self.name)
        return reply


class RemoteSchedules:
    """The steps of a queue that are about its schedules (QSCHEDULES, QSCHEDULE).

    A command whose reply was lost is sent again: the server knows a record that it has written already.

    Args:
        commands: The commands for the queue.
    """

    def __init__(self, commands: QueueCommands) -> None:
        self._commands = commands

    async def read(self) -> tuple[int, dict[str, bytes]]:
        (now, *flat), _ = await self._commands.ask("QSCHEDULES", ours=True)
        return now, records_of(flat)

    async def beside(self) -> Beside:
        schedules, registered = await asyncio.gather(
            self._commands.ask("QSCHEDULES", b"COUNT", ours=True), self._registered()
        )
        return Beside(int(schedules[0]), 0, *registered)

    async def _registered(self) -> tuple[tuple[WorkerStatistics, ...], tuple[WaitingProducer, ...]]:
        try:
            told, _ = await self._commands.ask("QWORKERS", ours=True)
        except ServerTooOldError:  # a server of ours from before this command
            return (), ()
        return told_of(told)

    async def write(self, name: str, was: bytes | None, becomes: bytes | None) -> bool:
        done, _ = await self._commands.change("QSCHEDULE", encoded(name), was or b"", becomes or b"")
        return bool(done)

    async def put(self, name: str, was: bytes, becomes: bytes, message: bytes) -> str:
        outcome, _ = await self._commands.change("QSCHEDULE", encoded(name), was, becomes, message)
        return outcome.decode()  # type: ignore[no-any-return]
