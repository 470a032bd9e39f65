"""The demo's side of its two workers: start them, follow their reports, and be sure that they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections import deque
from types import TracebackType
from typing import Any, Self

from apressure.cli.demo_worker import GRACE, Orders
from apressure.exceptions import PressureError


class WorkerDiedError(PressureError):
    """The feeder or the consumer ended before its work was done.

    Attributes:
        role: Which one.
        returncode: Its exit code, or the negative number of the signal that killed it.
    """

    def __init__(self, role: str, returncode: int, last_words: str) -> None:
        if returncode < 0:
            try:
                how = f"was killed by {signal.Signals(-returncode).name}"
            except ValueError:
                how = f"was killed by signal {-returncode}"
        else:
            how = f"ended with exit code {returncode}"
        super().__init__(f"the {role} process {how}" + (f": {last_words}" if last_words else ""))
        self.role = role
        self.returncode = returncode


class Worker:
    """One of the demo's processes, from start to end: `async with Worker(orders) as worker`.

    Leaving the block tells the process to stop, waits for that, and kills it if it takes too long. A demo that dies
    leaves the block too, in a way: the pipe that it held ends, and the process with it.

    Args:
        orders: What it has to do.
        module: What it runs.

    Attributes:
        rows: How many rows it has moved.
        waited: For how many seconds it has waited.
        started: It has reported something.
        latest: Its latest report.
        result: Its last report, once it is done.
    """

    def __init__(self, orders: Orders, module: str = "apressure.cli.demo_worker") -> None:
        self.orders = orders
        self._module = module
        self.rows = 0
        self.waited = 0.0
        self.started = False
        self.result: dict[str, Any] | None = None
        self.latest: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[str] = deque(maxlen=20)

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            self.orders.role,  # for who looks at the list of processes
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal goes to a whole process group: the workers are told by us, in order.
            process_group=0,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self.orders.line())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None and process.stdin is not None  # noqa: PT018 - both since __aenter__
        with contextlib.suppress(OSError):
            process.stdin.write(b"stop\n")
            process.stdin.close()
        drains = [asyncio.ensure_future(_drain(pipe)) for pipe in (process.stdout, process.stderr)]
        try:
            async with asyncio.timeout(GRACE):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            for drain in drains:
                drain.cancel()

    async def follow(self) -> None:
        """Take in reports until the process has ended.

        Raises:
            WorkerDiedError: It has ended without a result.
        """
        process = self._process
        assert process is not None and process.stdout is not None and process.stderr is not None  # noqa: PT018
        listening = asyncio.ensure_future(self._listen(process.stderr))
        try:
            async for line in process.stdout:
                self._take(json.loads(line))
            code = await process.wait()
            await listening
        finally:
            listening.cancel()
        if self.result is None or code != 0:
            raise WorkerDiedError(self.orders.role, code, self._last_words[-1] if self._last_words else "")

    def _take(self, report: dict[str, Any]) -> None:
        self.started = True
        self.latest = report
        self.rows = report["rows"]
        self.waited = report["waited"]
        if report.pop("report") == "done":
            self.result = report

    async def _listen(self, pipe: asyncio.StreamReader) -> None:
        async for line in pipe:
            if text := line.decode(errors="replace").strip():
                self._last_words.append(text)


async def _drain(pipe: asyncio.StreamReader | None) -> None:
    """Read what nobody wants to know, so that a process that writes does not wait for us."""
    assert pipe is not None
    while await pipe.read(65536):
        pass
