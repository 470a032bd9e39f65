"""Makes the pictures of docs/do/web.md: `python -m tests.documentation.web_pictures`.

Chromium shows a real `apressure web`, whose queues real producers and workers use. What they did in the hour before is
written into their histories: otherwise it would take an hour.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import math
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock
from urllib.parse import quote

from PIL import Image
from selenium.webdriver.remote.webdriver import WebDriver

from apressure import AsyncQueue, Client, EventQueue, TaskQueue, serve
from apressure.core.history import Minute
from apressure.embedded import EmbeddedServer
from tests.documentation.blocks import DOCS
from tests.integration.commands import wait_until
from tests.integration.web.browser import Served, browser, emulate

_SECONDS: Final = 15.0
"""Twice, for which the queues are used, so that there are speeds, ages and states."""

_COLORS: Final = 64
"""Of a picture: more would make the files larger, and nothing clearer."""


class Picture(NamedTuple):
    """A picture.

    Attributes:
        name: The name of its file.
        path: What of the page it shows.
        width: Of the window, in pixels.
        height: The most of the page that is shown, in pixels.
        scheme: `light` or `dark`.
        scale: Pixels of the picture for one of the window.
    """

    name: str
    path: str
    width: int = 1200
    height: int = 900
    scheme: str = "light"
    scale: float = 1.0


PICTURES: Final = (
    Picture("overview", "", height=520),
    Picture("queue", "queue?at=invoices", height=1750),
    Picture("queue-dark", "queue?at=orders", height=760, scheme="dark"),
    Picture("letters", f"queue/letters?at={quote('events:clicks')}", height=620),
    Picture("phone", "queue?at=invoices", width=390, height=900, scale=1.5),
)


async def bill(order: bytes) -> None:
    """Handle an order."""
    await asyncio.sleep(0.05 + len(order) / 1000)


async def produce(queue: Any, a_second: float) -> None:
    """Put so many messages a second."""
    while True:
        await queue.put(b'{"order": %d}' % random.randrange(10**6))
        await asyncio.sleep(random.expovariate(a_second))


def hour(length: int, a_minute: int, wave: int, bound: int) -> Iterator[Minute]:
    """Return the last hour of a queue whose work comes in waves."""
    chance = random.Random(a_minute)
    now = int(time.time()) // 60 * 60
    for minute in range(60, 0, -1):
        phase = math.sin(minute / 9) + math.sin(minute / 23)
        waiting = min(bound, max(0, round(length + wave * phase + chance.gauss(0, wave / 8))))
        put = max(0, round(a_minute * (1 + phase / 4) + chance.gauss(0, a_minute / 20)))
        taken = max(0, round(a_minute + chance.gauss(0, a_minute / 30)))
        failed, duration = max(0, round(chance.gauss(1, 2))), round(chance.gauss(180 + 40 * phase, 9))
        yield Minute(
            now - minute * 60, waiting, 12, minute % 4, put, taken, round(waiting * 60 / a_minute), failed, duration
        )


@contextlib.asynccontextmanager
async def queues(client: Client) -> AsyncIterator[None]:
    """Have queues that are used, and some that need somebody."""
    orders = AsyncQueue[bytes]("orders", client=client)
    await orders.create(bound=500)
    await orders.put_many([b"order"] * 500)
    mail = AsyncQueue[bytes]("mail", client=client)
    await mail.create(bound=1000)
    await mail.put_many([b"mail"] * 120)
    await mail.pause()
    invoices = AsyncQueue[bytes]("invoices", client=client)
    await invoices.create(bound=2000)
    await invoices.put_many([b"invoice"] * 430)
    await invoices.set_rate(1500, 60)
    clicks = EventQueue[bytes]("clicks", client=client, max_attempts=1)
    await clicks.create()
    for number in range(7):
        await clicks.put(b'{"customer": %d, "card": "4711 0815", "page": "/shoes"}' % (1000 + 7 * number))
        wrong = ConnectionError("shop.example.org: connection refused") if number % 3 else KeyError("customer")
        await (await clicks.receive()).nack(wrong)
    images = TaskQueue[Any]("images", client=client)
    await images.create(bound=100)
    await images.put_many([{"file": "a.png"}] * 12, delay=600)
    await images.every("nightly", "0 3 * * *", {"file": "all"}, timezone="Europe/Berlin")
    for queue, minutes in ((invoices, hour(400, 1500, 150, 2000)), (orders, hour(390, 600, 150, 500))):
        for minute in minutes:
            await queue.write_history(minute)
    async with asyncio.TaskGroup() as group:
        using = [
            *(group.create_task(produce(orders, 1.0)) for _ in range(3)),
            group.create_task(produce(invoices, 25.0)),
            group.create_task(produce(clicks, 12.0)),
            group.create_task(serve(bill, invoices, shared=True, concurrency=8)),
            group.create_task(serve(bill, clicks, concurrency=2)),
        ]
        try:
            yield
        finally:
            for one in using:
                one.cancel()


def shot(chromium: WebDriver, page: str, picture: Picture) -> None:
    """Make a picture, and write it."""
    emulate(chromium, picture.scheme)

    def command(name: str, **parameters: Any) -> dict[str, Any]:
        found: dict[str, Any] = chromium.execute("executeCdpCommand", {"cmd": name, "params": parameters})["value"]
        return found

    size = {"width": picture.width, "height": 900}
    command("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=picture.width < 500)
    chromium.get(f"{page}{picture.path}")
    wait_until(lambda: chromium.execute_script("return document.querySelector('#connection').textContent") == "live")
    height = min(picture.height, chromium.execute_script("return document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": picture.width, "height": height, "scale": picture.scale}
    taken = command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    image = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB").quantize(_COLORS, dither=0)
    path = DOCS / "web" / f"{picture.name}.png"
    path.parent.mkdir(exist_ok=True)
    image.save(path, optimize=True)
    print(f"{path.relative_to(DOCS)}: {path.stat().st_size / 1000:.0f} kB")


def shots(page: str) -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as home, browser(Path(home)) as chromium:
        for picture in PICTURES:
            shot(chromium, page, picture)


async def main() -> None:
    """Start a server, the page and those who use queues; make the pictures."""
    await asyncio.sleep(60 - time.time() % 60)  # all of it is one minute, which is in no chart yet
    with EmbeddedServer(tcp=True, port=7379) as server, mock.patch("socket.gethostname", return_value="worker-1"):
        async with Client(server.url) as client, queues(client):
            await asyncio.sleep(_SECONDS)
            page = Served(server.url, "--show-bodies", "--redact", "/card", "--allow-actions")
            await asyncio.to_thread(page.start)
            try:
                await asyncio.sleep(_SECONDS)
                await asyncio.to_thread(shots, str(page))
            finally:
                await asyncio.to_thread(page.stop)


if __name__ == "__main__":
    asyncio.run(main())
