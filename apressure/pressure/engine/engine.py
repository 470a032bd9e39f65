"""What both engines share, and the one that runs scripts: each operation is one atomic step, and a wait takes nothing.

An engine carries out a queue object's operations: `Scripted` with scripts, `Plain` with the specification's commands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from apressure import validation
from apressure.concurrency import background
from apressure.concurrency.settle import note_sent, wait_shielded
from apressure.connection.client import Client
from apressure.connection.requests import ServerRequests
from apressure.connection.workers import ServerRegistry
from apressure.core.counts import Counts
from apressure.core.due import Due
from apressure.core.leases.clock import Term, since_boot
from apressure.core.limits import Changes
from apressure.core.objects import Block, QueueObject
from apressure.core.registration import Registry
from apressure.core.requests import Pressing, unanswered
from apressure.core.taking import Take, Taken
from apressure.core.waiting import Wait
from apressure.core.workers import Beside
from apressure.exceptions import (
    ClientClosedError,
    PressureError,
    QueueDoesNotExistError,
    QueueInUseError,
    RequestFailedError,
    Role,
)
from apressure.pressure.engine.batching import GET, MAX_MESSAGES, GetLane, Put, PutLane, lane_for
from apressure.pressure.engine.dead_letters import DeadLetters, beside
from apressure.pressure.engine.keys import Keys
from apressure.pressure.engine.steps import Access
from apressure.pressure.engine.waits import Waits

if TYPE_CHECKING:
    from apressure.pressure.leases.hand import Received
    from apressure.pressure.leases.lease import Lease


class RoleLease(Protocol):
    """A lease that this object has on a role."""

    def stop(self) -> None:
        """Stop renewing it."""

    async def leave(self, closing: PressureError) -> None:
        """Give back the role and the messages in flight; later operations raise the error."""


class Engine(QueueObject[Client, Block]):
    """The engine of one queue object.

    Args:
        client: The client whose connections it uses.
        keys: The queue's keys.
        name: The queue's name.
        owns_client: Close the client together with the queue object.

    Attributes:
        waits: The queue's waiters.
        counts: What the queue object has done so far.
        registry: Where those that work on the queue register; None where they cannot.
        held: The roles of this object's blocks, and their leases, which end with the client at the latest; None for one
            that its block ends itself.
    """

    waits: Waits
    counts: Counts
    registry: Registry | None = None
    _lease: Lease | None = None  # of `receive` and `receive_many`

    def __init__(self, client: Client, keys: Keys, name: str, owns_client: bool = False) -> None:
        super().__init__(client, owns_client, name)
        self.client = client
        self.keys = keys
        self.held: dict[Role, RoleLease | None] = {}

    async def _give_back(self) -> None:
        if self._lease is not None and self._lease.active:
            with contextlib.suppress(PressureError):  # the lease expires all the same
                await self._lease.leave(hurry=True)

    def client_closed(self, error: PressureError) -> None:
        """Fail waiting operations, give back roles, and release connections, since the client is being closed."""
        leases = [lease for lease in self.held.values() if lease is not None]
        if self._lease is not None and self._lease.active:
            leases.append(self._lease)
        if self._lease is not None:
            self._lease.stop()
        for lease in leases:
            lease.stop()
            if self.client.on_its_loop:
                # Before the connections end: otherwise the role would stay taken until the lease expires.
                ending = background.start(lease.leave(error), "giving back the role of a closed client")
                self.client.finish_before_close(ending)
        super().client_closed(error)

    def check(self, role: Role | None = None) -> None:
        """Raise where the client cannot be used, or would wait for a role that this object holds itself."""
        super().check()
        if role is not None and (self.held or self._lease is not None):
            self.check_own(role)
            if role == "consumer" and self._lease is not None and self._lease.state.unsettled:
                raise self._in_use(role, "settle what was received first")

    def check_own(self, role: Role) -> None:
        """Raise where a block of this object holds the role."""
        if role in self.held:
            raise self._in_use(role, "use the block's object, or end the block first")

    def _in_use(self, role: Role, advice: str) -> QueueInUseError:
        return QueueInUseError(
            f"this object holds the {role} role of the queue {self.name!r} itself: {advice}",
            name=self.name,
            role=role,
            holder=self.client.id,
        )

    def begin_block(self, role: Role) -> None:
        """Note that a block of this object begins, which will hold the role."""
        self.check(role)
        self.held[role] = None


class Scripted(Engine):
    """The engine of one queue object.

    Args:
        client, keys, name, owns_client: As for `Engine`.
        dead: Where messages go that were delivered too often; None to deliver them for ever.

    """

    def __init__(
        self, client: Client, keys: Keys, name: str, owns_client: bool = False, dead: DeadLetters | None = None
    ) -> None:
        super().__init__(client, keys, name, owns_client)
        self.dead = dead
        steps = self.steps = Access(client, keys, name)
        self.create, self.exists, self.inspect = steps.create, steps.exists, steps.inspect
        self.peek, self.browse = steps.peek, steps.browse
        self.waits = self.steps.waits
        self.counts = self.steps.counts
        self.registry = self.waits.backpressure.registry = ServerRegistry(self.steps)
        self._usual = PutLane(self.steps, self.waits)
        self._puts: dict[tuple[bytes, bool, type[PutLane]], PutLane] = {(b"", False, PutLane): self._usual}
        self._gets = GetLane(self.steps, self.waits)
        self._requests = ServerRequests(self.steps)
        self._others: set[Access] = set()  # to dead-letter queues, while operations use them

    def scripted(self, what: str) -> Scripted:  # noqa: ARG002
        return self

    @property
    def waiting(self) -> tuple[int, int]:
        """How many tasks are putting, and how many are getting."""
        return sum(lane.waiting for lane in self._puts.values()), self._gets.waiting

    async def kept_beside(self) -> Beside:
        """Return what is kept beside the queue."""
        return await self.steps.schedules().beside()

    def lane_of(self, put: Put, due: Due | None, token: bytes = b"", force: bool = False) -> PutLane:
        """Return the lane for a put: the queue's own, or, with a token, that of an exclusive producer's lease."""
        kind = PutLane
        if due is not None:
            kind, terms = lane_for(due)
            put.items = [(message, *terms) for message in put.items]
        which = token, force, kind
        if (lane := self._puts.get(which)) is None:
            lane = self._puts[which] = kind(self.steps, self.waits, token, force)
        return lane

    def drop_lanes(self, token: bytes) -> None:
        """Drop the lanes of an exclusive producer whose lease has ended."""
        self._puts = {which: lane for which, lane in self._puts.items() if which[0] != token}

    def put(self, put: Put, timeout: float | None, force: bool = False, due: Due | None = None) -> Awaitable[None]:
        if timeout is not None:
            validation.timeout(timeout)
        self.check("producer")
        lane = self._usual if due is None and not force else self.lane_of(put, due, force=force)
        return lane.run(put, timeout, False)

    def get(self, max_items: int, timeout: float | None) -> Awaitable[list[bytes]]:
        """Get one to max_items messages."""
        return self._gets.run(Take(max_items, GET), timeout, False)

    async def ask(self, encode: Callable[[str], bytes], timeout: float, terms: Pressing) -> Any:
        """Put a request, which `encode` makes of its id, and return its reply."""
        self.check("producer")
        noted = ""

        async def put(request_id: str) -> None:
            nonlocal noted
            message = encode(request_id)
            await self.steps.note_asked(request_id, terms.expires)
            noted = request_id
            if terms.over:
                raise unanswered(self.name, request_id, f"could not be put within {timeout:g} s")
            await self.put(Put([message]), terms.expires / 1000)

        try:
            return await self._requests.ask(put, timeout)
        except RequestFailedError:
            raise  # it is a dead letter, and is handled if that is requeued
        except (Exception, asyncio.CancelledError):
            if noted:  # nobody is to begin with it
                background.start(self._ask_no_more(noted), "ending a request")
            raise

    async def _ask_no_more(self, request_id: str) -> None:
        with contextlib.suppress(PressureError):  # then it ends by itself
            await self.steps.note_asked(request_id, 0)

    async def give_back(self, messages: Sequence[bytes], first: int = 0, end: int | None = None) -> None:
        """Make `messages[first:end]` of what was got the first in line again. Statistics no longer count them."""
        if some := messages[first:end]:
            await asyncio.wait((self._gets.give_back(some, messages.order if isinstance(messages, Taken) else None),))

    async def receive(
        self, max_items: int, timeout: float | None, seconds: float, max_hold: float
    ) -> tuple[Lease, list[Received]]:
        """Receive messages under the lease of `receive`, which ends when none of them is in flight."""
        from apressure.pressure.leases.lease import Lease  # here, since many programs only get or put

        validation.timeout(timeout)
        self.check()
        self.check_own("consumer")
        lease = self._lease
        if lease is not None and lease.state.error is not None and lease.active:
            with contextlib.suppress(PressureError):  # the caller knows the reason already
                await lease.leave(hurry=True)
        if lease is None or lease.state.error is not None:
            lease = self._lease = Lease(self.steps, self.dead, Term(seconds, since_boot), kept=False, max_hold=max_hold)
        lease.last(seconds)
        lease.renewal.standstill.most = max_hold
        try:
            buffer = await lease.receive(max_items, timeout)
        except asyncio.CancelledError:
            lease.settling.return_buffer()
            if lease.settling.pending:
                # In a task of its own, since a frozen server must not keep this one for long.
                returning = background.start(self._flush(lease), "giving back what was received")
                await wait_shielded(returning, self.client.settings.settle_timeout)
            raise
        try:
            self.check()  # a client that was closed meanwhile has not given back these
        except ClientClosedError:
            with contextlib.suppress(PressureError):
                await lease.leave(hurry=True)
            raise
        return lease, [buffer.popleft() for _ in range(min(max_items, len(buffer)))]

    async def _flush(self, lease: Lease) -> None:
        with contextlib.suppress(PressureError):
            await lease.flush()

    async def pause(self, pausing: bool, expected: bool = True) -> bool:  # noqa: ARG002
        return await self.steps.pause(pausing)

    async def limit(self, changes: Changes, expected: bool) -> None:  # noqa: ARG002
        await self.steps.limit(changes)

    async def close(self, expected: bool = True, timeout: float | None = None, token: bytes = b"") -> None:  # noqa: ARG002
        await self.waits.until(lambda: self.steps.close(token), timeout, self.name)

    async def delete(self, timeout: float | None = None) -> None:
        await self.steps.begin_delete()
        note_sent()  # the queue has ended already
        self._end(QueueDoesNotExistError(f"the queue {self.name!r} was deleted", name=self.name))
        await self.waits.until(self.steps.finish_delete, timeout, self.name)

    async def purge(self) -> int:
        """Delete as many messages as wait now, in steps."""
        series, deleted, left = self.steps.series(), 0, MAX_MESSAGES
        try:
            while left > 0:
                answer = await self.steps.purge(series, min(MAX_MESSAGES, left))
                if isinstance(answer, Wait):
                    raise answer.error(self.name)
                left = answer[1] if deleted == 0 else min(left - answer[0], answer[1])
                deleted += answer[0]
                self.counts.deleted_count += answer[0]
        except PressureError as error:
            if deleted:
                error.add_note(f"{deleted} messages were deleted before")
            raise
        return deleted

    @contextlib.contextmanager
    def beside(self, source: str | None) -> Iterator[Access]:
        """Open the dead-letter queue for an operation."""
        if source is None and self.dead is not None:
            source = self.dead.name
        source, keys = beside(self.client, self.keys, self.name, source)
        other = Access(self.client, keys, source)
        self._others.add(other)
        try:
            yield other
        finally:
            if other in self._others:
                self._others.discard(other)
                other.release(ClientClosedError("the operation has ended"))

    def _end(self, error: PressureError) -> int:
        others = sum(other.waits.end(error) for other in self._others)
        puts = sum(lane.end(error) for lane in self._puts.values())
        return puts + self._gets.end(error) + self.waits.end(error) + self._requests.end(error) + others

    def _release(self, error: PressureError) -> None:
        while self._others:
            self._others.pop().release(error)
        self._requests.close()
        self.steps.release(error)
