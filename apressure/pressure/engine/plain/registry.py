"""Registrations of a queue with plain commands, in the hash in which `connection/workers` keeps them with scripts.

A client without scripts cannot consume with leases, so it has no workers of its own. It registers producers that wait,
and shows, drains and asks the workers of other clients. It reads, and then writes, which is not one step: a beat that
comes between the two is overwritten by the one before it, until the next beat.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from apressure.concurrency import background
from apressure.connection.client import Client
from apressure.core import registrations
from apressure.core.registration import Wish
from apressure.core.registrations import KEPT_ASKED, Kept
from apressure.core.workers import MAX_SIZE, MOST, Beside, told
from apressure.exceptions import ServerError
from apressure.pressure.engine.keys import Keys

_NEXT_LOOK: Final = b""
"""The field in which scripts note when to look for registrations that have expired."""


class PlainRegistry:
    """The registrations of a queue; see `core.registration.Registry`.

    Args:
        client: The client that has the connections.
        keys: The queue's keys.
    """

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._ask = client.connection_for(keys.specified).ask
        self._turn = asyncio.Lock()

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        self._start(on_answer, registrations.beat, name, letter, record, int(lasts * 1000))

    def leave(self, name: bytes) -> None:
        self._start(lambda _: None, registrations.leave, name)

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        return await self._change(registrations.ask, worker_id, what)

    async def beside(self) -> Beside:
        """Return what is kept beside the queue. What another program has written instead is left out."""
        schedules, dedup_ids = [await self._count(key) for key in (self._keys.schedules, self._keys.dedup)]
        found: Kept = {}
        with contextlib.suppress(ServerError):
            found = await self._read() or {}
        return Beside(schedules, dedup_ids, *told(await self._now(), found.items()))

    async def _count(self, key: bytes) -> int:
        with contextlib.suppress(ServerError):
            return int(await self._ask(b"HLEN", key))
        return 0

    def _start(self, on_answer: Callable[[Any], None], change: Callable[..., int], *arguments: Any) -> None:
        async def run() -> None:
            on_answer(await background.caught(self._change(change, *arguments)))

        self._client.finish_before_close(background.start(run(), "registering at a queue"))

    async def _change(self, change: Callable[..., int], *arguments: Any) -> int:
        async with self._turn:
            workers, before = self._keys.workers, await self._read()
            if before is None:  # others have filled it: what works registers again
                await self._ask(b"DEL", workers)
                before = {}
            kept = dict(before)
            answer = change(kept, await self._now(), *arguments)
            if removed := before.keys() - kept.keys():
                await self._ask(b"HDEL", workers, *removed)
            if changed := kept.items() - before.items():
                await self._ask(b"HSET", workers, *(part for pair in changed for part in pair))
                await self._ask(b"PEXPIRE", workers, KEPT_ASKED)
            return answer

    async def _read(self) -> Kept | None:
        """Return the registrations, without those that are too large; None if there are too many."""
        workers = self._keys.workers
        if await self._ask(b"HLEN", workers) > MOST + 1:
            return None
        names = [name for name in await self._ask(b"HKEYS", workers) if name != _NEXT_LOOK]
        sizes = await asyncio.gather(*(self._ask(b"HSTRLEN", workers, name) for name in names))
        names = [name for name, size in zip(names, sizes, strict=True) if size <= MAX_SIZE]
        values = await self._ask(b"HMGET", workers, *names) if names else []
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    async def _now(self) -> int:
        """Return the server's time in milliseconds since 1970."""
        seconds, microseconds = map(int, await self._ask(b"TIME"))
        return seconds * 1000 + microseconds // 1000
