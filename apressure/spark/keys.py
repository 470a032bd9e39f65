"""The keys that Spark's queries have beside a queue's own. Nothing else spells one. No pyspark is needed here.

Each is `apressure:PREFIX:NAME:spark:WHOSE:WORD`: two words without a colon follow `spark`, so that no two queues share
one; and none ends as another key of apressure's does. All are in the queue's slot of a cluster.
"""

from __future__ import annotations

import re
from functools import cached_property

from apressure.queue.keys import Keys, patterns

_GROUP = re.compile(r"[^\s:{}]{1,200}")


def check_group(group: str) -> str:
    """Return the name of a group of queries.

    Raises:
        ValueError: It is none.
    """
    if not _GROUP.fullmatch(group):
        raise ValueError(
            f"group must be a name of 1 to 200 characters without spaces, colons and braces, not {group!r}"
        )
    return group


class SparkKeys:
    """The keys of one queue, as Spark's steps see it.

    Args:
        prefix: The prefix of all queues' keys.
        name: The queue's name.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.queue = Keys(prefix, name)
        self.name = name

    @cached_property
    def base(self) -> tuple[bytes, ...]:
        """The queue's own KEYS, as `queue/lua/prelude.lua` names them."""
        return self.queue.for_script("none")

    def _of(self, whose: str, word: str) -> bytes:
        return b"apressure:" + self.queue.messages + f":spark:{whose}:{word}".encode()

    @property
    def groups(self) -> bytes:
        """The hash whose fields are the groups that read the queue, or have read it."""
        return self._of("all", "groups")

    @property
    def sinks(self) -> bytes:
        """The hash that says for each query which batch is in the queue wholly, and which one not yet."""
        return self._of("all", "sinks")

    def state(self, group: str) -> bytes:
        """The hash of a group: which query may read, and which batches there are."""
        return self._of(group, "source")

    def batch(self, group: str, number: int) -> bytes:
        """The list of a batch that has been taken from the queue, oldest message at the right end."""
        return self._of(group, f"batch-{number}")

    def todo(self, write: str) -> bytes:
        """The list of the parts that a write has still to move to the queue."""
        return self._of(write, "todo")

    def part(self, write: str, token: str) -> bytes:
        """The list of what one task has written, oldest message at the right end."""
        return self._of(write, f"part-{token}")


def bounds(prefix: str) -> bytes:
    """What the `:bound` of a queue under a prefix looks like, for SCAN."""
    return patterns(prefix)[0] + b":bound"


def name_of_bound(prefix: str, key: bytes) -> str:
    """The name of the queue with that `:bound`."""
    head = f"{prefix}:".encode(errors="surrogateescape")
    return key[len(head) : -len(b":bound")].decode(errors="surrogateescape")
