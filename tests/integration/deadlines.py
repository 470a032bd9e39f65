"""Operations with a deadline, and clients that give up nothing before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Operation = Callable[[Any, float], Awaitable[Any]]

SOON = 0.2
"""A deadline. Without one, each test with it would take longer than `in_time` allows."""

ENDLESS: dict[str, Any] = {
    "response_timeout": 100.0, "retry_timeout": 100.0, "settle_timeout": 100.0, "connect_timeout": 100.0,
}  # fmt: skip

CHANGES: dict[str, Operation] = {
    "put": lambda queue, deadline: queue.put(b"2", deadline=deadline),
    "put_nowait": lambda queue, deadline: queue.put_nowait(b"2", deadline=deadline),
    "put_many": lambda queue, deadline: queue.put_many([b"2"], deadline=deadline),
    "get": lambda queue, deadline: queue.get(deadline=deadline),
    "get_nowait": lambda queue, deadline: queue.get_nowait(deadline=deadline),
    "get_many": lambda queue, deadline: queue.get_many(5, deadline=deadline),
    "receive": lambda queue, deadline: queue.receive(deadline=deadline),
    "close": lambda queue, deadline: queue.close(deadline=deadline),
    "create": lambda queue, deadline: queue.create(5, exist_ok=True, deadline=deadline),
    "delete": lambda queue, deadline: queue.delete(deadline=deadline),
}
LOOKS: dict[str, Operation] = {
    "exists": lambda queue, deadline: queue.exists(deadline=deadline),
    "qsize": lambda queue, deadline: queue.qsize(deadline=deadline),
    "bound": lambda queue, deadline: queue.bound(deadline=deadline),
    "closed": lambda queue, deadline: queue.closed(deadline=deadline),
    "statistics": lambda queue, deadline: queue.statistics(deadline=deadline),
    "peek": lambda queue, deadline: queue.peek(deadline=deadline),
    "peek_newest": lambda queue, deadline: queue.peek_newest(deadline=deadline),
    "wait_closed": lambda queue, deadline: queue.wait_closed(deadline=deadline),
}
