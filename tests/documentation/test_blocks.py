"""Every code block of every page runs, is checked, or says why not."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import processes
from tests.documentation.blocks import NOT_RUN, PAGES, ROOT, Block, blocks, name
from tests.integration.commands import COMMAND, PATIENCE, environment

ELSEWHERE = {
    "reference/cli.md": "tests/integration/cli/test_cli.py::TestDocumentation",
    "reference/cli-items.md": "tests/integration/cli/test_cli.py::TestDocumentation",
    "reference/cli-worker.md": "tests/integration/cli/test_cli.py::TestDocumentation",
    "reference/cli-watch.md": "tests/integration/cli/test_cli.py::TestDocumentation",
    "do/codecs.md": "tests/integration/test_documentation.py::test_the_code_of_the_page_of_codecs_works",
    "do/events.md": "tests/integration/events/test_documentation.py::test_the_code_of_the_page_runs",
    "do/events-server.md": "tests/integration/event_server/test_clients.py::test_the_consumer_of_the_docs",
    "do/django.md": "tests/integration/integrations/test_documentation.py::test_each_block_is_code_of_an_example",
    "do/flask.md": "tests/integration/integrations/test_documentation.py::test_each_block_is_code_of_an_example",
    "do/integrations.md": "tests/integration/integrations/test_documentation.py::test_each_block_is_code_of_an_example",
    "do/deploy.md": "tests/integration/integrations/test_deploy.py::test_the_image_has_what_its_containers_run",
    "do/sync.md": "tests/integration/integrations/test_documentation.py::test_each_block_is_code_of_an_example",
    "do/operate.md": "tests/integration/telemetry/test_metrics.py::test_the_code_of_the_page_runs",
    "do/logs.md": "tests/integration/telemetry/test_logs.py::test_a_program_without_a_configuration_is_quiet",
    "do/pipeline.md": "tests/spark/test_pipeline.py::test_the_example",
    "do/spark.md": "tests/spark/test_sessions.py::test_the_code_in_the_docs_runs_as_it_is",
    "do/spark-more.md": "tests/spark/test_sessions.py::test_the_code_in_the_docs_runs_as_it_is",
    "rely/spark.md": "tests/spark/test_sessions.py::test_the_code_in_the_docs_runs_as_it_is",
    "do/tasks.md": "tests/integration/tasks/test_main_job.py::test_the_main_job_of_the_page",
    "reference/tasks.md": "tests/integration/tasks/test_documentation.py::test_the_code_of_the_page_runs",
    "do/tasks-runner.md": "tests/integration/tasks/runner/test_ends.py::test_the_code_in_the_docs_runs_as_it_is",
    "do/testing.md": "tests/integration/testing/test_plugin.py::test_the_code_of_the_pages_runs",
    "do/faults.md": "tests/integration/testing/test_plugin.py::test_the_code_of_the_pages_runs",
    "reference/contract.md": "tests/integration/testing/test_plugin.py::test_the_code_of_the_pages_runs",
}
"""Pages whose code needs more than a server, and the test that runs it."""

ERRORS = [page for page in PAGES if page.parent.name == "errors"]
CODE = [
    [page]
    for page in PAGES
    if name(page) not in ELSEWHERE and page not in ERRORS and any(block.runs for block in blocks(page))
]


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize("pages", [*CODE, ERRORS], ids=lambda pages: name(pages[0]) if len(pages) == 1 else "errors")
@pytest.mark.leaves_keys
def test_the_code_of_a_page_runs(pages: list[Path], url: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "apressure"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    place = tmp_path / "place"
    place.mkdir()
    host, port = re.search(r"//([^:/]+):(\d+)", url).groups()  # type: ignore[union-attr]
    settings = environment(
        url,
        PATH=os.pathsep.join((str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"])),
        PYTHONPATH=os.pathsep.join((str(place), str(ROOT), os.environ.get("PYTHONPATH", ""))),
        REDIS_SERVER=host,
        REDIS_PORT=port,
    )
    output = tmp_path / "output.txt"
    with output.open("wb") as file:
        running = processes.Popen(
            [sys.executable, "-X", "faulthandler", "-W", "error", "-m", "tests.documentation.run_page", url]
            + [str(page) for page in pages],
            cwd=place, env=settings, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        try:
            code = running.wait(4 * PATIENCE)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGABRT)  # the output shows where it waits
            code = running.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the page has started in the background
                os.killpg(running.pid, signal.SIGKILL)
    assert code == 0, output.read_text()


@pytest.mark.parametrize("where", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_other_pages_have_a_test(where: str) -> None:
    path, _, test = where.partition("::")
    assert re.search(rf"(class|def) {test}", (ROOT / path).read_text())


def test_the_tutorial_is_the_example() -> None:
    page = blocks(ROOT / "docs" / "learn" / "tutorial.md")
    files = {block.title: block.code for block in page if block.title.endswith(".py")}
    assert files == {path.name: path.read_text() for path in (ROOT / "examples" / "shop").glob("*.py")}


def test_what_is_not_run_says_why() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *(?:```|~~~) *(?:python|py|sh|bash|shell|console)\b", page.read_text(), re.MULTILINE)
        known = [block for block in blocks(page) if block.language in ("python", "py", "sh", "console")]
        assert len(fences) == len(known), f"{name(page)} has a block that the tests do not see"
        for block in blocks(page):
            assert not block.title.startswith(NOT_RUN) or len(block.title) > len(NOT_RUN) + 5, (name(page), block.line)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_what_a_page_installs_and_checks_exists(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sessions = re.findall(r"@nox\.session.*?\ndef (\w+)", (ROOT / "noxfile.py").read_text())
    for block in blocks(page):
        for extra in re.findall(r"(?:apressure|\.)\[([\w,]+)\]", block.code) if _is_shell(block) else []:
            assert set(extra.split(",")) <= set(extras), block
        for named in re.findall(r"\bnox -s ([\w ]+)", block.code):
            assert set(named.split()) <= set(sessions), block


def test_programs_for_other_libraries_compile() -> None:
    before = [
        block
        for page in PAGES
        if page.parent.name == "migrate"
        for block in blocks(page)
        if block.title.startswith(NOT_RUN) and block.language == "python"
    ]
    assert len(before) == 5
    for block in before:
        ast.parse(block.code)


def _is_shell(block: Block) -> bool:
    return block.language in ("sh", "console")
