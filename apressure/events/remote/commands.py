"""The commands for one queue. Each is repeated until the server has answered it, or `retry_timeout` has passed.

The specification's commands are all that the released okq has. A server of ours also takes several events in one
command, says that a queue is full or closed, and extends claims: then fewer commands do the same.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from apressure.concurrency import background
from apressure.connection.wire.command import Argument
from apressure.core.driver import Connection, OnAnswer
from apressure.core.due import Due
from apressure.core.leases.clock import since_boot
from apressure.core.waiting import EMPTY, Reason, Wait
from apressure.events.engine.answers import Event, Extended, duplicate
from apressure.events.engine.batching import Change, Pair
from apressure.events.engine.steps import Claim
from apressure.events.remote.administration import AT_A_TIME, HELD, QueueCommands
from apressure.events.remote.connection import Attempts, Command, error_of, lacks, replies, unknown
from apressure.exceptions import OutcomeUnknownError, ServerError, ServerTooOldError
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


MOST: Final = 1000
"""The most events of one pop."""

_REASONS: Final[dict[bytes, Reason]] = {b"paused": "paused", b"limited": "limited"}
"""Why a server of ours hands out nothing, beside that nothing waits."""

_FULL: Final = r"ERR queue full: the first (\d+) of"
_DUPLICATE: Final = "ERR duplicate event"
_NO_OPTION: Final = "ERR syntax error: the last argument is neither"


class Commands(QueueCommands):
    """The commands for one queue: the specification's, and those of our servers. Its arguments: see `QueueCommands`."""

    async def push(
        self, pairs: Sequence[Pair], front: bool, given: bool, expected: bool, done: Progress, due: Due | None = None,
        back: bool = False,
    ) -> None:  # fmt: skip
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
            back: They were popped before: a server of ours takes them beyond the bound, and behind the end.

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
        options = [b"BACK" if back else b"CREATED" if expected else b"NOWAIT"]
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
                if text.startswith(_NO_OPTION) and options == [b"BACK"]:  # an older server of ours
                    options[0] = b"NOWAIT"
                    break
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
        how, (event, _, *rest) = change
        if how == "unseen":
            returns = await self.extends()
            settled, lost = await self.ask("QRETURN", event) if returns else await self.ask("QACK", event, b"REDO")
        elif how == "later":
            error, due = rest
            settled, lost = await self.ask("QLATER", due, event, error, ours=True, within=int(due) / 1000)
        else:
            verb, redo = "QFAIL" if how == "fail" else "QACK", [b"REDO"] if how == "nack" else []
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
        halted = bool(look[4]) or any(look[HELD : HELD + 1])
        return Extended(b"".join(b"%d" % bool(outcome) for outcome in extended), halted)


def _nothing(told: Sequence[bytes], until: float) -> Popped:
    """Return what a server of ours tells of a pop that has found nothing: why, and perhaps more."""
    due = next((int(word[4:]) for word in told if word.startswith(b"due=")), None)
    wait = Wait(_REASONS.get(told[0], "empty"), created=b"created" in told, due=due)
    return Popped([], until, wait, int(told[-1]) if told[-1].isdigit() else 0)
