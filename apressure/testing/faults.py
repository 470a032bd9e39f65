"""Faults of the server and of other processes, for tests of one's own code."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NoReturn

from apressure import validation
from apressure.connection.settings import settings_from
from apressure.connection.wire.blocking import Blocking
from apressure.exceptions import PressureError, QueueFullError
from apressure.testing.proxy import Proxy

LEASE = 0.2
"""Seconds after which the items of a killed consumer come back."""

_NOWHERE = (b"127.0.0.1", b"1")
"""The primary of a server that is to be read-only: nobody listens there, so it keeps its data."""


class Faults:
    """The faults of a `PressureServer`. Those that are blocks end with their block, and are for one test.

    Args:
        proxy: What clients connect to; None with fakeredis, which has no connections to lose.
        ours: Whether the server belongs to this test run, and may be made a replica.
    """

    def __init__(self, proxy: Proxy | None, ours: bool) -> None:
        self._proxy = proxy
        self._ours = ours

    @contextlib.contextmanager
    def lost_replies(self, count: int = 1) -> Iterator[None]:
        """Lose the next replies: the server carries out what it was asked, and the connection breaks before it answers.

        The client cannot know whether its operation was carried out. It connects again, and asks.

        Args:
            count: How many replies are lost, one after the other; a reply is what comes in one piece.

        Raises:
            AssertionError: The block ended well, and fewer replies were lost: it did not ask the server.
        """
        validation.whole(count, "count")
        line = self._line("lost_replies")
        before = line.trouble
        line.trouble = changed = dataclasses.replace(before, lose_next=count)
        try:
            yield
        finally:
            line.trouble = before
        if changed.lose_next:
            raise AssertionError(
                f"{count - changed.lose_next} of {count} replies were lost: the block asked the server for no more. "
                "Await an operation inside the block"
            )

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Make every reply of the server take so many seconds more."""
        line = self._line("slow")
        before = line.trouble
        line.trouble = dataclasses.replace(before, lag=validation.seconds(seconds, "seconds"))
        try:
            yield
        finally:
            line.trouble = before

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Cut every connection, and refuse new ones, as while a server restarts. It keeps its data.

        Operations wait for its return for up to `retry_timeout`: start them in tasks, and await them after the block.
        """
        line = self._line("down")
        before = line.trouble
        line.trouble = dataclasses.replace(before, down=True)
        line.cut()
        try:
            yield
        finally:
            line.trouble = before

    def cut(self) -> None:
        """Cut every connection once. Clients may connect again at once."""
        self._line("cut").cut()

    @contextlib.contextmanager
    def failover(self) -> Iterator[None]:
        """Make the server a read-only replica; at the end of the block, the primary that a failover has chosen.

        Writes are refused (READONLY) and blocked clients are disconnected, as with a real failover. It keeps its data;
        a real one may lose what replicas have not received, see `durability=`. Operations wait for up to
        `retry_timeout`: start them in tasks, and await them after the block.

        Raises:
            RuntimeError: The server is not an embedded one. Another one may have other users.
        """
        line = self._line("failover")
        if not self._ours:
            raise RuntimeError("failover() changes the server's role: it needs --pressure-server=embedded")
        ask(line.target, b"REPLICAOF", *_NOWHERE)
        try:
            yield
        finally:
            ask(line.target, b"REPLICAOF", b"NO", b"ONE")
            line.cut()

    async def killed_consumer(self, queue: Any, items: int = 1, *, shared: bool = False) -> list[bytes]:
        """Have another client receive items and die, as a process that is killed does: its connections just end.

        The items come back, marked as redelivered, when its lease ends: after 0.2 seconds.

        Args:
            queue: An open `AsyncQueue`, `EventQueue` or `TaskQueue` on this server, which has so many items.
            items: How many items it has in hand when it dies.
            shared: It shares the consumer role of an `AsyncQueue` with others.

        Returns:
            The items that it had, undecoded.

        Raises:
            QueueEmptyError: The queue had no item for it within ten seconds.
            QueueInUseError: Another consumer held the role all that time, which is not shared.

        Cancelled, the client is dead all the same.
        """
        validation.whole(items, "items")
        target = self._line("killed_consumer").target
        options: dict[str, Any] = {"codec": "raw", "client_id": "killed-consumer", "prefix": queue.client.prefix}
        got: list[bytes] = []
        async with Proxy(target) as line:
            victim = type(queue)(queue.name, url=line.url, retry_timeout=0, settle_timeout=0.1, **options)
            try:
                await victim.__aenter__()
                if shared:
                    consumer = victim.consumer(ack="manual", lease=LEASE, shared=True, prefetch=1, timeout=_PATIENCE)
                    await consumer.__aenter__()
                    got = [(await anext(consumer)).raw for _ in range(items)]
                while len(got) < items:
                    deliveries = await victim.receive_many(items - len(got), timeout=_PATIENCE, lease=LEASE)
                    got += [delivery.raw for delivery in deliveries]
            finally:
                line.trouble.down = True
                line.cut()
                with contextlib.suppress(PressureError):  # it is dead
                    await victim.aclose()
                    await victim.client.aclose()
        return got

    async def fill(self, queue: Any, item: Any = b"filler") -> int:
        """Put copies of an item until the queue is full.

        Args:
            queue: A queue with a bound, of any kind.
            item: What the queue's codec takes; bytes do for a queue without a codec.

        Returns:
            How many were put.

        Raises:
            ValueError: The queue has no bound.
            TypeError: The queue's codec does not take the item. Nothing was put.

        Cancelled, some of them are in the queue.
        """
        if not await queue.bound():
            raise ValueError(f"the queue {queue.name!r} has no bound, so it is never full. Create it with bound=")
        count = 0
        with contextlib.suppress(QueueFullError):
            while True:
                try:
                    await queue.put_nowait(item)
                except TypeError as error:
                    raise TypeError(
                        f"the codec of the queue {queue.name!r} does not take {item!r:.40}: {error}. Give fill an item "
                        "of yours: fill(queue, item)"
                    ) from error
                count += 1
        return count

    def _line(self, fault: str) -> Proxy:
        if self._proxy is None:
            _refuse(fault)
        return self._proxy


_PATIENCE = 10.0
"""Seconds to wait for the items of a consumer that is to die."""


def _refuse(fault: str) -> NoReturn:
    raise RuntimeError(f"fakeredis has no connections, and {fault}() needs them. Use --pressure-server=embedded")


def ask(url: str, *command: bytes) -> Any:
    """Send one command that may be repeated, on a connection of its own, and return the reply."""
    client = Blocking(settings_from({"url": url}))
    try:
        return client.ask(*command)
    finally:
        client.close()
