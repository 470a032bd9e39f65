"""Renders the server's configuration file. No I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

ConfigWord = str | int | float | bool | os.PathLike[str]
ConfigValue = ConfigWord | tuple[ConfigWord, ...] | list[ConfigWord | tuple[ConfigWord, ...]]
"""The value of a server directive: one word, a tuple of several words, or a list that repeats the directive."""


def render(directives: Mapping[str, ConfigValue]) -> bytes:
    """Return the content of a configuration file with these directives."""
    lines: list[tuple[ConfigWord, ...]] = []
    for name, value in directives.items():
        repeated = value if isinstance(value, list) else [value]
        lines.extend((name, *words) if isinstance(words, tuple) else (name, words) for words in repeated)
    return b"".join(b" ".join(map(_word, line)) + b"\n" for line in lines)


def _word(word: ConfigWord) -> bytes:
    """Return one word of the configuration file, quoted if necessary."""
    if isinstance(word, bool):
        return b"yes" if word else b"no"
    raw = os.fsencode(word) if isinstance(word, str | os.PathLike) else str(word).encode()
    if re.fullmatch(rb"[\w./:,+-]+", raw):
        return raw
    return b'"' + b"".join(b"%c" % c if 32 <= c < 127 and c not in b'"\\' else b"\\x%02x" % c for c in raw) + b'"'
