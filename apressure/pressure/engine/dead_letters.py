"""The limit of deliveries, and the dead-letter queue, which has the messages that reached it."""

from __future__ import annotations

from typing import NamedTuple

from apressure.connection.client import Client
from apressure.exceptions import ScriptingRefusedError
from apressure.pressure.engine.keys import Keys

SUFFIX = ":dead"
"""The default name of a dead-letter queue ends with this. In a cluster `{jobs}` and `{jobs}:dead` share a slot."""


class DeadLetters(NamedTuple):
    """The limit and the dead-letter queue, as a consumer's steps need them.

    Attributes:
        max_attempts: How often a message is delivered at most.
        name: The dead-letter queue's name.
        keys: Its keys.
        keep_errors: Keep errors beside it.
    """

    max_attempts: int
    name: str
    keys: Keys
    keep_errors: bool = True

    def for_script(self) -> tuple[bytes, ...]:
        """The KEYS behind those of the queue itself: the dead-letter queue's, and those that it may collide with."""
        return (*self.keys.as_dead_letters(), *self.keys.collisions())


def beside(client: Client, keys: Keys, name: str, source: str | None) -> tuple[str, Keys]:
    """Return the name and the keys of a queue's dead-letter queue.

    Args:
        client: The client of both.
        keys: The queue's own keys.
        name: The queue's name.
        source: The dead-letter queue's name; None for the queue's own with `:dead` behind it.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is no valid name for a queue beside this one.
    """
    chosen = name + SUFFIX if source is None else source
    theirs = Keys(client.prefix, chosen)
    if keys.overlaps(theirs):
        raise ValueError(
            f"the dead-letter queue {chosen!r} would share a key with the queue {name!r}: choose another name"
        )
    node_of = client.server.node_of  # in a cluster: all in one slot, or ValueError
    node_of(keys.specified)
    try:
        node_of((keys.bound, theirs.bound))
    except ValueError as error:
        raise ValueError(f"the dead-letter queue {chosen!r} must be beside the queue {name!r}: {error}") from None
    return chosen, theirs


def limited(
    client: Client, keys: Keys, name: str, max_attempts: int | None, dead_letters: str | None, keep_errors: bool
) -> DeadLetters | None:
    """Return the limit of deliveries and the dead-letter queue; None without a limit.

    Raises:
        ValueError: There is a name without a limit, or the name is invalid.
        ScriptingRefusedError: The client has `scripting=False`.
    """
    if max_attempts is None:
        if dead_letters is not None:
            raise ValueError("dead_letters= needs max_attempts=: give both")
        return None
    if not client.settings.scripting:
        raise ScriptingRefusedError("max_attempts needs scripts on the server: open the queue without scripting=False")
    return DeadLetters(max_attempts, *beside(client, keys, name, dead_letters), keep_errors)
