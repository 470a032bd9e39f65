"""Waiting operations do not poll."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import redis

from tests.integration.conftest import Opener, blocked, in_time


async def test_blocked_clients_send_next_to_nothing(open_queue: Opener, db: redis.Redis) -> None:
    tasks: list[asyncio.Task[Any]] = []
    for scripting in (True, False):
        full = await open_queue(f"full-{scripting}", bound=1, scripting=scripting)
        empty = await open_queue(f"empty-{scripting}", scripting=scripting)
        await full.put(b"x")
        tasks += [asyncio.create_task(full.put(b"y")), asyncio.create_task(empty.get())]
        tasks += [asyncio.create_task(empty.wait_closed())]
    await blocked(db, 6)
    await asyncio.sleep(0.2)
    db.config_resetstat()
    begun = time.monotonic()
    await asyncio.sleep(6)
    commands = {name: figures["calls"] for name, figures in db.info("commandstats").items()}
    sent = sum(
        calls for name, calls in commands.items() if name.partition("_")[2].partition("|")[0] not in ("info", "config")
    )
    # With scripts there is a look every four seconds; without, a slice and the commands of a step every five.
    sixes = max(1.0, (time.monotonic() - begun) / 6)
    assert sent <= 100 * sixes, commands
    outer = sum(commands.get(f"cmdstat_{name}", 0) for name in ("blmove", "brpop", "evalsha", "eval"))
    assert outer <= 16 * sixes, commands
    for task in tasks:
        task.cancel()
    await in_time(asyncio.gather(*tasks, return_exceptions=True))
