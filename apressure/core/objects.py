"""Clients, and the queue objects that use them: how they open, and how everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from apressure.concurrency import background
from apressure.concurrency.lifetime import AsyncClosing, LoopBound
from apressure.core.driver import Connection
from apressure.exceptions import ClientClosedError, OperationUnblockedError, PressureError

FAREWELL: Final = 1.0
"""Seconds in which unfinished work ends: its requests have just failed, since the client has closed its connections."""


class Attached(Protocol):
    """What a client needs of an object that uses it."""

    def client_closed(self, error: PressureError) -> None:
        """Fail everything that waits, and release connections."""


class SharedClient(LoopBound, ABC):
    """A client that queue objects use. They end with it.

    Attributes:
        connection: Its connection for steps.
        attached: The objects whose operations `aclose` ends.
    """

    _KIND = "client"

    connection: Connection

    def __init__(self) -> None:
        super().__init__()
        self.attached: set[Attached] = set()
        self._unfinished: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self.check()
        try:
            await self.connection.connected()
        except asyncio.CancelledError:
            await self.aclose()  # the block is never entered, so nothing else would release the connection
            raise
        return self

    async def aclose(self) -> None:
        """Release the connections, after waiting up to `settle_timeout` seconds for pending replies.

        Operations that still wait raise ClientClosedError. Closing twice is allowed. Cancelled, it releases the
        connections all the same.
        """
        if not self._closed:
            self._closed = True
            self._end_attached()
            if self.on_its_loop:  # otherwise never used, or of another event loop or the parent process
                await self._release()

    @abstractmethod
    async def _release(self) -> None:
        """Wait for what is unfinished, and release the connections."""

    @property
    def on_its_loop(self) -> bool:
        """Whether the client belongs to the running event loop and to this process."""
        return self._loop is asyncio.get_running_loop() and self._pid == os.getpid()

    def finish_before_close(self, task: asyncio.Task[Any]) -> None:
        """Have `aclose` await this task before it closes the connections."""
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    def _end_attached(self) -> None:
        for attached in list(self.attached):
            attached.client_closed(ClientClosedError("the client was closed while the operation waited"))


class Block(Protocol):
    """A consumer's block."""

    async def end(self) -> None:
        """Give back everything in hand."""


C = TypeVar("C", bound=SharedClient)
B = TypeVar("B", bound=Block)


class QueueObject(AsyncClosing, ABC, Generic[C, B]):
    """What a program opens to use a queue.

    Args:
        client: The client whose connections it uses.
        owns_client: Close the client together with the queue object.
        name: The queue's name.

    Attributes:
        name: As given.
        opened: Whether the object has been used.
        blocks: The consumers' blocks that are open.
    """

    def __init__(self, client: C, owns_client: bool, name: str) -> None:
        self.name = name
        self.opened = False
        self.blocks: set[B] = set()
        self._client = client
        self._owns_client = owns_client
        self._closed_by: PressureError | None = None

    async def __aenter__(self) -> Self:
        self.check()
        if self._owns_client:
            await self._client.__aenter__()
        return self

    def check(self) -> None:
        """Raise a clear error if the object cannot be used."""
        if self._closed_by is not None:
            raise ClientClosedError("this queue object was closed (aclose); open a new one")
        self._client.check()
        if not self.opened:
            self._client.attached.add(self)
            self.opened = True

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        It reaches what waits. An operation that makes a try at this moment may end as well, without being counted, or
        wait after it: to end a task for certain, repeat `unblock` until the task is done.

        Returns:
            How many operations were waiting.
        """
        self.check()
        return self._end(
            OperationUnblockedError(f"the operation on the queue {self.name!r} was unblocked", name=self.name)
        )

    async def aclose(self) -> None:
        """Release this object's connections; the queue itself stays as it is.

        Waiting operations get ClientClosedError, and consumers' blocks give back what they have in hand. Deliveries of
        `receive` stay in flight until their lease ends. A client that was given as `client=` stays open. Cancelled, the
        connections are released all the same.
        """
        if self._closed_by is not None:
            return
        error = self._closed_by = ClientClosedError("the queue object was closed (aclose) while the operation waited")
        try:
            if self._client.on_its_loop:
                await self._give_back()
        finally:
            self.client_closed(error)
            if self._owns_client:
                await self._client.aclose()

    def client_closed(self, error: PressureError) -> None:
        """Fail waiting operations, give back what is in hand, and release connections."""
        self._closed_by = self._closed_by or error
        self._end(error)
        if self._client.on_its_loop:
            for block in list(self.blocks):
                self._finish(block.end(), "giving back what a closed client had in hand")
        self._release(error)
        self._client.attached.discard(self)

    async def _give_back(self) -> None:
        for block in list(self.blocks):
            with contextlib.suppress(PressureError):  # what it has comes back when the leases end
                await block.end()

    @abstractmethod
    def _end(self, error: PressureError) -> int:
        """Fail every operation that waits; returns how many."""

    @abstractmethod
    def _release(self, error: PressureError) -> None:
        """Release the connections of waits; operations that would wait from now on raise the error."""

    def _finish(self, work: Awaitable[None], what: str) -> None:
        """Do some last work before the client closes its connections."""

        async def quietly() -> None:
            with contextlib.suppress(PressureError):
                await work

        self._client.finish_before_close(background.start(quietly(), what))


class Fronting(AsyncClosing):
    """What a program opens to use a queue, where a `QueueObject` behind it does the work."""

    _behind: QueueObject[Any, Any]

    @property
    def opened(self) -> bool:
        """Whether the object has been used."""
        return self._behind.opened

    async def __aenter__(self) -> Self:
        await self._behind.__aenter__()
        return self

    async def aclose(self) -> None:
        """Release this object's connections; the queue itself stays as it is.

        Waiting operations get ClientClosedError, and consumers' blocks give back what they have in hand. A client that
        was given as `client=` stays open. Cancelled, the connections are released all the same.

        On this kind:
            AsyncQueue: Unsettled deliveries of `receive` are given back.
            EventQueue: Deliveries of `receive` stay in flight until their lease ends.
        """
        await self._behind.aclose()

    def check(self) -> None:
        """Raise a clear error if the object cannot be used."""
        self._behind.check()

    async def unblock(self) -> int:
        """End this object's blocked operations: each raises OperationUnblockedError. Nothing was put or taken.

        It reaches what waits. An operation that makes a try at this moment may end as well, without being counted, or
        wait after it: to end a task for certain, repeat `unblock` until the task is done.

        Returns:
            How many operations were waiting.
        """
        return await self._behind.unblock()
