"""What was typed into a form of the page."""

from __future__ import annotations


class WrongFormError(Exception):
    """What was typed in cannot be used; the text says why."""


class Form(dict[str, str]):
    """The fields of a form, of each the last value.

    Attributes:
        chosen: All values of the field `chosen`: ids of dead letters.
        handles: All values of the field `letter`: handles of dead letters.
    """

    chosen: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()

    def whole(self, name: str) -> int | None:
        """Return a whole number that was typed in; None if the field is empty."""
        typed = self.get(name, "")
        text = typed.strip()
        if typed and not (text.isascii() and text.isdigit() and len(text) < 16):
            raise WrongFormError(f"{text[:40]!r} is not a whole number.")
        return int(text) if typed else None

    def number(self, name: str, empty: str = "") -> float:
        """Return a number that was typed in, or `empty` if nothing was."""
        text = self.get(name) or empty
        try:
            return float(text)
        except ValueError:
            raise WrongFormError(f"{text[:40]!r} is not a number.") from None
