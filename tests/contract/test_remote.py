"""A queue on a server of ours keeps the contract, and one on a released okq as far as okq's commands can."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apressure import EventQueue, QueueDoesNotExistError, ServerTooOldError
from apressure.testing.contract import (
    BackpressureContract,
    BoundContract,
    DeadLetterContract,
    DelayContract,
    ExpiryContract,
    HistoryContract,
    LimitContract,
    MovedLetterContract,
    Opener,
    PauseContract,
    QueueContract,
    ScheduleContract,
    WorkersContract,
    drained,
)
from apressure.testing.contract.steps import fails, in_time
from tests.integration.events.remote.conftest import serving
from tests.okq_server import OkqServer


class TestServerOfOurs(
    QueueContract,
    DeadLetterContract,
    MovedLetterContract,
    PauseContract,
    LimitContract,
    DelayContract,
    ExpiryContract,
    ScheduleContract,
    HistoryContract,
    BoundContract,
    WorkersContract,
    BackpressureContract,
):
    @pytest.fixture
    async def open_queue(self, url: str) -> AsyncIterator[Opener]:
        async with serving(url) as address, contextlib.AsyncExitStack() as stack:

            async def open_queue(**options: Any) -> Any:
                return await stack.enter_async_context(EventQueue("jobs", url=address, **options))

            yield open_queue
            with contextlib.suppress(QueueDoesNotExistError):
                async with EventQueue("jobs", url=address) as queue:
                    await queue.delete()


class Uncreated:
    """A queue on a released okq, which needs no `create`."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote, name)

    async def create(self, bound: int = 0) -> None:
        assert not bound


class TestReleasedOkq(QueueContract):
    # It cannot bound, close or delete a queue, or extend a lease.
    test_a_queue_exists_from_create_to_delete = None  # type: ignore[assignment]
    test_create_says_that_a_queue_exists = None  # type: ignore[assignment]
    test_the_bound_is_the_same_for_every_object = None  # type: ignore[assignment]
    test_deleting_ends_what_waits = None  # type: ignore[assignment]
    test_purge_deletes_what_waits_and_says_how_much = None  # type: ignore[assignment]
    test_a_message_that_fails_too_often_becomes_a_dead_letter = None  # type: ignore[assignment]
    test_put_waits_for_room = None  # type: ignore[assignment]
    test_put_many_says_how_many_it_put = None  # type: ignore[assignment]
    test_a_delivery_says_what_it_is = None  # type: ignore[assignment]
    test_a_consumer_ends_when_the_queue_is_closed_and_drained = None  # type: ignore[assignment]
    test_a_closed_queue_takes_nothing_and_gives_what_it_has = None  # type: ignore[assignment]
    test_closing_ends_a_waiting_receive = None  # type: ignore[assignment]
    test_a_cancelled_wait_leaves_nothing_behind = None  # type: ignore[assignment]
    test_many_tasks_lose_and_double_nothing = None  # type: ignore[assignment]
    test_serve_handles_everything_and_tries_again = None  # type: ignore[assignment]

    @pytest.fixture
    async def open_queue(self) -> AsyncIterator[Opener]:
        server = OkqServer()
        await server.start()
        async with contextlib.AsyncExitStack() as stack:

            async def open_queue() -> Any:
                return Uncreated(await stack.enter_async_context(EventQueue("jobs", url=server.url)))

            yield open_queue
        await server.stop()

    async def test_it_knows_no_workers(self, open_queue: Opener) -> None:
        queue = await open_queue()
        for asked in (queue.drain("one"), queue.show_stack("one")):
            assert "has no QWORKERS" in str(await fails(ServerTooOldError, asked))
        assert (await queue.statistics()).workers == (await queue.statistics()).waiting_producers == ()

    async def test_it_cannot_delay_and_loses_nothing(self, open_queue: Opener) -> None:
        queue = await open_queue()
        for put in (queue.put(b"1", delay=1), queue.put_many([b"1"], delay=1)):
            assert "cannot be delayed" in str(await fails(ServerTooOldError, put))
        assert await queue.qsize() == (await queue.statistics()).delayed == 0
        await queue.put(b"1")
        delivery = await in_time(queue.receive())
        assert "cannot be delayed" in str(await fails(ServerTooOldError, delivery.nack(delay=1)))
        assert not delivery.settled
        await delivery.nack()
        assert await drained(queue) == [b"1"]
