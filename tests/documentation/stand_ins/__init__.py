"""What the code of a page takes for granted: `prepare(url, code)` of the module with the page's name.

It is called before each block with the block's code. It returns names, and makes queues as the block expects them.
"""

from __future__ import annotations

import apressure
from apressure import AsyncQueue


async def handle(item: object) -> None:
    """A handler of the reader's."""
    del item


async def filled(name: str, url: str, *, close: bool = True) -> AsyncQueue[bytes]:
    """Make the queue anew, with three items, and return an object that is not open."""
    async with AsyncQueue(name, url=url) as queue:
        if await queue.exists():
            await queue.delete()
        await queue.create(bound=100)
        await queue.put_many([b"1", b"2", b"3"])
        if close:
            await queue.close()
    return AsyncQueue(name, url=url)


def public() -> dict[str, object]:
    """Return the public names of apressure, and all errors."""
    return {name: getattr(apressure, name) for name in (*apressure.__all__, *apressure.exceptions.__all__)}
