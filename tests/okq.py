"""An okq written from its specification, one plain Redis command at a time, for tests to compare and to mix with ours.

It imports nothing from apressure and uses no scripts. A `hook` is called with the name of each command, such as
`"push LPUSH"`, before it is sent. A hook that raises is an okq that died there: nothing is cleaned up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import redis

Hook = Callable[[str], None]


class DuplicateEvent(Exception):
    """The id is in use."""


class Okq:
    """One okq.

    Args:
        db: Its connection.
        hook: Called before each command.
    """

    def __init__(self, db: redis.Redis, hook: Hook = lambda _: None) -> None:
        self._db = db
        self.hook = hook

    @staticmethod
    def key(queue: str, *parts: str) -> str:
        return ":".join((f"queue:{{{queue}}}", *parts))

    def push(self, queue: str, event: str, contents: bytes, front: bool = False) -> None:
        """QLPUSH; with `front` QRPUSH."""
        self.hook("push HSETNX")
        if not self._db.hsetnx(self.key(queue, "items"), event, contents):
            raise DuplicateEvent(event)
        self.hook("push LPUSH")
        (self._db.rpush if front else self._db.lpush)(self.key(queue), event)
        self.hook("push PUBLISH")
        self._db.publish(self.key(queue), event)

    def pop(self, queue: str, expires: int = 30) -> tuple[str, bytes | None] | None:
        """QRPOP."""
        self.hook("pop RPOPLPUSH")
        event = self._db.rpoplpush(self.key(queue), self.key(queue, "claimed"))
        if event is None:
            return None
        self.hook("pop SET")
        self._db.set(self.key(queue, "lock", event.decode()), 1, ex=expires or 30, nx=True)
        self.hook("pop HGET")
        contents = self._db.hget(self.key(queue, "items"), event)
        if expires == 0:
            self.ack(queue, event.decode())
        return event.decode(), contents

    def redo(self, queue: str, event: str) -> int:
        """QACK with REDO. It publishes nothing."""
        self.hook("redo LREM")
        removed = self._db.lrem(self.key(queue, "claimed"), -1, event)
        if removed:
            self.hook("redo RPUSH")
            self._db.rpush(self.key(queue), event)
        return int(removed)

    def ack(self, queue: str, event: str) -> int:
        """QACK."""
        self.hook("ack LREM")
        removed = self._db.lrem(self.key(queue, "claimed"), -1, event)
        if not removed:
            removed = self._db.lrem(self.key(queue), -1, event)
        if removed:
            self.hook("ack HDEL")
            self._db.hdel(self.key(queue, "items"), event)
            self.hook("ack DEL")
            self._db.delete(self.key(queue, "lock", event))
        return int(removed)

    def restore(self, queue: str) -> int:
        """What it does every 10 seconds: put back the oldest claims whose locks have expired. It publishes nothing."""
        restored = 0
        for event in self._db.lrange(self.key(queue, "claimed"), -50, -1):
            if not self._db.exists(self.key(queue, "lock", event.decode())):
                self._db.lrem(self.key(queue, "claimed"), 0, event)
                self._db.rpush(self.key(queue), event)
                restored += 1
        return restored

    def flush(self, queue: str) -> None:
        """QFLUSH."""
        self._db.delete(self.key(queue), self.key(queue, "claimed"), self.key(queue, "items"))

    def register(self, queue: str, consumer: str) -> None:
        """QREGISTER."""
        self._db.zadd(self.key(queue, "consumers"), {consumer: int(time.time())})

    def status(self, queue: str) -> tuple[int, int, int]:
        """QSTATUS: total, processing, consumers."""
        claimed = self._db.llen(self.key(queue, "claimed"))
        return self._db.llen(self.key(queue)) + claimed, claimed, self._db.zcard(self.key(queue, "consumers"))
