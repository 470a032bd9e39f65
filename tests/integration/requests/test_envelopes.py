"""Requests to an AsyncQueue: CloudEvents whose id says who waits for the reply."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    CloudEventsCodec,
    Envelope,
    LeaseLostError,
    NoReplyError,
    RequestFailedError,
    ScriptingRefusedError,
    ServerError,
    UnsupportedError,
    pipe,
    serve,
)
from apressure.testing.contract.requests import SOON, serving
from tests.integration.conftest import eventually, in_time

PATIENCE = 20.0
ASKER = "0123456789abcdef"
ID = f"apressure-ask:{ASKER}:7"
BASE = "apressure:__pressure__:jobs"
REPLIES, WAITS = f"{BASE}:reply:{ASKER}", f"{BASE}:asked:{ID}"

Queue = AsyncQueue[Envelope[Any]]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with AsyncQueue("jobs", url=url, codec=CloudEventsCodec("json"), max_attempts=2) as queue:
        await queue.create()
        yield queue
        for name in ("jobs", "jobs:dead"):
            async with AsyncQueue(name, url=url) as made:
                if await made.exists():
                    await made.delete()


@pytest.fixture
async def other(url: str) -> AsyncIterator[Queue]:
    async with AsyncQueue("jobs", url=url, codec=CloudEventsCodec("json"), max_attempts=2) as other:
        yield other


def event(event_id: str = ID, **more: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "source": "c", "type": "t", "id": event_id, **more}, indent=1).encode()


async def double(request: Envelope[Any]) -> Any:
    assert request.data != "bad", "no such number"
    return {"twice": 2 * request.data}


async def test_a_reply_keeps_nothing_behind(queue: Queue, other: Queue, db: redis.Redis) -> None:
    async with serving(double, other, concurrency=5):
        asked = [queue.ask(Envelope(number, key="k", headers={"subject": "s"}), PATIENCE) for number in range(100)]
        assert await in_time(asyncio.gather(*asked)) == [{"twice": 2 * number} for number in range(100)]
    await eventually(lambda: db.keys(f"{BASE}:reply:*") + db.keys(f"{BASE}:asked:*") == [])
    assert (await other.statistics()).in_flight == 0


@pytest.mark.parametrize("shared", [False, True])
async def test_any_program_can_ask(queue: Queue, url: str, db: redis.Redis, shared: bool) -> None:
    db.set(WAITS, round(1000 * time.time()) + 60_000, px=60_000)
    async with AsyncQueue("jobs", url=url) as raw:
        await raw.put(event(data="a"))
    async with queue.consumer("manual", shared=shared) as deliveries:
        async for delivery in deliveries:
            assert delivery.asked
            assert await delivery.still_asked()
            await delivery.reply({"got": delivery.item.data})
            break
    assert db.lrange(REPLIES, 0, -1) == [f'{ID} j{{"got":"a"}}'.encode()]
    assert 290_000 < db.pttl(REPLIES) <= 300_000
    assert not db.exists(WAITS)
    db.delete(REPLIES)


@pytest.mark.parametrize(
    "message",
    [
        event("0-1", data={"id": ID}),  # an event that holds another one
        event(f"apressure-ask:{ASKER}:x"),
        event(f"apressure-ask:{ASKER}0:1"),
        b'{"id":"' + ID.encode() + b'"',
        b'"' + ID.encode() + b'"',
        b"\xff" + event(),
        b"[" * 10_000 + b'"apressure-ask:' + b"]" * 10_000,
    ],
    ids=["nested", "no number", "digits", "cut off", "a text", "no UTF-8", "deep"],
)
async def test_what_is_no_request_is_handled_as_any_message(
    queue: Queue, url: str, db: redis.Redis, message: bytes
) -> None:
    handled: list[bytes] = []

    async def handle(item: bytes) -> str:
        handled.append(item)
        if len(handled) != 3:
            raise ValueError("not now")
        return "to nobody"

    async with AsyncQueue("jobs", url=url, max_attempts=2) as raw:
        await raw.put_many([message, message])
        await raw.close()
        await in_time(serve(handle, raw, reply=True, retry=SOON, signals=(), shared=False))
        assert handled == [message] * 4
        assert [letter.raw for letter in await raw.dead_letters()] == [message]
    assert db.keys(f"{BASE}:reply:*") == []


async def test_what_nothing_is_known_of_is_handled(queue: Queue, url: str, db: redis.Redis) -> None:
    """Its asker may be of another library, or have asked another queue."""
    handled: list[str] = []

    async def handle(request: Envelope[Any]) -> str:
        handled.append(request.id)
        return "to its asker"

    async with AsyncQueue("jobs", url=url) as raw:
        await raw.put_many([event(), event(f"apressure-ask:{ASKER}:8"), event(f"apressure-ask:{ASKER}:9")])
    db.set(WAITS.replace(":7", ":8"), "not a number")
    db.set(WAITS.replace(":7", ":9"), 1)  # the asker has left long ago
    await queue.close()
    await in_time(serve(handle, queue, reply=True, signals=()))
    assert handled == [ID, ID.replace(":7", ":8")]
    assert db.llen(REPLIES) == 2
    db.delete(REPLIES, WAITS.replace(":7", ":8"), WAITS.replace(":7", ":9"))


async def test_a_request_that_moves_on_is_handled(queue: Queue, url: str) -> None:
    async def forward(request: Envelope[Any]) -> Envelope[Any]:
        return request

    handled: list[Any] = []

    async def handle(request: Envelope[Any]) -> str:
        handled.append(request.data)
        return "to nobody"

    async with AsyncQueue("second", url=url, codec=CloudEventsCodec("json")) as second:
        await second.create()
        asking = asyncio.ensure_future(queue.ask(Envelope(1), PATIENCE))
        while not await queue.qsize():
            await asyncio.sleep(0.01)
        await queue.close()
        await in_time(pipe(queue, forward, second))
        asking.cancel()
        await second.close()
        await in_time(serve(handle, second, reply=True, signals=()))
        assert handled == [1]
        await second.delete()


async def test_an_undecodable_request_is_dropped_when_its_asker_has_left(queue: Queue, url: str) -> None:
    class Strict(CloudEventsCodec[Any]):
        def decode(self, data: bytes, /) -> Any:
            raise ValueError("never")

    for options in ({}, {"batch": 2}, {"key": lambda item: item}):
        asking = asyncio.ensure_future(queue.ask(Envelope(1), 0.3))
        async with AsyncQueue("jobs", url=url, codec=Strict()) as strict, serving(double, strict, **options):
            with pytest.raises(NoReplyError):
                await in_time(asking)
            while (seen := await queue.statistics()).length + seen.in_flight + seen.delayed:
                await asyncio.sleep(0.01)


async def test_a_request_whose_time_is_over_is_not_put(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = queue._engine.steps  # type: ignore[union-attr]
    note = steps.note_asked

    async def late(request_id: str, milliseconds: int) -> None:
        await asyncio.sleep(0.2)
        await note(request_id, milliseconds)

    monkeypatch.setattr(steps, "note_asked", late)
    with pytest.raises(NoReplyError, match=r"could not be put within 0\.1 s"):
        await in_time(queue.ask(Envelope(1), 0.1))
    assert await queue.qsize() == 0


async def test_a_batch_leaves_out_requests_whose_askers_have_left(queue: Queue, other: Queue) -> None:
    asked = [asyncio.ensure_future(queue.ask(Envelope(number), PATIENCE)) for number in range(4)]
    while await queue.qsize() < 4:
        await asyncio.sleep(0.01)
    for number in (1, 3):
        asked[number].cancel()
    await asyncio.wait(asked[1::2])
    await queue.put(Envelope(4))
    batches: list[list[int]] = []

    async def handle(requests: list[Envelope[Any]]) -> list[str]:
        batches.append([request.data for request in requests])
        return [f"re: {request.data}" for request in requests]

    async with serving(handle, other, batch=10):
        assert await in_time(asyncio.gather(asked[0], asked[2])) == ["re: 0", "re: 2"]
    assert [number for batch in batches for number in batch] == [0, 2, 4]
    assert (await queue.statistics()).length == 0


async def test_a_dead_letter_tells_its_asker_without_errors_too(queue: Queue, url: str) -> None:
    options: Any = {"url": url, "codec": CloudEventsCodec("json"), "max_attempts": 1, "keep_errors": False}
    async with AsyncQueue("jobs", **options) as quiet:
        async with serving(double, quiet):
            with pytest.raises(RequestFailedError, match="not settled") as raised:
                await in_time(queue.ask(Envelope("bad"), PATIENCE))
            assert "no such number" not in str(raised.value)
        assert await quiet.requeue() == 1
        delivery = await in_time(quiet.receive())
        assert delivery.asked
        assert await delivery.still_asked()  # what was requeued is handled, although its asker was told
        await delivery.ack()


async def test_a_lost_lease_sends_no_reply(queue: Queue, other: Queue) -> None:
    asking = asyncio.ensure_future(queue.ask(Envelope(1), PATIENCE))
    lost = await in_time(other.receive(lease=0.2))
    lost.claim[0].renewal.end()
    delivery = await in_time(queue.receive())
    with pytest.raises(LeaseLostError):
        await lost.reply("first")
    await asyncio.sleep(0.1)
    assert not asking.done()
    await delivery.reply("second")
    assert await in_time(asking) == "second"


async def test_a_reply_that_has_no_place_is_no_loss(queue: Queue, db: redis.Redis) -> None:
    db.set(REPLIES, "a string of somebody else")
    async with AsyncQueue("jobs", client=queue.client) as raw:
        await raw.put(event())
        await (await in_time(raw.receive())).reply("lost")
    assert (await queue.statistics()).in_flight == 0
    assert db.get(REPLIES) == b"a string of somebody else"
    db.delete(REPLIES)


async def test_a_full_server_takes_no_request_and_replies(queue: Queue, other: Queue, db: redis.Redis) -> None:
    asking = asyncio.ensure_future(queue.ask(Envelope("a"), PATIENCE))
    delivery = await in_time(other.receive())
    db.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerError):
            await in_time(queue.ask(Envelope("b"), 1.0))
        await delivery.reply("there was room for this")
    finally:
        db.config_set("maxmemory", 0)
    assert await in_time(asking) == "there was room for this"


async def test_connections_that_break_lose_no_reply(queue: Queue, other: Queue, db: redis.Redis) -> None:
    async def ask(number: int) -> Any:
        await asyncio.sleep(number / 1000)
        return await queue.ask(Envelope(number), PATIENCE)

    async with serving(double, other, concurrency=5):
        asked = [asyncio.ensure_future(ask(number)) for number in range(500)]
        for _ in range(10):
            await asyncio.sleep(0.05)
            db.client_kill_filter(_type="normal", skipme=True)
        assert await in_time(asyncio.gather(*asked)) == [{"twice": 2 * number} for number in range(500)]


async def test_without_an_envelope_the_error_says_how_to_ask(queue: Queue, url: str) -> None:
    async with AsyncQueue("jobs", url=url, codec="json") as plain:
        with pytest.raises(UnsupportedError, match="codec='cloudevents'"):
            await plain.ask({"a": 1}, 1.0)
    with pytest.raises(TypeError, match="must be an Envelope"):
        await queue.ask({"a": 1}, 1.0)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="cannot tell the messages of a key"):
        await queue.ask(Envelope(1), 1.0, key="a")
    async with AsyncQueue("jobs", url=url, codec="cloudevents", scripting=False) as simple:
        with pytest.raises(ScriptingRefusedError):
            await simple.ask(Envelope(1), 1.0)
    assert await queue.qsize() == 0


async def test_an_acknowledgement_without_a_reply_lets_the_asker_wait(queue: Queue, other: Queue) -> None:
    asking = asyncio.ensure_future(queue.ask(Envelope(1), 0.5))
    await (await in_time(other.receive())).ack()
    with pytest.raises(NoReplyError, match=r"got no reply within 0\.5 s"):
        await in_time(asking)
