"""The command line: the list of commands, and errors of usage."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Final

import typer

from apressure.cli.command import command
from apressure.cli.commands import events, files, queues, tasks
from apressure.cli.commands.demo import demo
from apressure.cli.commands.explain import explain
from apressure.cli.commands.metrics import metrics
from apressure.cli.commands.pipeline import pipeline
from apressure.cli.exits import MEANINGS, Exit, one_line
from apressure.cli.options import Common, Json, Prefix, Url, complain
from apressure.cli.running import mute_output, new_fast_loop

_EPILOG: Final = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."
_SEE: Final = "Exit codes: see apressure --help."

# Newer versions of Typer bring their own copy of Click; this finds the class in either.
_WrongUsage: Final[type[Exception]] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="apressure",
    help="Queues between processes, over Redis or Valkey, that behave like a bounded asyncio.Queue.",
    epilog=_EPILOG,
    add_completion=True,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        try:
            number = version("apressure")
        except PackageNotFoundError:
            number = "(not installed)"
        sys.stdout.write(f"apressure {number}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common_options(
    context: typer.Context,
    url: Url = None,
    prefix: Prefix = None,
    json: Json = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that may stand before the name of the command."""
    del show_version
    context.obj = Common(url=url, prefix=prefix, json=json)
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        raise typer.Exit(int(Exit.USAGE))


for function in (*queues.COMMANDS, metrics, demo, pipeline):
    app.command(epilog=_SEE)(command(function))
app.command(epilog=_SEE)(command(explain, server=False))


def _group(name: str, help: str, commands: Iterable[Callable[..., None]]) -> None:
    """Add a command that has commands."""
    group = typer.Typer(
        name=name,
        help=help,
        epilog=_SEE,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for each in commands:
        group.command(epilog=_SEE)(each)
    app.add_typer(group)


_TASKS: Final = (
    tasks.create,
    tasks.enqueue, tasks.schedule, tasks.run, tasks.ls, tasks.show, tasks.wait, tasks.stat, tasks.cancel, tasks.retry,
    tasks.purge, tasks.pause, tasks.resume, tasks.close, tasks.delete, tasks.listen, tasks.complete, tasks.fail,
    tasks.progress,
)  # fmt: skip
_FILES: Final = (
    files.pump, files.sink, files.stat, files.pause, files.resume, files.dead, files.requeue, files.purge,
)  # fmt: skip
_EVENT_QUEUES: Final = (
    events.stat, events.pause, events.resume, events.dead, events.requeue,
)  # fmt: skip

_group(
    "tasks",
    "Very long tasks, in the format of Blueque.",
    [command(function, prefix=False) for function in _TASKS],
)
_group(
    "files",
    "Queues in directories, without a server, in the format of vsqs.",
    [command(function, server=False) for function in _FILES],
)
_group(
    "events",
    "Event queues for Redis clients in any language, in the format of okq.",
    [
        *(command(function, server=False, new_loop=new_fast_loop) for function in (events.serve, events.health)),
        *(command(function, prefix=False) for function in _EVENT_QUEUES),
    ],
)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    as_json = "--json" in arguments
    try:
        result: Any = typer.main.get_command(app).main(
            args=list(arguments), prog_name="apressure", standalone_mode=False
        )
        sys.stdout.flush()
    except _WrongUsage as error:
        return _wrong_usage(error, as_json=as_json)
    except BrokenPipeError:
        mute_output()
        return int(Exit.BROKEN_PIPE)
    except SystemExit as error:
        # Typer raises this for a broken pipe while it shows the help.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        mute_output()
        return int(Exit.BROKEN_PIPE)
    return result if isinstance(result, int) else int(Exit.OK)


def _wrong_usage(error: Any, *, as_json: bool) -> int:
    message = one_line(error.format_message()).replace("Value error, ", "")
    if not message:  # a command with commands was named alone: its help has been printed
        return int(Exit.USAGE)
    if as_json:
        complain(jsons.dumps({"error": "UsageError", "message": message, "exit_code": int(Exit.USAGE)}))
    else:
        path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "apressure"
        complain(f"apressure: {message.rstrip('.')} (see: {path} --help)")
    return int(Exit.USAGE)
