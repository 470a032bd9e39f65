"""The steps of clients that share the consumer role: its members. Each has a script of the same name in `lua/`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from apressure.connection.wire.command import Argument
from apressure.connection.wire.request import Request
from apressure.connection.wire.series import Series
from apressure.core.driver import Connection, OnAnswer
from apressure.core.waiting import Wait
from apressure.pressure.engine.dead_letters import DeadLetters
from apressure.pressure.engine.sending import ONLY_CONSUMER, Sender, acknowledged, undoing

if TYPE_CHECKING:
    from apressure.pressure.leases.acknowledgements import Range


class SharedSteps(Sender):
    """The steps of members, and of clients that wait in line for messages."""

    async def join(self, claimed: bytes, token: bytes, lease: int, place: bytes) -> int | Wait:
        """Become a member of the clients that share the consumer role. Answers with the bound, as `acquire` does."""

        def leave(on_answer: OnAnswer) -> None:
            self.settle_shared(place, self.series(), token, lease, True, 1, (), (), on_answer)

        series = self.series()
        arguments: list[Argument] = [self._uid, claimed, token, lease, series.next(), b"0"]
        claims = ONLY_CONSUMER if claimed == b"1" else ()
        answer = await self._ask(series.call("join", self.keys.line), arguments, 5, "consumer", claims, undoing(leave))
        return Wait("share", answer.lease, holder=answer.holder) if isinstance(answer, Wait) else answer

    def receive_shared(
        self,
        series: Series,
        token: bytes,
        max_items: int,
        lease: int,
        dead: DeadLetters | None,
        place: bytes,
        number: int,
        in_hand: Sequence[tuple[int, int]],
        acks: Sequence[Range],
        on_answer: OnAnswer,
    ) -> Request:
        """`receive` for a member of the clients that share the role. Answers with the number of the first, too.

        Args:
            series: The member's receives.
            token: The member's token.
            max_items: How many to receive at most.
            lease: Milliseconds.
            dead: As for `receive`.
            place: The member's place in the line of clients that wait for messages; empty if it does not wait.
            number: Higher than the numbers of all its deliveries so far.
            in_hand: The deliveries that the member has not settled, without those that this step acknowledges.
            acks: The deliveries that this step acknowledges.
            on_answer: As for `receive`.
        """
        limit = 0 if dead is None else dead.max_attempts
        call = series.call("receive_shared", lambda: (*self.keys.line(), *(() if dead is None else dead.for_script())))
        arguments: list[Argument] = [
            self._uid, token, max_items, lease, series.next(), b"0", limit, place, number, 2 * len(in_hand),
            *itertools.chain.from_iterable(in_hand), *itertools.chain.from_iterable(acks),
        ]  # fmt: skip
        changed = acknowledged if acks else None
        return self._send(call, arguments, on_answer, True, 5, "consumer", changed=changed)

    def settle_shared(
        self,
        place: bytes,
        series: Series,
        token: bytes,
        lease: int,
        leave: bool,
        unseen: int,
        acks: Sequence[Range],
        nacks: Sequence[Argument],
        on_answer: OnAnswer,
        dead: DeadLetters | None = None,
    ) -> None:
        """`settle` for a member of the clients that share the role."""
        arguments: list[Argument] = [
            token, lease, b"1" if leave else b"0", series.next(), b"0", unseen, place, 3 * len(acks),
            *itertools.chain.from_iterable(acks), *nacks,
        ]  # fmt: skip
        if dead is None:
            call = series.call("settle_shared", self.keys.line)
        else:
            reasons = dead.reasons
            call = series.call("settle_shared", lambda: (*self.keys.line(), *reasons()), "settle_shared, reasons")
        self._send(call, arguments, on_answer, True, 4, "consumer", whole=bool(nacks) or leave)

    def renew_shared(self, token: bytes, lease: int, on_answer: OnAnswer, connection: Connection | None = None) -> None:
        """`renew` for a member. It also gives back the messages of dead members."""
        call = self._unnumbered.call("renew_shared", self.keys.line)
        self._send(call, [token, lease], on_answer, True, role="consumer", connection=connection)

    def resign(self, place: bytes, unused: bool) -> None:
        """Leave the line of clients that wait for messages. `unused`: this client's turn had come, and it took none."""
        call = self._unnumbered.call("resign", self.keys.line)
        self._send(call, [place, b"1" if unused else b"0"], lambda _: None, True)
