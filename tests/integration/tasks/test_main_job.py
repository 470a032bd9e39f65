"""docs/do/tasks.md: the commands of the page run as they are, with real processes that are really killed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests import processes
from tests.integration.commands import COMMAND, PATIENCE, environment
from tests.integration.tasks.test_cli import Tasks

ROOT = Path(__file__).parents[3]
PAGE = "\n".join((ROOT / "docs" / folder / "tasks.md").read_text() for folder in ("do", "reference"))


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.leaves_keys("blueque_*", "apressure:blueque:*")
def test_the_main_job_of_the_page(tmp_path: Path, url: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Two nodes run real commands, and one is killed in the middle of a task: the other one finishes it."""
    program = tmp_path / "bin" / "apressure"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {COMMAND[0]} -m apressure "$@"\n')
    program.chmod(0o755)
    # The first task takes until its node is killed, however long the commands before that take on a busy machine.
    slow = program.with_name("gzip")
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --test ] || ! mkdir {tmp_path}/first 2>&- || exec sleep 600\n'
        f'exec {shutil.which("gzip")} "$@"\n'
    )
    slow.chmod(0o755)
    main_job, in_python, _ = PAGE.partition("## The same in Python")
    assert in_python
    script = "".join(re.findall(r"```sh\n(.*?)```", main_job, re.DOTALL))
    path = os.pathsep.join((str(program.parent), os.environ["PATH"]))
    done = processes.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment(url, PATH=path), capture_output=True, text=True,
        timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    tasks = Tasks(url, capfd).data("ls", "archive")
    assert sorted(task["parameters"] for task in tasks) == [f"logs/{number}.txt" for number in (1, 2, 3)]
    assert {task["status"] for task in tasks} == {"complete"}
    assert sorted(task["attempts"] for task in tasks) == [1, 1, 2]
    for number in (1, 2, 3):
        assert (tmp_path / "logs" / f"{number}.txt.gz").exists()


def test_the_page_names_all_commands() -> None:
    help_text = processes.run(
        [*COMMAND, "tasks", "--help"], capture_output=True, text=True, check=True, env=environment(COLUMNS="200")
    ).stdout
    commands = set(re.findall(r"^│ (\w+) ", help_text.partition("Commands")[2], re.MULTILINE))
    table = PAGE.partition("## Command line")[2].partition("\n\nAll of these")[0]
    named = re.findall(r"`(\w+)", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    assert set(named) == commands
    assert len(commands) >= 10
