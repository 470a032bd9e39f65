"""Clients at work while their servers have trouble: producers, the consumer role, a getter, and some that only wait."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

from apressure import (
    AsyncQueue,
    Client,
    Delivery,
    DurabilityError,
    LeaseLostError,
    OutcomeUnknownError,
    OutOfMemoryError,
    PressureError,
    QueueClosedError,
    QueueInUseError,
)
from tests.chaos.support import PATIENCE, Account, Recorder, Row

QUICK: Final[dict[str, Any]] = {"response_timeout": 0.8, "connect_timeout": 0.5, "retry_timeout": 60.0}
LEASE: Final = 2.0
PRODUCERS: Final = 2
"""How many put into each queue."""

# Braces: in a cluster all keys of a queue are in one slot.
ROLE: Final = "{role}"
ONCE: Final = "{once}"
FULL: Final = "{full}"
EMPTY: Final = "{empty}"
NAMES: Final = (ROLE, ONCE, FULL, EMPTY)


class Traced:
    """What one consumer role was handed out."""

    def __init__(self) -> None:
        self._arrivals: list[tuple[bytes, int]] = []
        self._unsure: set[bytes] = set()
        self.marked = 0
        """Messages that came again and said so."""

    def got(self, message: bytes, attempts: int) -> None:
        """The role was handed out a message."""
        self._arrivals.append((message, attempts))

    def doubt(self, since: int) -> None:
        """The block that began at an arrival does not know which of its acknowledgements are lost.

        An older one may be, and a newer one not: what the newer one has settled does not come again between the others.
        """
        self._unsure.update(message for message, _ in self._arrivals[since:])

    @property
    def count(self) -> int:
        """How many arrivals there were."""
        return len(self._arrivals)

    def settle(self, account: Account, shared: bool) -> Row:
        """Fill the account with first arrivals; what came again has to say so, and to pass over nothing."""
        row = Row()
        places: dict[bytes, int] = {}
        last = -1
        for number, (message, attempts) in enumerate(self._arrivals):
            again = message in places
            if not again:
                places[message] = len(places)
                account.arrived.append(message)
            elif attempts > 1:
                self.marked += 1
            else:
                row.doubled += 1
            if again and shared and message in self._unsure:
                continue  # where its acknowledgement got lost, so did the end of its member: that lease has to end
            between = {one for one, place in places.items() if last < place < places[message]}
            passed_over = between - self._unsure
            # What was put, handed out and lost again before two servers had it comes never: its put said so.
            if any(map(account.sure, passed_over)):
                row.out_of_order += 1
                print("passed over something:", self._arrivals[max(0, number - 10) : number + 3])
            last = places[message]
        return row


class Load:
    """Two queues under load, and two at which clients are blocked all the time; settled when the block ends.

    * `{role}`: producers, and a consumer role: at least once, what comes again is marked and in order.
    * `{once}`: producers, and a getter: at most once.
    * `{full}` and `{empty}`: puts, gets and waits for the end that are blocked, and wake when all is over.

    Args:
        settings: Of the clients; `url` and the like.
        rng: Randomness.
        durable: Something may be lost if it is False: the server that takes over has not heard of everything.
        pause: Seconds that a producer rests at most after a put.
    """

    def __init__(
        self, settings: dict[str, Any], rng: random.Random, durable: bool = True, pause: float = 0.004
    ) -> None:
        self._settings = {**QUICK, **settings}
        self._rng = rng
        self._durable = durable
        self._pause = pause
        self._shared = rng.random() < 0.5  # a member, alone: the order is the same while the server lives
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._putting: dict[str, list[asyncio.Task[None]]] = {ROLE: [], ONCE: []}
        self._taking: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        self.accounts = {ROLE: Account(), ONCE: Account()}
        self.trace = Traced()
        """What the consumer role was handed out."""
        self.doubts = 0
        """Gets whose outcome is not known."""
        self.unsure = 0
        """Operations that too few servers have confirmed."""
        self.given_back = 0
        """Gets that too few servers have confirmed."""
        self.interrupted = 0
        """Blocked gets that had to be begun again."""
        self.rows: dict[str, Row] = {}

    async def client(self) -> Client:
        return await self._stack.enter_async_context(Client(**self._settings))

    async def create(self) -> None:
        """Make the queues; replicas are to be waited for afterwards."""
        async with Client(**{**self._settings, "durability": None}) as client:
            for name in NAMES:
                await AsyncQueue[bytes](name, client=client).create(1 if name == FULL else 5)
            await AsyncQueue[bytes](FULL, client=client).put(b"first")

    async def __aenter__(self) -> Self:
        producer, consumer = await self.client(), await self.client()
        for name in (ROLE, ONCE):
            for number in range(PRODUCERS):
                work = self._put(AsyncQueue(name, client=producer), self.accounts[name], f"p{number}")
                self._putting[name].append(asyncio.create_task(work))
        self._taking[ROLE] = asyncio.create_task(self._consume(AsyncQueue(ROLE, client=consumer)))
        self._taking[ONCE] = asyncio.create_task(self._get(AsyncQueue(ONCE, client=consumer)))
        full: AsyncQueue[bytes] = AsyncQueue(FULL, client=producer)
        empty: AsyncQueue[bytes] = AsyncQueue(EMPTY, client=consumer)

        async def receive() -> Delivery[bytes]:
            delivery = await empty.receive()
            with contextlib.suppress(DurabilityError):  # acknowledged all the same; the get waits for the role
                await delivery.ack()
            return delivery

        for name, work_of in {
            "put": lambda: full.put(b"second"),
            "full's end": full.wait_closed,
            "get": empty.get,
            "receive": receive,
            "empty's end": empty.wait_closed,
        }.items():
            self._waiting[name] = asyncio.create_task(self._wait(work_of, put=name == "put"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._settle()
        finally:
            tasks = [task for tasks in self._putting.values() for task in tasks]
            tasks += [*self._taking.values(), *self._waiting.values()]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._stack.aclose()

    async def rest(self, shortest: float = 0.05, longest: float = 0.2) -> None:
        """Let them work for a while."""
        await asyncio.sleep(self._rng.uniform(shortest, longest))

    def record(self, recorder: Recorder, cell: str, software: str, tried: int) -> None:
        """Add the rows, and look at what they say.

        Args:
            recorder: Has the table.
            cell: What the trouble was.
            software: Of the server.
            tried: How often there was trouble.
        """
        for what, row in self.rows.items():
            row.tried = tried
            recorder.add(f"{cell}: {what}", software, row)
        print(self.rows)  # shown when one of them is not as it should be
        for row in self.rows.values():
            assert not row.stuck, self.rows
            assert not self._durable or row.clean(), self.rows

    async def _put(self, queue: AsyncQueue[bytes], account: Account, producer: str) -> None:
        while not self._stop.is_set():
            messages = account.fresh(producer, self._rng.choice((1, 1, 1, 3, 12)))
            while True:
                try:
                    await (queue.put(messages[0]) if len(messages) == 1 else queue.put_many(messages))
                except OutOfMemoryError as error:  # certain: nothing more was put
                    done = getattr(error, "accepted", 0)
                    account.acknowledge(messages[:done])
                    messages = messages[done:]
                    await asyncio.sleep(0.01)
                except DurabilityError:  # no other outcome of a put is unknown: it is sent again
                    self.unsure += 1
                    account.perhaps(messages)
                    break
                else:
                    account.acknowledge(messages)
                    break
            await asyncio.sleep(self._rng.uniform(0, self._pause))

    async def _consume(self, queue: AsyncQueue[bytes]) -> None:
        while True:
            begin = self.trace.count
            try:
                prefetch = self._rng.choice((None, 1, 3))
                async with queue.consumer(prefetch=prefetch, lease=LEASE, shared=self._shared) as consumer:
                    async for message in consumer:
                        self.trace.got(message, consumer.attempts)
                        await asyncio.sleep(self._rng.uniform(0, self._pause / 2))
                return
            except (LeaseLostError, QueueInUseError):
                continue  # what was in flight comes again
            except DurabilityError:
                self.unsure += 1  # the acknowledgement may be lost, or not
                self.trace.doubt(begin)

    async def _get(self, queue: AsyncQueue[bytes]) -> None:
        account = self.accounts[ONCE]
        while True:
            try:
                account.arrived.append(await queue.get())
            except QueueClosedError:
                return
            except DurabilityError:
                self.given_back += 1
            except OutcomeUnknownError:
                self.doubts += 1
            await asyncio.sleep(self._rng.uniform(0, self._pause / 2))

    async def _wait(self, work: Callable[[], Awaitable[Any]], put: bool) -> Any:
        """An operation that is blocked. A get that was sent and not answered raises: nothing was there to be lost."""
        while True:
            try:
                return await _patiently(work, again=not put)
            except OutcomeUnknownError:
                assert not put
                self.interrupted += 1

    async def _settle(self) -> None:
        """End all work, and see what became of it."""
        self._stop.set()
        async with Client(**self._settings) as client:
            fresh = {name: AsyncQueue[bytes](name, client=client) for name in NAMES}
            for name in (ROLE, ONCE):
                stuck = await ended(self._putting[name])
                if not stuck:
                    await _patiently(lambda name=name: fresh[name].close(PATIENCE))  # type: ignore[misc]
                stuck += await ended([self._taking[name]])
                account = self.accounts[name]
                unmarked = self.trace.settle(account, self._shared) if name == ROLE else Row()
                row = account.row(may_lose=self.doubts if name == ONCE else 0)
                row.doubled += unmarked.doubled
                row.out_of_order += unmarked.out_of_order
                row.stuck = stuck
                if not stuck:
                    row.stuck = await tidy(fresh[name])
                    await _patiently(lambda name=name: fresh[name].delete(PATIENCE))  # type: ignore[misc]
                self.rows["consumer role" if name == ROLE else "get, at most once"] = row
            self.rows["consumer role"].notes["came again, marked"] = self.trace.marked
            self.rows["consumer role"].notes["operations not confirmed"] = self.unsure
            self.rows["get, at most once"].notes["given back, not confirmed"] = self.given_back
            self.rows["get, at most once"].notes["gets of unknown outcome"] = self.doubts
            await self._settle_waiting(fresh)

    async def _settle_waiting(self, fresh: dict[str, AsyncQueue[bytes]]) -> None:
        row = Row(acknowledged=len(self._waiting))
        async with asyncio.timeout(PATIENCE):
            row.lost += await _patiently(fresh[FULL].get, again=True) != b"first"
            for item in (b"1", b"2"):
                await _patiently(lambda item=item: fresh[EMPTY].put(item))  # type: ignore[misc]
        row.stuck = await ended([self._waiting[name] for name in ("put", "get", "receive")])
        if not row.stuck:
            delivery = self._waiting["receive"].result()
            row.lost += {self._waiting["get"].result(), delivery.raw} != {b"1", b"2"}
            row.lost += await _patiently(fresh[FULL].get, again=True) != b"second"
            for name in (FULL, EMPTY):
                await _patiently(lambda name=name: fresh[name].close(PATIENCE))  # type: ignore[misc]
            row.stuck = await ended([self._waiting[name] for name in ("full's end", "empty's end")])
        if not row.stuck:
            for name in (FULL, EMPTY):
                row.stuck += await tidy(fresh[name])
                await _patiently(lambda name=name: fresh[name].delete(PATIENCE))  # type: ignore[misc]
        row.notes["gets of unknown outcome"] = self.interrupted
        self.rows["blocked all the time"] = row


async def _patiently(work: Callable[[], Awaitable[Any]], again: bool = False) -> Any:
    """An operation that too few servers may confirm, or that is refused for lack of memory, until it is done.

    Args:
        work: The operation.
        again: What was not confirmed was given back: a get, and the like.
    """
    while True:
        try:
            return await work()
        except DurabilityError:
            if not again:
                return None
        except OutOfMemoryError:
            await asyncio.sleep(0.01)


async def ended(tasks: list[asyncio.Task[Any]]) -> int:
    """Wait until tasks end; returns how many are stuck. One that failed raises."""
    done, stuck = await asyncio.wait(tasks, timeout=PATIENCE)
    for task in done:
        task.result()
    return len(stuck)


async def tidy(queue: AsyncQueue[bytes]) -> int:
    """Wait until a drained queue holds nothing and both roles are free; returns how many are not."""
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = await queue.statistics()
        stuck = (seen.producer.state != "free") + (seen.consumer.state != "free") + bool(seen.in_flight or seen.length)
        if not stuck or time.monotonic() > deadline:
            return stuck
        with contextlib.suppress(PressureError):
            await queue.get_nowait()  # a step that heals what it finds
        await asyncio.sleep(0.02)
