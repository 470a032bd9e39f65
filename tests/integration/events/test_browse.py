"""browse of an EventQueue: what okq and other programs have left in its keys. The contract has the rest."""

from __future__ import annotations

import pytest
import redis

from apressure import EventQueue, ServerError, UnsupportedError
from apressure.testing.contract.browsing import items_of
from tests.integration.events.conftest import Open
from tests.okq import Okq

OURS = "apressure:queue:{jobs}:"


async def test_events_of_okq_are_shown(open_queue: Open, okq: Okq, db: redis.Redis) -> None:
    queue = await open_queue()
    for number in range(3):
        await queue.put(b"%d" % number, id=f"id-{number}")
    db.rpoplpush(Okq.key("jobs"), Okq.key("jobs", "claimed"))  # an okq is about to lock it
    (flying,) = (await queue.browse("in_flight")).messages
    assert (flying.id, flying.item, flying.due, flying.holder) == ("id-0", b"0", None, None)
    assert [message.id for message in (await queue.browse(newest=True)).messages] == ["id-2", "id-1"]


async def test_an_id_without_contents_says_so(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    db.rpush(Okq.key("jobs"), b"gone\xff")
    lost, there = (await queue.browse()).messages
    assert (lost.id, lost.item, lost.raw, lost.size) == ("gone\udcff", None, b"", 0)
    assert "its contents are gone" in lost.error
    assert there.item == b"1"
    db.lrem(Okq.key("jobs"), 1, b"gone\xff")


async def test_entries_of_other_programs_are_shown(open_queue: Open, db: redis.Redis) -> None:
    queue = await open_queue()
    db.zadd(OURS + "delayed", {"a": "inf", "b": 5})
    db.hset(OURS + "later", mapping={"a": "1", "b": "2"})
    db.zadd(OURS + "lines", {"odd": 0, "1:k1000000000001c": 0, "99:x": 0, "": 0})
    db.hset(OURS + "keyed", mapping={"ic": "p1000000000001k", "iodd": "?"})
    db.hset(OURS + "attempts", mapping={"c": "many", "a": "-1"})
    assert await items_of(queue, "delayed", limit=1) == [b"2", b"1"]
    page = await queue.browse("parked")
    assert (len(page.messages), page.total) == (4, 4)
    assert ("c", "k") in {(message.id, message.key) for message in page.messages}
    assert {message.item for message in page.messages} == {None}
    db.delete(*(OURS + key for key in ("delayed", "later", "lines", "keyed", "attempts")))


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("waiting", "queue:{jobs}"), ("waiting", "queue:{jobs}:items"), ("waiting", OURS + "attempts"),
        ("waiting", OURS + "keyed"), ("in_flight", "queue:{jobs}:claimed"), ("delayed", OURS + "delayed"),
        ("parked", OURS + "lines"),
    ],
)  # fmt: skip
async def test_keys_of_the_wrong_type_raise_an_error_that_says_so(
    open_queue: Open, db: redis.Redis, place: str, key: str
) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    db.delete(key)
    db.set(key, "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.browse(place)  # type: ignore[arg-type]
    db.delete(key)
    assert (await queue.browse("in_flight")).total == 0


async def test_an_okq_server_shows_only_the_ends() -> None:
    queue = EventQueue("jobs", url="okq://127.0.0.1:1")
    with pytest.raises(UnsupportedError, match=r"needs the address of the Redis or Valkey server"):
        await queue.browse()
    await queue.aclose()
