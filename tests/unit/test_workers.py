"""Which functions a `Worker` takes, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from apressure import AsyncQueue, Worker
from apressure.worker.worker import asynchronous


def test_what_is_asynchronous() -> None:
    async def handle(item: bytes) -> None: ...

    @functools.wraps(handle)
    def decorated(item: bytes) -> Any:
        return handle(item)

    class Handler:
        async def __call__(self, item: bytes) -> None: ...

    assert all(map(asynchronous, (handle, decorated, functools.partial(handle, b"one"), Handler())))
    assert not any(map(asynchronous, (print, lambda item: None, functools.partial(print, 1))))


def test_invalid_arguments() -> None:
    worker = Worker()
    with pytest.raises(TypeError, match="a handler has no option 'concurency'"):
        worker.handle("orders", concurency=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="codec= belongs to the queue object"):
        worker.handle(AsyncQueue("orders"), codec="json")
    with pytest.raises(TypeError, match="must take one argument"):
        worker.handle("orders")(lambda: None)
    with pytest.raises(ValueError, match="begin with event"):
        worker.handle("event://orders")
    with pytest.raises(ValueError, match="this worker has no handler"):
        asyncio.run(worker.run())
