"""browse of a TaskQueue: tasks of the released blueque, and keys that other programs have damaged."""

from __future__ import annotations

import pytest

from apressure import ServerError
from apressure.testing.contract.browsing import items_of
from tests.integration.tasks.conftest import HERE, Blueque, Open


async def test_tasks_of_nodes_without_leases_are_in_flight_listener_by_listener(
    open_queue: Open, blueque: Blueque
) -> None:
    queue = await open_queue()
    await queue.put("ours")
    delivery = await queue.receive()
    (ours,) = (await queue.browse("in_flight")).messages
    assert (ours.item, ours.holder, ours.attempts) == ("ours", HERE, 1)
    assert ours.since is not None
    assert ours.due is not None
    blueque.db.sadd("blueque_listeners_jobs", "a_1", "b_2", "odd")
    for listener, number in (("a_1", 0), ("a_1", 1), ("b_2", 2)):
        task = {"status": "reserved", "queue": "jobs", "node": listener, "parameters": number, "updated": "nan"}
        blueque.db.hset(f"blueque_task_{number}", mapping=task)
        blueque.db.lpush(f"blueque_reserved_tasks_jobs_{listener}", number)
    blueque.db.set("blueque_reserved_tasks_jobs_odd", "no list")
    for newest in (False, True):
        found = await items_of(queue, "in_flight", newest=newest)
        assert await items_of(queue, "in_flight", newest=newest, limit=1) == found
        assert len(found) == (await queue.statistics()).in_flight
        assert [item for item in found if item != "ours"] == ([2, 1, 0] if newest else [0, 1, 2])
    blueque.db.delete(*(f"blueque_reserved_tasks_jobs_{listener}" for listener in ("odd", "a_1", "b_2")))
    blueque.db.delete(*(f"blueque_task_{number}" for number in range(3)))
    blueque.db.srem("blueque_listeners_jobs", "a_1", "b_2", "odd")
    await delivery.ack()


async def test_tasks_that_other_programs_wrote_are_shown(open_queue: Open, blueque: Blueque) -> None:
    queue = await open_queue()
    blueque.db.set("blueque_task_string", "x")
    blueque.db.hset(
        "blueque_task_odd", mapping={"parameters": b"\xff", "attempts": "-3", "created": "inf", "key": b"\xfe"}
    )
    blueque.db.lpush("blueque_pending_tasks_jobs", "string", "odd", "missing", b"\xff")
    for message in (await queue.browse()).messages:
        assert message.item is None
        assert message.error
        assert (message.attempts, message.since, message.holder) == (0, None, None)
    assert [message.id for message in (await queue.browse()).messages] == ["string", "odd", "missing", "\udcff"]
    blueque.db.zadd("blueque_scheduled_tasks_jobs", {"odd": "inf"})
    (late,) = (await queue.browse("delayed")).messages
    assert (late.due, late.raw, late.key) == (None, b"\xff", "\udcfe")
    blueque.db.delete("blueque_task_string", "blueque_task_odd", "blueque_pending_tasks_jobs",
                      "blueque_scheduled_tasks_jobs")  # fmt: skip


@pytest.mark.parametrize(
    ("place", "key"),
    [
        ("waiting", "blueque_pending_tasks_jobs"), ("in_flight", "blueque_listeners_jobs"),
        ("in_flight", "apressure:blueque:leases:jobs"), ("delayed", "blueque_scheduled_tasks_jobs"),
        ("parked", "apressure:blueque:lines:jobs"),
    ],
)  # fmt: skip
async def test_keys_of_the_wrong_type_raise_an_error_that_says_so(
    open_queue: Open, blueque: Blueque, place: str, key: str
) -> None:
    queue = await open_queue()
    blueque.db.set(key, "x")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.browse(place)  # type: ignore[arg-type]
    blueque.db.delete(key)
