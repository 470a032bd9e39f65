"""A server refuses commands: nothing is lost or doubled, and operations work again afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Self

import pytest

from apressure import (
    AsyncQueue,
    AuthenticationError,
    OutcomeUnknownError,
    OutOfMemoryError,
    PermissionDeniedError,
    ReadOnlyError,
    ServerError,
    ServerUnavailableError,
)
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.embedded import EmbeddedServer
from tests.integration import states
from tests.integration.conftest import blocked, eventually, everything, fails, in_time
from tests.servers import SERVERS, admin

Make = Callable[..., EmbeddedServer]
State = Callable[[EmbeddedServer], AbstractContextManager[None]]
both = pytest.mark.parametrize("kind", SERVERS)

LASTING: dict[str, tuple[State, type[ServerError], str]] = {
    "MISCONF": (states.cannot_save, ServerError, "make room on its disk.*nothing was written"),
    "READONLY": (states.read_only, ReadOnlyError, "connect to the primary; nothing was written"),
    "NOPERM commands": (states.no_rights, PermissionDeniedError, "needs the command and the key"),
    "NOPERM keys": (states.no_keys, PermissionDeniedError, "needs the command and the key"),
    "WRONGPASS": (states.another_password, AuthenticationError, "refused the credentials|check username"),
}
PASSING: dict[str, tuple[State, str]] = {
    "NOREPLICAS": (states.without_replicas, "min-replicas-to-write; nothing was written"),
    "MASTERDOWN": (states.without_primary, "connect to the primary; nothing was written"),
    "BUSY": (states.busy, "SCRIPT KILL; nothing was written"),
    "LOADING": (states.loading, "try again when it is ready; nothing was written"),
}


class Work:
    """Two queues in the middle of their work: `jobs` has a message, `tasks` one in flight and one behind it."""

    def __init__(self, server: EmbeddedServer, url: str, **options: Any) -> None:
        self.server = server
        self.jobs = AsyncQueue("jobs", url=url, **options)
        self.tasks = AsyncQueue("tasks", client=self.jobs.client)

    async def __aenter__(self) -> Self:
        await self.jobs.create()
        await self.tasks.create()
        await self.jobs.put(b"1")
        await self.tasks.put_many([b"a", b"b"])
        self.delivery = await self.tasks.receive()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.aclose()
        await self.jobs.aclose()
        await self.jobs.client.aclose()

    def operations(self) -> list[Any]:
        return [self.jobs.put(b"2"), self.jobs.get(), self.tasks.receive()]

    async def go_on(self) -> None:
        """All is there, once, and everything works."""
        await in_time(self.jobs.put(b"2"))
        assert await in_time(self.jobs.get_many(9)) == [b"1", b"2"]
        await in_time(self.delivery.ack())
        second = await in_time(self.tasks.receive())
        assert second.item == b"b"
        await in_time(second.ack())
        statistics = await self.jobs.statistics(), await self.tasks.statistics()
        assert [(s.produced_messages, s.consumed_messages, s.length) for s in statistics] == [(2, 2, 0), (2, 2, 0)]


async def look_for_the_connection(work: Work) -> None:
    """Notice that a connection is gone, where it is: a step that was sent on it would not know its outcome."""
    with suppress(ServerError, ServerUnavailableError):
        await work.jobs.exists()


@both
@pytest.mark.parametrize("name", LASTING)
async def test_a_lasting_state_is_an_error_that_says_what_to_do(make_server: Make, kind: str, name: str) -> None:
    state, error, advice = LASTING[name]
    server = make_server(kind, config=states.CONFIG)
    async with Work(server, states.user(server), retry_timeout=0.2) as work:
        with admin(server) as db:
            before = everything(db)
            with state(server):
                await look_for_the_connection(work)
                for operation in work.operations():
                    raised = await fails(error, operation, f"(?s){advice}")
                    assert isinstance(raised, ServerError)
                    assert raised.code == name.partition(" ")[0]
                assert everything(db) == before
        await work.go_on()


@both
@pytest.mark.parametrize("name", PASSING)
async def test_a_temporary_state_only_takes_time(
    make_server: Make, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = PASSING[name]
    refused: list[str] = []  # a busy server cannot be asked
    later = ReconnectingConnection._retry_later
    monkeypatch.setattr(
        ReconnectingConnection,
        "_retry_later",
        lambda link, request, reply: (refused.append(reply.code), later(link, request, reply))[1],
    )
    server = make_server(kind, config=states.CONFIG)
    async with Work(server, states.user(server)) as work:
        with state(server):
            tasks = [asyncio.ensure_future(operation) for operation in work.operations()]
            if name != "LOADING":  # that one ends by itself
                await eventually(lambda: refused.count(name) > len(tasks))
                assert not any(task.done() for task in tasks)
        _, got, second = await in_time(asyncio.gather(*tasks))
        assert got == b"1"
        assert second.item == b"b"
        assert await in_time(work.jobs.get_many(9)) == [b"2"]
        await work.delivery.ack()
        await second.ack()
        statistics = await work.jobs.statistics(), await work.tasks.statistics()
        assert [(s.produced_messages, s.consumed_messages, s.length) for s in statistics] == [(2, 2, 0), (2, 2, 0)]


@both
@pytest.mark.parametrize("name", PASSING)
async def test_a_state_that_does_not_pass_in_time_is_an_error(make_server: Make, kind: str, name: str) -> None:
    state, advice = PASSING[name]
    server = make_server(kind, config=states.CONFIG)
    async with Work(server, states.user(server), retry_timeout=0.05) as work:
        with state(server):
            for operation in work.operations():
                raised = await fails(ServerError, operation, advice)
                assert raised.code == name
        await work.go_on()


@both
@pytest.mark.parametrize("name", [*LASTING, *PASSING, "OOM"])
async def test_waits_that_meet_a_refusal_lose_nothing(make_server: Make, kind: str, name: str) -> None:
    state = states.out_of_memory if name == "OOM" else {**LASTING, **PASSING}[name][0]
    server = make_server(kind, config=states.CONFIG)
    url = states.user(server)
    async with AsyncQueue("full", url=url, retry_timeout=5.0) as full, AsyncQueue("empty", client=full.client) as empty:
        await full.create(bound=1)
        await empty.create()
        await full.put(b"1")
        putting, getting = asyncio.ensure_future(full.put(b"2")), asyncio.ensure_future(empty.get())
        with admin(server) as db:
            await blocked(db, 4)  # each watches the end, too
            with state(server):
                if name != "LOADING":
                    await asyncio.sleep(0.1)
            # The owner goes on when the state has ended; the waiting operation may have raised it.
            async with AsyncQueue("full", url=server.url) as owner, AsyncQueue("empty", url=server.url) as giver:
                await giver.put(b"3")
                assert await in_time(owner.get()) == b"1"
                await in_time(asyncio.wait((putting, getting)))
                for task, queue, item in ((putting, owner, b"2"), (getting, giver, b"3")):
                    error = task.exception()
                    there = await queue.get_many(9, timeout=0) if await queue.qsize() else []
                    if error is not None:
                        assert isinstance(error, ServerError)
                        assert there == ([] if task is putting else [item])
                    elif task is putting:
                        assert there == [item]
                    else:
                        assert task.result() == item
                        assert there == []


@both
async def test_a_wait_that_another_client_unblocks_goes_on(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    async with AsyncQueue("jobs", url=server.url) as queue, AsyncQueue("jobs", url=server.url) as other:
        await queue.create()
        getting = asyncio.ensure_future(queue.get())
        with admin(server) as db:
            for how in ("ERROR", "TIMEOUT"):
                await blocked(db, 2)
                waiting = [client["id"] for client in db.client_list() if "b" in client["flags"]]
                for number in waiting:
                    db.execute_command("CLIENT", "UNBLOCK", number, how)
                await eventually(
                    lambda ids=waiting: any("b" in c["flags"] for c in db.client_list())  # it waits again
                )
        assert not getting.done()
        await other.put(b"1")
        assert await in_time(getting) == b"1"


@both
async def test_a_full_server_refuses_a_put_and_it_is_put_once_afterwards(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    async with Work(server, states.user(server)) as work:
        with states.out_of_memory(server), pytest.raises(OutOfMemoryError, match="nothing was written"):
            await work.jobs.put(b"2")
        await work.go_on()


@both
async def test_a_server_that_begins_to_want_a_password(make_server: Make, kind: str) -> None:
    server = make_server(kind)
    async with Work(server, server.url, retry_timeout=0.2) as work:
        with admin(server) as db:
            db.config_set("requirepass", "geh3im")
            db.client_kill_filter(_type="normal", skipme=True)
            await look_for_the_connection(work)
            refused: list[type[BaseException]] = []
            for operation in work.operations():
                # The server ends a connection that sends much before it has authenticated.
                with pytest.raises((AuthenticationError, OutcomeUnknownError)) as raised:
                    await in_time(operation)
                refused.append(raised.type)
            assert AuthenticationError in refused
            db.config_set("requirepass", "")
        await work.go_on()


REFUSED_MIDWAY = [states.cannot_save, states.without_replicas, states.read_only]


@both
@pytest.mark.parametrize("state", REFUSED_MIDWAY)
async def test_without_scripts_a_refusal_strands_no_role(make_server: Make, kind: str, state: State) -> None:
    server = make_server(kind, config=states.CONFIG)
    async with AsyncQueue("jobs", url=server.url, scripting=False, retry_timeout=0.2) as queue:
        await queue.create(bound=1)
        await queue.put(b"1")
        putting = asyncio.ensure_future(queue.put(b"2"))  # has the role, and waits for room
        with admin(server) as db:
            await blocked(db)
            with state(server), pytest.raises(ServerError, match="nothing was written"):
                await in_time(queue.get())
            assert await in_time(queue.get()) == b"1"
            await in_time(asyncio.wait((putting,)))
            await eventually(lambda: db.llen("__pressure__:jobs:producer_free") == 1)
            if putting.exception() is None:
                assert await in_time(queue.get()) == b"2"
        await in_time(queue.delete())


async def test_a_server_in_protected_mode_is_a_clear_error() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-DENIED Redis is running in protected mode because no password is set\r\n")
        writer.close()

    # A stand-in: no address of this machine is a stranger to a real server.
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = "redis://{}:{}/0".format(*server.sockets[0].getsockname())
        async with asyncio.timeout(60):
            with pytest.raises(AuthenticationError, match=r"protected mode.*requirepass"):
                async with AsyncQueue("jobs", url=url) as queue:
                    await queue.create()
