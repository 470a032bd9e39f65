"""The released vsqs 0.3 at the other end of the same directory, in both roles, at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import FileDelivery, FileQueue, QueueEmptyError, QueueFullError
from tests.integration.files.conftest import files
from tests.vsqs import Vsqs

pytest.importorskip("vsqs", reason="vsqs 0.3")


async def aside(call: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(call, *arguments)


@pytest.mark.parametrize("notify", [None, False])
async def test_each_gets_what_the_other_publishes(tmp_path: Path, notify: bool | None) -> None:
    with Vsqs(tmp_path, "orders") as theirs:
        async with FileQueue(tmp_path / "orders", unit="us", notify=notify, poll_interval=0.05) as ours:
            their_id = theirs("publish", "a")
            our_id = await ours.put(b"b")
            assert int(their_id) < int(our_id)
            assert len(their_id) == len(our_id) == 16
            message = await ours.receive(timeout=5)
            assert (message.id, message.raw) == (their_id, b"a")
            assert theirs("receive") == [our_id, "b"]
            seen = await ours.statistics()
            assert (seen.length, seen.in_flight) == (0, 2)
            assert theirs("size") == 2
            await message.ack()
            theirs("delete", our_id)
            assert files(ours) == []


async def test_each_wakes_the_other(tmp_path: Path) -> None:
    with Vsqs(tmp_path, "orders") as theirs:
        async with FileQueue(tmp_path / "orders", unit="us") as ours:
            receiving = asyncio.create_task(ours.receive(timeout=20))
            await asyncio.sleep(0.1)
            theirs("publish", "a")
            await (await receiving).ack()
            theirs.ask("receive", 10, 20)
            await asyncio.sleep(0.1)
            await ours.put(b"b")
            assert (await aside(theirs.answer))[1] == "b"


async def test_the_bound_holds_for_both(tmp_path: Path) -> None:
    with Vsqs(tmp_path, "orders", 2) as theirs:
        async with FileQueue(tmp_path / "orders", unit="us", bound=2) as ours:
            theirs("publish", "a")
            await ours.put(b"b")
            assert theirs("publish", "c", 0) == "full"
            with pytest.raises(QueueFullError):
                await ours.put(b"c", timeout=0)
            publishing = asyncio.create_task(ours.put(b"c", timeout=20))
            await asyncio.sleep(0.05)
            theirs("delete", theirs("receive")[0])
            await publishing
            theirs.ask("publish", "d", 20)
            await asyncio.sleep(0.1)
            await (await ours.receive()).ack()
            assert await aside(theirs.answer) != "full"


async def test_vsqs_ignores_the_bound_and_that_the_queue_is_closed(tmp_path: Path) -> None:
    async with FileQueue(tmp_path / "orders", unit="us") as ours:
        await ours.create(bound=1)
        with Vsqs(tmp_path, "orders", 2) as theirs:
            assert theirs("size") == 0
            theirs("publish", "a")
            with pytest.raises(QueueFullError):
                await ours.put_nowait(b"b")
            await ours.close()
            assert theirs("size") == 1
            theirs("publish", "c")
            async with ours.consumer() as consumer:
                assert [item async for item in consumer] == [b"a", b"c"]
            theirs("publish", "d")
            assert (await ours.receive()).raw == b"d"


async def test_each_requeues_what_the_other_one_did_not_delete(tmp_path: Path) -> None:
    with Vsqs(tmp_path, "orders") as theirs:
        async with FileQueue(tmp_path / "orders", unit="us") as ours:
            await ours.put(b"a")
            assert theirs("receive", 1)[1] == "a"
            again = await ours.receive(timeout=20, lease=0.3)
            assert (again.raw, again.redelivered) == (b"a", True)
            await asyncio.sleep(0.4)
            await ours.put(b"wakes them up")
            got = [theirs("receive"), theirs("receive")]
            assert sorted(message[1] for message in got) == ["a", "wakes them up"]


async def test_a_timeout_that_is_no_whole_number_leaves_a_name_that_only_we_understand(tmp_path: Path) -> None:
    with Vsqs(tmp_path, "orders") as theirs:
        async with FileQueue(tmp_path / "orders", unit="us") as ours:
            theirs("publish", "a")
            theirs("receive", 0.2)
            assert theirs("size") == 0  # its own flaw
            assert (await ours.statistics()).in_flight == 1
            assert (await ours.receive(timeout=20)).raw == b"a"


async def test_we_keep_the_order_that_they_lose(tmp_path: Path) -> None:
    """They deliver a newer message in the same go that requeues an older one."""
    async with FileQueue(tmp_path / "orders", unit="us") as ours:
        await ours.put_many([b"old", b"new"])
        await ours.receive(lease=0.01)
        await asyncio.sleep(0.05)
        with Vsqs(tmp_path, "orders") as theirs:
            theirs_first = theirs("receive")[1]
        assert theirs_first == "new"
    async with FileQueue(tmp_path / "other", unit="us") as ours:
        await ours.put_many([b"old", b"new"])
        await ours.receive(lease=0.01)
        await asyncio.sleep(0.05)
        assert (await ours.receive(timeout=0)).raw == b"old"


async def test_traffic_in_all_directions_at_the_same_time(tmp_path: Path) -> None:
    with (
        Vsqs(tmp_path, "orders") as first, Vsqs(tmp_path, "orders") as second, Vsqs(tmp_path, "orders") as sink,
    ):  # fmt: skip
        got: list[str] = []
        end = time.monotonic() + 3

        async def consume(queue: FileQueue[bytes]) -> None:
            while time.monotonic() < end:
                try:
                    message: FileDelivery[bytes] = await queue.receive(timeout=0.2)
                except QueueEmptyError:
                    continue
                assert message.attempts == 1
                got.append(message.raw.decode())
                await message.ack()

        async with FileQueue(tmp_path / "orders", unit="us") as ours, FileQueue(tmp_path / "orders", unit="us") as more:
            sink.ask("sink", 3.5)
            first.ask("pump", "first", 300)
            second.ask("pump", "second", 300)
            async with asyncio.TaskGroup() as group:
                group.create_task(consume(ours))
                group.create_task(consume(more))
                group.create_task(more.put_many(b"ours:%d" % number for number in range(600)))
            got_by_us = list(got)
            got_by_them = await aside(sink.answer)
            assert len(await aside(first.answer)) == len(await aside(second.answer)) == 300
            while (await ours.statistics()).length:
                message = await ours.receive(timeout=0)
                got_by_us.append(message.raw.decode())
        expected = {f"{tag}:{number}" for tag, count in (("first", 300), ("second", 300), ("ours", 600))
                    for number in range(count)}  # fmt: skip
        assert sorted(got_by_us + got_by_them) == sorted(expected)  # who gets how much is a matter of luck
        for tag in ("first", "second", "ours"):
            numbers = [int(one.partition(":")[2]) for one in got_by_them if one.startswith(tag)]
            assert numbers == sorted(numbers)
