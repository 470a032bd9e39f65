"""One function for each step on the server: it orders the script's arguments, sends it, and reads its answer.

A step never waits for the queue. It answers with a value, with a `Wait`, or with an exception. Each step has a script
of the same name in `lua/`. A step that changes something is numbered in a `Series`, so that one whose reply was lost
can be sent again. The asynchronous methods take a series from a pool, so any number of them may run at a time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from apressure import logs
from apressure.connection.client import Client
from apressure.connection.schedules import ServerSchedules
from apressure.connection.sender import StepSender, flag
from apressure.connection.wire.channel import ConnectionLost
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Request, Series
from apressure.core.added_letters import Added
from apressure.core.driver import OnAnswer, Sending
from apressure.core.limits import Changes, arguments_of
from apressure.events.engine.answers import Event, Popped, changed, read
from apressure.events.engine.keys import OURS, PATTERNS, EventKeys, names_among
from apressure.items import new_id

MAX_EVENTS: Final = 2000
"""The most events in one step, so that it does not hold up the server for more than a few milliseconds."""

Claim = tuple[bytes, bytes]
"""The id of an event, and the token of its claim; an empty token stands for any claim, as in okq's QACK."""


Unit = tuple[Sequence[Claim], Sequence[tuple[bytes, bytes]]]
"""Claims, and the results that came of them, given as (id, contents)."""


class Want(NamedTuple):
    """What a pop asks for, beside events.

    Attributes:
        lease: Milliseconds for which they are claimed; 0 acknowledges them at once: at-most-once.
        limit: How often an event is delivered at most; 0 for no limit.
        expected: The queue must have been created.
        in_hand: With this, a closed and empty queue answers `Wait("draining")` while others have claims: this many
            claims are the caller's own.
        share: Take no more than an equal share of what waits, where several consumers are registered.
    """

    lease: int
    limit: int = 0
    expected: bool = False
    in_hand: int | None = None
    share: bool = False


class EventSteps(StepSender):
    """The steps of one queue of events. Its arguments and attributes are those of `StepSender`."""

    keys: EventKeys

    _keys = EventKeys
    room = "apressure.events.engine"
    _not_durable = frozenset(
        {"browse", "extend", "heal", "ready", "register", "resign", "peek", "status", "dead_letters"}
    )
    _changed = staticmethod(changed)

    def _read(self, reply: Any, token: bytes) -> Any:
        if type(reply) is list and reply[0] == b"pushed":  # each put passes here
            return reply[1]
        return read(reply, self.name, token)

    def messages(self, answer: Any) -> list[Event] | None:
        """Return the events that a step has popped; None if its answer tells of something else."""
        return answer.events if isinstance(answer, Popped) else None

    def note(self, answer: Popped) -> None:
        """Count and log what a step has popped."""
        self.counts.received_count += len(answer.events)
        self.counts.dead_lettered_count += logs.dead_letters("EventQueue", self.name, answer.dead)
        for one in answer.events:
            if one.attempts > 1:
                event_id = one.id.decode(errors="backslashreplace")
                logs.redelivered("EventQueue", self.name, event_id, one.attempts, one.contents)

    # Steps that a lane sends: one at a time for each series.

    def send_push(
        self, series: Series, events: Iterable[Sequence[Any]], expected: bool, on_answer: OnAnswer, *,
        front: bool = False, back: bool = False,
    ) -> Request:  # fmt: skip
        """Push events, given as (id, contents), in order, until there is no more room.

        It answers with a letter for each event that was looked at: `k` pushed, `d` duplicate: its id is in the queue
        already. Fewer letters than events: the queue is full.

        Args:
            series: The lane's series.
            events: At most `MAX_EVENTS`.
            expected: The queue must have been created.
            on_answer: Receives the answer.
            front: Push them to the front: the last of them is the next that is popped.
            back: They were popped before, so neither the bound nor the end of the queue matters. Each has a third part:
                what the queue had noted of when it expires.
        """
        how = flag(front), b"2" if back else b"0", flag(expected)
        arguments = [series.next(), b"0", *how, *itertools.chain.from_iterable(events)]
        return self._send(series.call("push"), arguments, on_answer, 1)  # as `_send_numbered` does, without its frame

    def send_delay(
        self, series: Series, events: Iterable[Sequence[Any]], expected: bool, on_answer: OnAnswer
    ) -> Request:
        """Put events for later, given as (id, contents, `Due.encoded`); otherwise as `send_push`."""
        arguments = [flag(expected), *itertools.chain.from_iterable(events)]
        return self._send_numbered(series, "delay", arguments, on_answer)

    def schedules(self) -> ServerSchedules:
        """Return the steps that are about the queue's schedules."""

        def arguments(number: bytes, message: bytes) -> list[Argument]:
            return [number, b"0", b"0", new_id(), message, b"0"]

        return ServerSchedules(self, "delay", "answer[1] == 'pushed' and answer[2] == 'k'", arguments)

    def send_pop(
        self, series: Series, most: int, want: Want, place: bytes, on_answer: OnAnswer, behind: Sending | None = None
    ) -> Request:
        """Pop and claim up to `most` events, fewer if they are large. Answers with `Popped` or a `Wait`.

        It first puts back what has expired. Events that were delivered as often as the limit says become dead letters.
        `place` is this client's in the line, empty if it does not wait. Events that are acknowledged at once are popped
        by a step that is never sent again.

        `behind`: sends the step behind a wait; if this client does not watch the queue any more when it runs, it takes
        nothing. Where the answer is an error, `repeat` sends it again.
        """
        drain = b"" if want.in_hand is None else want.in_hand
        how = place, want.limit, flag(want.expected), drain, flag(want.share)
        repeats = b"0" if behind is None else b"2"
        arguments: list[Argument] = [series.next(), repeats, most, want.lease, series.token, *how]  # of that number
        token = series.token if want.lease else b""
        return self._send(series.call("pop"), arguments, on_answer, 1, token, want.lease > 0, behind)

    def repeat(self, request: Request, answer: Any, needed: bool) -> bool:
        """Send a step again that stood behind a wait, unless this answer to it says what has become of it.

        The server knows whether it was carried out. If not, it is now, but takes nothing where it is not `needed`.

        Returns:
            Whether it was sent again, and its `on_answer` gets another answer: once at most.
        """
        if request.arguments[1] != b"2" or not isinstance(answer, Exception if needed else ConnectionLost):
            return False
        request.arguments[1] = b"1"
        if not needed:
            request.arguments[2], request.arguments[5] = 0, b""  # no events, and this client does not wait
        self.connection.send(request)
        return True

    def send_settle(
        self, series: Series, how: str, claims: Sequence[Sequence[bytes]], anywhere: bool, on_answer: OnAnswer
    ) -> Request:
        """Acknowledge events, or put them back. Answers with a letter for each, `1` if it was done.

        The others are not claimed, or claimed with another token.

        Args:
            series: The sender's series.
            how: `"ack"`; `"nack"` puts them back, first in line, and `"fail"` keeps errors, too: then each claim is
                followed by one as `apressure.dead_letters.encode` returns it, or nothing. `"later"` has them wait for
                their time: then an error, or nothing, is followed by `Due.encoded`. `"unseen"` puts them back without
                counting as an attempt. `"reply"` acknowledges requests: each is followed by its reply.
            claims: The events.
            anywhere: Acknowledge events that have gone back and wait, too, as okq's QACK does.
            on_answer: Receives the answer.
        """
        arguments = [how, flag(anywhere), *itertools.chain.from_iterable(claims)]
        return self._send_numbered(series, "settle", arguments, on_answer)

    def _send_numbered(self, series: Series, name: str, arguments: list[Any], on_answer: OnAnswer) -> Request:
        return self._send(series.call(name), [series.next(), b"0", *arguments], on_answer, 1)

    def resign(self, place: bytes, turn: bool, room: bool = False, end: bool = False) -> None:
        """This client waits for events no more, if its place in the line is given; nobody waits for the answer.

        The others say which tokens it has taken and does not use: a turn for events, one for room, and one that tells
        of the queue's end.
        """
        self._send(self._unnumbered.call("resign"), [place, flag(turn), flag(room), flag(end)], lambda _: None)

    def pass_room(self) -> None:
        """This client has taken a token for room which it does not use."""
        self.resign(b"", False, room=True)

    # Steps that any number of tasks may run at a time.

    def give_back_soon(self, events: Sequence[Event]) -> asyncio.Future[Any]:
        """Give back events that nobody has seen; returns what completes when they are back, or when that failed.

        Those that were acknowledged at once are pushed to the front again.
        """
        if events[0].token:
            return self.settle_soon("unseen", [(event.id, event.token) for event in events])
        series = self.series()
        again = [(event.id, event.contents, event.kept) for event in reversed(events)]
        return self._soon(lambda on_answer: self.send_push(series, again, False, on_answer, front=True, back=True))

    def settle_soon(self, how: str, claims: Sequence[Sequence[bytes]]) -> asyncio.Future[Any]:
        """Send the step of `send_settle`; returns what completes with its answer, which may be an error."""
        series = self.series()
        return self._soon(lambda on_answer: self.send_settle(series, how, claims, False, on_answer))

    async def create(self, bound: int) -> bool:
        answer = await self._run("create", bound, more=self._ended)
        return answer[0] == b"created"  # type: ignore[no-any-return]

    async def heal(self) -> tuple[int, int | None]:
        """Put back what has expired, and index claims that okq made.

        Returns:
            How many events were put back, and the milliseconds until the next look is due: None if nothing is claimed.
        """
        return await self._run("heal")  # type: ignore[no-any-return]

    async def register(self, *consumers: bytes) -> int:
        """Note a sign of life of these consumers; each needs one every 10 seconds. Returns how many there are."""
        return await self._run("register", b"0", *consumers)  # type: ignore[no-any-return]

    async def unregister(self, *consumers: bytes) -> int:
        """Note that these consumers are gone. Returns how many there are."""
        return await self._run("register", b"1", *consumers)  # type: ignore[no-any-return]

    async def flush(self) -> int:
        """Remove all events, those in flight included, as okq's QFLUSH does. Returns how many."""
        return await self._run("flush", b"0", b"0", more=self._beside)  # type: ignore[no-any-return]

    def _ended(self) -> tuple[bytes, ...]:
        return (self.keys.gone,)

    def _beside(self) -> tuple[bytes, ...]:
        return super()._beside() + self._ended()

    async def delete(self) -> None:
        """Delete the queue with all events, consumers and dead letters.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        await self._run("flush", b"1", b"1", more=self._beside)

    async def purge(self, most: int, expected: bool = False) -> int:
        """Delete up to so many events that wait, those that are next first. Returns how many."""
        purged = int(await self._numbered("purge", min(most, MAX_EVENTS), flag(expected)) or 0)
        self.counts.deleted_count += purged
        return purged

    async def promote(self, most: int, ids: Sequence[bytes], expected: bool = False) -> int:
        """Make delayed events due now, those first that are due first, or those with these ids. Returns how many."""
        return int(await self._numbered("promote", most, flag(expected), *ids) or 0)

    async def dead_letters(self, passed: int, most: int) -> list[bytes]:
        """Return up to `most` dead letters behind the `passed` oldest ones, as the server keeps them."""
        return await self._run("dead_letters", passed, most)  # type: ignore[no-any-return]

    async def bury(self, letters: Iterable[Added], expected: bool = False) -> None:
        """Add dead letters, the oldest first."""
        told = ((one.id.encode(errors="surrogateescape"), one.reason, one.raw) for one in letters)
        await self._numbered("bury", flag(expected), *itertools.chain.from_iterable(told))

    async def requeue(self, most: int, chosen: Sequence[bytes] = (), expected: bool = False) -> bytes:
        """Move dead letters back to the end of the queue: the oldest first, or those that are chosen.

        Returns:
            A letter for each one that was looked at: `m` moved, `d` it stays, since its id is in use, `0` it is gone.
        """
        return await self._numbered("requeue", most, flag(expected), *chosen)  # type: ignore[no-any-return]

    async def discard(self, chosen: Sequence[bytes]) -> bytes:
        """Delete chosen dead letters. Returns a letter for each one: `m` deleted, `0` it is gone."""
        return await self._numbered("discard", *chosen)  # type: ignore[no-any-return]

    async def move(self, series: Series, source: EventKeys, units: Sequence[Unit], expected: bool) -> int:
        """Put results into this queue, and acknowledge their inputs in another one.

        Args:
            series: The mover's series, which has this source only.
            source: The keys of that queue.
            units: Claims and results that are moved together.
            expected: This queue must have been created.

        Returns:
            How many of the units were moved; 0: there is no room for the first one.

        Raises:
            LeaseLostError: A claim of the first unit is no longer the caller's.
            ValueError: The first unit has more results than the bound.
            QueueClosedError, QueueDoesNotExistError: This queue takes nothing more.

        Cancelled, they are moved or not; each unit as a whole.
        """
        arguments: list[Argument] = [series.next(), b"0", flag(expected)]
        for claims, results in units:
            arguments += (len(claims), len(results))
            arguments += itertools.chain.from_iterable((*claims, *results))
        call = series.call("move", lambda: source.as_source)
        moved: int = await self._ask(lambda on_answer: self._send(call, arguments, on_answer, 1))
        return moved

    async def pause(self, pausing: bool, expected: bool = False) -> bool:
        """Pause the queue, or resume it. Returns whether that is new.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        if pausing:
            return bool(await self._numbered("pause", flag(expected), self._uid) == b"1")
        return bool(await self._numbered("resume", flag(expected)) == b"1")

    async def limit(self, changes: Changes, expected: bool = False) -> None:
        """Change the limits of the queue: see `LimitSteps`.

        Raises:
            QueueDoesNotExistError: There is no such queue.
        """
        await self._run("limit", flag(expected), *arguments_of(changes), more=self._ended)

    async def ready(self) -> tuple[int, int | None]:
        """Return how many events may be handed out now, for a queue that is paused or has limits.

        With the milliseconds after which the limits let one more through; None if no time does that.
        """
        return await self._run("ready")  # type: ignore[no-any-return]

    async def mend(self) -> int:
        """Put back events that an okq has left in neither list. Returns how many.

        It compares all ids, so call it when `Status.contents` and `waiting + claimed` differ for longer than a moment.
        """
        ask = self.connection.ask
        listed: set[bytes] = set()
        lost: set[bytes] = set()
        # The contents first: an event that is pushed meanwhile is then in a list, and one that is popped stays in one.
        cursor = None
        while cursor != b"0":
            cursor, pairs = await ask(b"HSCAN", self.keys.items, cursor or b"0", b"COUNT", 1000, reads=True)
            lost.update(pairs[::2])
        for key in (self.keys.unclaimed, self.keys.claimed, self.keys.unclaimed):
            begin = 0
            while ids := await ask(b"LRANGE", key, begin, begin + MAX_EVENTS - 1, reads=True):
                listed.update(ids)
                begin += len(ids)
        mended = 0
        suspects = sorted(lost - listed)
        for begin in range(0, len(suspects), 100):
            mended += await self._run("mend", *suspects[begin : begin + 100])
        return mended


class Mender:
    """Looks at a queue now and then, and puts events back that are in no list.

    An okq leaves them that dies after it has stored an event's contents and before it has pushed the id.

    Args:
        steps: The queue's steps.

    Attributes:
        steps: As given.
        suspicious: The latest look found contents without an id: an okq has died, or is in the middle of a push.
    """

    def __init__(self, steps: EventSteps) -> None:
        self.steps = steps
        self.suspicious = False

    async def look(self) -> int:
        """Look at the queue, and mend it if it was torn at the look before, too.

        Call it every few seconds: no okq takes that long for a push.

        Returns:
            How many events were put back, first in line.

        Raises:
            ServerError, ServerUnavailableError: The queue could not be looked at, or not be mended. The next look tries
                again.

        Cancelled, events were put back or not; another look is safe.
        """
        status = await self.steps.status()
        torn = status.contents > status.waiting + status.claimed
        mended = await self.steps.mend() if torn and self.suspicious else 0
        self.suspicious = torn and not mended
        return mended


async def active_queues(client: Client, created: bool = False) -> list[str]:
    """Return the names of all queues with events or consumers: a scan of all keys.

    With `created`, those too that were created, or have only delayed events or dead letters.
    """
    patterns = (*PATTERNS, *OURS) if created else PATTERNS
    return names_among([key for pattern, kind in patterns async for key in client.scan(pattern, kind)])
