"""`apressure events`: the okq server, and a look at its health."""

from __future__ import annotations

import asyncio
import contextlib
import json as jsons
import logging
import resource
import signal
import ssl
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from apressure.cli.options import Common, complain, option, replicas_of
from apressure.cli.running import ROUTINE
from apressure.cli.settings_file import load, show_example
from apressure.cli.show import print_json
from apressure.connection.settings import Durability
from apressure.events.server.server import EventServer, check_health
from apressure.events.server.settings import Address, ConnectionLimits, ServerSettings, Tls, redis_url
from apressure.events.server.wire import Limits

_logger = logging.getLogger("apressure.events.server")

_OTHER_FILES: Final = 64
"""Open files besides the connections of clients."""
_LIMITS: Final = "Limits of clients"
_SECURITY: Final = "Password and TLS"
_WIRE, _CONNECTIONS, _SETTINGS = Limits(), ConnectionLimits(), ServerSettings()


def _option(name: str, help: str, **more: Any) -> Any:
    """Return an option that has an environment variable and a line in the configuration file, too."""
    return option(name, help, envvar=f"OKQ_{name.upper().replace('-', '_')}", **more)


def _limit(name: str, help: str, metavar: str = "N", least: int = 1) -> Any:
    return _option(name, help, metavar=metavar, min=least, rich_help_panel=_LIMITS)


Password = Annotated[
    str | None,
    _option(
        "password", "The password for AUTH. Others can see it in the list of processes: prefer OKQ_PASSWORD.",
        metavar="TEXT", shown=False, show_envvar=False, rich_help_panel=_SECURITY,
    ),
]  # fmt: skip


async def serve(
    common: Common,
    listen_addr: Annotated[
        str,
        _option("listen-addr", "Where to listen. ':4777' opens the server to other machines.", metavar="HOST:PORT"),
    ] = str(_SETTINGS.listen),
    redis_addr: Annotated[
        str | None,
        _option(
            "redis-addr", "The Redis or Valkey server: host:port, a URL, or embedded:// for one of its own. "
            "Default: APRESSURE_URL, or 127.0.0.1:6379.", metavar="ADDRESS", shown=False,
        ),
    ] = None,
    redis_cluster: Annotated[
        bool, _option("redis-cluster", "The Redis server is a node of a cluster.", shown=False)
    ] = False,
    bg_push_pool_size: Annotated[
        int, _option("bg-push-pool-size", "How many NOBLOCK pushes may be under way.", metavar="N", min=0)
    ] = _SETTINGS.workers,
    drain_timeout: Annotated[
        float, _option("drain-timeout", "How long commands may go on after SIGTERM.", metavar="SECONDS", min=0)
    ] = _SETTINGS.drain,
    replicas: Annotated[
        Any,
        _option("replicas", "Answer when N replicas, or all known replicas, have received what a command wrote.",
                parser=replicas_of, metavar="N|all"),
    ] = 0,
    fsync: Annotated[
        bool, _option("fsync", "Answer when the disk of Redis has what a command wrote (WAITAOF).", shown=False)
    ] = False,
    debug: Annotated[bool, _option("debug", "Log more.", shown=False)] = False,
    password: Password = None,
    tls_cert: Annotated[
        Path | None, _option("tls-cert", "The certificate (PEM). With it, clients must use TLS.", metavar="FILE",
                             shown=False, rich_help_panel=_SECURITY)
    ] = None,
    tls_key: Annotated[
        Path | None, _option("tls-key", "The key of the certificate (PEM), if it has a file of its own.",
                             metavar="FILE", shown=False, rich_help_panel=_SECURITY)
    ] = None,
    tls_client_ca: Annotated[
        Path | None, _option("tls-client-ca", "The authority of clients' certificates (PEM), which they need then.",
                             metavar="FILE", shown=False, rich_help_panel=_SECURITY)
    ] = None,
    max_connections: Annotated[int, _limit("max-connections", "How many clients.")] = _CONNECTIONS.connections,
    max_pipeline: Annotated[
        int, _limit("max-pipeline", "How many commands of a client may wait behind the one that runs.")
    ] = _CONNECTIONS.pipeline,
    max_bulk_size: Annotated[
        int, _limit("max-bulk-size", "The longest argument: the largest contents of an event.", "BYTES")
    ] = _WIRE.bulk,
    max_command_size: Annotated[
        int, _limit("max-command-size", "The longest command with all its arguments.", "BYTES")
    ] = _WIRE.command,
    max_args: Annotated[int, _limit("max-args", "How many arguments of a command.")] = _WIRE.arguments,
    max_inline_size: Annotated[
        int, _limit("max-inline-size", "The longest inline command.", "BYTES")
    ] = _WIRE.inline,
    max_output_size: Annotated[
        int, _limit("max-output-size", "The most replies that a client may leave unread.", "BYTES")
    ] = _CONNECTIONS.output,
    idle_timeout: Annotated[
        float, _limit("idle-timeout", "Disconnect clients that send nothing for so long; 0: never.", "SECONDS", 0)
    ] = _CONNECTIONS.idle,
    stalled_timeout: Annotated[
        float, _limit("stalled-timeout", "Disconnect clients that read no replies for so long; 0: never.", "SECONDS", 0)
    ] = _CONNECTIONS.stalled,
    config: Annotated[
        Path | None, option("config", "Read settings from a file of 'key: value' lines.", "FILE", shown=False,
                            is_eager=True, callback=load)
    ] = None,
    example: Annotated[
        bool, option("example", "Print a configuration file with all settings, and exit.", shown=False,
                     is_eager=True, callback=show_example)
    ] = False,
) -> None:  # fmt: skip
    """Serve event queues to Redis clients in any language: okq's commands, on okq's keys.

    Each option is also an environment variable (--listen-addr: OKQ_LISTEN_ADDR) and a line of the configuration file
    (listen-addr: ...). Options win over the environment, and the environment over the file. SIGTERM ends the server
    after the commands under way; a second one ends it at once.
    """
    del config, example
    if tls_cert is None and (tls_key or tls_client_ca):
        raise ValueError("--tls-key and --tls-client-ca need --tls-cert")
    settings = ServerSettings(
        listen=Address.parse(listen_addr),
        url=redis_url(redis_addr or common.url or "127.0.0.1:6379", cluster=redis_cluster),
        password=password,
        tls=Tls(tls_cert, tls_key, tls_client_ca) if tls_cert else None,
        limits=ConnectionLimits(
            connections=max_connections, pipeline=max_pipeline, output=max_output_size, idle=idle_timeout,
            stalled=stalled_timeout,
            wire=Limits(bulk=max_bulk_size, command=max_command_size, arguments=max_args, inline=max_inline_size),
        ),
        workers=bg_push_pool_size,
        drain=drain_timeout,
        durability=Durability(replicas_of(replicas), fsync) if replicas or fsync else None,
    )  # fmt: skip
    server = EventServer(settings)
    files = _raise_limit_of_files()

    def ready(address: Address) -> None:
        if common.json:
            print_json({"ready": True, "host": address.host, "port": address.port})
        else:
            sys.stdout.write(f"ready: listening on {address}\n")
        sys.stdout.flush()

    with _logs(as_json=common.json, debug=debug), _stopped_by_signals(server):
        if files < max_connections + _OTHER_FILES:
            _logger.warning(
                "the system allows fewer open files than --max-connections needs: raise it (ulimit -n)",
                extra={"files": files, "max_connections": max_connections},
            )
        await server.run(ready)


async def health(
    common: Common,
    addr: Annotated[
        str, option("addr", "Where the server listens.", "HOST:PORT", envvar="OKQ_LISTEN_ADDR")
    ] = str(_SETTINGS.listen),
    password: Password = None,
    tls: Annotated[bool, option("tls", "Connect with TLS.", rich_help_panel=_SECURITY)] = False,
    tls_ca: Annotated[
        Path | None, option("tls-ca", "The authority of the server's certificate (PEM).", "FILE", "the system's",
                            rich_help_panel=_SECURITY)
    ] = None,
    timeout: Annotated[float, option("timeout", "Give up then.", "SECONDS", min=0.001)] = 5.0,
) -> None:  # fmt: skip
    """Check that a server answers, and that it reaches its Redis. Exit code 0 if it does, 7 if not."""
    try:
        context = ssl.create_default_context(cafile=tls_ca) if tls or tls_ca else None
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"--tls-ca cannot be used: {error}") from None
    address = Address.parse(addr)
    took = await check_health(address, password, context, timeout)
    if common.json:
        print_json({"healthy": True, "address": str(address), "milliseconds": round(took * 1000, 3)})
    else:
        sys.stdout.write(f"healthy: {address} answered in {took * 1000:.1f} ms\n")


def _raise_limit_of_files() -> int:
    """Let this process open as many files as the system allows, and return how many: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


@contextlib.contextmanager
def _stopped_by_signals(server: EventServer) -> Iterator[None]:
    """Stop the server in an orderly way at the first signal, and at once at the second."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(signum: int) -> None:
        received.append(signum)
        if len(received) == 1:
            server.stop()
        else:
            task.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, stop, signum)
    try:
        yield
    except asyncio.CancelledError:
        if len(received) < 2:
            raise
        task.uncancel()
        raise typer.Exit(128 + received[-1]) from None


_USUAL: Final = frozenset({*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName"})


class _Lines(logging.Handler):
    """Writes each log record as one line on standard error: words and `key=value`, or JSON."""

    def __init__(self, *, as_json: bool, debug: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._without = frozenset[str]() if debug else ROUTINE

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) in self._without:
            return
        more = {key: value for key, value in record.__dict__.items() if key not in _USUAL}
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if record.exc_info:
            more["traceback"] = logging.Formatter().formatException(record.exc_info)
        if self._as_json:
            told = {"time": when, "level": record.levelname.lower(), "message": record.getMessage(), **more}
            complain(jsons.dumps(told, default=str))
        else:
            pairs = "".join(f" {key}={value}" for key, value in more.items())
            complain(f"{when} {record.levelname.lower()}: {record.getMessage()}{pairs}")


@contextlib.contextmanager
def _logs(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Write the log of the server, and the library's, as lines of their own."""
    logger = logging.getLogger("apressure")
    handlers, level = list(logger.handlers), logger.level
    logger.handlers = [_Lines(as_json=as_json, debug=debug)]
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
