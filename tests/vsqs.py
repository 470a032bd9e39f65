"""The released vsqs 0.3, remote-controlled in a process.

Usage: python -m tests.vsqs DIRECTORY QUEUE [CAPACITY]

Commands and replies are JSON documents, one on each line. vsqs uses deprecated features, hence the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[1]


class Vsqs:
    """One client of the released library."""

    def __init__(self, directory: Path, queue: str, capacity: int | None = None, python: str = sys.executable) -> None:
        command = [python, "-W", "ignore", "-m", "tests.vsqs", str(directory), queue]
        command += [] if capacity is None else [str(capacity)]
        from tests import processes  # needs pytest, which the Python that serves may not have

        self._process = processes.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

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


def serve(directory: str, name: str, capacity: int | None) -> None:
    """Run the commands of standard input."""
    from vsqs.queue import QueueFullException, QueueManager

    manager = QueueManager(directory)
    queue = manager.get_queue(name, capacity=capacity)

    def publish(text: str, timeout: float | None = None) -> Any:
        try:
            return queue.publish(text.encode(), timeout)
        except QueueFullException:
            return "full"

    def receive(visibility: float = 10, timeout: float | None = 5) -> Any:
        message_id, data = queue.receive(visibility, timeout)
        return None if message_id is None else [message_id, data.decode()]

    def pump(tag: str, count: int) -> Any:
        return [queue.publish(f"{tag}:{number}".encode()) for number in range(count)]

    def sink(seconds: float, visibility: float = 10) -> Any:
        got, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            one = receive(visibility, 0.2)
            if one is not None:
                got.append(one[1])
                queue.delete(one[0])
        return got

    def publish_slowly(text: str) -> Any:
        """Publish, and pause with the file open until the next line of input."""
        fsync = os.fsync

        def stand_still(fd: int) -> None:
            print(json.dumps("writing"), flush=True)
            sys.stdin.readline()
            fsync(fd)

        os.fsync = stand_still
        try:
            return queue.publish(text.encode())
        finally:
            os.fsync = fsync

    def rate_publish(count: int, size: int) -> Any:
        data = b"." * size
        begin = time.perf_counter()
        for _ in range(count):
            queue.publish(data)
        return count / (time.perf_counter() - begin)

    def rate_consume(count: int) -> Any:
        begin = time.perf_counter()
        for _ in range(count):
            message_id, _data = queue.receive()
            queue.delete(message_id)
        return count / (time.perf_counter() - begin)

    commands = {
        "publish": publish, "receive": receive, "pump": pump, "sink": sink, "delete": queue.delete, "size": queue.size,
        "publish_slowly": publish_slowly, "rate_publish": rate_publish, "rate_consume": rate_consume,
    }  # fmt: skip
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(commands[command](*arguments)), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
