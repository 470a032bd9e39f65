"""For docs/do/files.md."""

from tests.documentation.stand_ins import handle, public


async def prepare(url: str, code: str) -> dict[str, object]:
    del url, code
    return {**public(), "handle": handle}
