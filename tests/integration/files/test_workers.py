"""Workers, and producers that wait: what is special to directories, beside the contracts."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from pathlib import Path

import pytest

from apressure import FileQueue, serve
from apressure.core import backpressure, registration
from apressure.core.workers import encode
from apressure.files.storage import names
from apressure.testing.contract.steps import QUICK, begun, seen, waiting
from tests import processes
from tests.integration.conftest import eventually, in_time
from tests.integration.files.conftest import Make, listing
from tests.integration.workers.support import beat, record_of, registers
from tests.vsqs import Vsqs


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE", "BEAT", "SPREAD", "CHANGED"):
        monkeypatch.setattr(backpressure, name, QUICK)
    monkeypatch.setattr(registration, "BEAT", QUICK)
    monkeypatch.setattr(registration, "FIRST", QUICK / 2)


async def nothing(_: bytes) -> None:
    """Handle an item."""


WORKING = """
import asyncio, sys
import apressure
from apressure.core import backpressure, registration

registration.FIRST = backpressure.PATIENCE = 0.05
registration.BEAT, registration.LASTS = 0.2, 2.0
backpressure.BEAT, backpressure.SPREAD, backpressure.LASTS = 0.1, 0.1, 2.0

async def handle(item):
    await asyncio.sleep(3600)

async def main():
    queue = apressure.FileQueue(sys.argv[2])
    await (apressure.serve(handle, queue) if sys.argv[1] == "serve" else queue.put(b"2"))

asyncio.run(main())
"""


async def test_those_that_are_killed_are_not_seen_any_more(make: Make) -> None:
    queue = make()
    await queue.create(1)
    await queue.put(b"1")
    for what in ("put", "serve"):
        with processes.Popen([sys.executable, "-c", WORKING, what, str(queue.path)]) as process:
            try:
                (found,) = await (waiting(queue) if what == "put" else seen(queue))
                assert found.pid == process.pid
            finally:
                process.kill()
        await (waiting if what == "put" else seen)(queue, lambda found: not found)  # type: ignore[operator]


async def test_a_worker_of_another_process_is_drained(make: Make) -> None:
    queue = make()
    await queue.create()
    with processes.Popen([sys.executable, "-c", WORKING, "serve", str(queue.path)]) as process:
        try:
            (worker,) = await seen(queue)
            assert await queue.drain(worker.id) == 1
            assert await asyncio.to_thread(process.wait, 30) == 0
        finally:
            process.kill()
    await seen(queue, lambda found: not found)


async def test_the_file_of_workers_is_no_message_and_goes_with_the_queue(make: Make) -> None:
    pytest.importorskip("vsqs", reason="vsqs 0.3")
    queue = make(unit="us")
    await queue.create()
    assert names.WORKERS not in listing(queue.path)
    await registers(queue)
    assert listing(queue.path) == [names.WORKERS]
    assert (await queue.qsize(), await queue.closed()) == (0, False)
    with Vsqs(queue.path.parent, queue.name) as vsqs:
        vsqs("publish", "theirs")
    assert await queue.get(timeout=5) == b"theirs"
    await queue.delete()
    assert not queue.path.exists()


async def test_a_beat_creates_no_queue(make: Make) -> None:
    queue = make()
    assert isinstance(await beat(queue, b"mine/1", encode(record_of())), Exception)
    assert not queue.path.exists()


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"mine/1": 1}', '{"mine/1": "\\u2026"}', '{"mine/1": "x"}', "[" * 99_999]
)
async def test_a_damaged_file_tells_nothing_and_is_written_anew(make: Make, damage: str) -> None:
    queue = make()
    await queue.create()
    assert await beat(queue, b"mine/1", encode(record_of())) == 0
    (queue.path / names.WORKERS).write_text(damage)
    assert (await queue.statistics()).workers == ()
    assert await queue.drain("mine") == 0
    assert await beat(queue, b"mine/1", encode(record_of())) == 0
    assert [worker.id for worker in (await queue.statistics()).workers] == ["mine"]


async def test_a_lock_that_another_process_holds_delays_no_message_for_long(make: Make) -> None:
    queue = make()
    await queue.create()
    service = asyncio.ensure_future(serve(nothing, FileQueue(queue.path), signals=()))
    await seen(queue)
    fd = os.open(queue.path / names.WORKERS, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert (await queue.statistics()).workers == ()
        for number in range(20):
            await queue.put(b"%d" % number)
        await eventually(lambda: queue._store.index.waiting == queue._store.index.in_flight == 0)
    finally:
        os.close(fd)
    await seen(queue)
    service.cancel()
    await in_time(asyncio.wait((service,)))


async def test_a_directory_of_which_nobody_may_write_the_file_works(make: Make, tmp_path: Path) -> None:
    queue = make()
    await queue.create(1)
    (queue.path / names.WORKERS).symlink_to(tmp_path / "elsewhere")  # it is not followed
    await queue.put(b"1")
    put = await begun(queue.put(b"2"))
    await asyncio.sleep(3 * QUICK)
    assert (await queue.statistics()).waiting_producers == ()
    assert [await queue.get(timeout=5), await queue.get(timeout=5)] == [b"1", b"2"]
    await in_time(put)
    assert not (tmp_path / "elsewhere").exists()
