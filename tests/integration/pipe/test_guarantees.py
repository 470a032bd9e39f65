"""Between which queues `pipe` is exactly once, and what it does elsewhere."""

from __future__ import annotations

import logging
from typing import Any

import fakeredis
import pytest
import redis

from apressure import (
    AsyncQueue,
    Client,
    Durability,
    ExactlyOnceError,
    FileQueue,
    Piped,
    QueueDoesNotExistError,
    ServerUnavailableError,
)
from apressure.connection.wire.reconnecting import ReconnectingConnection
from tests.integration.acl_roles import PASSWORD, documented
from tests.integration.conftest import Opener, in_time
from tests.integration.pipe.conftest import Pair, Pipe, begun, drained, items, same, tidy
from tests.servers import SERVERS, admin


@pytest.mark.parametrize("how", ["one client", "two clients", "another name of the server"])
async def test_one_server_is_recognized(
    pipe: Pipe, two: Pair, url: str, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO)
    source, destination = await two(3)
    if how == "one client":
        async with Client(url) as client:
            pair: Any = [AsyncQueue(name, client=client) for name in ("in", "out")]
            done = await in_time(pipe(*pair[:1], same, *pair[1:], exactly_once=True))
    else:
        other = url.replace("127.0.0.1", "localhost") if how.startswith("another") else url
        done = await in_time(pipe(source, same, AsyncQueue("out", url=other), exactly_once=True))
    assert done == Piped(3, 3, 0, exactly_once=True)
    assert "the pipe from 'in' to 'out' works exactly once" in caplog.text
    assert await drained(destination) == items(3)


async def test_a_replica_that_takes_over_meanwhile_is_no_other_server(
    pipe: Pipe, two: Pair, db: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not heard of the key by which the two clients recognize their server."""
    source, destination = await two(3)
    ask = ReconnectingConnection.ask
    lost: list[Any] = []

    async def forgetful(connection: ReconnectingConnection, *command: Any, **options: Any) -> Any:
        answer = await ask(connection, *command, **options)
        if command[0] == b"SET" and not lost:
            lost.append(db.delete(command[1]))
        return answer

    monkeypatch.setattr(ReconnectingConnection, "ask", forgetful)
    done = await in_time(pipe(source, same, destination, exactly_once=True))
    assert lost == [1]
    assert done == Piped(3, 3, 0, exactly_once=True)
    assert await drained(destination) == items(3)


@pytest.mark.parametrize("how", ["another database", "another server", "plain", "asked for", "files"])
async def test_at_least_once_elsewhere(
    pipe: Pipe, two: Pair, url: str, caplog: pytest.LogCaptureFixture, make_server: Any, tmp_path: Any, how: str
) -> None:
    caplog.set_level(logging.INFO)
    source, _ = await two(30)
    elsewhere: dict[str, Any] = {"url": url}
    why = {
        "another database": "in different databases", "another server": "on different servers",
        "plain": "without scripting=False", "asked for": "exactly_once=False", "files": "is of class FileQueue",
    }[how]  # fmt: skip
    if how == "another database":
        elsewhere = {"url": url.removesuffix("/0") + "/1"}
    elif how == "another server":
        elsewhere = {"url": make_server().url}
    elif how == "plain":
        elsewhere["scripting"] = False
    destination: Any = FileQueue(tmp_path / "out") if how == "files" else AsyncQueue("out", **elsewhere)
    async with destination:
        await destination.create(exist_ok=True)
        if how != "asked for":
            with pytest.raises(ExactlyOnceError, match=f"^exactly once is impossible from the queue 'in' .*{why}"):
                await pipe(source, same, destination, exactly_once=True)
            assert await source.qsize() == 30
            option = None
        else:
            option = False
        done = await in_time(pipe(source, same, destination, exactly_once=option, close=True))
        assert done == Piped(30, 30, 0, exactly_once=False)
        assert why in caplog.text
        assert "works at least once" in caplog.text
        if how == "files":
            got = []
            async with destination.consumer() as consumer:
                async for item in consumer:
                    got.append(item)
        else:
            got = [item async for item in destination]
        assert got == items(30)
        await destination.delete()
    await tidy(source)


async def test_a_user_without_rights_on_the_source(pipe: Pipe, two: Pair, url: str, db: redis.Redis) -> None:
    source, destination = await two(2)
    db.execute_command("ACL", "SETUSER", "out-only", "on", ">secret", "~*:out*", "+@all")
    try:
        async with AsyncQueue("out", url=url.replace("redis://", "redis://out-only:secret@")) as limited:
            with pytest.raises(ExactlyOnceError, match="one user needs the rights on the keys of both"):
                await pipe(source, same, limited, exactly_once=True)
            assert not (await in_time(pipe(source, same, limited))).exactly_once
    finally:
        db.execute_command("ACL", "DELUSER", "out-only")
    assert await drained(destination) == items(2)


async def test_different_durability(pipe: Pipe, two: Pair, url: str) -> None:
    source, _ = await two()
    async with AsyncQueue("out", url=url, durability=Durability(1, timeout=0.01)) as destination:
        with pytest.raises(ExactlyOnceError, match="have different durability="):
            await pipe(source, same, destination, exactly_once=True)


async def test_a_move_that_too_few_confirm_was_made(
    pipe: Pipe, two: Pair, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, destination = await two(20)
    async with Client(url, durability=Durability(1, timeout=0.01)) as client:
        unsure = [AsyncQueue[bytes](name, client=client) for name in ("in", "out")]
        done = await in_time(pipe(unsure[0], same, unsure[1], exactly_once=True))
    assert (done.handled, done.put) == (20, 20)
    assert "0 of 1 replicas have confirmed it" in caplog.text
    assert await drained(destination) == items(20)


async def test_a_queue_does_not_lead_to_itself(pipe: Pipe, two: Pair, open_queue: Opener) -> None:
    source, _ = await two()
    with pytest.raises(ValueError, match="itself"):
        await pipe(source, same, await open_queue("in", create=False))


async def test_a_server_that_is_not_there(pipe: Pipe, two: Pair) -> None:
    source, _ = await two(1)
    with pytest.raises(ServerUnavailableError):
        await pipe(source, same, AsyncQueue("out", url="redis://127.0.0.1:1"))
    assert await drained(source) == [b"0"]


@pytest.mark.parametrize("missing", ["in", "out"])
async def test_a_queue_that_does_not_exist(pipe: Pipe, two: Pair, missing: str) -> None:
    source, destination = await two(1)
    await (source if missing == "in" else destination).delete()
    with pytest.raises(QueueDoesNotExistError, match=missing):
        await in_time(pipe(source, same, destination))


async def test_on_fakeredis(pipe: Pipe) -> None:
    server = fakeredis.FakeServer()
    redis = fakeredis.FakeAsyncRedis(server=server)
    async with AsyncQueue("in", redis=redis) as source, AsyncQueue("out", redis=redis) as destination:
        await source.create()
        await destination.create(bound=5)
        await source.put_many(items(20))
        await source.close()
        task = await begun(pipe(source, same, destination, exactly_once=True, close=True))
        assert [item async for item in destination] == items(20)
        assert (await in_time(task)).handled == 20


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_users_of_the_docs_can_run_a_stage(pipe: Pipe, make_server: Any, kind: str) -> None:
    """The consumer's rights on the source and the producer's on the destination are enough."""
    server = make_server(kind)
    rules = []
    for role, name in (("consumer", "in"), ("producer", "out")):
        rules += [rule.replace("orders", name) for rule in documented(plain=False)[role] if rule[0] in "~+("]
    with admin(server) as db:
        db.execute_command("ACL", "SETUSER", "stage", "reset", "on", f">{PASSWORD}", "resetchannels", *rules)
    stage = {"url": server.url.replace("redis://", f"redis://stage:{PASSWORD}@")}
    async with AsyncQueue("in", url=server.url) as source, AsyncQueue("out", url=server.url) as destination:
        await source.create()
        await destination.create(bound=3)
        await source.put_many(items(10))
        await source.close()
        work = pipe(AsyncQueue("in", **stage), same, AsyncQueue("out", **stage), exactly_once=True, close=True)
        task = await begun(work)
        assert [item async for item in destination] == items(10)
        await in_time(task)
