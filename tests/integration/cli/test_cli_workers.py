"""`apressure workers`: what works on queues of each kind, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure import AsyncQueue
from apressure.cli.commands import workers
from apressure.cli.commands.workers import _COLUMNS
from tests import processes
from tests.integration.cli.test_cli_kinds import Here
from tests.integration.commands import COMMAND, PATIENCE, Commands, environment
from tests.reference import connect

pytestmark = [
    pytest.mark.leaves_keys,
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
]

APP = """
import asyncio

async def work(item):
    await asyncio.sleep(0.2)

async def bank(item):
    await asyncio.sleep(3600)

async def bill(item):
    await bank(item)
"""


@pytest.fixture
def here(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    return Here(url, tmp_path, capfd)


def waited(look: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("address", ["orders", "events:orders", "tasks:orders"])
def test_the_processes_of_a_worker_are_listed_and_those_that_are_drained_are_not_started_again(
    here: Here, address: str, url: str
) -> None:
    here("create", address)
    assert here("workers", "ls", address) == here("workers", "ls") == ""
    command = [*COMMAND, "worker", "app:work", address, "--processes", "2", "--json"]
    with processes.Popen(command, env=environment(url), stdout=-1, text=True) as process:
        try:
            one, other = waited(lambda: found if len(found := here.json("workers", "ls")) == 2 else [])
            assert (one["kind"], one["handler"], one["concurrency"]) == ("serve", "work", 1)
            assert one["queue"].endswith(address)
            assert one["pid"] != other["pid"]
            lines = [line.split("\t") for line in here("workers", "ls", address).splitlines()]
            assert {line[1] for line in lines} == {one["id"], other["id"]}
            assert all(len(line) == len(_COLUMNS) and line[-1] == "works" for line in lines)
            assert re.search(r"^workers\t2$", here("stat", address), re.MULTILINE)
            assert here.json("workers", "drain", one["id"], address) == {"worker": one["id"], "told": 1}
            (left,) = waited(lambda: found if len(found := here.json("workers", "ls")) == 1 else [])
            assert left["id"] == other["id"]
            assert process.poll() is None
            assert here("workers", "drain", other["id"]) == f"{other['id']}: 1 service told to drain\n"
            assert process.wait(PATIENCE) == 0
            assert process.stdout is not None
            told = [json.loads(line) for line in process.stdout.read().splitlines()]
            assert [one["handlers"][0]["failed"] for one in told] == [0, 0]
        finally:
            process.terminate()
    assert here("workers", "ls", "--pattern", "*") == ""


@pytest.mark.parametrize("address", ["orders", "events:orders", "tasks:orders"])
def test_a_producer_that_waits_is_told_and_is_no_worker(here: Here, address: str, url: str) -> None:
    here("create", address, "--bound", "1")
    with processes.Popen([*COMMAND, "put", address, "1", "2"], env=environment(url)) as process:
        try:
            (producer,) = waited(lambda: here.json("stat", address)["waiting_producers"])
            assert (producer["pid"], producer["puts"]) == (process.pid, 1)
            assert re.search(r"^waiting_producers\t1$", here("stat", address), re.MULTILINE)
            (row,) = here.json("top", address, "--once", "--interval", "0.5")
            assert row["states"][0]["name"] == "full"
            assert re.fullmatch(r"full: 1 producer waits, for \d+ s", row["states"][0]["text"])
            assert here("workers", "ls") == ""
            here("get", address, "-n", "1")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    waited(lambda: here.json("stat", address)["waiting_producers"] == [])


def test_a_worker_says_where_its_handler_is(
    here: Here, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("put", "events:orders", "secret", "--create")
    command = [*COMMAND, "worker", "app:bill", "events:orders"]
    with processes.Popen(command, env=environment(url), stdout=-1) as process:
        try:
            (worker,) = waited(lambda: [one for one in here.json("workers", "ls") if one["in_hand"]])
            assert worker["stack"] is None
            head, *frames = here("workers", "stack", worker["id"]).splitlines()
            assert re.fullmatch(r".*events:orders: bill has run for \d+\.\d s", head)
            assert frames[0].startswith(f"  {tmp_path / 'app.py'}:")
            assert [frame.rpartition(" ")[2] for frame in frames] == ["bill", "bank", "sleep"]
            (shown,) = here.json("workers", "stack", worker["id"], "events:orders")
            assert shown["stack"] == [frame.strip() for frame in frames]
            assert "secret" not in str(shown)
        finally:
            process.kill()
    with connect(url) as db:  # as another one that was killed before it told anything
        (key,) = db.keys("apressure:*:workers")
        ((name, value),) = [field for field in db.hgetall(key).items() if field[0]]
        db.hset(key, name, re.sub(rb',"stack":\[.*\]', b"", value))
    monkeypatch.setattr(workers, "_PATIENCE", 0.5)
    assert "told no stack within 0.5 s" in here.fails(3, "workers", "stack", worker["id"], "events:orders")


def test_an_id_that_nothing_has(here: Here) -> None:
    here("create", "orders")
    for more in ((), ("orders",), ("ord*", "--pattern")):
        text = here.fails(3, "workers", "drain", "nobody", *more)
        assert "nothing with the id 'nobody' works there that can be drained" in text
    assert "does not exist" in here.fails(3, "workers", "ls", "nothing")


def test_a_damaged_queue_is_told_and_the_others_are_listed(url: str) -> None:
    async def create() -> None:
        for name in ("broken", "orders"):
            async with AsyncQueue(name, url=url) as queue:
                await queue.create()

    asyncio.run(create())
    with connect(url) as db:
        db.set("__pressure__:broken:bound", "no number")
    listed = Commands(url)("workers", "ls", "--json", code=1)
    assert json.loads(listed.stdout) == []
    assert b"apressure: broken: the queue 'broken' is damaged" in listed.stderr
