"""Servers that refuse: passwords, rights, age, memory, replicas; and a server that is not there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import redis

from apressure import (
    AsyncQueue,
    AuthenticationError,
    Client,
    OutcomeUnknownError,
    OutOfMemoryError,
    PermissionDeniedError,
    ReadOnlyError,
    ScriptingRefusedError,
    ServerError,
    ServerTooOldError,
    ServerUnavailableError,
)
from apressure.embedded import EmbeddedServer
from tests.integration.conftest import Opener, blocking, eventually, everything, fails, in_time, refusals
from tests.servers import SERVERS, admin
from tests.unit.fakes import listening

Make = Callable[..., EmbeddedServer]
both = pytest.mark.parametrize("kind", SERVERS)
SECRET = "geh3im"


def port_without_server() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_every_operation_on_a_server_that_is_down_raises_a_clear_error(scripting: bool) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{port_without_server()}"
    queue = AsyncQueue("jobs", url=url, scripting=scripting)
    operations: list[Any] = [
        queue.create(), queue.exists(), queue.qsize(), queue.bound(), queue.closed(), queue.statistics(),
        queue.put(b"x"), queue.put(b"x", force=True), queue.put_nowait(b"x"), queue.put_many([b"x"]), queue.get(),
        queue.get_nowait(), queue.get_many(1), queue.peek(), queue.peek_newest(), queue.close(), queue.wait_closed(),
        queue.delete(), queue.__anext__(), queue.client.queues(), queue.producer().__aenter__(), queue.__aenter__(),
    ]  # fmt: skip
    if scripting:
        operations += [
            queue.receive(),
            queue.consumer().__aenter__(),
            queue.producer(exclusive=True).__aenter__(),
        ]
    for operation in operations:
        raised = await fails(ServerUnavailableError, operation, r"cannot reach the server at 127\.0\.0\.1")
        assert isinstance(raised, ConnectionError)
        assert SECRET not in str(raised)
    await queue.aclose()


async def test_an_object_works_when_the_server_comes_back(make_server: Make, scripting: bool) -> None:
    port = port_without_server()
    queue = AsyncQueue("jobs", port=port, scripting=scripting)
    with pytest.raises(ServerUnavailableError):
        await queue.exists()
    make_server(port=port)
    await queue.create()
    await queue.put(b"x")
    assert await queue.get() == b"x"
    await queue.aclose()


async def test_a_host_that_does_not_exist_is_named() -> None:
    await fails(
        ServerUnavailableError, AsyncQueue("jobs", host="no-such-host.invalid").exists(), r"no-such-host\.invalid"
    )


async def test_a_unix_socket_that_does_not_exist_is_named(tmp_path: Any) -> None:
    with pytest.raises(ServerUnavailableError, match=r"none\.sock"):
        await AsyncQueue("jobs", url=f"unix://{tmp_path}/none.sock").exists()


@both
async def test_a_password_is_wanted_and_checked(make_server: Make, kind: str, scripting: bool) -> None:
    server = make_server(kind, config={"requirepass": SECRET})
    port = server.url.rpartition(":")[2].partition("/")[0]
    for url, says in (
        (f"redis://127.0.0.1:{port}", "refused|password"),
        (f"redis://:wr0ng@127.0.0.1:{port}", "refused"),
    ):
        queue = AsyncQueue("jobs", url=url, scripting=scripting)
        for operation in (queue.create, queue.get, queue.statistics):
            raised = await fails(AuthenticationError, operation(), says)
            assert "wr0ng" not in str(raised)
        await queue.aclose()
    async with AsyncQueue("jobs", host="127.0.0.1", port=int(port), password=SECRET, scripting=scripting) as queue:
        await queue.create()
        await queue.put(b"x")
        assert await queue.get() == b"x"
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.05)  # the waiters' connections have the password, too
        await queue.delete()


def allow(server: EmbeddedServer, user: str, *rules: str) -> str:
    """Make a user, and return the URL with it."""
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", user, "reset", "on", f">{SECRET}", "~*", "&*", *rules)
    return server.url.replace("redis://", f"redis://{user}:{SECRET}@")


@both
async def test_a_user_without_scripts_gets_a_clear_error_and_works_without_them(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    url = allow(server, "plain", "+@all", "-@scripting")
    async with AsyncQueue("jobs", url=url) as queue:
        for operation in (queue.create, queue.statistics, queue.delete):
            await fails(ScriptingRefusedError, operation(), "scripting=False")
    async with AsyncQueue("jobs", url=url, scripting=False) as queue:
        await queue.create(bound=1)
        await queue.put(b"x")
        with pytest.raises(TimeoutError):
            await queue.put(b"y", timeout=0.05)
        assert await queue.get() == b"x"
        await queue.close()
        await queue.delete()


@both
async def test_a_user_without_a_permission_learns_which(make_server: Make, kind: str, scripting: bool) -> None:
    server = make_server(kind)
    async with AsyncQueue("jobs", url=server.url) as owner:
        await owner.create(bound=1)
        await owner.put(b"x")
        url = allow(server, "reader", "+@all", "-lpush")
        async with AsyncQueue("jobs", url=url, scripting=scripting) as queue:
            raised = await fails(PermissionDeniedError, queue.close(), "needs the command")
            assert isinstance(raised, PermissionError)


@both
async def test_a_user_with_few_keys_gets_a_clear_error(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    with admin(server) as client:
        client.execute_command("ACL", "SETUSER", "few", "reset", "on", f">{SECRET}", "~other:*", "&*", "+@all")
    async with AsyncQueue("jobs", url=server.url.replace("redis://", f"redis://few:{SECRET}@")) as queue:
        with pytest.raises(PermissionDeniedError):
            await queue.create()


async def test_a_server_that_is_too_old_is_a_clear_error() -> None:
    information = b"# Server\r\nredis_version:5.0.7\r\nredis_mode:standalone\r\n"

    def answer(data: bytes) -> bytes:
        info = b"$%d\r\n%s\r\n" % (len(information), information)
        return b"".join(info if b"INFO" in command else b"+OK\r\n" for command in data.split(b"*")[1:])

    async with listening(answer) as url:
        queue = AsyncQueue("jobs", url=url)
        for _ in range(2):
            await fails(ServerTooOldError, queue.create(), r"Redis 5\.0.*Redis 6\.2 or later, or Valkey")
        await queue.aclose()


@both
async def test_a_database_that_does_not_exist_is_a_clear_error(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    with pytest.raises(ServerError, match="out of range"):
        await AsyncQueue("jobs", url=server.url, db=99).exists()


@both
async def test_a_full_server_refuses_puts_and_lets_consumers_make_room(
    make_server: Make, kind: str, scripting: bool
) -> None:
    server = make_server(kind)
    async with AsyncQueue("jobs", url=server.url, scripting=scripting) as queue:
        await queue.create()
        await queue.put_many([b"1", b"2", b"3"])
        with admin(server) as db:
            db.config_set("maxmemory", "1mb")
            before = everything(db)
            for put in (
                queue.put(b"x"),
                queue.put_nowait(b"x"),
                queue.put_many([b"x"] * 10),
                queue.put(b"x", force=True),
            ):
                await fails(OutOfMemoryError, put, "maxmemory")
            if scripting:
                assert everything(db) == before
                assert await queue.get() == b"1"
                delivery = await queue.receive()
                assert delivery.item == b"2"
                await delivery.extend(5)
                await delivery.nack()
                await (await queue.receive()).ack()
                async with queue.consumer() as consumer:
                    assert await anext(consumer) == b"3"
                await queue.close()
            db.config_set("maxmemory", 0)
        assert (await queue.statistics()).producer.state == "free"
        if not scripting:
            await queue.put(b"4")
        await in_time(queue.delete())


@both
async def test_an_expired_lease_heals_on_a_full_server_and_puts_are_refused_all_the_same(
    make_server: Make, kind: str
) -> None:
    server = make_server(kind)
    async with AsyncQueue("jobs", url=server.url) as queue, AsyncQueue("jobs", url=server.url) as dead:
        await queue.create()
        await queue.put(b"1")
        await dead.receive()
        with admin(server) as db:
            db.hset("apressure:__pressure__:jobs:consumer_lease", "deadline", 1)
            db.config_set("maxmemory", "1mb")
            for _ in range(3):
                await fails(OutOfMemoryError, queue.put(b"x"))
            assert await in_time(queue.get()) == b"1"
            db.config_set("maxmemory", 0)


@both
async def test_a_blocked_wait_on_a_full_server_recovers(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    async with AsyncQueue("jobs", url=server.url) as queue, AsyncQueue("jobs", url=server.url) as other:
        await queue.create(bound=1)
        with admin(server) as db:
            waiting = await blocking(db, queue.get())
            db.config_set("maxmemory", "1mb")
            late = asyncio.create_task(other.get())
            await eventually(lambda: refusals(db, "OOM") > 5)  # each of the two is refused, and asks again
            assert not waiting.done()
            assert not late.done()
            db.config_set("maxmemory", 0)
            await other.put(b"1")
            await other.put(b"2")
            assert sorted(await in_time(asyncio.gather(waiting, late))) == [b"1", b"2"]


@both
async def test_a_read_only_replica_says_so(make_server: Make, kind: str, scripting: bool) -> None:
    config = {"repl-diskless-sync-delay": "0"}
    primary, replica = make_server(kind, config=config), make_server(kind, config=config)
    port = primary.url.rpartition(":")[2].partition("/")[0]
    with admin(replica) as db:
        db.execute_command("REPLICAOF", "127.0.0.1", port)
        async with AsyncQueue("jobs", url=primary.url) as owner:
            await owner.create()
            await owner.put(b"x")
            await eventually(lambda: db.exists("__pressure__:jobs"))
        async with AsyncQueue("jobs", url=replica.url, scripting=scripting) as queue:
            for operation in (queue.put(b"y"), queue.get(), queue.close(), queue.delete(), queue.put_nowait(b"y")):
                await fails(ReadOnlyError, operation, "primary")
            # Looking is allowed.
            assert await queue.exists()
            assert await queue.peek() == b"x"
            assert await queue.qsize() == 1
            assert await queue.client.queues() == ["jobs"]


CORRUPT: list[tuple[str, Callable[[redis.Redis, str], Any]]] = [
    ("", lambda db, key: db.set(key, "text")),
    (":bound", lambda db, key: db.set(key, "many")),
    (":bound", lambda db, key: db.set(key, "1e3")),
    (":bound", lambda db, key: db.set(key, "9" * 30)),
    (":bound", lambda db, key: (db.delete(key), db.lpush(key, 1))),
    (":stats:produced_messages", lambda db, key: db.set(key, "many")),
    (":stats:produced_bytes", lambda db, key: db.set(key, "1.5")),
    (":stats:consumed_messages", lambda db, key: db.set(key, "many")),
    (":stats:consumed_bytes", lambda db, key: db.set(key, "")),
    (":not_full", lambda db, key: (db.delete(key), db.set(key, "text"))),
    (":producer_free", lambda db, key: (db.delete(key), db.set(key, "text"))),
    (":consumer_free", lambda db, key: (db.delete(key), db.set(key, "text"))),
]


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    ("suffix", "damage"), CORRUPT, ids=[f"{index}{suffix}" for index, (suffix, _) in enumerate(CORRUPT)]
)
async def test_a_damaged_key_is_a_clear_error_and_nothing_is_written(
    url: str, db: redis.Redis, suffix: str, damage: Callable[[redis.Redis, str], Any]
) -> None:
    async with AsyncQueue("jobs", url=url) as queue:
        await queue.create(bound=2)
        await queue.put(b"1")
        if suffix == "":
            await queue.get()
        damage(db, f"__pressure__:jobs{suffix}")
        before = everything(db)
        refusals: list[str] = []
        for operation in (queue.put(b"x", 0), queue.put_many([b"x", b"y"], 0), queue.get(0), queue.receive(0)):
            try:
                await in_time(operation)
            except TimeoutError:
                before = everything(db)  # full or empty, as it should be: this operation does not use the key
            except ServerError as error:
                refusals.append(str(error))
                assert everything(db) == before
            else:
                before = everything(db)
        assert refusals
        assert all("'jobs'" in text or "WRONGTYPE" in text for text in refusals)


@pytest.mark.leaves_keys
@pytest.mark.parametrize("suffix", [":stats:produced_messages", ":stats:produced_bytes", ":bound"])
async def test_without_scripts_a_damaged_number_strands_no_role_and_no_message(
    url: str, db: redis.Redis, suffix: str
) -> None:
    async with AsyncQueue("jobs", url=url, scripting=False) as queue:
        await queue.create()
        good = db.get(f"__pressure__:jobs{suffix}") or b"0"
        db.set(f"__pressure__:jobs{suffix}", "many")
        await fails(ServerError, queue.put(b"x"))
        assert db.llen("__pressure__:jobs:producer_free") == 1
        assert db.llen("__pressure__:jobs") == 0
        db.set(f"__pressure__:jobs{suffix}", good)
        await in_time(queue.put(b"y"))
        assert await in_time(queue.get()) == b"y"


@pytest.mark.leaves_keys
@pytest.mark.parametrize("suffix", [":bound", ":stats:produced_messages", ":stats:consumed_bytes"])
async def test_statistics_of_a_damaged_queue_name_the_damage(
    url: str, db: redis.Redis, scripting: bool, suffix: str
) -> None:
    async with AsyncQueue("jobs", url=url, scripting=scripting) as queue:
        await queue.create()
        db.set(f"__pressure__:jobs{suffix}", "many")
        with pytest.raises(ServerError, match=r"'jobs'.*(bound|produced_messages|consumed_bytes)"):
            await queue.statistics()


async def test_a_message_larger_than_the_server_takes_is_refused_and_the_object_lives_on(
    make_server: Make, open_queue: Opener
) -> None:
    server = make_server("valkey", config={"proto-max-bulk-len": "1mb"})
    async with AsyncQueue("jobs", url=server.url, retry_timeout=1.0) as queue:
        await queue.create()
        raised = await fails(
            ServerError, queue.put(b"x" * (2 << 20)), r"proto-max-bulk-len.*max_message_size.*nothing was written"
        )
        assert not isinstance(raised, OutcomeUnknownError)
        await queue.put(b"small")
        assert await queue.get() == b"small"


async def test_the_repr_of_a_client_shows_its_server() -> None:
    assert "127.0.0.1:7777 (database 3)" in repr(Client("redis://127.0.0.1:7777/3"))
