"""Signal handlers for any number of services of a process, and the earlier handlers again after the last service.

`loop.add_signal_handler` cannot do this: it does not tell which handler the program had installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from apressure.concurrency import background

Callback = Callable[[int], None]

_listeners: dict[int, list[tuple[asyncio.AbstractEventLoop, Callback]]] = {}
_previous: dict[int, Any] = {}


@contextlib.contextmanager
def listening(signals: Sequence[int], callback: Callback) -> Iterator[Callable[[], None]]:
    """Call `callback(signum)` in the event loop when one of the signals comes.

    A signal that the process ignores (nohup) stays ignored. The block gets a function that stops listening early.

    Raises:
        RuntimeError: This is not the main thread, where Python delivers signals.
    """
    if signals and threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signals arrive in the main thread only: use signals=() here, and stop= to end the service")
    listener = (asyncio.get_running_loop(), callback)
    listened: list[int] = []

    def end() -> None:
        for signum in listened:
            _listeners[signum].remove(listener)
            if not _listeners[signum]:
                signal.signal(signum, _previous.pop(signum) or signal.SIG_DFL)
        listened.clear()

    try:
        for signum in dict.fromkeys(signals):
            if not _listeners.get(signum):
                if signal.getsignal(signum) == signal.SIG_IGN:
                    continue
                _listeners[signum] = []
                _previous[signum] = signal.signal(signum, _received)
            _listeners[signum].append(listener)
            listened.append(signum)
        yield end
    finally:
        end()


@contextlib.asynccontextmanager
async def when_set(event: asyncio.Event, callback: Callable[[], None]) -> AsyncIterator[None]:
    """Call `callback()` when the event is set, or at once if it is."""

    async def wait() -> None:
        await event.wait()
        callback()

    if event.is_set():
        callback()
        yield
        return
    waiting = background.start(wait(), "waiting for a stop event")
    try:
        yield
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


def _received(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    for loop, callback in list(_listeners.get(signum, ())):
        loop.call_soon_threadsafe(callback, signum)
