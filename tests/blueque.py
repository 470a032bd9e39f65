"""The released blueque 1.0.1, remote-controlled in a process: with an environment of its own, since it needs redis<6.

Usage: PYTHON -m tests.blueque URL

Commands and replies are JSON documents, one on each line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[1]

NAME = "blueque-1.0.1"
PR_SET_PDEATHSIG = 1
REQUIREMENTS = ("blueque==1.0.1", "redis>=5,<6", "hiredis")


class Release:
    """A process of the released library.

    Attributes:
        node: The id of its listeners.
    """

    def __init__(self, python: Path, url: str) -> None:
        command = [str(python), "-m", "tests.blueque", url]
        from tests import processes  # needs pytest, which the Python that serves has not

        self._process = processes.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.node = self.answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process, but not what it has forked. No other process has its id before the test ends."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):  # what it has forked holds their other ends
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def ask(self, command: str, *arguments: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the reply to the last command."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __call__(self, command: str, *arguments: Any) -> Any:
        """Send a command, and return its reply."""
        self.ask(command, *arguments)
        return self.answer()


def say(reply: Any) -> None:
    """Write a reply."""
    print(json.dumps(reply), flush=True)


class Commands:
    """The library's functions. Tasks are given by their ids, and returned as their attributes."""

    def __init__(self, url: str) -> None:
        from blueque import Client

        self._client = Client(url)
        self._listeners: dict[str, Any] = {}
        self._processors: dict[str, Any] = {}

    def enqueue(self, queue: str, parameters: str) -> Any:
        return self._client.get_queue(queue).enqueue(parameters)

    def schedule(self, queue: str, parameters: str, eta: float) -> Any:
        return self._client.get_queue(queue).schedule(parameters, eta)

    def enqueue_due_tasks(self, queue: str) -> None:
        self._client.get_queue(queue).enqueue_due_tasks()

    def delete_task(self, queue: str, task_id: str) -> None:
        self._client.get_queue(queue).delete_task(self._client.get_task(task_id))

    def task(self, task_id: str) -> Any:
        return self._shown(self._client.get_task(task_id))

    def register(self, queue: str) -> None:
        self._listener(queue)

    def listeners(self, queue: str) -> Any:
        return sorted(self._listener(queue)._queue.get_listeners())

    def listen(self, queue: str) -> Any:
        """Wait for a task."""
        return self._shown(self._listener(queue).listen())

    def poll(self, queue: str) -> Any:
        """Look for a task once, as listen does each second."""
        listener = self._listener(queue)
        task_id = listener._queue.dequeue(listener._name)
        return None if task_id is None else self._shown(self._client.get_task(task_id))

    def claim_orphan(self, queue: str) -> Any:
        task = self._listener(queue).claim_orphan()
        return None if task is None else self._shown(task)

    def start(self, task_id: str, pid: int | None = None) -> Any:
        task = self._client.get_task(task_id)
        self._processors[task_id] = processor = self._client.get_processor(task)
        processor.start(os.getpid() if pid is None else pid)
        return task.parameters

    def complete(self, task_id: str, result: str) -> None:
        self._processor(task_id).complete(result)

    def fail(self, task_id: str, error: str) -> None:
        self._processor(task_id).fail(error)

    def stand_still_before(self, name: str) -> None:
        """Have the next such command never sent. The reply comes when it is due."""
        send = self._client._redis.execute_command

        def command(*arguments: Any, **options: Any) -> Any:
            if arguments[0] == name:
                say("stands still")
                signal.pause()
            return send(*arguments, **options)

        self._client._redis.execute_command = command

    def run(self, queue: str) -> None:
        """Run tasks in forked processes for ever. "hold" says its process id, and waits to be killed."""
        from blueque.forking_runner import ForkingRunner

        def call(task: Any) -> str:
            if task.parameters == "hold":
                say([task.id, os.getpid()])
                signal.pause()
            if task.parameters == "raise":
                raise ValueError("raised")
            return f"ran {task.parameters}"

        say(None)
        ForkingRunner(self._client, queue, call).run()

    def rate_enqueue(self, queue: str, parameters: str, count: int) -> float:
        target = self._client.get_queue(queue)
        begin = time.perf_counter()
        for _ in range(count):
            target.enqueue(parameters)
        return count / (time.perf_counter() - begin)

    def rate_process(self, queue: str, count: int) -> float:
        """Listen, start and complete."""
        listener = self._listener(queue)
        begin = time.perf_counter()
        for _ in range(count):
            processor = self._client.get_processor(listener.listen())
            processor.start(1)
            processor.complete("done")
        return count / (time.perf_counter() - begin)

    def _listener(self, queue: str) -> Any:
        if queue not in self._listeners:
            self._listeners[queue] = self._client.get_listener(queue)
        return self._listeners[queue]

    def _processor(self, task_id: str) -> Any:
        if task_id not in self._processors:
            self._processors[task_id] = self._client.get_processor(self._client.get_task(task_id))
        return self._processors[task_id]

    def _shown(self, task: Any) -> dict[str, Any]:
        names = ("id", "status", "queue", "parameters", "result", "error", "node", "pid", "created", "updated")
        return {name: getattr(task, name) for name in names}


def serve(url: str) -> None:
    """Run the commands of standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a runner reads no commands, and would never end
    commands = Commands(url)
    say(f"{socket.getfqdn()}_{os.getpid()}")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        command: Callable[..., Any] = getattr(commands, name)
        try:
            reply = command(*arguments)
        except ValueError as error:
            reply = {"error": str(error)}
        say(reply)


if __name__ == "__main__":
    serve(sys.argv[1])
