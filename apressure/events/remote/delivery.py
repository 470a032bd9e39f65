"""An event in flight that came from an okq server."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from apressure.core.counts import Counts
from apressure.core.delivery import BatchedDelivery, Hand
from apressure.core.due import Due
from apressure.core.leases import arguments
from apressure.core.leases.clock import since_boot
from apressure.events.remote.client import OkqClient
from apressure.events.remote.commands import Popped
from apressure.events.remote.errors import no_delays, no_extend
from apressure.events.remote.notices import Notices

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
        acks: Acknowledgements under way that nobody waits for.
    """

    def __init__(self, counts: Counts, keep_errors: bool) -> None:
        self.keep_errors = keep_errors
        self.acks: set[asyncio.Task[bool | Exception]] = set()
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


class RemoteEventDelivery(BatchedDelivery[T]):
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

    __slots__ = ("_client", "_notices", "_seen", "attempts", "event", "queue", "raw")

    raw: bytes
    attempts: int

    _noun = "event"
    _gone = "its lease has ended, and another client got it, or gets it again"

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
        self.settled = self.handed_out = False
        self.failure = b""
        self.certain_until = until  # by the clock `since_boot`
        self._client = client
        self.decode = decode
        self._seen = seen
        self._notices = notices
        self._in_hand = in_hand

    @property
    def id(self) -> str:
        """The event's id."""
        return self.event.decode(errors="surrogateescape")

    @property
    def certain(self) -> bool:
        """Whether its lease has certainly not ended."""
        return since_boot() < self.certain_until

    def forget(self) -> None:
        """It goes back, and the program has not seen it."""
        self._seen.unseen(self.event)

    @property
    def _queue_name(self) -> str:
        return self.queue

    @property
    def _keeps_errors(self) -> bool:
        return self._seen.keep_errors

    def _begin(self, what: str) -> None:
        self._check(what)
        self.settled = True
        if self._in_hand is not None:
            self._in_hand.claims.pop(self, None)  # what has gone back may be acknowledged all the same

    @property
    def can_delay(self) -> bool:
        return False

    def _change(self, back: bool, due: Due | None = None) -> bool:
        if due is not None:
            raise no_delays(self.queue)
        return back

    async def _make(self, change: bool) -> bool:
        if change and not self.certain:
            return False
        error = self.failure if change else b""
        done = await self._client.step(self._client.commands.settle(self.queue, self.event, change, error))
        if done and change:
            self._notices.wake()
        elif done:
            self._seen.acknowledged(self.event)
        return done

    def _ack_soon(self) -> None:
        task = self._client.soon(self._client.commands.settle(self.queue, self.event, redo=False))
        self._seen.acks.add(task)
        task.add_done_callback(lambda task: self._was_acked(task.result()))
        task.add_done_callback(self._seen.acks.discard)

    def _was_acked(self, outcome: Any) -> None:
        if outcome is True:
            self._seen.acknowledged(self.event)
        super()._was_acked(outcome)

    async def _extend(self, seconds: float) -> bool:
        commands = self._client.commands
        if not await commands.extends():
            raise no_extend(self.queue)
        if not self.certain:
            return False
        sent = since_boot()
        (extended,) = await self._client.step(commands.extend(self.queue, [self.event], seconds))
        if extended:
            self.renewed(sent + seconds)
        return extended
