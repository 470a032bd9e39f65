"""Calls one Python function, in a process of its own: the program that a `Runner` starts for `"module:function"`.

It reads `{"function": "module:function", "parameters": …, "path": […], "check": false}` from its standard input, and
writes the result to the descriptor for reports (see reports.py). With `"check": true` it only imports the function. It
imports nothing but the standard library and the function's module; in a trace, also OpenTelemetry, if it is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

REPORTS = 3
"""The descriptor by which it reports."""


def main() -> int | str:
    """Call the function; returns the exit status, or why the function cannot be imported, which `sys.exit` prints."""
    with os.fdopen(0, "rb", closefd=False) as file:
        order = json.load(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.path[:] = order["path"]
    try:
        function = find(order["function"])
    except Exception as error:  # noqa: BLE001 (the module's code may raise anything)
        if order["check"]:
            return "".join(traceback.format_exception_only(error)).strip()
        return failed(f"the function {order['function']} cannot be imported: {error!r}")
    if order["check"]:
        return 0
    continue_trace()
    try:
        result = function(order["parameters"])
        if isinstance(result, types.CoroutineType):
            import asyncio  # here, since it takes longer to import than the rest

            result = asyncio.run(result)
    except Exception as error:  # noqa: BLE001 (the function's own)
        return failed("".join(traceback.format_exception_only(error)).strip())
    try:
        text = json.dumps(result, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        report(f"result {text}")
    except (TypeError, ValueError, RecursionError) as error:
        return failed(f"the function {order['function']} returned a {type(result).__name__} that is not JSON: {error}")
    return 0


def find(name: str) -> Callable[[Any], Any]:
    """Return the function of a name `module:function`, or raise what its import raises."""
    module, _, qualified_name = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualified_name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def continue_trace() -> None:
    """Make the span of the task the parent of those that the function makes, if its Runner has one (`Tracing`)."""
    if "TRACEPARENT" not in os.environ:
        return
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return
    headers = {name.lower(): os.environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in os.environ}
    context.attach(TraceContextTextMapPropagator().extract(headers))


def failed(reason: str) -> int:
    """Say why the task fails; the traceback of the current exception goes to the standard error."""
    traceback.print_exc()
    report(f"error {' '.join(reason.splitlines())}")
    return 1


def report(line: str) -> None:
    """Write a whole line to the descriptor for reports."""
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(REPORTS, data) :]


if __name__ == "__main__":
    sys.exit(main())
