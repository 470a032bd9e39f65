"""`apressure ask`: puts an item, and writes the reply of its handler."""

from __future__ import annotations

import json as jsons
import os
from typing import Annotated, Any

import typer

from apressure.cli.asking import told
from apressure.cli.options import Address, Common, option
from apressure.cli.show import print_json
from apressure.cli.streams.framing import Framing, as_dict
from apressure.cli.streams.pipes import Output
from apressure.cli.streams.texts import message_of
from apressure.envelopes import Envelope

Item = Annotated[str, typer.Argument(metavar="ITEM", help="The item.", show_default=False)]


async def ask(
    common: Common,
    queue: Address,
    item: Item,
    timeout: Annotated[float, option("timeout", "Give up after this time.", "SECONDS", min=0.001)] = 30.0,
    key: Annotated[
        str | None, option("key", "Consumers handle the items of a key one after the other, in order.", "KEY")
    ] = None,
    parse: Annotated[bool, option("parse", "Read the item as JSON: tasks take it for a string otherwise.")] = False,
) -> None:  # fmt: skip
    """Put an item into a queue, wait until it has been handled, and write what its handler has returned.

    A string is written as it is, and everything else as JSON. The service needs --reply, or serve(reply=True). In an
    AsyncQueue, the item is in a CloudEvent. The exit code is 6 if no reply comes in time.
    """
    address = common.read(queue)
    message: Any = message_of(address, parse)(os.fsencode(item))
    enveloped = address.kind == "queue"
    async with common.open(address, codec="cloudevents" if enveloped else None) as opened:
        reply: Any = await opened.ask(Envelope(message) if enveloped else message, timeout, key=key)
    if common.json:
        print_json(told(address, **(as_dict(reply) if isinstance(reply, bytes) else {"reply": reply})))
        return
    if not isinstance(reply, bytes):
        text = reply if isinstance(reply, str) else jsons.dumps(reply, ensure_ascii=False)
        reply = text.encode(errors="surrogateescape")
    await Output().write_item(reply, Framing.LINES, strict=False)
