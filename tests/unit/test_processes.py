"""What helper processes of a test have written is shown when it fails, and all tests start them in one place."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]

TESTS = r"""
import asyncio
import multiprocessing
import subprocess
import sys

import pytest

from tests import processes

LOUD = [sys.executable, "-c", "import os; os.write(1, b'loud out\\n'); os.write(2, b'loud error\\n')"]
PIPE, DROP = subprocess.PIPE, subprocess.DEVNULL


def works():
    print("loud out")
    raise ValueError("loud error")


def test_which_passes():
    processes.run(LOUD)


@pytest.mark.parametrize("options", [
    {}, {"stdout": PIPE, "stderr": PIPE}, {"stdout": PIPE, "text": True}, {"stderr": PIPE, "bufsize": 0},
    {"stdout": DROP, "stderr": DROP},
])
@pytest.mark.parametrize("way", ["waits", "reads", "communicates"])
def test_popen(options, way):
    with processes.Popen(LOUD, **options) as process:
        if way == "waits":
            process.wait()
        elif way == "communicates":
            process.communicate()
        else:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    assert stream.readline() in ("loud out\n", b"loud out\n", b"loud error\n")
    pytest.fail("for a reason")


def test_which_is_still_open():
    process = processes.Popen(LOUD, stdout=PIPE, stderr=PIPE)
    process.wait()
    try:
        pytest.fail("for a reason")
    finally:
        test_which_is_still_open.process = process


def test_run():
    processes.run(LOUD, capture_output=True, check=True)
    processes.run([sys.executable, "-c", "1/0"], capture_output=True, check=True)


def test_which_takes_too_long():
    processes.run([*LOUD[:-1], LOUD[-1] + "; import time; time.sleep(600)"], capture_output=True, timeout=5)


@pytest.mark.parametrize("stream", [None, PIPE])
def test_asyncio(stream):
    async def start():
        process = await processes.start(*LOUD, stdout=stream, stderr=stream)
        await process.wait()
        if stream is not None:
            assert (await process.stdout.read(), await process.stderr.read()) == (b"loud out\n", b"loud error\n")
    asyncio.run(start())
    pytest.fail("for a reason")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method):
    process = processes.process(multiprocessing.get_context(method), works)
    process.join()
    assert process.exitcode == 0


def test_fork():
    assert processes.forked(works) == 0


def test_executor():
    with processes.executor() as executor:
        executor.submit(print, "loud out", flush=True).result()
        executor.submit(print, "loud error", flush=True).result()
    pytest.fail("for a reason")


@pytest.fixture(scope="module")
def shared():
    with processes.Popen(["cat"], stdin=PIPE, bufsize=0) as process:
        yield process


@pytest.mark.parametrize("turn", [1, 2])
def test_of_a_process_that_several_tests_share(shared, turn):
    shared.stdin.write(b"loud out\nloud error\n")
    shared.stdin.close() if turn == 2 else None
    while b"loud error" not in open(shared.output.path, "rb").read():
        pass
    pytest.fail("for a reason")
"""


def test_what_a_process_has_written_is_shown_when_the_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_loud.py").write_text(TESTS)
    done = processes.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.processes", "-p", "no:cacheprovider", "-p", "no:randomly",
         "test_loud.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 passed" in done.stdout
    reports = re.split(r"^_{3,} (test_.*) _{3,}$", done.stdout.split("= short test summary")[0], flags=re.MULTILINE)[1:]
    failed = dict(zip(reports[::2], reports[1::2], strict=True))
    assert len(failed) == 27
    for name, report in failed.items():
        assert "written by: " in report, name
        _, _, written = report.partition("written by: ")
        assert re.search("^loud out$", written, re.MULTILINE), (name, report)
        assert "loud error" in written, (name, report)
    assert "ZeroDivisionError" in failed["test_run"]


def test_a_pipe_that_is_garbage_in_a_cycle_is_closed_without_a_warning() -> None:
    process = processes.Popen(["true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.wait()
    assert process.stdout
    assert process.stderr
    descriptors = [process.stdout.fileno(), process.stderr.fileno()]
    del process
    processes.pytest_runtest_setup()  # as before the next test
    with pytest.MonkeyPatch.context() as patch:
        complaints: list[object] = []
        patch.setattr(sys, "unraisablehook", complaints.append)
        gc.collect()
    assert not complaints
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_all_tests_start_their_processes_there() -> None:
    """Except what is no test, and programs that tests start: what starts these has what they and theirs write."""
    ways = {"subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
            "subprocess.getoutput", "os.fork", "os.posix_spawn", "os.system", "asyncio.create_subprocess_exec",
            "asyncio.create_subprocess_shell", "ProcessPoolExecutor"}  # fmt: skip
    allowed = {"processes.py", "environments.py", "documentation/run_page.py", "chaos/workers.py", "together.py"}
    found = []
    for file in (ROOT / "tests").rglob("*.py"):
        name = file.relative_to(ROOT / "tests").as_posix()
        if name in allowed or name.startswith(("benchmarks/", "simulation/")):
            continue
        text = file.read_text()
        if not re.search(r"subprocess|os\.(fork|posix_spawn|system)|ProcessPool|context\.Process", text):
            continue
        tree = ast.parse(text)
        inner = {id(part) for node in ast.walk(tree) for part in _within(node)}
        found += [
            f"{name}:{node.lineno}: {ast.unparse(node)}"
            for node in ast.walk(tree)
            if isinstance(node, (ast.Attribute, ast.Name))
            and (ast.unparse(node) in ways or ast.unparse(node).endswith("context.Process"))
            and id(node) not in inner
        ]
    assert found == []


def _within(node: ast.AST) -> list[ast.AST]:
    """What of a node starts nothing: a name in a type such as `Popen[bytes]`, or whose attribute is meant."""
    if isinstance(node, ast.Subscript):
        return [*ast.walk(node)]
    return [node.value] if isinstance(node, ast.Attribute) else []
