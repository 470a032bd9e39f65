"""Steps that fail in the middle: scripts never roll back, so later steps must repair the rest."""

from __future__ import annotations

from typing import Any

import pytest

from apressure import AsyncQueue, DecodeError, PermissionDeniedError, ServerError
from tests.integration.acl_roles import allow, documented, without
from tests.integration.conftest import Opener
from tests.servers import SERVERS

BASE = "__pressure__:jobs"


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_receive_that_a_user_may_not_finish_leaves_a_lease_that_runs_out(make_server: Any, kind: str) -> None:
    server = make_server(kind)
    url = allow(server, "consumer", without(documented(plain=False)["consumer"], "rpop"))
    async with AsyncQueue("orders", url=server.url) as owner:
        await owner.create()
        await owner.put(b"1")
        async with AsyncQueue("orders", url=url) as queue:
            with pytest.raises(PermissionDeniedError):
                await queue.receive(lease=1, timeout=1)
        assert await owner.get(timeout=10) == b"1"
        await owner.delete()


async def test_a_receive_that_meets_a_key_of_the_wrong_type_leaves_a_lease_that_runs_out(
    open_queue: Opener, db: Any
) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    db.set(f"apressure:{BASE}:redelivered", "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.receive(lease=1, timeout=1)
    db.delete(f"apressure:{BASE}:redelivered")
    other = await open_queue(create=False)
    assert await other.get(timeout=10) == b"1"


@pytest.mark.parametrize("word", ["inflight", "apart"])
async def test_a_receive_that_has_nowhere_to_keep_messages_takes_none(open_queue: Opener, db: Any, word: str) -> None:
    queue = await open_queue()
    await queue.put_many([b"1", b"2"])
    db.set(f"apressure:{BASE}:{word}", "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.receive(timeout=1)
    with pytest.raises(ServerError, match="WRONGTYPE"):
        async with queue.consumer() as consumer:
            await anext(consumer)
    assert db.llen(BASE) == 2
    db.delete(f"apressure:{BASE}:{word}")
    other = await open_queue(create=False)
    assert await other.get_many(2, timeout=10) == [b"1", b"2"]


class FirstOf:
    """Decodes what `next` finds, which for an empty message is nothing."""

    def encode(self, item: bytes) -> bytes:
        return item

    def decode(self, data: bytes) -> int:
        return next(iter(data))


async def test_a_codec_that_raises_stop_iteration_loses_nothing(open_queue: Opener) -> None:
    queue = await open_queue(codec=FirstOf())
    await queue.put_many([b"1", b"", b"3"])
    assert await queue.get_many(3) == [ord("1")]
    with pytest.raises(DecodeError):
        await queue.get(timeout=1)
    assert await queue.get(timeout=1) == ord("3")


async def test_bytes_are_counted_exactly_when_a_server_lacks_the_end_of_a_range(open_queue: Opener, db: Any) -> None:
    """A replica that takes over may not have heard of the latest deliveries."""
    queue = await open_queue()
    await queue.put_many([b"four", b"seven__"])
    first, second = await queue.receive(), await queue.receive()
    assert db.lpop(f"apressure:{BASE}:inflight") == b"seven__"
    db.hset(f"apressure:{BASE}:consumer_lease", "next", 2)
    lease = first._lease
    lease.state.unsettled.ack(1)
    lease.state.unsettled.ack(2)
    assert second.raw == b"seven__"
    await lease.flush()
    statistics = await queue.statistics()
    assert (statistics.consumed_messages, statistics.consumed_bytes) == (1, 4)
