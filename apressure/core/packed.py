"""Texts behind their lengths, as `pack` of `connection/lua/06_keys.lua` writes them."""

from __future__ import annotations

import re
from typing import Final

_LENGTH: Final = re.compile(rb"([0-9]{1,10}):")


def unpack(packed: bytes, begin: int) -> tuple[bytes | None, int]:
    """Return the text that begins there behind its length, and the place behind it."""
    length = _LENGTH.match(packed, begin)
    if length is None or (end := length.end() + int(length[1])) > len(packed):
        return None, begin
    return packed[length.end() : end], end


def unpack_all(packed: bytes) -> list[bytes]:
    """Return the texts that follow each other, as far as they can be read."""
    texts: list[bytes] = []
    text, end = unpack(packed, 0)
    while text is not None:
        texts.append(text)
        text, end = unpack(packed, end)
    return texts
