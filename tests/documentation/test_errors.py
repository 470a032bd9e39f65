"""Every public error is explained, and names the command that explains it; a shell completes its name."""

from __future__ import annotations

import inspect
import re
import subprocess

import pytest

from apressure import exceptions
from apressure.cli import main
from apressure.cli.commands.explain import explanations
from apressure.exceptions import PressureError, QueueFullError
from tests.documentation.blocks import ROOT
from tests.integration.commands import COMMAND, environment

ERRORS = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, PressureError)]


def test_every_error_is_explained() -> None:
    texts = explanations()
    assert sorted(texts) == sorted(kind.__name__ for kind in ERRORS)
    for text in texts.values():
        parts = re.findall(r"^- \*\*(.+?):\*\* \S", text, re.MULTILINE)
        assert parts == ["What happened", "Why", "What to do", "What was lost"]
        for path in re.findall(r"\((docs/[\w/.-]+)\)", text):
            assert (ROOT / path).exists()


def test_an_error_names_its_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    error = QueueFullError("the queue 'orders' is full", name="orders")
    assert error.help == "apressure explain QueueFullError"
    assert main(error.help.split()[1:]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("QueueFullError\n\n- What happened: the queue was full")


def test_an_error_of_the_users_own_has_the_explanation_of_its_base() -> None:
    class OurError(QueueFullError):
        pass

    assert OurError("full", name="orders").help == "apressure explain QueueFullError"


def test_the_last_line_of_a_traceback_is_a_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "apressure.exceptions.LeaseLostError:"]) == 0
    assert capsys.readouterr().out.startswith("LeaseLostError\n")


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert "QueueFullError" in capsys.readouterr().out.splitlines()
    assert main(["--json", "explain"]) == 0
    assert capsys.readouterr().out.startswith("[")


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NoSuchError"]) == 2
    assert "there is no error 'NoSuchError'" in capsys.readouterr().err


def test_it_needs_no_server() -> None:
    nowhere = environment("redis://127.0.0.1:1/0")
    done = subprocess.run(
        [*COMMAND, "explain", "ServerError"], capture_output=True, text=True, timeout=60, check=True, env=nowhere
    )
    assert "What to do" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script_that_completes(shell: str) -> None:
    script = subprocess.run(
        COMMAND, capture_output=True, text=True, timeout=60, check=True,
        env=environment(_APRESSURE_COMPLETE=f"source_{shell}"),
    ).stdout  # fmt: skip
    assert f"_APRESSURE_COMPLETE=complete_{shell}" in script


def test_commands_are_completed() -> None:
    words = environment(_APRESSURE_COMPLETE="complete_bash", COMP_WORDS="apressure exp", COMP_CWORD="1")
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=True, env=words)
    assert done.stdout.split() == ["explain"]
