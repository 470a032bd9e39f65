"""The commands for one queue. Each is repeated until the server has answered it, or `retry_timeout` has passed.

The specification's commands are all that the released okq has. A server of ours also takes several events in one
command, says that a queue is full or closed, and extends claims: then fewer commands do the same.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from apressure import validation
from apressure.concurrency import background
from apressure.connection.settings import MAX_NAME
from apressure.connection.wire.command import Argument
from apressure.core.added_letters import Added
from apressure.core.driver import Connection, OnAnswer
from apressure.core.due import Due
from apressure.core.errors import closed
from apressure.core.leases.clock import since_boot
from apressure.core.limits import UNLIMITED, Changes, arguments_of, read_limits
from apressure.core.waiting import EMPTY, Reason, Wait
from apressure.events.engine.answers import Event, Extended, Status, duplicate
from apressure.events.engine.batching import Change, Pair
from apressure.events.engine.steps import Claim
from apressure.events.remote.client import OkqClient
from apressure.events.remote.connection import Attempts, Command, error_of, lacks, replies, unknown
from apressure.events.remote.schedules import RemoteSchedules
from apressure.exceptions import (
    OutcomeUnknownError,
    QueueDoesNotExistError,
    ServerError,
    ServerTooOldError,
    UnsupportedError,
)
from apressure.items import Progress


class Popped(NamedTuple):
    """What a pop has done.

    Attributes:
        events: The events, in order. A released okq does not tell how often each was delivered: that is 0 there.
        until: Until when their leases have certainly not ended.
        wait: Why there are none, if the server is one of ours.
        dead: How many have become dead letters, if the server is one of ours.
    """

    events: list[Event]
    until: float
    wait: Wait = EMPTY
    dead: int = 0


AT_A_TIME: Final = 100
"""How many commands for single events are sent together."""
MOST: Final = 1000
"""The most events of one pop."""

_REASONS: Final[dict[bytes, Reason]] = {b"paused": "paused", b"limited": "limited"}
"""Why a server of ours hands out nothing, beside that nothing waits."""

_HELD: Final = 12
_END: Final = 17
"""Where the limits are in the reply to QLOOK, those of a hold first; servers of ours that know none tell none."""

_FULL: Final = r"ERR queue full: the first (\d+) of"
_DUPLICATE: Final = "ERR duplicate event"


class Commands:
    """The commands for one queue: the specification's, and those of our servers.

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

    async def push(
        self, pairs: Sequence[Pair], front: bool, given: bool, expected: bool, done: Progress, due: Due | None = None
    ) -> None:
        """Push events in order, without waiting for room (QLPUSH, QRPUSH, QDELAY).

        After a lost reply they are pushed again. "Duplicate" then means that the first try was carried out, unless
        the program chose the id: another client may have used it.

        Args:
            pairs: The events.
            front: Push them to the front.
            given: The program chose the id of the only event.
            expected: The queue must have been created.
            done: How many of the first events are in the queue, before and after; afterwards fewer than all if a server
                of ours says that it is full, or if this fails.
            due: When they are due, for later.

        Raises:
            DuplicateEventError: The id is in use. Nothing was pushed.
            QueueClosedError: The server is one of ours, and the queue is closed. Nothing was pushed.
            QueueDoesNotExistError: It is expected, and missing. Nothing was pushed.
            ServerTooOldError: They are for later, and it is a released okq. Nothing was pushed.
            OutcomeUnknownError: The connection broke and could not be restored in time; or it broke, and now the given
                id is in use.
            PressureError: The server refused, or cannot be reached.
        """
        attempts = Attempts(self._client.connection)
        head: Command = (b"QRPUSH" if front else b"QLPUSH", self.queue)
        options = [b"CREATED" if expected else b"NOWAIT"]
        if due is not None:
            head, options = (b"QDELAY", self.queue, due.encoded), options[:expected]  # it never waits

        def commands(extended: bool) -> list[Command]:
            left = pairs[done.accepted :]
            if extended:
                return [(*head, *itertools.chain.from_iterable(left), *options)]
            if due is not None:
                raise lacks("delay", self.name)
            return [(*head, *pair) for pair in left[:AT_A_TIME]]

        while done.accepted < len(pairs):
            count = len(pairs) - done.accepted
            for reply in await attempts.send(commands):
                text = str(reply) if isinstance(reply, ServerError) else ""
                if text.startswith(_DUPLICATE) and given:
                    error = duplicate(self.name, pairs[0][0])
                    if not attempts.lost:
                        raise error
                    raise OutcomeUnknownError(
                        f"the connection broke, and now the queue {self.name!r} has an event with the id {error.id!r}: "
                        "this put, or one before it, put it there"
                    )
                if full := re.match(_FULL, text):
                    done.accepted += int(full[1])
                    return
                if text and not text.startswith(_DUPLICATE):
                    raise error_of(reply, self.name)
                done.accepted += count if attempts.extended else 1

    async def pop(self, most: int, lease: float, expected: bool = False, limit: int = 0) -> Popped:
        """Pop up to `most` events, without waiting (QRPOP).

        Args:
            most: How many.
            lease: Seconds for the acknowledgement; 0 acknowledges them at once. The released okq takes whole seconds,
                so it gets the next larger number.
            expected: The queue must have been created.
            limit: How often an event is delivered at most; 0 for no limit.

        Raises:
            QueueClosedError: The server is one of ours, and the queue is closed and empty.
            QueueDoesNotExistError: It is expected, and missing.
            ServerTooOldError: There is a limit, and it is a released okq.
            OutcomeUnknownError: A reply was lost, and `lease` is 0: events may be lost. With a lease they come again
                when it ends, and the pop is repeated.
            PressureError: The server refused, or cannot be reached.
        """
        attempts, queue, until = Attempts(self._client.connection), self.queue, since_boot() + lease
        options: list[Argument] = [b"TELL", *([b"CREATED"] if expected else ()), *((b"LIMIT", limit) if limit else ())]

        def commands(extended: bool) -> list[Command]:
            if extended:
                return [(b"QRPOP", queue, b"EX", str(lease), b"WAIT", 0, b"COUNT", min(most, MOST), *options)]
            if limit:
                raise lacks("limit", self.name)
            return [(b"QRPOP", queue, b"EX", math.ceil(lease))] * min(most, AT_A_TIME)

        while True:
            answers = await attempts.send(commands)
            if attempts.extended and answers and isinstance(answers[0], bytes):
                return _nothing(answers[0].split(), until)
            if attempts.extended and answers and isinstance(answers[0], list):
                answers = answers[0]
            events = [Event(one[0], one[1], *(one[2:] or (0,))) for one in answers if isinstance(one, list)]
            if not events and (errors := [one for one in answers if isinstance(one, Exception)]):
                raise error_of(errors[0], self.name)
            if events or attempts.complete:
                return Popped(events, until, dead=sum(one for one in answers if isinstance(one, int)))
            if not lease:
                raise OutcomeUnknownError(
                    f"the connection broke while an event of {self.name!r} was popped: it may be lost. A pop with a "
                    "lease (receive, consumer) loses none"
                )

    async def settle(self, change: Change) -> bool:
        """Acknowledge an event, or put it back, first in line (QACK, QFAIL) or for later (QLATER).

        Returns:
            Whether it was in the queue, waiting or in flight. After a lost reply it counts as settled by the first try.
            If it may be due again by then, it is not given back for later once more: another client may have it.

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        event, _, *rest = change.claim
        if change.how == "unseen":
            returns = await self.extends()
            settled, lost = await self.ask("QRETURN", event) if returns else await self.ask("QACK", event, b"REDO")
        elif change.how == "later":
            error, due = rest
            settled, lost = await self.ask("QLATER", due, event, error, ours=True, within=int(due) / 1000)
        else:
            verb, redo = "QFAIL" if change.how == "fail" else "QACK", [b"REDO"] if change.how == "nack" else []
            settled, lost = await self.ask(verb, event, *rest, *redo)
        return bool(settled) or lost

    async def confirm(self, events: Sequence[bytes]) -> list[bool]:
        """Acknowledge events, for at-most-once: an event counts only if its acknowledgement is certain (QACK).

        Raises:
            OutcomeUnknownError: None is certain, since replies were lost. Events may be lost.
            PressureError: The server refused, or cannot be reached.
        """
        replies, lost = await self._each([(b"QACK", self.queue, event) for event in events])
        if lost and not any(replies):
            raise unknown(f"the connection broke while events of {self.name!r} were acknowledged: they may be lost")
        return list(map(bool, replies))

    async def put_back(self, events: Sequence[bytes], errors: Sequence[bytes] | None = None) -> None:
        """Put events back, first in line and in this order (QFAIL, QRETURN; on a released okq QACK with REDO).

        Args:
            events: Their ids.
            errors: Why each attempt has failed, or nothing; None if the program has not seen the events, so that was no
                attempt.

        Raises:
            PressureError: The server refused, or cannot be reached. They come again when their leases end.
        """
        if not events:
            return
        if not await self.extends():  # the one that goes back last is the first in line
            await self._each([(b"QACK", self.queue, event, b"REDO") for event in reversed(events)])
        elif errors is None:
            await self.ask("QRETURN", *events)
        else:
            await self.ask("QFAIL", *itertools.chain.from_iterable(zip(events, errors, strict=True)))

    async def peek(self, newest: bool) -> Event | None:
        """Return the event that is next, or the one that was put last; None if none waits (QRPEEK, QLPEEK).

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        reply, _ = await self.ask("QLPEEK" if newest else "QRPEEK")
        return None if reply is None else Event(*reply[:2])

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

    # Commands of our servers: all but `extends` raise ServerTooOldError on a released okq, and PressureError without a
    # server. One whose repeat would do more is not repeated when its reply was lost: that raises OutcomeUnknownError.
    # Cancelled, a command that changes something ends all the same; see `OkqClient.step`.

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

    async def extend(self, claims: Sequence[Claim], seconds: float) -> Extended:
        """Give the consumer of events more time: so many seconds from now, at least. Look for a pause or a hold."""
        return await self._client.step(self._extend(claims, seconds, None))

    def send_extend(
        self, claims: Sequence[Claim], milliseconds: int, on_answer: OnAnswer, connection: Connection | None
    ) -> None:
        """Do the same, perhaps over another connection than the usual one, whose event loop this runs on."""

        async def extending() -> None:
            on_answer(await background.caught(self._extend(claims, milliseconds / 1000, connection)))

        background.start(extending(), "renewing leases of events")

    async def _extend(self, claims: Sequence[Claim], seconds: float, connection: Connection | None) -> Extended:
        commands: list[Command] = [(b"QEXTEND", self.queue, event, str(seconds)) for event, _ in claims]
        channel = await (connection or self._client.connection).connected()
        *extended, look = answers = await replies(channel, [*commands, (b"QLOOK", self.queue)])
        for answer in answers:
            if isinstance(answer, ServerTooOldError):
                raise lacks("extend", self.name)
            self._value(answer)
        halted = bool(look[4]) or any(look[_HELD : _HELD + 1])
        return Extended(b"".join(b"%d" % bool(outcome) for outcome in extended), halted)

    async def status(self) -> Status:
        """Look at the queue."""
        reply, _ = await self.ask("QLOOK", ours=True)
        exists, created, bound, closed, paused, waiting, claimed, consumers, dead, delayed, next_due = reply[:11]
        (expired,) = reply[11:_HELD] or (0,)
        limits = read_limits(*reply[_HELD:_END]) if len(reply) >= _END else UNLIMITED
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

    async def pause(self, pausing: bool, expected: bool = False) -> bool:  # noqa: ARG002
        """Pause the queue, or resume it. Return whether that is new; after a lost reply it counts as new."""
        done, lost = await self.change("QPAUSE" if pausing else "QRESUME")
        return bool(done) or lost

    async def limit(self, changes: Changes, expected: bool = False) -> None:  # noqa: ARG002
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

    async def promote(self, most: int, ids: Sequence[bytes], expected: bool = False) -> int:  # noqa: ARG002
        """Make delayed events due; see `EventSteps.promote`."""
        promoted, _ = await self.change("QPROMOTE", most, *ids, again=False)
        return int(promoted)

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""
        letters, _ = await self.ask("QDEAD", passed, most, ours=True)
        return list(letters)

    async def bury(self, letters: Sequence[Added], expected: bool) -> None:  # noqa: ARG002
        """Add dead letters: no okq server does that."""
        raise UnsupportedError(
            f"the okq server of the queue {self.name!r} takes no dead letters: use the address of its Redis or Valkey "
            "server. Nothing was added",
            name=self.name,
        )

    async def requeue(self, most: int, chosen: Sequence[bytes] = (), expected: bool = False) -> bytes:  # noqa: ARG002
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


def _nothing(told: Sequence[bytes], until: float) -> Popped:
    """Return what a server of ours tells of a pop that has found nothing: why, and perhaps more."""
    due = next((int(word[4:]) for word in told if word.startswith(b"due=")), None)
    wait = Wait(_REASONS.get(told[0], "empty"), created=b"created" in told, due=due)
    return Popped([], until, wait, int(told[-1]) if told[-1].isdigit() else 0)
