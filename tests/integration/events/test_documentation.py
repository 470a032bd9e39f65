"""docs/do/events.md shows what happens, and its user has the rights that it needs, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import apressure
from apressure import EventQueue, PermissionDeniedError, QueueDoesNotExistError
from apressure.embedded import EmbeddedServer
from tests import event_steps
from tests.integration.events.conftest import Open, in_time
from tests.integration.workers.support import registers
from tests.servers import SERVERS, admin

ROOT = Path(__file__).parents[3]
PAGE = "\n".join((ROOT / "docs" / folder / "events.md").read_text() for folder in ("do", "reference"))
ROOMS = ("events/engine", "connection", "connection/schedules", "connection/workers")
LUA = [Path(apressure.__path__[0]) / room / "lua" for room in ROOMS]
BY_CONNECTION = {"evalsha", "eval", "blmove", "brpop", "hscan"}


def rules() -> list[str]:
    (line,) = re.findall(r"```sh\n(redis-cli ACL SETUSER .*?)```", PAGE, re.DOTALL)
    return [rule.replace(">PASSWORD", ">geheim") for rule in shlex.split(line.replace("\\\n", " "))[4:]]


async def test_the_code_of_the_page_runs(url: str, open_queue: Open, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"URL": url}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)
    await in_time(asyncio.gather(names["feed"](), names["work"]()))
    orders, returns = await open_queue("orders"), await open_queue("returns", bound=0)
    await orders.delete()
    await orders.create()
    await orders.put(b"one")
    await returns.put(b"two")
    await orders.close()
    await returns.close()
    await in_time(names["work_on_both"]())
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown[:3]) == ["b'order 1'", "b'order 2'", "b'order 3'"]
    assert sorted(shown[3:]) == ["orders b'one'", "returns b'two'"]


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"\[(test_\w+)\]\(\.\./\.\./([\w/]+\.py)\)", PAGE)
    assert len(named) > 15
    for test, path in named:
        assert re.search(rf"def {test}\(", (ROOT / path).read_text()), f"{path} has no {test}"


def test_the_page_names_every_command_and_key() -> None:
    called: set[str] = set()
    for path in (path for folder in LUA for path in folder.rglob("*.lua")):
        text = re.sub(r"--.*", "", path.read_text())
        called |= {name.lower() for name in re.findall(r"(?:p?call|push)\((?:.*? (?:and|or) )?'([A-Z]+)'", text)}
        called |= {name.lower() for name in re.findall(r"'(LPUSH|RPUSH|ZREM|ZADD)'", text)}
    assert {rule[1:] for rule in rules() if rule.startswith("+")} == called | BY_CONNECTION
    for key in apressure.EventQueue("x")._driver.steps.keys.ours:
        assert f"`{key.decode().rpartition(':')[2]}`" in PAGE


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_user_can_do_everything(make_server: Callable[..., EmbeddedServer], kind: str) -> None:
    server = make_server(kind)
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "worker", *rules())
    url = server.url.replace("redis://", "redis://worker:geheim@")
    await play(url)
    with redis.Redis.from_url(url) as user, pytest.raises(redis.ResponseError, match=r"(?i)permission"):
        user.get("other")
    async with EventQueue("other", url=url) as other:
        with pytest.raises(PermissionDeniedError):
            await other.put(b"1")
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "worker", "resetchannels")
    async with EventQueue("orders", url=url) as queue:
        with pytest.raises(PermissionDeniedError):
            await queue.put(b"1")
        assert not await queue.exists()  # it may not publish: nothing was put


async def play(url: str) -> None:
    """Everything that a queue does."""
    async with EventQueue("orders", url=url, max_attempts=1) as queue, EventQueue("orders", url=url) as other:
        waiting = asyncio.create_task(other.receive(lease=0.1))
        await asyncio.sleep(0.1)
        await queue.create(bound=1)
        await queue.put(b"1", id="a")
        delivery = await in_time(waiting)
        await delivery.extend(0.2)
        again = await in_time(other.receive(lease=60))
        await again.nack()
        with pytest.raises(TimeoutError):
            await queue.receive(timeout=0)
        putting = [asyncio.create_task(queue.put(b"2", front=True)), asyncio.create_task(other.put(b"3"))]
        for _ in range(2):
            await in_time(other.get())
        await in_time(asyncio.gather(*putting))
        assert await queue.requeue() == 1
        assert (await queue.statistics()).length == 1
        await registers(queue)
        await queue.peek()
        await queue._driver.steps.mend()
        await queue.set_rate(1, 0.05)
        await queue.set_concurrency(1)
        await queue.hold(0.02)
        assert await other.limits() != await queue._driver.steps.ready()
        await in_time(other.receive(lease=0.1))
        await in_time((await in_time(other.receive())).ack())
        await queue.purge()
        await event_steps.push(queue._driver.steps, [(b"x", b"1"), (b"x", b"2")])
        await queue._driver.steps.flush()
        await queue.set_concurrency(None)
        await queue.set_rate(None)
        await queue.set_key("/customer")
        keyed = b'{"customer": 7}'
        await queue.put(keyed)
        held = await in_time(queue.receive())
        await queue.put(keyed, key="7")
        with pytest.raises(TimeoutError):
            await queue.receive(timeout=0)
        assert (await queue.statistics()).parked == 1
        await held.ack()
        assert await in_time(other.get()) == keyed
        await queue.set_key(at_most=None, fair=False)
        await queue.put(b"4")
        await queue.close()
        await queue.wait_closed()
        async with other.consumer() as consumer:
            assert [item async for item in consumer] == [b"4"]
        with contextlib.suppress(QueueDoesNotExistError):
            await queue.delete()
