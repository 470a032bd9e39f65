"""`apressure worker`: handles the items of queues with a function of yours, in one process or several."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Annotated, Any, Final

import typer

from apressure.cli.exits import HANDLED, Exit, HookError, UsageError
from apressure.cli.options import (
    CONCURRENCY,
    SHUTDOWN_TIMEOUT,
    Common,
    MaxAttempts,
    complain,
    option,
)
from apressure.cli.running import ROUTINE, execute
from apressure.cli.show import answer
from apressure.concurrency.backoff import Backoff
from apressure.service.service import Served
from apressure.worker import processes
from apressure.worker.loading import TargetError, load
from apressure.worker.worker import HOOK_FAILED, Worker

_SIGNALS: Final = (SIGTERM, SIGINT, SIGHUP)
_FINAL: Final = (Exit.USAGE, Exit.MISSING_EXTRA)
"""The exit codes of a process that will end the same way if it is started again."""

_LAST_PORT: Final = 65535
_UNTOLD: Final = ROUTINE - {"redelivered"}
"""Events that are not printed. A message that comes again tells of a worker that was killed."""


def worker(
    common: Common,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", show_default=False,
            help="The handler, an async or a plain function of one item, or a Worker with its handlers.",
        ),
    ],
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="The queues that the handler serves, the most urgent first.",
                       show_default=False),
    ] = None,
    concurrency: Annotated[int | None, CONCURRENCY] = None,
    weights: Annotated[
        Any,
        option("weights", "The proportions in which several queues get handlers.", "N,N,…", "in order",
               parser=_weights_of),
    ] = None,
    ageing: Annotated[
        float | None,
        option("ageing", "Of several queues in order, an item that has waited for a handler for so long goes first.",
               "SECONDS", "60", min=0),
    ] = None,
    codec: Annotated[
        str | None,
        option("codec", "What items are: raw, text, json, msgpack or cloudevents.", "NAME", "bytes; JSON for tasks"),
    ] = None,
    max_attempts: MaxAttempts = None,
    retry_delay: Annotated[
        float | None,
        option("retry-delay", "The first pause before a retry. A random part of up to a half is taken off each pause.",
               "SECONDS", "1", min=0),
    ] = None,
    retry_factor: Annotated[
        float | None, option("retry-factor", "How many times longer each further pause is.", "N", "2", min=1)
    ] = None,
    retry_most: Annotated[float | None, option("retry-most", "The longest pause.", "SECONDS", "60", min=0)] = None,
    timeout: Annotated[
        float | None,
        option("timeout", "How long an item may take, which fails then. For async handlers.", "SECONDS", "no limit",
               min=0.001),
    ] = None,
    rate: Annotated[
        float | None, option("rate", "How many handlers of a process may begin a second.", "N", "no limit", min=0)
    ] = None,
    reply: Annotated[
        bool, option("reply", "What the handler returns is the reply to a program that has asked: see apressure ask.")
    ] = False,
    max_hold: Annotated[
        float | None,
        option("max-hold", "Log where a stuck handler is, and give up its items, after this time.", "SECONDS",
               "an hour", min=0.001),
    ] = None,
    shutdown_timeout: Annotated[float | None, SHUTDOWN_TIMEOUT] = None,
    create: Annotated[bool, option("create", "Create the queues first, unless they exist.")] = False,
    bound: Annotated[
        int | None, option("bound", "How many items a queue may hold, with --create.", "N", "no limit", min=0)
    ] = None,
    process_count: Annotated[
        int, option("processes", "How many processes. One that dies is started again.", "N", min=1, max=1000)
    ] = 1,
    reload: Annotated[bool, option("reload", "Start again when a Python file changes. For development.")] = False,
    app_dir: Annotated[
        Path, option("app-dir", "Where MODULE is; --reload watches this directory.", "DIR")
    ] = Path(),
    metrics_port: Annotated[
        int | None,
        option("metrics-port", "Serve /metrics and /healthz there; each further process at the next port.", "PORT",
               "none", min=0, max=_LAST_PORT),
    ] = None,
    metrics_host: Annotated[
        str, option("metrics-host", "The address. 0.0.0.0 opens it to other machines.", "ADDRESS")
    ] = "127.0.0.1",
) -> None:  # fmt: skip
    """Handle the items of queues with a function of yours, until the queues are closed and drained, or a signal comes.

    An item is acknowledged when its handler has returned. If the handler raises, it is tried again after a pause. The
    first SIGTERM or Ctrl-C lets handlers finish, the second one cancels them, and their items go back. The exit code is
    0 if the worker has drained.
    """
    if metrics_port and metrics_port + process_count - 1 > _LAST_PORT:
        raise UsageError(f"--metrics-port must leave room for {process_count} processes: the last port is {_LAST_PORT}")
    if not app_dir.is_dir():
        raise UsageError(f"there is no directory {str(app_dir)!r}, which --app-dir names")
    number = processes.number_of_this_process()
    if number is None and (process_count > 1 or reload):
        command = [sys.executable, "-m", "apressure", *sys.argv[1:]]
        running = processes.Processes(command, process_count, final=_FINAL, watched=[app_dir] if reload else None)
        if code := execute(common, running.run(_SIGNALS), signals=()):
            raise typer.Exit(code)
        return
    options = {
        "codec": codec, "max_attempts": max_attempts, "concurrency": concurrency,
        "retry_delay": retry_delay, "retry_factor": retry_factor, "retry_most": retry_most,
        "timeout": timeout, "rate": rate, "weights": weights, "ageing": ageing, "shutdown_timeout": shutdown_timeout,
        "max_hold": max_hold, "bound": bound, "create": create or None, "reply": reply or None,
    }  # fmt: skip
    served = _worker(common, target, queues or [], app_dir, {k: v for k, v in options.items() if v is not None})
    names = ", ".join(one.name for one in served.handlers)
    if sys.stderr.isatty() and not common.json:
        complain(f"apressure: {target} handles {names}. Ctrl-C lets handlers finish")
    port = metrics_port + (number or 0) if metrics_port else metrics_port
    serving = _served(served, number is not None, _metrics(port, metrics_host))
    try:
        done = execute(common, serving, signals=(), untold=_UNTOLD)
    except SystemExit as error:  # its code would say that the worker has drained, or that it needs no other start
        traceback.print_exc()
        complain(f"apressure: code of {target} has raised SystemExit({error.code!r})")
        raise typer.Exit(Exit.ERROR) from None
    handled, failed = (sum(getattr(one, what) for one in done.values()) for what in ("handled", "failed"))
    answer(
        {"handlers": [{"queues": name.split(", "), "handled": one.handled, "failed": one.failed}
                      for name, one in done.items()]},
        f"{names}: {handled} handled, {failed} failed", as_json=common.json,
    )  # fmt: skip
    signal = next((one.signal for one in done.values() if one.signal is not None), None)
    if number is not None and signal is not None:
        raise typer.Exit(128 + signal)  # the parent knows whether it has sent it, or has to replace this process
    if number is not None:
        processes.tell_drained()


async def _served(worker: Worker, has_parent: bool, observer: Any) -> dict[str, Served]:
    """Run a worker, in this process, until it is done, or its parent has died."""
    stop = asyncio.Event()
    with processes.parent_watched(stop.set) if has_parent else contextlib.nullcontext():
        try:
            return await worker.run(signals=_SIGNALS, stop=stop, observer=observer)
        except HANDLED as error:
            notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(HOOK_FAILED)]
            if not notes:
                raise
            traceback.print_exception(error)
            raise HookError(f"{error!r}, {notes[0]}") from None


def _worker(common: Common, target: str, queues: list[str], app_dir: Path, options: dict[str, Any]) -> Worker:
    """Return the worker that a target names, or one whose only handler it is."""
    if (place := str(app_dir.absolute())) not in sys.path:
        sys.path.insert(0, place)
    try:
        found = load(target)
    except TargetError as error:
        raise UsageError(str(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the code of the module may raise anything)
        traceback.print_exc()
        raise UsageError(f"{target} cannot be imported: {error!r}") from None
    if isinstance(found, Worker):
        given = ["QUEUE"] * bool(queues) + [common.options[name] for name in options]
        if given:
            raise UsageError(f"{target} is a Worker, which says that itself: leave out {', '.join(given)}")
        found.url, found.prefix = found.url or common.url, found.prefix or common.prefix
        return found
    if not queues:
        raise UsageError(f"which queues does {target} handle? Name at least one, such as orders or events:clicks")
    worker = Worker(url=common.url, prefix=common.prefix)
    _pause(options)
    try:
        for queue in queues:
            common.read(queue)
        worker.handle(queues, **options)(found)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    return worker


def _pause(options: dict[str, Any]) -> None:
    """Replace the options that say how long to pause before retries, if there are any, by `retry`."""
    names = {"first": "retry_delay", "most": "retry_most", "factor": "retry_factor"}
    given = {name: options.pop(option) for name, option in names.items() if option in options}
    if "most" in given and given["most"] < given.get("first", 0.0):
        raise UsageError("--retry-most is the longest pause, and must not be below --retry-delay, the first one")
    if given:
        options["retry"] = Backoff(**given)


def _weights_of(text: str) -> list[float]:
    """Read `--weights`."""
    try:
        return [float(word) for word in str(text).split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 6,3,1") from None


def _metrics(port: int | None, host: str) -> Any:
    if port is None:
        return None
    from apressure.telemetry import Metrics

    return Metrics(port=port, host=host)
