"""One function for each step of the protocol: it orders the script's arguments and reads its answer.

A step never waits for the queue. It answers with a value, with a `Wait`, or with an exception. Each step of this module
has a script of the same name in `lua/`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apressure.connection.renewer import Renewer
from apressure.connection.wire.command import Argument
from apressure.connection.wire.request import Request
from apressure.connection.wire.series import Series
from apressure.core.driver import Connection, OnAnswer
from apressure.core.leases.renewal import Held, Renewal
from apressure.core.waiting import Wait
from apressure.exceptions import ROLES, Role
from apressure.pressure.engine.answers import collides
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.sending import ONLY_CONSUMER, ONLY_PRODUCER, acknowledged, undoing
from apressure.pressure.engine.shared_steps import Settlement, SharedSteps, Want


class Steps(SharedSteps):
    """The steps of one queue."""

    def put(
        self,
        series: Series,
        messages: Iterable[bytes],
        claimed: bytes,
        token: bytes,
        force: bool,
        on_answer: OnAnswer,
        lost: bool = False,
    ) -> Request:
        """Put as many messages as there is room for (specification: Put). Answers with how many.

        A `Wait` says that there is room, and another client is about to bring the permit. With `lost`, the step does
        not wait for that permit.
        """
        return self._put("put", series, messages, claimed, token, force, on_answer, lost)

    def delay(
        self,
        series: Series,
        messages: Iterable[tuple[bytes, bytes]],
        claimed: bytes,
        token: bytes,
        force: bool,
        on_answer: OnAnswer,
        lost: bool = False,
    ) -> Request:
        """`put` for messages that are due later: each with when, encoded."""
        given = itertools.chain.from_iterable(messages)
        return self._put("delay", series, given, claimed, token, force, on_answer, lost)

    def _put(
        self, name: str, series: Series, given: Iterable[bytes], claimed: bytes, token: bytes, force: bool,
        on_answer: OnAnswer, lost: bool,
    ) -> Request:  # fmt: skip
        how = b"1" if force else b"2" if lost else b"0"
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, token, how, *given]
        claims = ONLY_PRODUCER if claimed == b"1" else ()
        return self._send(series.call(name), arguments, on_answer, True, 2, "producer", claims)

    async def move(
        self,
        series: Series,
        source: Keys,
        claimed: bytes,
        token: bytes,
        lost: bool,
        runs: Sequence[int],
        results: Sequence[bytes],
        dead: DeadLetters | None = None,
    ) -> int | Wait:
        """Put results here, and acknowledge their inputs in the source. Answers with how many units it moved.

        `token` is the token of the lease on the source, or of a member's share. `runs` describes the units, as the
        script says, and `results` has the results of all units, in order. `lost` is as in `put`. `dead` is given where
        redelivered messages are moved: their errors are forgotten.
        """
        arguments: list[Argument] = [
            self._uid, series.next(), b"0", claimed, token, b"2" if lost else b"0", len(runs), *runs, *results,
        ]  # fmt: skip
        turns = source.line()[0]
        if dead is None:
            call = series.call("move", lambda: (*source.as_second(), turns))
        else:
            reasons = dead.reasons
            call = series.call("move", lambda: (*source.as_second(), turns, *reasons()), "move, forgetting")
        claims = ONLY_PRODUCER if claimed == b"1" else ()
        return await self._ask(call, arguments, 2, "producer", claims)  # type: ignore[no-any-return]

    def gets(self) -> Series | None:
        """Return the series for gets, if replicas must know of them; None without `durability=`."""
        return self.series() if self._durable else None

    def get(self, series: Series | None, claimed: bytes, max_items: int, place: bytes, on_answer: OnAnswer) -> Request:
        """Get up to max_items messages (specification: Get). Answers with a list of them. It is never sent again.

        `place` is this client's place in the line; empty if it does not wait.
        """
        call = (series or self._unnumbered).call("get", self.keys.line)
        arguments: list[Argument] = [self._uid, claimed, max_items, b"" if series is None else series.next(), place]
        claims = ONLY_CONSUMER if claimed == b"1" else ()
        return self._send(call, arguments, on_answer, False, None, "consumer", claims)

    def give_back(self, gets: Series | None, number: int, messages: Sequence[bytes], on_answer: OnAnswer) -> None:
        """Undo the get with that number in its series. Answers with how many messages, given oldest first, are back."""
        series = self.series()
        call = series.call("give_back", lambda: (gets or self._unnumbered).keys[-1:])
        arguments: list[Argument] = [series.next(), b"0", b"" if gets is None else number, *messages]
        self._send(call, arguments, on_answer, True, 1, whole=True)

    def receive(
        self, series: Series, token: bytes, fresh: bool, claimed: bytes, want: Want, on_answer: OnAnswer
    ) -> Request:
        """Receive messages and acknowledge others. Answers with [chunks, attempts, number of dead letters].

        With a limit, messages that have reached it are moved to the dead-letter queue. Then an answer without messages
        says that there may be more behind them.
        """
        dead, acks = want.dead, want.acks
        limit = 0 if dead is None else dead.max_attempts
        call = series.call("receive", tuple if dead is None else dead.for_script)
        arguments: list[Argument] = [
            self._uid, token, b"1" if fresh else b"0", claimed, want.most, want.lease, want.number, limit,
            series.next(), b"0", *itertools.chain.from_iterable(acks),
        ]  # fmt: skip
        claims = ONLY_CONSUMER if claimed == b"1" else ()
        changed = acknowledged if acks else None
        return self._send(call, arguments, on_answer, True, 9, "consumer", claims, changed=changed)

    def leave(self, series: Series, token: bytes, lease: int, leave: bool, on_answer: OnAnswer) -> None:
        """Renew an exclusive producer's lease, or end it."""
        arguments: list[Argument] = [token, lease, b"1" if leave else b"0", series.next(), b"0"]
        self._send(series.call("leave"), arguments, on_answer, True, 4, "producer")

    def renew(
        self,
        role: Role,
        token: bytes,
        lease: int,
        on_answer: OnAnswer,
        connection: Connection | None = None,
    ) -> None:
        """Renew the lease of a role, over another connection if one is given. The lease never gets shorter."""
        call = self._unnumbered.call("renew")
        self._send(call, [role, token, lease], on_answer, True, role=role, connection=connection)

    def renewal(
        self, lease: Held, role: Role, renewer: Renewer, max_hold: float, shared: bool = False,
        on_paused: Callable[[], None] | None = None,
    ) -> Renewal:  # fmt: skip
        """Return what keeps a lease on a role renewed; `shared`: it is a member's share of the role."""
        step = self.renew_shared if shared else functools.partial(self.renew, role)
        return Renewal(lease, renewer, self.script_keys, step, f"the {role} role", self.name, max_hold, on_paused)

    async def create(self, bound: int) -> bool:
        """Create the queue, unless it exists (specification: Create). Answers with whether it is new."""
        series, collisions = self.series(), self.keys.collisions()
        answer = await self._ask(series.call("create", self.keys.collisions), [bound, series.next(), b"0"], again=2)
        if isinstance(answer, list) and answer[0] == b"collides":
            raise collides(self.name, collisions[answer[1] - 1])
        return bool(answer == 1)

    async def acquire(self, role: Role, claimed: bytes, token: bytes, lease: int) -> int | Wait:
        """Take a role under a lease. Answers with the queue's bound. Cancelled, the lease is ended again."""

        def leave(on_answer: OnAnswer) -> None:
            if role == "producer":
                self.leave(self.series(), token, lease, True, on_answer)
            else:
                self.settle(self.series(), token, Settlement(lease, leave=True, unseen=1), on_answer)

        series = self.series()
        arguments: list[Argument] = [self._uid, role, claimed, token, lease, series.next(), b"0"]
        claims = (role,) if claimed == b"1" else ()
        call = series.call("acquire")
        return await self._ask(call, arguments, 6, role, claims, undoing(leave))  # type: ignore[no-any-return]

    async def close(self, claimed: bytes, token: bytes) -> int | Wait:
        """Close the queue (specification: Close)."""
        series = self.series()
        arguments: list[Argument] = [self._uid, series.next(), b"0", claimed, token]
        claims = ONLY_PRODUCER if claimed == b"1" else ()
        return await self._ask(series.call("close"), arguments, 2, "producer", claims)  # type: ignore[no-any-return]

    async def begin_delete(self) -> None:
        """End the queue's existence and wake all that wait (specification: Delete, the first half)."""
        series = self.series()
        await self._ask(series.call("begin_delete", self._resumed), [series.next(), b"0"], again=1)

    async def finish_delete(self, claimed_producer: bytes, claimed_consumer: bytes) -> int | Wait:
        """Remove all keys once both roles are free (specification: Delete, the second half)."""
        flags = (claimed_producer, claimed_consumer)
        claims = [role for role, claimed in zip(ROLES, flags, strict=True) if claimed == b"1"]
        call = self._unnumbered.call("finish_delete", lambda: (self.keys.reasons, *self.keys.counters))
        answer = await self._ask(call, [*flags], claims=claims)
        return 1 if isinstance(answer, list) else answer  # a new queue of the name: the old one is gone

    async def requeue(
        self,
        series: Series,
        source: Keys,
        claimed_producer: bytes,
        claimed_consumer: bytes,
        max_items: int,
        chosen: Sequence[bytes] = (),
    ) -> list[int] | Wait:
        """Move dead letters from their queue to this one. Answers with [number moved, number left], or a `Wait`.

        The consumer role in a `Wait` is the dead-letter queue's. When this raises, the caller must give back its claim
        on that role. `chosen` has the message of each dead letter to move, and the time of its reason or nothing; moved
        are those before the first one that is gone.
        """
        arguments: list[Argument] = [
            self._uid, series.next(), b"0", claimed_producer, claimed_consumer, max_items, *chosen,
        ]  # fmt: skip
        call = series.call("requeue", source.as_dead_letters)
        claims = ONLY_PRODUCER if claimed_producer == b"1" else ()
        return await self._ask(call, arguments, 2, "producer", claims)  # type: ignore[no-any-return]

    async def purge(self, series: Series, max_items: int) -> list[int] | Wait:
        """Delete waiting messages. Answers with [number deleted, number left], or a `Wait` for the consumer role."""
        arguments: list[Argument] = [series.next(), b"0", max_items]
        call = series.call("purge", lambda: (self.keys.reasons,))
        return await self._ask(call, arguments, again=1)  # type: ignore[no-any-return]

    async def dead_letters(self, passed: int, most: int) -> list[list[bytes]]:
        """Look into this queue for dead letters, the oldest first. Answers with [messages, reasons]."""
        call = self._unnumbered.call("dead_letters", lambda: (self.keys.reasons,))
        return await self._ask(call, [passed, most])  # type: ignore[no-any-return]

    async def pause(self, pausing: bool) -> bool:
        """Have consumers take nothing, or end that. Answers with whether it is new."""
        series = self.series()
        name, head = ("pause", [self._uid]) if pausing else ("resume", [])
        arguments: list[Argument] = [*head, series.next(), b"0"]
        return bool(await self._ask(series.call(name, self._resumed), arguments, again=len(head) + 1))

    def _resumed(self) -> tuple[bytes, ...]:
        return (self.keys.resumed,)

    async def inspect(self) -> list[Any]:
        """Return everything that statistics show."""
        return await self._ask(self._unnumbered.call("inspect"), [])  # type: ignore[no-any-return]

    async def examine(self) -> list[Any]:
        """Return everything about the queue, or about its leftovers: see `doctor/snapshot`."""
        call = self._unnumbered.call("examine", self.keys.collisions)
        return await self._ask(call, [])  # type: ignore[no-any-return]

    async def repair(self, marks: Sequence[bytes], everything: bool, holder: bytes | None) -> list[Any]:
        """Repair what a snapshot has shown. Answers with the repairs, each [kind, role, text, number].

        Args:
            marks: The marks of the snapshot.
            everything: False to make only repairs that never need a human.
            holder: A client that is dead: its roles are given back. None for none.
        """
        call = self._unnumbered.call("repair", self.keys.collisions)
        own = self._uid if self._uid != holder else self._uid + b":repair"
        arguments: list[Argument] = [
            own, *marks, b"1" if everything else b"0", b"0" if holder is None else b"1", holder or b"",
        ]  # fmt: skip
        return await self._ask(call, arguments)  # type: ignore[no-any-return]

    async def peek(self, index: int) -> bytes | None:
        """Return the message at an index of the list: -1 is the next one, 0 the newest; None if there is none."""
        answer = await self._ask(self._unnumbered.call("peek"), [index])
        return None if isinstance(answer, Wait) else answer

    async def exists(self) -> bool:
        """Return whether the queue exists (specification: Exists)."""
        return bool(await self.connection.ask(b"EXISTS", self.keys.bound, reads=True))
