"""Waits for events: a connection of its own, registered for the queues, in QNOTIFY while somebody waits.

QNOTIFY claims nothing, so a wait that is cancelled leaves nothing behind. Its reply says that a pop may find something;
another consumer may be quicker.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from apressure.concurrency import background
from apressure.concurrency.backoff import Backoff
from apressure.concurrency.settle import set_result_once
from apressure.connection.server import Node
from apressure.connection.settings import RECONNECT_BACKOFF
from apressure.connection.wire.channel import RESPChannel
from apressure.core.waiting import Hasten, Parked, Wait, Waits, moment
from apressure.events.consumer import Misses
from apressure.exceptions import PressureError

T = TypeVar("T")

logger = logging.getLogger("apressure")

SLICE: Final = 5
"""Seconds of one QNOTIFY. After that those that wait look again: nothing tells them that a queue was closed."""

LOOKS: Final = Backoff(first=0.005, most=0.25)
"""The pauses between two looks of an operation that waits: the server tells nobody of room, or of the end; and a push
that waits on the server cannot be taken back."""
_UNTOLD: Final = ("full", "open")


class Notices(Waits):
    """The waits of one or several queues, and the connection that is registered for them.

    It is open while somebody waits for events, or a consumer's block holds it, and up to `SLICE` seconds longer. After
    a loss it connects and registers again.

    Args:
        node: The server.
        queues: Their names as the server gets them.

    Attributes:
        blocked: For how long operations waited here.
    """

    def __init__(self, node: Node, queues: Sequence[bytes]) -> None:
        super().__init__()
        self._woken = 0  # the moment of the latest `wake`
        self._node = node
        self._queues = queues
        self._listeners: set[Parked] = set()  # that wait for events
        self._holders = 0
        self._registered: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def until(
        self, step: Callable[[], Awaitable[T | Wait]], timeout: float | None, name: str, hasten: Hasten | None = None
    ) -> Coroutine[Any, Any, T]:
        loop = asyncio.get_running_loop()
        looks, misses, began = 0, Misses(), 0.0

        async def paced() -> T | Wait:
            nonlocal began
            if began:
                await misses.note(loop.time() - began)
            answer = await step()
            began = loop.time() if isinstance(answer, Wait) and answer.reason not in _UNTOLD else 0.0
            return answer

        def park(wait: Wait, since: int) -> Parked:
            nonlocal looks
            looks = looks + 1 if wait.lease is None else 0  # there was room for some
            return self.park(wait, since, looks)

        return self._until(paced, timeout, name, park, hasten)

    def park(self, wait: Wait, since: int, looks: int = 0) -> Parked:
        """Return a future that completes when a step may find something. Cancel it to stop waiting.

        Its exception says that the server cannot be reached.

        Args:
            wait: What the step has answered.
            since: The `moment` before that step was sent.
            looks: How many looks in vain were before it, where the server tells nothing.
        """
        if (refused := self._refused()) is not None:
            return refused
        loop, told = asyncio.get_running_loop(), wait.reason not in _UNTOLD
        future = Parked(loop=loop)
        if told and self._woken > since:
            future.set_result(None)
        elif told:
            self._listeners.add(future)
            future.add_done_callback(self._listeners.discard)
            self._start()
        if not told or wait.lease is not None:
            loop.call_later(wait.seconds(math.inf if told else LOOKS.pause(looks)), set_result_once, future, None)
        return self._admitted(wait.reason, future)

    def take_room(self) -> None:
        """A step that pushes is about to be sent. Nobody tells of room here."""

    async def hold(self) -> None:
        """Stay registered, until `release`.

        Cancelled, or failed, it is not held.

        Raises:
            PressureError: The server cannot be reached, or refuses.
        """
        self._holders += 1
        try:
            await asyncio.shield(self._start())
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Undo `hold`: the server forgets the consumer, unless somebody else holds the connection or waits."""
        self._holders -= 1
        waiting = any(not future.done() for future in self._listeners)
        if not self._holders and not waiting and self._task is not None:
            self._task.cancel()
            self._task = self._registered = None

    def wake(self) -> None:
        """Wake those that wait: a pop may find something. An okq does not tell of events that are put back."""
        self._woken = moment()
        woken, self._listeners = self._listeners, set()
        for future in woken:
            set_result_once(future, None)

    def close(self, error: PressureError) -> asyncio.Task[None] | None:
        """Fail those that wait, and close the connection; returns the task that does that, if it is open."""
        self._shut(error)
        self._fail(error)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def _start(self) -> asyncio.Future[None]:
        """Have the connection opened, unless it is open. Return a future that completes when it is registered."""
        self._changed.set()
        if self._registered is None:
            self._registered = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = background.start(self._run(), "waiting for events of an okq server")
        return self._registered

    async def _run(self) -> None:
        failures = 0
        while self._listeners or self._holders:
            try:
                channel = await self._node.connect(SLICE + self._node.settings.response_timeout)
            except PressureError as error:  # it has been tried for `retry_timeout` seconds
                self._fail(error)
            else:
                assert isinstance(channel, RESPChannel)
                channel.on_end.append(self._changed.set)
                try:
                    await channel.ask(b"QREGISTER", *self._queues)
                    set_result_once(self._start(), None)
                    failures = 0
                    await self._listen(channel)
                except PressureError as error:
                    logger.debug("waiting for events is interrupted: %s", error)
                    if channel.up:  # the server has refused
                        self._fail(error)
                finally:
                    channel.abort("nobody waits any more")
            if self._listeners or self._holders:
                await asyncio.sleep(RECONNECT_BACKOFF.pause(failures))
                failures += 1
        self._task = self._registered = None

    async def _listen(self, channel: RESPChannel) -> None:
        """Tell those that wait, until the connection ends or nobody wants it any more."""
        while channel.up:
            self._changed.clear()
            if self._listeners:
                await channel.ask(b"QNOTIFY", SLICE)
                self.wake()
                continue
            try:
                async with asyncio.timeout(None if self._holders else SLICE):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _fail(self, error: PressureError) -> None:
        for future in list(self._listeners):
            if not future.done():
                future.set_exception(copy.copy(error))
        self._listeners.clear()
        if self._registered is not None and not self._registered.done():
            self._registered.set_exception(copy.copy(error))
            self._registered.exception()  # perhaps nobody waits for it
            self._registered = None
