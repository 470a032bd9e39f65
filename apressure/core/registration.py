"""Those that work on a queue register there: every few seconds they tell what they do, and learn whether to end.

Producers that wait for room register in the same way; see `core.backpressure`.

It is background work of timers and callbacks: no task waits for it, and nothing that works on a queue waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, Protocol

from apressure import exceptions as errors
from apressure.core.workers import KEY_SCHEMA, Letter, WorkerKind, encode

logger = logging.getLogger("apressure")

BEAT: Final = 5.0
"""Seconds from one beat to the next."""
LASTS: Final = 20.0
"""Seconds for which a registration counts after its latest beat."""
FIRST: Final = 1.0
"""Seconds after which a service registers: one that ends at once writes nothing."""

SHOWN: Final = 15.0
"""Seconds for which it tells a stack that somebody has asked for, the current one with each beat."""

Wish = Literal["drain", "stack"]
"""What a worker may be asked for."""
DRAIN: Final = 1
STACK: Final = 2

_FOR_GOOD: Final = (
    errors.PermissionDeniedError, errors.ScriptingRefusedError, errors.ServerTooOldError, errors.UnsupportedError,
    errors.ClientClosedError,
)  # fmt: skip
"""What says that this client cannot register."""


class Registry(Protocol):
    """Where those that work on a queue register. Each registration has a name: the worker's id, and `/` with more."""

    def beat(self, name: bytes, letter: bytes, record: bytes, lasts: float, on_answer: Callable[[Any], None]) -> None:
        """Write a registration. The answer is an exception, negative, or the sum of `DRAIN` and `STACK` as wanted.

        Args:
            name: Its name.
            letter: A `Letter`: what registers, and whether it can be drained.
            record: What it tells; see `core.workers.encode`.
            lasts: For how many seconds it counts.
            on_answer: Called once with the answer.
        """

    def leave(self, name: bytes) -> None:
        """Remove a registration, without waiting for that. If it fails, the registration expires."""

    async def ask(self, worker_id: bytes, what: Wish) -> int:
        """Ask all registrations of a worker that can be drained for something; returns how many there are."""


class Doing(NamedTuple):
    """What a worker does, as `WorkerStatistics` says it."""

    concurrency: int
    in_hand: int
    handled: int
    failed: int = 0
    oldest: float | None = None
    busy: float = 0.0
    draining: bool = False


class Pace(NamedTuple):
    """How often something registers.

    Attributes:
        rest: Seconds until the next beat.
        lasts: Seconds for which a beat counts.
    """

    rest: float
    lasts: float


class Calls:
    """The calls of a handler: how long they have taken, and since when those that run do.

    Attributes:
        seconds: How long all that have ended have taken.
        running: When each that runs began, by `time.perf_counter`, the oldest first.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.running: dict[object, float] = {}

    def end(self, call: object) -> None:
        """A call that runs has ended."""
        self.seconds += time.perf_counter() - self.running.pop(call)

    @property
    def oldest(self) -> float | None:
        """For how many seconds the longest of those that run has run."""
        began = next(iter(self.running.values()), None)
        return None if began is None else time.perf_counter() - began

    @property
    def busy(self) -> float:
        """Seconds that calls have taken so far, those that run included."""
        now = time.perf_counter()
        return self.seconds + sum(now - began for began in self.running.values())


class Registration:
    """Registers a worker, or a producer that waits, at one queue, from `start` to `end`.

    Args:
        registry: The queue's.
        letter: A `Letter`: what registers.
        record: Returns what it tells, on demand with a stack.
        on_drain: Called when somebody has asked it to drain; None if it cannot be drained.
        pace: How often it tells that, and for how long that counts.

    Attributes:
        refused: This client cannot register.
    """

    def __init__(
        self,
        registry: Registry,
        letter: bytes,
        record: Callable[[bool], bytes],
        on_drain: Callable[[], object] | None = None,
        pace: Callable[[], Pace] = lambda: Pace(BEAT, LASTS),
    ) -> None:
        self._registry = registry
        self._pace = pace
        self._beat_at = 0.0
        self._letter = letter
        self._record = record
        self._on_drain = on_drain
        self._name = b""
        self._timer: asyncio.TimerHandle | None = None
        self._shows_until = 0.0
        self._unanswered = self._known = self.refused = False

    def start(self, after: float) -> None:
        """Register after so many seconds, and then again and again."""
        self._timer = asyncio.get_running_loop().call_later(after, self._beat)

    def hurry(self, rest: float) -> None:
        """Tell it now, if it was told the last time at least so many seconds ago."""
        if self._timer is not None and asyncio.get_running_loop().time() - self._beat_at >= rest:
            self._timer.cancel()
            self._beat()

    def end(self) -> None:
        """Leave the queue. It does not wait for anything."""
        if self._timer is None:
            return
        self._stop()
        if self._known or self._unanswered:
            with contextlib.suppress(errors.PressureError):  # it expires
                self._registry.leave(self._name)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        pace = self._pace()
        self.start(pace.rest)
        if self._unanswered:
            return
        self._beat_at = asyncio.get_running_loop().time()
        self._name = self._name or f"{worker_id()}/{os.urandom(4).hex()}".encode()
        try:
            record = self._record(time.monotonic() < self._shows_until)
            self._unanswered = True
            self._registry.beat(self._name, self._letter, record, pace.lasts, self._answered)
        except errors.PressureError as error:
            self._answered(error)

    def _answered(self, answer: Any) -> None:
        self._unanswered = False
        if isinstance(answer, _FOR_GOOD):
            self._stop()
            self.refused = True
            if not isinstance(answer, errors.ClientClosedError):
                logger.debug("this client cannot register at the queue, and works all the same: %s", answer)
        elif isinstance(answer, Exception):  # the next beat tries again
            if self._timer is not None:
                self._timer.cancel()
                self.start(BEAT)
        else:
            self._known = True
            if self._timer is None or self._on_drain is None or answer < 0:
                return
            if answer & STACK:
                self._shows_until = time.monotonic() + SHOWN
                self._timer.cancel()
                self._beat()
            if answer & DRAIN:
                on_drain, self._on_drain = self._on_drain, lambda: None
                on_drain()


@contextlib.contextmanager
def registered(
    queue: Any,
    kind: WorkerKind,
    handler: str,
    doing: Callable[[], Doing],
    on_drain: Callable[[], object],
    stack: Callable[[], list[str]] = list,
) -> Iterator[None]:
    """Register a service at its queue during the block, if it is of a kind where that is possible.

    Args:
        queue: The queue.
        kind: What registers.
        handler: The name of its handler.
        doing: Returns what it does.
        on_drain: As for `Registration`.
        stack: Returns where the longest of its handlers is.
    """
    registry: Registry | None = getattr(queue, "registry", None)
    if registry is None:
        yield
        return
    registration = Registration(registry, Letter.WORKS, _telling(kind, handler, doing, stack), on_drain)
    registration.start(FIRST)
    try:
        yield
    finally:
        registration.end()


def block_registration(registry: Registry | None, doing: Callable[[], Doing]) -> Registration | None:
    """Return the registration of a consumer's block that begins; a short one writes nothing."""
    if registry is None:
        return None
    registration = Registration(registry, Letter.CANNOT, _telling("consumer", "", doing))
    registration.start(BEAT)
    return registration


def _telling(
    kind: WorkerKind, handler: str, doing: Callable[[], Doing], stack: Callable[[], list[str]] = list
) -> Callable[[bool], bytes]:
    began = time.monotonic()

    def record(shows: bool) -> bytes:
        return record_of(kind, handler, time.monotonic() - began, doing(), stack() if shows else None)

    return record


def record_of(kind: WorkerKind, handler: str, age: float, doing: Doing, stack: list[str] | None = None) -> bytes:
    """Return what a worker of this process tells, which began so many seconds ago."""
    about = {"kind": kind, "handler": printable(handler), "age": age}
    return encode({**_process(os.getpid()), **about, **doing._asdict()}, stack)


def waiting_record(puts: int, age: float) -> bytes:
    """Return what a producer of this process tells: so many of its puts wait, the first for so many seconds."""
    return encode({**_process(os.getpid()), "age": age, "puts": puts})


def worker_id() -> str:
    """Return the id of this process."""
    return _id_of(os.getpid())


@functools.cache
def _id_of(pid: int) -> str:
    host = re.sub(r"[^0-9A-Za-z.-]", "", socket.gethostname())[:40]
    return f"{host or 'host'}-{pid}-{os.urandom(3).hex()}"  # containers may have the same host and process id


@functools.cache
def _process(pid: int) -> dict[str, Any]:
    version = getattr(sys.modules.get("apressure"), "__version__", "")  # this module cannot import that one
    return {"host": printable(socket.gethostname()), "pid": pid, "version": version, "schema": KEY_SCHEMA}


def printable(text: str) -> str:
    """Return a text that UTF-8 can encode."""
    return text.encode(errors="backslashreplace").decode()
