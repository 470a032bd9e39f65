"""The benchmark's machinery: it runs, its results have the documented fields, and can be drawn."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from apressure.embedded import EmbeddedServer
from tests import processes
from tests.benchmarks import compare, events, latency, libraries, peers, plot, server, table
from tests.benchmarks.figures import Figure, figure
from tests.benchmarks.libraries import DOCKET, LIBRARIES, Library, Program
from tests.servers import SERVERS, CannotRun

ROOT = Path(__file__).parents[2]


def test_a_quick_run(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--only", "put one by one", "--json", str(file)]
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    results = json.loads(file.read_text())
    assert set(results) == {"machine", "repetitions", "figures", "left_out"}
    assert set(results["machine"]) == {"machine", "system", "python", "apressure", "redis-py", "hiredis"}
    assert len(results["figures"]) + len(results["left_out"]) == len(SERVERS)
    for row in results["figures"]:
        assert set(row) == {field.name for field in dataclasses.fields(Figure)}
        assert (row["case"], row["other"], row["unit"]) == ("put one by one", "redis-py lpush", "/s")
        assert row["reached"] is (row["ratio"] >= row["goal"])
        assert f"{row['ours']:,.0f}/s" in done.stdout
    assert set(plot.draw(results)) == {"by-hand.svg"}


def test_a_quick_run_of_files(tmp_path: Path) -> None:
    pytest.importorskip("vsqs", reason="vsqs 0.3")
    file = tmp_path / "files.json"
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.files",
        "--quick",
        "--directory",
        str(tmp_path),
        "--json",
        str(file),
    ]
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    results = json.loads(file.read_text())
    figures = [Figure(**row) for row in results["figures"]]
    assert {one.other for one in figures} == {"vsqs 0.3", "ours, empty"}
    assert {one.server.partition(", ")[2] for one in figures} == {"fsync", "no fsync"}
    assert all(f"{one.ours:,.0f}/s" in done.stdout and one.ours > 0 and one.theirs > 0 for one in figures)
    assert table.tables(results).count("\n") == 13


def test_a_quick_run_of_tasks(tmp_path: Path, blueque_python: Path) -> None:
    file = tmp_path / "tasks.json"
    command = [
        sys.executable, "-m", "tests.benchmarks.tasks", "--quick", "--server", "valkey",
        "--libraries", str(blueque_python.parents[2]), "--json", str(file),
    ]  # fmt: skip
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=200)
    results = json.loads(file.read_text())
    figures = [Figure(**row) for row in results["figures"]]
    assert {one.other for one in figures} == {"blueque 1.0.1"}
    assert len(figures) == 5
    assert all(one.ours > 0 and one.theirs > 0 for one in figures)
    assert all(f"{one.ours:,.0f}/s" in done.stdout for one in figures if one.unit == "/s")
    ((server, times),) = results["times"].items()
    assert server in done.stdout
    assert set(times) == {"wait", "lateness"}


def test_a_quick_run_of_events(tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    command = [sys.executable, "-m", "tests.benchmarks.events"]
    run = [*command, "--quick", "--server", "valkey", "--json", str(file)]
    done = processes.run(run, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    results = json.loads(file.read_text())
    figures = [Figure(**row) for row in results["figures"]]
    assert {*events.GOALS, *events.RATES} <= {one.case for one in figures}
    assert all(f"{one.ours:,.0f}/s" in done.stdout and one.ours > 0 and one.theirs > 0 for one in figures)
    shown = processes.run([*command, "--table", str(file)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.count("\n| ") == len(figures) + 1 + shown.stdout.count("\n| CPU of the server, ") + 1
    assert shown.stdout.count("\n| CPU of the server, ") == 2
    assert f"{next(iter(results['bytes_of_an_idle_connection'].values())):,} bytes" in shown.stdout


def test_a_quick_run_of_open_pages(tmp_path: Path) -> None:
    file = tmp_path / "watch.json"
    run = [sys.executable, "-m", "tests.benchmarks.watch", "--queues", "9", "--messages", "1", "--pages", "4"]
    command = [*run, "--seconds", "3", "--json", str(file)]
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    results = json.loads(file.read_text())
    assert results["loads a second"] > 0
    assert results["kB of a load"] > 1  # pages, and no errors
    assert results["page's process"] > 0
    assert "server, with open pages" in done.stdout


def test_the_plots(tmp_path: Path) -> None:
    by_hand = [
        figure(server, "wake-up", "brpop", loop, "s p99", 1.5, [(0.003, 0.001), (0.002, 0.001)])
        for server in ("Valkey 9.1.2", "Redis 7.0.15")
        for loop in ("asyncio", "uvloop")
    ]
    assert (by_hand[0].ratio, by_hand[0].reached) == (2.5, False)
    with_library = figure("Valkey 9.1.2", "consume", "<library>", "node", "/s", 10, [(300, 10)], {"library": "1.0"})
    assert with_library.reached
    results = {
        "machine": {"machine": "a machine", "python": "3.11", "redis-py": "8.0"},
        "figures": [dataclasses.asdict(one) for one in (*by_hand, with_library)],
    }
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results))
    command = [sys.executable, "-m", "tests.benchmarks.plot", str(file), "--into", str(tmp_path / "plots")]
    processes.run(command, cwd=ROOT, check=True, timeout=60)
    plots = {path.name: ET.parse(path).getroot() for path in (tmp_path / "plots").iterdir()}
    assert set(plots) == {"by-hand.svg", "libraries.svg"}
    words = {name: {element.text for element in root.iter() if element.text} for name, root in plots.items()}
    assert {"wake-up, p99", "/ brpop", "2.50 · 2.50  (≤ 1.5)", "on uvloop"} <= words["by-hand.svg"]
    assert {"<library>", "apressure", "300", "10"} <= words["libraries.svg"]


def test_libraries_have_processes_of_their_own(make_server: Callable[..., EmbeddedServer]) -> None:
    """Ours stands in for another one."""
    same = Library("same", (), 1000, 500, goals=(0.0, math.inf))
    running = make_server()
    figures = compare.with_library(same, libraries.ours(), running, 0.01, 2)
    assert [(one.case, one.other, one.reached) for one in figures] == [
        ("enqueue", "same", True),
        ("consume", "same", False),
    ]
    assert set(figures[0].versions) == {"apressure", "redis"}
    fails = Program((sys.executable, "-c", "raise SystemExit('no such thing')"), {})
    with pytest.raises(CannotRun, match="enqueue: no such thing"):
        compare.with_library(same, fails, running, 0.01, 1)


def test_limits_keys_and_ids_beside_libraries(
    make_server: Callable[..., EmbeddedServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Ours stands in for docket. BullMQ fails, which leaves the others alone."""
    ours = dict(peers.programs(tmp_path, ()))
    fails = Program((sys.executable, "-c", "raise SystemExit('no such thing')"), {})
    sides = {**ours, "docket": ours["TaskQueue"], "BullMQ": fails}
    monkeypatch.setattr(peers, "programs", lambda place: sides.items())
    rows = peers.rates(tmp_path, make_server(), 20, 2)
    assert [(row["kind"], row["what"]) for row in rows] == [
        (kind, f"{terms}, {each} / docket")
        for terms, what in peers.WHAT.items()
        for each in what
        for kind in peers.OURS
    ]
    for row in rows:
        assert row["ours"] > 0 < row["theirs"]
        assert row["reached"] is (row["value"] >= row["goal"])
    said = capsys.readouterr().out
    for terms in peers.WHAT:
        assert (f"{'BullMQ':12}{terms:18}left out: enqueue: no such thing" in said) is (terms != "keys")


def test_what_the_server_does_for_a_message(tmp_path: Path) -> None:
    file = tmp_path / "server.json"
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.server",
        "--items",
        "200",
        "--repetitions",
        "1",
        "--json",
        str(file),
    ]
    done = processes.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=200)
    costs = [server.Cost(**one) for one in json.loads(file.read_text())["costs"]]
    assert {(one.side, one.what) for one in costs} == {
        (side, what) for side in (*server.KINDS, server.BY_HAND) for what in server.SHARES
    }
    commands = {(one.side, one.what): one.commands for one in costs}
    assert 1 <= commands[server.BY_HAND, "put"] < 1.1
    assert all(commands[kind, "put"] > 1 > commands[kind, "consumer"] / 10 > 0 for kind in server.KINDS)
    assert server.table(costs) in done.stdout


def test_how_soon_jobs_begin(make_server: Callable[..., EmbeddedServer], capsys: pytest.CaptureFixture[str]) -> None:
    """A library that fails leaves the others alone."""
    pythons = {**latency.pythons_of((), ROOT), "SAQ": Path(sys.executable)}
    rows = latency.measured(pythons, make_server(), 100.0, 0.5, 2)
    assert [(row["library"], row["rate"]) for row in rows] == [(name, 100.0) for name in latency.OURS]
    assert all(0 < row["p50"] <= row["p99"] and row["cpu"] > 0 for row in rows)
    assert "left out: ModuleNotFoundError: No module named 'saq'" in capsys.readouterr().out
    results = {"machine": {"machine": "a machine"}, "rows": rows}
    assert latency.table(results).count("\n| ") == 1 + len(latency.OURS)
    words = {element.text for element in ET.fromstring(latency.drawing(results)).iter() if element.text}
    assert {"100 jobs a second", *latency.OURS} <= words


def test_a_library_that_cannot_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(CannotRun, match=r"not installed: .*no-python"):
        libraries.install(Library("nothing", ("nothing",), 1, 1), tmp_path)
    assert not (tmp_path / "nothing").exists()


def test_every_library_has_its_program() -> None:
    for library in (*LIBRARIES, DOCKET):
        assert (ROOT / (library.module.replace(".", "/") + ".py")).exists()
        if library.node:
            assert (ROOT / (library.module.replace(".", "/") + ".cjs")).exists()
