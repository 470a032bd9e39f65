"""Ways to damage a queue, and a check that it works again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from apressure import AsyncQueue
from apressure.pressure.doctor.recovery import Report
from tests.reference import ReferenceQueue

QUICK = 0.005
"""Seconds between the doctor's two looks, where nothing but the test changes the queue."""

Damage = Callable[[redis.Redis], object]

OURS = "apressure:__pressure__:jobs:"


def key(suffix: str) -> str:
    return f"__pressure__:jobs{suffix}"


def kinds(report: Report) -> list[str]:
    return [finding.kind for finding in report.findings]


def tokens(db: redis.Redis, role: str) -> int:
    """Every place where a role's token can be seen."""
    free, claim = db.llen(key(f":{role}_free")), db.llen(f"{OURS}{role}_claim")
    return int(free + claim + db.exists(f"{OURS}{role}_lease"))


async def usable(queue: AsyncQueue[Any], db: redis.Redis) -> None:
    """Both kinds of clients can put and get, and the tokens are where they belong."""
    while await queue.qsize():
        await queue.get_nowait()
    plain = ReferenceQueue(db, queue.name)
    plain.put(b"plain", timeout=5)
    await queue.put(b"ours", timeout=5)
    assert await queue.get(timeout=5) == b"plain"
    assert plain.get(timeout=5) == b"ours"
    assert [tokens(db, role) for role in ("producer", "consumer")] == [1, 1]
    assert db.llen(key(":not_full")) == 1


def lease(db: redis.Redis, role: str, deadline: int) -> None:
    db.hset(
        f"{OURS}{role}_lease",
        mapping={"token": "t", "uid": "victim", "since": 1, "deadline": deadline, "next": 3, "hold": 1},
    )


def expire(db: redis.Redis, role: str) -> None:
    db.delete(key(f":{role}_free"))
    lease(db, role, 2)


def in_flight(db: redis.Redis) -> None:
    db.lpush(f"{OURS}inflight", "first", "second")


def claim(db: redis.Redis, role: str) -> None:
    db.rpoplpush(key(f":{role}_free"), f"{OURS}{role}_claim")
    db.set(f"{OURS}{role}_claim_until", 5)


def fill(db: redis.Redis) -> None:
    db.lpush(key(""), "1", "2")
