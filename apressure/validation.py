"""Checks arguments: times, counts, text, and the items of a batch. Every room uses these checks, and no others.

So the same mistake has the same error everywhere. NaN is not a valid time: it compares with nothing, so a wait with it
would never end, and it would break the order of the event loop's timers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONGEST: Final = 1e6
"""Seconds (eleven days): the longest setting, interval or pause. A timeout has no such limit."""

MAX_ATTEMPTS_ELSEWHERE: Final = (
    "how often an item is tried is a setting of its queue. Give it to the queue, such as AsyncQueue('jobs', "
    "max_attempts=5)"
)


def seconds(
    value: Any, name: str, least: float = 0.0, most: float = LONGEST, *, above: bool = False, none: bool = False
) -> float:
    """Return a time, or raise if it is invalid.

    Args:
        value: The argument, in seconds.
        name: The argument's name, for the error.
        least: The shortest time.
        most: The longest time.
        above: It must be more than `least`.
        none: Mention in the error that None is valid, too.

    Raises:
        TypeError: It is not a number.
        ValueError: It is NaN, too short (such as a negative one) or too long.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        allowed = "a number of seconds or None" if none else "a number of seconds"
        advice = ": use its total_seconds()" if isinstance(value, timedelta) else ""
        raise TypeError(f"{name} must be {allowed}, not {type(value).__name__}{advice}")
    if not least <= value <= most or (above and value == least):
        if above:
            limits = f"more than {least:g} and at most {most:,.0f}"
        else:
            limits = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:,.0f}"
        raise ValueError(f"{name} must be {limits} seconds, not {value}")
    return value


def number(value: Any, name: str, least: float) -> float:
    """Return a finite number, or raise if it is invalid.

    Raises:
        TypeError: It is not a number.
        ValueError: It is below `least`, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not least <= value < math.inf:
        raise ValueError(f"{name} must be at least {least:g}, not {value}")
    return value


def timeout(value: Any, name: str = "timeout") -> None:
    """Raise if a timeout is neither None nor a number of at least 0 seconds.

    Raises:
        TypeError: It is neither None nor a number.
        ValueError: It is NaN or negative.
    """
    if value is not None:
        seconds(value, name, most=math.inf, none=True)


def whole(value: Any, name: str, least: int = 1, most: int | None = None, unit: str = "") -> int:
    """Return a whole number, or raise if it is invalid.

    Args:
        value: The argument.
        name: The argument's name, for the error.
        least: The smallest number.
        most: The largest number; None for no limit.
        unit: The unit, for the error.

    Raises:
        TypeError: It is not a whole number.
        ValueError: It is too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number{unit and f' of {unit}'}, not {type(value).__name__}")
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name} must be {limits}{unit and f' {unit}'}, not {value}")
    return value


def text(value: Any, name: str) -> str:
    """Return a string, or raise TypeError if the argument is none."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    return value


def encoded(value: Any, name: str, most: int) -> bytes:
    """Return a string of one to so many bytes in UTF-8, or raise TypeError or ValueError if the argument is none."""
    try:
        found = text(value, name).encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be text that UTF-8 can encode: {error}") from None
    if not 0 < len(found) <= most:
        raise ValueError(f"{name} must have 1 to {most} bytes, not {len(found)}")
    return found


def known(options: Iterable[str], names: Collection[str]) -> None:
    """Raise TypeError if an option is unknown. The error names the option that is probably meant, or else all of them.

    Args:
        options: The names that were given.
        names: The names that there are.
    """
    for option in options:
        if option in names:
            continue
        if option in {"bound", "maxsize"}:
            raise TypeError(f"unknown option {option!r}: create(bound=...) sets the bound of a queue")
        import difflib  # here, since only a mistake needs it

        if near := difflib.get_close_matches(option.lower(), names, 1):
            raise TypeError(f"unknown option {option!r}: did you mean {near[0]!r}?")
        raise TypeError(f"unknown option {option!r}; the options are {', '.join(names)}")


def elsewhere(**advice: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Return a decorator for a function that users give arguments which belong elsewhere: it says where.

    Args:
        advice: What to say of each of these arguments: whose it is, and what to do.
    """

    def decorated(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(function)
        async def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in advice.keys() & kwargs.keys():
                raise TypeError(f"{function.__name__}() has no {name}=: {advice[name]}")
            return await function(*args, **kwargs)

        return checked

    return decorated


def optional(check: Callable[Concatenate[Any, P], object], value: Any, *args: P.args, **kwargs: P.kwargs) -> None:
    """Raise if an argument is neither None nor valid.

    Args:
        check: One of the checks above.
        value: The argument.
        *args: What the check is told besides.
        **kwargs: The same.
    """
    if value is not None:
        check(value, *args, **kwargs)


def batch(items: Any, method: str, single: str) -> None:
    """Raise if a batch of items is a single item, or a consumer that acknowledges the item before.

    Args:
        items: The argument.
        method: The method that it was given to, for the error.
        single: The method for one item.

    Raises:
        TypeError: It is one of these.
    """
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{method} takes an iterable of items, not {type(items).__name__}: use {single} for one item")
    if getattr(items, "acknowledges_the_one_before", False):
        raise TypeError(
            f"{method} does not take a consumer: {method} reads ahead, and a consumer acknowledges an item when the "
            f"next one is read, so a failure would lose items. Use apressure.pipe(source, transform, destination), "
            f"which acknowledges an item when its results are in the destination. Or put each item before the next one "
            f"is read: async for item in consumer: await queue.{single}(item)"
        )


def consumer(ack: Any, prefetch: Any, timeout: Any, most: int | None = None) -> None:
    """Raise if arguments that consumers of every kind of queue have are invalid.

    Args:
        ack: `"auto"` or `"manual"`.
        prefetch: None, or how many items to receive at a time.
        timeout: None, or seconds.
        most: The largest `prefetch`; None for no limit.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is invalid.
    """
    if ack not in ("auto", "manual"):
        raise ValueError(f"ack must be 'auto' or 'manual', not {ack!r}")
    if prefetch is not None:
        whole(prefetch, "prefetch", 1, most)
    if timeout is not None:
        seconds(timeout, "timeout", most=math.inf, none=True)
