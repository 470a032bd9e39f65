"""Makes methods that wait from methods that are awaited: with the same name, arguments and documentation.

A method made here calls the method of its name on the object behind. An `EventQueue` may be one on an okq server.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from apressure import protocols, validation
from apressure.concurrency.loop_thread import LoopThread
from apressure.exceptions import PressureError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
D = TypeVar("D", bound=protocols.Delivery[Any])
S = TypeVar("S")

_CHUNK: Final = 500
"""How many items `put_in_chunks` reads ahead."""


class Method(Generic[P, R_co]):
    """A method as type checkers see it; when the program runs, it is a plain function.

    With a `Callable` they would take the arguments of the method that it overrides.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        raise NotImplementedError

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Callable[P, R_co]: ...
    def __get__(self, instance: object, owner: type[Any]) -> Any:
        raise NotImplementedError


class Blocking(Protocol):
    """An object that waits for what another one does on its event loop."""

    @property
    def _behind(self) -> Any: ...

    @property
    def _loop(self) -> LoopThread: ...


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Method[P, R]:
    """Return a method that waits for the result of this one.

    Its return is its last step, so that Ctrl-C cannot come between the result and the caller: see `LoopThread.call`.
    """
    name = method.__name__

    @functools.wraps(method)
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def begin() -> Coroutine[Any, Any, R]:
            operation: Coroutine[Any, Any, R] = getattr(self._behind, name)(*args, **kwargs)
            return operation

        return self._loop.call(begin)

    return cast("Method[P, R]", call)


def receiving(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, D]], delivery: Callable[[D, LoopThread], S]
) -> Method[P, S]:
    """Return a method that waits for a delivery. At Ctrl-C, a delivery that nobody gets goes back."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> S:
        loop = self._loop
        got: list[D] = []

        async def receive() -> S:
            got.append(await getattr(self._behind, name)(*args, **kwargs))
            return delivery(got[0], loop)

        return loop.call(receive, lambda _: give_back(got))

    return cast("Method[P, S]", call)


def receiving_many(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, list[D]]], delivery: Callable[[D, LoopThread], S]
) -> Method[P, list[S]]:
    """Return a method that waits for deliveries. At Ctrl-C, deliveries that nobody gets go back, in order."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> list[S]:
        loop = self._loop
        got: list[D] = []

        async def receive() -> list[S]:
            got.extend(await getattr(self._behind, name)(*args, **kwargs))
            return [delivery(one, loop) for one in got]

        return loop.call(receive, lambda _: give_back(got))

    return cast("Method[P, list[S]]", call)


def block(method: Callable[Concatenate[Any, P], Any], made: Callable[[Any, LoopThread], S]) -> Method[P, S]:
    """Return a method that makes a block of code around what this one makes."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return made(getattr(self._behind, name)(*args, **kwargs), self._loop)

    return cast("Method[P, S]", call)


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> Method[P, Iterator[R]]:
    """Return a method that iterates, and waits for each result of this one."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        results: AsyncIterator[R] = getattr(self._behind, name)(*args, **kwargs)

        async def step() -> tuple[R, ...]:
            async for result in results:
                return (result,)
            return ()

        while found := self._loop.call(step):
            yield found[0]

    return cast("Method[P, Iterator[R]]", call)


class Behind(Generic[R]):
    """An attribute of the asynchronous object, as it is.

    Args:
        text: What it says.
    """

    def __init__(self, text: str) -> None:
        self.__doc__ = text

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type[Any]) -> R:
        return self if instance is None else getattr(instance._behind, self._name)  # type: ignore[return-value] # noqa: SLF001


async def give_back(deliveries: Iterable[protocols.Delivery[Any]]) -> None:
    """Give back deliveries that nobody has got: the last one first, so that they keep their order."""
    for delivery in reversed(list(deliveries)):
        await delivery.nack()


def put_in_chunks(
    loop: LoopThread,
    put_many: Callable[..., Awaitable[int]],
    items: Iterable[Any],
    timeout: float | None,
    **options: Any,
) -> int:
    """Put items with `put_many`, which takes a list and a timeout. See `Queue.put_many`."""
    validation.batch(items, "put_many", "put")
    validation.timeout(timeout)
    end = None if timeout is None else time.monotonic() + timeout
    source, done = iter(items), 0
    while chunk := list(itertools.islice(source, _CHUNK)):
        left = None if end is None else max(end - time.monotonic(), 0.0)
        try:
            done += loop.call(lambda chunk=chunk, left=left: put_many(chunk, left, **options))  # type: ignore[misc]
        except PressureError as error:
            error.accepted += done
            raise
    return done
