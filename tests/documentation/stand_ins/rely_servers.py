"""For docs/rely/servers.md, whose code makes objects and connects to nothing."""

from tests.documentation.stand_ins import public


async def prepare(url: str, code: str) -> dict[str, object]:
    del url, code
    return public()
