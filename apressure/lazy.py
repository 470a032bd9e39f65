"""Names of a package that are imported when they are first used: most programs need few of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Put it where no type checker looks (`if not TYPE_CHECKING`): with it, one would accept every name.

    Args:
        package: The package's `__name__`.
        modules: The module of each name. A name that the module does not have is the module itself.
    """

    def import_now(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        found = getattr(module, name, module)
        setattr(sys.modules[package], name, found)
        return found

    return import_now
