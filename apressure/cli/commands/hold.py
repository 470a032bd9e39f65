"""`apressure hold`: has a queue hand out nothing for a while."""

from __future__ import annotations

from typing import Annotated

import typer

from apressure.cli.commands.limit import tell_limits
from apressure.cli.options import Address, Common

Seconds = Annotated[
    float, typer.Argument(metavar="SECONDS", help="How long, from now; 0 ends it.", min=0, show_default=False)
]


async def hold(common: Common, queue: Address, seconds: Seconds) -> None:
    """Have a queue hand out nothing for a while, to no consumer: an API has said that it had too much, for example.

    A hold gets no shorter by another one: 0 ends it. Programs that do not use apressure do not know of it.
    """
    address = common.read(queue)
    async with common.open(address) as opened:
        await opened.hold(seconds)
        limits = await opened.limits()
    tell_limits(common, address, limits)
