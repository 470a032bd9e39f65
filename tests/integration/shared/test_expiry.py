"""Messages that expire, on the kinds of queue on a server that can: what `ExpiryContract` does not try."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import EventQueue, QueueEmptyError, TaskQueue
from apressure.dead_letters import Failure
from apressure.embedded import EmbeddedServer
from apressure.testing.contract.cancellation import cancelled
from apressure.testing.contract.interrupting import cancel_at_answer
from tests.integration.commands import PATIENCE
from tests.okq import Okq

Open = Callable[..., Any]

KINDS: dict[str, type[Any]] = {"events": EventQueue, "tasks": TaskQueue}

pytestmark = [
    pytest.mark.leaves_keys("queue:*", "apressure:*", "blueque_*"),
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
]


@pytest.fixture(params=KINDS)
async def open_queue(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def opened(where: str = url, **options: Any) -> Any:
            return await stack.enter_async_context(KINDS[request.param]("jobs", url=where, codec="raw", **options))

        yield opened


async def letters(queue: Any) -> list[bytes]:
    return [letter.raw for letter in await queue.dead_letters()]


async def test_very_many_expire_in_steps(open_queue: Open) -> None:
    queue = await open_queue()
    await queue.put_many([b"%d" % number for number in range(5000)], expires=0.05)
    await queue.put(b"last")
    await asyncio.sleep(0.2)
    assert await asyncio.wait_for(queue.get(), PATIENCE) == b"last"
    statistics = await queue.statistics()
    assert (statistics.expired, statistics.length, statistics.dead_letters) == (5000, 0, 5000)


async def test_a_restart_of_the_server_keeps_when_they_expire(
    open_queue: Open, make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    server = make_server("valkey", directory=tmp_path, config={"appendfsync": "always"})
    queue = await open_queue(server.url)
    await queue.put(b"soon", expires=0.5)
    await queue.put(b"late", expires=60)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    await asyncio.sleep(0.6)
    assert await asyncio.wait_for(queue.get(), PATIENCE) == b"late"
    assert await letters(queue) == [b"soon"]


async def test_a_lease_that_ends_too_late_gives_a_dead_letter(open_queue: Open) -> None:
    """The process that had it has died: it goes back, and has expired."""
    queue = await open_queue()
    await queue.put(b"1", expires=0.4)
    await queue.receive(lease=0.3)
    await asyncio.sleep(0.6)
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0.5)
    (letter,) = await queue.dead_letters()
    assert (letter.raw, letter.attempts, letter.error) == (b"1", 1, Failure("expired", "", 1))


async def test_what_a_cancelled_get_gives_back_still_expires(open_queue: Open) -> None:
    queue, items = await open_queue(), [b"1", b"2", b"3"]
    for number in range(100):
        await queue.put_many(items, expires=60)
        reached, got = await cancelled(queue.get_many(100, PATIENCE), number, cancel_at_answer)
        if not reached:
            break
    assert number > 0
    assert len(got) == 3 * (number + 1)
    await queue.put_many(items, expires=1.0)
    assert (await cancelled(queue.get_many(100, PATIENCE), number - 1, cancel_at_answer))[0]
    await asyncio.sleep(1.5)
    with pytest.raises(QueueEmptyError):
        await queue.get(0)
    assert (await queue.statistics()).expired == 3


async def test_deleting_the_queue_forgets_the_count(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.create()
    await queue.put(b"1", expires=0.01)
    await queue.put(b"2", expires=60)
    await asyncio.sleep(0.1)
    assert await queue.get() == b"2"
    await queue.delete()
    again = await open_queue()
    await again.create()
    assert (await again.statistics()).expired == 0
    await again.delete()
    left = [key for key in db.keys("*") if b":op:" not in key]  # type: ignore[union-attr]
    assert [key for key in left if b"expire" in key] == []


async def test_an_id_that_is_used_again_does_not_expire(url: str) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.put(b"1", id="a", expires=0.1)
        assert await queue.get() == b"1"
        await queue.put(b"1", id="a")
        await asyncio.sleep(0.3)
        assert await queue.get() == b"1"


async def test_an_okq_delivers_what_has_expired_and_leaves_nothing_that_harms(
    url: str, db: redis.Redis, server: EmbeddedServer
) -> None:
    async with EventQueue("jobs", url=url) as queue:
        okq = Okq(db)
        await queue.put(b"old", id="a", expires=0.1)
        await queue.put(b"stays", id="b", expires=60)
        await asyncio.sleep(0.2)
        assert okq.pop("jobs") == ("a", b"old")
        okq.ack("jobs", "a")
        okq.push("jobs", "a", b"new")  # an id that is used again, with other contents
        await asyncio.sleep(0.1)
        assert [await queue.get(), await queue.get()] == [b"stays", b"new"]
        assert (await queue.statistics()).expired == 0


@pytest.mark.parametrize("entry", [b"", b"soon", b"-1:x", b"99999999999999999999:x", b"1:"])
async def test_an_entry_that_another_program_wrote_does_not_expire_anything(
    url: str, db: redis.Redis, entry: bytes
) -> None:
    async with EventQueue("jobs", url=url) as queue:
        await queue.put(b"1", id="a", expires=60)
        db.hset("apressure:queue:{jobs}:expires", "a", entry)
        assert await queue.get() == b"1"
