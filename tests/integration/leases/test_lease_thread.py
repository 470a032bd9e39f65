"""Leases are renewed while a handler blocks the event loop; nothing else keeps a lease that should end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from apressure import AsyncQueue, Client, Delivery, LeaseLostError, QueueInUseError
from apressure.embedded import EmbeddedServer
from apressure.pressure.engine.engine import Scripted
from tests import processes
from tests.integration.conftest import PATIENCE, Opener, eventually, in_time, outlived, renewed_while_blocked
from tests.integration.leases.test_leases import running_program
from tests.servers import admin

LEASE = "apressure:__pressure__:jobs:{}_lease"

HEAD = """
import asyncio, logging, os, re, sys, time
from apressure import AsyncQueue, LeaseLostError

logging.basicConfig(stream=sys.stdout, format="%(message)s")
url = sys.argv[1]

def block() -> None:
    print("2", flush=True)
    sys.stdin.readline()
"""
CONSUMER = (
    HEAD
    + """
async def main() -> None:
    async with AsyncQueue("jobs", url=url, client_id="victim") as queue:
        try:
            async with queue.consumer(lease=float(sys.argv[2]), max_hold=float(sys.argv[3])) as consumer:
                async for item in consumer:
                    block()
                    break
        except LeaseLostError:
            print("lost", flush=True)
        else:
            print("kept", flush=True)

asyncio.run(main())
"""
)
MEMBER = CONSUMER.replace("queue.consumer(", "queue.consumer(shared=True, ")
RECEIVER = (
    HEAD
    + """
async def main() -> None:
    async with AsyncQueue("jobs", url=url, client_id="victim") as queue:
        try:
            delivery = await queue.receive(lease=float(sys.argv[2]), max_hold=float(sys.argv[3]))
            block()
            await delivery.ack()
        except LeaseLostError:
            print("lost", flush=True)
        else:
            print("kept", flush=True)

asyncio.run(main())
"""
)
PRODUCER = (
    HEAD
    + """
async def main() -> None:
    async with AsyncQueue("jobs", url=url, client_id="victim") as queue:
        try:
            async with queue.producer(
                exclusive=True, close=False, lease=float(sys.argv[2]), max_hold=float(sys.argv[3])
            ) as producer:
                block()
                await producer.put(b"from the victim")
        except LeaseLostError:
            print("lost", flush=True)
        else:
            print("kept", flush=True)

asyncio.run(main())
"""
)
PROGRAMS = {"consumer": CONSUMER, "receive": RECEIVER, "producer": PRODUCER}
FORKS = (
    HEAD
    + """
async def main() -> None:
    async with AsyncQueue("jobs", url=url, client_id="victim") as queue:
        await queue.receive(lease=1)
        time.sleep(1)  # the thread has a connection now
        child = os.fork()
        if not child:
            time.sleep(600)
        print(child, flush=True)
        block()

asyncio.run(main())
"""
)
LEFT_BY_RUN = (
    HEAD
    + """
async def main() -> None:
    queue = AsyncQueue("jobs", url=url, client_id="victim")
    await queue.receive(lease=1)
    time.sleep(1)

asyncio.run(main())
block()
"""
)
CLOSED = (
    HEAD
    + """
async def main() -> None:
    queue = AsyncQueue("jobs", url=url, client_id="victim")
    await queue.receive(lease=1)
    time.sleep(1)

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
block()
"""
)
PAUSED = CLOSED.replace("loop.close()\n", "")
HOLDS_THE_GIL = (
    HEAD
    + """
def catastrophe() -> None:
    text = "a" * 18
    while True:
        began = time.perf_counter()
        re.match("(a+)+$", text + "b")
        if time.perf_counter() - began > 1.5:
            return
        text += "a"

async def main() -> None:
    async with AsyncQueue("jobs", url=url, client_id="victim") as queue:
        try:
            async with queue.consumer(lease=0.5) as consumer:
                async for item in consumer:
                    print("2", flush=True)
                    catastrophe()
        except LeaseLostError:
            print("lost", flush=True)

asyncio.run(main())
"""
)


def go_on(process: subprocess.Popen[str]) -> str:
    """Unblock a client; returns what it writes until it ends."""
    assert process.stdin is not None
    output, _ = process.communicate("\n", timeout=4 * PATIENCE)
    return output


def lost_and_logged(process: subprocess.Popen[str]) -> bool:
    """Unblock a client; returns whether it ends since its lease was lost, and logs only what comes of that."""
    *logged, last = go_on(process).splitlines()
    return last == "lost" and all("lease" in line or "acknowledgement" in line for line in logged)


def deadline(db: redis.Redis, role: str = "consumer") -> int:
    return int(db.hget(LEASE.format(role), "deadline") or 0)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "apressure-leases"]


@contextlib.contextmanager
def thawed_at_the_end(pid: int) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def take(queue: AsyncQueue[bytes], role: str, timeout: float | None) -> Delivery[bytes] | None:
    """Wait for the role that a victim has."""
    if role == "producer":
        await queue.put(b"mine", timeout=timeout)
        return None
    return await queue.receive(timeout=timeout)


@pytest.mark.parametrize("role", PROGRAMS)
async def test_a_handler_that_blocks_the_event_loop_for_longer_than_its_lease_keeps_it(
    open_queue: Opener, url: str, db: redis.Redis, role: str
) -> None:
    queue = await open_queue()
    if role != "producer":
        await queue.put(b"1")
    with running_program(PROGRAMS[role], url, "2", "600") as process:
        await outlived(db, "producer" if role == "producer" else "consumer")
        with pytest.raises(QueueInUseError):
            await take(queue, role, timeout=0)
        assert go_on(process).split() == ["kept"]
    statistics = await queue.statistics()
    assert (statistics.produced_messages, statistics.length) == ((1, 1) if role == "producer" else (1, 0))
    assert statistics.consumed_messages == (0 if role == "producer" else 1)


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("role", PROGRAMS)
async def test_a_blocked_process_that_is_stopped_or_killed_loses_its_lease(
    open_queue: Opener, url: str, db: redis.Redis, role: str, stopped: bool
) -> None:
    queue = await open_queue()
    if role != "producer":
        await queue.put(b"1")
    with running_program(PROGRAMS[role], url, "1", "600") as process, thawed_at_the_end(process.pid):
        holder = "producer" if role == "producer" else "consumer"
        before = deadline(db, holder)
        await eventually(lambda: deadline(db, holder) != before)  # the thread has a connection of its own
        os.kill(process.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
        delivery = await in_time(take(queue, role, timeout=None))
        if delivery is not None:
            assert delivery.attempts == 2
            await delivery.ack()
        if stopped:
            os.kill(process.pid, signal.SIGCONT)
            assert lost_and_logged(process)
    assert (await queue.statistics()).produced_messages == 1


async def test_a_forked_child_does_not_keep_the_lease_of_its_parent(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    children: list[int] = []

    with processes.Popen(
        [sys.executable, "-c", FORKS, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            children.append(int(process.stdout.readline()))
            process.kill()
            assert (await in_time(queue.receive())).attempts == 2
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
            process.kill()


@pytest.mark.parametrize("program", [LEFT_BY_RUN, CLOSED, PAUSED], ids=["run", "closed", "paused"])
async def test_an_event_loop_that_has_ended_lets_go(open_queue: Opener, url: str, program: str) -> None:
    queue = await open_queue()
    await queue.put(b"1")
    with running_program(program, url) as process:
        delivery = await in_time(queue.receive())
        assert delivery.attempts == 2
        await delivery.ack()
        go_on(process)  # the interpreter ends, and does not hang
        assert process.returncode == 0


@pytest.mark.slow
async def test_code_that_holds_the_gil_stops_the_thread_too(open_queue: Opener, url: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    with running_program(HOLDS_THE_GIL, url) as process:
        deliveries = [await in_time(queue.receive()) for _ in range(2)]
        assert [(delivery.item, delivery.attempts) for delivery in deliveries] == [(b"1", 2), (b"2", 1)]
        for delivery in deliveries:
            await delivery.ack()
        assert await asyncio.to_thread(lost_and_logged, process)
    assert (await queue.statistics()).consumed_messages == 2


async def test_a_member_that_blocks_keeps_its_share_and_a_dead_one_is_healed_meanwhile(
    open_queue: Opener, url: str, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])

    def waiting() -> list[bytes]:
        return db.lrange("__pressure__:jobs", 0, -1)

    with running_program(MEMBER, url, "2", "600") as blocked, running_program(MEMBER, url, "2", "600") as dying:
        assert not waiting()
        dying.kill()
        # No other client works on the queue: the thread of the one that is blocked gives the message back.
        await asyncio.gather(eventually(lambda: len(waiting()) == 1), outlived(db, "consumer"))
        assert len(waiting()) == 1
        assert go_on(blocked).split() == ["kept"]
    statistics = await queue.statistics()
    assert (statistics.length, statistics.in_flight, statistics.consumed_messages) == (1, 0, 1)
    delivery = await in_time(queue.receive())
    assert delivery.attempts == 2
    await delivery.ack()


async def test_a_renewal_of_a_member_that_comes_too_late_changes_nothing(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    other = await open_queue(create=False)
    assert isinstance(queue._engine, Scripted)
    steps = queue._engine.steps

    async def renew(token: bytes, milliseconds: int) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        steps.renew_shared(token, milliseconds, answer.set_result)
        return await in_time(answer)

    def until(token: bytes) -> int:
        return int(db.hget(LEASE.format("consumer"), b"member:" + token).partition(b":")[0])

    async with queue.consumer(shared=True, lease=60) as consumer, other.consumer(shared=True, lease=60):
        assert consumer._lease is not None
        token = consumer._lease.token
        before = db.hgetall(LEASE.format("consumer"))
        assert isinstance(await renew(b"another", 90_000), LeaseLostError)
        assert db.hgetall(LEASE.format("consumer")) == before
        earlier = until(token)
        assert await renew(token, 10) == 1  # it never gets shorter
        assert until(token) >= earlier
        assert await renew(token, 90_000) == 1
        assert until(token) > earlier
        assert deadline(db) >= until(token)
    assert isinstance(await renew(token, 90_000), LeaseLostError)
    assert not db.exists(LEASE.format("consumer"))


@pytest.mark.parametrize("role", ["consumer", "producer"])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_the_thread_renews_while_the_event_loop_is_blocked(make_server: Any, role: str, kind: str) -> None:
    server: EmbeddedServer = make_server()
    url = server.url if kind == "tcp" else f"unix://{server.socket_path}"
    with admin(server) as db:
        async with AsyncQueue("jobs", url=url) as queue:
            await queue.create()
            await queue.put(b"1")
            if role == "consumer":
                async with queue.consumer(lease=1) as consumer:
                    assert await anext(consumer) == b"1"
                    renewed_while_blocked(db, LEASE.format("consumer"))
                    renewed_while_blocked(db, LEASE.format("consumer"))
            else:
                async with queue.producer(exclusive=True, lease=1):
                    renewed_while_blocked(db, LEASE.format(role))
                    renewed_while_blocked(db, LEASE.format(role))
            assert deadline(db, role) == 0


async def test_what_the_thread_confirmed_counts_when_the_event_loop_goes_on(
    open_queue: Opener, db: redis.Redis
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    async with queue.consumer(lease=2, prefetch=2) as consumer:
        assert await anext(consumer) == b"1"
        lease = consumer._lease
        assert lease is not None
        before = lease.term.certain_until
        renewed_while_blocked(db, LEASE.format("consumer"))
        until = time.monotonic() + PATIENCE
        while lease.term.certain_until <= before:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert await anext(consumer) == b"2"


async def test_a_renewal_that_comes_too_late_changes_nothing(open_queue: Opener, db: redis.Redis) -> None:
    queue = await open_queue()
    assert isinstance(queue._engine, Scripted)
    steps = queue._engine.steps

    async def renew(token: bytes, milliseconds: int) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        steps.renew("consumer", token, milliseconds, answer.set_result)
        return await in_time(answer)

    async with queue.consumer(lease=60) as consumer:
        lease = consumer._lease
        assert lease is not None
        before = db.hgetall(LEASE.format("consumer"))
        assert isinstance(await renew(b"another", 90_000), LeaseLostError)
        assert db.hgetall(LEASE.format("consumer")) == before
        assert await renew(lease.token, 10) == 1  # it never gets shorter
        assert deadline(db) >= int(before[b"deadline"])
        assert await renew(lease.token, 90_000) == 1
        assert deadline(db) > int(before[b"deadline"])
    assert isinstance(await renew(lease.token, 90_000), LeaseLostError)
    assert not db.exists(LEASE.format("consumer"))
    lease.renewal.begin()  # as when messages come while the block is being left
    assert lease.renewal not in queue.client.renewer


async def test_short_leases_need_no_connection_and_a_closed_client_leaves_no_thread(
    url: str, db: redis.Redis, open_queue: Opener
) -> None:
    await open_queue()

    def connections() -> int:
        return len(db.client_list())

    others = connections()
    before = threads()
    async with Client(url) as client, AsyncQueue("jobs", client=client) as queue:
        await queue.put(b"1")
        async with queue.consumer() as consumer:
            await anext(consumer)
        assert connections() == others + 1
        assert len(threads()) == len(before) + 1
        async with queue.consumer(lease=1), queue.producer(exclusive=True, close=False, lease=1):
            renewed_while_blocked(db, LEASE.format("consumer"), LEASE.format("producer"))
            assert connections() == others + 2
            assert len(threads()) == len(before) + 1
    await eventually(lambda: threads() == before)
    await eventually(lambda: connections() == others)


async def test_one_thread_and_connection_renew_all_leases_of_a_client_and_replace_a_lost_connection(
    url: str, db: redis.Redis
) -> None:
    names = [f"jobs{number}" for number in range(10)]
    before, others = threads(), {each["id"] for each in db.client_list()}
    async with Client(url) as client, contextlib.AsyncExitStack() as stack:
        for name in names:
            queue = AsyncQueue(name, client=client)
            await queue.create()
            await stack.enter_async_context(queue.consumer(lease=2))
        keys = [LEASE.format("consumer").replace("jobs", name) for name in names]
        renewed_while_blocked(db, *keys)
        assert len(threads()) == len(before) + 1
        ours = [each for each in db.client_list() if each["id"] not in others]
        assert len(ours) == 2  # that of the commands, and that of the renewals
        db.client_kill_filter(_type="normal", skipme=True)  # all connections of the client, while its loop is blocked
        renewed_while_blocked(db, *keys)
        await stack.aclose()
        for name in names:
            await AsyncQueue(name, client=client).delete()
