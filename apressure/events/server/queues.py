"""The queues that clients of this server use: their lanes, who waits for events, and when claims expire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from apressure.concurrency import background
from apressure.concurrency.settle import set_result_once
from apressure.connection.client import Client
from apressure.connection.waiting.subscription import Subscriber
from apressure.events.engine.steps import EventSteps, Mender, Want
from apressure.events.server.lanes import DelayLane, Found, PopLane, PushLane, SettleLane
from apressure.events.server.mending import AT_A_TIME, Alarm, Expiry, keep_mending
from apressure.exceptions import PressureError

logger = logging.getLogger("apressure.events.server")

REFRESH: Final = 10.0
"""Seconds between two signs of life of consumers, and two looks at queues that somebody listens to."""
WATCH: Final = 0.5
"""Seconds between two looks at queues where clients wait: an okq beside us puts events back without telling, and nobody
tells of the end of a queue."""
KEPT: Final = 1_000
"""How many queues are kept that nobody uses at the moment."""
_DELAYED: Final = 3  # beside whether it was created (1) and closed (1): whether events are delayed
_FRESH: Final = 1.0  # seconds for which the bound of a queue is taken as known


class ServedQueue:
    """One queue.

    Args:
        client: The client.
        name: Its name.

    Attributes:
        steps: Its steps.
        pushes: The lanes of all clients' pushes, at the back and at the front.
        delays: That of events that are pushed for later.
        pops: That of pops.
        settling: That of acknowledgements.
        consumers: The ids of the clients that are registered for it here.
        listeners: How many clients listen to it: the registered ones, and those that wait in QRPOP.
        notified: What is completed with this queue at the next event: the waits of clients in QNOTIFY.
        expiry: Puts back what expires, and has delayed events wait that are due.
        limits: Rings when the limits of the queue let another event through.
        mender: Mends what an okq beside us leaves when it dies.

    Raises:
        ValueError: It is no valid name.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.steps = EventSteps(client, name)
        self.expiry, self.limits = Expiry(self.steps), Alarm(self.ring)
        self.pushes = PushLane(self.steps, False), PushLane(self.steps, True)
        self.delays = DelayLane(self.steps, self.expiry)
        self.pops = PopLane(self.steps, self.limits.ring_in)
        self.settling = SettleLane(self.steps)
        self.consumers: set[bytes] = set()
        self.listeners = 0
        self.mender = Mender(self.steps)
        self.notified: set[asyncio.Future[ServedQueue]] = set()
        self._line: deque[asyncio.Future[None]] = deque()
        self._limited = (-_FRESH, False)
        self._stage = 0  # see `look`
        self._first_due: Any = None  # the first delayed event at the latest look, and when it is due

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it, no claim of it may expire, nothing is due here, and it needs no mending."""
        lanes = (*self.pushes, self.delays, self.pops, self.settling)
        busy = self.listeners or self.expiry.is_set or self.mender.suspicious
        return not busy and all(lane.is_idle for lane in lanes)

    # Consumers.

    async def register(self, consumer: bytes) -> None:
        """Register a consumer: it is one of those that QSTATUS counts."""
        self.consumers.add(consumer)
        await self.steps.register(consumer)

    async def unregister(self, consumer: bytes) -> None:
        """Undo `register`."""
        self.consumers.discard(consumer)
        await self.steps.unregister(consumer)

    async def refresh(self) -> None:
        """Give a sign of life of its consumers."""
        try:
            await self.steps.register(*self.consumers)
        except PressureError as error:
            told = {"queue": self.steps.name, "reason": str(error)}
            logger.warning("consumers cannot give a sign of life", extra=told)

    # Who waits for events.

    def ring(self) -> None:
        """An event was pushed, or has gone back: tell all clients in QNOTIFY, and the first one in QRPOP."""
        for future in self.notified:
            set_result_once(future, self)
        self.wake_one()

    def note_end(self) -> None:
        """The queue was closed or deleted here: tell all who wait."""
        self._stage = 0
        self.ring()  # each client in QRPOP tells the next one

    @property
    def is_awaited(self) -> bool:
        """Whether a client waits for an event, in QNOTIFY or in QRPOP."""
        return bool(self.notified or self._line)

    async def look(self) -> None:
        """Wake as many clients as there are events, and all when the queue has ended: nobody may have told of that.

        It has ended if it had been created at the latest look, and was closed or deleted since; or if it was closed,
        and something was delayed that is not any more. Nobody may have told of a delayed event either.
        """
        ask, keys, before = self.steps.connection.ask, self.steps.keys, self._stage
        with contextlib.suppress(PressureError):  # the next look tries again
            events, stage = await asyncio.gather(
                # The sum says which of them there are: a key that is named twice counts twice.
                self.count_events(),
                ask(b"EXISTS", keys.bound, keys.closed, *[keys.delayed] * _DELAYED, reads=True),
            )
            self._stage = stage
            if events or 0 < before != self._stage:
                self.ring()  # each client in QRPOP tells the next one when the queue has ended
            for _ in range(min(events - 1, len(self._line))):
                self.wake_one()
            if stage >= _DELAYED:
                first = await ask(b"ZRANGE", keys.delayed, 0, 0, b"WITHSCORES", reads=True)
                if first != self._first_due:
                    self._first_due = first
                    self.expiry.ring_in(0)  # this learns when, by the clock of Redis

    def wake_one(self) -> None:
        """Have the next client in QRPOP try."""
        if self._line:
            self._line.popleft().set_result(None)

    async def count_events(self) -> int:
        """Return how many events wait that clients can have: none while it is paused, or its limits keep them.

        If time ends that, those who wait are told then.
        """
        ask, keys = self.steps.connection.ask, self.steps.keys
        waiting: int = await ask(b"LLEN", keys.unclaimed, reads=True)
        if not waiting or not await ask(b"EXISTS", keys.control, reads=True):
            return waiting
        ready, after = await self.steps.ready()
        if not ready and after is not None:
            self.limits.ring_in(after / 1000 + 0.001)
        return ready

    async def _pop(self, most: int, want: Want) -> Found:
        """Pop events, without waiting.

        Cancelled, nothing was taken, or it goes back.
        """
        outcome = self.pops.pop(most, want)
        try:
            found = await outcome
        except asyncio.CancelledError:
            known = not outcome.cancelled() and outcome.exception() is None
            if known and isinstance(found := outcome.result(), list):
                self.steps.give_back_soon(found)
            raise
        if want.lease and isinstance(found, list):
            self.expiry.ring_in(want.lease / 1000)
        return found

    async def pop_soon(self, most: int, want: Want, timeout: float) -> Found:
        """Pop events, and wait for the first one if there is none. The caller listens to the queue.

        Clients of this server are served in the order in which they came.

        Raises:
            QueueClosedError: It is closed, and nothing waits.
            QueueDoesNotExistError: It was created, and deleted meanwhile.

        Cancelled, nothing was taken, or it goes back.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        owed = False  # a wake-up that no pop has followed: another client must have it
        kept = False  # by the limits of the queue: it keeps its place in line
        try:
            while True:
                bell: asyncio.Future[None] = loop.create_future()
                if kept:
                    self._line.appendleft(bell)
                else:
                    self._line.append(bell)
                try:
                    found = await self._pop(most, want)
                    owed = False
                    if isinstance(found, list):
                        owed = self.pops.limited  # nobody tells of each event that the limits have kept
                        return found
                    kept = found.reason == "limited"
                    want = want._replace(expected=want.expected or found.created)
                    await asyncio.wait((bell,), timeout=deadline - loop.time())
                    if not bell.done():
                        return found
                finally:
                    if bell.done():
                        owed = True
                    else:
                        self._line.remove(bell)
        finally:
            if owed:
                self.wake_one()

    async def is_limited(self) -> bool:
        """Whether it has a bound, or is closed: whether a push may be refused.

        The answer may be a second old. If Redis does not answer within a second, it is the latest one.
        """
        now = asyncio.get_running_loop().time()
        at, limited = self._limited
        if now - at >= _FRESH:
            self._limited = (now, limited)
            # Not cancelled after the second: that would wait for the answer.
            await asyncio.wait((background.start(self._learn_limit(), "asking for a queue's bound"),), timeout=_FRESH)
        return self._limited[1]

    async def _learn_limit(self) -> None:
        try:
            status = await self.steps.status()
            self._limited = (asyncio.get_running_loop().time(), bool(status.bound or status.closed))
        except PressureError as error:
            logger.debug("the bound is not known", extra={"queue": self.steps.name, "reason": str(error)})


class Queues:
    """All queues that clients of this server use.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queues: dict[bytes, ServedQueue] = {}
        self._most = KEPT
        self._subscriber = Subscriber(client.server.node_of(()), self._on_message, self._on_gap)
        self._channels: dict[bytes, ServedQueue] = {}

    def __getitem__(self, name: bytes) -> ServedQueue:
        if (queue := self._queues.get(name)) is None:
            queue = ServedQueue(self._client, name.decode("utf-8", "surrogateescape"))
            if len(self._queues) >= self._most:
                self._queues = {name: one for name, one in self._queues.items() if not one.is_idle}
                self._most = max(KEPT, 2 * len(self._queues))
            self._queues[name] = queue
        return queue

    def several(self, names: Sequence[bytes]) -> list[ServedQueue]:
        """Return the queues with these names, each once. However many they are, all of them are kept."""
        queues = {name: self[name] for name in dict.fromkeys(names)}
        self._queues.update(queues)  # the first ones may have been forgotten for the last ones
        return list(queues.values())

    async def run(self) -> None:
        """Listen to the server, and do what has to be done regularly. It ends when it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._subscriber.run())
            group.create_task(self._refresh())
            group.create_task(self._watch())
            group.create_task(keep_mending(self._client, lambda: [one.mender for one in self._queues.values()]))

    def close(self) -> None:
        """Look for expired claims and for room no more: the server stops."""
        for queue in self._queues.values():
            queue.expiry.close()
            queue.limits.close()
            for lane in queue.pushes:
                lane.leave()

    def attach(self, queue: ServedQueue) -> None:
        """Have `queue.ring` called for each event, until `detach`, as soon as `listening` has returned."""
        queue.listeners += 1
        if queue.listeners == 1:
            queue.expiry.ring_in(0)  # for claims whose servers are gone
            self._channels[queue.steps.keys.unclaimed] = queue

    async def listening(self, queue: ServedQueue) -> None:
        """Wait until no event of an attached queue is missed any more. Cancelled, nothing has changed."""
        await self._subscriber.subscribe(queue.steps.keys.unclaimed)

    def detach(self, queue: ServedQueue) -> None:
        """Undo `attach`."""
        queue.listeners -= 1
        if not queue.listeners:
            del self._channels[queue.steps.keys.unclaimed]
            self._subscriber.unsubscribe(queue.steps.keys.unclaimed)

    async def wait_for_event(self, queues: Sequence[ServedQueue], timeout: float) -> ServedQueue | None:
        """Return a queue that has an event, or will have one within `timeout` seconds.

        Those that have one are looked for in random order. The caller listens to all of them. Cancelled, nothing
        has changed.
        """
        queues = random.sample(queues, len(queues))
        future: asyncio.Future[ServedQueue] = asyncio.get_running_loop().create_future()
        for queue in queues:
            queue.notified.add(future)
        try:
            found = await asyncio.gather(*(queue.count_events() for queue in queues))
            for queue, events in zip(queues, found, strict=True):
                if events:
                    return queue
            await asyncio.wait((future,), timeout=timeout)
            return future.result() if future.done() else None
        finally:
            for queue in queues:
                queue.notified.discard(future)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH)
            for queue in list(self._channels.values()):
                queue.expiry.ring_in(0)  # for claims that okq made; and for the end of a queue
                queue.wake_one()
            await asyncio.gather(*(queue.refresh() for queue in list(self._queues.values()) if queue.consumers))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH)
            await self._look()

    async def _look(self) -> None:
        awaited = [queue for queue in self._channels.values() if queue.is_awaited]
        for begin in range(0, len(awaited), AT_A_TIME):
            await asyncio.gather(*(queue.look() for queue in awaited[begin : begin + AT_A_TIME]))

    def _on_message(self, channel: bytes) -> None:
        if (queue := self._channels.get(channel)) is not None:
            queue.ring()

    def _on_gap(self) -> None:
        background.start(self._look(), "looking for events that were missed")
