"""Which handlers `serve` refuses before it receives anything: those that return no awaitable, or take no item."""

from __future__ import annotations

import asyncio
import functools
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from apressure.service import handlers

lock = threading.Lock()


async def handle(item: bytes) -> None:
    await asyncio.sleep(0)


class Handler:
    async def __call__(self, item: bytes) -> None: ...

    async def method(self, item: bytes) -> None: ...

    def synchronous(self, item: bytes) -> None:
        print(item)

    @classmethod
    async def of_class(cls, item: bytes) -> None: ...

    @staticmethod
    async def static(item: bytes) -> None: ...


class Synchronous:
    def __call__(self, item: bytes) -> None:
        print(item)


class Delegating:
    def __call__(self, item: bytes) -> Awaitable[None]:
        return handle(item)


class Operation:
    """An object that is awaited, made by a call of its class."""

    def __init__(self, item: bytes) -> None:
        self.item = item

    def __await__(self) -> Generator[Any, None, None]:
        return handle(self.item).__await__()


async def two(item: bytes, other: bytes) -> None: ...


def giving(function: Callable[..., Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
    @functools.wraps(function)
    def wrapper(item: bytes) -> Awaitable[None]:
        return function(item, b"other")

    return wrapper


def wrapped(function: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
    @functools.wraps(function)
    def wrapper(item: bytes) -> Awaitable[None]:
        return function(item)

    return wrapper


def bare(function: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return wrapper


def dropping(function: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    @functools.wraps(function)
    def wrapper(item: bytes) -> None:
        function(item)

    return wrapper


@types.coroutine
def generator_based(item: bytes) -> Generator[Any, None, None]:
    yield from handle(item).__await__()


def sometimes(item: bytes) -> Any:
    return handle(item) if item else None


def sometimes_later(item: bytes) -> Any:
    result = None
    if item:
        result = handle(item)
    return result


@pytest.mark.parametrize(
    "handler",
    [
        handle, functools.partial(handle), functools.partial(functools.partial(two), other=b""),
        Handler(), Handler().method, Handler.of_class, Handler.static, functools.partial(Handler().method),
        lambda item: handle(item[1:]), wrapped(handle), bare(handle), Delegating(), Operation, generator_based,
        sometimes, sometimes_later, functools.lru_cache(handle), functools.partial(asyncio.to_thread, print),
        lambda item: asyncio.ensure_future(handle(item)), giving(two), AsyncMock(),
    ],
)  # fmt: skip
def test_a_function_that_may_return_an_awaitable_is_accepted(handler: Any) -> None:
    handlers.check(handler)


def plain(item):  # type: ignore[no-untyped-def]
    print(item)


def annotated(item: bytes) -> None:
    with lock:
        print(item)


def several_ends(item: bytes) -> bool:
    if not item:
        return False
    for byte in item:
        try:
            print(byte)
        except ValueError:
            return True
        finally:
            print("done")
    return False


def failing(item: bytes) -> None:
    raise NotImplementedError


def generator(item: bytes) -> Iterator[bytes]:
    yield item


async def async_generator(item: bytes) -> AsyncIterator[bytes]:
    yield item


@pytest.mark.parametrize(
    "handler",
    [
        plain, annotated, several_ends, failing, generator, async_generator, functools.partial(plain),
        Synchronous(), Handler().synchronous, functools.partial(Handler().synchronous), dropping(handle), print,
        lambda item: None, dict, Synchronous,
    ],
)  # fmt: skip
def test_a_function_that_returns_no_awaitable_is_refused_with_advice(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"must be an async function: it is synchronous.*async def.*asyncio\.to_thread"):
        handlers.check(handler)


async def nothing() -> None: ...


async def keyword(*, item: bytes) -> None: ...


@pytest.mark.parametrize("handler", [two, nothing, keyword, functools.partial(handle, item=b""), Handler.method])
def test_a_function_that_cannot_take_an_item_is_refused_before_it_uses_up_attempts(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"must take one argument, which is the item: .*functools\.partial"):
        handlers.check(handler)


def test_a_blocking_function_that_cannot_take_an_item_is_refused() -> None:
    with pytest.raises(TypeError, match="the handler <lambda> must take one argument"):
        handlers.check_blocking(lambda item, other: None)


async def test_a_coroutine_instead_of_its_function_is_refused() -> None:
    called = handle(b"")
    with pytest.raises(TypeError, match=r"not coroutine\. Write its name without parentheses"):
        handlers.check(called)
    await called


def test_the_error_names_the_handler() -> None:
    with pytest.raises(TypeError, match="the handler plain must"):
        handlers.check(functools.partial(plain))
    with pytest.raises(TypeError, match="the handler Synchronous must"):
        handlers.check(Synchronous())
    assert "the handler sometimes must" in str(handlers.not_awaitable(sometimes, None))
    assert "returned NoneType" in str(handlers.not_awaitable(sometimes, None))


@pytest.mark.parametrize("handler", [None, 5, "handle"])
def test_an_object_that_cannot_be_called_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="must be an async function, not"):
        handlers.check(handler)
