"""For docs/do/pipe.md."""

import asyncio

from tests.documentation.stand_ins import filled, public


async def same(item: bytes) -> bytes:
    return item


async def every(items: list[bytes]) -> list[bytes]:
    return items


async def prepare(url: str, code: str) -> dict[str, object]:
    del code
    pages = await filled("pages", url)
    await filled("photos", url)
    records, rows = [await filled(name, url, close=False) for name in ("records", "rows")]
    for name in ("thumbnails", "faces"):
        await filled(name, url, close=False)
    stages = {"pages": pages, "records": records, "rows": rows, "parse": same, "enrich": every}
    return {**public(), "asyncio": asyncio, **stages}
