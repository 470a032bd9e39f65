"""For docs/do/queue.md."""

from tests.documentation.stand_ins import filled


async def prepare(url: str, code: str) -> dict[str, object]:
    del code
    return {"queue": await filled("orders", url, close=False)}
