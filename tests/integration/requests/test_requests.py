"""What requests are on the wire, and what they do where something is wrong; see `RequestContract`, too."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import (
    EventQueue,
    FileQueue,
    NoReplyError,
    OperationUnblockedError,
    ServerError,
    TaskQueue,
    UnsupportedError,
    pipe,
    serve,
)
from apressure.core.registration import Calls
from apressure.embedded import EmbeddedServer
from apressure.events.driver import RedisDriver
from apressure.service.calls import Caller
from apressure.testing import MemoryQueue
from apressure.testing.contract.steps import unblocked
from tests import processes
from tests.chaos.support import no_complaints
from tests.integration.conftest import eventually, in_time

PATIENCE = 20.0
ASKER = "0123456789abcdef"
REPLIES = f"apressure:queue:{{jobs}}:reply:{ASKER}"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[EventQueue[str]]:
    async with EventQueue("jobs", url=url, codec="text") as queue:
        await queue.create()
        yield queue
        await queue.delete()


async def test_any_program_can_ask(queue: EventQueue[str], db: redis.Redis) -> None:
    await queue.put("a", id=f"apressure-ask:{ASKER}:1")
    await (await in_time(queue.receive())).reply({"got": "a"})
    await queue.put("b", id=f"apressure-ask:{ASKER}:2")
    await (await in_time(queue.receive())).reply(b"\x00\xff ")
    assert db.lrange(REPLIES, 0, -1) == [
        f"apressure-ask:{ASKER}:2 b".encode() + b"\x00\xff ",
        f'apressure-ask:{ASKER}:1 j{{"got":"a"}}'.encode(),
    ]
    assert 290_000 < db.pttl(REPLIES) <= 300_000


async def test_any_program_can_reply(queue: EventQueue[str], db: redis.Redis) -> None:
    asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
    delivery = await in_time(queue.receive())
    _, asker, _ = delivery.id.split(":")
    db.lpush(f"apressure:queue:{{jobs}}:reply:{asker}", f'{delivery.id} j"by hand"')
    await delivery.ack()
    assert await in_time(asking) == "by hand"


@pytest.mark.parametrize("identity", [
    "apressure-ask:0123456789abcde:1", "apressure-ask:0123456789abcdef:", "apressure-ask:0123456789abcdeg:1",
    "apressure-ask:0123456789abcdef0:1", "x-apressure-ask:0123456789abcdef:1", "apressure-ask:0123456789abcdef:1x",
    "apressure-ask", "apressure-ask::1",
])  # fmt: skip
async def test_an_id_that_is_no_request_gets_no_reply(queue: EventQueue[str], db: redis.Redis, identity: str) -> None:
    for how in ("ack", "reply"):
        await queue.put("a", id=identity)
        delivery = await in_time(queue.receive())
        await (delivery.ack() if how == "ack" else delivery.reply(1))
    assert db.keys("*:reply:*") == []


async def test_an_acknowledgement_without_a_reply_is_told_at_once(queue: EventQueue[str], url: str) -> None:
    asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
    await (await in_time(queue.receive())).ack()
    with pytest.raises(NoReplyError, match="without a reply"):
        await in_time(asking)

    asking = asyncio.ensure_future(queue.ask("b", PATIENCE))
    async with EventQueue("out", url=url, codec="text") as out, asyncio.timeout(PATIENCE):
        moving = asyncio.ensure_future(pipe(queue, _handle, out))
        with pytest.raises(NoReplyError, match="without a reply"):
            await asking
        assert await out.get() == "b"
        moving.cancel()
        await asyncio.wait((moving,))


async def test_what_has_the_name_of_the_list_loses_only_the_reply(queue: EventQueue[str], db: redis.Redis) -> None:
    db.set(REPLIES, "mine")
    await queue.put("a", id=f"apressure-ask:{ASKER}:1")
    await (await in_time(queue.receive())).reply("nobody can read it")
    assert (db.get(REPLIES), db.pttl(REPLIES)) == (b"mine", -1)
    assert await queue.qsize() == 0
    asking = asyncio.ensure_future(queue.ask("b", PATIENCE))
    delivery = await in_time(queue.receive())
    _, asker, _ = delivery.id.split(":")
    db.set(f"apressure:queue:{{jobs}}:reply:{asker}", "mine")
    with pytest.raises(ServerError):
        await in_time(asking)
    await delivery.ack()
    db.delete(*db.keys("*:reply:*"))


@pytest.mark.parametrize("reply", [b"j{", b"j\xff", b"", b"?", b"x1", b"jNaN"], ids=repr)
async def test_a_reply_that_cannot_be_read(queue: EventQueue[str], db: redis.Redis, reply: bytes) -> None:
    asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
    delivery = await in_time(queue.receive())
    _, asker, _ = delivery.id.split(":")
    db.lpush(f"apressure:queue:{{jobs}}:reply:{asker}", delivery.id.encode() + b" " + reply)
    with pytest.raises(NoReplyError, match="got a reply that"):
        await in_time(asking)
    await delivery.ack()


async def test_only_what_was_read_is_removed(queue: EventQueue[str], db: redis.Redis) -> None:
    assert isinstance(queue._driver, RedisDriver)
    step = functools.partial(queue._driver.requests.replies, REPLIES.encode())
    replies = [f"apressure-ask:{ASKER}:{number} b{number}".encode() for number in range(60)]
    read = [reply.partition(b" ")[0] for reply in replies]
    db.lpush(REPLIES, *replies[:2])
    assert await step([]) == replies[:2]
    db.lpush(REPLIES, *replies[2:])
    assert await step(read[:2]) == replies[2:52]
    assert await step(read[:2]) == replies[2:52]  # the same step again, late
    assert await step(read[2:52]) == replies[52:]
    assert await step(read[3:55]) == replies[55:]
    assert await step(read[55:]) == []
    assert not db.exists(REPLIES)


async def test_what_waits_for_room_is_ended_without_complaint(queue: EventQueue[str]) -> None:
    await queue.delete()
    await queue.create(bound=1)
    await queue.put("a")
    async with no_complaints():
        asked = [asyncio.ensure_future(queue.ask("b", PATIENCE)) for _ in range(3)]
        await eventually(lambda: queue._driver.waiting[0] == 3)
        outcomes = await unblocked(queue, *asked)
        assert [type(outcome) for outcome in outcomes] == [OperationUnblockedError] * 3
    assert await queue.qsize() == 1


@pytest.mark.parametrize("kind", [EventQueue, TaskQueue])
async def test_a_server_that_is_gone_ends_no_wait_later(
    make_server: Callable[..., EmbeddedServer], kind: Any, url: str
) -> None:
    server = make_server("valkey")
    queue = kind("jobs", url=server.url, codec="text", retry_timeout=30.0)
    async with queue:
        asking = asyncio.ensure_future(queue.ask("a", 2.0))
        delivery = await in_time(queue.receive())
        assert not delivery.settled
        server.stop()
        with pytest.raises(NoReplyError):
            async with asyncio.timeout(25):
                await asking


ASK = """
import sys
from apressure import EventQueue

queue = EventQueue("jobs", url=sys.argv[1], codec="text")


async def run(name):
    async with queue:
        for number in range(20):
            reply = await queue.ask(f"{name}{number}", 60.0)
            assert reply == f"re: {name}{number}", reply
"""


async def test_processes_that_were_forked_get_their_own_replies(queue: EventQueue[str], url: str) -> None:
    async def handle(item: str) -> str:
        return f"re: {item}"

    stop = asyncio.Event()
    service = asyncio.ensure_future(serve(handle, queue, reply=True, signals=(), stop=stop))
    done = await asyncio.to_thread(
        processes.run,
        [sys.executable, "-c", ASK + processes.FORKING, url],
        capture_output=True,
        check=False,
        timeout=120,
    )
    stop.set()
    await service
    assert done.returncode == 0, done.stderr.decode()


async def test_connections_that_break_lose_no_reply(queue: EventQueue[str], url: str, db: redis.Redis) -> None:
    async def handle(item: str) -> str:
        await asyncio.sleep(0.01)
        return item

    async with EventQueue("jobs", url=url, codec="text") as other:
        stop = asyncio.Event()
        service = asyncio.ensure_future(serve(handle, other, reply=True, concurrency=5, signals=(), stop=stop))
        asked = [asyncio.ensure_future(queue.ask(f"{number}", PATIENCE)) for number in range(500)]
        for _ in range(10):
            await asyncio.sleep(0.05)
            db.client_kill_filter(_type="normal", skipme=True)
        assert await in_time(asyncio.gather(*asked)) == [f"{number}" for number in range(500)]
        stop.set()
        await service


async def test_one_connection_waits_for_all_replies(queue: EventQueue[str], db: redis.Redis) -> None:
    def waits() -> int:
        return sum(client["cmd"] == "blmove" for client in db.client_list())

    asked = [asyncio.ensure_future(queue.ask(f"{number}", PATIENCE)) for number in range(120)]
    await eventually(lambda: waits() == 1)
    for _ in asked:
        await (await in_time(queue.receive())).reply("done")
    assert await in_time(asyncio.gather(*asked)) == ["done"] * 120
    await eventually(lambda: db.keys("*:reply:*") == [])  # what was read is removed


async def test_a_full_server_takes_no_request_and_replies(queue: EventQueue[str], db: redis.Redis) -> None:
    asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
    delivery = await in_time(queue.receive())
    db.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerError):
            await in_time(queue.ask("b", 1.0))
        await delivery.reply("there was room for this")
    finally:
        db.config_set("maxmemory", 0)
    assert await in_time(asking) == "there was room for this"


async def _handle(item: Any) -> Any:
    return item


async def test_kinds_without_replies(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "jobs") as queue:
        await queue.create()
        await _refuses(queue)
        await queue.put(b"a")
        delivery = await in_time(queue.receive())
        with pytest.raises(UnsupportedError, match="gets no reply"):
            await delivery.reply("a")
        assert not delivery.settled
        await delivery.ack()
    await _refuses(EventQueue("jobs", url="okq://127.0.0.1:1"))


async def _refuses(queue: Any) -> None:
    with pytest.raises(UnsupportedError, match="nobody can reply to its messages: use an EventQueue or TaskQueue"):
        await queue.ask(b"a", 1.0)
    with pytest.raises(UnsupportedError, match="nobody can reply"):
        await serve(_handle, queue, reply=True, signals=())


async def test_a_task_replies_with_its_result(url: str) -> None:
    async with TaskQueue("jobs", url=url) as queue:
        asking = asyncio.ensure_future(queue.ask({"n": 1}, PATIENCE))
        delivery = await in_time(queue.receive())
        with pytest.raises(TypeError):
            await delivery.reply(b"bytes")
        await delivery.complete({"got": delivery.item})  # as any node of Blueque does
        assert await in_time(asking) == {"got": {"n": 1}}
        asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
        delivery = await in_time(queue.receive())
        await delivery.ack()
        assert await in_time(asking) is None
        await queue.delete()


async def test_replies_are_no_larger_than_messages(url: str) -> None:
    async with EventQueue("jobs", url=url, codec="text", max_message_size=100) as queue:
        asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
        delivery = await in_time(queue.receive())
        with pytest.raises(ValueError, match="at most 100 are allowed"):
            await delivery.reply("x" * 100)
        await delivery.reply("x" * 97)
        assert await in_time(asking) == "x" * 97


async def test_in_memory_an_acknowledgement_without_a_reply_is_told_at_once() -> None:
    async with MemoryQueue("jobs", codec="text") as queue:
        asking = asyncio.ensure_future(queue.ask("a", PATIENCE))
        await (await in_time(queue.receive())).ack()
        with pytest.raises(NoReplyError, match="without a reply"):
            await in_time(asking)


async def test_only_a_reply_comes_back_from_an_executor_or_is_kept() -> None:
    def blocking(item: int) -> int:
        return item + 1

    async def quick(item: int) -> int:
        return item + 1

    with ThreadPoolExecutor(1) as threads:
        caller = Caller(blocking, None, threads, Calls())
        for reply, expected in ((False, None), (True, 2)):
            rest = caller.begin(1, reply)
            assert rest is not None
            assert await rest == expected
    caller = Caller(quick, None, None, Calls())
    for reply, expected in ((False, None), (True, 2)):
        assert caller.begin(1, reply) is None
        assert caller.returned == expected
    del caller
    async with MemoryQueue("jobs", codec="json") as queue:
        await queue.create()
        stop = asyncio.Event()
        service = asyncio.ensure_future(serve(_handle, queue, reply=True, signals=(), stop=stop))
        assert await queue.ask({"a": 1}, PATIENCE) == {"a": 1}
        assert not [one for one in gc.get_objects() if isinstance(one, Caller) and one.returned is not None]
        stop.set()
        await service


async def test_serve_asks_a_queue_whether_it_has_replies() -> None:
    class Mine:
        name = "mine"

        def consumer(self) -> None: ...

    with pytest.raises(TypeError, match="reply=True needs a queue with a method ask"):
        await serve(_handle, Mine(), reply=True, signals=())  # type: ignore[call-overload]
