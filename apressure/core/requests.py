"""Requests and their replies: `ask` puts an item, and returns what its handler has returned."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from apressure import dead_letters, envelopes, validation
from apressure.codecs import JSONCodec
from apressure.concurrency.deadline import with_deadline
from apressure.concurrency.settle import note_sent, set_result_once
from apressure.core.due import MOST_DELAY, Due, due_of
from apressure.core.limiting import Limiting
from apressure.exceptions import NoReplyError, PressureError, RequestFailedError, UnsupportedError
from apressure.items import Items

T = TypeVar("T")

_JSON: Final = JSONCodec()
_ID: Final = "apressure-ask:"
_REQUEST: Final = re.compile(_ID + "[0-9A-Fa-f]{16}:[0-9]+")
_INSIDE: Final = b'"' + _ID.encode()

BYTES: Final = b"b"
"""How a reply begins that is bytes."""
_OF_JSON: Final = b"j"
DEAD: Final = b"d"
"""How the reply to a request begins that is a dead letter; its error is behind it."""
UNANSWERED: Final = b"n"
"""The reply to a request that was acknowledged without one."""
PURGED: Final = b"p"
"""The reply to a request that was deleted while it waited, or with its queue."""


def is_request(message_id: str) -> bool:
    """Whether somebody waits for a reply to the message with this id."""
    return message_id.startswith(_ID)


def request_in(message: bytes) -> str:
    """Return the id of the request that a message is, which has its id inside: a CloudEvent; or an empty string."""
    if _INSIDE not in message:
        return ""
    try:
        event_id = envelopes.decode(message).id
    except ValueError:
        return ""
    return event_id if _REQUEST.fullmatch(event_id) else ""


def encode_reply(value: Any, most: int) -> bytes:
    """Return what a handler has returned, as it is sent: bytes as they are, and everything else as JSON.

    Args:
        value: What it has returned.
        most: The most bytes of a reply.

    Raises:
        TypeError, ValueError: It is neither bytes nor what JSON knows, or too large.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        reply = BYTES + bytes(value)
    else:
        reply = _OF_JSON + _JSON.encode(value)
    if len(reply) > most:
        raise ValueError(f"the reply has {len(reply)} bytes, and at most {most} are allowed (max_message_size)")
    return reply


class Pressing(Due):
    """On what terms a request is put: it expires when its asker leaves, however long it has waited for room.

    Attributes:
        until: When that is, by the clock of the event loop.
    """

    until: float

    @property
    def expires(self) -> int:
        """Milliseconds from now on."""
        return max(1, round(1000 * (self.until - asyncio.get_running_loop().time())))

    @property
    def over(self) -> bool:
        """Whether its asker has left."""
        return asyncio.get_running_loop().time() >= self.until


def pressing(due: Due, timeout: float) -> Pressing:
    """Return the terms of a request whose asker waits for so many seconds from now on."""
    terms = Pressing(*due)
    terms.until = asyncio.get_running_loop().time() + timeout
    return terms


class Asker:
    """What a queue object has asked. Of queues whose messages keep their ids, these say whom the replies are for.

    Args:
        queue: The queue's name.

    Attributes:
        id: This asker, in 16 hexadecimal digits. A process that was forked must not have the same one.
    """

    def __init__(self, queue: str) -> None:
        self.id = os.urandom(8).hex()
        self._queue = queue
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._put: set[str] = set()

    @property
    def waits(self) -> bool:
        """Whether a reply is waited for."""
        return bool(self._waiting)

    def new_id(self) -> str:
        """Return the id of another request."""
        return f"{_ID}{self.id}:{next(self._numbers)}"

    async def ask(self, request_id: str, put: Callable[[], Awaitable[object]], timeout: float) -> Any:
        """Put a request, and return its reply; raises what `ask` of the queue does."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        reply = self._waiting[request_id] = loop.create_future()
        try:
            await put()
            self._put.add(request_id)
            note_sent()  # from here on it may be handled
            await asyncio.wait((reply,), timeout=max(0.0, until - loop.time()))
            if not reply.done():
                raise unanswered(
                    self._queue, request_id,
                    f"got no reply within {timeout:g} s. Is its service running, and quick enough?",
                )  # fmt: skip
            return reply.result()
        finally:
            del self._waiting[request_id]
            self._put.discard(request_id)
            if reply.done():
                reply.exception()  # another error is raised instead

    def came(self, request_id: str, reply: bytes) -> None:
        """Take a reply: a letter, as `reply` of `connection/lua/07_replies.lua` says, and what is behind it."""
        outcome = _read(self._queue, request_id, reply) if request_id in self._waiting else None
        if isinstance(outcome, PressureError):
            self.failed(request_id, outcome)
        else:
            self.replied(request_id, outcome)

    def replied(self, request_id: str, value: Any) -> None:
        """End the wait of a request with a value."""
        if (waiting := self._waiting.get(request_id)) is not None:
            set_result_once(waiting, value)

    def failed(self, request_id: str, error: PressureError) -> None:
        """End the wait of a request with an error."""
        if (waiting := self._waiting.get(request_id)) is not None and not waiting.done():
            waiting.set_exception(error)

    def end(self, error: PressureError) -> int:
        """Fail all that wait for a reply; returns how many. Those that wait for room end with their puts."""
        waiting = [name for name in self._put if not self._waiting[name].done()]
        for name in waiting:
            self.failed(name, copy.copy(error))
        return len(waiting)

    def fail(self, error: PressureError) -> None:
        """Fail all requests: their replies cannot be read. Those that are being put fail when they have been put."""
        for name in self._waiting:
            self.failed(name, copy.copy(error))


def _read(queue: str, request_id: str, reply: bytes) -> Any:
    """Return the value of a reply, or its error."""
    letter, rest = reply[:1], reply[1:]
    if letter == BYTES:
        return rest
    if letter == _OF_JSON:
        try:
            return _JSON.decode(rest)
        except ValueError as error:
            return unanswered(queue, request_id, f"got a reply that is not JSON: {error}")
    if letter == DEAD:
        return failure(queue, request_id, str(dead_letters.decode(rest, 1)) if rest else dead_letters.UNKNOWN)
    if letter == PURGED:
        return deleted(queue, request_id)
    if letter == UNANSWERED:
        return unanswered(
            queue, request_id,
            "was acknowledged without a reply. Reply with serve(..., reply=True), or reply() of the delivery",
        )  # fmt: skip
    return unanswered(queue, request_id, f"got a reply that cannot be read: it begins with {letter!r}")


def failure(queue: str, request_id: str, error: str) -> RequestFailedError:
    """Return the error for a request that has failed for good."""
    text = f"a request to the queue {queue!r} failed: {error}"
    return RequestFailedError(text, name=queue, id=request_id, error=error)


def unanswered(queue: str, request_id: str, why: str) -> NoReplyError:
    """Return the error for a request to which no reply comes."""
    return NoReplyError(f"a request to the queue {queue!r} {why}", name=queue, id=request_id)


def deleted(queue: str, request_id: str) -> NoReplyError:
    """Return the error for a request that was deleted."""
    return unanswered(queue, request_id, "was deleted from the queue, or with it, before a reply came")


class Requests(Limiting, Generic[T]):
    """A queue that takes requests."""

    _replyless: str = ""
    """Why the messages of this queue get no replies, if they get none."""

    _items: Items[T]

    async def _ask(self, item: T, timeout: float, terms: Pressing) -> Any:
        """Put an item on these terms, and return its reply."""
        raise NotImplementedError

    def check_replies(self) -> None:
        """Raise UnsupportedError if the messages of this queue get no replies."""
        if self._replyless:
            raise UnsupportedError(
                f"{self._replyless}, so nobody can reply to its messages: use an EventQueue or TaskQueue with the "
                "address of its Redis or Valkey server. Nothing has changed",
                name=self.name,
            )

    @with_deadline()
    async def ask(self, item: T, timeout: float, *, key: str | None = None, deadline: float | None = None) -> Any:
        """Put an item, wait until it has been handled, and return what its handler has returned.

        A service replies with `serve(handle, queue, reply=True)`, other consumers with `reply` of the delivery. The
        step that acknowledges the message sends the reply. All that a queue object asks shares one connection that
        waits for replies. A request that fails is tried again as any message, while there is time.

        Args:
            item: The item; bytes, or what the codec takes.
            timeout: Seconds for all of it: to wait for room, and for the reply; at most ten years. The request expires
                then: nobody begins to work for an asker who has left.
            key: What the item is about; see `put`.
            deadline: Seconds for the whole operation, with connecting and repeating; see `put`. The timeout alone does
                not hold while a put waits for a server that is down or frozen.

        Returns:
            What the handler has returned: bytes, or a value of JSON.

        Raises:
            NoReplyError: No reply came within the timeout (a TimeoutError), or none will come: the message was
                acknowledged without one, or purged, or the queue was deleted. It may have been handled.
            RequestFailedError: It failed `max_attempts` times, and is a dead letter. `error` says why.
            QueueFullError: The queue stayed full until the timeout. Nothing was put.
            UnsupportedError: It is a FileQueue, has an `okq://` address, or is an AsyncQueue whose items are no
                envelopes. Nothing was put.
            DeadlineError: The deadline passed. Nothing was put, unless it is a DeadlineOutcomeUnknownError: then the
                request may be handled, or have been.
            OperationUnblockedError, ClientClosedError: Its wait was ended here. The request may be handled.
            PressureError, TypeError, ValueError: As for `put`.

        Cancelled, the message is not taken back: it may be handled until it expires, and its reply goes to nobody.

        On this kind:
            AsyncQueue: Only with `codec="cloudevents"`: the item is an `Envelope`, whose id the request replaces.
                `serve(reply=True)` drops a request whose asker has left; a consumer gets it. A purge, and an
                acknowledgement without a reply, tell nobody: then the timeout ends the wait. `key=` raises
                UnsupportedError.
            EventQueue: The id of the event says whom the reply is for; see docs/do/requests.md. Replies that wait for
                an asker who is away are kept for five minutes.
            TaskQueue: The reply is the result of the task, which stays for `result_ttl`. Any task of Blueque replies.
        """
        validation.seconds(timeout, "timeout", most=MOST_DELAY, above=True)
        self.check_replies()
        due = due_of({"expires": timeout, "key": key}, self.name, keyless=self._keyless)
        assert due is not None  # it expires
        return await self._ask(item, timeout, pressing(due, timeout))
