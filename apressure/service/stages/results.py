"""What a transform returns: none, one or many results."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Many(list[T]):
    """Several results of one item, as a transform returns them: `return Many(lines)`.

    A plain list is one result, like any other value.
    """


class NotAwaitableError(TypeError):
    """The transform is synchronous: its call did not return an awaitable."""

    def __init__(self, returned: object) -> None:
        super().__init__(type(returned).__name__)
        self.returned = returned


def of_item(value: Any) -> list[Any]:
    """Return the results of a call with one item: none, a value, or the values of a `Many`."""
    if value is None:
        return []
    return value if type(value) is Many else [value]


def of_batch(value: Any) -> list[Any]:
    """Return the results of a call with a batch: none, or the values of an iterable.

    Raises:
        TypeError: The transform returned a single value.
    """
    if value is None:
        return []
    if isinstance(value, (str, bytes, bytearray, memoryview, dict)) or not isinstance(value, Iterable):
        raise TypeError(
            f"the transform of a batch returned {type(value).__name__}: return a list of results, None for no result, "
            "or yield each result"
        )
    return list(value)


async def outcome(returned: Any) -> Any:
    """Return the result of an awaitable, or all values that an asynchronous generator yields.

    Raises:
        NotAwaitableError: It is neither.
    """
    if isinstance(returned, AsyncIterator):
        async with contextlib.AsyncExitStack() as stack:
            if hasattr(returned, "aclose"):
                stack.push_async_callback(returned.aclose)
            return Many([value async for value in returned])
    if not inspect.isawaitable(returned):
        raise NotAwaitableError(returned)
    return await returned
