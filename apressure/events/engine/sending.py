"""How the steps of a queue of events are sent: their scripts, and whether their answers must be durable."""

from __future__ import annotations

import functools
from typing import Any, Final

from apressure.connection.client import Client
from apressure.connection.sender import StepSender
from apressure.connection.wire.script import Script
from apressure.events.engine.answers import read
from apressure.events.engine.keys import EventKeys


@functools.cache
def script(name: str) -> Script:
    """Return the script of that name, read once."""
    return Script("apressure.events.engine", name)


def changed(answer: Any) -> bool:
    """Whether a step changed anything that must be durable, by its answer."""
    match answer[:1] if isinstance(answer, list) else answer:
        case [b"pushed"] | [b"settled"] | [b"moved"] | [b"changed"]:
            return bool(answer[1].strip(b"0d:"))
        case [b"events"]:
            return bool(answer[1]) or answer[4] > 0
        case [b"created"] | [b"done"] | [b"flushed"]:
            return True
        case _:
            return isinstance(answer, int) and answer > 0


NOT_DURABLE: Final = frozenset({"extend", "heal", "register", "resign", "peek", "status", "dead_letters"})
"""Steps that `durability=` does not apply to: they change nothing, or nothing that cannot be done again."""


class Sender(StepSender):
    """Sends the steps of one queue of events.

    Args:
        client: The client whose connection they use.
        name: The queue's name.

    Attributes:
        keys: The queue's keys.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is no valid name.
    """

    _script = staticmethod(script)
    _not_durable = NOT_DURABLE
    _changed = staticmethod(changed)

    def __init__(self, client: Client, name: str) -> None:
        self.keys = EventKeys(name)
        super().__init__(client, name, self.keys.for_script)
        self._client_id = client.id.encode(errors="surrogateescape")

    def _read(self, reply: Any, token: bytes) -> Any:
        return read(reply, self.name, token)
