"""What watches all queues: it finds them, says how they are, keeps their history, and lives through restarts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, EventQueue, FileQueue, TaskQueue
from apressure.core.history import Minute
from apressure.embedded import EmbeddedServer
from apressure.monitor import recent
from apressure.monitor.finding import Finder
from apressure.monitor.monitor import Monitor, Seen
from apressure.monitor.search import QueuePattern
from apressure.telemetry.states import Severity
from tests.integration.acl_roles import PASSWORD, allow, documented
from tests.servers import admin, frozen

Make = Callable[..., EmbeddedServer]


async def until(monitor: Monitor, condition: Callable[[dict[str, Seen]], bool]) -> dict[str, Seen]:
    """Wait until what a monitor has seen is so; return it by address."""
    async with asyncio.timeout(60):
        while not condition(found := {str(one.address): one for one in monitor.seen()}):
            monitor.reader.looked.clear()
            await monitor.reader.looked.wait()
    return found


def words(seen: Seen) -> list[str]:
    return [state.name for state in seen.sample.states]


async def test_queues_of_all_kinds_are_found_and_described(make_server: Make, tmp_path: Path) -> None:
    url = make_server().url
    async with Client(url) as client:
        orders = AsyncQueue("orders", client=client)
        await orders.create(bound=2)
        await orders.put_many([b"1", b"2"])
        await EventQueue("clicks", client=client).put(b"x")
        reports = TaskQueue("reports", client=client)
        await reports.create()
        await reports.pause()
        async with FileQueue("spool", directory=tmp_path) as files:
            await files.put(b"x")
        async with Monitor("*", f"files:{tmp_path}/*", "missing", url=url, interval=0.1) as monitor:
            found = await until(monitor, lambda found: len(found) == 5)
            assert {address: words(seen) for address, seen in found.items()} == {
                "orders": ["full", "unconsumed"], "events:clicks": ["unconsumed"], "tasks:reports": ["paused"],
                f"files:{tmp_path}/spool": ["open"], "missing": ["missing"],
            }  # fmt: skip
            assert [seen.state.severity for seen in monitor.seen()] == [Severity.WARNING] * 4 + [Severity.GOOD]
            assert monitor.failures() == []
            assert await orders.get() == b"1"
            await until(monitor, lambda found: words(found["orders"]) == ["unconsumed"])
            await reports.resume()
            await until(monitor, lambda found: words(found["tasks:reports"]) == ["open"])


async def test_new_queues_are_found_and_those_that_are_gone_are_forgotten(make_server: Make) -> None:
    url = make_server().url
    async with Client(url) as client, Finder(url) as finder:
        shown: list[str] = []

        class Shown:
            def add(self, queue: Any) -> None:
                shown.append(queue.name)

            def discard(self, queue: Any) -> None:
                shown.remove(queue.name)

        pattern = QueuePattern("o*", Shown(), finder)
        await pattern.search()
        assert shown == []
        for name in ("orders", "other", "mails"):
            await AsyncQueue(name, client=client).create()
        await pattern.search()
        assert sorted(shown) == ["orders", "other"]
        await AsyncQueue("other", client=client).delete()
        await pattern.search()
        assert shown == ["orders"]
        assert list(pattern.queues) == [finder.read("orders")]
        await pattern.aclose()
        with pytest.raises(ValueError, match="does not list its queues"):
            QueuePattern("okq://127.0.0.1:1/*", Shown(), finder)


async def test_two_searches_at_a_time_find_each_queue_once(make_server: Make) -> None:
    url = make_server().url
    async with Client(url) as client:
        for number in range(100):
            await AsyncQueue(f"queue-{number}", client=client).create()
    async with Monitor(url=url, interval=0.05) as monitor:
        await asyncio.gather(*(monitor.look() for _ in range(3)))
        assert len(monitor.reader.samplers) == 101  # with the pattern
        assert len(monitor.seen()) == 100


async def test_a_server_that_hangs_keeps_no_other_from_its_looks(make_server: Make) -> None:
    hanging, good = make_server(), make_server()
    async with AsyncQueue("orders", url=good.url) as orders:
        await orders.create()
    names = [f"{hanging.url}/queue-{number}" for number in range(100)]
    with frozen(hanging):
        async with Monitor(*names, f"{good.url}/orders", interval=0.2, timeout=60.0) as monitor:
            await until(monitor, lambda found: "orders" in found and len(found["orders"].sampler.minutes.kept) >= 0)
            first = next(one for one in monitor.seen() if one.address.name == "orders").sample
            await until(monitor, lambda found: found["orders"].sample.at > first.at + 1)


async def test_a_writer_whose_clock_is_fast_blocks_nobody(make_server: Make) -> None:
    server = make_server()
    async with AsyncQueue("orders", url=server.url) as orders:
        await orders.create()
        now = int(time.time()) // 60 * 60
        ahead, current = Minute(now + 86_400, 1, 0, 0, 0, 0, 0), Minute(now, 2, 0, 0, 0, 0, 0)
        assert not await orders.write_history(ahead)
        with admin(server) as db:
            db.rpush("apressure:__pressure__:orders:history", ahead.encode())
        assert await orders.write_history(current)
        assert await orders.history() == [current]


async def test_a_history_is_not_read_again_for_each_page(make_server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    minute = Minute(int(time.time()) // 60 * 60 - 600, 2, 0, 0, 0, 0, 0)
    async with AsyncQueue("orders", url=server.url) as orders:
        await orders.create()
        await orders.write_history(minute)
    async with Monitor("orders", url=server.url, interval=60.0) as monitor:
        seen = (await until(monitor, lambda found: "orders" in found))["orders"]
        monkeypatch.setattr(recent, "SECONDS", 3600.0)
        assert await monitor.minutes(seen) == [minute]
        with admin(server) as db:
            assert db.delete("apressure:__pressure__:orders:history")
        assert await monitor.minutes(seen) == [minute]
        monkeypatch.setattr(recent, "SECONDS", 0.0)
        assert await monitor.minutes(seen) == []


async def test_a_server_that_restarts_is_seen_again(make_server: Make, tmp_path: Path) -> None:
    server = make_server("valkey", directory=tmp_path, config={"appendonly": True, "appendfsync": "always"})
    async with AsyncQueue("orders", url=server.url) as orders:
        await orders.create()
    async with Monitor("*", "orders", url=server.url, interval=0.1, timeout=1.0) as monitor:
        await until(monitor, lambda found: "orders" in found and words(found["orders"]) == ["open"])
        await asyncio.to_thread(server.stop)
        await until(monitor, lambda found: words(found["orders"]) == ["unreadable"])
        await asyncio.to_thread(server.start)
        await until(monitor, lambda found: words(found["orders"]) == ["open"])


async def test_a_search_that_fails_is_told_and_tried_again(make_server: Make, tmp_path: Path) -> None:
    server = make_server("valkey", directory=tmp_path)
    url = server.url
    await asyncio.to_thread(server.stop)
    async with Monitor(url=url, interval=0.1, timeout=1.0) as monitor:
        async with asyncio.timeout(60):
            while not monitor.failures():
                await asyncio.sleep(0.05)
        assert monitor.failures()[0].startswith("*: ")
        assert monitor.seen() == []
        await asyncio.to_thread(server.start)
        async with AsyncQueue("orders", url=url) as orders:
            await orders.create()
        await until(monitor, lambda found: "orders" in found)
        assert monitor.failures() == []


@contextlib.asynccontextmanager
async def fast_minutes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Have time run so that each tenth of a second is a minute for those who look."""
    start, real = time.time(), time.time
    monkeypatch.setattr("apressure.telemetry.sampler.time.time", lambda: start - 86_400 + (real() - start) * 600)
    yield
    monkeypatch.undo()


async def test_minutes_are_written_for_all_and_read_by_others(
    make_server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    async with AsyncQueue("orders", url=server.url) as orders, fast_minutes(monkeypatch):
        await orders.create()
        await orders.put_many([b"1", b"2", b"3"])
        async with Monitor("orders", "idle", url=server.url, interval=0.02) as monitor:
            async with asyncio.timeout(60):
                while len(await orders.history()) < 3:
                    await asyncio.sleep(0.05)
            (seen, *_) = [seen for seen in monitor.seen() if seen.address.name == "orders"]
            known = await monitor.minutes(seen)
        minutes = await orders.history()
        assert {minute[1:5] for minute in minutes[1:]} == {(3, 0, 0, 0)}  # the first may have been watched late
        assert {minute.time for minute in known} >= {minute.time for minute in minutes[:3]}
        with admin(server) as db:
            key = "apressure:__pressure__:orders:history"
            assert db.keys("apressure:*:history") == [key.encode()]  # nothing of the one that does not exist
            assert 0 < db.pttl(key) <= 25 * 3600 * 1000
            assert Minute.decode(db.lindex(key, 0)) == minutes[0]
            db.rpush(key, b"\xff not a record", b"")
        assert await orders.history() == minutes
        with admin(server) as db:
            db.delete(key)
            db.set(key, "another program's")
        async with Monitor("orders", url=server.url, interval=0.02) as monitor:
            await until(monitor, lambda found: len(found) == 1 and len(found["orders"].sampler.minutes.kept) > 2)
            (seen,) = monitor.seen()
            assert await monitor.minutes(seen) == list(seen.sampler.minutes.kept)


async def test_a_user_that_may_only_look_watches_and_writes_nothing(
    make_server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    async with AsyncQueue("orders", url=server.url) as orders:
        await orders.create()
        await orders.put(b"1")
        await orders.every("tick", 3600.0, b"1")
    url = allow(server, "monitor", documented(plain=False)["monitor"])
    async with fast_minutes(monkeypatch), Monitor("orders", url=url, interval=0.02) as monitor:
        found = await until(
            monitor, lambda found: "orders" in found and len(found["orders"].sampler.minutes.kept) > 5
        )  # fmt: skip
        assert words(found["orders"]) == ["unconsumed"]
        assert await monitor.minutes(found["orders"])
    with admin(server) as db:
        assert db.keys("apressure:*:history") == []
        denied = [entry["object"] for entry in db.acl_log()]
    assert PASSWORD in url
    assert sum("rpush" in str(one) or "lindex" in str(one) for one in denied) <= 1


async def test_scans_leave_most_of_the_time_to_others(make_server: Make) -> None:
    server = make_server()
    with redis.Redis.from_url(server.url) as db, db.pipeline(transaction=False) as pipeline:
        for number in range(5000):
            pipeline.set(f"other:{number}", "")
        pipeline.execute()
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    async with Finder(server.url, share=0.1) as finder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("apressure.connection.wire.reconnecting.asyncio.sleep", sleep)
            assert await finder.find("queue:*") == []
    assert len(pauses) >= 4
    assert min(pauses) > 0
