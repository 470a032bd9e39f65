"""Makes docs/do/top.svg, what `apressure top` looks like: `python -m tests.documentation.screenshot`."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

from apressure import AsyncQueue, EventQueue, TaskQueue
from apressure.cli.top.app import Top
from apressure.cli.top.view import View
from apressure.embedded import EmbeddedServer
from apressure.monitor.monitor import Monitor
from tests.documentation.blocks import DOCS

SECONDS = 45.0
"""For which queues are watched, so that there are speeds, ages and trends."""


async def work(queue: Any, puts: float, gets: float) -> None:
    """Put and get so many messages a second."""
    loop = asyncio.get_running_loop()
    began, put, got = loop.time(), 0, 0
    async with queue.consumer() as consumer:
        while True:
            seconds = loop.time() - began
            if (more := int(seconds * puts) - put) > 0:
                await queue.put_many([b"x" * 40] * more)
                put += more
            while got < min(put, int(seconds * gets)):
                await anext(consumer)
                got += 1
            await asyncio.sleep(0.1)


async def picture(url: str) -> str:
    """Return the picture of some queues."""
    async with contextlib.AsyncExitStack() as stack:
        kinds = {"orders": AsyncQueue, "mail": AsyncQueue, "invoices": AsyncQueue, "clicks": EventQueue}
        queues: dict[str, Any] = {
            name: await stack.enter_async_context(kind(name, url=url)) for name, kind in kinds.items()
        }
        queues["thumbnails"] = await stack.enter_async_context(TaskQueue("thumbnails", url=url))
        for name, bound in (("orders", 500), ("mail", 1000), ("invoices", 2000), ("clicks", 0), ("thumbnails", 100)):
            await queues[name].create(bound)
        await queues["orders"].put_many([b"order"] * 500)
        await queues["mail"].put_many([b"mail"] * 120)
        await queues["mail"].pause()
        await queues["thumbnails"].put_many(['{"file": 1}'] * 12, delay=600)
        await queues["clicks"].put_many([b"click"] * 30)
        async with Monitor(url=url, interval=0.5) as monitor, asyncio.TaskGroup() as group:
            working = [
                group.create_task(work(queues["invoices"], 60.0, 48.0)),
                group.create_task(work(queues["clicks"], 130.0, 130.0)),
            ]
            app = Top(View(monitor))
            async with app.run_test(size=(150, 14)) as pilot:
                await pilot.pause(SECONDS)
                shown = app.export_screenshot(title="apressure top")
            for task in working:
                task.cancel()
    return shown


def main() -> None:
    with EmbeddedServer(tcp=True, port=7379) as server:
        shown = asyncio.run(picture(server.url))
    shown = re.sub(r"@font-face \{.*?\}", "", shown, flags=re.DOTALL)  # a page asks no other host for anything
    (DOCS / "do" / "top.svg").write_text("\n".join(line.rstrip() for line in shown.splitlines()) + "\n")


if __name__ == "__main__":
    main()
