"""The pytest plugin, in projects of its users: fixtures, servers, faults, and what a test leaves behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import distribution

import pytest
import redis

from apressure.embedded import EmbeddedServer
from tests.documentation.blocks import DOCS, blocks

pytest_plugins = ["pytester"]

PAGES = [DOCS / page for page in ("do/testing.md", "do/faults.md", "reference/contract.md")]

CONFTEST = """
pytest_plugins = ["apressure.testing.plugin"]
"""
HASTY = """
import pytest
from apressure.testing import server

@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(server, "GRACE", 0.1)  # what these tests leave behind does not end by itself
"""


class Project:
    """A project with tests."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeconftest(CONFTEST)

    def run(self, *arguments: str, mode: str = "auto", apart: bool = False) -> pytest.RunResult:
        """Run the tests; apart, in a process of their own, which is slower, and where leaks disturb nobody."""
        how = self._pytester.runpytest_subprocess if apart else self._pytester.runpytest_inprocess
        return how(
            "-p", "no:valkey", "-p", "no:cacheprovider", "-W", "error", "-o", f"asyncio_mode={mode}",
            "-o", "asyncio_default_fixture_loop_scope=function", *arguments,
        )  # fmt: skip

    def write(self, **modules: str) -> None:
        """Write modules."""
        self._pytester.makepyfile(**modules)


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project(pytester)


@pytest.fixture
def other_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tcp=True) as server:
        yield server


def files_of_the_pages() -> dict[str, str]:
    """The modules that the pages show; blocks without a name continue the module before."""
    modules: dict[str, str] = {}
    name = ""
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "python":
            name = block.title.removesuffix(".py") or name
            modules[name] = f"{modules.get(name, '')}\n\n{block.code}"
    return modules


@pytest.mark.slow
def test_the_code_of_the_pages_runs(project: Project) -> None:
    modules = files_of_the_pages()
    assert set(modules) == {
        "orders", "conftest", "test_orders", "test_in_memory", "test_faults", "test_my_queue", "test_my_whole_queue",
    }  # fmt: skip
    project.write(**modules)
    result = project.run()
    assert result.ret == 0, result.stdout.str()
    assert result.parseoutcomes()["passed"] >= 11 + 25 + 85


def test_nothing_is_in_effect_where_nobody_asked_for_it() -> None:
    assert [point for point in distribution("apressure").entry_points if point.group == "pytest11"] == []


LEAKS = (
    HASTY
    + """
import asyncio
import pytest
from apressure import AsyncQueue

kept = []

async def test_roles(hasty, pressure_server):
    queue = await pressure_server.queue("orders", client_id="forgetful")
    await queue.consumer().__aenter__()
    await queue.producer(exclusive=True).__aenter__()
    for client in ("forgetful", "another"):
        queue = await pressure_server.queue("more", client_id=client)
        await queue.consumer(shared=True).__aenter__()

async def test_deliveries(hasty, pressure_server):
    for kind in ("queue", "events", "tasks", "files"):
        queue = await getattr(pressure_server, kind)(codec="raw")
        await queue.put(b"1")
        kept.append(await queue.receive())

async def test_waiting(hasty, pressure_server, pressure_queue):
    kept.append(asyncio.create_task(pressure_queue.get()))
    await asyncio.sleep(0.1)

async def test_client(hasty, pressure_server):
    queue = AsyncQueue("orders", **pressure_server.options)
    kept.append(queue)
    await queue.create()

@pytest.mark.pressure_leaves("roles", "deliveries")
async def test_allowed(hasty, pressure_queue):
    await pressure_queue.put(b"1")
    kept.append(await pressure_queue.receive())

@pytest.mark.pressure_leaves
async def test_all_allowed(hasty, pressure_server, pressure_queue):
    kept.append(AsyncQueue("orders", **pressure_server.options))
    await kept[-1].create()
    await pressure_queue.consumer().__aenter__()

@pytest.mark.pressure_leaves("roles")
async def test_not_allowed(hasty, pressure_queue):
    await pressure_queue.put(b"1")
    kept.append(await pressure_queue.receive())

@pytest.mark.pressure_leaves("rolls")
async def test_misspelled(hasty, pressure_queue):
    pass

async def test_fails_for_one_reason(pressure_queue):
    await pressure_queue.put(b"1")
    kept.append(await pressure_queue.receive())
    assert False, "the reason"

async def test_the_next_one_finds_nothing(pressure_server, pressure_queue):
    assert await pressure_queue.client.queues() == ["queue"]
    assert await pressure_queue.qsize() == 0
"""
)


def verdicts(result: pytest.RunResult) -> dict[str, str]:
    """What the run says of each test that left something behind."""
    parts = re.split(r"^_+ ERROR at teardown of (\S+) _+$", result.stdout.str(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("server", ["embedded", "fake"])
def test_what_a_test_leaves_behind_fails_it(project: Project, server: str) -> None:
    project.write(test_leaks=LEAKS)
    result = project.run("-W", "default", f"--pressure-server={server}", apart=True)
    said = verdicts(result)
    assert "'orders': the consumer role is held by 'forgetful'. Leave the block of consumer()" in said["test_roles"]
    assert "'orders': the producer role is held by 'forgetful'. Leave the block of producer()" in said["test_roles"]
    for client in ("forgetful", "another"):
        assert f"'more': the consumer role is shared by '{client}'" in said["test_roles"]
    for queue in ("AsyncQueue 'queue'", "EventQueue 'events'", "TaskQueue 'tasks'", "FileQueue 'queue'"):
        assert f"{queue}: 1 received item is not settled. Call ack() or nack()" in said["test_deliveries"]
    assert "AsyncQueue 'queue': 1 asyncio task waits in get or receive. Cancel and await" in said["test_waiting"]
    assert "mark the test with @pytest.mark.pressure_leaves('tasks')" in said["test_waiting"]
    if server == "embedded":
        assert "open. Close each queue and client" in said["test_client"]
    assert "pressure_leaves('deliveries')" in said["test_not_allowed"]
    assert "the consumer role" not in said["test_not_allowed"]
    assert "pressure_leaves allows roles, deliveries, tasks, connections, and not 'rolls'" in said["test_misspelled"]
    assert len(said) == (6 if server == "embedded" else 5)
    result.assert_outcomes(passed=9, failed=1, errors=len(said))


LOOPS = (
    HASTY
    + '''
import asyncio
import subprocess
import sys
import pytest
import pytest_asyncio
from apressure import AsyncQueue, serve

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_anyio(pressure_queue):
    await pressure_queue.put(b"1")
    assert await pressure_queue.get() == b"1"

@pytest.mark.anyio
async def test_anyio_that_leaks(hasty, pressure_server):
    queue = await pressure_server.queue()
    await queue.consumer().__aenter__()

@pytest.mark.asyncio(loop_scope="module")
async def test_a_loop_of_the_module(pressure_queue):
    await pressure_queue.put(b"1")
    assert await pressure_queue.get() == b"1"

@pytest_asyncio.fixture(loop_scope="module")
async def service(pressure_server):
    """A service that runs in the background; it has the consumer role until the fixture ends."""
    queue = await pressure_server.queue("work")
    done = asyncio.Event()

    async def handle(item):
        done.set()

    serving = asyncio.create_task(serve(handle, queue, signals=()))
    yield queue, done
    await queue.close()
    await serving

@pytest.mark.asyncio(loop_scope="module")
async def test_a_service_of_a_fixture(service):
    queue, done = service
    await queue.put(b"1")
    await done.wait()

def test_a_process(pressure_server):
    code = """
import asyncio, sys
from apressure import AsyncQueue
async def main():
    async with AsyncQueue("orders", url=sys.argv[1]) as queue:
        await queue.create()
        await queue.put(b"1")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code, pressure_server.url], check=True)

    async def look():
        async with AsyncQueue("orders", url=pressure_server.url) as queue:
            return await queue.get()

    assert asyncio.run(look()) == b"1"

def test_a_client_of_no_plugin(hasty, pressure_server):
    loop = asyncio.new_event_loop()

    async def leave():
        queue = AsyncQueue("orders", url=pressure_server.url, client_id="alone")
        await queue.create()
        await queue.consumer().__aenter__()
        return queue

    global kept
    kept = loop, loop.run_until_complete(leave())

def test_without_a_loop(pressure_queue):
    pass
'''
)


def test_every_plugin_and_event_loop(project: Project) -> None:
    project.write(test_loops=LOOPS)
    result = project.run("-W", "default", mode="strict", apart=True)
    said = verdicts(result)
    assert set(said) == {"test_anyio_that_leaks", "test_a_client_of_no_plugin"}
    assert "the consumer role is held by 'alone'" in said["test_a_client_of_no_plugin"]
    assert "connection" in said["test_a_client_of_no_plugin"]
    assert "pressure_queue needs an async test" in result.stdout.str()
    result.assert_outcomes(passed=6, errors=3)


def test_a_server_of_ones_own(project: Project, other_server: EmbeddedServer) -> None:
    project.write(
        test_url="""
import pytest

@pytest.mark.parametrize("number", range(4))
async def test_empty(pressure_server, worker_id, number):
    if worker_id != "master":
        assert pressure_server.url.endswith("/" + str(2 + int(worker_id.removeprefix("gw"))))
    assert await (await pressure_server.queue()).client.queues() == ["queue"]
    assert await (await pressure_server.events()).qsize() == 0
    await (await pressure_server.events()).put(b"1")

async def test_failover(pressure_server):
    with pytest.raises(RuntimeError, match="it needs --pressure-server=embedded"), pressure_server.failover():
        pass
"""
    )
    base = other_server.url.removesuffix("/0")
    with redis.Redis.from_url(other_server.url) as db:
        db.set("somebody's", "1")
        result = project.run(f"--pressure-server={base}/2", "-n", "2", apart=True)
        result.assert_outcomes(passed=5)
        assert db.keys() == [b"somebody's"]
        assert set(db.info("keyspace")) == {"db0"}
        result = project.run(f"--pressure-server={base}/0", "-k", "failover")
        result.assert_outcomes(errors=1, deselected=4)
        result.stdout.fnmatch_lines("*database 0 of the server has 1 keys*Name an empty database*")
        assert db.keys() == [b"somebody's"]
    refused = project.run("--pressure-server=rediss://host:1/0")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines("*pressure_server must be embedded, fake or a URL*")


FAULTS = """
import asyncio
import pytest
from apressure import FileQueue

async def test_a_block_that_asks_nothing_loses_no_reply(pressure_server, pressure_queue):
    with pytest.raises(AssertionError, match="0 of 1 replies were lost"), pressure_server.lost_replies():
        pass
    await pressure_queue.put(b"1")

@pytest.mark.parametrize("shared", [False, True])
async def test_killed_consumers(pressure_server, pressure_queue, shared):
    await pressure_queue.put_many([b"1", b"2", b"3"])
    assert await pressure_server.killed_consumer(pressure_queue, 2, shared=shared) == [b"1", b"2"]
    assert (await pressure_queue.statistics()).in_flight == 2  # nobody gave them back
    async with pressure_queue.consumer(shared=shared) as consumer:
        got = [(await anext(consumer), consumer.redelivered) for _ in range(3)]
    if shared:
        got.sort()  # the others go on until the lease of the dead one ends
    assert got == [(b"1", True), (b"2", True), (b"3", False)]

@pytest.mark.parametrize("kind", ["events", "tasks"])
async def test_killed_consumers_of_other_kinds(pressure_server, kind):
    queue = await getattr(pressure_server, kind)(codec="raw")
    await queue.put_many([b"1", b"2"])
    assert await pressure_server.killed_consumer(queue, 2) == [b"1", b"2"]
    got = []
    while len(got) < 2:
        got += await queue.receive_many(2)
    for delivery in got:
        assert delivery.redelivered
        await delivery.ack()

async def test_a_slow_server_is_slow_for_its_block(pressure_server, pressure_queue):
    with pressure_server.slow(0.3):
        begin = asyncio.get_running_loop().time()
        await pressure_queue.put(b"1")
        assert asyncio.get_running_loop().time() - begin >= 0.3
        slow = asyncio.create_task(pressure_queue.put(b"2"))
    await slow
    assert [await pressure_queue.get() for _ in range(2)] == [b"1", b"2"]

async def test_a_queue_without_a_bound_is_never_full(pressure_server, pressure_queue):
    with pytest.raises(ValueError, match="has no bound, so it is never full"):
        await pressure_server.fill(pressure_queue)
"""


def test_faults(project: Project) -> None:
    project.write(test_faults=FAULTS)
    result = project.run()
    assert result.ret == 0, result.stdout.str()
    result = project.run("-k", "no_reply or bound", "--pressure-server=fake")
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    result.stdout.fnmatch_lines("*RuntimeError: fakeredis has no connections, and *lost_replies*")
