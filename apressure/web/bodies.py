"""What the page shows of a message: its text, JSON or hex, without what is to be redacted. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

READ: Final = 1 << 16
"""Bytes of a message that are read: JSON is shown as JSON, and redacted, only if that is all of it."""

_SHOWN: Final = 4096
"""Characters that are shown."""

_BYTES_SHOWN: Final = 512
"""Bytes that are shown in hex."""

REDACTED: Final = "[redacted]"

Pointer = tuple[str, ...]
"""The parts of a JSON pointer. `*` is every member."""


class Body(NamedTuple):
    """A message as the page shows it.

    Attributes:
        format: `json`, `text`, `hex` or `hidden`.
        text: What is shown.
        size: How many bytes the message has.
        cut: Whether that is not all of it.
    """

    format: str
    text: str
    size: int
    cut: bool = False


def read_pointer(text: str) -> Pointer:
    """Read a JSON pointer such as `/card/number`; `/cards/*/number` means all cards.

    Raises:
        ValueError: It is none.
    """
    if not text.startswith("/"):
        raise ValueError(f"a JSON pointer begins with a slash: /{text}")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


class Bodies:
    """Decides what of messages is shown.

    Args:
        shown: Whether any of it is.
        redact: What is left out of JSON. Then a message is shown only if it can be read as JSON as a whole.
    """

    def __init__(self, shown: bool = False, redact: Sequence[Pointer] = ()) -> None:
        self.shown = shown
        self.redact = tuple(redact)

    @property
    def whole(self) -> bool:
        """Whether all that a message has may be shown, its key included."""
        return self.shown and not self.redact

    def of(self, raw: bytes, size: int | None = None) -> Body:
        """Return a message, of which these are the first bytes."""
        size = len(raw) if size is None else size
        raw = raw[:READ]
        if not self.shown:
            return Body("hidden", "", size)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = None
        if text is not None and size <= len(raw):
            try:
                return _body("json", self._redacted(json.loads(text)), size)
            except (ValueError, RecursionError):
                pass
        if self.redact:
            return Body("hidden", "", size)
        if text is None and size > len(raw):
            text = _cut(raw)
        if text is None:
            return Body("hex", _hex(raw[:_BYTES_SHOWN]), size, size > _BYTES_SHOWN)
        return _body("text", text, size, size > len(raw))

    def of_value(self, value: Any) -> Body | None:
        """Return parameters or a result of a task: a value of JSON, or a text; None for None."""
        if value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return self.of(text.encode(errors="surrogateescape"))

    def _redacted(self, value: Any) -> str:
        for pointer in self.redact:
            value = _without(value, pointer)
        return json.dumps(value, indent=2, ensure_ascii=False)


def _body(format: str, text: str, size: int, cut: bool = False) -> Body:
    return Body(format, text[:_SHOWN], size, cut or len(text) > _SHOWN)


def _without(value: Any, pointer: Pointer) -> Any:
    if not pointer:
        return REDACTED
    first, rest = pointer[0], pointer[1:]
    if isinstance(value, dict):
        return {key: _without(one, rest) if first in ("*", key) else one for key, one in value.items()}
    if isinstance(value, list):
        return [_without(one, rest) if first in ("*", str(number)) else one for number, one in enumerate(value)]
    return value


def _cut(raw: bytes) -> str | None:
    """Return a text whose end may be in the middle of a character; None if it is no text."""
    for left in range(1, 4):
        try:
            return raw[:-left].decode()
        except UnicodeDecodeError:
            continue
    return None


def _hex(raw: bytes) -> str:
    """Return bytes as lines of sixteen, with what of them is ASCII."""
    lines = []
    for start in range(0, len(raw), 16):
        part = raw[start : start + 16]
        ascii_part = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):47}  {ascii_part}")
    return "\n".join(lines)
