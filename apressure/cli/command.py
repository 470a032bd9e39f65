"""Makes a command of a function: adds the options that all commands share, and runs it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final

import typer

from apressure.cli.options import Common, Json, Prefix, Url
from apressure.cli.running import NewLoop, errors_printed, execute

_ANY: Final = inspect.Parameter.KEYWORD_ONLY
_CONTEXT: Final = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
_URL: Final = inspect.Parameter("url", _ANY, default=None, annotation=Url)
_PREFIX: Final = inspect.Parameter("prefix", _ANY, default=None, annotation=Prefix)
_JSON: Final = inspect.Parameter("json", _ANY, default=False, annotation=Json)


def command(
    function: Callable[..., Any],
    *,
    server: bool = True,
    prefix: bool = True,
    new_loop: NewLoop = asyncio.new_event_loop,
) -> Callable[..., None]:
    """Return a function for Typer that calls `function` with a `Common`, and runs it if it is a coroutine function.

    Typer reads a command's options from the signature. The one of the result has --json instead of the parameter
    `common`, and, for a command that needs a `server`, --url and --prefix. (Keys of event queues have no `prefix`.)
    `new_loop` makes the event loop. A parameter whose type is a dataclass stands for an option for each of its fields.
    """
    own: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
    for parameter in parameters:
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            own += inspect.signature(groups[parameter.name], eval_str=True).parameters.values()
        else:
            own.append(parameter)

    @functools.wraps(function)
    def run(
        context: typer.Context, url: str | None = None, prefix: str | None = None, json: bool = False, **options: Any
    ) -> None:
        common = Common.of(context, url, prefix, json)
        for name, group in groups.items():
            options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
        with errors_printed(common):
            running = function(common, **options)
        if inspect.iscoroutine(running):
            execute(common, running, new_loop=new_loop)

    shared = [_URL] * server + [_PREFIX] * (server and prefix) + [_JSON]
    run.__signature__ = inspect.Signature([_CONTEXT, *own, *shared])  # type: ignore[attr-defined]
    return run
