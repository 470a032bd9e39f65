"""Names of a package that are imported when they are first used: most programs need few of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(package: str, modules: Mapping[str, str], rooms: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Put it where no type checker looks (`if not TYPE_CHECKING`): with it, one would accept every name.

    Args:
        package: The package's `__name__`.
        modules: The module of each name. A name that the module does not have is the module itself.
        rooms: Modules whose public classes are names of the package, too.
    """

    def import_now(name: str) -> Any:
        # `from package import module` asks for the module's name, too: it must not load the rooms.
        places = [modules[name]] if name in modules else rooms if name[:1].isupper() else ()
        found_in = (module for module in map(import_module, places) if name in modules or name in module.__all__)
        if (module := next(found_in, None)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(module, name, module)
        setattr(sys.modules[package], name, found)
        return found

    return import_now
