"""The pipeline of acknowledgements under a lease: one step at a time settles what has gathered, and renews it."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from apressure.concurrency.settle import set_result_once
from apressure.exceptions import DurabilityError
from apressure.pressure.leases.acknowledgements import Range

if TYPE_CHECKING:
    from apressure.pressure.engine.scripted import Scripted
    from apressure.pressure.leases.lease import Lease


class Settling:
    """Sends a lease's acknowledgements, what goes back, and renewals. What gathers meanwhile leaves with the next step.

    Args:
        lease: The lease.
        queue: The operations of the queue.

    Attributes:
        settle: The step.
        series: The series of these steps.
        renew: The next step is due, even if it only renews the lease.
        answer: Done with the step on its way; its result says whether too few replicas confirmed it.
        carried: The acknowledgements that travel with the step on its way.
    """

    def __init__(self, lease: Lease, queue: Scripted) -> None:
        self._lease = lease
        self.settle = queue.steps.settle
        if lease.shared:
            self.settle = functools.partial(queue.steps.settle_shared, queue.waits.place)
        self.series = queue.steps.series()
        self.renew = False
        self.answer: asyncio.Future[DurabilityError | None] | None = None
        self.carried: list[Range] = []
        self._nacks: list[int] = []
        self._carried_nacks: list[int] = []
        self._unseen = 0  # from this number on, what goes back was never handed out; 0 for none
        self._soon: asyncio.Handle | None = None
        self._awaited = 0  # callers that wait for the step on its way
        self._sent = 0
        self._done = 0

    @property
    def pending(self) -> bool:
        """Whether there is something for the next step."""
        return bool(self._lease.unsettled.acked or self._nacks or self.renew) and self._lease.error is None

    def give_back(self, number: int, unseen: bool = False) -> None:
        """Give a message back; `unseen`: it was never handed out."""
        if unseen:
            self._unseen = min(self._unseen or number, number)
        self._lease.unsettled.give_back(number)
        self._nacks.append(number)
        self.send_soon()

    def take(self) -> tuple[list[int], int]:
        """Return what is to go back, in order, and the number from which on it was never handed out."""
        nacks, unseen = sorted(self._nacks), self._unseen
        self._nacks, self._unseen = [], 0
        return nacks, unseen

    @property
    def unconfirmed(self) -> list[tuple[int, int]]:
        """What may not be settled on the server yet, as ranges: first, last."""
        acks = [(first, last) for first, last, _ in self.carried]
        return acks + [(number, number) for number in (*self._carried_nacks, *self._nacks)]

    def send_soon(self) -> None:
        """Send what gathers in this turn of the event loop."""
        if self._soon is None and self.answer is None:
            self._soon = asyncio.get_running_loop().call_soon(self.send)

    def stop(self) -> None:
        """Send nothing by itself any more."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    async def settled(self) -> DurabilityError | None:
        """Send what has gathered, and wait until it is settled; returns the error where too few confirmed it."""
        self.send()
        last = self._sent + (1 if self.pending else 0)
        unsure: DurabilityError | None = None
        while self._done < last and self.answer is not None:
            self._awaited += 1
            try:
                unsure = await self._lease.wait_for(self.answer) or unsure
            finally:
                self._awaited -= 1
        return unsure

    def send(self) -> None:
        """Send what has gathered, unless a step is on its way: then it leaves when that is answered."""
        lease = self._lease
        self.stop()
        if not lease.kept and not lease.unsettled:
            self.renew = False  # the role goes back with the last message: there is no lease to renew
        if self.answer is not None or not self.pending:
            return
        answer: asyncio.Future[DurabilityError | None] = asyncio.get_running_loop().create_future()
        self.answer = answer
        self._sent += 1
        self.renew = False
        acks = self.carried = lease.unsettled.take()
        nacks, unseen = self.take()
        self._carried_nacks = nacks
        given_back, dead = lease.failures.take(acks, nacks)
        milliseconds = lease.term.milliseconds
        confirm = lease.term.sent(milliseconds)

        def on_answer(reply: Any) -> None:
            self.answer = None
            self.carried, self._carried_nacks = [], []
            self._done += 1
            unsure = reply if isinstance(reply, DurabilityError) else None
            if unsure is not None or not isinstance(reply, Exception):
                confirm()
                lease.settled(acks)
            if unsure is not None:
                if acks and not self._awaited:
                    lease.unsure = unsure  # no caller waits for this step
            elif isinstance(reply, Exception):
                lease.broken(reply)
            if isinstance(reply if unsure is None else unsure.answer, list):
                lease.paused()
            self.send()
            set_result_once(answer, unsure)

        self.settle(self.series, lease.token, milliseconds, False, unseen, acks, given_back, on_answer, dead)
