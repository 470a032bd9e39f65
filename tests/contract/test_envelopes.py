"""An AsyncQueue of envelopes keeps the part of the contract that is about requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apressure import AsyncQueue, CloudEventsCodec, Envelope, NoReplyError, QueueDoesNotExistError, serve
from apressure.testing.contract import Opener, RequestContract
from apressure.testing.contract.requests import LATER
from apressure.testing.contract.steps import PATIENCE, begun, fails, in_time


class Contents(CloudEventsCodec[bytes]):
    """Messages are envelopes, and items what is in them, as in the contract."""

    def encode(self, item: Any, /) -> bytes:
        if not isinstance(item, (bytes, Envelope)):
            raise TypeError("neither bytes nor an envelope")
        return super().encode(Envelope(item) if isinstance(item, bytes) else item)

    def decode(self, data: bytes, /) -> Any:
        return super().decode(data).data


class Asking(AsyncQueue[Any]):
    """Its requests are bytes, as in the contract."""

    async def ask(self, item: Any, *arguments: Any, **options: Any) -> Any:
        return await super().ask(Envelope(item) if isinstance(item, bytes) else item, *arguments, **options)


class TestEnvelopes(RequestContract):
    # Of an AsyncQueue, the server has no ids, keys and ends of messages, and the client renews a lease.
    test_a_pause_and_keys_hold_for_requests = None  # type: ignore[assignment]
    test_a_purge_tells_those_who_wait = None  # type: ignore[assignment]
    test_a_request_that_waited_for_room_expires_with_its_asker = None  # type: ignore[assignment]
    test_what_comes_after_the_death_of_its_consumer_is_replied_to = None  # type: ignore[assignment]

    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> Asking:
                return await stack.enter_async_context(Asking("jobs", url=url, codec=Contents(), **options))

            yield open_queue
        for name in ("jobs", "jobs:dead"):
            async with AsyncQueue(name, url=url) as queue:
                with contextlib.suppress(QueueDoesNotExistError):
                    await queue.delete()

    async def test_no_reply_in_time(self, open_queue: Opener) -> None:
        queue, other = await open_queue(), await open_queue()
        await queue.create()
        error = await fails(NoReplyError, queue.ask(b"1", LATER))
        assert (error.name, bool(error.id)) == (queue.name, True)  # type: ignore[attr-defined]
        asking = await begun(queue.ask(b"2", PATIENCE))
        while await queue.qsize() < 2:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait((asking,))
        await queue.put(b"3")
        await queue.close()
        handled: list[bytes] = []

        async def handle(item: bytes) -> None:
            handled.append(item)

        await in_time(serve(handle, other, reply=True, signals=()))
        assert handled == [b"3"]  # nobody works for one who has left
