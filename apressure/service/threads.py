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
def in_threads(handler: Callable[[Any], object], threads: int) -> Iterator[tuple[Callable[[Any], object], Executor]]:
    """Return a plain function as a handler for `serve`, and where it runs: in so many threads."""
    pool = ThreadPoolExecutor(threads, f"apressure-{handlers.name_of(handler)}")
    try:
        yield _plain(handler), pool
    finally:
        pool.shutdown(wait=False)  # a block would wait for functions that a second signal has left behind


def _plain(handler: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a handler for threads that refuses to drop a coroutine: nobody would await it."""

    @functools.wraps(handler)
    def handle(item: Any) -> object:
        result = handler(item)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()  # or Python warns that nobody has awaited it
            raise TypeError(f"the handler {handlers.name_of(handler)} returned an awaitable: declare it `async def`")
        return result

    return handle
