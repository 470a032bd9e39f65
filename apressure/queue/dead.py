"""Where messages go that were delivered too often: the limit, and the dead-letter queue's name and keys."""

from __future__ import annotations

from typing import NamedTuple

from apressure.queue.keys import Keys

SUFFIX = ":dead"
"""Behind a queue's name, the name of its dead-letter queue. In a cluster `{jobs}` and `{jobs}:dead` share a slot."""


class DeadLetters(NamedTuple):
    """What a consumer's steps need to know.

    Attributes:
        max_attempts: How often a message is delivered at most.
        name: The dead-letter queue's name.
        keys: Its keys.
    """

    max_attempts: int
    name: str
    keys: Keys

    def for_script(self) -> tuple[bytes, ...]:
        """The KEYS behind those of the queue itself: the dead-letter queue's, and what it could collide with."""
        return (*self.keys.as_second(), *self.keys.collisions())


def beside(keys: Keys, prefix: str, name: str, source: str | None) -> tuple[str, Keys]:
    """Return the name and the keys of a queue's dead-letter queue.

    Args:
        keys: The queue's own keys.
        prefix: The prefix of both.
        name: The queue's name.
        source: The dead-letter queue's name; None for the queue's own with `:dead` behind it.

    Raises:
        TypeError: The name is not a string.
        ValueError: It is no name for a queue, or none for one beside this queue.
    """
    chosen = name + SUFFIX if source is None else source
    theirs = Keys(prefix, chosen)
    if keys.overlaps(theirs):
        raise ValueError(
            f"the dead-letter queue {chosen!r} would share a key with the queue {name!r}: choose another name"
        )
    return chosen, theirs
