"""A `Runner` with real servers: what becomes of tasks that end well, fail, hang, are cancelled or killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from apressure import TaskFailedError
from apressure.embedded import EmbeddedServer
from apressure.tasks import (
    Command,
    Function,
    Ran,
    Runner,
    Task,
    TaskClient,
    TaskDelivery,
    orphans,
    processes,
    report_progress,
)
from tests.integration.commands import PATIENCE, ended, environment, marked, new_mark, running
from tests.integration.tasks.runners import runner

pytestmark = pytest.mark.leaves_keys

LONG = 3600.0
"""Seconds: it never comes."""


class Jobs:
    """A queue, the folder in which its tasks work, and how to see what becomes of them."""

    def __init__(self, client: TaskClient, url: str, folder: Path) -> None:
        self.client = client
        self.url = url
        self.folder = folder
        self.mark = new_mark()
        self.queue = client.queue("jobs")

    def shell(self, script: str, **options: Any) -> Command:
        return Command(["sh", "-c", textwrap.dedent(script), "sh"], cwd=self.folder, env=self.mark, **options)

    def runner(self, work: Any, **options: Any) -> Runner:
        return Runner(self.client, "jobs", work, **{"signals": (), **options})

    async def run(self, work: Any, *parameters: Any, **options: Any) -> list[Task]:
        """Run tasks until all have ended, and return them."""
        ids = [await self.queue.enqueue(one) for one in parameters]
        async with self.running(self.runner(work, **options)):
            return [await self.finished(one) for one in ids]

    @contextlib.asynccontextmanager
    async def running(self, one: Runner) -> AsyncIterator[asyncio.Task[Ran]]:
        task = asyncio.create_task(one.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait((task,))
        assert not self.alive()

    async def task(self, task_id: str) -> Task:
        return await self.client.task(task_id)

    async def finished(self, task_id: str) -> Task:
        with contextlib.suppress(TaskFailedError):
            await (await self.task(task_id)).wait(PATIENCE)
        return await self.task(task_id)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def has(self, name: str) -> None:
        await self.until((self.folder / name).exists)

    async def has_status(self, task_id: str, status: str) -> Task:
        async with asyncio.timeout(PATIENCE):
            while (task := await self.task(task_id)).status != status:
                await asyncio.sleep(0.01)
        return task

    def alive(self) -> list[psutil.Process]:
        return marked(self.mark, Path("/nowhere"))


@pytest.fixture
def server(valkey: EmbeddedServer) -> EmbeddedServer:
    """One server only: a Runner does the same on each. The chaos test runs on all."""
    return valkey


@pytest.fixture
async def jobs(url: str, tmp_path: Path) -> AsyncIterator[Jobs]:
    async with TaskClient(url) as client:
        yield Jobs(client, url, tmp_path)


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
    (task,) = await jobs.run(jobs.shell("trap 'echo bye; exit 0' TERM; while :; do sleep 0.05; done"), None, timeout=1)
    assert (task.status, task.error) == ("failed", "timed out after 1 s")
    assert task.fields["output"].endswith("bye\n")


@pytest.mark.parametrize("trap", ["touch asked; exit 0", "touch asked"], ids=["obeys", "ignores SIGTERM"])
async def test_a_cancelled_task_is_terminated_and_then_killed(jobs: Jobs, trap: str) -> None:
    task_id = await jobs.queue.enqueue(None)
    command = jobs.shell(f"trap '{trap}' TERM; touch ready; while :; do sleep 0.05; done")
    async with jobs.running(jobs.runner(command, grace=1, lease=6)):
        await jobs.has("ready")
        await jobs.queue.cancel(task_id)
        task = await jobs.finished(task_id)
    assert (task.status, task.error) == ("failed", "cancelled")
    assert (jobs.folder / "asked").exists()


async def test_a_cancelled_coroutine_is_cancelled(jobs: Jobs) -> None:
    began = asyncio.Event()

    async def handle(_: Any) -> None:
        began.set()
        await asyncio.sleep(LONG)

    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(handle, lease=4)):
        await began.wait()
        await jobs.queue.cancel(task_id)
        task = await jobs.finished(task_id)
    assert (task.status, task.error) == ("failed", "cancelled")


async def test_functions_run_in_processes_of_their_own(jobs: Jobs) -> None:
    from tests.integration.tasks.functions import double

    for work in (
        double,
        "tests.integration.tasks.functions:double",
        Function("tests.integration.tasks.functions:double"),
    ):
        (task,) = await jobs.run(work, {"number": 21})
        assert task.result["double"] == 42
        assert task.result["pid"] != os.getpid()
        assert int(task.fields["output"]) == task.result["pid"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing", "the function tests.integration.tasks.functions:missing cannot be imported"),
        ("fails", "ValueError: no such file"),
        ("returns_a_set", "returned a set that is not JSON"),
    ],
)
async def test_a_function_that_fails_fails_its_task(jobs: Jobs, name: str, error: str) -> None:
    (task,) = await jobs.run(f"tests.integration.tasks.functions:{name}", None)
    assert task.status == "failed"
    assert task.error is not None
    assert error in task.error
    assert "Traceback" in task.fields["output"]


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
    now, most = 0, 0

    async def handle(_: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    tasks = await jobs.run(handle, *range(20), concurrency=3)
    assert {task.status for task in tasks} == {"complete"}
    assert most == 3


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


async def test_a_drained_queue_ends_the_runner(jobs: Jobs) -> None:
    await jobs.queue.create()
    await jobs.queue.put_many(["", "", "fail"])
    await jobs.queue.close()
    command = jobs.shell('mkdir again 2>/dev/null && kill -KILL $$; [ -z "$1" ]')
    async with asyncio.timeout(PATIENCE):
        assert await jobs.runner(command, concurrency=3).run() == Ran(complete=2, failed=1, given_back=1, lost=0)


async def test_a_cancelled_run_ends_its_tasks_and_gives_them_back(jobs: Jobs) -> None:
    task_id = await jobs.queue.enqueue(None)
    command = jobs.shell("trap 'touch asked; exit 0' TERM; touch ready; while :; do sleep 0.05; done")
    async with jobs.running(jobs.runner(command)):
        await jobs.has("ready")
    assert (jobs.folder / "asked").exists()
    task = await jobs.task(task_id)
    assert (task.status, task.attempts) == ("pending", 0)


async def test_the_first_signal_lets_tasks_finish(jobs: Jobs) -> None:
    first, second = await jobs.queue.enqueue(1), await jobs.queue.enqueue(2)
    command = jobs.shell(f"cd {jobs.folder}; touch ready; while [ ! -e go ]; do sleep 0.05; done")
    with runner(jobs.url, "jobs", command, shutdown_timeout=LONG) as process:
        await jobs.has("ready")
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        (jobs.folder / "go").touch()
        code, output, _ = ended(process)
    assert (code, output) == (0, b"Ran(complete=1, failed=0, given_back=0, lost=0, signal=<Signals.SIGTERM: 15>)\n")
    assert [(await jobs.task(one)).status for one in (first, second)] == ["complete", "pending"]


@pytest.mark.parametrize("how", ["second signal", "shutdown_timeout"])
async def test_after_a_while_tasks_are_ended_and_given_back(jobs: Jobs, how: str) -> None:
    task_id = await jobs.queue.enqueue(None)
    command = jobs.shell(f"cd {jobs.folder}; touch ready; sleep 1000")
    with runner(jobs.url, "jobs", command, shutdown_timeout=LONG if how == "second signal" else 0.1) as process:
        await jobs.has("ready")
        process.send_signal(signal.SIGTERM)
        if how == "second signal":
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGTERM)
        code, output, _ = ended(process)
    assert (code, output) == (0, b"Ran(complete=0, failed=0, given_back=1, lost=0, signal=<Signals.SIGTERM: 15>)\n")
    task = await jobs.task(task_id)
    assert (task.status, task.attempts) == ("pending", 0)
    assert not jobs.alive()


async def test_a_killed_runner_takes_its_commands_along_and_the_next_one_runs_the_task(jobs: Jobs) -> None:
    task_id = await jobs.queue.enqueue(None)
    command = jobs.shell(f"cd {jobs.folder}; [ -e again ] || {{ trap '' TERM; touch again; sleep 1000; }}")
    with runner(jobs.url, "jobs", command, grace=0.5) as process:
        await jobs.has("again")
        process.kill()
        process.wait()
        async with jobs.running(jobs.runner(command)):
            task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 2)
    await jobs.until(lambda: not jobs.alive())


async def abandon(jobs: Jobs, pid: int) -> str:
    """Enqueue a task, and have a listener die with it; returns the task's id."""
    task_id = await jobs.queue.enqueue(None)
    module = [sys.executable, "-m", "tests.integration.tasks.abandoned", jobs.url, "jobs", str(pid)]
    with running(module, env=environment(), stderr=None) as process:
        assert ended(process)[0] == 0
    return task_id


@pytest.mark.parametrize("pid", [0, 999_999_999], ids=["reserved", "started"])
async def test_what_a_dead_listener_of_this_host_had_runs_again_at_once(jobs: Jobs, pid: int) -> None:
    task_id = await abandon(jobs, pid)
    async with jobs.running(jobs.runner(jobs.shell("touch ran"))):
        task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 2)


async def test_what_a_dead_listener_of_this_host_had_fails_where_that_is_the_policy(jobs: Jobs) -> None:
    task_id = await abandon(jobs, 0)
    await jobs.client.connection.ask(b"HSET", f"blueque_task_{task_id}".encode(), b"on_orphan", b"fail")
    async with jobs.running(jobs.runner(jobs.shell("touch ran"))):
        task = await jobs.finished(task_id)
    assert (task.status, (jobs.folder / "ran").exists()) == ("failed", False)


async def test_a_task_whose_process_outlives_its_listener_runs_again_after_that(jobs: Jobs) -> None:
    with running(["sleep", "1000"]) as process:
        task_id = await abandon(jobs, process.pid)
        async with jobs.running(jobs.runner(jobs.shell("touch ran"))):
            second = await jobs.queue.enqueue(None)
            await jobs.finished(second)
            (jobs.folder / "ran").unlink()
            assert (await jobs.task(task_id)).status == "started"
            process.kill()
            process.wait()
            assert (await jobs.finished(task_id)).status == "complete"
            assert (jobs.folder / "ran").exists()


async def test_a_process_that_has_got_the_number_of_another_one_does_not_count(jobs: Jobs) -> None:
    with running(["sleep", "1000"]) as process:
        task_id = await abandon(jobs, process.pid)
        key, before = f"blueque_task_{task_id}".encode(), str(time.time() - 1000).encode()
        await jobs.client.connection.ask(b"HSET", key, b"process_started", before)
        async with jobs.running(jobs.runner(jobs.shell("touch ran"))):
            assert (await jobs.finished(task_id)).status == "complete"
        assert process.poll() is None


async def test_a_runner_keeps_its_tasks_where_the_clocks_of_host_and_server_differ(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the host's clock, the process of the other Runner began after it had reserved its task."""
    task_id = await jobs.queue.enqueue(None)
    command = jobs.shell(f"cd {jobs.folder}; touch ready; while [ ! -e go ]; do sleep 0.05; done")
    with runner(jobs.url, "jobs", command) as process:
        await jobs.has("ready")
        real = processes.started_at
        monkeypatch.setattr(processes, "started_at", lambda pid: (real(pid) or 0.0) + 1000.0)
        assert await orphans.claim(jobs.queue) == 0
        (jobs.folder / "go").touch()
        assert (await jobs.finished(task_id)).attempts == 1
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0


async def test_a_runner_that_stands_still_loses_its_task_after_its_command_was_killed(jobs: Jobs) -> None:
    """The first command holds a lock: the second one, which another Runner starts, does not have to wait for it."""
    task_id = await jobs.queue.enqueue(None)
    script = f"""
        cd {jobs.folder}
        exec 9>lock
        flock -n 9 || touch both
        [ -e again ] || {{ trap '' TERM; touch again; while :; do sleep 0.05; done; }}
    """
    with runner(jobs.url, "jobs", jobs.shell(script), lease=5) as process:
        await jobs.has("again")
        process.send_signal(signal.SIGSTOP)
        async with jobs.running(jobs.runner(jobs.shell(script))):
            task = await jobs.finished(task_id)
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            code, output, _ = ended(process)
    assert (task.status, task.attempts, (jobs.folder / "both").exists()) == ("complete", 2, False)
    assert (code, output) == (0, b"Ran(complete=0, failed=0, given_back=0, lost=1, signal=<Signals.SIGTERM: 15>)\n")
    assert (await jobs.task(task_id)).fields == task.fields
    complete = await jobs.client.connection.ask(b"LRANGE", b"blueque_complete_tasks_jobs", 0, -1)
    assert complete == [task_id.encode()]


async def test_a_command_ends_when_its_lease_cannot_be_renewed(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """The server stands still for longer than the lease: the command ends before, and runs again afterwards."""
    server = make_server()
    async with TaskClient(server.url) as client:
        jobs = Jobs(client, server.url, tmp_path)
        task_id = await jobs.queue.enqueue(None)
        command = jobs.shell(
            "[ -e again ] || { touch again; trap 'touch asked; exit' TERM; while :; do sleep 0.05; done; }"
        )
        async with jobs.running(jobs.runner(command, lease=2)):
            await jobs.has("again")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await jobs.has("asked")
                await jobs.until(lambda: not jobs.alive())
            finally:
                os.kill(server.pid, signal.SIGCONT)
            task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 2)


async def test_the_end_of_a_task_is_noted_when_the_server_is_back(
    make_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    server = make_server()
    async with TaskClient(server.url, retry_timeout=0.5, response_timeout=0.5) as client:
        jobs = Jobs(client, server.url, tmp_path)
        task_id = await jobs.queue.enqueue(None)
        async with jobs.running(
            jobs.runner(jobs.shell("touch ready; while [ ! -e go ]; do sleep 0.05; done"), lease=60)
        ):
            await jobs.has("ready")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                (tmp_path / "go").touch()
                await jobs.until(lambda: not jobs.alive())
                await asyncio.sleep(2)  # it has tried, and was refused
            finally:
                os.kill(server.pid, signal.SIGCONT)
            task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 1)


async def test_a_command_outlives_its_lease_while_that_is_renewed(jobs: Jobs) -> None:
    (task,) = await jobs.run(jobs.shell("sleep 5"), None, lease=3)
    assert (task.status, task.attempts) == ("complete", 1)


async def test_a_command_goes_on_while_a_coroutine_blocks_the_event_loop(jobs: Jobs) -> None:
    """A thread renews the lease, and tells the supervisor."""
    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(jobs.shell("touch ready; sleep 6"), lease=4)):
        await jobs.has("ready")
        time.sleep(5)
        task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 1)


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
    page = Path(__file__).parents[3] / "docs" / "tasks-runner.md"
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
