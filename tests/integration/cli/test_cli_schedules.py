"""`apressure schedules` on queues of each kind."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from apressure import TaskQueue, sync
from apressure.telemetry import states
from tests import processes
from tests.integration.cli.test_cli_kinds import Here
from tests.integration.commands import COMMAND, PATIENCE, environment

pytestmark = [
    pytest.mark.leaves_keys,
    pytest.mark.parametrize("server", ["valkey"], indirect=True),
]


@pytest.fixture(params=["orders", "events:orders", "tasks:orders", "files:spool/orders"])
def address(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def here(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spool").mkdir()
    return Here(url, tmp_path, capfd)


def test_the_life_of_a_schedule(here: Here, address: str) -> None:
    here("create", address)
    text = here("schedules", "every", address, "daily", "0 9 * * mon-fri", "report", "--timezone", "Europe/Berlin")
    assert re.fullmatch(rf"daily of {address}: next at \S+T09:00:00\+0[12]:00\n", text)
    (shown,) = here.json("schedules", "ls", address)
    assert shown == {
        "queue": shown["queue"], "schedule": "daily", "when": "0 9 * * mon-fri", "timezone": "Europe/Berlin",
        "missed": "one", "next": shown["next"], "last": None, "count": 0, "paused": False, "item": "report",
    }  # fmt: skip
    assert shown["queue"].endswith(address)
    assert here("schedules", "pause", address, "daily") == f"daily of {address}: paused\n"
    assert here("schedules", "pause", address, "daily") == f"daily of {address}: is paused already\n"
    assert here("schedules", "ls", address).split("\t")[3:5] == ["paused", "-"]
    assert here.json("schedules", "resume", address, "daily")["changed"] is True
    assert here("schedules", "resume", address, "daily") == f"daily of {address}: is not paused\n"
    here("schedules", "run", address, "daily")
    assert here("get", address, "-n", "1") == "report\n"
    assert here("schedules", "ls", address).split("\t")[5] == "1"
    here("schedules", "delete", address, "daily")
    assert here("schedules", "ls", address) == ""
    for command in ("pause", "resume", "run", "delete"):
        assert "has no schedule 'daily'" in here.fails(3, "schedules", command, address, "daily")
        assert "does not exist" in here.fails(3, "schedules", command, "nothing", "daily")


def test_the_doctor_tells_of_a_schedule_that_nothing_drives(
    here: Here, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("create", address)
    here("schedules", "every", address, "tick", "1", "tick")
    assert here.json("doctor", address)["findings"] == []
    monkeypatch.setattr(states, "_LATE", -10.0)
    (finding,) = here.json("doctor", address)["findings"]
    assert (finding["kind"], finding["fault"]) == ("late_schedule", False)
    assert "The schedule 'tick' is late by" in finding["text"]
    assert f"apressure schedules run-forever {address}" in finding["advice"]
    here("schedules", "pause", address, "tick")
    assert here.json("doctor", address)["findings"] == []


def test_the_doctor_tells_of_delayed_items_that_nobody_makes_due(here: Here, address: str) -> None:
    """As where only clients of others work on the queue."""
    here("create", address)
    here("put", address, "1", "--delay", "60")
    assert "overdue" not in [finding["kind"] for finding in here.json("doctor", address)["findings"]]
    here("put", address, "1", "2", "--delay", "0.1")
    time.sleep(0.2)
    (finding,) = [finding for finding in here.json("doctor", address)["findings"] if finding["kind"] == "overdue"]
    assert finding["fault"] is False
    assert finding["text"].startswith("3 items are delayed, and the first ones are due: no client of apressure uses")
    here("get", address, "-n", "1")
    assert "overdue" not in [finding["kind"] for finding in here.json("doctor", address)["findings"]]


def test_an_empty_queue_with_delayed_items_says_so(here: Here, address: str) -> None:
    here("create", address)
    assert "delayed" not in here.fails(6, "peek", address)
    here("put", address, "1", "2", "--delay", "600")
    for command in (("peek", address), ("get", address, "--timeout", "0")):
        error = here.fails(6, *command)
        assert re.search(r"is empty; 2 delayed, the first one due in \d+ s$", error.strip()), error


def test_what_is_no_schedule_is_a_wrong_command_line(here: Here) -> None:
    here("create", "orders")
    for when, more in (("99 0 * * *", ()), ("0", ()), ("60", ("--timezone", "Mars")), ("60", ("--missed", "some"))):
        here.fails(2, "schedules", "every", "orders", "x", when, "item", *more)
    assert "or the seconds" in here.fails(2, "schedules", "every", "orders", "x", "5s", "item")
    here.fails(3, "schedules", "every", "nothing", "x", "60", "item")
    here.fails(3, "schedules", "ls", "nothing")
    assert here("schedules", "ls", "orders") == ""


def test_the_item_of_tasks_may_be_json(here: Here) -> None:
    here("schedules", "every", "tasks:orders", "x", "3600", '{"a": 1}', "--parse")
    assert here.json("schedules", "ls", "tasks:orders")[0]["item"] == '{"a":1}'
    here("schedules", "run", "tasks:orders", "x")
    with sync.Queue(TaskQueue("orders", url=here.url)) as queue:
        got: Any = queue.get()
    assert got == {"a": 1}


def test_a_process_that_drives_schedules(here: Here, url: str) -> None:
    """Until a signal comes; the queue has each occasion once, beside another process that does the same."""
    here.fails(3, "schedules", "run-forever", "orders")
    here("create", "orders")
    here("create", "events:others")
    here("schedules", "every", "orders", "tick", "1", "tick", "--missed", "all")
    command = [*COMMAND, "schedules", "run-forever", "orders", "events:others"]
    running = [processes.Popen(command, env=environment(url)) for _ in range(2)]
    until = time.monotonic() + PATIENCE
    while here.json("stat", "orders")["length"] < 3:
        assert time.monotonic() < until
        time.sleep(0.2)
    for one in running:
        one.send_signal(signal.SIGTERM)
        assert one.wait(PATIENCE) in (0, -signal.SIGTERM)  # one that has just begun is killed
    assert here.json("stat", "orders")["length"] == here.json("schedules", "ls", "orders")[0]["count"]


def test_the_schedules_of_all_queues(here: Here) -> None:
    """Without a name, of every kind on the server; with a pattern, of those that match."""
    for address in ("orders", "events:orders", "tasks:orders", "files:spool/orders"):
        here("create", address)
        here("schedules", "every", address, "daily", "3600", "report")
    here("create", "empty")
    listed = [row.split("\t")[:2] for row in here("schedules", "ls").splitlines()]
    assert listed == [[address, "daily"] for address in ("orders", "events:orders", "tasks:orders")]
    assert here("schedules", "ls", "orders", "empty", "tasks:orders").count("\n") == 2
    assert here("schedules", "ls", "files:spool/*", "events:o*", "--pattern").count("\n") == 2
    assert [one["schedule"] for one in here.json("schedules", "ls")] == ["daily"] * 3


def test_a_schedule_creates_its_queue_if_asked(here: Here, address: str) -> None:
    if address == "orders":  # the others exist with their first item
        here.fails(3, "schedules", "every", address, "daily", "3600", "report")
    for _ in range(2):
        here("schedules", "every", address, "daily", "3600", "report", "--create")
    assert here("schedules", "ls", address).count("\n") == 1
    assert here("stat", address)
