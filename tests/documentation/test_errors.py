"""Every public error is explained, and names the command that explains it; a shell completes its name."""

from __future__ import annotations

import inspect
import re

import pytest

from apressure import exceptions
from apressure.cli import main
from apressure.cli.commands.explain import explanations
from apressure.cli.exits import code_of
from apressure.exceptions import PressureError, QueueFullError
from tests import processes
from tests.documentation.blocks import DOCS, ROOT
from tests.integration.commands import COMMAND, environment

FOLDER = DOCS / "reference" / "errors"
ERRORS = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, PressureError)]


def test_every_error_has_a_page_and_every_page_an_error() -> None:
    pages = {page.stem for page in FOLDER.glob("*.md")} - {"README"}
    assert pages == {kind.__name__ for kind in ERRORS} == set(explanations())


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_page_says_what_the_error_is(kind: type[PressureError]) -> None:
    name = kind.__name__
    page = (FOLDER / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n\n")
    assert re.findall("^## (.*)", page, re.MULTILINE) == ["Why", "What to do", "What was lost", "Look up"]
    assert f"except {name}" in page.partition("```python")[2]
    assert len(page.splitlines()) < 60
    above, below = (
        set(re.findall(r"\w+(?=`|\]\()", line))
        for line in (_look_up(page, "Base classes"), _look_up(page, "Subclasses"))
    )
    unsure = {
        "QueueShutDown",
        "Exception",
    }  # QueueClosedError has one of them, by the version of Python
    assert above - unsure == {base.__name__ for base in kind.__bases__} - unsure
    assert below == {each.__name__ for each in ERRORS if kind in each.__bases__}
    assert _look_up(page, "Exit code") == str(int(code_of(kind.__new__(kind))))
    if isinstance(kind.temporary, bool) and not below:
        assert _look_up(page, "Temporary") == ("yes" if kind.temporary else "no")


def test_the_table_has_each_error_with_its_exit_code() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\((\w+)\.md\) \| .+ \| (\d+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(
        (kind.__name__, kind.__name__, str(int(code_of(kind.__new__(kind))))) for kind in ERRORS
    )


def test_an_explanation_names_the_pages_that_it_links_to() -> None:
    for text in explanations().values():
        assert "](" not in text
        for path in re.findall(r"\((docs/[\w/.-]+)\)", text):
            assert (ROOT / path).exists()


def test_an_error_names_its_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    error = QueueFullError("the queue 'orders' is full", name="orders")
    assert error.help == "apressure explain QueueFullError"
    assert main(error.help.split()[1:]) == 0
    assert capsys.readouterr().out.startswith("# QueueFullError\n\nThe queue was full")


def _look_up(page: str, fact: str) -> str:
    return "".join(re.findall(f"^- {fact}: (.*)", page, re.MULTILINE))


def test_an_error_of_the_users_own_has_the_explanation_of_its_base() -> None:
    class OurError(QueueFullError):
        pass

    assert OurError("full", name="orders").help == "apressure explain QueueFullError"


def test_the_last_line_of_a_traceback_is_a_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "apressure.exceptions.LeaseLostError:"]) == 0
    assert capsys.readouterr().out.startswith("# LeaseLostError\n")


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
    done = processes.run(
        [*COMMAND, "explain", "ServerError"], capture_output=True, text=True, timeout=60, check=True, env=nowhere
    )
    assert "What to do" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_script_that_completes(shell: str) -> None:
    script = processes.run(
        COMMAND, capture_output=True, text=True, timeout=60, check=True,
        env=environment(_APRESSURE_COMPLETE=f"source_{shell}"),
    ).stdout  # fmt: skip
    assert f"_APRESSURE_COMPLETE=complete_{shell}" in script


def test_commands_are_completed() -> None:
    words = environment(_APRESSURE_COMPLETE="complete_bash", COMP_WORDS="apressure expl", COMP_CWORD="1")
    done = processes.run(COMMAND, capture_output=True, text=True, timeout=60, check=True, env=words)
    assert done.stdout.split() == ["explain"]
