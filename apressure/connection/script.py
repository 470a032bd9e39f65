"""A .lua file becomes a step that can be sent: by EVALSHA, and by EVAL where the server does not know it yet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources


class Script:
    """One script with its package's prelude in front.

    Args:
        package: The package whose folder `lua` holds the files.
        name: The file's name without `.lua`.
    """

    def __init__(self, package: str, name: str) -> None:
        folder = resources.files(package) / "lua"
        self.name = name
        self.source = ((folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()).encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def command(
        self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int], whole: bool = False
    ) -> list[bytes | str | int]:
        """Return the command that runs the script: by its digest, or `whole` with its source."""
        head: list[bytes | str | int] = [b"EVAL", self.source] if whole else [b"EVALSHA", self.sha]
        return [*head, len(keys), *keys, *arguments]
