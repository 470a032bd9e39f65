"""The options that commands share, and the client that they lead to."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from apressure import AsyncQueue, Client, Durability, validation
from apressure.cli.exits import UsageError
from apressure.cli.show import printable
from apressure.cli.streams.framing import Framing

if TYPE_CHECKING:
    from apressure import EventQueue
    from apressure.tasks import TaskClient

_SERVER_PANEL: Final = "Server and output"


def _not_empty(url: str | None) -> str | None:
    # A script whose variable is not set passes an empty URL. It must not reach the default server.
    if url == "":
        raise typer.BadParameter("is empty")
    return url


def _is_time(value: float | None) -> float | None:
    """Refuse a time that is not a number. (With some versions of Typer, `min=` accepts NaN.)"""
    try:
        validation.timeout(value, "the time")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return value


def replicas_of(given: str | int) -> int | Literal["all"]:
    """Read `--replicas`: a number, or `all`."""
    text = str(given)  # Typer passes the default, too
    if text == "all":
        return "all"
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor 'all'")
    return int(text)


Name = Annotated[str, typer.Argument(help="The queue's name, without the prefix.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The server: redis://, rediss://, redis+sentinel://, redis+cluster://, unix:// or embedded:///DIR. "
        "Default: APRESSURE_URL, or REDIS_SERVER, REDIS_PORT and REDIS_DB.",
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
        help="The prefix of all keys. Default: PRESSURE_PREFIX, or __pressure__.",
        show_default=False,
        rich_help_panel=_SERVER_PANEL,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print results and errors as JSON.", show_default=False, rich_help_panel=_SERVER_PANEL),
]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C, or until the queue is deleted.")]
Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="SECONDS",
        min=0.05,
        max=86400,
        callback=_is_time,
        help="Time between two looks, with --watch.",
        show_default="1",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        callback=_is_time,
        help="Give up after this time.",
        show_default="wait for ever",
    ),
]
Lease = Annotated[
    float,
    typer.Option(
        "--lease",
        metavar="SECONDS",
        min=0.001,
        callback=_is_time,
        help="How long an item belongs to this consumer. The command renews it.",
    ),
]
Replicas = Annotated[
    Any,  # int | Literal["all"], which typer cannot tell apart
    typer.Option(
        "--replicas",
        metavar="N|all",
        parser=replicas_of,
        help="Wait until N replicas, or all known replicas, have received each write.",
        show_default=False,
    ),
]
Fsync = Annotated[
    bool, typer.Option("--fsync", help="Wait until each write is on the server's disk.", show_default=False)
]
Items = Annotated[
    list[str] | None,
    typer.Argument(metavar="ITEM", help="The items. Without any, items are read from standard input."),
]
Close = Annotated[bool, typer.Option("--close", help="Close the queue after the last item.")]
Null = Annotated[bool, typer.Option("-0", "--null", help="Items end with a NUL byte instead of a newline.")]
LengthPrefixed = Annotated[
    bool, typer.Option("--length-prefixed", help="Each item follows its length: 4 bytes, big-endian.")
]
MaxSize = Annotated[int, typer.Option("--max-size", metavar="BYTES", min=1, help="The largest item to accept.")]
Number = Annotated[
    int | None, typer.Option("-n", "--number", metavar="N", min=1, help="End after N items.", show_default="all")
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow/--no-follow",
        help="Wait for more items until the queue is closed, or end when the queue is empty.",
    ),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        "--max-attempts",
        metavar="N",
        min=1,
        help="Move an item to the dead-letter queue after N deliveries that were not acknowledged.",
        show_default="no limit",
    ),
]
Most = Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Move at most N.", show_default="all")]
Progress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show the progress on standard error.", show_default=False),
]


def seconds_between(interval: float | None, watch: bool) -> float:
    """Return the seconds between two looks. Refuse `--interval` without `--watch`."""
    if interval is not None and not watch:
        raise UsageError("--interval needs --watch: give both options")
    return 1.0 if interval is None else interval


def framing_of(null: bool, length_prefixed: bool) -> Framing:
    """Return the framing that the options select."""
    if null and length_prefixed:
        raise UsageError("-0 and --length-prefixed exclude each other")
    if length_prefixed:
        return Framing.LENGTH_PREFIXED
    return Framing.NUL if null else Framing.LINES


@dataclasses.dataclass(frozen=True)
class Common:
    """The options that every command takes, before its name or after it.

    Attributes:
        url: The server, or None for the environment's.
        prefix: The prefix of all keys, or None for the environment's.
        json: Print JSON.
    """

    url: str | None = None
    prefix: str | None = None
    json: bool = False

    @classmethod
    def of(cls, context: typer.Context, url: str | None, prefix: str | None, json: bool) -> Common:
        """Merge the options after the command's name with those before it. The ones after it win."""
        before = context.obj if isinstance(context.obj, cls) else cls()
        # The variable is read here and not by the option, so that an option before the command wins over it.
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

    def tasks(self) -> TaskClient:
        """Return a new client of the server, for queues of tasks."""
        from apressure.tasks import TaskClient

        self._check_url()
        return TaskClient(self.url)

    def events(self, name: str) -> EventQueue[bytes]:
        """Return the queue of events `name` with a client of its own."""
        from apressure import EventQueue

        self._check_url()
        return EventQueue(name, url=self.url)

    def _check_url(self) -> None:
        if self.url == "embedded://":
            raise UsageError(
                "embedded:// starts a server that ends with this command, and its queues with it. "
                "Use embedded:///some/dir, which keeps the queues, or the URL of a server"
            )


def complain(line: str) -> None:
    """Write one line to standard error, with control characters made visible. Errors of writing are discarded."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()
