"""Clients that wait learn that a queue was closed or deleted, if it had been created; and CREATED and TELL say more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from apressure import EventQueue, QueueDoesNotExistError
from apressure.events.server import queues
from tests.integration.conftest import blocked
from tests.integration.event_server.conftest import PATIENCE, Served, Wire

LONG = 80  # seconds: a wait that reaches it has missed what it waits for, and the test fails


async def woken(wire: Wire, round_trip: Any) -> Any:
    """Return the reply that a waiting client gets meanwhile. It may begin to wait at any moment."""
    reply = asyncio.create_task(wire.reply())
    async with asyncio.timeout(PATIENCE):
        while not reply.done():
            await round_trip()
    return await reply


@pytest.mark.parametrize("end", ["QDELETE", "QCLOSE"])
async def test_clients_in_notify_learn_of_the_end(
    okq: Served, wire: Wire, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(queues, "WATCH", LONG)  # the server itself has ended the queue, and knows
    waiting = await okq.connect()
    assert await waiting("QREGISTER", "foo") == b"OK"
    waiting.send("QNOTIFY", LONG)

    async def end_it() -> None:
        assert await wire("QCREATE", "foo", 0) == 1
        await wire(end, "foo")
        await asyncio.sleep(0.05)
        if end == "QCLOSE":
            await wire("QDELETE", "foo")

    assert await woken(waiting, end_it) == b"foo"


async def test_clients_in_notify_learn_of_an_end_that_others_made(
    okq: Served, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "WATCH", 0.05)
    waiting = await okq.connect()
    assert await waiting("QREGISTER", "foo") == b"OK"
    waiting.send("QNOTIFY", LONG)
    async with EventQueue("foo", url=url) as queue:

        async def end_it() -> None:
            await queue.create()
            await asyncio.sleep(0.5)
            await queue.delete()
            await asyncio.sleep(0.5)

        assert await woken(waiting, end_it) == b"foo"
    await waiting("QREGISTER")


async def test_the_end_of_a_queue_that_was_not_created_wakes_nobody(okq: Served, wire: Wire) -> None:
    waiting = await okq.connect()
    assert await waiting("QREGISTER", "foo") == b"OK"
    waiting.send("QNOTIFY", 1)
    reply = asyncio.create_task(waiting.reply())
    while not reply.done():
        await wire("QREGISTER")
        await wire("QREGISTER", "foo")
        assert await wire("QDELETE", "foo") == b"OK"
        await asyncio.sleep(0.05)
    assert await reply is None
    await wire("QREGISTER")
    await waiting("QREGISTER")


async def test_the_close_of_a_queue_that_was_not_created_ends_a_pop(
    okq: Served, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "WATCH", LONG)
    waiting = await okq.connect()
    waiting.send("QRPOP", "foo", "WAIT", LONG)
    await asyncio.sleep(0.2)  # it waits

    async def close() -> None:
        await wire("QCLOSE", "foo")
        await asyncio.sleep(0.05)

    assert str(await woken(waiting, close)) == "ERR queue closed"
    await wire("QDELETE", "foo")


async def test_a_damaged_queue_can_be_deleted(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QCREATE", "foo", 0) == 1
    (bound,) = db.keys("*bound*")
    db.delete(bound)
    db.lpush(bound, "damaged")
    assert await wire("QDELETE", "foo") == b"OK"
    assert not db.exists(bound)


async def test_a_pop_that_waits_says_that_the_queue_was_deleted(okq: Served, wire: Wire) -> None:
    waiting = [await okq.connect() for _ in range(3)]
    async with asyncio.timeout(PATIENCE):
        replies: list[Any] = []
        while replies != ["ERR no such queue"] * 3:  # on a busy machine they may come after the end
            await wire("QCREATE", "foo", 0)
            for one in waiting:
                one.send("QRPOP", "foo", "WAIT", 2)
            await asyncio.sleep(0.3)
            assert await wire("QDELETE", "foo") == b"OK"
            replies = [str(await one.reply()) for one in waiting]
            assert set(replies) <= {"None", "ERR no such queue"}


async def test_pushes_that_wait_for_room_do_not_make_a_deleted_queue_again(
    okq: Served, wire: Wire, db: redis.Redis
) -> None:
    assert await wire("QCREATE", "foo", 2) == 1
    pushing = [await okq.connect() for _ in range(3)]
    pushing[0].send("QLPUSH", "foo", *(part for number in range(3) for part in (number, "x")))
    await blocked(db)
    pushing[1].send("QLPUSH", "foo", "a", "x")
    pushing[2].send("QRPUSH", "foo", "b", "x")
    await blocked(db, 2)  # a connection for each end
    assert await wire("QDELETE", "foo") == b"OK"
    assert [str(await one.reply()) for one in pushing] == ["ERR no such queue"] * 3
    assert await wire("QLOOK", "foo") == [*[0] * 10, None, *[0] * 6]


async def test_created(okq: Served, wire: Wire, url: str) -> None:
    assert await wire("QLPUSH", "foo", 1, "x", "CREATED") == "ERR no such queue"
    assert await wire("QLPUSH", "foo", 1, "x", 2, "y", "created") == "ERR no such queue"
    assert await wire("QRPOP", "foo", "CREATED") == "ERR no such queue"
    assert await wire("QCLOSE", "foo", "CREATED") == "ERR no such queue"
    assert await wire("QLPUSH", "foo", 1, "x") == b"OK"
    assert await wire("QRPUSH", "foo", 2, "y", "CREATED") == "ERR no such queue"  # it is there, and was not created
    assert await wire("QCREATE", "foo", 2) == 1
    assert await wire("QRPUSH", "foo", 2, "y", "CREATED") == b"OK"
    full = "ERR queue full: the first {} of {} events are in the queue"
    assert await wire("QLPUSH", "foo", 3, "z", "CREATED") == full.format(0, 1)  # it does not wait
    assert await wire("QRPOP", "foo", "EX", 0, "CREATED") == [b"2", b"y"]
    assert await wire("QLPUSH", "foo", 3, "z", 4, "z", "CREATED") == full.format(1, 2)
    assert await wire("QCLOSE", "foo", "later") == 'ERR syntax error: QCLOSE has the option CREATED, not "later"'
    assert await wire("QCLOSE", "foo", "created") == 1
    assert await wire("QDELETE", "foo") == b"OK"
    for _ in range(3):  # those that share a step with others, and those that cannot
        wire.send("QLPUSH", "foo", 5, "x", "CREATED")
    wire.send("QLPUSH", "foo", 5, "x", "NOWAIT")
    wire.send("QLPUSH", "foo", 6, "x", "CREATED")
    wire.send("QRPOP", "foo", "CREATED")
    wire.send("QRPOP", "foo")
    replies = [await wire.reply() for _ in range(7)]
    missing = ["ERR no such queue"]
    assert [str(one) for one in replies] == [*missing * 3, "b'OK'", *missing * 2, "[b'5', b'x']"]
    async with EventQueue("foo", url=url) as queue:
        await queue.delete()
        with pytest.raises(QueueDoesNotExistError):
            await queue.delete()


async def test_tell(wire: Wire) -> None:
    assert await wire("QRPOP", "foo", "TELL") == b"empty"
    assert await wire("QRPOP", "foo", "COUNT", 5, "TELL", "WAIT", "0.05") == b"empty"
    assert await wire("QLPUSH", "foo", 1, "x", 2, "y") == b"OK"
    assert await wire("QRPOP", "foo", "TELL") == [b"1", b"x", 1]
    assert await wire("QACK", "foo", 1, "REDO") == 1
    assert await wire("QRPOP", "foo", "COUNT", 5, "tell") == [[b"1", b"x", 2], [b"2", b"y", 1]]
    assert await wire("QPAUSE", "foo") == 1
    assert await wire("QRPOP", "foo", "TELL") == b"paused"
    assert await wire("QCREATE", "foo", 0) == 1
    for arguments in (("TELL",), (), ("TELL", "COUNT", 5), ("COUNT", 5)):
        wire.send("QRPOP", "foo", *arguments)
    assert [await wire.reply() for _ in range(4)] == [b"empty created", None, b"empty created", []]
    assert await wire("QPAUSE", "foo") == 1
    assert await wire("QRPOP", "foo", "WAIT", "0.05", "TELL") == b"paused created"
    assert await wire("QDELETE", "foo") == b"OK"
