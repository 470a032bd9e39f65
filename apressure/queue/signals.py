"""Signals for as long as a service runs, for any number of services of a process, and the earlier handlers after that.

`loop.add_signal_handler` would not do: what the program had installed could not be put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

Callback = Callable[[int], None]

_listeners: dict[int, list[tuple[asyncio.AbstractEventLoop, Callback]]] = {}
_previous: dict[int, Any] = {}


@contextlib.contextmanager
def listening(signals: Sequence[int], callback: Callback) -> Iterator[Callable[[], None]]:
    """Call back in the event loop, with its number, when one of the signals comes.

    A signal that the process ignores (nohup) stays ignored. The block gets a function that ends this early.

    Raises:
        RuntimeError: This is not the main thread, where Python delivers signals.
    """
    if signals and threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "signals come to the main thread only: give signals=() here, and cancel the task of serve() to stop it"
        )
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


def _received(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    for loop, callback in list(_listeners.get(signum, ())):
        loop.call_soon_threadsafe(callback, signum)
