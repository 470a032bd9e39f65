"""A query that reads is seen among the workers of its queue."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import redis

from apressure import AsyncQueue
from apressure.spark.options import Options
from apressure.spark.source.presence import Presence
from tests.integration.acl_roles import rights
from tests.integration.spark.support import GROUP, Jobs, connect, texts
from tests.integration.spark.test_rights import documented

pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark is not installed")
pytestmark = [pytest.mark.leaves_keys, pytest.mark.parametrize("server", ["valkey"], indirect=True)]


async def workers(url: str) -> Any:
    async with AsyncQueue("jobs", url=url) as queue:
        return (await queue.statistics()).workers


def stream_of(url: str, **more: str) -> Any:
    from apressure.spark.columns import RAW
    from apressure.spark.source.stream import QueueStream

    return QueueStream(Options.of({"url": url, "queue": "jobs", "group": GROUP, "pollWait": "0", **more}), RAW)


def test_a_query_is_seen_from_its_first_trigger_to_its_end(url: str, db: redis.Redis) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    jobs = Jobs(url, db, connect(url))
    jobs.source.create(0)
    jobs.put(texts(5))
    stream = stream_of(url)
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, ReadMaxRows(3))
    stream.partitions(begin, end)
    (worker,) = asyncio.run(workers(url))
    assert (worker.kind, worker.handler, worker.concurrency, worker.draining) == ("spark", GROUP, 0, False)
    assert (worker.in_hand, worker.handled, worker.oldest) == (3, 0, None)
    later = stream.latestOffset(end, ReadMaxRows(3))
    stream._presence._next = 0
    stream.partitions(end, later)
    (worker,) = asyncio.run(workers(url))
    assert (worker.in_hand, worker.handled) == (2, 3)
    stream.commit(later)
    stream._presence._next = 0
    assert stream.latestOffset(later, ReadMaxRows(3)) == later
    (worker,) = asyncio.run(workers(url))
    assert (worker.in_hand, worker.handled) == (0, 5)

    async def drain() -> int:
        async with AsyncQueue("jobs", url=url) as queue:
            return await queue.drain(worker.id)

    assert asyncio.run(drain()) == 0
    stream.stop()
    assert asyncio.run(workers(url)) == ()


def test_a_user_without_the_rights_reads_all_the_same(url: str, db: redis.Redis) -> None:
    jobs = Jobs(url, db, connect(url))
    jobs.source.create(0)
    server = connect(url)
    presence, keys = Presence(GROUP), {"jobs": jobs.keys.queue.workers}
    db.set(keys["jobs"], "?", px=1000)  # an error that may pass: it tries again
    presence.tell(server, keys)
    assert presence._next < math.inf
    db.delete(keys["jobs"])
    rules = [f"+{right}" for right in rights(documented()) if right != "hkeys"]
    db.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">p", "~*", *rules)
    weak = connect(url, username="weak", password="p")
    presence._next = 0
    presence.tell(weak, keys)
    assert presence._next == math.inf
    presence.leave(weak, keys)
    weak.close()
    server.close()
    db.execute_command("ACL", "DELUSER", "weak")
