"""What the demo and the pipeline have in common: a server, other processes, and nothing of them left at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from apressure import Client
from apressure.embedded import EmbeddedServer
from apressure.exceptions import ServerUnavailableError


@contextlib.asynccontextmanager
async def serving(url: str | None, directory: Path | None = None) -> AsyncIterator[tuple[str, EmbeddedServer | None]]:
    """Yield the address of a server: that of `url`, or that of an embedded one, which runs while the block lasts.

    Without a URL an embedded server keeps its data in `directory`. It confirms nothing that is not on its disk.

    Raises:
        ServerUnavailableError: The embedded server did not start, or has died.
    """
    if url is not None:
        Client(url)  # checks the address, and connects to nothing
        if not url.startswith("embedded:"):
            yield url, None
            return
        directory = Path(unquote(path)) if (path := urlsplit(url).path) else None
    with EmbeddedServer(directory=directory, config={"appendfsync": "always"}) as server:
        async with beside(_outlive(server)):  # an operation would try for seconds to reach it
            yield server.url, server


async def _outlive(server: EmbeddedServer) -> None:
    while True:
        if not server.running:
            raise ServerUnavailableError(f"the embedded server has died. Its log ends with: {server.log_tail(3)}")
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def beside(*coroutines: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run coroutines while the block lasts. The first error, of any of them, ends the block and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def run_process(name: str, module: str, orders: dict[str, Any], log: IO[bytes] | None = None) -> None:
    """Run a module in a process of its own, which reads its orders, until it has ended. Cancelled, kill it.

    Raises:
        ChildProcessError: It ended with an error, or was killed.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), stdin=pipe, stdout=log, stderr=log or pipe,
        process_group=0,  # Ctrl-C reaches the command alone, which ends the others
    )  # fmt: skip
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        printed = await process.stderr.read() if process.stderr else b""
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # at any moment: nothing is lost, and nothing is doubled
        await process.wait()
    if code:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = [f"see {log.name}"] if log else printed.decode().splitlines()[-1:]
        raise ChildProcessError(": ".join((f"the {name} process {how}", *why)))


def read_orders() -> dict[str, Any]:
    """Return what `run_process` has told this process, and end this process when the other one ends, killed or not."""
    orders: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
    return orders
