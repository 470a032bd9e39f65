"""A `Runner` with a real server: what becomes of tasks that end well, fail, hang, or are cancelled."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from apressure.tasks import Command, Function, Ran, Runner, TaskClient, TaskDelivery, report_progress
from apressure.testing.contract.steps import Counting
from tests.integration.commands import PATIENCE, ended, environment, running
from tests.integration.tasks.runner.jobs import LONG, Jobs


async def test_a_command_that_ends_well_completes_its_task(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell('echo "$# $1 $2"; echo note >&2'), ["a b", 1])
    assert (task.status, task.result, task.fields["output"]) == ("complete", "2 a b 1", "note\n")
    assert task.fields["exit_status"] == "0"


async def test_a_command_knows_its_task(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("echo $APRESSURE_TASK_ID $APRESSURE_TASK_QUEUE $APRESSURE_TASK_ATTEMPT"), None)
    assert task.result == f"{task.id} jobs 1"


async def test_a_command_may_report_its_result(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("""echo hi; echo 'result {"n": 1}' >&$APRESSURE_PROGRESS_FD"""), None)
    assert (task.result, task.fields["output"]) == ({"n": 1}, "hi\n")


async def test_another_exit_status_fails_the_task(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("echo out; echo no such codec >&2; exit 3"), None)
    assert (task.status, task.error) == ("failed", "exit status 3: no such codec")
    assert sorted(task.fields["output"].splitlines()) == ["no such codec", "out"]
    assert task.fields["exit_status"] == "3"


async def test_a_command_that_reports_an_error_fails_with_it(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("echo error disk is full >&$APRESSURE_PROGRESS_FD"), None)
    assert (task.status, task.error) == ("failed", "disk is full")


async def test_a_command_that_crashes_by_itself_fails_the_task(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("kill -SEGV $$"), None)
    assert (task.status, task.error, task.attempts) == ("failed", "killed by SIGSEGV", 1)


async def test_a_killed_command_runs_again(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("[ -e again ] || { touch again; kill -KILL $$; }"), None)
    assert (task.status, task.attempts) == ("complete", 2)


async def test_a_command_that_is_always_killed_fails_after_max_attempts(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("echo x >>runs; echo out; kill -KILL $$"), None, max_attempts=2)
    assert (task.status, task.error, task.attempts) == ("failed", "killed by SIGKILL", 2)
    assert (task.fields["output"], task.fields["exit_status"]) == ("out\n", "-9")
    assert (jobs.folder / "runs").read_text() == "x\n" * 2


async def test_a_killed_command_fails_its_task_where_that_is_the_policy(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("kill -KILL $$"), None, on_orphan="fail")
    assert (task.status, task.error, task.attempts) == ("failed", "killed by SIGKILL", 1)


async def test_a_killed_supervisor_takes_its_command_along_and_the_task_runs_again(jobs: Jobs) -> None:
    command = jobs.shell("[ -e again ] || { touch again; sleep 1000 & wait; }")
    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(command)):
        await jobs.has("again")
        started = await jobs.task(task_id)
        assert started.pid is not None
        os.kill(started.pid, signal.SIGKILL)
        task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 2)


async def test_a_command_that_takes_too_long_fails(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("trap 'exit 0' TERM; while :; do sleep 0.05; done"), None, timeout=1)
    assert (task.status, task.error) == ("failed", "timed out after 1 s")


@pytest.mark.parametrize("trap", ["touch asked; exit 0", "touch asked"], ids=["obeys", "ignores SIGTERM"])
async def test_a_cancelled_task_is_terminated_and_then_killed(jobs: Jobs, trap: str) -> None:
    task_id = await jobs.queue.enqueue(None)
    command = jobs.shell(f"trap '{trap}' TERM; touch ready; while :; do sleep 0.05; done")
    async with jobs.running(jobs.runner(command, grace=1)):
        await jobs.has("ready")
        await jobs.queue.cancel(task_id)
        task = await jobs.finished(task_id)
    assert (task.status, task.error) == ("failed", "cancelled")
    assert (jobs.folder / "asked").exists()


async def test_a_cancellation_does_not_wait_for_a_renewal(jobs: Jobs) -> None:
    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(jobs.shell("touch ready; sleep 1000"), lease=LONG)):
        await jobs.has("ready")
        await asyncio.sleep(1.5)  # the Runner listens
        await jobs.queue.cancel(task_id)
        assert (await jobs.finished(task_id)).error == "cancelled"


async def test_a_cancelled_coroutine_is_cancelled(jobs: Jobs) -> None:
    began = asyncio.Event()

    async def handle(_: Any) -> None:
        began.set()
        await asyncio.sleep(LONG)

    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(handle)):
        await began.wait()
        await jobs.queue.cancel(task_id)
        task = await jobs.finished(task_id)
    assert (task.status, task.error) == ("failed", "cancelled")


async def test_functions_run_in_processes_of_their_own(jobs: Jobs) -> None:
    from tests.integration.tasks.runner.functions import double

    for work in (
        double,
        "tests.integration.tasks.runner.functions:double",
        Function("tests.integration.tasks.runner.functions:double"),
    ):
        (task,) = await jobs.run(work, {"number": 21})
        assert task.result["double"] == 42
        assert task.result["pid"] != os.getpid()
        assert int(task.fields["output"]) == task.result["pid"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails", "ValueError: no such file"),
        ("returns_a_set", "returned a set that is not JSON"),
    ],
)
async def test_a_function_that_fails_fails_its_task(jobs: Jobs, name: str, error: str) -> None:
    (task,) = await jobs.run(f"tests.integration.tasks.runner.functions:{name}", None)
    assert task.status == "failed"
    assert task.error is not None
    assert error in task.error
    assert "Traceback" in task.fields["output"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("tests.integration.tasks.runner.functions:missing", "AttributeError: .*has no attribute 'missing'"),
        ("tests.integration.tasks.runner.functions:PLACE", "TypeError: .* is a str, not a function"),
        ("no_such_module:function", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
async def test_a_function_that_cannot_be_imported_takes_no_task(jobs: Jobs, name: str, error: str) -> None:
    task_id = await jobs.queue.enqueue(None)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError, match=rf"the function {name} cannot be called: {error}"):
            await jobs.runner(name).run()
    task = await jobs.task(task_id)
    assert (task.status, task.attempts) == ("pending", 0)


async def test_coroutines_run_in_this_process(jobs: Jobs) -> None:
    async def handle(parameters: Any) -> Any:
        if parameters == "fail":
            raise ValueError("no such file")
        if parameters in ("set", "surrogate"):
            return {1} if parameters == "set" else "\ud800"
        return {"got": parameters, "pid": os.getpid()}

    good, bad, odd, worse = await jobs.run(handle, {"a": 1}, "fail", "set", "surrogate")
    assert (good.result, good.pid) == ({"got": {"a": 1}, "pid": os.getpid()}, os.getpid())
    assert (bad.status, bad.error) == ("failed", "ValueError: no such file")
    assert "in handle" in bad.fields["output"]
    assert (odd.status, odd.error) == (
        "failed", "the result is a set that cannot be kept: Object of type set is not JSON serializable"
    )  # fmt: skip
    assert worse.error is not None
    assert worse.error.startswith("the result is a str that cannot be kept: 'utf-8' codec can't encode")


async def test_progress_is_noted(jobs: Jobs) -> None:
    go = asyncio.Event()

    async def handle(_: Any) -> None:
        for number in range(100):
            report_progress(number / 100, f"step {number}")
        await go.wait()

    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(handle)), asyncio.timeout(PATIENCE):
        task = await jobs.task(task_id)
        while task.progress != 0.99:
            task = await task.wait_for_change(PATIENCE)
        assert task.progress_message == "step 99"
        go.set()
        assert (await jobs.finished(task_id)).status == "complete"


async def test_a_coroutine_reports_progress_from_a_thread(jobs: Jobs) -> None:
    async def handle(_: Any) -> None:
        await asyncio.to_thread(report_progress, 0.5, "half way")
        while (await jobs.task(task_id)).progress is None:
            await asyncio.sleep(0.01)

    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(handle)):
        task = await jobs.finished(task_id)
    assert (task.status, task.progress, task.progress_message) == ("complete", 0.5, "half way")


async def test_the_last_progress_is_noted(jobs: Jobs) -> None:
    script = "for i in 1 2 3 4 5; do echo 0.$i step $i >&$APRESSURE_PROGRESS_FD; sleep 0.05; done"
    (task,) = await jobs.run(jobs.shell(script), None)
    assert (task.status, task.progress, task.progress_message) == ("complete", 0.5, "step 5")


async def test_progress_of_a_command_is_noted(jobs: Jobs) -> None:
    script = "echo 0.5 half way >&$APRESSURE_PROGRESS_FD; while [ ! -e seen ]; do sleep 0.05; done"
    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(jobs.shell(script))), asyncio.timeout(PATIENCE):
        task = await jobs.task(task_id)
        while task.progress is None:
            task = await task.wait_for_change(PATIENCE)
        assert (task.progress, task.progress_message) == (0.5, "half way")
        (jobs.folder / "seen").touch()
        assert (await jobs.finished(task_id)).status == "complete"


async def test_only_so_many_tasks_run_at_a_time(jobs: Jobs) -> None:
    counting = Counting(0.02)
    tasks = await jobs.run(counting.handle, *range(20), concurrency=3)
    assert {task.status for task in tasks} == {"complete"}
    assert counting.most == 3


async def test_no_task_is_reserved_before_there_is_room_for_it(jobs: Jobs) -> None:
    first, second = await jobs.queue.enqueue(1), await jobs.queue.enqueue(2)
    async with jobs.running(jobs.runner(jobs.shell("touch ready; while [ ! -e go ]; do sleep 0.05; done"))):
        await jobs.has("ready")
        assert (await jobs.task(second)).status == "pending"
        (jobs.folder / "go").touch()
        assert [(await jobs.finished(one)).status for one in (first, second)] == ["complete", "complete"]


async def test_output_is_handed_out_while_it_comes(jobs: Jobs) -> None:
    seen: list[tuple[str, str, str]] = []

    def on_output(delivery: TaskDelivery[Any], stream: str, text: str) -> None:
        seen.append((delivery.id, stream, text))
        (jobs.folder / "seen").touch()

    script = "echo first; while [ ! -e seen ]; do sleep 0.05; done; echo second >&2"
    (task,) = await jobs.run(jobs.shell(script), None, on_output=on_output)
    assert seen == [(task.id, "stdout", "first\n"), (task.id, "stderr", "second\n")]


async def test_a_flood_of_output_is_cut(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("yes | head -c 3000000; printf '\\377end'"), None, max_output=1000)
    assert task.result.startswith("[2,999,004 bytes left out]\n")
    assert task.result.endswith("y\n�end")


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        (["a\0b"], "cannot run: an argument of a command must not contain a null character"),
        (["x" * 3_000_000], "cannot run: [Errno 7] Argument list too long"),
    ],
    ids=["null", "long"],
)
async def test_parameters_that_no_command_can_get_fail_the_task(jobs: Jobs, parameters: Any, error: str) -> None:
    bad, good = await jobs.run(jobs.shell(":"), parameters, "fine")
    assert (bad.status, good.status) == ("failed", "complete")
    assert (bad.error or "").startswith(error)


async def test_a_program_that_disappears_fails_the_task(jobs: Jobs) -> None:
    (jobs.folder / "program").write_text("#!/bin/sh\nrm $0\n")
    (jobs.folder / "program").chmod(0o700)
    first, second = await jobs.run(Command([str(jobs.folder / "program")]), None, None)
    assert (first.status, second.status) == ("complete", "failed")
    assert second.error == f"cannot run {jobs.folder}/program: No such file or directory"


async def test_signals_need_the_main_thread(jobs: Jobs) -> None:
    async def run() -> None:
        async with TaskClient(jobs.url) as client:
            await Runner(client, "jobs", Command(["true"])).run()

    with pytest.raises(RuntimeError, match="main thread"):
        await asyncio.to_thread(asyncio.run, run())


async def test_a_runner_runs_once(jobs: Jobs) -> None:
    await jobs.queue.create()
    await jobs.queue.close()
    one = jobs.runner(Command(["true"]))
    assert await one.run() == Ran(0, 0, 0, 0)
    with pytest.raises(RuntimeError, match="run already"):
        await one.run()


async def test_the_code_in_the_docs_runs_as_it_is(jobs: Jobs) -> None:
    page = Path(__file__).parents[4] / "docs" / "do" / "tasks-runner.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (jobs.folder / "-a.mov").write_text("film")
    task_id = await jobs.client.queue("archive").enqueue("-a.mov")
    code = block.replace("redis://127.0.0.1:6379/0", jobs.url)
    with running([sys.executable, "-c", code], cwd=jobs.folder, env=environment(), stderr=None) as process:
        assert (await jobs.finished(task_id)).status == "complete"
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0
    assert (jobs.folder / "-a.mov.gz").exists()


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (3, "a Runner runs a Command, a function or 'module:function', not int"),
        (lambda parameters: None, "cannot be imported"),
        ("no name", "a function is named as 'module:function'"),
        (Command(["no-such-program-anywhere"]), "there is no such program"),
    ],
)
async def test_work_that_cannot_run_is_refused(jobs: Jobs, work: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=error):
        jobs.runner(work)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0}, {"timeout": 0}, {"grace": -1}, {"lease": 0.001}, {"on_orphan": "drop"}, {"max_attempts": 0},
        {"max_output": -1}, {"shutdown_timeout": float("nan")},
    ],
    ids=str,
)  # fmt: skip
async def test_bad_options_are_refused(jobs: Jobs, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        jobs.runner(Command(["true"]), **options)
