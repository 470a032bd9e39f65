"""Prints what commands have to say, and makes text safe to print."""

from __future__ import annotations

import json as jsons
import sys


def printable(text: str) -> str:
    """Return `text` with control characters made visible: names of queues and holders may contain them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def visible(data: bytes) -> bytes:
    """Return text without anything that a terminal would obey: control characters are made visible, except tabs."""
    text = data.decode(errors="backslashreplace")
    return "\t".join(map(printable, text.split("\t"))).encode()


def answer(data: object, text: str, *, as_json: bool) -> None:
    """Print the result of a command, as JSON or as text."""
    if as_json:
        print_json(data)
    else:
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()


def print_json(data: object) -> None:
    """Print JSON on one line."""
    sys.stdout.write(jsons.dumps(data) + "\n")
    sys.stdout.flush()


def bound_text(bound: int) -> str:
    """Return a bound in words."""
    return f"bound {bound:,}" if bound else "no bound"


def plain(value: object) -> str:
    """Return a value as text for scripts: a dash for None, yes or no, and no control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
