"""Says messages of the library in the words of the command line: `expires=` is `--expires` there.

The library names its arguments and methods, as its callers write them. Who types a command has its options instead.
Where a message names both already, "(on the command line …)", it stays as it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ELSEWHERE: Final = {
    "durability": ("replicas",),
    "factor": ("retry_factor",),
    "first": ("retry_delay",),
    "max_items": ("max", "number", "limit"),
    "most": ("retry_most",),
    "pointer": ("key",),
}
"""Arguments of the library, and the options that say them, where these have other names."""

_COMMANDS: Final = {"create()": "`apressure create`", "set_bound()": "`apressure limit --bound`"}

_NAMED: Final = re.compile(
    r"(?<!\w)'[^']*'|`[^`]*`"  # what somebody has named, or typed
    rf"|(?P<verb>\bcall )?\b(?P<call>{'|'.join(map(re.escape, _COMMANDS))})"
    r"|(?<![\w.:/-])(?P<set>[a-z]\w*)=(?P<value>'[^']*'|%\w|-?\w+(?:[.-]\w+)*)?+(?![^\s,.:;)])(?!\.\.)"  # else: Python
    r"|(?<![\w.:/-])(?P<name>[a-z]+(?:_[a-z]+)+)\b(?!=|[.:/(]\w)"
    r"|\A(?P<first>[a-z]+)(?= must )"
)


def names_of(context: Any) -> dict[str, str]:
    """Return the options and arguments of a command, by the names of its function's parameters, and by their own."""
    names: dict[str, str] = {}
    for each in context.command.params:
        shown = max(each.opts, key=len) if each.param_type_name == "option" else each.metavar or each.name
        names[each.name] = names[shown.lstrip("-").replace("-", "_")] = shown
    return names


def in_options(text: str, names: Mapping[str, str]) -> str:
    """Return a message of the library with the options of a command instead of the library's arguments.

    Args:
        text: The message.
        names: The options, by the names of the library's arguments; see `names_of`. What is not among them stays.
    """

    def said(found: re.Match[str]) -> str:
        if call := found["call"]:
            return f"{'run ' if found['verb'] else ''}{_COMMANDS[call]}"
        name = found["set"] or found["name"] or found["first"]
        option = next((names[one] for one in (name, *_ELSEWHERE.get(name, ())) if one in names), None) if name else None
        if option is None or found["value"] == "False":
            return found[0]
        return option if found["value"] in (None, "True") else f"{option} {found['value'].strip(chr(39))}"

    return text if "(on the command line" in text else _NAMED.sub(said, text)


def reword(error: BaseException, names: Mapping[str, str]) -> None:
    """Have an error of the library say options; see `in_options`. What a handler has said, at its end, stays."""
    if len(error.args) == 1 and isinstance(text := error.args[0], str):
        quoted = getattr(error, "error", "")
        own = text.removesuffix(quoted) if isinstance(quoted, str) else text
        error.args = (in_options(own, names) + text[len(own) :],)


@contextlib.contextmanager
def worded(**names: str) -> Iterator[None]:
    """Name the arguments of the library's calls in the block, where no parameter of the command has their names."""
    try:
        yield
    except ValueError as error:
        reword(error, names)
        raise
