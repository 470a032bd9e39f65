"""Registrations in a dictionary, for queues without a server: what its scripts do on one."""

from __future__ import annotations

from typing import Final

from apressure.core.registration import DRAIN, STACK, Wish
from apressure.core.workers import MOST, Letter, letter_of, stored

MOST_WITH_PRODUCER: Final = 500
"""A producer registers only while there are fewer registrations. The script that writes them knows this number, too."""

KEPT_ASKED: Final = 60_000
"""Milliseconds for which one that was asked to drain is kept after it has expired: its program may stand still, and has
not seen that yet. The scripts know this number, too."""

_DRAINING: Final = (Letter.ASKED, Letter.ASKED_SHOWS)

_STACK_WANTED: Final = {
    Letter.WORKS: Letter.SHOWS, Letter.SHOWS: Letter.SHOWS, Letter.ASKED: Letter.ASKED_SHOWS,
    Letter.ASKED_SHOWS: Letter.ASKED_SHOWS,
}  # fmt: skip
_TO_DRAIN: Final = {
    Letter.WORKS: Letter.ASKED, Letter.ASKED: Letter.ASKED, Letter.SHOWS: Letter.ASKED_SHOWS,
    Letter.ASKED_SHOWS: Letter.ASKED_SHOWS,
}  # fmt: skip
"""What letters become."""

Kept = dict[bytes, bytes]
"""Values by the names of registrations."""


def beat(kept: Kept, now: int, name: bytes, letter: bytes, record: bytes, lasts: int) -> int:
    """Write a registration, and remove those that have expired; returns the answer of a `Registry`.

    Args:
        kept: The registrations.
        now: The time in milliseconds since 1970.
        name: Its name.
        letter: What it is.
        record: What it tells.
        lasts: For how many milliseconds it counts.
    """
    before = letter_of(kept.get(name, b""), 0)
    for expired in [other for other, value in kept.items() if other != name and not _is_kept(value, now)]:
        del kept[expired]
    if name not in kept and len(kept) >= (MOST_WITH_PRODUCER if letter == Letter.PUTS else MOST):
        return -1
    drains, shows = before in _DRAINING, before in {Letter.SHOWS, Letter.ASKED_SHOWS}
    kept[name] = stored(now + lasts, now, Letter.ASKED if drains else letter, record)
    return DRAIN * drains + STACK * shows


def _is_kept(value: bytes, now: int) -> bool:
    return letter_of(value, now) is not None or letter_of(value, now - KEPT_ASKED) in _DRAINING


def leave(kept: Kept, _: int, name: bytes) -> int:
    """Remove a registration; returns whether it was there."""
    return int(kept.pop(name, None) is not None)


def ask(kept: Kept, now: int, worker_id: bytes, what: Wish) -> int:
    """Ask all registrations of a worker for something; returns how many can do that."""
    becomes, told = _STACK_WANTED if what == "stack" else _TO_DRAIN, 0
    for name, value in kept.items():
        letter = becomes.get(letter_of(value, now) or b"")
        if name.rpartition(b"/")[0] == worker_id and letter is not None:
            until, written, _, record = value.split(b" ", 3)
            kept[name] = stored(int(until), int(written), letter, record)
            told += 1
    return told
