"""An okq works on the same queues: what it leaves when it dies is mended, and what it puts back wakes a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
import redis

from apressure import Client
from apressure.embedded import EmbeddedServer
from apressure.events.engine.steps import EventSteps, Mender
from apressure.events.server import mending, queues
from tests.integration.conftest import eventually
from tests.integration.event_server.conftest import Serve, Served, Wire
from tests.integration.event_server.test_places import rules
from tests.okq import Okq
from tests.servers import SERVERS, admin

LONG = 80  # seconds: a wait that reaches it has missed its event, and the test fails


class Died(Exception):
    """The okq dies here."""


@pytest.fixture
def okq_beside(db: redis.Redis) -> Okq:
    return Okq(db)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks at all queues more often than every 10 seconds."""
    monkeypatch.setattr(mending, "LOOK", 0.2)


@pytest.fixture
def half_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other look at queues that clients listen to, every 10 seconds, does not come: it would wake some of them."""
    monkeypatch.setattr(queues, "REFRESH", 600.0)


def dies_in_a_push(okq: Okq, queue: str, event: str = "a") -> None:
    """Store the contents of an event, and die before its id is pushed."""

    def hook(command: str) -> None:
        if command == "push LPUSH":
            raise Died

    okq.hook = hook
    with pytest.raises(Died):
        okq.push(queue, event, b"x")
    okq.hook = lambda _: None


# An okq that dies between two commands


async def test_what_an_okq_left_is_found_at_the_start(
    quick: None, serve: Serve, okq_beside: Okq, db: redis.Redis
) -> None:
    """No client uses the queue."""
    okq_beside.push("foo", "whole", b"1")
    dies_in_a_push(okq_beside, "foo")
    dies_in_a_push(okq_beside, "bar")
    wire = await (await serve()).connect()
    await eventually(lambda: db.llen("queue:{foo}") == 2 and db.llen("queue:{bar}") == 1)
    assert await wire("QINFO", "bar") == [b"bar  total: 1  processing: 0  consumers: 0"]
    assert await wire("QRPOP", "foo", "COUNT", 5, "EX", 0) == [[b"a", b"x"], [b"whole", b"1"]]
    assert await wire("QRPOP", "bar", "EX", 0) == [b"a", b"x"]


@pytest.mark.parametrize(
    "used", [("QINFO", "foo"), ("QLPUSH", "foo", "b", "y"), ("QRPOP", "foo")], ids=lambda one: one[0]
)
async def test_a_queue_that_is_served_is_mended(
    quick: None, wire: Wire, okq_beside: Okq, db: redis.Redis, used: tuple[str, ...]
) -> None:
    """The okq dies while the server runs, and nobody is registered or waits."""
    await wire(*used)
    dies_in_a_push(okq_beside, "foo")
    assert await wire("QLPUSH", "foo", "a", "x") == "ERR duplicate event a"
    await eventually(lambda: okq_beside.status("foo")[0] == 1 + (used[0] == "QLPUSH"))
    assert await wire("QRPOP", "foo", "EX", 0) == [b"a", b"x"]


@pytest.mark.parametrize("command", [("QRPOP", "foo", "WAIT", LONG), ("QNOTIFY", LONG)], ids=lambda one: one[0])
async def test_what_is_mended_wakes_those_who_wait(
    quick: None, wire: Wire, okq_beside: Okq, command: tuple[str | int, ...]
) -> None:
    assert await wire("QREGISTER", "foo") == b"OK"
    wire.send(*command)
    dies_in_a_push(okq_beside, "foo")
    assert await wire.reply() in (b"foo", [b"a", b"x"])


async def test_an_okq_that_dies_again_and_again(quick: None, wire: Wire, okq_beside: Okq, db: redis.Redis) -> None:
    """Each of its events is delivered once, also if it dies while it acknowledges."""
    assert await wire("QREGISTER", "foo") == b"OK"
    for number in range(5):
        dies_in_a_push(okq_beside, "foo", str(number))
        assert await wire("QRPOP", "foo", "EX", 0, "WAIT", LONG) == [b"%d" % number, b"x"]
    assert not db.exists("queue:{foo}", "queue:{foo}:claimed", "queue:{foo}:items")


async def test_a_push_that_is_under_way_is_left_alone(url: str, okq_beside: Okq, db: redis.Redis) -> None:
    """One look does not tell a push under way from an okq that has died. The second one in a row does."""
    async with Client(url) as client:
        mender = Mender(EventSteps(client, "foo"))
        dies_in_a_push(okq_beside, "foo")
        assert (await mender.look(), mender.suspicious, db.llen("queue:{foo}")) == (0, True, 0)
        db.lpush("queue:{foo}", "a")  # it was under way
        assert (await mender.look(), mender.suspicious) == (0, False)
        dies_in_a_push(okq_beside, "foo", "b")
        assert (await mender.look(), mender.suspicious) == (0, True)
        assert (await mender.look(), mender.suspicious) == (1, False)
        assert db.lrange("queue:{foo}", 0, -1) == [b"a", b"b"]
        assert await mender.look() == 0
        await mender.steps.delete()


async def test_a_queue_that_is_torn_is_not_forgotten(
    url: str, okq_beside: Okq, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets queues that nobody uses, when it has very many of them."""
    monkeypatch.setattr(queues, "KEPT", 3)
    async with Client(url) as client:
        served = queues.Queues(client)
        whole, torn = served[b"whole"], served[b"foo"]
        dies_in_a_push(okq_beside, "foo")
        assert [await one.mender.look() for one in (whole, torn)] == [0, 0]
        for number in range(10):
            served[b"other-%d" % number]
        assert served[b"foo"] is torn
        assert served[b"whole"] is not whole
        assert await torn.mender.look() == 1
        for number in range(10):
            served[b"another-%d" % number]
        assert served[b"foo"] is not torn
        await torn.steps.delete()


async def test_queues_that_cannot_be_mended_are_told_of_once_a_round(
    quick: None, serve: Serve, okq_beside: Okq, db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of another type keeps no other queue from being mended. A queue that nobody uses is told of once."""
    caplog.set_level(logging.INFO, "apressure.events.server")
    for name in ("one", "two"):
        db.hset(f"queue:{{{name}}}:items", "a", "x")
        db.set(f"queue:{{{name}}}:claimed", "no list")
    dies_in_a_push(okq_beside, "foo")
    await serve()

    def told(message: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.msg == message]

    await eventually(lambda: told("mended what an okq had left"))
    assert [(one.queue, one.events) for one in told("mended what an okq had left")] == [("foo", 1)]  # type: ignore[attr-defined]
    assert [(one.queue, one.queues) for one in told("queues cannot be mended")] == [("one", 2)]  # type: ignore[attr-defined]


async def test_mending_goes_on_after_redis_was_gone(quick: None, serve: Serve, own: EmbeddedServer) -> None:
    served: Served = await serve(url=own.url)
    wire = await served.connect()
    with redis.Redis.from_url(own.url) as direct:
        assert await wire("QINFO", "foo") == [b"foo  total: 0  processing: 0  consumers: 0"]
        own.stop()
        own.start()
        dies_in_a_push(Okq(direct), "foo")
        await eventually(lambda: direct.llen("queue:{foo}") == 1)
        assert await wire("QRPOP", "foo", "EX", 600) == [b"a", b"x"]
    await served.stop()  # before Redis, which ends before the fixture


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_user_of_the_docs_may_mend(
    quick: None, serve: Serve, make_server: Callable[..., EmbeddedServer], kind: str
) -> None:
    server = make_server(kind)
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", *rules())
        dies_in_a_push(Okq(client), "foo")
        served: Served = await serve(url=server.url.replace("redis://", "redis://okq:secret@"))
        await eventually(lambda: client.llen("queue:{foo}") == 1)
        await served.stop()
        assert not [entry for entry in client.acl_log() if entry["object"] != "info"]


# An okq that puts an event back, and publishes nothing


async def wait_until_they_wait(served: Served, db: redis.Redis) -> None:
    """Wait until the clients that have sent a command have found no event.

    Their looks at the queue are before the last of these in the server's connection to Redis.
    """
    await eventually(lambda: db.pubsub_numsub("queue:{foo}")[0][1] == 1)
    wire = await served.connect()
    for _ in range(5):
        assert await wire("QRPEEK", "foo") is None


@pytest.mark.parametrize("how", ["redo", "sweep"])
@pytest.mark.parametrize("command", [("QRPOP", "foo", "WAIT", LONG), ("QNOTIFY", LONG)], ids=lambda one: one[0])
async def test_what_an_okq_puts_back_wakes_those_who_wait(
    half_seconds_only: None, okq: Served, okq_beside: Okq, db: redis.Redis, command: tuple[str | int, ...], how: str
) -> None:
    wire = await okq.connect()
    okq_beside.push("foo", "a", b"x")
    assert okq_beside.pop("foo", 600) == ("a", b"x")
    assert await wire("QREGISTER", "foo") == b"OK"
    wire.send(*command)
    await wait_until_they_wait(okq, db)
    if how == "redo":
        assert okq_beside.redo("foo", "a") == 1
    else:
        db.delete("queue:{foo}:lock:a")  # its time is over
        assert okq_beside.restore("foo") == 1
    assert await wire.reply() in (b"foo", [b"a", b"x"])


async def test_all_who_wait_wake_when_an_okq_puts_several_events_back(
    half_seconds_only: None, okq: Served, okq_beside: Okq, db: redis.Redis
) -> None:
    events = [f"{number}" for number in range(4)]
    for event in events:
        okq_beside.push("foo", event, b"x")
        okq_beside.pop("foo", 600)
    popping = [await okq.connect() for _ in events]
    notified = [await okq.connect() for _ in range(3)]
    for one in popping:
        one.send("QRPOP", "foo", "WAIT", LONG)
    for one in notified:
        assert await one("QREGISTER", "foo") == b"OK"
        one.send("QNOTIFY", LONG)
    await wait_until_they_wait(okq, db)
    for event in events:
        assert okq_beside.redo("foo", event) == 1
    assert [await one.reply() for one in notified] == [b"foo"] * 3
    assert sorted([await one.reply() for one in popping]) == [[event.encode(), b"x"] for event in events]


async def test_events_of_a_paused_queue_wake_nobody(
    half_seconds_only: None, url: str, wire: Wire, okq_beside: Okq, db: redis.Redis
) -> None:
    """The server looks several times meanwhile, and goes on looking when the pause ends."""

    def looks() -> int:
        found: int = db.info("commandstats").get("cmdstat_llen", {"calls": 0})["calls"]
        return found

    async with Client(url) as client:
        steps = EventSteps(client, "foo")
        okq_beside.push("foo", "a", b"x")
        okq_beside.pop("foo", 600)
        await steps.pause(True)
        assert await wire("QREGISTER", "foo") == b"OK"
        wire.send("QNOTIFY", LONG)
        assert okq_beside.redo("foo", "a") == 1
        before = looks()
        await eventually(lambda: looks() > before + 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await wire.reply()
        await steps.pause(False)
        assert await wire.reply() == b"foo"
