"""`apressure tasks` as people and scripts use it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import redis

from apressure.cli import main
from apressure.tasks import Task, TaskClient
from tests.integration.cli.test_cli_terminal import OBEYED, at_a_terminal, terminal
from tests.integration.commands import Commands, ended, wait_until

T = TypeVar("T")

pytestmark = [
    pytest.mark.leaves_keys("blueque_*", "apressure:blueque:*"),
    pytest.mark.parametrize("server", ["valkey"], indirect=True),  # nothing of this depends on the server
]


class Tasks(Commands):
    """`apressure tasks` on one server."""

    def __init__(self, url: str, capfd: pytest.CaptureFixture[str]) -> None:
        super().__init__(url)
        self._capfd = capfd

    def of(self, command: str, *arguments: str) -> list[str]:
        return ["tasks", command, *arguments]

    def run(self, command: str, *arguments: str) -> str:
        """Run a command of tasks in this process, which is quicker."""
        return self.do("tasks", command, *arguments)

    def do(self, command: str, *arguments: str) -> str:
        """Run any command in this process."""
        assert main(["--url", self.url, command, *arguments]) == 0
        output, errors = self._capfd.readouterr()
        assert errors == ""
        return output

    def error(self, code: int, command: str, *arguments: str) -> str:
        """Run a command that fails, and return what it says."""
        assert main(["--url", self.url, "tasks", command, *arguments]) == code
        return self._capfd.readouterr().err

    def data(self, command: str, *arguments: str) -> Any:
        return json.loads(self.run(command, "--json", *arguments))

    def client(self, use: Callable[[TaskClient], Awaitable[T]]) -> T:
        async def main() -> T:
            async with TaskClient(self.url) as client:
                return await use(client)

        return asyncio.run(main())

    def enqueue(self, *parameters: Any, name: str = "jobs") -> list[str]:
        async def put(client: TaskClient) -> list[str]:
            queue = client.queue(name)
            return [await queue.enqueue(each) for each in parameters]

        return self.client(put)

    def task(self, task_id: str) -> Task:
        return self.client(lambda client: client.task(task_id))

    def has(self, task_id: str, status: str) -> Callable[[], bool]:
        return lambda: self.task(task_id).status == status


@pytest.fixture
def tasks(url: str, capfd: pytest.CaptureFixture[str]) -> Tasks:
    return Tasks(url, capfd)


def test_the_life_of_tasks(tasks: Tasks, tmp_path: Path) -> None:
    first, second = tasks.do("put", "tasks:jobs", "a b", "c", "--ids").splitlines()
    assert tasks.do("ls") == "tasks:jobs\t2\t0\topen\n"
    shown = [line.split("\t") for line in tasks.run("ls", "jobs").splitlines()]
    assert sorted((line[0], line[1], line[6]) for line in shown) == sorted(
        [(first, "pending", "a b"), (second, "pending", "c")]
    )
    assert tasks.do("close", "tasks:jobs") == "closed tasks:jobs\n"
    assert tasks.run("run", "tasks:jobs", "--", "echo", "-n", "got") == (
        "tasks of jobs: 2 complete, 0 failed, 0 given back, 0 lost\n"
    )
    assert tasks.run("wait", first, second) == "got a b\ngot c\n"
    assert f"id\t{first}\nstatus\tcomplete\nqueue\tjobs\nparameters\ta b\nresult\tgot a b\n" in tasks.run("show", first)
    assert "complete\t2\n" in tasks.do("stat", "tasks:jobs")
    assert tasks.run("ls", "jobs", "--status", "failed") == ""
    assert tasks.run("purge", f"{tasks.url}/jobs", "--older-than", "3600") == "purged 0 complete tasks from jobs\n"
    assert tasks.run("purge", "jobs") == "purged 2 complete tasks from jobs\n"
    assert "there is no task" in tasks.error(3, "show", first)
    assert tasks.run("ls", "jobs") == ""


def test_in_json(tasks: Tasks) -> None:
    first, *_ = tasks.do("put", "tasks:jobs", "--ids", "--parse", '{"file": "ä.mov"}', "[1, null]", '"t"').splitlines()
    found = tasks.data("ls", "jobs", "--limit", "2")
    assert len(found) == 2
    (shown,) = tasks.data("show", first)
    assert (shown["id"], shown["status"], shown["parameters"]) == (first, "pending", {"file": "ä.mov"})
    assert shown["created"].endswith("+00:00")
    assert tasks.data("cancel", first) == {"cancelled": [first]}
    assert json.loads(tasks.do("requeue", "tasks:jobs", "--json")) == {"name": "jobs", "requeued": 1}
    tasks.do("close", "tasks:jobs")
    ran = tasks.data("run", "jobs", "--stdin", "--", "cat")
    assert ran == {"name": "jobs", "complete": 3, "failed": 0, "given_back": 0, "lost": 0}
    (waited,) = tasks.data("wait", first)
    assert json.loads(waited["result"]) == {"file": "ä.mov"}  # what it wrote is text
    assert tasks.data("purge", "jobs") == {"name": "jobs", "status": "complete", "purged": 3}


def test_parameters_from_a_pipe(tasks: Tasks) -> None:
    ids = tasks("put", "tasks:jobs", "--ids", input="1\nb ü\n\nlast".encode()).stdout.decode().splitlines()
    ids += tasks("put", "tasks:jobs", "--ids", "--parse", "--delay", "100", input=b"{}\n").stdout.decode().splitlines()
    # A plain string stays what it is.
    assert [tasks.task(each).parameters for each in ids] == ["1", "b ü", "", "last", {}]
    assert b"not UTF-8" in tasks("put", "tasks:jobs", input=b"\xff\n", code=2).stderr
    assert b"not UTF-8" in tasks("put", "tasks:jobs", "--delay", "1", input=b"\xff\n", code=2).stderr
    assert len(tasks.data("ls", "jobs")) == 5


def test_scheduled_tasks_run_at_their_time(tasks: Tasks) -> None:
    (soon,) = tasks.do("put", "tasks:jobs", "soon", "--ids", "--delay", "1").splitlines()
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=100)
    (later,) = tasks.do("put", "tasks:jobs", "later", "--ids", "--at", at.isoformat()).splitlines()
    assert tasks.data("show", later)[0]["eta"] == at.isoformat(timespec="milliseconds")
    assert tasks.task(soon).status == "scheduled"
    with tasks.running(*tasks.of("run", "jobs", "--", "echo", "ran")) as node:
        assert tasks.run("wait", soon, "--timeout", "60") == "ran soon\n"
        task = tasks.task(soon)
        assert task.updated is not None
        assert task.eta is not None
        assert task.updated >= task.eta
        node.send_signal(signal.SIGTERM)
        assert ended(node)[0] == 143
    assert tasks.task(later).status == "scheduled"


def test_a_task_that_fails(tasks: Tasks) -> None:
    (failing,) = tasks.enqueue("exit 3")
    with tasks.running(*tasks.of("run", "jobs", "--", "sh", "-c")):
        said = tasks.error(1, "wait", failing)
        assert said == f"apressure: the task {failing} failed: exit status 3\n"
        assert tasks.error(1, "cancel", failing).startswith("apressure: the task ")
    (shown,) = tasks.data("show", failing)
    assert (shown["status"], shown["error"]) == ("failed", "exit status 3")
    assert tasks.do("requeue", "tasks:jobs", "--id", failing) == "requeued 1 in tasks:jobs\n"
    assert tasks.task(failing).status == "pending"


def test_a_task_that_fails_is_one_warning(tasks: Tasks) -> None:
    (failing,) = tasks.enqueue("exit 3")
    tasks.do("close", "tasks:jobs")
    with tasks.running(*tasks.of("run", "jobs", "--", "sh", "-c")) as node:
        _, _, said = ended(node)
    assert said.decode() == (
        f"apressure: the message {failing} of the queue 'jobs' became a dead letter at attempt 1: exit status 3\n"
    )


def test_a_function_reports_its_progress(tasks: Tasks, tmp_path: Path) -> None:
    (tmp_path / "videos.py").write_text(
        "import time\n"
        "from apressure.tasks import report_progress\n"
        "def encode(parameters):\n"
        "    report_progress(0.25, 'a quarter')\n"
        "    while not __import__('os').path.exists(parameters['until']):\n"
        "        time.sleep(0.02)\n"
        "    return {'frames': 12}\n"
    )
    until = tmp_path / "now"
    (task_id,) = tasks.enqueue({"until": str(until)})
    with (
        tasks.running(*tasks.of("run", "jobs", "--call", "videos:encode"), cwd=tmp_path),
        terminal(tasks, *tasks.of("wait", task_id), streams=("stderr",)) as shown,
    ):
        shown.says(task_id.encode(), b"25%", b"a quarter")
        until.touch()
        assert shown.process.stdout is not None
        assert json.loads(shown.process.stdout.read()) == {"frames": 12}
        shown.end()


def test_a_running_task_is_cancelled(tasks: Tasks) -> None:
    (task_id,) = tasks.enqueue("1000")
    with tasks.running(*tasks.of("run", "jobs", "--lease", "1", "--", "sleep")):
        wait_until(tasks.has(task_id, "started"))
        assert tasks.run("cancel", task_id) == "cancelled 1 of 1 tasks\n"
        wait_until(tasks.has(task_id, "failed"))
    assert tasks.task(task_id).error == "cancelled"


def test_a_signal_lets_the_task_finish_and_a_second_one_ends_it(tasks: Tasks, tmp_path: Path) -> None:
    (task_id,) = tasks.enqueue(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo finished")
    with tasks.running(*tasks.of("run", "jobs", "--", "sh", "-c")) as node:
        wait_until(tasks.has(task_id, "started"))
        node.send_signal(signal.SIGINT)
        (tmp_path / "go").touch()
        code, output, _ = ended(node)
    assert (code, output) == (130, b"tasks of jobs: 1 complete, 0 failed, 0 given back, 0 lost\n")
    (other,) = tasks.enqueue("sleep 1000")
    with tasks.running(*tasks.of("run", "jobs", "--grace", "1", "--", "sh", "-c")) as node:
        wait_until(tasks.has(other, "started"))
        node.send_signal(signal.SIGTERM)
        node.send_signal(signal.SIGINT)
        code, output, _ = ended(node)
    assert code in (130, 143)
    assert output == b"tasks of jobs: 0 complete, 0 failed, 1 given back, 0 lost\n"
    assert tasks.task(other).status == "pending"


def test_a_node_in_a_shell_script(tasks: Tasks) -> None:
    ids = tasks.enqueue("one", "two")
    with tasks.running(*tasks.of("listen", "jobs", "-n", "2")) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline().decode() == f"{ids[0]}\tone\n"
        assert tasks.task(ids[0]).status == "reserved"
        assert tasks.run("progress", ids[0], "0.5", "half") == f"{ids[0]} is at 50%\n"
        assert tasks.task(ids[0]).progress_message == "half"
        assert tasks.run("complete", ids[0], "done") == f"completed {ids[0]}\n"
        assert listening.stdout.readline().decode() == f"{ids[1]}\ttwo\n"
        assert tasks.run("fail", ids[1], "no") == f"failed {ids[1]}\n"
        assert ended(listening)[0] == 0
    assert (tasks.task(ids[0]).result, tasks.task(ids[1]).error) == ("done", "no")
    shown = tasks.run("show", ids[0])
    assert "progress\t1.0\nprogress_message\t-\n" in shown  # not what it reported last
    assert "\t100%\tone\n" in tasks.run("ls", "jobs")
    assert "has ended" in tasks.error(1, "complete", ids[0])


def test_what_a_listener_holds_goes_back(tasks: Tasks) -> None:
    (task_id,) = tasks.enqueue("x")
    with tasks.running(*tasks.of("listen", "jobs", "--json")) as listening:
        assert listening.stdout is not None
        assert json.loads(listening.stdout.readline())["id"] == task_id
        listening.send_signal(signal.SIGTERM)
        assert ended(listening)[0] == 143
    assert tasks.task(task_id).status == "pending"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "jobs"],
        ["run", "jobs", "--call", "a:b", "--", "echo"],
        ["run", "jobs", "--call", "no-colon"],
        ["run", "jobs", "--call", "a:b", "--stdin"],
        ["ls"],
        ["ls", "events:jobs"],
        ["ls", "jobs", "--status", "unknown"],
        ["ls", "jobs", "--interval", "1"],
        ["purge", "jobs", "--status", "started"],
        ["progress", "x", "1.5"],
    ],
    ids=" ".join,
)
def test_wrong_usage(tasks: Tasks, arguments: list[str]) -> None:
    errors = tasks.error(2, *arguments)
    assert errors.startswith("apressure: ")
    assert "Value error" not in errors
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("url")
def test_without_a_command_it_shows_the_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 2
    output, errors = capfd.readouterr()
    assert "cancel" in output
    assert errors == ""


def test_a_deleted_queue_is_open_again(tasks: Tasks) -> None:
    (task_id,) = tasks.enqueue("x")
    tasks.do("close", "tasks:jobs")
    assert b"is closed" in tasks("put", "tasks:jobs", "y", code=5).stderr
    tasks.do("delete", "tasks:jobs")
    assert "there is no task" in tasks.error(3, "show", task_id)
    assert tasks.do("ls") == ""
    assert len(tasks.do("put", "tasks:jobs", "y", "--ids").splitlines()) == 1


def test_deleting_a_queue_ends_what_its_nodes_run(tasks: Tasks) -> None:
    (task_id,) = tasks.enqueue("1000")
    with tasks.running(*tasks.of("run", "jobs", "--lease", "1", "--", "sleep")):
        wait_until(tasks.has(task_id, "started"))
        command = psutil.Process(tasks.task(task_id).pid)  # it lives for as long as anything of the task
        tasks.do("delete", "tasks:jobs")
        wait_until(lambda: not command.is_running())


def test_a_function_of_a_module_in_this_folder(tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encoding.py").write_text("def double(number): return 2 * number")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    ids = tasks.do("put", "tasks:jobs", "--ids", "--parse", "21").splitlines()
    assert "cannot be called: AttributeError" in tasks.error(2, "run", "jobs", "--call", "encoding:missing")
    assert tasks.task(ids[0]).status == "pending"
    tasks.do("close", "tasks:jobs")
    tasks.run("run", "jobs", "--call", "encoding:double")
    assert tasks.task(ids[0]).result == 42


@pytest.mark.parametrize("command", ["ls", "purge"])
def test_a_queue_that_does_not_exist(tasks: Tasks, command: str) -> None:
    assert tasks.error(3, command, "unknown") == (
        "apressure: the queue 'unknown' does not exist: create it first with `apressure create tasks:unknown`, or "
        "check the URL\n"
    )
    tasks.enqueue("x", name="unknown")
    tasks.run("purge", "unknown", "--status", "pending")
    tasks.run(command, "unknown")  # an empty one


@pytest.mark.parametrize("command", [["ls"], ["tasks", "ls", "x"], ["stat", "events:x"]], ids=" ".join)
@pytest.mark.usefixtures("url")
def test_a_server_that_cannot_be_reached(capfd: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main(["--url", "redis://127.0.0.1:1", *command]) == 7
    errors = capfd.readouterr().err
    assert errors.startswith("apressure: cannot reach the server at 127.0.0.1:1 ")
    assert errors.endswith(" --url or APRESSURE_URL names another server\n")


def test_errors(tasks: Tasks) -> None:
    assert "there is no task x" in tasks.error(3, "wait", "x")
    (task_id,) = tasks.enqueue("x")
    assert "has not ended" in tasks.error(6, "wait", task_id, "--timeout", "0.1")
    assert "there is no such program" in tasks.error(1, "run", "jobs", "--", "no-such-program")


def test_damaged_tasks_are_listed(tasks: Tasks, db: redis.Redis) -> None:
    (task_id, other) = tasks.enqueue("x", "y")
    db.hset(f"blueque_task_{task_id}", mapping={"status": "odd", "created": "1e300", "updated": "?", "progress": "7"})
    db.hdel(f"blueque_task_{other}", "parameters", "updated")
    assert {task["id"]: task["status"] for task in tasks.data("ls", "jobs")} == {task_id: "odd", other: "pending"}
    assert len(tasks.run("ls", "jobs").splitlines()) == 2
    assert "created\t-\n" in tasks.run("show", task_id)


def test_tables_at_a_terminal(tasks: Tasks) -> None:
    name = "jobs" + OBEYED.decode()
    (task_id,) = tasks.enqueue("[bold]x[/bold]" + OBEYED.decode(), name=name)
    for arguments in (["tasks", "ls", name], ["tasks", "show", task_id], ["stat", f"tasks:{name}"]):
        shown = at_a_terminal(tasks, *arguments)
        assert OBEYED not in shown
        assert rb"\x1b]2;obeyed\x07" in shown
    assert b"[bold]x[/bold]" in at_a_terminal(tasks, "tasks", "ls", name)
    with terminal(tasks, "tasks", "ls", name, "--watch", "--interval", "0.05") as live:
        live.says(b"pending")
        tasks.client(lambda client: client.queue(name).cancel(task_id))
        live.says(b"failed")
        live.process.send_signal(signal.SIGINT)
        live.end()


def test_purge_deletes_in_steps(tasks: Tasks, capfd: pytest.CaptureFixture[str]) -> None:
    tasks.client(lambda client: client.queue("jobs").put_many("x" for _ in range(2500)))
    purge = ["--url", tasks.url, "tasks", "purge", "jobs", "--status", "pending", "--progress"]
    assert main(purge) == 0
    output, errors = capfd.readouterr()
    assert output == "purged 2500 pending tasks from jobs\n"
    assert set(errors.splitlines()) <= {"purge jobs: 2,000 messages", "purge jobs: 2,500 messages"}  # if it is slow
