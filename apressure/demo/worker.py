"""The other processes of the demo and of the pipeline. Each runs one coroutine function of a module, its role.

The rule: no worker outlives its parent. The first line of a worker's standard input is its orders, as JSON. When its
standard input ends, because the parent closed it or was killed, its function is cancelled, and the process ends within
`GRACE` seconds, whatever it waits for. It writes reports to its standard output, one JSON object a line, and at last
its result, or the error. Other lines are what Python prints when it fails; the last one counts as the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Final

from apressure.exceptions import PressureError

GRACE: Final = 3.0
"""Seconds that a worker has to clean up after it was told to stop."""


class WorkerDiedError(PressureError):
    """A process ended before its work was done: which `role`, and with which `returncode` (negative: by a signal)."""

    def __init__(self, role: str, returncode: int, why: str) -> None:
        how = f"ended with exit code {returncode}"
        if returncode < 0:
            how = f"was killed by {signal.Signals(-returncode).name}"
        super().__init__(f"the {role} process {how}" + (f": {why}" if why else ""))
        self.role = role
        self.returncode = returncode


class Worker:
    """The parent's end of a process. The function gets the orders and a function that reports, and returns the result.

    Attributes:
        role: The function's name.
        latest: The worker's latest report, and its result; empty until it sends one.
        result: The result; empty until the process has ended well.
    """

    def __init__(self, module: str, role: str, orders: dict[str, Any]) -> None:
        self.role = role
        self.latest: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self._module = module
        self._orders = json.dumps(orders).encode() + b"\n"

    async def run(self) -> None:
        """Run the process until it has ended. Cancelled, it ends the process, by force after `GRACE` seconds.

        Raises:
            WorkerDiedError: The process ended without a result.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "apressure.demo.worker", self._module, self.role),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,  # Ctrl-C reaches the parent alone, which ends its workers
        )
        assert process.stdin is not None
        assert process.stdout is not None
        error, result = "", {}
        try:
            process.stdin.write(self._orders)
            async for line in process.stdout:
                if line.startswith(b"{"):
                    report = json.loads(line)
                    result = report.pop("result", {})
                    error = report.pop("error", error)
                    self.latest |= report | result
                else:
                    error = line.decode(errors="replace").strip() or error
            code = await process.wait()
        finally:
            try:
                async with asyncio.timeout(GRACE):
                    await process.communicate()  # closes its standard input
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()
        if code != 0 or not result:
            raise WorkerDiedError(self.role, code, error)
        self.result = result


async def _work(module: str, role: str) -> int:
    # Not `sys.stdin`: a daemon thread that reads it holds a lock that the interpreter needs when it ends.
    life_line = io.FileIO(0, closefd=False)
    output = os.dup(1)  # leads to the parent even after the function has sent standard output elsewhere
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def watch() -> None:
        life_line.read()
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(task.cancel)
        time.sleep(GRACE)
        os._exit(1)

    def report(**facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(output, json.dumps(facts).encode() + b"\n")

    orders = json.loads(life_line.readline() or "{}")
    threading.Thread(target=watch, name="apressure-life-line", daemon=True).start()
    try:
        report(result=await getattr(importlib.import_module(module), role)(orders, report))
    except asyncio.CancelledError:
        return 1
    except (PressureError, OSError) as error:
        report(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C, and ends its workers
    sys.exit(asyncio.run(_work(*sys.argv[1:])))
