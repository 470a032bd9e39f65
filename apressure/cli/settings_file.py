"""Configuration files of `key: value` lines: the same settings as the options of a command.

Click gives them their rank: an option before its environment variable, and that one before the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer


def load(context: typer.Context, path: Path | None) -> Path | None:
    """Take the defaults of a command's options from a file. A callback for the eager option `--config`.

    Raises:
        typer.BadParameter: The file cannot be read, or a line is wrong.
    """
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the file cannot be read: {error}") from None
    known = {_key(option): option.name for option in _options(context)}
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            raise typer.BadParameter(f"{path}, line {number}: write 'key: value', not {line.strip()!r}")
        if key not in known:
            raise typer.BadParameter(f"{path}, line {number}: there is no setting {key!r} (--example shows all)")
        if known[key] in found:
            raise typer.BadParameter(f"{path}, line {number}: {key!r} is set twice")
        if value:
            found[known[key]] = value
    context.default_map = {**(context.default_map or {}), **found}
    return path


def show_example(context: typer.Context, wanted: bool) -> None:
    """Print a configuration file with comments and defaults, and end. A callback for the eager option `--example`."""
    if wanted:
        parts = []
        for option in _options(context):
            default = option.default
            value = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
            # A setting without a default is commented out: an empty one would mean the same.
            parts.append(f"# {option.help}\n{'' if value else '#'}{_key(option)}: {value}".rstrip() + "\n")
        typer.echo("\n".join(parts), nl=False)
        raise typer.Exit


def _options(context: typer.Context) -> Iterable[Any]:
    """Return the options that a file may set: those that have an environment variable."""
    return (parameter for parameter in context.command.params if parameter.envvar)


def _key(option: Any) -> str:
    longest: str = max(option.opts, key=len)
    return longest.removeprefix("--")
