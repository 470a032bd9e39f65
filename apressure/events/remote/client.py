"""A client of an okq server: its connections, and steps that end although their caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from apressure import logs
from apressure.concurrency import background
from apressure.concurrency.settle import raised, wait_shielded
from apressure.connection.renewer import Renewer
from apressure.connection.settings import ClientOptions
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.core.objects import SharedClient
from apressure.events.remote.address import settings_of
from apressure.events.remote.connection import OkqServer

T = TypeVar("T")


class OkqClient(SharedClient):
    """A client of one okq server, for any number of queues. It does nothing before its first use.

    Args:
        options: Where the server is, and the limits; see `settings_of`.

    Attributes:
        settings: Those that the options are.
        server: The server.
        connection: The connection for commands.
        renewer: Renews leases.
    """

    def __init__(self, options: ClientOptions) -> None:
        super().__init__()
        self.settings = settings_of(options)
        self.server = OkqServer(self.settings)
        self.connection: ReconnectingConnection = ReconnectingConnection(self.server.node_of(()))
        self.renewer = Renewer(self.server)

    def __repr__(self) -> str:
        return f"<OkqClient at {self.server.address}>"

    async def _release(self) -> None:
        logs.closing(1)
        try:
            if self._unfinished:
                await asyncio.wait(self._unfinished, timeout=self.settings.settle_timeout)
            await self.renewer.aclose(self.settings.settle_timeout)
        finally:
            self.connection.end()

    async def step(
        self, work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]] | None = None
    ) -> T:
        """Do something on the server.

        Args:
            work: What to do.
            undo: Undoes its result if the caller was cancelled.

        Cancelled, it goes on, and is undone, for up to `settle_timeout` seconds before the cancellation is raised, and
        after that in the background.
        """
        task = self.soon(work)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            ending: asyncio.Future[Any] = task if undo is None else self.soon(_undone(task, undo))
            await wait_shielded(ending, self.settings.settle_timeout)
            raise
        return raised(task.result())  # type: ignore[no-any-return]

    def soon(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T | Exception]:
        """Do something in the background; `aclose` waits for it. The task returns its error."""
        task = background.start(background.caught(work), "a step on an okq server")
        self.finish_before_close(task)
        return task


async def _undone(task: asyncio.Task[T | Exception], undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait((task,))
    outcome = task.result()
    if not isinstance(outcome, Exception):
        await undo(outcome)
