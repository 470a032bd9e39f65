"""For docs/do/requests.md."""

from apressure import EventQueue
from tests.documentation.stand_ins import public


async def prepare(url: str, code: str) -> dict[str, object]:
    async with EventQueue("prices", url=url, codec="json") as queue:
        if await queue.exists():
            await queue.delete()
        if "serve(" in code:
            await queue.put({"product": "book"})
            await queue.close()  # the service ends when it has handled this
    return public()
