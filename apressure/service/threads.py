"""Runs a plain function as a handler: in threads of its own."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from apressure.service import handlers


def asynchronous(handler: Any) -> bool:
    """Return whether a handler is an `async def`, also one behind decorators and `functools.partial`."""
    function = inspect.unwrap(handler) if callable(handler) else handler
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return any(inspect.iscoroutinefunction(one) for one in (function, getattr(function, "__call__", None)))  # noqa: B004


@contextlib.contextmanager
def in_threads(handler: Callable[[Any], object], threads: int) -> Iterator[Executor]:
    """Return where a plain function runs as a handler: in so many threads."""
    pool = ThreadPoolExecutor(threads, f"apressure-{handlers.name_of(handler)}")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)  # a block would wait for functions that a second signal has left behind
