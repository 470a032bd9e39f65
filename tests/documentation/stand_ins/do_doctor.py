"""For docs/do/doctor.md."""

from tests.documentation.stand_ins import filled


async def prepare(url: str, code: str) -> dict[str, object]:
    del code
    await filled("orders", url)
    return {}
