"""What all commands have in common: options, the client that they lead to, and how a command ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json as jsons
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer

from apressure import AsyncQueue, Client, Durability
from apressure.cli.exits import HANDLED, Exit, UsageError, as_dict, code_of, message_of
from apressure.cli.running import StoppedBySignalError, run

_T = TypeVar("_T")

_SERVER_PANEL: Final = "Server and output"


def _not_empty(url: str | None) -> str | None:
    # Of a script whose variable is not set. It must not go to the default server instead.
    if url == "":
        raise typer.BadParameter("is empty")
    return url


Name = Annotated[str, typer.Argument(help="The queue's name, without the prefix.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="redis://, rediss://, redis+sentinel://, redis+cluster://, unix:// or embedded:///DIR; "
        "else APRESSURE_URL, REDIS_SERVER, REDIS_PORT, REDIS_DB.",
        show_default=False,
        callback=_not_empty,
        rich_help_panel=_SERVER_PANEL,
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        help="What the keys begin with; by default as PRESSURE_PREFIX says.",
        show_default=False,
        rich_help_panel=_SERVER_PANEL,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, also for errors.", show_default=False, rich_help_panel=_SERVER_PANEL),
]
Interval = Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.05, help="With --watch: how often.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after so long.", show_default="wait for ever"),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas",
        metavar="N",
        min=0,
        help="Nothing counts as done before N replicas have received it.",
        show_default=False,
    ),
]
Fsync = Annotated[
    bool, typer.Option("--fsync", help="Nothing counts as done before the server's disk has it.", show_default=False)
]


@dataclasses.dataclass(frozen=True)
class Common:
    """The options that every command takes, before its name or after it.

    Attributes:
        url: The server, or None for the environment's.
        prefix: The prefix of all keys, or None for the environment's.
        json: Whether programs read what is printed.
    """

    url: str | None = None
    prefix: str | None = None
    json: bool = False

    @classmethod
    def of(cls, context: typer.Context, url: str | None, prefix: str | None, json: bool) -> Common:
        """Return what was said after the command's name, completed by what was said before it."""
        before = context.obj if isinstance(context.obj, cls) else cls()
        # The variable comes last, here and not in the option: it must not win over what stands before the command.
        return cls(
            url=url or before.url or os.environ.get("APRESSURE_URL") or None,
            prefix=before.prefix if prefix is None else prefix,
            json=json or before.json,
        )

    def client(self) -> Client:
        """Return a new client of the server."""
        self._check_url()
        return Client(self.url, prefix=self.prefix)

    def queue(
        self,
        name: str,
        max_attempts: int | None = None,
        dead_letters: str | None = None,
        durability: Durability | None = None,
    ) -> AsyncQueue[bytes]:
        """Return the queue `name` with a client of its own."""
        self._check_url()
        return AsyncQueue(
            name,
            max_attempts=max_attempts,
            dead_letters=dead_letters,
            url=self.url,
            prefix=self.prefix,
            durability=durability,
        )

    def _check_url(self) -> None:
        if self.url == "embedded://":
            raise UsageError(
                "embedded:// is a server of one process alone, and ends with this command: "
                "use embedded:///some/dir, which keeps the queues, or a server"
            )


@dataclasses.dataclass(frozen=True)
class Remains:
    """What a command that was ended early leaves behind and has to tell.

    Attributes:
        text: For people.
        data: For programs.
    """

    text: str
    data: dict[str, int]


def execute(
    common: Common,
    coroutine: Coroutine[Any, Any, _T],
    *,
    insist: bool = False,
    remains: Callable[[], Remains | None] = lambda: None,
) -> _T:
    """Run a command and return its result; an error is told in one line and ends the process with its code.

    Args:
        common: The common options.
        coroutine: The command.
        insist: Further signals do not keep it from cleaning up.
        remains: Asked after an error or a signal; what it returns is told in the same line.
    """
    try:
        return run(coroutine, insist=insist)
    except StoppedBySignalError as stopped:
        code = Exit(128 + stopped.signum)
        left = remains()
        if isinstance(stopped.__cause__, HANDLED):
            _tell(stopped.__cause__, code, left, as_json=common.json)
        elif left is not None:
            _tell(stopped, code, left, as_json=common.json)
        raise typer.Exit(int(code)) from None
    except HANDLED as error:
        code = code_of(error)
        if code is Exit.BROKEN_PIPE:
            mute_output()
        else:
            _tell(error, code, remains(), as_json=common.json)
        raise typer.Exit(int(code)) from None


def _tell(error: BaseException, code: Exit, remains: Remains | None, *, as_json: bool) -> None:
    if as_json:
        complain(jsons.dumps({**as_dict(error, code), **(remains.data if remains else {})}))
    else:
        complain(f"apressure: {message_of(error)}" + (f"; {remains.text}" if remains else ""))


def complain(line: str) -> None:
    """Write one line to standard error, if anybody is there to read it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def mute_output() -> None:
    """Let the interpreter's last flush of standard output go nowhere, since its reader is gone."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
