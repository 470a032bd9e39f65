"""What the items of a queue are on the command line: the bytes of its messages, but for tasks.

The parameters of a task are a string, or a value as JSON. A command shows a string as it is, and takes each item for a
string unless `--parse` says that it is JSON. So what `put` takes is what `get` and `tasks run` give.
"""

from __future__ import annotations

import json as jsons
from collections.abc import Callable

from apressure.cli.exits import UsageError
from apressure.queue_addresses import QueueAddress

Convert = Callable[[bytes], bytes]


def message_of(address: QueueAddress, parse: bool = False) -> Convert:
    """Return what turns an item of the command line into a message of this queue.

    Raises:
        UsageError: `--parse` is for tasks only.
    """
    if address.kind != "tasks":
        if parse:
            raise UsageError(f"--parse is for tasks: the items of {address} are put as they are. Leave it out")
        return _same
    from apressure.tasks.codec import TaskCodec

    codec = TaskCodec()

    def encoded(item: bytes) -> bytes:
        try:
            text = item.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"an item is not UTF-8: {error}. The parameters of tasks are text: correct it") from None
        if not parse:
            return codec.encode(text)
        try:
            return codec.encode(jsons.loads(text))
        except ValueError as error:
            raise UsageError(
                f"--parse cannot read {text[:80]!r} as JSON: {error}. Leave out --parse, or correct it"
            ) from None

    return encoded


def text_of(address: QueueAddress) -> Convert:
    """Return what turns a message of this queue into an item of the command line."""
    if address.kind != "tasks":
        return _same
    from apressure.tasks.codec import decoded

    def shown(message: bytes) -> bytes:
        value = decoded(message.decode(errors="surrogateescape"))
        return value.encode(errors="surrogateescape") if isinstance(value, str) else message

    return shown


def _same(item: bytes) -> bytes:
    return item
