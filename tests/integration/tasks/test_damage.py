"""What other programs have written into the keys: clear errors, nothing lost, and everything else goes on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from apressure import (
    DeadLetter,
    DecodeError,
    OutOfMemoryError,
    PressureError,
    QueueEmptyError,
    ServerError,
    TaskClient,
    TaskDoesNotExistError,
    TaskQueue,
)
from apressure.tasks import Scheduler, report_progress
from apressure.tasks.runner.reports import current_progress
from tests.integration.tasks.conftest import HERE, Blueque, Open, consistent, in_time
from tests.topologies import cluster, must_be_empty


async def test_ids_without_a_task_are_dropped(queue: TaskQueue[Any], blueque: Blueque, caplog: Any) -> None:
    blueque.db.lpush("blueque_pending_tasks_jobs", "gone")
    blueque.enqueue("a")
    blueque.db.lpush("blueque_pending_tasks_jobs", "gone too", b"\xff\xfe")
    got = await queue.receive()
    assert got.id == "a"
    await got.complete()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    assert sum("were dropped" in record.message for record in caplog.records) >= 1
    consistent(blueque.db)


async def test_an_id_that_is_twice_in_the_list_runs_once(queue: TaskQueue[Any], db: redis.Redis) -> None:
    task_id = await queue.enqueue("a")
    db.lpush("blueque_pending_tasks_jobs", task_id, task_id)
    delivery = await queue.receive()
    with pytest.raises(QueueEmptyError):
        await queue.receive(timeout=0)
    await delivery.complete()
    consistent(db)


async def test_an_id_that_is_twice_in_the_list_is_once_in_a_batch(queue: TaskQueue[Any], db: redis.Redis) -> None:
    task_id = await queue.enqueue("a")
    db.lpush("blueque_pending_tasks_jobs", task_id, task_id)
    (delivery,) = await queue.receive_many(9)
    await delivery.complete()
    consistent(db)


async def test_hashes_that_miss_fields(queue: TaskQueue[Any], client: TaskClient, blueque: Blueque) -> None:
    blueque.db.hset("blueque_task_bare", "parameters", "x")
    blueque.db.hset("blueque_task_odd", mapping={"status": "pending", "pid": "none", "created": "yesterday",
                    "progress": "nan", "attempts": "-3", "eta": "inf", b"\xff": b"\xfe"})  # fmt: skip
    blueque.db.lpush("blueque_pending_tasks_jobs", "bare", "odd")
    bare = await client.task("bare")
    assert (bare.status, bare.queue, bare.created, bare.parameters, bare.attempts) == (None, None, None, "x", 0)
    odd = await client.task("odd")
    assert (odd.pid, odd.created, odd.progress, odd.attempts, odd.eta) == (None, None, None, 0, None)
    assert odd.parameters is None
    assert [task.id async for task in queue.tasks()] == ["bare", "odd"]
    with pytest.raises(ValueError, match="queue"):
        client.processor(bare)
    one, two = await queue.receive_many(2)
    assert (one.item, two.raw) == ("x", b"")
    await one.complete("done")
    await two.nack("why")
    assert (await client.task("odd")).status == "pending"
    consistent(blueque.db)


async def test_parameters_that_cannot_be_decoded(open_queue: Open, blueque: Blueque) -> None:
    queue = await open_queue()
    blueque.db.hset("blueque_task_a", mapping={"status": "pending", "queue": "jobs", "parameters": b"\xff\xfe"})
    blueque.db.lpush("blueque_pending_tasks_jobs", "a")
    with pytest.raises(DecodeError):
        await queue.peek()
    delivery = await queue.receive()
    with pytest.raises(DecodeError) as raised:
        _ = delivery.item
    assert raised.value.raw == delivery.raw == b"\xff\xfe"
    await delivery.fail("unreadable")
    assert blueque.db.hget("blueque_task_a", "parameters") == b"\xff\xfe"
    for number in (2, 3):
        blueque.enqueue(str(number), "{not json")
    strict = await open_queue(codec="json")
    with pytest.raises(DecodeError):
        await strict.peek()
    assert await queue.peek() == "{not json"


async def test_unknown_statuses_are_shown_as_they_are(
    queue: TaskQueue[Any], client: TaskClient, blueque: Blueque
) -> None:
    blueque.enqueue("a", status="succeeded")
    assert (await client.task("a")).status == "succeeded"
    assert [task.status async for task in queue.tasks("pending")] == ["succeeded"]
    with pytest.raises(Exception, match="succeeded"):
        await queue.delete_task("a")
    delivery = await queue.receive()
    await delivery.complete()
    assert (await client.task("a")).status == "complete"
    blueque.enqueue("b", status="odd")
    assert await queue.purge() == 1
    assert not blueque.db.exists("blueque_task_b")


@pytest.mark.parametrize("status", ["odd", "pending"])
async def test_a_scheduled_task_with_another_status_is_enqueued(
    queue: TaskQueue[Any], blueque: Blueque, client: TaskClient, status: str
) -> None:
    blueque.schedule("a", time.time() - 1)
    blueque.db.hset("blueque_task_a", "status", status)
    await Scheduler(client, ["jobs"]).round()
    delivery = await queue.receive(timeout=0)
    assert delivery.id == "a"
    await delivery.complete()
    consistent(blueque.db)


async def test_tasks_that_do_not_exist(queue: TaskQueue[Any], client: TaskClient) -> None:
    for operation in (
        client.task("none"), queue.cancel("none"), queue.retry("none"), queue.delete_task("none"),
    ):  # fmt: skip
        with pytest.raises(TaskDoesNotExistError, match="none"):
            await operation
    with pytest.raises(TypeError):
        await client.task(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await queue.cancel(None)  # type: ignore[arg-type]


async def test_a_task_that_is_deleted_while_it_runs(queue: TaskQueue[Any], db: redis.Redis) -> None:
    await queue.enqueue("a")
    async with queue.consumer("manual", lease=1) as consuming:
        delivery = await in_time(anext(consuming))
        lost = asyncio.Event()
        delivery.on_lost(lost.set)
        db.delete(f"blueque_task_{delivery.id}")
        await in_time(lost.wait())
        with pytest.raises(Exception, match="lease"):
            await delivery.complete()
    assert not db.exists(f"blueque_task_{delivery.id}")
    db.delete(f"blueque_reserved_tasks_jobs_{delivery.task.node}", "apressure:blueque:leases:jobs")


@pytest.mark.parametrize(
    "word",
    ["pending_tasks", "scheduled_tasks", "started_tasks", "complete_tasks", "failed_tasks", "listeners", "tasks"],
)
async def test_a_key_of_another_type_is_a_clear_error_and_loses_nothing(
    open_queue: Open, blueque: Blueque, db: redis.Redis, word: str
) -> None:
    queue = await open_queue()
    first = await queue.enqueue("first")
    held = await queue.receive()
    await queue.enqueue("second")
    key = blueque.key(word)
    saved = db.dump(key)
    db.delete(key)
    db.hset(key, "a", "b")
    errors = []
    for operation in (
        queue.enqueue("third"), queue.receive(timeout=0), held.complete("done"), queue.statistics(),
        queue.cancel(first),
    ):  # fmt: skip
        try:
            answer = await operation
        except (ServerError, QueueEmptyError) as error:
            errors.append(error)
        else:
            if hasattr(answer, "nack"):
                await answer.nack()
    assert any("WRONGTYPE" in str(error) and "key of the queue" in str(error) for error in errors) or word == "tasks"
    db.delete(key)
    if saved is not None:
        db.restore(key, 0, saved)
    await in_time(finish(queue))
    found = {task.parameters async for task in queue.tasks()}
    assert {"first", "second"} <= found
    assert await queue.qsize() == 0


async def test_dead_letters_that_cannot_be_added_leave_nothing(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis
) -> None:
    key = blueque.key("failed_tasks")
    db.set(key, "of another type")
    before = set(db.scan_iter())
    letter = DeadLetter("id", b"x", 1, None, 1.0, bytes)
    with pytest.raises(ServerError, match="WRONGTYPE"):
        await queue.add_dead_letters([letter, letter])
    assert set(db.scan_iter()) == before
    db.delete(key)
    assert await queue.add_dead_letters([letter, letter]) == 2


@pytest.mark.parametrize("how", ["complete", "nack", "reserve"])
@pytest.mark.parametrize("word", ["reserved_tasks", "started_tasks"])
async def test_a_key_of_a_node_with_another_type_changes_nothing(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis, word: str, how: str
) -> None:
    await queue.enqueue("a")
    held = await queue.receive()
    await held.start()
    key = blueque.key(word, *([held.task.node or ""] if word == "reserved_tasks" else []))
    saved = db.dump(key)
    db.delete(key)
    db.hset(key, "a", "b")
    if how == "reserve":
        db.zadd("apressure:blueque:leases:jobs", {held.id: 0})
    for _ in range(2):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            await (queue.receive(timeout=0) if how == "reserve" else getattr(held, how)())
    db.delete(key)
    db.restore(key, 0, saved)
    consistent(db)
    await held.complete("done")
    consistent(db)


async def test_a_consumer_starts_beside_a_listener_whose_list_is_damaged(
    queue: TaskQueue[Any], blueque: Blueque, db: redis.Redis, caplog: Any
) -> None:
    host, _, _ = HERE.rpartition("_")
    damaged, dead = f"{host}_999999998", f"{host}_999999999"
    for listener in (damaged, dead):
        blueque.listen(listener)
    blueque.enqueue("a")
    blueque.dequeue(dead)
    db.set(blueque.key("reserved_tasks", damaged), "no list")
    await queue.steps.register(damaged.encode(), b"block", 0.001)
    await asyncio.sleep(0.01)  # it has given no sign of life since then
    async with queue.consumer("manual") as consuming:
        await (await in_time(anext(consuming))).complete()  # the other dead listener's
        assert db.smembers(blueque.key("listeners")) == {HERE.encode(), damaged.encode()}
    assert sum(f"the listener {damaged} are left out" in record.message for record in caplog.records) == 1
    assert db.get(blueque.key("reserved_tasks", damaged)) == b"no list"
    assert [task.id async for task in queue.tasks()] == ["a"]
    await queue.delete()
    db.delete(blueque.key("reserved_tasks", damaged))


@pytest.mark.parametrize("updated", ["nan", "inf", "1e15", "-1", "yesterday", None])
@pytest.mark.parametrize("how", ["expire", "purge"])
async def test_a_time_of_change_that_is_none(
    queue: TaskQueue[Any], client: TaskClient, blueque: Blueque, updated: str | None, how: str
) -> None:
    """A result lasts from the first look on, and the others expire; a purge by age deletes it."""
    scheduler, ids = Scheduler(client, ["jobs"], result_ttl=50), ["odd", "old", "new"]
    for task_id in ids:
        blueque.enqueue(task_id)
        blueque.dequeue("host_1")
        blueque.complete(task_id, "host_1", 5, "done")
    waiting = blueque.enqueue("waiting")
    for task_id in ("odd", waiting):
        if updated is None:
            blueque.db.hdel(f"blueque_task_{task_id}", "updated")
        else:
            blueque.db.hset(f"blueque_task_{task_id}", "updated", updated)
    blueque.db.hset("blueque_task_old", "updated", time.time() - 100)
    if how == "purge":
        assert await queue.purge("complete", older_than=50) == 2
        assert blueque.ids("complete_tasks") == ["new"]
    else:
        await scheduler.round()
        assert blueque.ids("complete_tasks") == ["odd", "new"]
        assert time.time() - 40 < float(blueque.task("odd")["updated"]) < time.time() + 40
    assert (await queue.receive(timeout=0)).id == waiting
    consistent(blueque.db)


async def finish(queue: TaskQueue[Any]) -> None:
    """End every task: those in hand come when their leases end."""
    leases = queue.steps.keys.leases
    while (await queue.statistics()).length or (await queue.statistics()).in_flight:
        for task_id in await queue.steps.connection.ask(b"ZRANGE", leases, 0, -1):
            await queue.steps.connection.ask(b"ZADD", leases, 0, task_id)
        try:
            await (await queue.receive(timeout=0)).complete("late")
        except QueueEmptyError:
            continue


async def test_a_bound_that_is_no_number(queue: TaskQueue[Any], db: redis.Redis) -> None:
    db.set("apressure:blueque:bound:jobs", "many")
    for operation in (queue.enqueue("x"), queue.receive(timeout=0), queue.close(), queue.purge("failed")):
        try:
            await operation
        except ServerError as error:
            assert "is not a bound" in str(error)  # noqa: PT017
    db.delete("apressure:blueque:bound:jobs")
    assert await queue.qsize() == 0


async def test_a_cluster_is_refused() -> None:
    for made in (TaskClient, lambda url: TaskQueue("jobs", url=url)):
        with pytest.raises(ValueError, match="cluster"):
            made("redis+cluster://127.0.0.1:6379")
    with pytest.raises(ValueError, match="scripts"):
        TaskQueue("jobs", url="redis://127.0.0.1:1", scripting=False)
    with pytest.raises(ValueError, match="on_orphan"):
        TaskQueue("jobs", url="redis://127.0.0.1:1", on_orphan="ignore")  # type: ignore[call-overload]


async def test_a_node_of_a_cluster_is_refused() -> None:
    with cluster("valkey", nodes=3) as nodes:
        host, port = nodes.servers[0].url.removeprefix("redis://").split("/")[0].split(":")
        async with TaskQueue("jobs", host=host, port=int(port)) as queue:
            with pytest.raises(ServerError, match="cluster, which cannot have the queue"):
                await queue.enqueue("x")
        must_be_empty(*nodes.servers)


async def test_text_that_is_not_utf8_is_refused(open_queue: Open) -> None:
    queue = await open_queue(codec="raw")
    with pytest.raises(ValueError, match="UTF-8"):
        await queue.enqueue(b"\xff")
    for bad in (float("nan"), "\ud800"):
        with pytest.raises(ValueError):
            await (await open_queue()).enqueue(bad)
    assert not await queue.exists()


async def test_progress_that_utf8_cannot_encode_is_refused_and_tasks_still_end(
    queue: TaskQueue[Any], client: TaskClient
) -> None:
    await queue.put_many(["a", "b"])
    first, second = await queue.receive_many(2)
    with pytest.raises(ValueError, match="surrogates"):
        await first.progress(0.5, "caf\udce9.txt")  # a file name that is not UTF-8, as Python reads it
    reported: list[tuple[float, str]] = []
    token = current_progress.set(lambda fraction, message: reported.append((fraction, message)))
    report_progress(0.5, "caf\udce9.txt")
    current_progress.reset(token)
    await in_time(first.progress(*reported[0]))
    assert (await client.task(first.id)).progress_message == "caf?.txt"
    for delivery in (first, second):
        await in_time(delivery.complete())


@pytest.mark.parametrize("word", ["failed_tasks", "tasks"])
async def test_tasks_complete_beside_a_damaged_list_of_results(
    open_queue: Open, blueque: Blueque, db: redis.Redis, word: str
) -> None:
    queue = await open_queue(result_ttl=100)
    await queue.put_many(range(4))
    old, *held = await queue.receive_many(4)
    await old.complete()
    db.hset(f"blueque_task_{old.id}", "updated", 5)  # it has expired
    db.delete(blueque.key(word))
    db.set(blueque.key(word), "x")
    await held[0].complete()
    await asyncio.gather(*(delivery.complete() for delivery in held[1:]))
    db.delete(blueque.key(word))
    assert {task.id async for task in queue.tasks("complete")} == {one.id for one in held}


async def test_a_full_server_lets_tasks_end(make_server: Any) -> None:
    """Nodes make room, so they go on where nothing can be enqueued."""
    server = make_server(config={"maxmemory-policy": "noeviction"})
    with redis.Redis.from_url(server.url) as db:
        async with TaskClient(server.url) as client:
            queue = client.queue("jobs")
            await queue.put_many(range(4))
            db.config_set("maxmemory", 1)
            with pytest.raises(OutOfMemoryError):
                await queue.enqueue("x")
            with pytest.raises(OutOfMemoryError):
                await queue.schedule("x", time.time() + 3600)
            async with client.listener("jobs", lease=1) as listener:
                for number in range(4):
                    task = await in_time(anext(listener))
                    processor = client.processor(task)
                    await processor.start()
                    await processor.progress(0.5, "half")
                    await asyncio.sleep(1.5 if number == 0 else 0)  # a renewal
                    await (processor.fail if number else processor.complete)("done")
                with pytest.raises(OutOfMemoryError):
                    await queue.requeue()
            assert (await queue.discard(["none"])).not_found == ("none",)
            assert (await queue.statistics()).dead_letters == 3
            db.config_set("maxmemory", 0)
            assert await queue.requeue() == 3
            consistent(db)


async def test_a_user_without_the_right_to_publish_changes_nothing(make_server: Any) -> None:
    server = make_server()
    with redis.Redis.from_url(server.url) as db:
        db.execute_command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
        url = server.url.replace("://", "://mute:secret@")
        async with TaskQueue("jobs", url=url) as queue, TaskQueue("jobs", url=server.url) as other:
            with pytest.raises(PressureError):
                await queue.enqueue("x")
            assert db.keys("blueque*") == []
            await other.enqueue("y")
            delivery = await queue.receive(timeout=0)
            for operation in (delivery.start(), delivery.complete(), delivery.fail("x"), delivery.nack()):
                with pytest.raises(PressureError):
                    await operation
            consistent(db)
            assert (await other.statistics()).in_flight == 1
