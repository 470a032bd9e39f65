"""docs/do/tasks.md shows what happens, and its user has the rights that it needs, and no others."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import apressure
from apressure import PermissionDeniedError, TaskClient, TaskQueue
from apressure.embedded import EmbeddedServer
from apressure.tasks import Scheduler
from apressure.tasks.processor import OURS
from tests.integration.tasks.conftest import in_time, wipe
from tests.integration.workers.support import registers
from tests.servers import SERVERS, admin

ROOT = Path(__file__).parents[3]
PAGE = "\n".join((ROOT / "docs" / folder / "tasks.md").read_text() for folder in ("do", "reference"))
SCRIPTS = (Path(apressure.__path__[0]) / "tasks" / "engine" / "lua").rglob("*.lua")
BY_CONNECTION = {"scan", "evalsha", "eval", "ping", "subscribe", "unsubscribe", "hgetall", "smembers"}
BESIDE = [
    path
    for room in ("schedules", "workers")
    for path in (Path(apressure.__path__[0]) / "connection" / room / "lua").rglob("*.lua")
]
SHARED = {"get", "set", "pexpire", "time", "zmscore", "zrangebylex", "hscan", "hrandfield"}
"""Commands of the functions that the scripts of all rooms share."""


def rules() -> list[str]:
    (line,) = re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", PAGE, re.DOTALL)
    return [rule.replace(">PASSWORD", ">geheim") for rule in shlex.split(line.replace("\\\n", " "))[4:]]


async def test_the_code_of_the_page_runs(url: str, capsys: pytest.CaptureFixture[str], db: redis.Redis) -> None:
    names: dict[str, Any] = {"URL": url}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)
    moving = asyncio.create_task(names["move_due_tasks"]())
    await in_time(asyncio.gather(names["enqueue"](), names["process"]()))
    await in_time(names["tonight"]())
    assert not moving.done()
    moving.cancel()
    await asyncio.wait((moving,))
    assert capsys.readouterr().out == "encoded a.mov\n"
    assert db.zcard("blueque_scheduled_tasks_video.encode") == 1
    await wipe(url, db, "video.encode")


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"\[(test_\w+)\]\(\.\./\.\./([\w/]+\.py)\)", PAGE)
    assert len(named) > 15
    for test, path in named:
        assert re.search(rf"def {test}\(", (ROOT / path).read_text()), f"{path} has no {test}"


def test_the_page_names_every_command_key_and_field() -> None:
    called = set(SHARED)
    for path in (*SCRIPTS, *BESIDE):
        text = re.sub(r"--.*", "", path.read_text())
        called |= {name.lower() for name in re.findall(r"(?:p?call|push)\(\s*(?:.*? (?:and|or) )?'([A-Z]+)'", text)}
    assert {rule[1:] for rule in rules() if rule.startswith("+")} == called | BY_CONNECTION
    keys = TaskQueue("Q", url="redis://127.0.0.1:1").steps.keys
    for key in keys.blueque:
        assert f"`{key.decode()}`" in PAGE
    for key in keys.ours:
        assert f"`{key.decode().removeprefix('apressure:blueque:')}`" in PAGE
    theirs = {"status", "queue", "parameters", "result", "error", "node", "pid", "created", "updated", "eta"}
    for field in OURS - theirs - {"reclaimed_node"}:
        assert f"`{field}`" in PAGE, field


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_user_can_do_everything(make_server: Callable[..., EmbeddedServer], kind: str) -> None:
    server = make_server(kind)
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "worker", *rules())
    url = server.url.replace("redis://", "redis://worker:geheim@")
    await play(url)
    with redis.Redis.from_url(url) as user, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        user.get("other")
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "worker", "resetchannels")
    async with TaskQueue("jobs", url=url) as queue:
        with pytest.raises(PermissionDeniedError):
            await queue.enqueue("x")
        assert not await queue.exists()  # it may not publish: nothing was enqueued


async def play(url: str) -> None:
    """Everything that a queue does."""
    async with TaskClient(url) as client, TaskClient(url) as other:
        queue = client.queue("jobs", max_attempts=2, on_orphan="fail")
        waiting = asyncio.create_task(other.queue("jobs").receive(lease=0.1))
        await asyncio.sleep(0.1)
        await queue.create(bound=3)
        await queue.enqueue("a")
        delivery = await in_time(waiting)
        await delivery.extend(0.2)
        again = await in_time(queue.receive(lease=60))
        await again.nack("broken")
        assert (await queue.statistics()).dead_letters == 1
        await registers(queue)
        (letter,) = await queue.dead_letters()
        await queue.retry(letter.id)
        await queue.schedule("b", time.time() + 3600)
        await Scheduler(client, result_ttl=60, clock=lambda: time.time() + 3600).round()
        assert [task.parameters async for task in queue.tasks()] == ["a", "b"]
        await queue.peek()
        async with queue.consumer("manual", lease=1) as consumer:
            first = await in_time(anext(consumer))
            await first.start()
            await first.progress(0.5)
            await queue.cancel(first.id)
            await asyncio.sleep(0.6)
            await first.complete("done")
        await queue.delete_task(first.id)
        await queue.pause()
        await queue.resume()
        await queue.set_concurrency(1)
        await queue.set_rate(1, 60, burst=1)
        await queue.hold(60)
        await queue.hold(0)
        assert (await queue.limits()).concurrency == 1
        await other.queue("jobs").enqueue("limited")
        limited = await in_time(other.queue("jobs").receive())
        await limited.extend(60)
        await limited.complete()
        await queue.set_rate(None)
        await queue.purge()
        await queue.set_concurrency(None)
        await queue.set_key("/customer")
        await queue.put_many([{"customer": 7}] * 2)
        await queue.enqueue("keyed", key="7")
        keyed = await in_time(other.queue("jobs").receive())
        with pytest.raises(TimeoutError):
            await queue.receive(timeout=0)
        assert (await queue.statistics()).parked == 2
        await keyed.complete()
        await (await in_time(queue.receive())).complete()
        await queue.set_key(at_most=None, fair=False)
        await queue.purge()
        await queue.enqueue("c")
        await (await queue.receive()).fail("why")
        assert await queue.requeue() == 1
        await queue.close()
        await queue.wait_closed()
        async with other.queue("jobs").consumer() as consuming:
            assert [item async for item in consuming] == ["c"]
        await queue.delete()
