"""Renews the leases of a client, also while a handler blocks the client's event loop.

A daemon thread does it, over connections of its own. It runs an event loop, so it finds the server, follows a failover
and reconnects as every other connection does. It renews only while the client's event loop runs. A blocked loop counts
as running. A loop that has ended, a killed process and a forked child do not renew.

If there can be no second connection, the client's event loop renews the leases over its own connection.

Neither thread waits for the other, and there is no lock: each one reads plain attributes and dictionaries of the other,
or schedules a call there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from apressure.concurrency.backoff import pause_until
from apressure.connection.server import Node, Outages, Server
from apressure.connection.settings import Settings
from apressure.connection.wire.channel import no_room
from apressure.connection.wire.reconnecting import ReconnectingConnection
from apressure.core.leases.renewal import RETRY, Renewal, Timer, look_at
from apressure.exceptions import (
    AuthenticationError,
    ConnectionLimitError,
    PermissionDeniedError,
    PressureError,
    ScriptingRefusedError,
)

logger = logging.getLogger("apressure")

_PATIENCE: Final = 3.0
"""Seconds without a reply after which another connection is tried: this one idles for long, and may be half-open."""

_PAUSED: Final = 0.25
"""Seconds between two looks while the client's event loop does not run, but may run again."""

_REFUSALS = (AuthenticationError, ConnectionLimitError, PermissionDeniedError, ScriptingRefusedError)


class Renewer(Timer):
    """Renews the leases of one client.

    Args:
        server: The client's server.

    Attributes:
        home, home_thread, turned_at, late: As for `Timer`.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._here = server.settings.fake is not None  # the client's event loop looks after the leases
        self._pid = 0
        self._thread: _Thread | None = None
        self._reserved: set[Node] = set()
        self._wake_at = math.inf
        self._turning = False
        self._closed = False

    def add(self, renewal: Renewal) -> None:
        """Renew a lease until `discard`. It may have been added before. Called on the client's event loop."""
        if self._closed or (self._pid and os.getpid() != self._pid):
            return
        if self.home is None:
            self._begin()
        if self._here:
            super().add(renewal)
            return
        self._renewals[renewal] = None
        self.turned_at = time.monotonic()
        if self._server.settings.max_connections is not None:
            self._reserve(self._server.node_of(renewal.keys))
        if self._thread is not None and time.monotonic() + renewal.schedule.pause() < self._wake_at:
            self._thread.wake()

    async def aclose(self, timeout: float) -> None:
        """Renew nothing any more, and wait up to `timeout` seconds until the connections have been closed."""
        self._closed = True
        self._renewals.clear()
        self._leave_thread()
        if self._thread is not None:
            await pause_until(self._thread.ended, timeout)

    def failed(self, renewal: Renewal, error: Exception) -> None:
        """A renewal has failed: the client's event loop tries at once, if it turns, and the thread again later."""
        if self.over:
            return
        self.call_home(lambda: self._renew_here(renewal))
        if isinstance(error, _REFUSALS) or not isinstance(error, PressureError) or no_room(error):
            self.call_home(lambda: self.move_here(str(error)))

    def call_home(self, function: Callable[[], object]) -> None:
        """Call a function on the client's event loop, as soon as that turns; if it has ended, never."""
        if self.home is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self.home.call_soon_threadsafe(function)

    def _begin(self) -> None:
        self.home, self.home_thread, self._pid = asyncio.get_running_loop(), threading.current_thread(), os.getpid()
        if self._here:
            logger.debug("leases are renewed by the event loop: a handler that blocks it for longer loses them")
            return
        thread = _Thread(self, self._server.settings)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # no more threads
            self.move_here(str(error))

    @property
    def over(self) -> bool:
        """Whether the thread is needed no more."""
        return self._closed or self._here or self.home is None or self.home.is_closed()

    def _look(self) -> None:
        if not self._closed and os.getpid() == self._pid:
            super()._look()

    def look_at_all(self, renew: Callable[[Renewal], None]) -> float:
        """Renew what is due, and return in how many seconds to look again. Called in the thread."""
        self._wake_at = math.inf  # what is added from here on asks for another look
        if not self._turning:
            self._turning = True
            self.call_home(self._has_turned)
        home, thread = self.home, self.home_thread
        runs = home is not None and home.is_running() and thread is not None and thread.is_alive()  # or is blocked
        pause = look_at(self._renewals, renew) if runs or not self._renewals else _PAUSED
        self._wake_at = time.monotonic() + pause
        return pause

    def _has_turned(self) -> None:
        self._turning = False
        self.turned_at = time.monotonic()

    def _renew_here(self, renewal: Renewal) -> None:
        if renewal in self._renewals:
            renewal.renew_here()

    def _reserve(self, node: Node) -> None:
        """Count the connection to a node against `max_connections`."""
        server = self._server
        if node in self._reserved:
            return
        if server.connections >= (server.settings.max_connections or math.inf):
            self.move_here("max_connections are in use")
            return
        if not self._reserved:
            server.add_reclaimer(self._reclaimed)
        server.connections += 1
        self._reserved.add(node)

    def _reclaimed(self) -> bool:
        """Give the reserved connections to a caller that has no other."""
        self.move_here("max_connections are in use")
        return True

    def move_here(self, reason: str) -> None:
        """Have the client's event loop look after the leases from now on."""
        if self._here or self._closed:
            return
        logger.info(
            "leases are renewed by the event loop, since there is no second connection: a handler that blocks the loop "
            "for longer than its lease loses it (%s)", reason,
        )  # fmt: skip
        self._here = True
        self._leave_thread()
        for renewal in list(self._renewals):
            renewal.renew_here()
        self._look()

    def _leave_thread(self) -> None:
        """End the thread, and release its connections."""
        if self._thread is not None:
            self._thread.wake()
        if self._reserved:
            self._server.connections -= len(self._reserved)
            self._server.remove_reclaimer(self._reclaimed)
            self._reserved.clear()


class _Thread:
    """The thread of a renewer, with its event loop and connections.

    Args:
        renewer: The renewer.
        settings: The client's.

    Attributes:
        ended: The thread has ended. (An event of the client's event loop.)
    """

    def __init__(self, renewer: Renewer, settings: Settings) -> None:
        self.ended = asyncio.Event()
        self._renewer = renewer
        patience = min(settings.response_timeout, _PATIENCE)
        self._settings = settings._replace(
            durability=None, max_connections=None, retry_timeout=RETRY, response_timeout=patience
        )
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: There can be no more threads.
        """
        threading.Thread(target=self._run, name="apressure-leases", daemon=True).start()

    def wake(self) -> None:
        """Have the thread look at the leases now, or end where it is needed no more."""
        if self._loop is not None:  # otherwise it is about to look
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    def _run(self) -> None:
        renewer = self._renewer
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._renew())
        except Exception as error:  # noqa: BLE001 (such as no more open files; `move_here` logs it)
            reason = repr(error)
            renewer.call_home(lambda: renewer.move_here(reason))
        finally:
            renewer.call_home(self.ended.set)

    async def _renew(self) -> None:
        """Renew leases. The first renewal opens a connection: short leases need none."""
        server = Server(self._settings, Outages(logging.DEBUG))
        server.reached = True
        connections: dict[Node, ReconnectingConnection] = {}

        def renew(renewal: Renewal) -> None:
            node = server.node_of(renewal.keys)
            renewal.renew(connections.setdefault(node, ReconnectingConnection(node)))

        self._loop = asyncio.get_running_loop()
        try:
            while not self._renewer.over:
                await pause_until(self._woken, self._renewer.look_at_all(renew))
                self._woken.clear()
        finally:
            for connection in connections.values():
                connection.end()
