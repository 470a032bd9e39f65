"""The options that commands share, and the client that they lead to."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from apressure import Client, Durability, opening, queue_addresses, validation
from apressure.cli.exits import UsageError
from apressure.cli.show import printable
from apressure.cli.streams.framing import DEFAULT_LIMIT, Framing
from apressure.cli.wording import names_of
from apressure.monitor.finding import Finder
from apressure.queue_addresses import Kind, QueueAddress

if TYPE_CHECKING:
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


def option(name: str, help: str, metavar: str | None = None, shown: str | bool = True, **more: Any) -> Any:
    """Return an option for `Annotated`.

    Args:
        name: Its name, without the dashes.
        help: What the help says of it.
        metavar: What its value is called there.
        shown: What it says of the default, if that is not its text; False for nothing.
        **more: As for `typer.Option`.
    """
    return typer.Option(f"--{name}", help=help, metavar=metavar, show_default=shown, **more)


def replicas_of(given: str | int) -> int | Literal["all"]:
    """Read `--replicas`: a number, or `all`."""
    text = str(given)  # Typer passes the default, too
    if text == "all":
        return "all"
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor 'all'")
    return int(text)


Address = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="The queue: orders, events:orders, tasks:orders, files:spool/orders, or a URL such as "
        "redis://host:6379/0/events:orders.",
        show_default=False,
    ),
]
Addresses = Annotated[
    list[str] | None, typer.Argument(metavar="QUEUE", help="The queues. By default all on the server.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.", show_default=False)]
Url = Annotated[
    str | None,
    option(
        "url",
        "The server of queues whose address names none: redis://, rediss://, redis+sentinel://, redis+cluster://, "
        "unix:// or embedded:///DIR. Default: APRESSURE_URL, or REDIS_SERVER, REDIS_PORT and REDIS_DB.",
        "URL", shown=False, callback=_not_empty, rich_help_panel=_SERVER_PANEL,
    ),
]  # fmt: skip
Prefix = Annotated[
    str | None,
    option(
        "prefix", "The prefix of all keys. Default: PRESSURE_PREFIX, or __pressure__.", "TEXT", shown=False,
        rich_help_panel=_SERVER_PANEL,
    ),
]  # fmt: skip
Json = Annotated[bool, option("json", "Print results and errors as JSON.", shown=False, rich_help_panel=_SERVER_PANEL)]
Watch = Annotated[bool, option("watch", "Repeat until Ctrl-C, or until the queue is deleted.")]
Interval = Annotated[
    float | None,
    option(
        "interval", "Time between two looks, with --watch.", "SECONDS", shown="1", min=0.05, max=86400,
        callback=_is_time,
    ),
]  # fmt: skip
Timeout = Annotated[
    float | None,
    option("timeout", "Give up after this time.", "SECONDS", shown="wait for ever", min=0, callback=_is_time),
]
Lease = Annotated[
    float,
    option(
        "lease", "How long an item belongs to this consumer. The command renews it.", "SECONDS", min=0.001,
        callback=_is_time,
    ),
]  # fmt: skip
Replicas = Annotated[
    Any,  # int | Literal["all"], which typer cannot tell apart
    option(
        "replicas", "Wait until N replicas, or all known replicas, have received each write.", "N|all", shown=False,
        parser=replicas_of,
    ),
]  # fmt: skip
Fsync = Annotated[bool, option("fsync", "Wait until each write is on the server's disk.", shown=False)]
Items = Annotated[
    list[str] | None,
    typer.Argument(metavar="ITEM", help="The items. Without any, items are read from standard input."),
]
Close = Annotated[bool, option("close", "Close the queue after the last item.")]
Number = Annotated[
    int | None, typer.Option("-n", "--number", metavar="N", min=1, help="End after N items.", show_default="all")
]
Follow = Annotated[
    bool,
    option("follow/--no-follow", "Wait for more items until the queue is closed, or end when the queue is empty."),
]
MaxAttempts = Annotated[
    int | None,
    option(
        "max-attempts", "Move an item to the dead-letter queue after N deliveries that were not acknowledged.", "N",
        shown="no limit", min=1,
    ),
]  # fmt: skip
Most = Annotated[int | None, option("max", "Move at most N.", "N", shown="all", min=1)]
DeadLetters = Annotated[
    str | None,
    option(
        "dead-letters", "The name of the dead-letter queue of an AsyncQueue or a directory.", "NAME",
        shown="NAME:dead or NAME.dead",
    ),
]  # fmt: skip
CONCURRENCY: Final = option(
    "concurrency", "How many items or tasks a process handles at a time.", "N", shown="1", min=1
)
HANDLING_TIMEOUT: Final = option(
    "timeout", "How long an item or a task may take, which fails then.", "SECONDS", shown="no limit", min=0.001
)
SHUTDOWN_TIMEOUT: Final = option(
    "shutdown-timeout", "How long items or tasks in hand may go on after a signal.", "SECONDS", shown="30", min=0
)
Pattern = Annotated[
    bool,
    option(
        "pattern",
        "The names are patterns: 'orders*' for queues of every kind on the server, 'events:orders*' for those of "
        "one kind, 'files:spool/*' for those in a directory.",
    ),
]
Progress = Annotated[
    bool | None,
    option("progress/--no-progress", "Show the progress on standard error.", shown=False),
]


def seconds_between(interval: float | None, watch: bool) -> float:
    """Return the seconds between two looks. Refuse `--interval` without `--watch`."""
    if interval is not None and not watch:
        raise UsageError("--interval needs --watch: give both options")
    return 1.0 if interval is None else interval


@dataclasses.dataclass(frozen=True)
class Framed:
    """The options that say how items are separated."""

    null: Annotated[bool, typer.Option("-0", "--null", help="Items end with a NUL byte instead of a newline.")] = False
    length_prefixed: Annotated[
        bool, option("length-prefixed", "Each item follows its length: 4 bytes, big-endian.")
    ] = False

    def framing(self, as_json: bool = False) -> Framing:
        """Return the framing that they select; `as_json` for items that are written with `--json`."""
        if self.null and self.length_prefixed:
            raise UsageError("-0 and --length-prefixed exclude each other")
        if as_json:
            if self.null or self.length_prefixed:
                raise UsageError("--json excludes -0 and --length-prefixed: it writes each item as an object on a line")
            return Framing.JSON
        if self.length_prefixed:
            return Framing.LENGTH_PREFIXED
        return Framing.NUL if self.null else Framing.LINES


@dataclasses.dataclass(frozen=True)
class Stream(Framed):
    """The same, and how large an item may be."""

    max_size: Annotated[int, option("max-size", "The largest item to accept.", "BYTES", min=1)] = DEFAULT_LIMIT


@dataclasses.dataclass(frozen=True)
class Common:
    """The options that every command takes, before its name or after it.

    Attributes:
        url: The server, or None for the environment's.
        prefix: The prefix of all keys, or None for the environment's.
        json: Print JSON.
        named: The addresses that were read, by the names of their queues.
        options: The options of the command; see `wording.names_of`.
    """

    url: str | None = None
    prefix: str | None = None
    json: bool = False
    named: dict[str, set[QueueAddress]] = dataclasses.field(default_factory=dict)
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, context: typer.Context, url: str | None, prefix: str | None, json: bool) -> Common:
        """Merge the options after the command's name with those before it. The ones after it win."""
        before = context.obj if isinstance(context.obj, cls) else cls()
        # The variable is read here and not by the option, so that an option before the command wins over it.
        return cls(
            url=url or before.url or os.environ.get("APRESSURE_URL") or None,
            prefix=before.prefix if prefix is None else prefix,
            json=json or before.json,
            options=names_of(context),
        )

    def read(self, address: str, default: Kind = "queue") -> QueueAddress:
        """Return what an address says. The server is that of `--url` or of the environment, unless it names one."""
        found = queue_addresses.lasting(queue_addresses.read(address, default, self.url))
        self.named.setdefault(found.name, set()).add(found)
        return found

    def finder(self) -> Finder:
        """Return what finds and opens queues; those of one server share a client."""
        return Finder(self.url, self.prefix)

    def open(self, address: QueueAddress, **options: Any) -> Any:
        """Return the queue of an address, with a client of its own. Options that are None are left out.

        Items are bytes, also those of a queue of tasks.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if given.get("dead_letters") is not None:
            check_source(address, "--dead-letters")
        if self.prefix is not None and address.kind != "files":
            given["prefix"] = self.prefix
        return opening.make(address, {"codec": "raw", **given})

    def client(self, url: str | None = None) -> Client:
        """Return a new client of a server; None for the usual one."""
        queue_addresses.check_lasting(url or self.url)
        return Client(url or self.url, prefix=self.prefix)

    def tasks(self, url: str | None = None) -> TaskClient:
        """Return a new client of a server, for queues of tasks; None for the usual one."""
        from apressure.tasks import TaskClient

        queue_addresses.check_lasting(url or self.url)
        return TaskClient(url or self.url)


def durability_of(address: QueueAddress, replicas: int | Literal["all"], fsync: bool) -> Durability | None:
    """Return what `--replicas` and `--fsync` ask for. A queue in a directory is on the disk anyway."""
    if address.kind == "files":
        if replicas:
            raise UsageError("--replicas needs a server: a queue in a directory has no replicas. Leave it out")
        return None
    return Durability(replicas, fsync) if replicas or fsync else None


def check_source(address: QueueAddress, option: str) -> None:
    """Refuse the name of a dead-letter queue where dead letters stay in their queue."""
    if address.kind not in ("queue", "files"):
        raise UsageError(f"{option} is not for {address}: its dead letters stay in the queue. Leave {option} out")


def complain(line: str) -> None:
    """Write one line to standard error, with control characters made visible. Errors of writing are discarded."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()


def seconds_of(text: str) -> float:
    """Return the time span of an option: a number of seconds, not below 0."""
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) >= 0:
            return seconds
    raise typer.BadParameter(f"{text!r} is not a number of seconds from 0 on: for ten minutes, write 600")


def moment_of(text: str) -> datetime:
    """Return the time of an option: ISO 8601, in local time unless it names a zone, or seconds since 1970."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(text), UTC)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).astimezone()
    raise typer.BadParameter(
        f"{text!r} is not a time: write 2030-01-31T18:00, 2030-01-31T18:00+01:00 or seconds since 1970"
    )
