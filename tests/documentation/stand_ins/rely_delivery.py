"""For docs/rely/delivery.md."""

from tests.documentation.stand_ins import filled, handle, public


async def prepare(url: str, code: str) -> dict[str, object]:
    source = await filled("source", url)
    await filled("orders:dead", url, close=False)
    queue = await filled("orders", url, close="queue.consumer" in code)
    return {**public(), "queue": queue, "source": source, "handle": handle, "item": b"4"}
