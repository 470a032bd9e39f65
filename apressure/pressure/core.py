"""What is behind the verbs of `AsyncQueue`: its engine, and how its operations ask that."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from apressure import validation
from apressure.codecs import CloudEventsCodec
from apressure.concurrency import background
from apressure.concurrency.deadline import with_deadline
from apressure.connection.client import Client
from apressure.connection.history import ServerHistory
from apressure.connection.schedules import ServerSchedules
from apressure.core.added_letters import Added
from apressure.core.browsing import Asked, Found
from apressure.core.due import Due
from apressure.core.leases.arguments import lease_of, max_hold_of
from apressure.core.letters import Letters
from apressure.core.letters_beside import LettersBeside
from apressure.core.objects import Fronting
from apressure.core.queue import AnyQueue
from apressure.core.registration import Registry
from apressure.core.requests import Pressing
from apressure.core.reviving import Chosen
from apressure.core.searching import Read
from apressure.core.taking import got
from apressure.core.waiting import Wait
from apressure.core.workers import Beside
from apressure.dead_letters import DeadLetter
from apressure.envelopes import Envelope
from apressure.exceptions import UnsupportedError
from apressure.items import Progress
from apressure.pressure.engine.answers import missing
from apressure.pressure.engine.batching import KEYLESS, MAX_MESSAGES, put_chunk
from apressure.pressure.engine.dead_letters import SUFFIX, DeadLetters, beside
from apressure.pressure.engine.requeueing import Revival, letters, read, revival

if TYPE_CHECKING:
    from apressure.pressure.delivery import Delivery
    from apressure.pressure.engine.engine import Scripted
    from apressure.pressure.engine.plain.engine import Plain
    from apressure.pressure.leases.lease import Lease
    from apressure.pressure.statistics import QueueStatistics

T = TypeVar("T")
A = TypeVar("A")


class _Status(NamedTuple):
    """What a look at a queue tells. If there is none, the look raises."""

    closed: bool
    waiting: int
    exists: bool = True
    created: bool = True


class Core(Fronting, LettersBeside[T], AnyQueue[T, "Delivery[T]", None], Generic[T]):
    """The part of `AsyncQueue` that no program calls."""

    _max_bound: ClassVar[int] = 10**15
    _put_most: ClassVar[int] = MAX_MESSAGES
    _unable_to_expire: ClassVar[str] = "an AsyncQueue"
    _keyless = KEYLESS

    client: Client
    dead_letter_queue: str | None
    _engine: Scripted | Plain

    @property
    def prefix(self) -> str:
        """What the queue's keys begin with."""
        return self.client.prefix

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r} at {self.client.server.address}>"

    async def prepare(self) -> None:
        if not await self._exists():
            raise missing(self.name)

    @with_deadline(reads=True)
    async def statistics(self, *, deadline: float | None = None) -> QueueStatistics:
        """Return a snapshot of the queue: length, bound, roles, counts, and this object's waiting tasks.

        Raises:
            QueueDoesNotExistError: There is no such queue.
            ServerError: The bound or a statistic is not an integer.
        """
        from apressure.pressure.statistics import from_snapshot  # here, since most programs do not look

        engine = self._engine
        engine.check()
        snapshot, beside = await self._with_beside(engine.inspect())
        putters, receivers = engine.waiting
        return from_snapshot(
            self.name,
            snapshot,
            waiting_putters=putters,
            waiting_receivers=receivers,
            blocked=engine.waits.blocked.seconds(),
            late_renewals=self.client.renewer.late[self.name],
            **beside,
            **engine.counts.fields(),
        )

    # What is behind the operations on the queue as a whole.

    @property
    def _administration(self) -> Scripted | Plain:
        return self._engine

    @property
    def _schedules(self) -> ServerSchedules:
        return self._engine.scripted("schedules").steps.schedules()

    async def _beside(self) -> Beside:
        return await self._engine.kept_beside()

    @property
    def _history(self) -> ServerHistory:
        return ServerHistory(self._engine.scripted("history").steps)

    @property
    def registry(self) -> Registry | None:
        return self._engine.registry

    async def _check_exists(self) -> None:
        await self.prepare()

    async def _look(self) -> _Status:
        _, waiting, closed, *_ = await self._engine.inspect()
        return _Status(bool(closed), waiting)

    async def _exists(self) -> bool:
        return await self._engine.exists()

    async def _close(self, timeout: float | None) -> None:
        self._engine.check("producer")
        await self._engine.close(timeout=timeout)

    async def _delete(self, timeout: float | None) -> None:
        self._engine.check("producer")
        self._engine.check("consumer")
        await self._engine.delete(timeout)

    async def _purge(self) -> int:
        return await self._engine.purge()

    async def _promote(self, most: int, ids: Sequence[str] | None) -> int:
        if ids is not None:
            raise UnsupportedError(
                f"the messages of the queue {self.name!r} have no ids: an AsyncQueue promotes all delayed messages, or "
                "the first ones with max_items=",
                name=self.name,
            )
        return await self._engine.scripted("promote").steps.promote(most)

    async def _until(self, step: Callable[[], Awaitable[A | Wait]], timeout: float | None) -> A:
        return await self._engine.waits.until(step, timeout, self.name)

    async def _letters(self, limit: int | None, source: str | None) -> list[DeadLetter[T]]:
        with self._engine.scripted("dead_letters").beside(source) as other:
            return [letter async for letter in letters(other, limit, self._items.decode)]

    async def _bury(self, letters: Sequence[Added]) -> None:
        scripted = self._engine.scripted("add_dead_letters")
        own = scripted.dead or DeadLetters(0, *beside(self.client, scripted.keys, self.name, None))
        await scripted.steps.bury(own, letters)

    async def _letters_at(self, passed: int, most: int, source: str | None) -> Read[T]:
        with self._engine.scripted("find_dead_letters").beside(source) as other:
            return await read(other, passed, most, self._items.decode)

    async def _until_free(self, timeout: float | None, source: str | None) -> None:
        nothing = DeadLetter(os.urandom(8).hex(), os.urandom(16), None, None, None, bytes)
        # As each deletion, this waits while somebody consumes the dead letters.
        await self._move_or_discard(Chosen(None, {}, [nothing], source, discard=True), timeout)

    def source_of(self, other: Letters[Any], source: str | None) -> str | None:
        if not isinstance(other, Core) or other.client is not self.client or not self.client.settings.scripting:
            return None
        with suppress(ValueError):  # they are in different slots of a cluster
            dead = source or other.dead_letter_queue or other.name + SUFFIX
            return beside(self.client, self._engine.keys, self.name, dead)[0]
        return None

    @asynccontextmanager
    async def _revival(self, chosen: Chosen) -> AsyncIterator[Revival]:
        scripted = self._engine.scripted("discard" if chosen.discard else "requeue")
        if not chosen.discard:
            scripted.check("producer")
        with scripted.beside(chosen.source) as other:
            yield await revival(scripted.steps, other, chosen)

    async def _revive(self, revival: Revival, timeout: float | None) -> None:
        await revival.go_on(timeout)

    def _give_back_unseen(self) -> None:
        if (lease := self._engine.held.get("consumer")) is not None:
            cast("Lease", lease).settling.return_buffer()

    # What is behind puts.

    async def _put_chunk(self, chunk: list[bytes], timeout: float | None, progress: Progress, due: Due | None) -> None:
        await put_chunk(partial(self._engine.put, due=due), chunk, timeout, progress)

    async def _ask(self, item: T, timeout: float, terms: Pressing) -> Any:
        scripted = self._engine.scripted("ask")
        if not isinstance(self._items.codec, CloudEventsCodec):
            raise UnsupportedError(
                f"{KEYLESS}, so only an envelope says who asks: open the queue {self.name!r} with "
                "codec='cloudevents' or a CloudEventsCodec, or use an EventQueue or TaskQueue. Nothing was put",
                name=self.name,
            )

        def encode(request_id: str) -> bytes:
            named: Any = dataclasses.replace(item, id=request_id) if isinstance(item, Envelope) else item
            return self._items.encode(named)

        return await scripted.ask(encode, timeout, terms)

    # What is behind receiving and getting.

    async def _receive(
        self, most: int, timeout: float | None, lease: float | None, max_hold: float | None = None
    ) -> list[Delivery[T]]:
        from apressure.pressure.delivery import Delivery  # here, since many programs only get or put

        scripted = self._engine.scripted("receive")
        received_under, received = await scripted.receive(most, timeout, lease_of(lease), max_hold_of(max_hold))
        return [Delivery(received_under, message, self._items.decode) for message in received]

    async def _get(self, most: int, timeout: float | None) -> list[T]:
        """Get and decode messages.

        A DecodeError takes only the first message out of the queue. All that came behind one that cannot be decoded is
        given back.
        """
        validation.timeout(timeout)
        engine = self._engine
        engine.check("consumer")
        messages = await engine.get(most, timeout)

        def give_back(first: int, end: int | None) -> asyncio.Task[None]:
            return background.start(engine.give_back(messages, first, end), "giving back what was got")

        return await got(self._items, messages, give_back, self.client.settings.settle_timeout)

    async def _peek(self, newest: bool) -> bytes | None:
        return await self._engine.peek(0 if newest else -1)

    async def _browse(self, asked: Asked) -> Found:
        return await self._engine.browse(asked)
