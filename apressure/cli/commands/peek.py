"""`apressure peek`: shows the next item of a queue."""

from __future__ import annotations

from typing import Annotated

from apressure.cli.asking import delayed_counted
from apressure.cli.options import Address, Common, LengthPrefixed, Null, framing_of, option
from apressure.cli.streams.pipes import Output
from apressure.cli.streams.texts import text_of


async def peek(
    common: Common,
    queue: Address,
    newest: Annotated[bool, option("newest", "The item that was put last, instead of the next one.")]
    = False,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
) -> None:  # fmt: skip
    """Write the next item to standard output, and leave it in the queue.

    The exit code is 6 if no item waits.
    """
    framing = framing_of(null, length_prefixed, common.json)
    address = common.read(queue)
    async with common.open(address) as opened, delayed_counted(opened):
        item = await (opened.peek_newest() if newest else opened.peek())
    await Output().write_item(text_of(address)(item), framing)
