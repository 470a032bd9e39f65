"""A pressure client written from the specification's text, one plain Redis command at a time.

Tests compare apressure with it. It imports nothing from apressure, uses no scripts, and waits with the specification's
BRPOP. Where prose and pseudo-code of the specification disagree, it follows the prose and the released C and Python
clients: statistics are under `:stats:…`, an error always gives the role back, `:closed` is read while the role is held,
the rest of a closed queue is delivered, and a blocked put whose queue is deleted raises. Two flags imitate clients that
are in use:

* `literal`: the pseudo-code to the letter, except where that would block the queue for ever. It pushes to `:not_full`
  after every get, even after one that found nothing, and never checks whether the queue was deleted while it waited.
* `v01`: a client of protocol 0.1, which pushes to `:not_full` after every get and leaves up to two values there.

A `hook` is called with the name of each command, such as `"put BRPOP :not_full"`, before it is sent. A hook that
blocks lets a test interleave two clients. A hook that raises is a client that died there: nothing is cleaned up.

`python -m tests.reference put|get --url … --name …` runs such a client as a process.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import redis

DEFAULT_PREFIX: Final = "__pressure__"

STRINGS: Final = (
    ":bound",
    ":producer",
    ":consumer",
    ":stats:produced_messages",
    ":stats:produced_bytes",
    ":stats:consumed_messages",
    ":stats:consumed_bytes",
)
TOKENS: Final = (":producer_free", ":consumer_free", ":not_full", ":closed")
MESSAGES: Final = ""
"""The suffix of the list of messages itself."""

TWELVE: Final = (MESSAGES, *STRINGS, *TOKENS)

Hook = Callable[[str], None]


class ProtocolError(Exception):
    """The base of the specification's errors, which have the specification's names."""


class QueueAlreadyExistsError(ProtocolError):
    """Create found a `:bound`."""


class QueueDoesNotExistError(ProtocolError):
    """There is no `:bound`, or it was deleted."""


class QueueClosedError(ProtocolError):
    """The queue is closed; for a get, also empty."""


class QueueFullError(ProtocolError):
    """`:not_full` had no value until the timeout."""


class QueueEmptyError(ProtocolError):
    """The list of messages had no value until the timeout."""


class QueueInUseError(ProtocolError):
    """The role had no value until the timeout."""


class _Deadline:
    """The rest of a call's timeout, as an argument of BRPOP, where 0 means for ever."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float:
        return 0 if self._end is None else max(0.01, self._end - time.monotonic())


class ReferenceQueue:
    """A queue, used as the specification describes.

    Args:
        client: A connection; for long waits with `socket_timeout=None` (see `connect`).
        name: The queue's name.
        prefix: `PRESSURE_PREFIX`.
        client_id: The unique identifying value.
        v01: Behave as a client of protocol 0.1.
        literal: Follow the pseudo-code to the letter.
        hook: Called with the name of each command before it is sent.
    """

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        client_id: str = "reference",
        v01: bool = False,
        literal: bool = False,
        hook: Hook | None = None,
    ) -> None:
        self.name = name
        self.client_id = client_id
        self.v01 = v01
        self.literal = literal
        self.hook = hook
        self._redis = client
        self._base = f"{prefix}:{name}"
        self._operation = ""

    # Operations without a role

    def create(self, bound: int = 0) -> None:
        self._operation = "create"
        if not self._do("SETNX", ":bound", bound):
            raise QueueAlreadyExistsError(self.name)
        self._do("LPUSH", ":producer_free", 1)
        self._do("LPUSH", ":consumer_free", 1)
        self._do("LPUSH", ":not_full", 1)

    def exists(self) -> bool:
        self._operation = "exists"
        return self._exists()

    def length(self) -> int:
        self._operation = "length"
        self._must_exist()
        return int(self._do("LLEN", MESSAGES))

    def closed(self) -> bool:
        self._operation = "closed"
        self._must_exist()
        return bool(self._do("EXISTS", ":closed"))

    # Operations of the producer

    def put(self, message: bytes, timeout: float | None = None) -> None:
        self._put("put", message, _Deadline(timeout))

    def put_nowait(self, message: bytes) -> None:
        self._put("put_nowait", message, None)

    def close(self, timeout: float | None = None) -> None:
        self._operation = "close"
        self._must_exist()
        with self._role("producer", _Deadline(timeout)):
            if self._do("LLEN", ":closed"):
                raise QueueClosedError(self.name)
            self._do("LPUSH", ":closed", 0, 0)

    def _put(self, operation: str, message: bytes, deadline: _Deadline | None) -> None:
        self._operation = operation
        self._must_exist()
        with self._role("producer", deadline):
            if self._do("EXISTS", ":closed"):
                raise QueueClosedError(self.name)
            if self._pop((":not_full",), deadline) is None:
                raise QueueFullError(self.name)
            if not self.literal:
                # The permit may come from a Delete, which wakes blocked clients with it.
                self._must_exist()
            length = self._do("LPUSH", MESSAGES, message)
            self._count("produced", message)
            # A literal client takes a missing `:bound` for no bound; its message is deleted with the rest.
            bound = self._bound() or 0
            if bound == 0 or length < bound:
                self._push_not_full()

    # Operations of the consumer

    def get(self, timeout: float | None = None) -> bytes:
        return self._get("get", _Deadline(timeout))

    def get_nowait(self) -> bytes:
        return self._get("get_nowait", None)

    def _get(self, operation: str, deadline: _Deadline | None) -> bytes:
        self._operation = operation
        self._must_exist()
        with self._role("consumer", deadline):
            # Read before the pop: a message may arrive between an empty pop and a later look at `:closed`.
            closed = bool(self._do("EXISTS", ":closed"))
            if closed or deadline is None:
                message = self._do("RPOP", MESSAGES)
            else:
                message, closed = self._wait_for_message(deadline)
            if message is None:
                if self.literal and not closed:
                    self._push_not_full()
                raise (QueueClosedError if closed else QueueEmptyError)(self.name)
            if self._has_room():
                self._push_not_full()
            self._count("consumed", message)
        return bytes(message)

    def _wait_for_message(self, deadline: _Deadline) -> tuple[bytes | None, bool]:
        """Return the message, if any, and whether `:closed` ended the wait."""
        reply = self._pop((MESSAGES, ":closed"), deadline)
        if reply is None:
            return None, False
        key, value = reply
        if key != self._key(":closed"):
            return value, False
        if not self.literal:
            # Delete pushes to `:closed`, too, to wake blocked clients.
            self._must_exist()
        return None, True

    def _has_room(self) -> bool:
        if self.v01 or self.literal:
            return True
        bound = self._bound()
        # A deleted queue must get no new keys.
        return bound is not None and (bound == 0 or self._do("LLEN", MESSAGES) < bound)

    # Delete takes the consumer role, and waits for the producer role, too

    def delete(self, timeout: float | None = None) -> None:
        self._operation = "delete"
        deadline = _Deadline(timeout)
        self._must_exist()
        # The reply of DEL says which of two clients deletes: the other one would wait for ever.
        if not self._do("DEL", ":bound"):
            raise QueueDoesNotExistError(self.name)
        self._do("LPUSH", ":not_full", 0)
        self._do("LPUSH", ":closed", 0, 0)
        if self._pop((":producer_free",), deadline) is None:
            raise QueueInUseError("producer")
        self._do("DEL", ":producer")
        self._do("DEL", ":producer_free")
        if self._pop((":consumer_free",), deadline) is None:
            self._do("LPUSH", ":producer_free", 0)
            raise QueueInUseError("consumer")
        self._do("DEL", ":consumer")
        self._do("DEL", ":consumer_free")
        for suffix in (":not_full", ":closed", *(key for key in STRINGS if key.startswith(":stats:")), MESSAGES):
            self._do("DEL", suffix)

    # Shared steps

    @contextmanager
    def _role(self, role: str, deadline: _Deadline | None) -> Iterator[None]:
        """Hold a role. Errors of the protocol or the server give it back; a hook that raises does not."""
        free = f":{role}_free"
        if self._pop((free,), deadline) is None:
            if not self.literal:
                self._must_exist()
            raise QueueInUseError(role)
        try:
            if not self.literal:
                # The queue may have been deleted meanwhile; the deleting client waits for the token that is held here.
                self._must_exist()
            self._do("SET", f":{role}", self.client_id)
            yield
        except (ProtocolError, redis.ResponseError):
            self._do("LPUSH", free, 0)
            raise
        self._do("LPUSH", free, 0)

    def _pop(self, suffixes: Sequence[str], deadline: _Deadline | None) -> tuple[bytes, bytes] | None:
        """Pop with RPOP, or with BRPOP if there is a deadline. Return the key and the value, or None."""
        if deadline is None:
            (suffix,) = suffixes
            value = self._do("RPOP", suffix)
            return None if value is None else (self._key(suffix), value)
        reply = self._do("BRPOP", *suffixes, seconds=deadline.left())
        return None if reply is None else (reply[0], reply[1])

    def _push_not_full(self) -> None:
        self._do("LPUSH", ":not_full", 0)
        self._do("LTRIM", ":not_full", 0, 1 if self.v01 else 0)

    def _count(self, verb: str, message: bytes) -> None:
        self._do("INCR", f":stats:{verb}_messages")
        self._do("INCRBY", f":stats:{verb}_bytes", len(message))

    def _bound(self) -> int | None:
        bound = self._do("GET", ":bound")
        return None if bound is None else int(bound)

    def _exists(self) -> bool:
        return bool(self._do("EXISTS", ":bound"))

    def _must_exist(self) -> None:
        if not self._exists():
            raise QueueDoesNotExistError(self.name)

    def _key(self, suffix: str) -> bytes:
        return f"{self._base}{suffix}".encode()

    def _do(self, command: str, suffix: str, *rest: object, seconds: float | None = None) -> Any:
        if self.hook is not None:
            self.hook(f"{self._operation} {command} {suffix or 'list'}")
        if seconds is None:
            return _send(self._redis, command, self._key(suffix), *rest)
        keys = [self._key(str(one)) for one in (suffix, *rest)]
        return _send(self._redis, command, *keys, seconds)


def _send(client: redis.Redis, command: str, *arguments: object) -> Any:
    return client.execute_command(command, *arguments)  # type: ignore[no-untyped-call]


def connect(url: str) -> redis.Redis:
    """Connect without a limit for BRPOP, and without sending any command twice."""
    return redis.Redis.from_url(url, socket_timeout=None)


def snapshot(client: redis.Redis, prefix: str, name: str) -> dict[str, Any]:
    """Return the twelve keys of a queue at one moment, to compare: the oldest message first, tokens only counted.

    The values of tokens are undefined.
    """
    base = f"{prefix}:{name}"
    with client.pipeline(transaction=True) as pipeline:
        _send(pipeline, "LRANGE", base, 0, -1)
        for suffix in STRINGS:
            _send(pipeline, "GET", base + suffix)
        for suffix in TOKENS:
            _send(pipeline, "LLEN", base + suffix)
        messages, *values = pipeline.execute()
    return {"messages": messages[::-1], **dict(zip((*STRINGS, *TOKENS), values, strict=True))}


def own_keys(client: redis.Redis, *, lasting: bool = False) -> list[bytes]:
    """Return apressure's own keys of a queue; with `lasting`, only those that do not expire."""
    keys = sorted(client.scan_iter(match="apressure:*", count=1000))
    return [key for key in keys if not lasting or _send(client, "TTL", key) == -1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Put numbered messages, or get messages and print one on each line. Errors of the protocol exit with 3."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description=main.__doc__)
    parser.add_argument("operation", choices=("put", "get"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--prefix", default=DEFAULT_PREFIX)
    parser.add_argument("--name", required=True)
    parser.add_argument("--client-id", default="reference-process")
    parser.add_argument(
        "--count", type=int, help="how many messages; without it, get goes on until the queue is closed"
    )
    parser.add_argument("--label", default="reference", help="put: messages are LABEL:0, LABEL:1, …")
    parser.add_argument("--close", action="store_true", help="put: close the queue afterwards")
    parser.add_argument("--delete", action="store_true", help="get: delete the queue afterwards")
    parser.add_argument("--timeout", type=float, help="seconds that one operation may wait")
    parser.add_argument("--v01", action="store_true")
    parser.add_argument("--literal", action="store_true")
    options = parser.parse_args(arguments)
    if options.operation == "put" and options.count is None:
        parser.error("put needs --count")
    with connect(options.url) as client:
        queue = ReferenceQueue(
            client,
            options.name,
            prefix=options.prefix,
            client_id=options.client_id,
            v01=options.v01,
            literal=options.literal,
        )
        try:
            _work(queue, options)
        except ProtocolError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 3
    return 0


def _work(queue: ReferenceQueue, options: argparse.Namespace) -> None:
    done = 0
    if options.operation == "put":
        for done in range(options.count):
            queue.put(f"{options.label}:{done}".encode(), options.timeout)
        if options.close:
            queue.close(options.timeout)
        return
    while options.count is None or done < options.count:
        try:
            message = queue.get(options.timeout)
        except QueueClosedError:
            if options.count is None:
                break
            raise
        print(message.decode(), flush=True)
        done += 1
    if options.delete:
        queue.delete(options.timeout)


if __name__ == "__main__":
    sys.exit(main())
