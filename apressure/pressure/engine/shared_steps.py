"""The steps of clients that share the consumer role, its members, and what settles. Each has a script in `lua/`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from apressure.connection.wire.command import Argument
from apressure.connection.wire.script import Request, Series
from apressure.core.driver import Connection, OnAnswer
from apressure.core.waiting import Wait
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.sending import ONLY_CONSUMER, Sender, acknowledged, undoing

Range = tuple[int, int, int]
"""Acknowledged messages: the first number, the last one, and how many bytes they have together."""


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
        nacks: The numbers of those that it gives back. An error may follow a number (see the script).
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


class SharedSteps(Sender):
    """The steps of members, and of clients that wait in line for messages."""

    async def join(self, claimed: bytes, token: bytes, lease: int, place: bytes) -> int | Wait:
        """Become a member of the clients that share the consumer role. Answers with the bound, as `acquire` does."""

        def leave(on_answer: OnAnswer) -> None:
            self.settle(self.series(), token, Settlement(lease, leave=True, unseen=1, place=place), on_answer)

        series = self.series()
        arguments: list[Argument] = [self._uid, claimed, token, lease, series.next(), b"0"]
        claims = ONLY_CONSUMER if claimed == b"1" else ()
        answer = await self._ask(series.call("join", self.keys.line), arguments, 5, "consumer", claims, undoing(leave))
        return Wait("share", answer.lease, holder=answer.holder) if isinstance(answer, Wait) else answer

    def receive_shared(self, series: Series, token: bytes, place: bytes, want: Want, on_answer: OnAnswer) -> Request:
        """`receive` for a member of the clients that share the role. Answers with the number of the first, too.

        Args:
            series: The member's receives.
            token: The member's token.
            place: The member's place in the line of clients that wait for messages; empty if it does not wait.
            want: What it asks for.
            on_answer: As for `receive`.
        """
        dead, in_hand, acks = want.dead, want.in_hand, want.acks
        limit = 0 if dead is None else dead.max_attempts
        call = series.call("receive_shared", lambda: (*self.keys.line(), *(() if dead is None else dead.for_script())))
        arguments: list[Argument] = [
            self._uid, token, want.most, want.lease, series.next(), b"0", limit, place, want.number, 2 * len(in_hand),
            *itertools.chain.from_iterable(in_hand), *itertools.chain.from_iterable(acks),
        ]  # fmt: skip
        changed = acknowledged if acks else None
        return self._send(call, arguments, on_answer, True, 5, "consumer", changed=changed)

    def settle(self, series: Series, token: bytes, settlement: Settlement, on_answer: OnAnswer) -> None:
        """Acknowledge and give back deliveries. Answers with how many were settled.

        It renews the lease. `token` is the token of the lease, or of a member's share of the role.
        """
        acks, nacks, dead, place = settlement.acks, settlement.nacks, settlement.dead, settlement.place
        arguments: list[Argument] = [
            token, settlement.lease, b"1" if settlement.leave else b"0", series.next(), b"0", settlement.unseen,
            *(() if place is None else (place,)), 3 * len(acks), *itertools.chain.from_iterable(acks), *nacks,
        ]  # fmt: skip
        name = "settle" if place is None else "settle_shared"
        line = tuple if place is None else self.keys.line
        if dead is None:
            call = series.call(name, line)
        else:
            reasons = dead.reasons
            call = series.call(name, lambda: (*line(), *reasons()), f"{name}, reasons")
        self._send(call, arguments, on_answer, True, 4, "consumer", whole=bool(nacks) or settlement.leave)

    def renew_shared(self, token: bytes, lease: int, on_answer: OnAnswer, connection: Connection | None = None) -> None:
        """`renew` for a member. It also gives back the messages of dead members."""
        call = self._unnumbered.call("renew_shared", self.keys.line)
        self._send(call, [token, lease], on_answer, True, role="consumer", connection=connection)

    def resign(self, place: bytes, unused: bool) -> None:
        """Leave the line of clients that wait for messages. `unused`: this client's turn had come, and it took none."""
        call = self._unnumbered.call("resign", self.keys.line)
        self._send(call, [place, b"1" if unused else b"0"], lambda _: None, True)
