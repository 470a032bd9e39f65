"""Sentences of okq's specification that no other test shows by itself."""

from __future__ import annotations

import asyncio
import re

import redis

from apressure.events.server.settings import DEFAULT_PORT, ServerSettings
from tests.integration.commands import Commands
from tests.integration.conftest import eventually
from tests.integration.event_server.conftest import Served, Wire


def test_the_default_port() -> None:
    assert ServerSettings(url="redis://127.0.0.1:6379/0").listen.port == DEFAULT_PORT == 4777


async def test_without_ex_a_consumer_has_30_seconds(wire: Wire, db: redis.Redis) -> None:
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire("QRPOP", "foo") == [b"a", b"x"]
    assert 0 < db.pttl("queue:{foo}:lock:a") <= 30_000
    assert await wire("QACK", "foo", "a") == 1


async def test_an_event_whose_time_is_over_is_the_next_one(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "a", "x", "b", "y") == b"OK"
    assert await wire("QRPOP", "foo", "EX", "0.1") == [b"a", b"x"]
    assert await wire("QREGISTER", "other") == b"OK"
    async with asyncio.timeout(60):
        while (await wire("QSTATUS", "foo"))[0][2]:  # its consumer still has it
            await asyncio.sleep(0.05)
    assert await wire("QRPOP", "foo", "COUNT", 2, "EX", 0) == [[b"a", b"x"], [b"b", b"y"]]


async def test_an_event_that_another_consumer_has_acknowledged(okq: Served, wire: Wire) -> None:
    other = await okq.connect()
    assert await wire("QLPUSH", "foo", "a", "x") == b"OK"
    assert await wire("QRPOP", "foo") == [b"a", b"x"]
    assert await other("QACK", "foo", "a") == 1
    assert await wire("QACK", "foo", "a") == 0


async def test_what_was_flushed_does_not_come_back(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "a", "x", "b", "y") == b"OK"
    assert await wire("QRPOP", "foo", "EX", "0.1") == [b"a", b"x"]
    assert await wire("QFLUSH", "foo") == b"OK"
    assert await wire("QSTATUS") == []
    assert await wire("QRPOP", "foo", "WAIT", "1.5") is None


async def test_registering_for_no_queue_ends_a_registration(wire: Wire) -> None:
    assert await wire("QREGISTER", "foo", "bar") == b"OK"
    assert await wire("QINFO", "foo") == [b"foo  total: 0  processing: 0  consumers: 1"]
    assert await wire("QREGISTER") == b"OK"
    assert await wire("QSTATUS", "foo", "bar") == [[b"foo", 0, 0, 0], [b"bar", 0, 0, 0]]
    assert await wire("QSTATUS") == []  # without events and consumers, a queue no longer exists


async def test_a_peek_consumes_nothing(wire: Wire) -> None:
    assert await wire("QLPUSH", "foo", "a", "x", "b", "y") == b"OK"
    for _ in range(2):
        assert await wire("QLPEEK", "foo") == [b"b", b"y"]
        assert await wire("QRPEEK", "foo") == [b"a", b"x"]
    assert await wire("QSTATUS", "foo") == [[b"foo", 2, 0, 0]]


async def test_consumers_that_follow_the_general_order_of_events(okq: Served, wire: Wire, db: redis.Redis) -> None:
    """Three consumers of three queues; each event fails once, and none is done twice."""
    tried: list[bytes] = []
    done: list[bytes] = []

    async def consume() -> None:
        one = await okq.connect()
        assert await one("QREGISTER", "foo", "bar", "baz") == b"OK"  # 1.
        while len(done) < 30:
            queue = await one("QNOTIFY", 1)  # 2.
            popped = await one("QRPOP", queue) if queue is not None else None  # 3.
            if popped is None:
                continue  # the timeout, or another consumer took it
            event, contents = popped
            assert contents == b"contents of " + event
            if event not in tried:  # 4.
                tried.append(event)
                assert await one("QACK", queue, event, "REDO") == 1
                continue
            done.append(event)
            assert await one("QACK", queue, event) == 1

    consuming = [asyncio.create_task(consume()) for _ in range(3)]
    for number in range(30):
        event = f"id-{number}"
        assert await wire("QLPUSH", ("foo", "bar", "baz")[number % 3], event, f"contents of {event}") == b"OK"
    async with asyncio.timeout(60):
        await asyncio.gather(*consuming)
    assert sorted(done) == sorted(tried) == sorted(b"id-%d" % number for number in range(30))
    await eventually(lambda: not db.keys("queue:*:items"))


def test_every_setting_is_an_option_a_variable_and_a_line_of_the_file() -> None:
    shown = Commands("")("events", "serve", "--help", env={"COLUMNS": "300"}).stdout.decode()
    example = Commands("")("events", "serve", "--example").stdout.decode()
    settings = re.findall(r"^#?([a-z-]+):", example, re.MULTILINE)
    assert {"listen-addr", "redis-addr", "redis-cluster", "bg-push-pool-size"} <= set(settings)
    for setting in settings:
        assert re.search(rf"--{setting}\b", shown), setting
        assert f"OKQ_{setting.upper().replace('-', '_')}" in shown, setting
