"""Imports what `apressure worker` serves: `module:name` is a handler, or a `Worker`."""

from __future__ import annotations

import importlib
from typing import Any


class TargetError(Exception):
    """A target cannot be imported: the message says why."""


def load(target: str) -> Any:
    """Return what a target names.

    Raises:
        TargetError: It is not written as `module:name`, the module does not exist, or it has no such name.
        Exception: The module raised it while it was imported.
    """
    module, separator, name = target.partition(":")
    if not (module and separator and name) or module.startswith("."):
        raise TargetError(
            f"{target!r} names no handler. Write MODULE:FUNCTION, or MODULE:WORKER for a Worker; MODULE as "
            "in an import, not as a path"
        )
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module itself imports something that is missing
        raise TargetError(
            f"there is no module {module!r}. It is looked for in this directory, in that of --app-dir, and among the "
            "installed packages"
        ) from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TargetError(f"the module {module!r} has no {name!r}") from None
    return found
