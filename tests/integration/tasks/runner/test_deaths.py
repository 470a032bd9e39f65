"""Runners that end, are killed, stand still or lose their server: their tasks run again, and never twice at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apressure.embedded import EmbeddedServer
from apressure.tasks import Ran, TaskClient
from apressure.tasks.nodes import processes
from apressure.tasks.nodes.consumer import TaskConsumer
from apressure.tasks.nodes.orphans import Orphans
from tests.integration.commands import PATIENCE, ended, environment, running
from tests.integration.tasks.runner.jobs import LONG, Jobs, runner

BY_SIGNAL = b"signal=<Signals.SIGTERM: 15>, drained=False)\n"
"""How a Runner ends that was not drained by an operator, but by a signal."""


async def test_a_drained_queue_ends_the_runner(jobs: Jobs) -> None:
    await jobs.queue.create()
    await jobs.queue.put_many(["", "", "fail"])
    await jobs.queue.close()
    command = jobs.shell('mkdir again 2>/dev/null && kill -KILL $$; [ -z "$1" ]')
    async with asyncio.timeout(PATIENCE):
        assert await jobs.runner(command, concurrency=3).run() == Ran(complete=2, failed=1, given_back=1, lost=0)


async def test_a_task_that_ends_while_the_queue_drains(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is drained in the moment in which the last task has ended."""
    await jobs.queue.enqueue(None)
    await jobs.queue.close()
    one = jobs.runner(jobs.shell("exit 0"), concurrency=2)
    reserve = TaskConsumer.__anext__

    async def reserve_until_all_have_ended(consuming: TaskConsumer[Any]) -> Any:
        try:
            return await reserve(consuming)
        finally:
            await jobs.until(lambda: not one._running)

    monkeypatch.setattr(TaskConsumer, "__anext__", reserve_until_all_have_ended)
    async with asyncio.timeout(PATIENCE):
        assert await one.run() == Ran(complete=1, failed=0, given_back=0, lost=0)


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
    assert (code, output) == (
        0,
        b"Ran(complete=1, failed=0, given_back=0, lost=0, signal=<Signals.SIGTERM: 15>, drained=False)\n",
    )
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
    assert (code, output) == (
        0,
        b"Ran(complete=0, failed=0, given_back=1, lost=0, signal=<Signals.SIGTERM: 15>, drained=False)\n",
    )
    task = await jobs.task(task_id)
    assert (task.status, task.attempts) == ("pending", 0)
    assert not jobs.alive()


async def test_a_second_signal_ends_a_task_that_arrives_with_it(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = await jobs.queue.enqueue(None)
    one = jobs.runner(jobs.shell("trap '' TERM; sleep 1000"), shutdown_timeout=LONG, grace=LONG)
    reserve = TaskConsumer.__anext__

    async def reserve_and_get_signals(consuming: TaskConsumer[Any]) -> Any:
        delivery = await reserve(consuming)
        for signum in (signal.SIGTERM, signal.SIGINT):
            one._signalled(signum)
        return delivery

    monkeypatch.setattr(TaskConsumer, "__anext__", reserve_and_get_signals)
    async with asyncio.timeout(PATIENCE):
        assert await one.run() == Ran(complete=0, failed=0, given_back=1, lost=0, signal=signal.SIGTERM)
    task = await jobs.task(task_id)
    assert (task.status, task.attempts) == ("pending", 0)


async def test_a_killed_runner_takes_its_commands_along_and_the_next_one_runs_the_task(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskConsumer, "_heartbeat", 0.2)
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
    module = [sys.executable, "-m", "tests.integration.tasks.runner.abandoned", jobs.url, "jobs", str(pid)]
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


async def test_a_task_whose_process_outlives_its_listener_runs_again_after_that(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskConsumer, "_heartbeat", 0.2)
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
        assert await Orphans(jobs.queue).claim() == 0
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
    assert (code, output) == (
        0,
        b"Ran(complete=0, failed=0, given_back=0, lost=1, signal=<Signals.SIGTERM: 15>, drained=False)\n",
    )
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


async def test_a_command_outlives_its_lease_while_a_coroutine_blocks_the_event_loop(jobs: Jobs) -> None:
    """A thread renews the lease, and tells the supervisor."""
    task_id = await jobs.queue.enqueue(None)
    async with jobs.running(jobs.runner(jobs.shell("touch ready; sleep 7"), lease=5)):
        await jobs.has("ready")
        time.sleep(6)
        task = await jobs.finished(task_id)
    assert (task.status, task.attempts) == ("complete", 1)
