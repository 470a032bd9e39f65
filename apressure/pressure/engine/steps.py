"""One function for each step of the protocol: it orders the script's arguments and reads its answer.

A step never waits for the queue. It answers with a value, with a `Wait`, or with an exception. Each step has a script
of its name in `lua/`; those of clients that share the consumer role are called `NAME_shared`, and `join`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.connection.renewer import Renewer
from apressure.connection.schedules import ServerSchedules
from apressure.connection.sender import soon
from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Request, Series
from apressure.core.added_letters import Added
from apressure.core.browsing import Asked, Found
from apressure.core.driver import Connection, OnAnswer, Sending
from apressure.core.leases.renewal import Renewal
from apressure.core.limits import Changes, arguments_of
from apressure.core.waiting import Wait
from apressure.exceptions import ROLES, PressureError, Role
from apressure.pressure.engine.answers import collides
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.sending import Sender, acknowledged, script
from apressure.pressure.engine.waits import Waits

Range = tuple[int, int, int]
"""Acknowledged messages: the first number, the last one, and how many bytes they have together."""


_FIRST, _BEHIND = b"0", b"2"
"""How a step is sent: for the first time, or behind a wait. (A repeat has `b"1"`.)"""


class Want(NamedTuple):
    """What a step that receives asks for.

    Attributes:
        most: How many messages at most.
        lease: Milliseconds.
        number: The number to go on with; of a member, higher than the numbers of all its deliveries so far.
        dead: Where messages go that have reached the limit of deliveries; None for no limit.
        acks: The deliveries that the step acknowledges.
        in_hand: Those that a member has not settled, without those that the step acknowledges.
    """

    most: int
    lease: int
    number: int
    dead: DeadLetters | None = None
    acks: Sequence[Range] = ()
    in_hand: Sequence[tuple[int, int]] = ()


class Settlement(NamedTuple):
    """What a step settles.

    Attributes:
        lease: Milliseconds from now.
        leave: It ends the lease, and gives back all messages in flight.
        unseen: Deliveries with this number or a higher one were never handed out, and do not count as attempts; 0 if
            all were.
        acks: The deliveries that it acknowledges.
        nacks: The numbers of those that it gives back. An error may follow a number. Behind them, the replies that go
            with acknowledgements (see the script).
        dead: Given where there are errors, or some to be forgotten.
        place: A member's place in the line of clients that wait for messages; None if the role is not shared.
    """

    lease: int
    leave: bool = False
    unseen: int = 0
    acks: Sequence[Range] = ()
    nacks: Sequence[Argument] = ()
    dead: DeadLetters | None = None
    place: bytes | None = None


class Steps(Sender):
    """The steps of one queue."""

    def take_claim(self, role: Role) -> bytes:  # noqa: ARG002
        """Return `b"1"` if the role's token has been claimed for the step that is about to be sent; see `Access`."""
        return b"0"

    def _claim(self, role: Role) -> tuple[bytes, Sequence[Role]]:
        """Return the same, and the roles whose tokens go back if that step fails."""
        claimed = self.take_claim(role)
        return claimed, (role,) if claimed == b"1" else ()

    # Putting and taking.

    def put(
        self, name: str, series: Series, given: Iterable[bytes], token: bytes, force: bool, on_answer: OnAnswer,
        lost: bool = False,
    ) -> Request:  # fmt: skip
        """Put as many messages as there is room for (specification: Put). Answers with how many.

        A `Wait` says that there is room, and another client is about to bring the permit. With `lost`, the step does
        not wait for that permit.

        The step `delay` puts messages that are due later: in `given`, each is followed by when.
        """
        claimed = self.take_claim("producer")
        claims: Sequence[Role] = ("producer",) if claimed == b"1" else ()  # as `_claim` does, without its frame
        how = b"1" if force else b"2" if lost else b"0"
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, token, how, *given]
        return self._send(series.call(name), arguments, on_answer, True, 2, "producer", claims)

    def schedules(self) -> ServerSchedules:
        """Return the steps that are about the queue's schedules. An exclusive producer keeps them from putting."""

        def arguments(number: bytes, message: bytes) -> list[Argument]:
            return [self._uid, number, b"0", b"0", b"", b"0", message, b"0"]

        return ServerSchedules(self, "delay", "type(answer) == 'number' and answer > 0", arguments)

    async def move(
        self, series: Series, source: Keys, token: bytes, lost: bool, runs: Sequence[int], results: Sequence[bytes],
        dead: DeadLetters | None = None,
    ) -> int | Wait:  # fmt: skip
        """Put results here, and acknowledge their inputs in the source. Answers with how many units it moved.

        `token` is the token of the lease on the source, or of a member's share. `runs` describes the units, as the
        script says, and `results` has the results of all units, in order. `lost` is as in `put`. `dead` is given where
        redelivered messages are moved: their errors are forgotten.
        """
        claimed, claims = self._claim("producer")
        how = b"2" if lost else b"0"
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, token, how, len(runs), *runs, *results]
        reasons, variant = ((), "") if dead is None else ((dead.keys.reasons,), "move, forgetting")
        call = series.call("move", lambda: (*source.for_script("none"), source.line()[0], *reasons), variant)
        return await self._ask(call, arguments, 2, "producer", claims)  # type: ignore[no-any-return]

    def gets(self) -> Series | None:
        """Return the series for gets, if replicas must know of them; None without `durability=`."""
        return self.series() if self._durable else None

    def get(self, series: Series | None, max_items: int, place: bytes, on_answer: OnAnswer) -> Request:
        """Get up to max_items messages (specification: Get). Answers with a list of them. It is never sent again.

        `place` is this client's place in the line; empty if it does not wait.
        """
        claimed = self.take_claim("consumer")
        claims: Sequence[Role] = ("consumer",) if claimed == b"1" else ()
        call = (series or self._unnumbered).call("get", self.keys.line)
        number = b"" if series is None else series.next()
        arguments: list[Argument] = [self._uid, claimed, b"%d" % max_items, number, place]
        return self._send(call, arguments, on_answer, False, None, "consumer", claims)

    def give_back(self, gets: Series | None, number: int, messages: Sequence[bytes], on_answer: OnAnswer) -> None:
        """Undo the get with that number in its series. Answers with how many messages, given oldest first, are back."""
        series = self.series()
        call = series.call("give_back", lambda: (gets or self._unnumbered).keys[-1:])
        arguments: list[Argument] = [series.next(), b"0", b"" if gets is None else number, *messages]
        self._send(call, arguments, on_answer, True, 1, whole=True)

    def receive(
        self, series: Series, token: bytes, fresh: bool, want: Want, on_answer: OnAnswer, behind: Sending | None = None
    ) -> Request:
        """Receive messages and acknowledge others. Answers with [chunks, attempts, number of dead letters].

        `fresh`: the lease begins, and the step takes the role. `behind`: sends the step behind a wait; if the lease has
        expired by the time at which it runs, or another receive was carried out meanwhile, it is refused.

        With a limit, messages that have reached it are moved to the dead-letter queue. Then an answer without messages
        says that there may be more behind them.
        """
        claimed, claims = self._claim("consumer") if fresh else (b"0", ())
        dead, acks = want.dead, want.acks
        limit = 0 if dead is None else dead.max_attempts
        call = series.call("receive", tuple if dead is None else dead.for_script)
        arguments: list[Argument] = [
            self._uid, token, b"1" if fresh else b"0", claimed, want.most, want.lease, want.number, limit,
            series.next(), _FIRST if behind is None else _BEHIND, *itertools.chain.from_iterable(acks),
        ]  # fmt: skip
        changed = acknowledged if acks else None
        return self._send(call, arguments, on_answer, True, 9, "consumer", claims, changed=changed, connection=behind)

    def receive_shared(
        self, series: Series, token: bytes, place: bytes, want: Want, on_answer: OnAnswer,
        behind: Sending | None = None,
    ) -> Request:  # fmt: skip
        """`receive` for a member of the clients that share the role. Answers with the number of the first, too.

        Args:
            series: The member's receives.
            token: The member's token.
            place: The member's place in the line of clients that wait for messages; empty if it does not wait.
            want: What it asks for.
            on_answer: As for `receive`.
            behind: As for `receive`.
        """
        dead, in_hand, acks = want.dead, want.in_hand, want.acks
        limit = 0 if dead is None else dead.max_attempts
        call = series.call("receive_shared", lambda: (*self.keys.line(), *(() if dead is None else dead.for_script())))
        arguments: list[Argument] = [
            self._uid, token, want.most, want.lease, series.next(), _FIRST if behind is None else _BEHIND, limit, place,
            want.number, 2 * len(in_hand),
            *itertools.chain.from_iterable(in_hand), *itertools.chain.from_iterable(acks),
        ]  # fmt: skip
        changed = acknowledged if acks else None
        return self._send(call, arguments, on_answer, True, 5, "consumer", changed=changed, connection=behind)

    def resign(self, place: bytes, unused: bool) -> None:
        """Leave the line of clients that wait for messages. `unused`: this client's turn had come, and it took none."""
        call = self._unnumbered.call("resign", self.keys.line)
        self._send(call, [place, b"1" if unused else b"0"], lambda _: None, True)

    # Leases.

    async def acquire(self, role: Role, token: bytes, lease: int, place: bytes | None = None) -> int | Wait:
        """Take a role under a lease. Answers with the queue's bound. Cancelled, the lease is ended again.

        With `place`, as in `Settlement`, become a member of the clients that share the consumer role (`join`).
        """

        def leave(on_answer: OnAnswer) -> None:
            if role == "producer":
                self.leave(self.series(), token, lease, True, on_answer)
            else:
                self.settle(self.series(), token, Settlement(lease, leave=True, unseen=1, place=place), on_answer)

        def undo(answer: Any) -> asyncio.Future[Any] | None:
            return soon(leave) if isinstance(answer, int) else None

        series, (claimed, claims) = self.series(), self._claim(role)
        numbered: list[Argument] = [claimed, token, lease, series.next(), b"0"]
        if place is None:
            call, arguments = series.call("acquire"), [self._uid, role, *numbered]
        else:
            call, arguments = series.call("join", self.keys.line), [self._uid, *numbered]
        again = len(arguments) - 1
        answer = await self._ask(call, arguments, again, role, claims, undo=undo)
        shares = place is not None and isinstance(answer, Wait)
        return answer._replace(reason="share") if shares else answer  # type: ignore[no-any-return]

    def settle(self, series: Series, token: bytes, settlement: Settlement, on_answer: OnAnswer) -> None:
        """Acknowledge and give back deliveries. Answers with how many were settled.

        It renews the lease. `token` is the token of the lease, or of a member's share of the role.
        """
        acks, nacks, dead, place = settlement.acks, settlement.nacks, settlement.dead, settlement.place
        arguments: list[Argument] = [
            token, settlement.lease, b"1" if settlement.leave else b"0", series.next(), b"0", settlement.unseen,
            *(() if place is None else (place,)), 3 * len(acks), *itertools.chain.from_iterable(acks), *nacks,
        ]  # fmt: skip
        name, line = ("settle", tuple) if place is None else ("settle_shared", self.keys.line)
        if dead is None:
            call = series.call(name, line)
        else:
            reasons = dead.keys.reasons
            call = series.call(name, lambda: (*line(), reasons), f"{name}, reasons")
        self._send(call, arguments, on_answer, True, 4, "consumer", whole=bool(nacks) or settlement.leave)

    def leave(self, series: Series, token: bytes, lease: int, leave: bool, on_answer: OnAnswer) -> None:
        """Renew an exclusive producer's lease, or end it."""
        arguments: list[Argument] = [token, lease, b"1" if leave else b"0", series.next(), b"0"]
        self._send(series.call("leave"), arguments, on_answer, True, 4, "producer")

    def renew(
        self, role: Role, token: bytes, lease: int, on_answer: OnAnswer, connection: Connection | None = None
    ) -> None:
        """Renew the lease of a role, over another connection if one is given. The lease never gets shorter."""
        call = self._unnumbered.call("renew")
        self._send(call, [role, token, lease], on_answer, True, role=role, connection=connection)

    def renew_shared(self, token: bytes, lease: int, on_answer: OnAnswer, connection: Connection | None = None) -> None:
        """`renew` for a member. It also gives back the messages of dead members."""
        call = self._unnumbered.call("renew_shared", self.keys.line)
        self._send(call, [token, lease], on_answer, True, role="consumer", connection=connection)

    def renewal(
        self, lease: Any, role: Role, renewer: Renewer, max_hold: float, shared: bool = False,
        on_paused: Callable[[], None] | None = None,
    ) -> Renewal:  # fmt: skip
        """Return what keeps a lease on a role renewed; `shared`: it is a member's share of the role."""
        renew = self.renew_shared if shared else functools.partial(self.renew, role)
        step = functools.partial(renew, lease.token)
        return Renewal(lease, renewer, self.script_keys, step, f"the {role} role", self.name, max_hold, on_paused)

    # The queue as a whole.

    async def create(self, bound: int) -> bool:
        """Create the queue, unless it exists (specification: Create). Answers with whether it is new."""
        series, collisions = self.series(), self.keys.collisions()
        answer = await self._ask(series.call("create", self.keys.collisions), [bound, series.next(), b"0"], 2)
        if isinstance(answer, list) and answer[0] == b"collides":
            raise collides(self.name, collisions[answer[1] - 1])
        return bool(answer == 1)

    async def close(self, token: bytes) -> int | Wait:
        """Close the queue (specification: Close)."""
        series, (claimed, claims) = self.series(), self._claim("producer")
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, token]
        return await self._ask(series.call("close"), arguments, 2, "producer", claims)  # type: ignore[no-any-return]

    async def begin_delete(self) -> None:
        """End the queue's existence and wake all that wait (specification: Delete, the first half)."""
        series = self.series()
        await self._ask(series.call("begin_delete", lambda: (self.keys.resumed,)), [series.next(), b"0"], 1)

    async def finish_delete(self) -> int | Wait:
        """Remove all keys once both roles are free (specification: Delete, the second half)."""
        (producer, first), (consumer, second) = map(self._claim, ROLES)
        keys = self.keys
        call = self._unnumbered.call(
            "finish_delete", lambda: (keys.reasons, keys.schedules, keys.dedup, *keys.counters)
        )
        answer = await self._ask(call, [producer, consumer], None, None, (*first, *second))
        return 1 if isinstance(answer, list) else answer  # a new queue of the name: the old one is gone

    async def requeue(
        self, series: Series, source: Steps, max_items: int, chosen: Sequence[bytes] = ()
    ) -> list[int] | Wait:
        """Move dead letters from their queue to this one. Answers with [number moved, number left], or a `Wait`.

        The consumer role in a `Wait` is the dead-letter queue's. `chosen` has the message of each dead letter to move,
        and the time of its reason or nothing; moved are those before the first one that is gone.
        """
        (claimed, claims), theirs = self._claim("producer"), source.take_claim("consumer")
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, theirs, max_items, *chosen]
        call = series.call("requeue", source.keys.as_dead_letters)
        try:
            return await self._ask(call, arguments, 2, "producer", claims)  # type: ignore[no-any-return]
        except PressureError:
            if theirs == b"1":
                source.unclaim("consumer")
            raise

    async def bury(self, dead: DeadLetters, letters: Iterable[Added]) -> None:
        """Add dead letters to the queue's dead-letter queue, the oldest first."""
        series = self.series()
        told = itertools.chain.from_iterable((one.raw, one.reason) for one in letters)
        await self._ask(series.call("bury", dead.for_script), [series.next(), b"0", *told], 1)

    async def discard(self, series: Series, chosen: Sequence[bytes]) -> list[int] | Wait:
        """Delete dead letters from this queue. The arguments and the answer are those of `requeue`."""
        claimed, claims = self._claim("consumer")
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, *chosen]
        call = series.call("discard", lambda: (self.keys.reasons,))
        return await self._ask(call, arguments, 2, "consumer", claims)  # type: ignore[no-any-return]

    async def purge(self, series: Series, max_items: int) -> list[int] | Wait:
        """Delete waiting messages. Answers with [number deleted, number left], or a `Wait` for the consumer role."""
        call = series.call("purge", lambda: (self.keys.reasons,))
        return await self._ask(call, [series.next(), b"0", max_items], 1)  # type: ignore[no-any-return]

    async def promote(self, most: int) -> int:
        """Make delayed messages due now, those first that are due first. Answers with how many."""
        series = self.series()
        return await self._ask(series.call("promote"), [series.next(), b"0", most], 1)  # type: ignore[no-any-return]

    async def dead_letters(self, passed: int, most: int) -> tuple[list[bytes], list[bytes], int]:
        """Look into this queue for dead letters, the oldest first. Answers with [messages, reasons, number of all]."""
        call = self._unnumbered.call("dead_letters", lambda: (self.keys.reasons,))
        return await self._ask(call, [passed, most])  # type: ignore[no-any-return]

    async def pause(self, pausing: bool) -> bool:
        """Have consumers take nothing, or end that. Answers with whether it is new."""
        series = self.series()
        name, head = ("pause", [self._uid]) if pausing else ("resume", [])
        arguments: list[Argument] = [*head, series.next(), b"0"]
        return bool(await self._ask(series.call(name, lambda: (self.keys.resumed,)), arguments, len(head) + 1))

    async def limit(self, changes: Changes) -> None:
        """Change the limits of the queue: see `LimitSteps`."""
        await self._ask(self._unnumbered.call("limit"), arguments_of(changes))

    async def inspect(self) -> list[Any]:
        """Return everything that statistics show."""
        return await self._ask(self._unnumbered.call("inspect"), [])  # type: ignore[no-any-return]

    async def examine(self) -> list[Any]:
        """Return everything about the queue, or about its leftovers: see `Snapshot` of the doctor."""
        return await self._ask(self._unnumbered.call("examine", self.keys.collisions), [])  # type: ignore[no-any-return]

    async def repair(self, marks: Sequence[bytes], everything: bool, holder: bytes | None) -> list[Any]:
        """Repair what a snapshot has shown. Answers with the repairs, each [kind, role, text, number].

        Args:
            marks: The marks of the snapshot.
            everything: False to make only repairs that never need a human.
            holder: A client that is dead: its roles are given back. None for none.
        """
        call = self._unnumbered.call("repair", self.keys.collisions)
        own = self._uid if self._uid != holder else self._uid + b":repair"
        named = [b"0", b""] if holder is None else [b"1", holder]
        return await self._ask(call, [own, *marks, b"1" if everything else b"0", *named])  # type: ignore[no-any-return]

    async def peek(self, index: int) -> bytes | None:
        """Return the message at an index of the list: -1 is the next one, 0 the newest; None if there is none."""
        answer = await self._ask(self._unnumbered.call("peek"), [index])
        return None if isinstance(answer, Wait) else answer

    async def browse(self, asked: Asked) -> Found:
        """Return a page of what is in a place of the queue."""
        return await self._ask(self._unnumbered.call("browse"), [*asked.arguments])  # type: ignore[no-any-return]

    async def exists(self) -> bool:
        """Return whether the queue exists (specification: Exists)."""
        return bool(await self.connection.ask(b"EXISTS", self.keys.bound, reads=True))


class Access(Steps):
    """The steps of one queue, and the waits that they ask for.

    Args:
        client: The client whose connections they use.
        keys: The queue's keys.
        name: The queue's name.

    Attributes:
        client: As given.
        waits: The waits.
    """

    def __init__(self, client: Client, keys: Keys, name: str) -> None:
        super().__init__(client, keys, name)
        self.client = client
        rounds = client.rounds_on(self.connection, lambda: script("look"))
        self.waits = Waits(self.connection.node, keys, self.unclaim, self.resign, rounds)
        self.take_claim = self.waits.take_claim  # type: ignore[method-assign]  # without a frame: each put asks

    def release(self, error: PressureError) -> None:
        """Release the connections of waits; operations that would wait from now on raise the error."""
        roles = self.waits.close(error)
        if (roles or self.waits.in_line) and self.client.on_its_loop:
            handing_back = background.start(self._hand_back(roles), "giving back a role that was waited for")
            self.client.finish_before_close(handing_back)

    async def _hand_back(self, roles: Sequence[Role]) -> None:
        """Give back tokens that came for waits which have ended, or their roles would stay busy for 5 seconds."""
        with contextlib.suppress(PressureError):
            await asyncio.sleep(0)  # the waits' connections close in the next turn of the event loop
            await asyncio.sleep(0)
            await self.exists()  # after a round trip the server has seen that, too
            for role in roles:
                self.unclaim(role)
            if self.waits.in_line:
                self.resign(self.waits.place, True)
