"""For docs/do/scale.md."""

from tests.documentation.stand_ins import filled, handle


async def prepare(url: str, code: str) -> dict[str, object]:
    del code
    return {"queue": await filled("orders", url), "handle": handle}
