"""How often the event loop of the server turns for one client that waits for each reply."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from apressure.events.server.server import EventServer
from apressure.events.server.settings import Address, ServerSettings
from tests.integration.conftest import PATIENCE
from tests.integration.event_server.conftest import FREE

COUNT = 300


class Counting(selectors.DefaultSelector):
    """A selector that counts the turns of its event loop."""

    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turns += 1
        return super().select(timeout)


@pytest.fixture
def turning(url: str, db: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[redis.Redis, Counting]]:
    """A client of a server, and the selector of the server's event loop, which runs in a thread."""
    monkeypatch.setattr("apressure.events.server.outcomes._cores", lambda: 1)  # it takes turns that nothing needs
    selector = Counting()
    server = EventServer(ServerSettings(listen=FREE, url=url))
    ready: Future[Address] = Future()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            loop.append(runner.get_loop())
            runner.run(server.run(ready.set_result))

    loop: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        with redis.Redis(port=ready.result(PATIENCE).port, decode_responses=True) as client:
            yield client, selector
    finally:
        loop[0].call_soon_threadsafe(server.stop)
        thread.join()
    for key in [*db.scan_iter("queue:*"), *db.scan_iter("apressure:queue:*")]:
        db.delete(key)


def test_a_single_command_takes_two_turns(turning: tuple[redis.Redis, Counting]) -> None:
    """One turn reads the command and asks Redis, one reads the answer and writes the reply."""
    client, selector = turning
    commands: dict[str, Any] = {
        "QLPUSH": lambda number: client.execute_command("QLPUSH", "foo", number, "x"),
        "QRPOP": lambda _: client.execute_command("QRPOP", "foo"),
        "QACK": lambda number: client.execute_command("QACK", "foo", number),
    }
    for name, run in commands.items():
        run(0)  # Redis learns the script
        before = selector.turns
        replies = [run(number) for number in range(1, COUNT)]
        turns = selector.turns - before
        assert None not in replies
        assert turns < 2.5 * COUNT, f"{name}: {turns / COUNT:.2f} turns a command, with those of timers"
