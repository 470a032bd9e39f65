"""okq's commands, as methods. Each is repeated until the server has answered it, or `retry_timeout` has passed.

The specification's commands are all that the released okq has. A server of ours also takes several events in one
command, says that a queue is full or closed, and extends claims: then fewer commands do the same.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from apressure.connection.settings import Settings
from apressure.connection.wire.channel import ConnectionLost
from apressure.connection.wire.command import Argument
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.core.driver import Connection
from apressure.core.waiting import EMPTY, Wait
from apressure.events.remote.connection import Attempts, Command, OkqServer, replies
from apressure.events.remote.errors import duplicate, error_of, no_extend, no_limit
from apressure.exceptions import (
    OutcomeUnknownError,
    PressureError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
)

Pair = tuple[bytes, bytes]
"""An event's id and its contents."""


class Popped(list[Pair]):
    """Events that were popped.

    Attributes:
        attempts: How often each was delivered, this time included, if the server is one of ours.
        wait: Why there are none, if the server is one of ours.
        dead: How many have become dead letters, if the server is one of ours.
    """

    attempts: Sequence[int] = ()
    wait: Wait = EMPTY
    dead = 0


AT_A_TIME: Final = 100
"""How many commands for single events are sent together."""
MOST: Final = 1000
"""The most events of one pop."""

_FULL: Final = r"ERR queue full: the first (\d+) of"
_DUPLICATE: Final = "ERR duplicate event"


class Counts(NamedTuple):
    """What QSTATUS says of a queue.

    Attributes:
        total: Events that wait or are in flight.
        processing: Events in flight.
        consumers: Registered consumers.
    """

    total: int
    processing: int
    consumers: int


class Commands:
    """okq's commands, over one connection.

    Args:
        settings: Where the server is, and the limits of the client.

    Attributes:
        server: The server.
        connection: The connection.
    """

    def __init__(self, settings: Settings) -> None:
        self.server = OkqServer(settings)
        self.connection = ReconnectingConnection(self.server.node_of(()))

    async def push(self, name: str, pairs: Sequence[Pair], front: bool, given: bool, expected: bool = False) -> int:
        """Push events in order, without waiting for room (QLPUSH, QRPUSH).

        After a lost reply they are pushed again. "Duplicate" then means that the first try was carried out, unless
        the program chose the id: another client may have used it.

        Args:
            name: The queue's name.
            pairs: The events.
            front: Push them to the front.
            given: The program chose the id of the only event.
            expected: The queue must have been created.

        Returns:
            How many of the first events are in the queue; fewer than all if a server of ours says that it is full.

        Raises:
            DuplicateEventError: The id is in use. Nothing was pushed.
            QueueClosedError: The server is one of ours, and the queue is closed. Nothing was pushed.
            QueueDoesNotExistError: It is expected, and missing. Nothing was pushed.
            OutcomeUnknownError: The connection broke and could not be restored in time; or it broke, and now the given
                id is in use.
            PressureError: The server refused, or cannot be reached. `accepted` says how many of the first events are
                in the queue.
        """
        attempts, done = self._attempts(), 0
        verb, queue = b"QRPUSH" if front else b"QLPUSH", encoded(name)
        option = b"CREATED" if expected else b"NOWAIT"

        def commands(extended: bool) -> list[Command]:
            if extended:
                return [(verb, queue, *itertools.chain.from_iterable(pairs[done:]), option)]
            return [(verb, queue, *pair) for pair in pairs[done : done + AT_A_TIME]]

        try:
            while done < len(pairs):
                count = len(pairs) - done
                for reply in await attempts.send(commands):
                    text = str(reply) if isinstance(reply, ServerError) else ""
                    if text.startswith(_DUPLICATE) and given:
                        raise duplicate(name, pairs[done][0], attempts.lost)
                    if full := re.match(_FULL, text):
                        return done + int(full[1])
                    if text and not text.startswith(_DUPLICATE):
                        raise error_of(reply, name)
                    done += count if attempts.extended else 1
        except PressureError as error:
            error.accepted = done
            raise
        return done

    async def pop(self, name: str, most: int, lease: float, expected: bool = False, limit: int = 0) -> Popped:
        """Pop up to `most` events, without waiting (QRPOP).

        Args:
            name: The queue's name.
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
        attempts, queue = self._attempts(), encoded(name)
        options: list[Argument] = [b"TELL", *([b"CREATED"] if expected else ()), *((b"LIMIT", limit) if limit else ())]

        def commands(extended: bool) -> list[Command]:
            if extended:
                return [(b"QRPOP", queue, b"EX", str(lease), b"WAIT", 0, b"COUNT", min(most, MOST), *options)]
            if limit:
                raise no_limit(name)
            return [(b"QRPOP", queue, b"EX", math.ceil(lease))] * min(most, AT_A_TIME)

        while True:
            answers = await attempts.send(commands)
            extended = attempts.extended
            if extended and answers and isinstance(answers[0], bytes):
                told, nothing = answers[0].split(), Popped()
                nothing.wait = Wait("paused" if told[0] == b"paused" else "empty", created=b"created" in told)
                nothing.dead = int(told[-1]) if told[-1].isdigit() else 0
                return nothing
            if extended and answers and isinstance(answers[0], list):
                answers = answers[0]
            arrived = [one for one in answers if isinstance(one, list)]
            events = Popped((one[0], one[1]) for one in arrived)
            events.attempts = [one[2] for one in arrived if extended]
            events.dead = sum(one for one in answers if isinstance(one, int))
            if events:
                return events
            if errors := [one for one in answers if isinstance(one, Exception)]:
                raise error_of(errors[0], name)
            if attempts.complete:
                return events
            if not lease:
                raise OutcomeUnknownError(
                    f"the connection broke while an event of {name!r} was popped: it may be lost. A pop with a lease "
                    "(receive, consumer) loses none"
                )

    async def settle(self, name: str, event: bytes, redo: bool, error: bytes = b"") -> bool:
        """Acknowledge an event, or put it back, first in line (QACK, QFAIL).

        Args:
            name: The queue's name.
            event: Its id.
            redo: Put it back.
            error: Why, for a server of ours to keep.

        Returns:
            Whether it was in the queue, waiting or in flight. After a lost reply it counts as settled by the first try.

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        if error:
            settled, lost = await self._ask(name, "QFAIL", event, error)
        else:
            settled, lost = await self._ask(name, "QACK", event, *((b"REDO",) if redo else ()))
        return bool(settled) or lost

    async def confirm(self, name: str, events: Sequence[bytes]) -> list[bool]:
        """Acknowledge events, for at-most-once: an event counts only if its acknowledgement is certain (QACK).

        Raises:
            OutcomeUnknownError: None is certain, since replies were lost. Events may be lost.
            PressureError: The server refused, or cannot be reached.
        """
        attempts, queue, left = self._attempts(), encoded(name), list(events)
        confirmed: list[bool] = []
        while left:
            for reply in await attempts.send(lambda _: [(b"QACK", queue, event) for event in left[:AT_A_TIME]]):
                if isinstance(reply, Exception):
                    raise error_of(reply, name)
                confirmed.append(bool(reply))
                del left[0]
        if attempts.lost and not any(confirmed):
            raise attempts.unknown(f"the connection broke while events of {name!r} were acknowledged: they may be lost")
        return confirmed

    async def put_back(self, name: str, events: Sequence[bytes], errors: Sequence[bytes] | None = None) -> None:
        """Put events back, first in line and in this order (QFAIL, QRETURN; on a released okq QACK with REDO).

        Args:
            name: The queue's name.
            events: Their ids.
            errors: Why each attempt has failed, or nothing; None if the program has not seen the events, so that was no
                attempt.

        Raises:
            PressureError: The server refused, or cannot be reached. They come again when their leases end.
        """
        attempts, queue, left = self._attempts(), encoded(name), list(events)

        def commands(extended: bool) -> list[Command]:
            if not extended:  # the one that goes back last is the first in line
                return [(b"QACK", queue, event, b"REDO") for event in reversed(left[-AT_A_TIME:])]
            if errors is None:
                return [(b"QRETURN", queue, *left)]
            return [(b"QFAIL", queue, *itertools.chain.from_iterable(zip(left, errors, strict=False)))]

        while left:
            for reply in await attempts.send(commands):
                if isinstance(reply, Exception):
                    raise error_of(reply, name)
                del left[0 if attempts.extended else -1 :]

    async def extend(
        self, name: str, events: Sequence[bytes], seconds: float, connection: Connection | None = None
    ) -> list[bool]:
        """Give the consumer of events more time (QEXTEND, of our servers only).

        Args:
            name: The queue's name.
            events: Their ids.
            seconds: How long from now, at least.
            connection: Another connection than the usual one.

        Returns:
            For each, whether somebody has it in flight.

        Raises:
            ServerTooOldError: It is a released okq.
            PressureError: The server refused, or cannot be reached.
        """
        commands = [(b"QEXTEND", encoded(name), event, str(seconds)) for event in events]
        try:
            return [bool(outcome) for outcome in await self._once(name, commands, connection)]
        except ServerTooOldError:
            raise no_extend(name) from None

    async def extends(self) -> bool:
        """Whether the server extends claims, as ours do.

        Raises:
            PressureError: It cannot be reached.
        """
        return self.server.is_extended(await self.connection.connected())

    async def is_paused(self, name: str, connection: Connection) -> bool:
        """Whether a queue of a server of ours is paused (QLOOK).

        Args:
            name: The queue's name.
            connection: Another connection than the usual one, or that.

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        (look,) = await self._once(name, [(b"QLOOK", encoded(name))], connection)
        return bool(look[4])

    async def peek(self, name: str, newest: bool) -> Pair | None:
        """Return the event that is next, or the one that was put last (QRPEEK, QLPEEK).

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        reply, _ = await self._ask(name, "QLPEEK" if newest else "QRPEEK")
        return None if reply is None else (reply[0], reply[1])

    async def counts(self, name: str) -> Counts:
        """Count events and consumers (QSTATUS).

        Raises:
            PressureError: The server refused, or cannot be reached.
        """
        reply, _ = await self._ask(name, "QSTATUS")
        if not (isinstance(reply, list) and reply and isinstance(reply[0], list) and len(reply[0]) >= 4):
            raise ServerError(
                f"the server at {self.server.address} answers QSTATUS with {reply!r:.80}, which is not a list of counts"
                ": it is older than okq's specification. Update it"
            )
        return Counts(*(int(count) for count in reply[0][1:4]))

    async def _once(self, name: str, commands: Sequence[Command], connection: Connection | None) -> list[Any]:
        """Send commands together, on another connection than the usual one perhaps, and none of them again."""
        answers = await replies(await (connection or self.connection).connected(), commands)
        for answer in answers:
            if isinstance(answer, ConnectionLost):
                raise ServerUnavailableError(str(answer))
            if isinstance(answer, Exception):
                raise error_of(answer, name)
        return answers

    async def _ask(
        self, name: str, verb: str, *arguments: Argument, ours: bool = False, again: bool = True
    ) -> tuple[Any, bool]:
        """Send a command, as `ask_ours` does. `ours`: only servers of ours have it."""
        attempts, command = self._attempts(), (verb.encode(), encoded(name), *arguments)
        while True:
            came = await attempts.send(lambda extended: [command] if extended or not ours else [])
            if ours and not attempts.extended:
                raise ServerTooOldError("")
            if came and isinstance(came[0], Exception):
                raise error_of(came[0], name)
            if came:
                return came[0], attempts.lost
            if not again:
                raise attempts.unknown(f"the connection broke during {verb} of the queue {name!r}")

    async def ask_ours(self, name: str, verb: str, *arguments: Argument, again: bool = True) -> tuple[Any, bool]:
        """Send a command that only servers of ours have. Return the reply, and whether an earlier one was lost.

        Args:
            name: The queue's name.
            verb: The command.
            *arguments: Its arguments behind that name.
            again: Send it again when its reply was lost.

        Raises:
            ServerTooOldError: It is a released okq.
            OutcomeUnknownError: The reply was lost, and the command must not be repeated.
            PressureError: The server refused, or cannot be reached.
        """
        try:
            return await self._ask(name, verb, *arguments, ours=True, again=again)
        except ServerTooOldError:
            raise ServerTooOldError(
                f"the okq server of the queue {name!r} has no {verb}: the released okq knows no "
                "bounds, no end and no pauses. Use apressure's server (apressure events serve), or EventQueue with "
                "the URL of the server's Redis (redis://…), which works on the same queue"
            ) from None

    def _attempts(self) -> Attempts:
        return Attempts(self.server, self.connection)


def encoded(name: str) -> bytes:
    """Return a queue's name as the server gets it."""
    return name.encode(errors="surrogateescape")
