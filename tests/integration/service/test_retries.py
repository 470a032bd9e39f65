"""A retry waits on the server: no process holds the item meanwhile, and its end changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apressure import Backoff, EventQueue, Failure, QueueDoesNotExistError, Retry, serve
from apressure.service.service import Served
from apressure.testing import MemoryQueue, MemoryServer
from apressure.testing.contract import begun, fails, in_time
from tests.processes import start


@pytest.fixture
async def queue(url: str) -> AsyncIterator[EventQueue[bytes]]:
    async with EventQueue("jobs", url=url, max_attempts=3) as queue:
        await queue.create()
        yield queue
        with contextlib.suppress(QueueDoesNotExistError):
            await queue.delete()


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_a_failed_item_waits_on_the_server(queue: EventQueue[bytes], caplog: pytest.LogCaptureFixture) -> None:
    handled: list[bytes] = []

    async def handle(item: bytes) -> None:
        if item == b"bad":
            raise ValueError("no")
        handled.append(item)

    await queue.put_many([b"bad", b"1", b"2"])
    service = await begun(serve(handle, queue, retry=Backoff(60), signals=()))

    async def delayed() -> bool:
        statistics = await queue.statistics()
        return (statistics.delayed, statistics.in_flight, statistics.length, len(handled)) == (1, 0, 0, 2)

    await until(delayed)
    assert handled == [b"1", b"2"]  # they have overtaken it
    statistics = await queue.statistics()
    assert statistics.next_due is not None
    assert 20 < statistics.next_due <= 60
    service.cancel()
    await fails(asyncio.CancelledError, service)
    assert (await queue.statistics()).delayed == 1
    assert "failed at attempt 1 of 3: it goes back in" in caplog.text


async def test_attempts_and_errors_outlive_the_services(queue: EventQueue[bytes]) -> None:
    async def fail(item: bytes) -> None:
        raise ValueError(item.decode())

    await queue.put(b"bad")
    await queue.close()
    assert await in_time(serve(fail, queue, retry=Backoff(0.05, jitter=False), signals=())) == Served(0, 3)
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.attempts, letter.error) == (b"bad", 3, Failure("ValueError", "bad", 3))


async def test_a_handler_says_when_to_try_again(queue: EventQueue[bytes], caplog: pytest.LogCaptureFixture) -> None:
    calls: list[float] = []

    async def handle(_: bytes) -> None:
        calls.append(time.time())
        if len(calls) < 3:
            raise Retry("not yet", after=0.3 * len(calls))

    caplog.set_level(logging.INFO, "apressure")
    await queue.put(b"1")
    await queue.close()
    served = await in_time(serve(handle, queue, retry=Backoff(60), signals=()))
    assert (served.handled, served.failed) == (1, 2)
    assert calls[1] - calls[0] > 0.29
    assert calls[2] - calls[1] > 0.59
    asked = [record for record in caplog.records if "asked for a retry (not yet)" in record.getMessage()]
    assert [(record.levelno, record.exc_info) for record in asked] == [(logging.INFO, None)] * 2


async def test_a_retry_without_a_time_pauses_as_any_other(queue: EventQueue[bytes]) -> None:
    async def handle(_: bytes) -> None:
        raise Retry

    await queue.put(b"1")
    await queue.close()
    await in_time(serve(handle, queue, retry=Backoff(0.01), signals=()))
    (letter,) = await queue.dead_letters()
    assert letter.error is not None
    assert letter.error.type.endswith("Retry")


def test_a_retry_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(Retry("why", after=5.0)))
    assert (str(error), error.after) == ("why", 5.0)


@pytest.mark.parametrize(("after", "error"), [(-1, ValueError), ("1", TypeError), (float("nan"), ValueError)])
def test_a_retry_with_an_invalid_time_is_refused(after: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="after must be"):
        Retry(after=after)


@pytest.mark.parametrize(
    "options", [{"first": -1}, {"most": "1"}, {"factor": 0.5}, {"factor": "2"}, {"jitter": 1}, {"first": True}]
)
def test_an_invalid_backoff_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(options))} must be"):
        Backoff(**options)


def test_pauses_grow_up_to_a_limit() -> None:
    backoff = Backoff(first=1, most=10, factor=3, jitter=False)
    assert [backoff.pause(failures) for failures in (0, 1, 2, 3, 1000)] == [1, 3, 9, 10, 10]
    assert Backoff(first=5, most=2, jitter=False).pause(9) == 5
    for failures in range(4):
        assert backoff.pause(failures) / 2 <= Backoff(1, 10, 3).pause(failures) <= backoff.pause(failures)


async def test_a_retry_is_kept_when_the_service_ends(queue: EventQueue[bytes]) -> None:
    """A signal comes while the handler runs, which fails then."""
    stop, go = asyncio.Event(), asyncio.Event()

    async def handle(_: bytes) -> None:
        await go.wait()
        raise ValueError("no")

    await queue.put(b"1")
    service = await begun(serve(handle, queue, retry=Backoff(60), stop=stop, signals=()))
    await until(lambda: in_flight(queue, 1))
    stop.set()
    await asyncio.sleep(0.05)
    go.set()
    assert (await in_time(service)).failed == 1
    statistics = await queue.statistics()
    assert (statistics.delayed, statistics.in_flight) == (1, 0)


async def in_flight(queue: EventQueue[bytes], count: int) -> bool:
    return (await queue.statistics()).in_flight == count


async def test_in_order_the_others_wait(queue: EventQueue[bytes]) -> None:
    seen: list[bytes] = []

    async def handle(item: bytes) -> None:
        seen.append(item)
        if seen == [b"0"]:
            raise ValueError("once")

    await queue.put_many([b"0", b"1"])
    await queue.close()
    await in_time(serve(handle, queue, retry=Backoff(0.2), ordered=True, signals=()))
    assert seen == [b"0", b"0", b"1"]
    for options in ({"concurrency": 2}, {"batch": 2}, {"key": len}):
        await fails(ValueError, serve(handle, queue, ordered=True, **options))  # type: ignore[call-overload]


async def test_a_batch_that_failed_waits_as_a_whole(queue: EventQueue[bytes]) -> None:
    seen: list[list[bytes]] = []

    async def handle(items: list[bytes]) -> None:
        seen.append(items)
        if len(seen) == 1:
            raise ValueError("once")

    await queue.put_many([b"0", b"1", b"2"])
    await queue.close()
    await in_time(serve(handle, queue, batch=3, linger=1, retry=Backoff(0.1), signals=()))
    assert seen[0] == [b"0", b"1", b"2"]
    assert sorted(seen[1:]) == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.slow
async def test_a_kill_during_the_pause_changes_nothing(queue: EventQueue[bytes], url: str, tmp_path: Path) -> None:
    """The service is killed while its item waits for the retry: the next one gets it then, and not before."""
    program = tmp_path / "service.py"
    program.write_text(
        textwrap.dedent(f"""
            import asyncio
            from apressure import Backoff, EventQueue, serve

            async def handle(item):
                raise ValueError("no")

            async def main():
                queue = EventQueue("jobs", url={url!r}, max_attempts=3)
                await serve(handle, queue, retry=Backoff(1.5, jitter=False))

            asyncio.run(main())
        """)
    )
    await queue.put(b"1")
    begun_at = time.time()
    service = await start(sys.executable, str(program), stderr=subprocess.PIPE)

    async def delayed() -> bool:
        return (await queue.statistics()).delayed == 1

    await until(delayed)
    service.kill()
    await service.wait()
    assert (await queue.statistics()).in_flight == 0
    delivery = await in_time(queue.receive())
    assert time.time() - begun_at > 1.49
    assert (delivery.raw, delivery.attempts) == (b"1", 2)
    await delivery.ack()


async def test_a_unit_test_lets_the_time_of_a_retry_pass() -> None:
    server = MemoryServer()
    async with MemoryQueue("jobs", server=server) as queue:
        await queue.create()
        await queue.put(b"1")
        delivery = await queue.receive()
        await delivery.nack("later", delay=3600)
        server.advance(3600)
        assert (await in_time(queue.receive())).attempts == 2
