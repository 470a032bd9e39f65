"""The command line: the list of commands, and errors of usage."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from keyword import iskeyword
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from apressure.cli.command import command
from apressure.cli.exits import MEANINGS, Exit, one_line
from apressure.cli.options import Common, Json, Prefix, Url, complain, option
from apressure.cli.running import mute_output, new_fast_loop

_EPILOG: Final = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."
_SEE: Final = "Exit codes: see apressure --help."

# Newer versions of Typer bring their own copy of Click; this finds the class in either.
_WrongUsage: Final[type[Exception]] = typer.BadParameter.__bases__[0]

_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

_ALONE: Final = (
    "create", "put", "get", "ask", "peek", "ls", "top", "stat", "pause", "resume", "limit", "hold", "promote", "purge",
    "dead", "requeue", "discard", "close", "delete", "export", "import", "doctor", "health", "metrics", "web", "worker",
    "demo", "pipeline", "explain",
)  # fmt: skip
_TASKS: Final = (
    "run", "ls", "show", "wait", "cancel", "purge", "listen", "complete", "fail", "progress",
)  # fmt: skip
_FILES: Final = ("pump", "sink", "give_back")
_EVENTS: Final = ("serve", "health")
_SCHEDULES: Final = ("ls", "every", "pause", "resume", "run", "delete", "run_forever")
_WORKERS: Final = ("ls", "stack", "drain")


class _Commands(TyperGroup):
    """The commands by their names. Only the module of the command that runs is imported."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (Click passes it)
        """Return the names in the order of `apressure --help`."""
        return [*_ALONE, "workers", "schedules", "tasks", "files", "events"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if there is none of this name."""
        return _made(cmd_name) if cmd_name in self.list_commands(ctx) else None


def _made(name: str) -> Any:
    """Make a command, or a group of commands."""
    if name == "tasks":
        tasks = [command(function, prefix=False) for function in _functions(name, _TASKS)]
        return _group(name, "What only tasks have: nodes, status and results.", tasks)
    if name == "files":
        files = [command(function, server=False) for function in _functions(name, _FILES)]
        return _group(name, "The commands of vsqs for queues in directories.", files)
    if name == "events":
        events = [command(one, server=False, new_loop=new_fast_loop) for one in _functions(name, _EVENTS)]
        return _group(name, "The okq server: event queues for Redis clients in any language.", events)
    if name == "schedules":
        schedules = [command(function) for function in _functions(name, _SCHEDULES)]
        return _group(name, "What queues put at certain times.", schedules)
    if name == "workers":
        return _group(name, "What works on queues.", [command(one) for one in _functions(name, _WORKERS)])
    module = f"{name}_" if iskeyword(name) else name
    (function,) = _functions(module, (module,))
    alone = typer.Typer(name=name, add_completion=False, rich_markup_mode="rich")
    # Without a name, Typer makes one of the function's: `import-` of `import_`.
    alone.command(name, epilog=_SEE)(command(function, server=name != "explain"))
    return typer.main.get_command(alone)


def _functions(module: str, names: Sequence[str]) -> list[Callable[..., Any]]:
    commands = import_module(f"apressure.cli.commands.{module}")
    return [getattr(commands, name) for name in names]


def _group(name: str, help: str, commands: Iterable[Callable[..., None]]) -> Any:
    """Make a command that has commands."""
    group = typer.Typer(
        name=name, help=help, epilog=_SEE, no_args_is_help=True, rich_markup_mode="rich", add_completion=False,
        context_settings=_CONTEXT,
    )  # fmt: skip
    for each in commands:
        group.command(epilog=_SEE)(each)
    return typer.main.get_command(group)


app = typer.Typer(
    name="apressure",
    cls=_Commands,
    help="Queues between processes that behave like a bounded asyncio.Queue, over Redis, Valkey or in directories.",
    epilog=_EPILOG,
    add_completion=True,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
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
        bool, option("version", "Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that may stand before the name of the command."""
    del show_version
    context.obj = Common(url=url, prefix=prefix, json=json)
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        raise typer.Exit(int(Exit.USAGE))


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
