"""The keys of Spark's queries beside a queue's own keys. Only this module spells them.

Each is `apressure:PREFIX:NAME:spark:OWNER:WORD`. Two words without a colon follow `spark`, so that no two queues share
a key, and none ends like another key of apressure's. All are in the queue's slot of a cluster.
"""

from __future__ import annotations

from functools import cached_property

from apressure.pressure.engine.dead_letters import SUFFIX
from apressure.pressure.engine.keys import Keys, patterns


class SparkKeys:
    """The keys of one queue that Spark's steps use.

    Args:
        prefix: The prefix of all queues' keys.
        name: The queue's name.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.queue = Keys(prefix, name)
        self._prefix = prefix
        self.name = name

    @cached_property
    def base(self) -> tuple[bytes, ...]:
        """The queue's own KEYS, as `pressure/engine/lua/prelude/` names them."""
        return self.queue.for_script("none")

    @cached_property
    def dead_letters(self) -> Keys:
        """The keys of the dead-letter queue."""
        return Keys(self._prefix, self.name + SUFFIX)

    def _of(self, owner: str, word: str) -> bytes:
        return b"apressure:" + self.queue.messages + f":spark:{owner}:{word}".encode()

    @property
    def groups(self) -> bytes:
        """The hash whose fields are the groups that have read the queue."""
        return self._of("all", "groups")

    @property
    def sinks(self) -> bytes:
        """The hash with the last complete batch of each query that writes, the one that is under way, and its plan."""
        return self._of("all", "sinks")

    def state(self, group: str) -> bytes:
        """The hash of a group: its epoch, and its batches."""
        return self._of(group, "source")

    def batch(self, group: str, number: int) -> bytes:
        """The list of the messages of a batch, the oldest at the right end."""
        return self._of(group, f"batch-{number}")

    def todo(self, write: str) -> bytes:
        """The list of the parts of a write that are not in the queue yet."""
        return self._of(write, "todo")

    def part(self, write: str, token: str) -> bytes:
        """The list of the messages that one task has written, the oldest at the right end."""
        return self._of(write, f"part-{token}")


def bound_pattern(prefix: str) -> bytes:
    """The pattern for SCAN that finds the `:bound` keys of all queues under a prefix."""
    return patterns(prefix)[0] + b":bound"


def queue_name(prefix: str, key: bytes) -> str:
    """The name of the queue that a `:bound` key belongs to."""
    head = f"{prefix}:".encode(errors="surrogateescape")
    return key[len(head) : -len(b":bound")].decode(errors="surrogateescape")
