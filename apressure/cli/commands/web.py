"""`apressure web`: the page that watches queues."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

import apressure.web
from apressure.cli.exits import UsageError
from apressure.cli.options import Common, complain, option
from apressure.cli.show import answer
from apressure.connection.addresses import is_loopback

_TOKEN: Final = "APRESSURE_WEB_TOKEN"  # noqa: S105 (the name of a variable)


async def web(
    common: Common,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE", show_default=False,
            help="The queues: addresses, and patterns such as 'events:*'. By default all on the server.",
        ),
    ] = None,
    host: Annotated[
        str, option("host", "Where to listen. An address that others reach needs tokens or a proxy.", "ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, option("port", "The port; 0 for a free one.", min=0, max=65535)] = 8787,
    show_bodies: Annotated[bool, option("show-bodies", "Show what messages contain.")] = False,
    redact: Annotated[
        list[str] | None,
        option("redact", "Leave this out of messages of JSON, such as /card/number, and show no others.", "POINTER",
               shown=False),
    ] = None,
    allow_actions: Annotated[
        bool, option("allow-actions", "Let operators change queues: pause, requeue, purge, …")
    ] = False,
    token_file: Annotated[
        Path | None,
        option("token-file", f"Who may see the page: lines such as `viewer TOKEN`. Or set {_TOKEN}.", "FILE",
               shown=False),
    ] = None,
    trust_header: Annotated[
        str, option("trust-header", "The header in which a proxy names the user.", "NAME", shown=False)
    ] = "",
    operators: Annotated[
        list[str] | None,
        option("operator", "With --trust-header: a user who is an operator, and not a viewer.", "NAME", shown=False),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option("allow-host", "A name under which browsers ask for the page, besides localhost.", "NAME", shown=False),
    ] = None,
    root_path: Annotated[
        str, option("root-path", "The path under which a proxy has the page, such as /queues.", "PATH", shown=False)
    ] = "",
    interval: Annotated[float, option("interval", "Time between two looks.", "SECONDS", min=0.1, max=3600)] = 2.0,
    history: Annotated[
        bool, option("history/--no-history", "Write a short record a minute for each queue, for charts.")
    ] = True,
) -> None:  # fmt: skip
    """Show queues in a browser: how they are, what is in them, who works on them. Until Ctrl-C.

    Only this machine can connect, unless --host says otherwise. Contents of messages are hidden without --show-bodies.
    """
    make = apressure.web.app  # or it says which package is missing
    from apressure.web import serving
    from apressure.web.guard import LOOPBACK

    tokens = _tokens(token_file)
    local = is_loopback(host)
    if not local and not tokens and not trust_header:
        raise UsageError(
            f"others reach {host}: give --token-file or {_TOKEN}, or --trust-header behind a proxy that signs users in"
        )
    if operators and not trust_header:
        raise UsageError("--operator is for users that a proxy names: give --trust-header, too")
    own = [] if local else [f"[{host}]" if ":" in host else host]
    try:
        page = make(
            *queues or (), url=common.url, prefix=common.prefix, interval=interval, history=history,
            show_bodies=show_bodies, redact=redact or (), allow_actions=allow_actions, tokens=tokens,
            trust_header=trust_header, operators=operators or (), hosts=(*LOOPBACK, *own, *(allow_host or ())),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None

    def started(url: str) -> None:
        if sys.stderr.isatty() and not common.json:
            complain(f"apressure: the page is at {url}. Ctrl-C ends it")
        else:
            answer({"url": url}, f"the page is at {url}", as_json=common.json)

    await serving.serve(page, host, port, root_path.rstrip("/"), started)


def _tokens(file: Path | None) -> str:
    if file is None:
        return os.environ.get(_TOKEN, "")
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file of --token-file cannot be read: {error}") from None
    if not text.strip():
        raise UsageError(f"{file} has no token")
    return text
