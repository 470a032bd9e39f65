"""Makes docs/learn/killed.svg: `apressure top` while a worker is killed. `python -m tests.documentation.killed`."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from apressure import AsyncQueue
from apressure.cli.top.app import Top
from apressure.cli.top.view import View
from apressure.embedded import EmbeddedServer
from apressure.monitor.monitor import Monitor
from tests import processes
from tests.documentation.blocks import DOCS
from tests.integration.commands import COMMAND, environment

ORDERS = 160
PATIENCE = 120.0  # seconds
SIZE = (90, 7)  # columns and lines of the terminal
CAPTION = 40  # the height of a caption, in the units of a picture
APP = """
import asyncio
from pathlib import Path

async def bill(order: str) -> None:
    await asyncio.sleep(0.5)
    Path("bills", order).touch()
"""


async def story(url: str, place: Path) -> list[tuple[str, str]]:
    """Return captions and pictures: two workers, one of them killed, and the end: no order is missing."""
    (place / "app.py").write_text(APP)
    (place / "bills").mkdir()
    orders = [f"{number:03}" for number in range(ORDERS)]
    command = [*COMMAND, "worker", "app:bill", "orders", "--codec", "text", "--concurrency", "4"]
    shown: list[tuple[str, str]] = []
    async with (
        AsyncQueue("orders", url=url, codec="text") as queue,
        Monitor("orders", url=url, interval=0.5) as monitor,
    ):
        await queue.create(bound=ORDERS)
        await queue.put_many(orders)
        workers = [processes.Popen(command, cwd=place, env=environment(url)) for _ in range(2)]
        app = Top(View(monitor))
        try:
            async with app.run_test(size=SIZE) as pilot, asyncio.timeout(PATIENCE):
                while len((await queue.statistics()).workers) < 2:
                    await pilot.pause(0.2)
                await pilot.pause(4)
                shown.append((f"Two workers make bills for {ORDERS} orders.", picture(app)))
                workers[0].kill()
                while (await queue.statistics()).length:
                    await pilot.pause(0.2)
                await pilot.pause(4)  # the other worker finishes what it has in hand
                left = ORDERS - len(list((place / "bills").iterdir()))
                assert 0 < left == (await queue.statistics()).in_flight
                shown.append((f"kill -9 of one: {left} orders stay in flight until its lease ends.", picture(app)))
                while (await queue.statistics()).in_flight:
                    await pilot.pause(0.5)
                await pilot.pause(2)
                made = sorted(path.name for path in (place / "bills").iterdir())
                assert made == orders, f"{ORDERS - len(made)} orders are lost"
                shown.append((f"The other worker got them: {ORDERS} orders, {len(made)} bills.", picture(app)))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    return shown


def picture(app: Top) -> str:
    """Return what the terminal shows."""
    return re.sub(r"@font-face \{.*?\}", "", app.export_screenshot(title="apressure top"), flags=re.DOTALL)


def stacked(pictures: list[tuple[str, str]]) -> str:
    """Return one picture of several, one below the other, each below its caption."""
    parts, top, width = [], 0.0, 0.0
    for caption, shown in pictures:
        ((wide, high),) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', shown)
        width, height = float(wide), float(high)
        parts += [
            f'<text x="8" y="{top + 27}" font-family="sans-serif" font-size="20" fill="#777">{caption}</text>',
            shown.replace("<svg ", f'<svg y="{top + CAPTION}" width="{width}" height="{height}" ', 1),
        ]
        top += CAPTION + height
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}">\n{body}\n</svg>\n'


def main() -> None:
    with EmbeddedServer(tcp=True, port=7379) as server, tempfile.TemporaryDirectory() as place:
        whole = stacked(asyncio.run(story(server.url, Path(place))))
    (DOCS / "learn" / "killed.svg").write_text("\n".join(line.rstrip() for line in whole.splitlines()) + "\n")


if __name__ == "__main__":
    main()
