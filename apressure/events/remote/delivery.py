"""An event in flight that came from an okq server."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from apressure import dead_letters
from apressure.core.counts import Counts
from apressure.core.delivery import LeasedDelivery
from apressure.core.leases import arguments
from apressure.core.leases.clock import since_boot
from apressure.core.leases.in_hand import InHand
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Popped
from apressure.events.remote.errors import no_extend
from apressure.events.remote.notices import Notices
from apressure.exceptions import LeaseLostError

T = TypeVar("T")

DEFAULT_LEASE: Final = 30.0
"""Seconds; okq's own default. The released okq cannot extend it."""

_REMEMBERED: Final = 10_000


def lease_of(lease: float | None, name: str = "lease") -> float:
    """Return a lease in seconds, checked; None for the default."""
    return arguments.lease_of(lease, name, DEFAULT_LEASE)


class Seen:
    """How often each event was delivered, as our server tells. A released okq does not count: then, to this object.

    The latest 10,000 events are known.

    Args:
        counts: What the object has done so far.
        keep_errors: Have the server keep the errors of events that go back.

    Attributes:
        keep_errors: As given.
    """

    def __init__(self, counts: Counts, keep_errors: bool) -> None:
        self.keep_errors = keep_errors
        self._done = counts
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def popped(self, events: Popped) -> None:
        """Events were popped. If the server says how often, that counts. Others may have become dead letters."""
        self._done.received_count += len(events)
        self._done.dead_lettered_count += events.dead
        for (event, _), attempts in zip(events, events.attempts, strict=False):
            self._note(event, attempts - 1)

    def delivered(self, event: bytes) -> int:
        """An event was delivered; return how often, this time included."""
        return self._note(event, self._counts.get(event, 0) + 1)

    def _note(self, event: bytes, count: int) -> int:
        self._counts.pop(event, None)
        self._counts[event] = count
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        return count

    def unseen(self, event: bytes) -> None:
        """An event went back that the program has not seen."""
        if self._counts.get(event, 0) > 1:
            self._counts[event] -= 1
        else:
            self._counts.pop(event, None)

    def acknowledged(self, event: bytes) -> None:
        """An event is gone."""
        self._done.deleted_count += 1
        self._counts.pop(event, None)


class RemoteEventDelivery(LeasedDelivery[T]):
    """An event in flight: no other consumer gets it until its lease ends.

    okq knows a claim by the event's id alone. So `ack` after the end of the lease acknowledges the event even if
    another consumer has it then: the work has been done. `nack` and `extend` leave it alone then.

    Attributes:
        queue: The queue's name.
        raw: The event's contents.
        attempts: How often it has been delivered, this time included. A released okq does not count: there, it is how
            often this queue object has received it.
        settled: Whether `ack` or `nack` has been called.
    """

    __slots__ = ("_client", "_notices", "_seen", "event", "failure", "queue")

    _noun = "event"

    _in_hand: Hand | None

    def __init__(
        self,
        client: OkqClient,
        queue: str,
        event: tuple[bytes, bytes],
        decode: Callable[[bytes], T],
        seen: Seen,
        until: float,
        notices: Notices,
        in_hand: Hand | None = None,
    ) -> None:
        self.queue = queue
        self.event, self.raw = event
        self.attempts = seen.delivered(self.event)
        self.settled = False
        self.failure = b""  # why this attempt failed, as it is kept
        self.certain_until = until  # the lease has certainly not ended before that, by the clock `since_boot`
        self._client = client
        self._decode = decode
        self._seen = seen
        self._notices = notices
        self._in_hand = in_hand

    @property
    def id(self) -> str:
        """The event's id."""
        return self.event.decode(errors="surrogateescape")

    @property
    def claim(self) -> RemoteEventDelivery[T]:
        """What names it in its consumer's hand: itself."""
        return self

    @property
    def certain(self) -> bool:
        """Whether its lease has certainly not ended."""
        return since_boot() < self.certain_until

    async def ack(self) -> None:
        """Acknowledge the event: it never comes again (specification: QACK).

        Raises:
            LeaseLostError: The event is not in the queue: its lease ended, and another consumer has acknowledged it.
            OutcomeUnknownError: The connection broke and could not be restored in time.
            RuntimeError: It was settled before.

        Cancelled, it waits for the outcome, then raises: the event is acknowledged or in flight.
        """
        self._begin("acknowledged")
        await self._settle(redo=False)

    def note_error(self, error: BaseException | str) -> None:
        """Keep why this attempt failed, however the event goes back: a dead letter shows its latest error.

        Without `max_attempts` it is dropped.

        Raises:
            TypeError: The error is neither an exception nor a text.
        """
        text = dead_letters.encode(error)
        if self._seen.keep_errors:
            self.failure = text

    async def nack(self, error: BaseException | str | None = None) -> None:
        """Give the event back, first in line (specification: QACK with REDO; with an error, QFAIL of our servers).

        Args:
            error: Why; see `EventQueue.dead_letters`. None keeps no error of this attempt.

        Raises:
            LeaseLostError: Its lease has ended, so it has gone back by itself.
            OutcomeUnknownError, RuntimeError: As for `ack`.
            TypeError: The error is neither an exception nor a text. The event stays in flight.

        Cancelled, it waits for the outcome, then raises: the event is given back or in flight.
        """
        if error is not None:
            self.note_error(error)
        self._begin("given back")
        if not self.certain:
            raise self.lost("given back")
        await self._settle(redo=True)

    def ack_soon(self) -> None:
        """Acknowledge the event without waiting. If that fails, the consumer says so.

        Raises:
            RuntimeError: It was settled before.
        """
        self._begin("acknowledged")
        task = self._client.soon(self._client.commands.settle(self.queue, self.event, redo=False))
        task.add_done_callback(self._acked)
        if self._in_hand is not None:
            self._in_hand.acks.add(task)

    async def extend(self, seconds: float) -> None:
        """Keep the event in flight for at least `seconds` from now. The lease never gets shorter.

        Raises:
            ServerTooOldError: The server is a released okq, which cannot do that.
            LeaseLostError: The lease ended before.
            RuntimeError: It was settled before.
            TypeError, ValueError: `seconds` is invalid.

        Cancelled, it is extended or not, and can be settled.
        """
        seconds = lease_of(seconds, "seconds")
        self._check("extended")
        commands = self._client.commands
        if not await commands.extends():
            raise no_extend(self.queue)
        if not self.certain:
            raise self.lost("extended")
        sent = since_boot()
        (extended,) = await self._client.step(commands.extend(self.queue, [self.event], seconds))
        if extended:
            self.certain_until = max(self.certain_until, sent + seconds)
        elif not self.settled:
            raise self.lost("extended")
        if self._in_hand is not None:
            self._in_hand.extended(seconds)

    def lost(self, what: str) -> LeaseLostError:
        """Return the error for an event whose lease has ended."""
        return LeaseLostError(
            f"the event {self.id} of {self.queue!r} was not {what}: its lease has ended, and another client got it, or "
            "gets it again",
            name=self.queue,
            role="consumer",
        )

    async def _settle(self, redo: bool) -> None:
        try:
            error = self.failure if redo else b""
            done = await self._client.step(self._client.commands.settle(self.queue, self.event, redo, error))
        except Exception:
            self.settled = False  # another try may succeed
            if self._in_hand is not None:
                self._in_hand[self] = self
            raise
        if not done:
            raise self.lost("given back" if redo else "acknowledged")
        if redo:
            self._notices.wake()
        else:
            self._seen.acknowledged(self.event)

    def _begin(self, what: str) -> None:
        self._check(what)
        self.settled = True
        if self._in_hand is not None:
            self._in_hand.pop(self, None)

    def _acked(self, task: asyncio.Task[bool | Exception]) -> None:
        if self._in_hand is not None:
            self._in_hand.acks.discard(task)
        outcome = task.result()
        if outcome is True:
            self._seen.acknowledged(self.event)
        elif self._in_hand is not None:
            self._in_hand.on_failure(outcome if isinstance(outcome, Exception) else self.lost("acknowledged"))


class Hand(InHand[RemoteEventDelivery[Any], RemoteEventDelivery[Any]]):
    """A consumer's deliveries.

    Attributes:
        acks: Acknowledgements under way that nobody waits for.
    """

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        super().__init__(on_failure)
        self.acks: set[asyncio.Task[bool | Exception]] = set()
