"""How a handler is called: in a context of its own, and no longer than it may take.

One task calls many handlers, one after the other. A handler still has its own context variables, as if it ran in a task
of its own: otherwise what one item binds, such as fields for logs, would show up in the logs of the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from typing import Any, Final

from apressure.core.registration import Calls
from apressure.protocols import Call, ObservesCalls
from apressure.service import handlers


class NotAwaitableError(Exception):
    """The call of a handler returned something that cannot be awaited."""

    def __init__(self, returned: object) -> None:
        super().__init__(returned)
        self.returned = returned


class ExecutorEndedError(Exception):
    """The executor takes no more calls."""

    def __init__(self, reason: RuntimeError) -> None:
        super().__init__(reason)
        self.reason = reason


class Caller:
    """Calls a handler.

    Args:
        handler: The handler.
        timeout: Seconds for one call; None for no limit.
        executor: Where the handler, a synchronous function, runs; None for this task.
        calls: Counts the time that it takes.

    Attributes:
        returned: What the handler has returned when `begin` has returned None, if that is a reply. Take it at once.
    """

    def __init__(
        self, handler: Callable[[Any], Any], timeout: float | None, executor: Executor | None, calls: Calls
    ) -> None:
        self.returned: object = None
        self._calls = calls
        self._handler = handler
        self._timeout = timeout
        self._executor = executor

    def begin(self, argument: Any, reply: bool = False) -> Awaitable[object] | None:
        """Run the handler until it waits for the first time.

        Args:
            argument: The handler's argument.
            reply: What the handler returns is a reply; otherwise it is dropped.

        Returns:
            The rest of it, to be awaited by this task at once, for what it returns; None when it has returned that.

        Raises:
            NotAwaitableError: The call returned no awaitable.
            ExecutorEndedError: The executor takes no more calls.
            BaseException: What the handler raised.
        """
        if self._executor is not None:
            return self._in_executor(self._executor, argument, reply)
        context, calls, began = contextvars.copy_context(), self._calls, time.perf_counter()
        running = context.run(self._handler, argument)
        if type(running) is not types.CoroutineType:
            if not inspect.isawaitable(running):
                raise NotAwaitableError(running)
            running = _wait_for(running)
        try:
            waits_for = context.run(running.send, None)
        except BaseException as end:
            calls.seconds += time.perf_counter() - began
            if not isinstance(end, StopIteration):
                raise
            self.returned = end.value if reply else None
            return None
        calls.running[running] = began
        rest = _resume(context, running, waits_for, calls)
        return rest if self._timeout is None else _within(self._timeout, rest)

    async def _in_executor(self, executor: Executor, argument: Any, reply: bool) -> object:
        """Wait for the handler. Cancelled, it is not called, unless it runs already: then it runs on by itself."""
        call, function = InThread(), _call
        if isinstance(executor, ThreadPoolExecutor):
            function = functools.partial(_call_noted, call)
        self._calls.running[call] = time.perf_counter()
        try:
            running = asyncio.get_running_loop().run_in_executor(executor, function, self._handler, argument, reply)
            await asyncio.wait((running,))
        except RuntimeError as error:  # `submit` calls no handler: it is broken, or was shut down
            raise ExecutorEndedError(error) from error
        except asyncio.CancelledError:
            running.cancel()
            raise
        finally:
            self._calls.end(call)
        if isinstance(broken := running.exception(), BrokenExecutor):
            raise ExecutorEndedError(broken)
        return running.result()


class TimedCaller(Caller):
    """Calls a handler, and measures each call.

    Args:
        handler, timeout, executor, calls: As for `Caller`.
        observe: Called with the seconds of each call, also of one that failed.
    """

    def __init__(
        self,
        handler: Callable[[Any], Any],
        timeout: float | None,
        executor: Executor | None,
        calls: Calls,
        observe: Callable[[float], object],
    ) -> None:
        super().__init__(handler, timeout, executor, calls)
        self._observation = Observation(observe)

    def begin(self, argument: Any, reply: bool = False) -> Awaitable[object] | None:
        observed = self._observation.begin(argument)
        try:
            with observed.call:
                rest = super().begin(argument, reply)
        except BaseException as error:
            observed.end(error)
            raise
        if rest is not None:
            return self._measure(rest, observed)
        observed.end(None)
        return None

    async def _measure(self, rest: Awaitable[object], observed: Observed) -> object:
        try:
            returned = await rest
        except BaseException as error:
            observed.end(error)
            raise
        observed.end(None)
        return returned


class Observation:
    """Tells an observer of the calls of a handler.

    Args:
        observe: What `Observer.observing` gave.
    """

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe
        self._call = observe.call if isinstance(observe, ObservesCalls) else None

    def begin(self, argument: Any) -> Observed:
        """A call begins."""
        return Observed(self._observe, UNSEEN if self._call is None else self._call(argument))


class Observed:
    """One call that an observer looks at.

    Attributes:
        call: The call's block: the handler begins inside it.
    """

    __slots__ = ("_began", "_observe", "call")

    def __init__(self, observe: Callable[[float], object], call: Call) -> None:
        self._observe = observe
        self.call = call
        self._began = time.perf_counter()

    def end(self, error: BaseException | None) -> None:
        """The call has ended."""
        self._observe(time.perf_counter() - self._began)
        self.call.end(error)


class _Unseen:
    """A call that nobody looks at but to measure it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def end(self, error: BaseException | None) -> None:
        pass


UNSEEN: Final = _Unseen()


class InThread:
    """A call in an executor.

    Attributes:
        ident: The thread that it runs in; None while it does not run, or runs in a process.
    """

    ident: int | None = None


def _call_noted(call: InThread, handler: Callable[[Any], Any], argument: Any, reply: bool) -> object:
    """The same as `_call`, in a thread."""
    call.ident = threading.get_ident()
    try:
        return _call(handler, argument, reply)
    finally:
        call.ident = None


def _call(handler: Callable[[Any], Any], argument: Any, reply: bool) -> object:
    """Call a handler in an executor. Only a reply comes back: a process could not always send what is returned."""
    try:
        returned = handler(argument)
    except StopIteration as error:  # a future cannot hold this one
        raise RuntimeError("the handler raised StopIteration") from error
    handlers.refuse_unfinished(handler, returned)
    return returned if reply else None


async def _wait_for(running: Awaitable[Any]) -> object:
    return await running


@types.coroutine
def _resume(
    context: contextvars.Context, running: Coroutine[Any, Any, object], waits_for: Any, calls: Calls
) -> Generator[Any, Any, object]:
    """Run the rest of a coroutine in its context: pass on what it waits for, and what comes of that. Returns its value.

    Where a lease shows the stacks of tasks in the log, it finds the coroutine by the name `running`.
    """
    try:
        while True:
            try:
                value = yield waits_for
            except GeneratorExit:
                context.run(running.close)
                raise
            except BaseException as error:  # noqa: BLE001 (it is the coroutine's)
                waits_for = context.run(running.throw, error)
            else:
                waits_for = context.run(running.send, value)
    except StopIteration as end:
        return end.value
    finally:
        calls.end(running)


async def _within(timeout: float, rest: Awaitable[object]) -> object:
    """Wait for a handler, and cancel it after so many seconds."""
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await rest
    except TimeoutError as error:
        if not limit.expired():
            raise  # the handler's own
        raise TimeoutError(f"the handler was cancelled: it took longer than timeout={timeout:g} s") from error
