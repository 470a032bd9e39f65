"""Waiting operations do not poll."""

from __future__ import annotations

import asyncio
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
    await asyncio.sleep(6)
    commands = {name: figures["calls"] for name, figures in db.info("commandstats").items()}
    sent = sum(
        calls for name, calls in commands.items() if name.partition("_")[2].partition("|")[0] not in ("info", "config")
    )
    # Six seconds hold one or two slices of five; each is a blocking command and a step with what it runs inside.
    assert sent <= 160, commands
    outer = sum(commands.get(f"cmdstat_{name}", 0) for name in ("blmove", "brpop", "evalsha", "eval"))
    assert outer <= 28, commands
    for task in tasks:
        task.cancel()
    await in_time(asyncio.gather(*tasks, return_exceptions=True))
