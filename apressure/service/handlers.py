"""Finds out, without calling a handler, whether it is certainly synchronous.

A function without `async def` may still return an awaitable: a lambda around an async function, or the wrapper of a
decorator. Only functions that cannot do so are refused here; the first call shows the others.
"""

from __future__ import annotations

import dis
import functools
import inspect
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

_ASYNCHRONOUS: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_YIELDS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def check(handler: Any, role: str = "handler") -> None:
    """Raise TypeError for a handler that cannot be called, or is certainly synchronous.

    A `"transform"` may be an asynchronous generator, too.
    """
    if not callable(handler):
        advice = ". Write its name without parentheses" if inspect.isawaitable(handler) else ""
        raise TypeError(f"the {role} must be an async function, not {type(handler).__name__}{advice}")
    if _synchronous(handler, _YIELDS if role == "handler" else inspect.CO_GENERATOR):
        raise TypeError(_refusal(handler, "it is synchronous", role))
    _check_parameters(handler, role)


def check_blocking(handler: Any) -> None:
    """Raise TypeError for a handler that cannot run in an executor."""
    if not callable(handler):
        raise TypeError(f"the handler must be a function, not {type(handler).__name__}")
    function = handler
    while isinstance(function, functools.partial):
        function = function.func
    both = function, getattr(function, "__call__", None)  # noqa: B004
    if any(inspect.iscoroutinefunction(each) for each in both):
        raise TypeError(
            "with executor=, the handler must be a synchronous function: write `def` instead of `async def`"
        )
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in both):
        raise generates(handler)
    _check_parameters(handler, "handler")


def generates(handler: Any) -> TypeError:
    """Return the error for a plain handler that is a generator, or returns one: nothing of it would run."""
    return TypeError(
        f"the handler {name_of(handler)} is a generator, whose code would not run: return, or await, instead of `yield`"
    )


def refuse_unfinished(handler: Any, returned: object) -> None:
    """Raise TypeError if a plain handler returned what has yet to run: an awaitable, or a generator."""
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise generates(handler)
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # or Python warns that nobody has awaited it
        raise TypeError(
            f"the handler {name_of(handler)} returned an awaitable: declare it `async def` (without executor=)"
        )


def _check_parameters(handler: Any, role: str) -> None:
    """Raise TypeError for a handler that cannot take an item: every call would fail, and use up an attempt."""
    try:
        signature = inspect.signature(handler, follow_wrapped=False)  # a decorator may add arguments
    except (TypeError, ValueError):
        return  # a function of a compiled module may have none
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"the {role} {name_of(handler)} must take one argument, which is the item: {error}. Bind other arguments "
            "with functools.partial"
        ) from None


def not_awaitable(handler: Any, returned: object, role: str = "handler") -> TypeError:
    """Return the error for a handler whose call returned no awaitable."""
    return TypeError(_refusal(handler, f"its call returned {type(returned).__name__}, which cannot be awaited", role))


def name_of(handler: Any) -> str:
    """Return a handler's name, for people."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__name__", type(handler).__name__))


def _refusal(handler: Any, why: str, role: str) -> str:
    return (
        f"the {role} {name_of(handler)} must be an async function: {why}. Write `async def` instead of `def`, and "
        "inside it `await asyncio.to_thread(...)` for calls that block."
    )


def _synchronous(handler: Any, refused: int) -> bool:
    """Return whether no call of the handler can return an awaitable; functions with `refused` flags count as such."""
    while isinstance(handler, (functools.partial, MethodType)):
        handler = handler.func if isinstance(handler, functools.partial) else handler.__func__
    if isinstance(handler, type):
        return not hasattr(handler, "__await__")
    if isinstance(handler, BuiltinFunctionType):
        return handler.__module__ == "builtins"  # `print`; compiled modules may have asynchronous ones
    function = handler if isinstance(handler, FunctionType) else type(handler).__call__
    if not isinstance(function, FunctionType):
        return False
    flags = function.__code__.co_flags
    if flags & _ASYNCHRONOUS or flags & _YIELDS & ~refused:
        return False
    return bool(flags & refused) or _returns_constants(function.__code__)


def _returns_constants(code: CodeType) -> bool:
    """Return whether each return statement has a constant; a missing one returns None."""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_VALUE" and (
            instruction.is_jump_target or before not in {"LOAD_CONST", "LOAD_SMALL_INT"}
        ):
            return False
        before = instruction.opname
    return True
