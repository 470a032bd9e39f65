"""A command under its supervisor: it ends when it should, however that comes about, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from apressure.core.leases.clock import since_boot
from apressure.tasks.runner.command import Command, Function, arguments_of
from apressure.tasks.runner.reports import MAX_LINE, Output, Reports, Tail, report_progress
from apressure.tasks.runner.work import Ended, Order, TaskProcess, Times
from tests.integration.commands import PATIENCE, marked, new_mark

LONG = 3600.0
"""Seconds: it never comes."""


class Run:
    """A command that runs, and what is known of it."""

    def __init__(
        self,
        work: Command | Function,
        folder: Path,
        parameters: Any = None,
        *,
        term: float = LONG,
        kill: float = LONG,
        grace: float = LONG,
        limit: int = 10_000,
    ) -> None:
        self.mark = new_mark()
        self.folder = folder
        self.progress: list[tuple[float, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.output = Output(limit, lambda stream, text: self.texts.append((stream, text)))
        now = since_boot()
        times = Times(now + term, now + kill)
        order = Order("the test", parameters, self.mark, times, grace, self.output, self.report)
        self.process = TaskProcess(dataclasses.replace(work, cwd=folder), order)
        self.reports = self.process._reports

    def report(self, fraction: float, message: str) -> None:
        self.progress.append((fraction, message))

    def alive(self) -> list[psutil.Process]:
        return marked(self.mark, Path("/nowhere"))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def has(self, name: str) -> None:
        await self.until((self.folder / name).exists)

    async def end(self) -> Ended:
        async with asyncio.timeout(PATIENCE):
            ended = await self.process.ended()
        assert not self.alive()
        return ended


def shell(script: str) -> Command:
    return Command(["sh", "-c", textwrap.dedent(script)])


async def test_a_command_gets_arguments_and_its_output_is_captured(tmp_path: Path) -> None:
    run = Run(Command(["sh", "-c", 'echo "$@"; echo no >&2; exit 3', "sh"]), tmp_path, ["a b", "é", "$c"])
    run.process.go()
    assert await run.end() == Ended(3, 0, late=False)
    assert (run.output.stdout.text, run.output.stderr.text) == ("a b é $c\n", "no\n")
    assert sorted(run.texts) == [("stderr", "no\n"), ("stdout", "a b é $c\n")]


async def test_a_command_reads_its_parameters_from_its_standard_input(tmp_path: Path) -> None:
    run = Run(Command(["cat"], parameters="stdin"), tmp_path, {"file": "a.mov", "large": "x" * 300_000})
    run.process.go()
    assert (await run.end()).status == 0
    assert run.output.stdout.text.endswith('x"}')


async def test_a_command_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    run = Run(Command(["/no/such/program"]), tmp_path)
    run.process.go()
    assert await run.end() == Ended(127, errno.ENOENT, late=False)


async def test_a_command_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    run = Run(Command([str(tmp_path / "data")]), tmp_path)
    run.process.go()
    assert (await run.end()).refused == errno.EACCES


async def test_a_missing_working_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Run(Command(["true"]), tmp_path / "missing")


async def test_a_command_does_not_start_before_go(tmp_path: Path) -> None:
    run = Run(shell("touch started"), tmp_path)
    run.process.stop(0)
    assert await run.end() == Ended(None, 0, late=False)
    assert not (tmp_path / "started").exists()


async def test_a_command_does_not_start_when_its_time_has_passed(tmp_path: Path) -> None:
    run = Run(shell("touch started"), tmp_path, term=-1.0, kill=-1.0)
    run.process.go()
    assert await run.end() == Ended(None, 0, late=True)
    assert not (tmp_path / "started").exists()


async def test_stop_terminates_then_kills_a_command_that_ignores_sigterm(tmp_path: Path) -> None:
    run = Run(shell("trap 'touch asked' TERM; touch ready; while :; do sleep 0.05; done"), tmp_path)
    run.process.go()
    await run.has("ready")
    run.process.stop(LONG)
    await run.has("asked")
    run.process.stop(0)
    assert await run.end() == Ended(-signal.SIGKILL, 0, late=False)


async def test_a_command_may_clean_up_after_sigterm(tmp_path: Path) -> None:
    run = Run(shell("trap 'sleep 0.2; echo clean; exit 0' TERM; touch ready; while :; do sleep 0.05; done"), tmp_path)
    run.process.go()
    await run.has("ready")
    run.process.stop(LONG)
    assert await run.end() == Ended(0, 0, late=False)
    assert run.output.stdout.text == "clean\n"


async def test_a_stopped_command_gets_sigterm(tmp_path: Path) -> None:
    run = Run(shell("touch ready; kill -STOP $$"), tmp_path)
    run.process.go()
    await run.has("ready")
    run.process.stop(LONG)
    assert (await run.end()).status in {-signal.SIGTERM, 0}


async def test_a_command_is_killed_when_its_lease_is_not_renewed(tmp_path: Path) -> None:
    run = Run(shell("trap '' TERM; while :; do sleep 0.05; done"), tmp_path, term=1.0, kill=1.5)
    run.process.go()
    assert await run.end() == Ended(-signal.SIGKILL, 0, late=True)


async def test_a_renewed_command_goes_on(tmp_path: Path) -> None:
    run = Run(shell("while [ ! -e enough ]; do sleep 0.05; done"), tmp_path, term=3.0, kill=3.0)
    run.process.renew(Times(since_boot() + LONG, since_boot() + LONG))
    run.process.go()
    await asyncio.sleep(3.3)
    (tmp_path / "enough").touch()
    assert await run.end() == Ended(0, 0, late=False)


async def test_a_command_ends_after_its_runner(tmp_path: Path) -> None:
    """The end of the descriptor for orders is what the end of the Runner's process looks like."""
    run = Run(shell("trap 'touch asked' TERM; touch ready; while :; do sleep 0.05; done"), tmp_path, grace=0.5)
    run.process.go()
    await run.has("ready")
    assert run.process._control is not None
    os.close(run.process._control)
    run.process._control = None
    assert await run.end() == Ended(-signal.SIGKILL, 0, late=False)
    assert (tmp_path / "asked").exists()


@pytest.mark.parametrize("way", ["group", "setsid", "daemon", "ignores"])
async def test_what_a_command_leaves_behind_is_killed(tmp_path: Path, way: str) -> None:
    leave = {
        "group": "sleep 1000 &",
        "setsid": "setsid sleep 1000 &",
        "daemon": "(setsid sh -c 'sleep 1000 & sleep 1000' &) &",
        "ignores": "(trap '' TERM HUP INT; sleep 1000) &",
    }[way]
    run = Run(shell(f"{leave}\nsleep 0.2; echo done"), tmp_path)
    run.process.go()
    assert await run.end() == Ended(0, 0, late=False)
    assert run.output.stdout.text == "done\n"


async def test_grandchildren_outside_the_group_are_stopped(tmp_path: Path) -> None:
    run = Run(shell("setsid sh -c 'trap \"touch asked; exit\" TERM; touch ready; while :; do sleep 0.05; done' & wait"), tmp_path)  # fmt: skip  # noqa: E501
    run.process.go()
    await run.has("ready")
    run.process.stop(LONG)
    await run.end()
    assert (tmp_path / "asked").exists()


async def test_a_killed_supervisor_takes_the_command_and_its_group_along(tmp_path: Path) -> None:
    run = Run(shell("sleep 1000 & touch ready; wait"), tmp_path)
    run.process.go()
    await run.has("ready")
    os.kill(run.process.pid, signal.SIGKILL)
    assert await run.end() == Ended(None, 0, late=False)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_the_supervisor_stops_the_command(tmp_path: Path, signum: int) -> None:
    run = Run(shell("touch ready; while :; do sleep 0.05; done"), tmp_path)
    run.process.go()
    await run.has("ready")
    os.kill(run.process.pid, signum)
    assert await run.end() == Ended(-signal.SIGTERM, 0, late=False)


async def test_a_flood_of_output_neither_blocks_nor_fills_memory(tmp_path: Path) -> None:
    run = Run(shell("head -c 50000000 /dev/zero | tr '\\0' 'x'; printf 'end\\377'; echo err >&2"), tmp_path, limit=1000)
    run.texts = None  # type: ignore[assignment]  # each piece raises: that is logged once, and disturbs nothing
    run.process.go()
    assert (await run.end()).status == 0
    text = run.output.stdout.text
    assert text.startswith("[49,999,004 bytes left out]\nxxx")
    assert text.endswith("xend�")
    assert run.output.stderr.text == "err\n"
    assert len(run.output.both._kept) <= 2000


def test_the_tail_of_a_text_begins_with_a_whole_character() -> None:
    tail = Tail(5)
    for piece in (b"abc", "äöü".encode()):
        tail.feed(piece)
    assert tail.text == "[5 bytes left out]\nöü"
    empty = Tail(0)
    empty.feed(b"abc")
    assert empty.text == "[3 bytes left out]\n"


async def test_a_command_reports_progress_and_a_result(tmp_path: Path) -> None:
    script = """
        echo 0.25 >&$APRESSURE_PROGRESS_FD
        echo 0.5 half way >&$APRESSURE_PROGRESS_FD
        echo nonsense >&$APRESSURE_PROGRESS_FD
        echo nan >&$APRESSURE_PROGRESS_FD
        echo 'result {"frames": 12}' >&$APRESSURE_PROGRESS_FD
        printf 0.9 >&$APRESSURE_PROGRESS_FD
    """
    run = Run(shell(script), tmp_path)
    run.process.go()
    assert (await run.end()).status == 0
    assert run.progress == [(0.25, ""), (0.5, "half way")]
    assert (run.reports.result, run.reports.error) == ('{"frames": 12}', None)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"result {", "the task reported a result that is not JSON"),
        (b"result NaN", "the task reported a result that is not JSON"),
        (b"result " + b"[" * 100_000, "the task reported a result that is not JSON"),
        (b"result " + b"1" * MAX_LINE, "the task reported a line of more than"),
        (b"error no such codec", "no such codec"),
    ],
)
def test_a_bad_report_is_an_error(line: bytes, error: str) -> None:
    reports = Reports(lambda *_: None, "the test")
    for begin in range(0, len(line), 100_000):
        reports.feed(line[begin : begin + 100_000])
    reports.feed(b"\n0.5 goes on\n")
    assert reports.error is not None
    assert reports.error.startswith(error)
    assert reports.result is None


async def test_a_function_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    run = Run(Function("tests.integration.tasks.runner.functions:double"), tmp_path, {"number": 21})
    run.process.go()
    assert (await run.end()).status == 0
    assert run.reports.result == f'{{"double":42,"pid":{int(run.output.stdout.text)}}}'
    assert run.progress == [(0.5, "half way, é")]


async def test_a_coroutine_function_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    run = Run(Function("tests.integration.tasks.runner.functions:later"), tmp_path, "x")
    run.process.go()
    await run.end()
    assert run.reports.result == '["x"]'


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("tests.integration.tasks.runner.functions:missing", "cannot be imported: AttributeError"),
        ("tests.integration.tasks.missing:double", "cannot be imported: ModuleNotFoundError"),
        ("tests.integration.tasks.runner.functions:__doc__", "is a str, not a function"),
        ("tests.integration.tasks.runner.functions:fails", "ValueError: no such file"),
        ("tests.integration.tasks.runner.functions:returns_a_set", "returned a set that is not JSON"),
        ("tests.integration.tasks.runner.functions:returns_nan", "returned a float that is not JSON"),
    ],
)
async def test_a_function_that_fails_says_why(tmp_path: Path, name: str, error: str) -> None:
    run = Run(Function(name), tmp_path)
    run.process.go()
    assert (await run.end()).status == 1
    assert run.reports.error is not None
    assert error in run.reports.error
    assert "Traceback" in run.output.stderr.text


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (None, []),
        ("a b", ["a b"]),
        ("", [""]),
        (1.5, ["1.5"]),
        (True, ["true"]),
        (["a", 1, None, {"b": [2]}], ["a", "1", "null", '{"b": [2]}']),
        ({"file": "a", "fast": True, "slow": False, "no": None, "n": 2}, ["--file", "a", "--fast", "--n", "2"]),
        ({"in": ["a", "b"], "deep": {"é": 1}}, ["--in", "a", "b", "--deep", '{"é": 1}']),
    ],
)
def test_parameters_become_arguments(parameters: Any, arguments: list[str]) -> None:
    assert arguments_of(parameters) == arguments


@pytest.mark.parametrize("parameters", ["a\0b", "\ud800", {"a\0": 1}])
def test_parameters_that_cannot_be_arguments_are_refused(parameters: Any) -> None:
    with pytest.raises(ValueError, match="an argument of a command must"):
        Command(["true"]).job(parameters)


@pytest.mark.parametrize("command", ["gzip -k", [], [""], ["a", 1], ["a\0"]])
def test_bad_commands_are_refused(command: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="command"):
        Command(command)


@pytest.mark.parametrize("name", ["", "module", ":function", "module:", "mod ule:function", "module:a..b"])
def test_bad_names_of_functions_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="module:function"):
        Function(name)


def test_progress_outside_of_a_task_is_checked_and_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report_progress(0.5, "nobody reads it")
    with (tmp_path / "other").open("wb") as other:
        monkeypatch.setenv("APRESSURE_PROGRESS_FD", str(other.fileno()))
        report_progress(0.5, "this is another file")
    assert (tmp_path / "other").read_bytes() == b""
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            report_progress(bad)
    with pytest.raises(TypeError, match="from 0 to 1"):
        report_progress(True)
